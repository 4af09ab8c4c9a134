"""The commands of `python -m realm` and of the scripts in `tools/`: those for all games, and a game's own.

`games.py` says how a game brings commands of its own (those of the realm are `map`, `oracle`, a `record` and a `play`).
Every error with a sentence for the user (`realm/errors.py`) ends here as one line on stderr and its exit code.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from realm import __version__
from realm.commands import configuration, doctor, evaluate, film, init, living, plot, runs, series, train
from realm.commands.games import KAIWU, app_here, load_game
from realm.commands.locate import DEFAULT_CONFIG, config_file
from realm.commands.parser import Parser
from realm.errors import RunError, UserError, one_line
from realm.watch.status import LOG_FORMAT, log_plainly, say, wrapped

_MOST_TEXT = 2000  # of an error: it may quote what a file holds
# commands that are the same for all games
NO_GAME = (
    "init", "start", "resume", "sweep", "stop", "status", "runs", "compare", "plot", "tensorboard", "config", "attach",
    "logs", "save", "pack", "keys", "doctor", "host",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Parse and run one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale that lacks a sign costs the sign, not the report
    _log_to_stderr()
    try:
        arguments = _parser(argv).parse_args(argv)
        code: int = arguments.run(arguments)
        return code
    except BrokenPipeError:  # `realm map show | head`: the reader has seen enough
        return 0
    except (UserError, RunError) as error:
        text = str(error)
        say(f"error: {text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + '...'}", to_stderr=True)
        return error.exit_code
    except Exception as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        if unfit := doctor.misfit():  # then no traceback tells more
            say(f"error: {what}; packages do not fit each other: {unfit}", to_stderr=True)
        elif isinstance(error, ImportError):  # of a library: what user code imports is named where that happens
            say(f"error: {what}; a package is missing or broken: `realm doctor` tells which", to_stderr=True)
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            say(f"error: {what}; make room, and call it again", to_stderr=True)
        else:
            raise
        return UserError.exit_code
    except KeyboardInterrupt:
        say("interrupted", to_stderr=True)
        return 130
    finally:
        _flush()


def _flush() -> None:
    """Write what is left; into nothing if the reader or the terminal is gone, or Python would exit with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line; with the commands of the game here, unless the command `argv[0]` needs none."""
    parser: argparse.ArgumentParser = Parser(
        prog="realm",
        description="Distributed reinforcement learning. Each command has a --help with an example.",
        example="realm start --set run_name=my-run max_seconds=600\n  realm eval my-run --id best",
    )
    parser.add_argument("--version", action="version", version=f"realm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for topic in (init, train, series, living, runs, plot):
        topic.add_commands(commands)
    if not argv or argv[0] not in NO_GAME:
        game = load_game(app_here(Path(config_file(DEFAULT_CONFIG))))
        evaluate.add_commands(commands, game)
        if game is not None:
            game.add_commands(commands)
        film.add_commands(commands)
    configuration.add_commands(commands, parser)
    doctor.add_commands(commands)
    if kaiwu := load_game(KAIWU):
        kaiwu.add_commands(commands)
    return parser


def _log_to_stderr() -> None:
    logger.remove()
    log_plainly()
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    logger.add(
        (lambda text: print(wrapped(text, columns), end="", file=sys.stderr)) if columns else sys.stderr,
        level="INFO", format=LOG_FORMAT,
    )  # fmt: skip
