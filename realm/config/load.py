"""Reads `conf/*.toml` and the `--set key=value` of the command line, once, into frozen and validated objects.

Called by the command line before any process starts, and by a role on the run's own `config.toml`. In goes a file of
four tables: `[app]` (AppConfig below), `[env]` (options for the user's `make_envs`, free-form), `[eval_env]` (which of
these are different where models are evaluated), and one named like the last part of `algo` (overrides of the user's
`Config`). Out comes a RunConfig, or a ConfigError of one sentence:
`file:line: key 'x': what was wrong; what is allowed (did you mean 'y'?)`. Nothing that stands in a file is evaluated.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from realm.config.keys import IGNORED, AppConfig
from realm.config.toml import did_you_mean, one_line, parse_value, read_toml, shown, toml_key, toml_value
from realm.errors import ConfigError

EVAL_SEED = 2_000_000  # of `realm eval`: what it draws was neither trained on nor what the best model was chosen by

T = TypeVar("T")


@dataclass(frozen=True)
class RunConfig:
    """What one run is made of. `hyper` holds only what differs from the user's Config, `eval_env` from `env`.

    places    "table.key" -> `file:line`, or the `--set` it comes from
    warnings  sentences that the caller should show once
    """

    app: AppConfig
    env: dict[str, Any]
    eval_env: dict[str, Any]
    hyper: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def evaluated(self) -> RunConfig:
        """The same, with the options of evaluations in `env`; an empty list takes one away."""
        env = {key: one for key, one in {**self.env, **self.eval_env}.items() if self.eval_env.get(key) != []}
        places = self.places | {f"env.{key}": self.places[f"eval_env.{key}"] for key in self.eval_env}
        return dataclasses.replace(self, env=env, eval_env={}, places=places)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a file and lay `key=value` overrides over it; raise ConfigError at the first thing that is wrong."""
    tables, places = read_toml(Path(path))
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{places[name]}: key {name!r}: it stands in no table; allowed is a line [app] above it")
    in_file = tables.get("app", {}).get("algo", "diy")
    for text in overrides:
        _override(text, tables, places)

    app, warnings = _app(tables.get("app", {}), places, tables.get("env", {}))
    allowed = ["app", "env", "eval_env", app.hyper_table]
    for name in [one for one in tables if one not in allowed]:
        # `--set algo=other` must not trip over the table of the algorithm that the file was written for.
        if isinstance(in_file, str) and name == in_file.rpartition(".")[2]:
            if tables[name]:
                warnings.append(f"{places[name]}: table [{name}] is not used, since algo is {app.algo!r}")
            continue
        names = ", ".join(f"[{one}]" for one in allowed)
        raise ConfigError(f"{places[name]}: table [{name}]: unknown; allowed are {names}{did_you_mean(name, allowed)}")
    env, eval_env, hyper = (tables.get(name, {}) for name in ("env", "eval_env", app.hyper_table))
    # an option of [env] that the command line names holds for evaluations, too
    named = {key for key in eval_env if places.get(f"env.{key}", "").startswith("--set")}
    eval_env = {key: one for key, one in eval_env.items() if key not in named or "--set" in places[f"eval_env.{key}"]}
    return RunConfig(app, env, eval_env, hyper, places, tuple(warnings))


def build_dataclass(cls: type[T], table: Mapping[str, Any], prefix: str, places: Mapping[str, str], file: str) -> T:
    """Make the user's dataclass from `table`, checking names and types; `file` is where it is written."""
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in table.items():
        place = places.get(f"{prefix}.{key}", f"table [{prefix}]")
        if key not in fields:
            near = did_you_mean(key, fields)
            raise ConfigError(f"{place}: key '{prefix}.{key}': unknown; allowed is a field of Config in {file}{near}")
        # JSON is the mode in which pydantic is strict about types and still makes a tuple of a list.
        adapter: TypeAdapter[Any] = TypeAdapter(hints[key])
        try:
            values[key] = adapter.validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            raise _wrong_value(place, f"{prefix}.{key}", value, error.errors(), adapter.json_schema()) from error
    for name, one in fields.items():
        unset = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if unset and name not in values:
            place = places.get(prefix, f"table [{prefix}]")
            raise ConfigError(f"{place}: key '{prefix}.{name}': missing; {file} gives it no default")
    try:
        return cls(**values)
    except ValueError as error:
        blamed = next((f"{prefix}.{key}" for key in table if _names(str(error), key)), prefix)
        place, what = places.get(blamed, f"table [{prefix}]"), f"key {blamed!r}: " if blamed != prefix else ""
        raise ConfigError(f"{place}: {what}{one_line(error)}") from error


