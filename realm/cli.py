"""The command line behind the scripts in `tools/`: `python -m realm start|stop|status|eval|...`.

Every error that a user can cause ends here as one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from loguru import logger

from realm import __version__
from realm.config import ConfigError, load_config

DEFAULT_CONFIG = "conf/configure_app.toml"


def main(argv: list[str]) -> int:
    """Parse and run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    _log_to_stderr()
    try:
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        from realm.user import UserCodeError  # late: the command `role` must stay light

        if isinstance(error, UserCodeError):
            print(f"error: {error}", file=sys.stderr)
            return 2
        raise


def console() -> int:
    """Entry point of the installed command `realm`."""
    return main(sys.argv[1:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="realm", description="Distributed PPO training for the realm.")
    parser.add_argument("--version", action="version", version=f"realm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    start = commands.add_parser("start", help="train: start the cluster (or one process, if the configuration says so)")
    start.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    start.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable")
    start.add_argument("--detach", action="store_true", help="leave the run in the background when it is ready")
    start.set_defaults(run=_start)

    stop = commands.add_parser("stop", help="end a run, or one role of it")
    stop.add_argument("what", choices=("all", "aisrv", "actor", "buffer", "learner", "model_pool"))
    stop.add_argument("--log-dir", default="train", help="folder of the runs (default train)")
    stop.set_defaults(run=_stop)

    status = commands.add_parser("status", help="show the living runs and their roles")
    status.add_argument("--log-dir", default="train", help="folder of the runs (default train)")
    status.set_defaults(run=_status)

    role = commands.add_parser("role", help="(internal) one role's process; the supervisor starts it")
    role.add_argument("role")
    for name, kind in (
        ("index", int), ("incarnation", int), ("run-dir", Path), ("run-id", str), ("control", str), ("port", int),
        ("schema", str), ("max-bytes", int),
    ):  # fmt: skip
        role.add_argument(f"--{name}", type=kind, required=True)
    role.set_defaults(run=_role)
    return parser


def _start(arguments: argparse.Namespace) -> int:
    overrides: list[str] = arguments.set
    config = load_config(arguments.config, overrides)
    if arguments.detach:
        return _start_detached(arguments.config, overrides, config.app.log_dir, config.app.start_timeout_s)
    from realm.launch.start import prepare, run_cluster, run_local

    prepared = prepare(config)
    if config.app.wrapper_type == "local":
        run_local(prepared)
        return 0
    return run_cluster(prepared)


def _start_detached(path: str, overrides: list[str], log_dir: str, timeout_s: float) -> int:
    """Start the same command in a session of its own, and wait until it is ready or has ended."""
    from realm.launch.rundir import find_runs

    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / f"start-{os.getpid()}.log"
    command = [sys.executable, "-m", "realm", "start", "--config", path]
    for one in overrides:
        command += ["--set", one]
    with open(log_path, "wb") as log:
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
        print(f"error: not ready after {timeout_s:g} s, see {log_path}", file=sys.stderr)
        return 1
    return code or 1


def _stop(arguments: argparse.Namespace) -> int:
    from realm.launch.remote_control import stop_all, stop_role

    if arguments.what == "all":
        return stop_all(Path(arguments.log_dir))
    return stop_role(Path(arguments.log_dir), arguments.what)


def _status(arguments: argparse.Namespace) -> int:
    from realm.launch.remote_control import show_status

    return show_status(Path(arguments.log_dir))


def _role(arguments: argparse.Namespace) -> int:
    from realm.launch.child import ChildArgs
    from realm.launch.child import main as child_main

    return child_main(
        ChildArgs(
            role=arguments.role,
            index=arguments.index,
            incarnation=arguments.incarnation,
            run_dir=arguments.run_dir,
            run_id=arguments.run_id,
            control=arguments.control,
            port=arguments.port,
            schema=arguments.schema,
            max_bytes=arguments.max_bytes,
        )
    )


def _log_to_stderr() -> None:
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{time:HH:mm:ss} {level:<7} {message}")
