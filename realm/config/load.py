"""Reads `conf/*.toml` and the `--set key=value` of the command line, once, into frozen and validated objects.

Called by the command line before any process starts, and by each role for the run's own `config.toml`. In goes a file
of these tables: `[app]` (AppConfig), `[env]` (free-form options for the user's `make_envs`), `[eval_env]` (options that
differ in evaluations), one with the name of the last part of `algo` (overrides of the user's `Config`), and `[sweep]`,
which only `realm sweep` reads. Above them `base = "other.toml"` may name a file next to it, whose keys hold where this
one has none; it may have a base, too. Out comes a RunConfig, or a ConfigError of one sentence: `file:line: key 'x': got
...; must be ... (did you mean 'y'?)`. No content of a file is executed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from realm.config.keys import CHECKS, IGNORED, SPELLINGS, AppConfig
from realm.config.toml import MOST_BYTES, MOST_DOTS, parse_value, read_toml, shown, toml_key, toml_value
from realm.config.values import convert, is_text
from realm.errors import ConfigError, did_you_mean, one_line
from realm.files import read_bytes

EVAL_SEED = 2_000_000  # of `realm eval`: differs from the seeds of training and of choosing the best model

SWEEP = "sweep"  # a table of values to try

HINTS = typing.get_type_hints(AppConfig, include_extras=True)
"""Key of [app] -> its type."""

T = TypeVar("T")

_WRITTEN = "# The effective configuration of this run, written by Realm"
_END = re.compile(r"^# end of its (\d+) keys\r?$", re.MULTILINE)


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one run. `hyper` holds only overrides of the user's Config, `eval_env` overrides of `env`.

    places    "table.key" -> `file:line`, or the `--set` that it comes from
    warnings  sentences that the caller should show once
    """

    app: AppConfig
    env: dict[str, Any]
    eval_env: dict[str, Any]
    hyper: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of the TOML file, by their names."""
        own = {self.app.hyper_table: self.hyper}
        return {"app": dataclasses.asdict(self.app), "env": self.env, "eval_env": self.eval_env, **own}

    def settings(self) -> dict[str, Any]:
        """Every key as `--set` names it: those of [app] without their table."""
        return {shown((table, key)): value for table, values in self.tables().items() for key, value in values.items()}

    def settled(self) -> RunConfig:
        """A copy for a process whose current directory user code may change: the models' path is absolute."""
        folder = self.app.preload_model_dir and os.path.abspath(self.app.preload_model_dir)
        return dataclasses.replace(self, app=dataclasses.replace(self.app, preload_model_dir=folder))

    def evaluated(self) -> RunConfig:
        """A copy for evaluations, with `eval_env` merged into `env`; an empty list removes an option."""
        env = {key: value for key, value in {**self.env, **self.eval_env}.items() if self.eval_env.get(key) != []}
        places = self.places | {f"env.{key}": self.places[f"eval_env.{key}"] for key in self.eval_env}
        return dataclasses.replace(self, env=env, eval_env={}, places=places)


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    hyper_keys: Callable[[str], Iterable[str]] = lambda algo: (),
    translate: Callable[[dict[str, Any], dict[str, str]], list[str]] = lambda tables, places: [],
) -> RunConfig:
    """Read a file and apply `key=value` overrides; raise ConfigError at the first error.

    hyper_keys: the user's hyper-parameters by `algo`, to say where a key belongs that is in the wrong table.
    translate: turns tables of another format into those of this one, in place; returns sentences to warn with.
    """
    tables, places = with_base(Path(path))
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{places[name]}: key {name!r}: not in a table; expected a line [app] above it")
    _check_whole(Path(path), tables)
    in_file = tables.get("app", {}).get("algo", "diy")
    for text in overrides:
        _override(text, tables, places)
    translated = translate(tables, places)

    app, warnings = _app(tables.get("app", {}), places, tables.get("env", {}), hyper_keys)
    known = ["app", "env", "eval_env", app.hyper_table]
    for name in [table for table in tables if table not in (*known, SWEEP)]:
        # `--set algo=other` must accept the table of the algorithm that the file was written for.
        if isinstance(in_file, str) and name == in_file.rpartition(".")[2]:
            if tables[name]:
                warnings.append(f"{places[name]}: table [{name}] is not used, since algo is {app.algo!r}")
            continue
        names = ", ".join(f"[{table}]" for table in known)
        near = did_you_mean(name, known)
        raise ConfigError(f"{places[name]}: table [{name}]: unknown; must be one of {names}{near}")
    env, eval_env, hyper = (tables.get(name, {}) for name in ("env", "eval_env", app.hyper_table))
    # an option of [env] on the command line holds for evaluations, too
    named = {key for key in eval_env if places.get(f"env.{key}", "").startswith("--set")}
    eval_env = {
        key: value for key, value in eval_env.items() if key not in named or "--set" in places[f"eval_env.{key}"]
    }
    return RunConfig(app, env, eval_env, hyper, places, (*translated, *warnings))


