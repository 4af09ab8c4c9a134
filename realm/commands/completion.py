"""`realm completion bash|zsh`: a script that completes commands, options, files and names of runs in the shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realm.commands.models import MODEL_HELP, config_file
from realm.errors import ConfigError, to_install

_RUNS = {
    "bash": "_realm_runs",
    "zsh": "_files -W '(train .)' -/",
    "preamble": {
        "bash": "_realm_runs() {\n  (cd train 2> /dev/null && compgen -d -- $1)\n  _shtab_compgen_dirs $1\n}\n",
    },
}
"""Folders in train/, where runs are unless `log_dir` says otherwise, and those of the current directory."""


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
