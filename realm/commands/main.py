"""The command line behind the scripts in `tools/`: `python -m realm start|stop|status|save|eval`, and the game's own.

`game.py` says how a game brings commands of its own (those of the realm are `map`, `oracle`, `record` and `play`).
Every error that a user can cause ends here as one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from realm import __version__
from realm.commands.game import Commands, Game, app_here, eval_parser, load_game
from realm.commands.models import (
    DEFAULT_CONFIG,
    LOG_DIR_HELP,
    add_model_options,
    checkpoints_of,
    model_of,
    runs_folder,
)
from realm.config.load import EVAL_SEED, RunConfig, load_config
from realm.errors import ConfigError, UserError

NO_GAME = ("start", "stop", "status", "save", "role", "nursery")  # commands that are the same for all games


def main(argv: list[str]) -> int:
    """Parse and run one command; returns the exit code."""
    _log_to_stderr()
    try:
        arguments = _parser(argv).parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `realm map show | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def console() -> int:
    """Entry point of the installed command `realm`."""
    return main(sys.argv[1:])


def _parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line; with the commands of the game here, unless the command `argv[0]` needs none."""
    parser = argparse.ArgumentParser(prog="realm", description="Distributed PPO training for the realm.")
    parser.add_argument("--version", action="version", version=f"realm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_runs(commands)
    if not argv or argv[0] not in NO_GAME:
        game = load_game(app_here(Path(DEFAULT_CONFIG)))
        _add_eval(commands, game)
        if game is not None:
            game.add_commands(commands)
    _add_internal(commands)
    return parser


def _add_runs(commands: Commands) -> None:
    """The commands that start, stop and show runs."""
    start = commands.add_parser("start", help="train: start the cluster (or one process, if the configuration says so)")
    start.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    start.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable")
    start.add_argument("--detach", action="store_true", help="leave the run in the background when it is ready")
    start.set_defaults(run=_start)

    stop = commands.add_parser("stop", help="end a run, or one role of it")
    stop.add_argument("what", choices=("all", "aisrv", "actor", "buffer", "learner", "model_pool", "evaluator"))
    stop.add_argument("--log-dir", help=LOG_DIR_HELP)
    stop.set_defaults(run=_stop)

    status = commands.add_parser("status", help="show the living runs and their roles")
    status.add_argument("--log-dir", help=LOG_DIR_HELP)
    status.set_defaults(run=_status)

    save = commands.add_parser("save", help="keep the current model of the living runs in their user_ckpt/")
    save.add_argument("--log-dir", help=LOG_DIR_HELP)
    save.set_defaults(run=_save)


def _add_eval(commands: Commands, game: Game | None) -> None:
    """The command `eval` with the game's own options."""
    own = eval_parser(game)
    evaluation = commands.add_parser("eval", parents=[own], help="play a trained model and print how well it does")
    add_model_options(evaluation)
    evaluation.add_argument("--episodes", type=int, default=0, metavar="N", help="default: eval_episodes")
    how = evaluation.add_mutually_exclusive_group()
    how.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")
    how.add_argument("--both", action="store_true", help="greedy actions, and sampled ones in a second round")
    evaluation.add_argument("--seed", type=int, default=EVAL_SEED, help=f"default {EVAL_SEED}")
    evaluation.add_argument("--json", type=Path, help="write every episode's statistics to this file")
    evaluation.set_defaults(run=_eval, own_defaults=vars(own.parse_args([])))


def _add_internal(commands: Commands) -> None:
    """The commands that only the framework itself calls."""
    role = commands.add_parser("role", help="(internal) one role's process; the supervisor starts it")
    role.add_argument("role")
    for name, kind in (
        ("index", int), ("incarnation", int), ("run-dir", Path), ("control", str), ("port", int),
        ("schema", str), ("max-bytes", int),
    ):  # fmt: skip
        role.add_argument(f"--{name}", type=kind, required=True)
    role.set_defaults(run=_role)

    nursery = commands.add_parser("nursery", help="(internal) where the processes of roles are forked off")
    nursery.add_argument("socket", type=int)
    nursery.set_defaults(run=_nursery)


def _start(arguments: argparse.Namespace) -> int:
    overrides: list[str] = arguments.set
    config = load_config(arguments.config, overrides)
    if arguments.detach:
        return _start_detached(arguments.config, overrides, config)
    app = config.app
    if app.run_mode == "eval":
        folder = checkpoints_of(Path(app.eval_model_dir or f"{app.log_dir}/{app.run_name}"))
        from realm.commands.evaluate import Request, evaluate_model

        evaluate_model(config.evaluated(), folder, app.eval_model_id, Request(seed=app.seed + EVAL_SEED))
        return 0
    from realm.config.plan import make_plan, this_machine
    from realm.launch.environment import enter_learner_environment, role_environment

    plan = make_plan(app, this_machine())
    if app.wrapper_type == "local":
        enter_learner_environment(plan)  # before what takes time to import
        from realm.launch.start import prepare, run_local

        run_local(prepare(config, plan))
        return 0
    from realm.launch.nursery import Nursery

    with Nursery(role_environment("learner", plan)) as nursery:  # it imports while this process checks
        from realm.launch.start import prepare, run_cluster

        return run_cluster(prepare(config, plan), nursery)


def _start_detached(path: str, overrides: list[str], config: RunConfig) -> int:
    """Start the same command in a session of its own, and wait until it is ready or has ended."""
    from realm.launch.rundir import find_runs

    folder, timeout_s = Path(config.app.log_dir), config.app.start_timeout_s
    log_path = folder / f"start-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = open(log_path, "wb")  # noqa: SIM115 - closed below, where it is used
    except OSError as error:
        place = config.places.get("app.log_dir", "[app]")
        what = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{place}: key 'log_dir': {what}; allowed is a folder that can be written") from error
    command = [sys.executable, "-m", "realm", "start", "--config", path]
    for one in overrides:
        command += ["--set", one]
    with log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        for run_dir, run in find_runs(folder):
            if run.pid == process.pid:
                own_log = run_dir / "log" / "supervisor.log"
                if log_path.exists() and not own_log.exists():
                    log_path.rename(own_log)
                    log_path = own_log
                if run.state == "running":
                    print(f"running in the background: {run_dir} (pid {run.pid}), log {log_path}")
                    print("tools/status.sh shows it, tools/stop.sh all ends it")
                    return 0
        time.sleep(0.1)
    print(log_path.read_text(errors="replace"), file=sys.stderr, end="")
    code = process.poll()
    if code is None:
        process.terminate()  # it ends its roles first
        try:
            process.wait(2 * config.app.stop_timeout_s + 10)
        except subprocess.TimeoutExpired:
            process.kill()  # its roles notice
            process.wait()
        print(f"error: not ready after {timeout_s:g} s, so it was ended; see {log_path}", file=sys.stderr)
        return 1
    if log_path.parent == folder:
        log_path.unlink()  # it never got a run's directory, and all that it said has been shown
    return code


def _stop(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import stop_all, stop_role

    if arguments.what == "all":
        return stop_all(runs_folder(arguments.log_dir))
    return stop_role(runs_folder(arguments.log_dir), arguments.what)


def _status(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import show_status

    return show_status(runs_folder(arguments.log_dir))


def _save(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import save_models

    return save_models(runs_folder(arguments.log_dir))


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


def _role(arguments: argparse.Namespace) -> int:
    from realm.launch.child import RUN_ID_VARIABLE, ChildArgs
    from realm.launch.child import main as child_main

    return child_main(
        ChildArgs(
            role=arguments.role,
            index=arguments.index,
            incarnation=arguments.incarnation,
            run_dir=arguments.run_dir,
            run_id=os.environ.pop(RUN_ID_VARIABLE),
            control=arguments.control,
            port=arguments.port,
            schema=arguments.schema,
            max_bytes=arguments.max_bytes,
        )
    )


def _nursery(arguments: argparse.Namespace) -> int:
    from realm.launch.nursery import serve

    return serve(arguments.socket, main)


def _log_to_stderr() -> None:
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{time:HH:mm:ss} {level:<7} {message}")
