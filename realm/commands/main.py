"""The commands of `python -m realm` and of the scripts in `tools/`: those for all games, and a game's own.

`game.py` says how a game brings commands of its own (those of the realm are `map`, `oracle`, `record` and `play`).
Every error with a sentence for the user (`realm/errors.py`) ends here as one line on stderr and its exit code.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from realm import __version__
from realm.commands.game import Commands, Game, app_here, eval_parser, load_game
from realm.commands.models import CONFIG_HELP, DEFAULT_CONFIG, LOG_DIR_HELP, add_model_options, config_file, model_of
from realm.commands.parser import Parser
from realm.commands.run_commands import add_runs
from realm.commands.train_commands import add_rare, add_train
from realm.config.load import EVAL_SEED
from realm.errors import RunError, UserError, one_line
from realm.watch.status import LOG_FORMAT, log_plainly, say, wrapped

_MOST_TEXT = 2000  # of an error: it may quote what a file holds
# commands that are the same for all games
NO_GAME = (
    "init", "start", "resume", "sweep", "stop", "status", "runs", "compare", "plot", "config", "attach", "logs", "save",
    "pack", "keys", "doctor",
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
        from realm.commands.doctor import misfit

        what = f"{type(error).__name__}: {one_line(error)}"
        if unfit := misfit():  # then no traceback tells more
            say(f"error: {what}; packages do not fit each other: {unfit}", to_stderr=True)
        elif isinstance(error, ImportError):  # of a library: what user code imports is named where that happens
            say(f"error: {what}; a package is missing or broken: `realm doctor` tells which", to_stderr=True)
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
    add_train(commands)
    add_runs(commands)
    if not argv or argv[0] not in NO_GAME:
        game = load_game(app_here(Path(config_file(DEFAULT_CONFIG))))
        _add_eval(commands, game)
        if game is not None:
            game.add_commands(commands)
    _add_help(commands)
    add_rare(commands)
    return parser


def _add_help(commands: Commands) -> None:
    """The commands that help to write a command line."""
    text = "list the keys of the configuration, or explain one"
    config = commands.add_parser("config", help=text, example="realm config max_env_steps")
    config.add_argument("key", nargs="?", default="", metavar="KEY", help="a key, or a part of its name (default: all)")
    config.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    config.set_defaults(run=_config)

    text = "look for what needs mending: machine, Python, runs"
    doctor = commands.add_parser("doctor", help=text, example="realm doctor")
    doctor.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    doctor.add_argument("--log-dir", help=LOG_DIR_HELP)
    doctor.add_argument("--json", action="store_true", help="print a list for programs")
    doctor.set_defaults(run=_doctor)

    text = "print a script that completes `realm` in a shell"
    completion = commands.add_parser("completion", help=text, example='eval "$(realm completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_completion)


def _add_eval(commands: Commands, game: Game | None) -> None:
    """The command `eval` with the game's own options."""
    own = eval_parser(game)
    text = "play a trained model and print how well it does"
    evaluation = commands.add_parser("eval", parents=[own], help=text, example="realm eval my-run --id best")
    add_model_options(evaluation)
    evaluation.add_argument("--episodes", type=int, default=0, metavar="N", help="default: eval_episodes")
    how = evaluation.add_mutually_exclusive_group()
    how.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")
    how.add_argument("--both", action="store_true", help="greedy actions, and sampled ones in a second round")
    evaluation.add_argument("--seed", type=int, default=EVAL_SEED, help=f"default {EVAL_SEED}")
    evaluation.add_argument("--json", type=Path, help="write every episode's statistics to this file")
    evaluation.set_defaults(run=_eval, own_defaults=vars(own.parse_args([])))

    text = "write a trained model as an ONNX file"
    export = commands.add_parser("export", help=text, example="realm export my-run --id best --onnx model.onnx")
    add_model_options(export)
    export.add_argument("--onnx", type=Path, default=Path("model.onnx"), metavar="FILE", help="default: model.onnx")
    export.set_defaults(run=_export, seed=0)


def _config(arguments: argparse.Namespace) -> int:
    from realm.commands.config import show_config

    return show_config(arguments.key, arguments.config)


def _completion(arguments: argparse.Namespace) -> int:
    from realm.commands.completion import print_completion

    return print_completion(_parser(), arguments.shell)


def _doctor(arguments: argparse.Namespace) -> int:
    from realm.commands.doctor import doctor

    return doctor(arguments.config, arguments.log_dir, arguments.json)


def _eval(arguments: argparse.Namespace) -> int:
    from realm.commands.evaluate import Request, evaluate_model, given_options

    request = Request(
        episodes=arguments.episodes,
        explores=(0.0, 1.0) if arguments.both else (float(arguments.stochastic),),
        seed=arguments.seed,
        json=arguments.json,
        options=given_options(arguments, arguments.own_defaults),
    )
    evaluate_model(*model_of(arguments), request)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from realm.commands.export import export

    export(*model_of(arguments), arguments.onnx)
    return 0


def _log_to_stderr() -> None:
    logger.remove()
    log_plainly()
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    logger.add(
        (lambda text: print(wrapped(text, columns), end="", file=sys.stderr)) if columns else sys.stderr,
        level="INFO", format=LOG_FORMAT,
    )  # fmt: skip
