"""The commands of `python -m realm` and of the scripts in `tools/`: those for all games, and a game's own.

`game.py` says how a game brings commands of its own (those of the realm are `map`, `oracle`, `record` and `play`).
Every error with a sentence for the user (`realm/errors.py`) ends here as one line on stderr and its exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loguru import logger

from realm import __version__
from realm.commands import train
from realm.commands.game import Commands, Game, app_here, eval_parser, load_game
from realm.commands.init import PACKAGES
from realm.commands.models import (
    DEFAULT_CONFIG,
    LOG_DIR_HELP,
    RUN_HELP,
    add_model_options,
    config_file,
    model_of,
    run_folder,
    runs_folder,
)
from realm.commands.parser import Parser
from realm.config.load import EVAL_SEED
from realm.errors import ConfigError, RunError, UserError
from realm.kaiwu.command import add_pack
from realm.roles.table import ROLES

FRESH_HELP = "begin a new run (run_name-2, run_name-3, ...) where run_name exists, instead of resuming it"
_MOST_TEXT = 2000  # of an error: it may quote what a file holds
# commands that are the same for all games
NO_GAME = (
    "init", "start", "stop", "status", "runs", "compare", "config", "attach", "logs", "save", "pack", "keys", "doctor",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Parse and run one command; returns the exit code."""
    _log_to_stderr()
    try:
        arguments = _parser(argv).parse_args(argv)
        code: int = arguments.run(arguments)
        return code
    except BrokenPipeError:  # `realm map show | head`: the reader has seen enough
        return 0
    except (UserError, RunError) as error:
        text = str(error)
        _say(f"error: {text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + '...'}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    finally:
        _flush()


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal is closed
        print(line, file=sys.stderr)


def _flush() -> None:
    """Write what is left; into nothing if the reader or the terminal is gone, or Python would exit with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def console() -> int:
    """Entry point of the installed command `realm`."""
    return main(sys.argv[1:])


def _parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line; with the commands of the game here, unless the command `argv[0]` needs none."""
    parser: argparse.ArgumentParser = Parser(
        prog="realm", description="Distributed PPO training for the realm.", example="realm start"
    )
    parser.add_argument("--version", action="version", version=f"realm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands)
    _add_runs(commands)
    _add_help(commands)
    if not argv or argv[0] not in NO_GAME:
        game = load_game(app_here(Path(config_file(DEFAULT_CONFIG))))
        _add_eval(commands, game)
        if game is not None:
            game.add_commands(commands)
    return parser


def _add_train(commands: Commands) -> None:
    """The commands that start and stop runs."""
    text = "write a package that trains a gymnasium environment, to start from"
    init = commands.add_parser("init", help=text, example="realm init cart --env CartPole-v1")
    init.add_argument("name", nargs="?", default="", metavar="NAME", help="of the package (default: the environment's)")
    init.add_argument(
        "--env", default="", metavar="ID", help="of gymnasium, such as CartPole-v1, or my_module:MyEnv-v0"
    )  # fmt: skip
    text = "ppo, dqn, td3, sac, or realm: the game's own agent (default: ppo, or td3 if continuous)"
    init.add_argument("--from", dest="package", choices=PACKAGES, default="", metavar="AGENT", help=text)
    init.set_defaults(run=_init)

    text = "train: start the cluster (or one process, if the configuration says so)"
    example = "realm start --set run_name=my-run max_seconds=600 diy.lr_start=1e-3"
    start = commands.add_parser("start", help=text, example=example)
    start.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    start.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="override keys, repeatable; `realm config` lists them",
    )  # fmt: skip
    start.add_argument("--fresh", action="store_true", help=FRESH_HELP)
    start.add_argument("--detach", action="store_true", help="leave the run in the background when it is ready")
    start.set_defaults(run=train.start)

    stop = commands.add_parser("stop", help="end all runs, or one role of them", example="realm stop all")
    stop.add_argument("what", choices=("all", *ROLES))
    stop.add_argument("--log-dir", help=LOG_DIR_HELP)
    stop.set_defaults(run=_stop)

    text = "keep the current model of the living runs in their user_ckpt/"
    save = commands.add_parser("save", help=text, example="realm save")
    save.add_argument("--log-dir", help=LOG_DIR_HELP)
    save.set_defaults(run=_save)

    add_pack(commands)
    keys = commands.add_parser(
        "keys", help="keys for runs that other machines may connect to", example="realm keys new"
    )  # fmt: skip
    actions = keys.add_subparsers(required=True, metavar="COMMAND")
    new = actions.add_parser("new", help="make the keys of this machine", example="realm keys new keys")
    new.add_argument("folder", nargs="?", type=Path, default=Path("keys"), metavar="DIR", help="default: keys")
    new.set_defaults(run=_new_keys)


def _add_runs(commands: Commands) -> None:
    """The commands that look at runs."""
    status = commands.add_parser(
        "status", help="show the living runs and their roles", example="realm status --watch"
    )  # fmt: skip
    status.add_argument("--watch", action="store_true", help="again and again, until no run lives or Ctrl+C")
    status.add_argument("--json", action="store_true", help="as JSON, with all totals")
    status.add_argument("--log-dir", help=LOG_DIR_HELP)
    status.set_defaults(run=_status)

    text = "list all runs: how far they came, their best model, state, size and date; or delete old ones"
    runs = commands.add_parser("runs", help=text, example="realm runs --prune --keep 10")
    runs.add_argument("--log-dir", help=LOG_DIR_HELP)
    runs.add_argument("--prune", action="store_true", help="show which runs would be deleted, and delete after a yes")
    runs.add_argument("--keep", type=int, metavar="N", help="with --prune: the newest N runs stay")
    runs.add_argument("--older-than", type=float, metavar="DAYS", help="with --prune: younger runs stay")
    runs.add_argument("--yes", action="store_true", help="with --prune: do not ask")
    runs.set_defaults(run=_runs)

    text = "show in which settings runs differ and what they came to"
    compare = commands.add_parser("compare", help=text, example="realm compare my-run other-run --out curves.png")
    compare.add_argument("names", nargs="+", metavar="RUN", help="name or path of a run")
    compare.add_argument("--out", type=Path, help="draw their curves to this .png, .svg or .pdf")
    compare.add_argument("--log-dir", help=LOG_DIR_HELP)
    compare.set_defaults(run=_compare)

    text = "show a living run as its own terminal does"
    attach = commands.add_parser("attach", help=text, example="realm attach my-run")
    attach.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    attach.add_argument("--log-dir", help=LOG_DIR_HELP)
    attach.set_defaults(run=_attach)

    logs = commands.add_parser("logs", help="show the logs of a run", example="realm logs my-run learner -f")
    logs.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    logs.add_argument("role", nargs="?", default="", metavar="ROLE", help="like learner or aisrv-1 (default: all)")
    logs.add_argument("-n", dest="lines", type=int, default=20, metavar="N", help="last lines of each (default 20)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends or Ctrl+C")
    logs.add_argument("--log-dir", help=LOG_DIR_HELP)
    logs.set_defaults(run=_logs)


def _add_help(commands: Commands) -> None:
    """The commands that help to write a command line."""
    text = "list the keys of the configuration, their defaults and meanings"
    config = commands.add_parser("config", help=text, example="realm config max_env_steps")
    config.add_argument("key", nargs="?", default="", metavar="KEY", help="a key, or a part of its name (default: all)")
    config.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    config.set_defaults(run=_config)

    text = "print a script that completes commands and options of `realm` in a shell"
    completion = commands.add_parser("completion", help=text, example='eval "$(realm completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_completion)
    text = "look at this machine, this Python and the runs for what needs mending"
    doctor = commands.add_parser("doctor", help=text, example="realm doctor")
    doctor.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    doctor.add_argument("--log-dir", help=LOG_DIR_HELP)
    doctor.add_argument("--json", action="store_true", help="print a list for programs")
    doctor.set_defaults(run=_doctor)


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


def _init(arguments: argparse.Namespace) -> int:
    from realm.commands.init import init

    init(arguments.name, arguments.env, arguments.package)
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import stop_all, stop_role

    if arguments.what == "all":
        return stop_all(runs_folder(arguments.log_dir))
    return stop_role(runs_folder(arguments.log_dir), arguments.what)


def _status(arguments: argparse.Namespace) -> int:
    from realm.commands.status import show_status

    return show_status(runs_folder(arguments.log_dir), arguments.watch, arguments.json)


def _config(arguments: argparse.Namespace) -> int:
    from realm.commands.config import show_config

    return show_config(arguments.key, config_file(arguments.config))


def _completion(arguments: argparse.Namespace) -> int:
    from realm.commands.completion import print_completion

    return print_completion(_parser(), arguments.shell)


def _compare(arguments: argparse.Namespace) -> int:
    from realm.commands.compare import compare

    return compare([run_folder(name, arguments.log_dir) for name in arguments.names], arguments.out)


def _attach(arguments: argparse.Namespace) -> int:
    from realm.commands.status import attach

    return attach(run_folder(arguments.name, arguments.log_dir))


def _logs(arguments: argparse.Namespace) -> int:
    from realm.commands.logs import show_logs

    if arguments.lines < 0:
        raise ConfigError(f"-n {arguments.lines}: must be a number from 0")
    return show_logs(run_folder(arguments.name, arguments.log_dir), arguments.role, arguments.lines, arguments.follow)


def _save(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import save_models

    return save_models(runs_folder(arguments.log_dir))


def _runs(arguments: argparse.Namespace) -> int:
    from realm.commands.overview import list_runs
    from realm.commands.prune import prune

    folder = runs_folder(arguments.log_dir)
    if arguments.prune:
        return prune(folder, arguments.keep, arguments.older_than, arguments.yes)
    if arguments.keep is not None or arguments.older_than is not None or arguments.yes:
        raise ConfigError("--keep, --older-than and --yes need --prune")
    return list_runs(folder)


def _doctor(arguments: argparse.Namespace) -> int:
    from realm.commands.doctor import doctor

    return doctor(config_file(arguments.config), arguments.log_dir, arguments.json)


def _new_keys(arguments: argparse.Namespace) -> int:
    from realm.commands.keys import new_keys

    return new_keys(arguments.folder)


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


def _log_to_stderr() -> None:
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{time:HH:mm:ss} {level:<7} {message}")
