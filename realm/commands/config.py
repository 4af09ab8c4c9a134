"""`realm config [KEY]`: the keys of the configuration with their defaults and meanings."""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from contextlib import suppress
from typing import Any, NamedTuple

from realm.commands.parser import terminal_width
from realm.config.keys import AppConfig
from realm.config.load import HINTS, RunConfig, settings_of
from realm.config.meanings import meanings
from realm.config.toml import toml_value
from realm.config.values import expected
from realm.errors import ConfigError, did_you_mean
from realm.kaiwu.project import translated
from realm.user import load_config_class
from realm.watch.status import say


class Key(NamedTuple):
    """A key of the configuration."""

    name: str  # as `--set` takes it
    default: str
    meaning: str
    hint: Any

    @property
    def in_full(self) -> str:
        """Its meaning, and what it must be."""
        must = expected(self.hint)
        if not must:
            return self.meaning
        return f"{self.meaning}{'' if self.meaning.endswith('.') else '.'} It must be {must}.".removeprefix(". ")


def show_config(word: str, path: str) -> int:
    """Print the keys whose names hold `word`, or all; if one is called so, only that, with what it must be."""
    config = translated(path)
    keys = _keys(config)
    names = [key.name for key in keys]
    chosen = [key for key in keys if word in (key.name, key.name.rpartition(".")[2])]
    chosen = chosen or [key for key in keys if word in key.name]
    if not chosen:
        near = did_you_mean(word, [*names, *(name.rpartition(".")[2] for name in names)])
        raise ConfigError(f"{word}: there is no such key{near}; `realm config` lists all of them")
    now = settings_of(config)
    say(f"values of {path}; `realm start --set KEY=VALUE` sets one for one run")
    for key in chosen:
        _show(key, now.get(key.name, key.default), len(chosen) < 4)
    return 0


def _keys(config: RunConfig) -> list[Key]:
    """The keys of [app], those of the package's own table, and the options of [env] that are set."""
    of_env = "An option of the environments, which the package's make_envs takes."
    options = [Key(f"env.{name}", toml_value(value), of_env, None) for name, value in config.env.items()]
    return [*framework_keys(), *package_keys(config.app.algo), *options]


def framework_keys() -> list[Key]:
    """The keys of [app]."""
    said = meanings(AppConfig)
    default = settings_of(RunConfig(AppConfig(), {}, {}, {}))
    return [Key(name, default[name], said.get(name, ""), hint) for name, hint in HINTS.items()]


def package_keys(algo: str) -> list[Key]:
    """The hyper-parameters of a package."""
    own, keys = load_config_class(algo), []
    said, hints = meanings(own), typing.get_type_hints(own, include_extras=True)
    for field in dataclasses.fields(own):
        value = "no default"
        if field.default is not dataclasses.MISSING:
            value = str(field.default)
            with suppress(TypeError):  # TOML has no such value
                value = toml_value(field.default)
        if field.init:
            name = f"{algo.rpartition('.')[2]}.{field.name}"
            keys.append(Key(name, value, said.get(field.name, ""), hints[field.name]))
    return keys


def _show(key: Key, value: str, in_full: bool) -> None:
    width = terminal_width(100)
    line = f"{key.name} = {value}" + (f"   (default {key.default})" if value != key.default else "")
    say(line if in_full or len(line) <= width else f"{line[: width - 4]} ...")
    if text := key.in_full if in_full else key.meaning:
        say(*textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
