"""`realm config [KEY]` (the keys of the configuration with their meanings), `realm keys new` and `realm completion`."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import typing
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from realm.commands.ending import called
from realm.commands.games import projects
from realm.commands.locate import CONFIG_HELP, DEFAULT_CONFIG, MODEL_HELP, config_file
from realm.commands.parser import Commands, terminal_width
from realm.config.keys import AppConfig
from realm.config.load import HINTS, RunConfig, settings_of
from realm.config.meanings import meanings
from realm.config.toml import toml_value
from realm.config.values import expected
from realm.errors import ConfigError, did_you_mean, to_install
from realm.user import load_config_class
from realm.watch.status import say

_RUNS = {
    "bash": "_realm_runs",
    "zsh": "_files -W '(train .)' -/",
    "preamble": {
        "bash": "_realm_runs() {\n  (cd train 2> /dev/null && compgen -d -- $1)\n  _shtab_compgen_dirs $1\n}\n",
    },
}
"""Folders in train/, where runs are unless `log_dir` says otherwise, and those of the current directory."""


def add_commands(commands: Commands, parser: argparse.ArgumentParser) -> None:
    """Add them. parser: of the whole command line, which is what is completed."""
    text = "list the keys of the configuration, or explain one"
    config = commands.add_parser("config", help=text, example="realm config max_env_steps")
    config.add_argument("key", nargs="?", default="", metavar="KEY", help="a key, or a part of its name (default: all)")
    config.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    config.set_defaults(run=lambda given: show_config(given.key, given.config))

    text = "make keys for runs that other machines may connect to"
    keys = commands.add_parser("keys", help=text, example="realm keys new")
    actions = keys.add_subparsers(required=True, metavar="COMMAND")
    new = actions.add_parser("new", help="make the keys of this machine", example="realm keys new keys")
    new.add_argument("folder", nargs="?", type=Path, default=Path("keys"), metavar="DIR", help="default: keys")
    new.set_defaults(run=lambda given: new_keys(given.folder))

    text = "print a script that completes `realm` in a shell"
    completion = commands.add_parser("completion", help=text, example='eval "$(realm completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=lambda given: print_completion(parser, given.shell))


# --- config


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
    config = projects().translated(path)
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


# --- keys


def new_keys(folder: Path) -> int:
    """Make a pair of keys, and say what belongs where."""
    from realm.wire.curve_keys import make_keys  # late: ZeroMQ

    make_keys(folder)
    text = f"""\
{folder}/secret.key   proves that it is this machine: it never leaves it, and only you may read it
{folder}/public.key   is for other machines: anybody may read it

A run with these keys: {called()} start --set keys_dir={folder} bind_host=ADDRESS   (an address of this machine)

Before another machine can connect to such a run:
  there  call `realm keys new`
  here   copy its keys/public.key to {folder}/allowed/NAME.key, with any name
  there  copy {folder}/public.key of this machine to keys/server.key
A run reads the keys once, when it starts."""
    say(*text.split("\n"))
    return 0


# --- completion


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print it."""
    try:
        import shtab
    except ImportError:
        raise ConfigError(f"realm completion needs shtab, which is not installed: {to_install('shtab')}") from None
    for action in _actions(parser):
        given: Any = action
        if action.metavar == "RUN" or action.help == MODEL_HELP:
            given.complete = _RUNS
        elif action.type in (Path, config_file):
            given.complete = shtab.FILE
    print(shtab.complete(parser, shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of every command."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
