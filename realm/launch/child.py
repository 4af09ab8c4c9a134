"""The first and last lines of every role's process: log, watchdog, control channel, two-phase start, exit code.

Started by `processes.py` as `python -m realm role ...`, a fork of the nursery or a process from nothing. It imports
nothing heavy: a role's module is imported when the orders have come, so a process from nothing never loads what only
others need.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from realm import garbage
from realm.config.load import load_config
from realm.errors import ConfigError
from realm.roles.job import Job
from realm.wire.codec import Codec
from realm.wire.control import CONTROL_MAX_BYTES, Link, Stopped
from realm.wire.sockets import Server

SERVERS = ("actor", "buffer", "model_pool")
"""Roles that bind an address; the book names these."""

RUN_ID_VARIABLE = "REALM_RUN_ID"

EXIT_STOPPED, EXIT_FAILED, EXIT_USER, EXIT_ORPHAN = 0, 1, 2, 70


@dataclass(frozen=True)
class ChildArgs:
    """The command line of a role's process."""

    role: str
    index: int
    incarnation: int
    run_dir: Path
    run_id: str
    control: str
    port: int
    schema: str
    max_bytes: int


def main(args: ChildArgs) -> int:
    """Run one role to its end; returns the exit code."""
    garbage.hold()  # until the role is ready: `Link.ready`
    config = load_config(args.run_dir / "config.toml")
    _log_to_stderr(config.app.level)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # arrays from the wire are read-only views; torch warns about those, and nothing writes to them
    warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
    name = f"{args.role}-{args.index}"
    control = Codec(args.run_id, "", name, args.incarnation, CONTROL_MAX_BYTES)
    link = Link(control, args.control, args.role, args.index, config.app.report_interval_s)
    cause = "stopped"
    try:
        codec = Codec(args.run_id, args.schema, name, args.incarnation, args.max_bytes)
        server = Server(codec, config.app.bind_host, args.port) if args.role in SERVERS else None
        orders = link.bound(server.address if server else "")
        job = Job(
            args.role, args.index, args.incarnation, orders.epoch, args.run_dir, config, orders.plan, orders.spec,
            orders.book, link, server, codec,
        )  # fmt: skip
        module = importlib.import_module(f"realm.roles.{args.role}")
        logger.info("{} (incarnation {}, pid {}) starts", name, args.incarnation, os.getpid())
        module.run(job)
        code = EXIT_STOPPED
    except Stopped:
        code = EXIT_STOPPED
    except Exception as error:  # the top of the process: everything is logged, and decides the exit code
        cause = _one_line(error)
        if _is_the_users(error):
            cause = str(error)  # it names the place itself
        code = EXIT_USER if _is_the_users(error) else EXIT_FAILED
        logger.error("{} ends: {}\n{}", name, cause, traceback.format_exc())
    link.close(cause)
    logger.info("{} ended: {}; totals {}", name, cause, {k: round(v, 3) for k, v in sorted(link.meters.totals.items())})
    sys.stderr.flush()
    # not sys.exit: a thread inside reverb or a ZeroMQ context must not hold up the end of the run
    os._exit(code)


def _is_the_users(error: Exception) -> bool:
    """Whether starting again is useless: the configuration or the user's code must change first."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, ConfigError) or bool(names & {"UserCodeError", "CheckpointError", "ContractError"})


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" ({Path(frame.filename).name}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {text[:500]}{place}"


def _log_to_stderr(level: str) -> None:
    logger.remove()
    logger.add(sys.stderr, level=level, format="{time:YYYY-MM-DD HH:mm:ss.SSS} {level:<7} {message}")


def _die_with_parent() -> None:
    """The supervisor holds the other end of standard input: when it is gone, however it went, so are we."""
    while os.read(0, 1):
        pass
    os._exit(EXIT_ORPHAN)
