"""The parser of the command line, and the files that options name: a mistake is one sentence, before the work.

Used by the framework's commands, by those of games, and by the tools.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from realm.errors import ConfigError, did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def terminal_width(otherwise: int) -> int:
    """Columns of the terminal; `otherwise` where the output is none."""
    return shutil.get_terminal_size((otherwise, 24)).columns if sys.stdout.isatty() else otherwise


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The commands of a parser: the help of each begins with what the list of commands says about it."""

    def add_parser(self, name: str, **options: Any) -> Any:
        if text := options.get("help"):
            options.setdefault("description", f"{text[0].upper()}{text[1:]}.")
        return super().add_parser(name, **options)


class Parser(argparse.ArgumentParser):
    """Raises a ConfigError for a wrong command line; the parsers of commands are of this class, too."""

    def __init__(self, *arguments: Any, example: str = "", **options: Any) -> None:
        """example: a command line, shown at the end of the help."""
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        if example:
            options["epilog"] = f"example:\n  {example}"
        super().__init__(*arguments, **options)
        self.register("action", "parsers", _Commands)

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        raise ConfigError(f"{self.prog}: {message}; `{self.prog} --help` shows how it is called")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Called by argparse, whose own sentence lists every choice and suggests none."""
        if action.choices is None or value in action.choices:
            return
        near = did_you_mean(str(value), map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            raise ConfigError(f"{self.prog} {value}: there is no such command{near}; `{self.prog} --help` lists them")
        raise argparse.ArgumentError(action, f"got {value!r}; must be {' or '.join(map(str, action.choices))}{near}")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does, but unknown words are named with the command's options in mind."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            _refuse(unknown[0], self._parser_of(args or ()))
        return arguments

    def _parser_of(self, words: Iterable[str]) -> Parser:
        """The parser of the command that these words call."""
        parser: argparse.ArgumentParser = self
        for word in words:
            parsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
            if parsers and word in parsers[0].choices:
                parser = parsers[0].choices[word]
        assert isinstance(parser, Parser)
        return parser

    @property
    def options(self) -> list[str]:
        """The long names of its options."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


def _refuse(word: str, parser: Parser) -> NoReturn:
    name = word.partition("=")[0]
    if word.startswith("-"):
        near = did_you_mean(name, parser.options)
        raise ConfigError(f"{name}: {parser.prog} has no such option{near}; `{parser.prog} --help` lists them")
    if "=" in word and "--set" in parser.options:
        raise ConfigError(f"{word}: write --set before each key=value of {parser.prog}")
    raise ConfigError(f"{word}: {parser.prog} does not expect it; `{parser.prog} --help` shows how it is called")


def check_file(option: str, path: Path | None, endings: tuple[str, ...] = ()) -> None:
    """Refuse the file that `option` names if it cannot be written, or if its name has none of these endings."""
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path}: the name must end in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot be written; it must be a file in a folder that you can write to")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around code that writes `path`: turn an OSError into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from None