def to_toml(config: RunConfig, why: Mapping[str, str] | None = None) -> str:
    """Write every effective value as TOML: `load_config` of that text gives an equal RunConfig.

    why: key of [app] -> the reason for a value that was "auto", which becomes a comment.
    """
    tables = {
        "app": config.app.model_dump(), "env": config.env, "eval_env": config.eval_env,
        config.app.hyper_table: config.hyper,
    }  # fmt: skip
    lines = ["# The effective configuration of this run, written by Realm."]
    for name, table in tables.items():
        lines += ["", f"[{toml_key(name)}]"]
        for key, value in table.items():
            reason = why.get(key) if why and name == "app" else None
            lines.append(f"{toml_key(key)} = {toml_value(value)}{f'  # auto: {reason}' if reason else ''}")
    return "\n".join(lines) + "\n"


def _app(table: dict[str, Any], places: Mapping[str, str], env: Mapping[str, Any]) -> tuple[AppConfig, list[str]]:
    known = AppConfig.model_fields
    ignored = [key for key in table if key in IGNORED]
    for key in table:
        if key not in known and key not in IGNORED:
            near = f" (did you mean 'env.{key}'?)" if key in env else did_you_mean(key, [*known, *IGNORED])
            raise ConfigError(
                f"{places[f'app.{key}']}: key {key!r}: unknown; allowed are those of AppConfig in realm/config.py{near}"
            )
    try:
        app = AppConfig.model_validate({key: one for key, one in table.items() if key in known})
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # the keys are right one by one, but not together
            text = str(first["ctx"]["error"])
            key = next(key for key in table if _names(text, key))
            raise ConfigError(f"{places[f'app.{key}']}: key {key!r}: {text}") from error
        key = str(first["loc"][0])
        own = [one for one in error.errors() if one["loc"][0] == key]
        schema = AppConfig.model_json_schema()["properties"][key]
        raise _wrong_value(places[f"app.{key}"], key, table[key], own, schema) from error
    named = "; ".join(f"{key} ({places[f'app.{key}']}: {IGNORED[key]})" for key in ignored)
    return app, [f"keys of KaiwuDRL without a meaning here are ignored: {named}"] if ignored else []


def _override(text: str, tables: dict[str, Any], places: dict[str, str]) -> None:
    """Put one `key=value` of the command line into `tables`."""
    place = f"--set {text}" if text.isprintable() else f"--set {text!a}"
    name, equals, written = text.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not text.isprintable() or not all(re.fullmatch(r"[A-Za-z0-9_-]+", key) for key in keys):
        raise ConfigError(f"{place}: not an override; allowed is key=value or table.key=value, in plain text")
    if len(keys) == 1:
        keys = ("app", *keys)
    value, inner = parse_value(written), tables
    one = AppConfig.model_fields.get(keys[-1])
    if keys[0] == "app" and one is not None and one.annotation is str and not isinstance(value, str):
        value = written.strip()  # a run may be called 7
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{place}: key {shown(keys)!r}: {key!r} is a value; allowed is a key inside a table")
    inner[keys[-1]] = value
    for depth in range(1, len(keys)):
        places.setdefault(".".join(keys[:depth]), place)
    places[".".join(keys)] = place


def _wrong_value(
    place: str, key: str, value: Any, errors: list[ErrorDetails], schema: Mapping[str, Any]
) -> ConfigError:
    """Say what a key got and what it takes, both in TOML's words."""
    own = next((one["ctx"]["error"] for one in errors if one["type"] == "value_error"), None)
    near = did_you_mean(value.rpartition(".")[2], _words(schema)) if isinstance(value, str) else ""
    allowed = own or _allowed(schema) or errors[0]["msg"]
    return ConfigError(f"{place}: key {key!r}: got {toml_value(value)[:80]}; allowed is {allowed}{near}")


def _allowed(schema: Mapping[str, Any]) -> str:
    """Say in words which values a JSON schema takes; nothing where there are no words for it."""
    if "anyOf" in schema:
        return " or ".join(filter(None, (_allowed(one) for one in schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return " or ".join(toml_value(one) for one in schema.get("enum", [schema.get("const")]))
    if "items" in schema:
        return f"a list, each {_allowed(schema['items'])}"
    nouns = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text in quotes",
        "array": "a list",
        "object": "a table",
    }
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    words = [f"{word} {schema[bound]}" for bound, word in bounds.items() if bound in schema]
    return f"{nouns.get(schema.get('type', ''), '')} {' and '.join(words)}".strip()


def _words(schema: Mapping[str, Any]) -> list[str]:
    inner = [word for one in schema.get("anyOf", []) for word in _words(one)]
    consts = [one for one in (*schema.get("enum", []), schema.get("const")) if isinstance(one, str)]
    return inner + consts + (["true", "false"] if schema.get("type") == "boolean" else [])


def _names(text: str, key: str) -> bool:
    return re.search(rf"\b{re.escape(key)}\b", text) is not None