def with_base(path: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """`read_toml` of the file, laid over the file next to it that its `base` names. above: files it is the base of."""
    tables, places = read_toml(path)
    base = tables.pop("base", None)
    if base is None:
        return tables, places
    if not isinstance(base, str):
        raise ConfigError(f"{places['base']}: key 'base': got {toml_value(base)[:80]}; must be the name of a file")
    if any((path.parent / base).samefile(one) for one in (path, *above) if (path.parent / base).exists()):
        raise ConfigError(f"{places['base']}: key 'base': got {base!r}, which leads back here; must be another file")
    below, places_below = with_base(path.parent / base, (path, *above))
    for name, table in tables.items():
        under = below.get(name)
        below[name] = {**under, **table} if isinstance(under, dict) and isinstance(table, dict) else table
    return below, places_below | places


def build_dataclass(cls: type[T], table: Mapping[str, Any], prefix: str, places: Mapping[str, str], file: str) -> T:
    """Make the user's dataclass from `table`, checking names and types; `file` defines it."""
    fields = {each.name: each for each in dataclasses.fields(cls) if each.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in table.items():
        place, name = places.get(f"{prefix}.{key}", f"table [{prefix}]"), f"{prefix}.{key}"
        if key not in fields:
            near = f" (did you mean {key!r} in [app]?)" if key in HINTS else did_you_mean(key, fields)
            near = f" (did you mean 'env.{key}'?)" if f"env.{key}" in places else near
            raise ConfigError(f"{place}: key {name!r}: unknown; must be a field of Config in {file}{near}")
        values[key] = convert(value, hints[key], place, name)
    for key, each in fields.items():
        unset = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if unset and key not in values:
            place = places.get(prefix, f"table [{prefix}]")
            raise ConfigError(f"{place}: key '{prefix}.{key}': missing, and {file} gives it no default; set it")
    return _make(cls, values, prefix, places)


def to_toml(config: RunConfig, why: Mapping[str, str] | None = None) -> str:
    """Write every effective value as TOML; `load_config` of that text gives an equal RunConfig.

    why: key of [app] -> the reason for a value that was "auto", written as a comment.
    """
    lines = [f"{_WRITTEN}, with all keys: its last line counts them."]
    for name, table in config.tables().items():
        lines += ["", f"[{toml_key(name)}]"]
        for key, value in table.items():
            reason = why.get(key) if why and name == "app" else None
            lines.append(f"{toml_key(key)} = {toml_value(value)}{f'  # auto: {reason}' if reason else ''}")
    return "\n".join([*lines, "", f"# end of its {sum(map(len, config.tables().values()))} keys"]) + "\n"


def _check_whole(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a file of `to_toml` that has lost keys or its end: a run would go on with defaults in their place."""
    text = read_bytes(path, MOST_BYTES).decode("utf-8-sig", "replace")  # it has just been parsed
    first, end = text.partition("\n")[0], _END.search(text)
    if not first.startswith(_WRITTEN) or (first == f"{_WRITTEN}." and "env" in tables):  # of a Realm that counted none
        return
    there, missing = sum(map(len, tables.values())), [key for key in HINTS if key not in tables.get("app", {})]
    if end and there >= int(end[1]):
        return
    lost = f"{int(end[1]) - there} of its {end[1]} keys" if end else "its end"
    such = f", {missing[0]!r} among them" if missing else ""
    raise ConfigError(
        f"{path}: has lost {lost}{such}, and Realm wrote all: the file is damaged; restore it, or give the run its "
        "settings anew with realm start --config FILE --set run_name=NAME"
    )


def settings_of(config: RunConfig) -> dict[str, str]:
    """Every key, as `--set` names it, with its value as TOML."""
    return {key: toml_value(value) for key, value in config.settings().items()}


def _app(
    table: dict[str, Any], places: Mapping[str, str], env: Mapping[str, Any], hyper_keys: Callable[[str], Iterable[str]]
) -> tuple[AppConfig, list[str]]:
    """Make AppConfig and its warnings from the table [app]; `env` (the table [env]) and hyper_keys are for advice."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        place = places[f"app.{key}"]
        if key in HINTS:
            values[key] = convert(value, HINTS[key], place, key, CHECKS.get(key), SPELLINGS.get(key))
        elif key not in IGNORED:
            near = _near(key, env, str(table.get("algo", AppConfig.algo)), hyper_keys)
            raise ConfigError(
                f"{place}: key {key!r}: unknown; must be a key of AppConfig in realm/config/keys.py{near}"
            )
    app = _make(AppConfig, values, "app", places)
    named = "; ".join(f"{key} ({places[f'app.{key}']}: {IGNORED[key]})" for key in table if key in IGNORED)
    return app, [f"these keys have no effect here and are ignored: {named}"] if named else []


def _near(key: str, env: Mapping[str, Any], algo: str, hyper_keys: Callable[[str], Iterable[str]]) -> str:
    """Advice for an unknown key of [app]: perhaps it belongs to another table."""
    own = list(hyper_keys(algo))
    prefix = "env." if key in env else f"{algo.rpartition('.')[2]}." if key in own else ""
    if prefix:
        return f" (did you mean '{prefix}{key}'?)"
    near = did_you_mean(key, own).replace("mean '", f"mean '{algo.rpartition('.')[2]}.")
    return did_you_mean(key, [*HINTS, *IGNORED]) or near


def _override(text: str, tables: dict[str, Any], places: dict[str, str]) -> None:
    """Put one `key=value` of the command line into `tables`."""
    place = f"--set {text}" if text.isprintable() else f"--set {text!a}"
    name, equals, written = text.partition("=")
    keys = tuple(name.strip().split("."))
    named = len(keys) <= MOST_DOTS and all(re.fullmatch(r"[A-Za-z0-9_-]+", key) for key in keys)
    if not named or not equals or not text.isprintable():
        raise ConfigError(f"{place}: not an override; must be key=value or table.key=value, in plain text")
    if len(keys) == 1:
        keys = ("app", *keys)
    value, inner = parse_value(written), tables
    if keys[0] == "app" and is_text(HINTS.get(keys[-1])) and not isinstance(value, str):
        value = written.strip()  # a run may be called 7
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{place}: key {shown(keys)!r}: {key!r} is a value; must be a table")
    inner[keys[-1]] = value
    for depth in range(1, len(keys)):
        places.setdefault(".".join(keys[:depth]), place)
    places[".".join(keys)] = place


def _make(cls: type[T], values: Mapping[str, Any], prefix: str, places: Mapping[str, str]) -> T:
    """Call the dataclass; a ValueError of its `__post_init__` becomes a ConfigError at the first key it names."""
    try:
        return cls(**values)
    except ValueError as error:
        named = {key: match.start() for key in values if (match := re.search(rf"\b{re.escape(key)}\b", str(error)))}
        key = min(named, key=named.__getitem__, default=None)
        place = places.get(f"{prefix}.{key}" if key else prefix, f"table [{prefix}]")
        name = f"key {shown((prefix, key))!r}: " if key else ""
        raise ConfigError(f"{place}: {name}{one_line(error)}") from error
