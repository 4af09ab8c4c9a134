"""The start and end of every role's process: log, control channel, two-phase start, exit code.

The supervisor starts it (`supervisor.py: Supervisor._spawn`). It imports nothing heavy: the role's module is imported
after the orders, so a process never loads modules that only other roles need.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import sys
import traceback
import warnings
from bdb import BdbQuit
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from realm import netns
from realm.config.load import load_config
from realm.config.plan import make_plan
from realm.errors import DivergedError, RunError, Stopped, UserError, one_line, place_in, place_of
from realm.launch.signals import Wishes, listen
from realm.roles import WAITS
from realm.roles.job import Job
from realm.roles.table import ROLES
from realm.user import enter, folder_of
from realm.watch.status import log_plainly
from realm.wire.codec import Codec
from realm.wire.control import CONTROL_MAX_BYTES, Link
from realm.wire.curve_keys import CurveKeys
from realm.wire.sockets import Server

EXIT_STOPPED, EXIT_FAILED, EXIT_USER, EXIT_DIVERGED = 0, 1, UserError.exit_code, DivergedError.exit_code
_WANTS_TERMINAL = (
    "breakpoint() or input() wants a terminal, and the roles of a cluster have none; debug in one process, with "
    "--set wrapper_type=local"
)
_NICE = 10  # of an optional role
_SPARE = 300  # thousandths of all memory that a spare process counts as larger


@dataclass(frozen=True)
class ChildArgs:
    """The arguments of a role's process.

    port          0 takes any free port
    run_id        the key to the run's sockets
    own_network   the role's own threads enter a network namespace; its ZeroMQ sockets stay outside
    """

    role: str
    index: int
    incarnation: int
    run_dir: Path
    run_id: str
    control: str
    port: int
    schema: str
    max_bytes: int
    keys: CurveKeys | None = None
    own_network: bool = False


class _NoTerminalError(BaseException):
    """Somebody wants to read from the terminal; not an Exception, so that user code does not catch it."""


class _NoInput(io.TextIOWrapper):
    """Standard input of a role: its end, without a word, would make a debugger raise BdbQuit and `input()` EOFError."""

    def read(self, size: int | None = -1) -> str:
        raise _NoTerminalError

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        raise _NoTerminalError


class _Output(io.TextIOWrapper):
    """Standard output of a role, its log: where the disk is full, what somebody prints is lost, and the run goes on."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)


def _give_way() -> None:
    """Lower this process's priority, also where the kernel shares CPU time by session (autogroup). Not for the
    supervisor to do: before the new process leads its session, that would slow down the terminal's."""
    with suppress(OSError):  # the kernel has no autogroups
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))
        Path("/proc/self/autogroup").write_text(str(_NICE))


def end_first() -> None:
    """Have the system end this process, and what it starts, before the others when memory is gone. Linux only."""
    with suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + _SPARE)))


def run_role(args: ChildArgs) -> int:
    """Run one role to its end; return the exit code."""
    if ROLES[args.role].optional:
        _give_way()
    if ROLES[args.role].spare:
        end_first()
    sys.stdin = _NoInput(open(os.devnull, "rb"))  # noqa: SIM115 - open as long as the process
    sys.stdout, sys.stderr = (
        _Output(open(number, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True)  # noqa: SIM115
        for number in (1, 2)
    )
    gc.disable()  # imports make no garbage; `Link.ready` enables it again
    # the supervisor asks a silent role for its stacks. Only this thread's, which sends the reports: to walk the frames
    # of others that run, as in a process that was stopped and goes on, crashes now and then
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    wishes = Wishes()
    listen(wishes.hear, but=[signal.SIGUSR1])
    config = load_config(args.run_dir / "config.toml").settled()  # before user code may go elsewhere
    logger.remove()
    log_plainly()
    logger.add(sys.stderr, level=config.app.level, format="{time:YYYY-MM-DD HH:mm:ss.SSS} {level:<7} {message}")
    # torch warns about read-only arrays, such as those from the wire; no code writes to them
    warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
    name = f"{args.role}-{args.index}"
    control = Codec(args.run_id, "", name, args.incarnation, CONTROL_MAX_BYTES)
    link = Link(
        control, args.control, args.role, args.index, config.app.report_interval_s, args.keys, lambda: wishes.first
    )  # fmt: skip
    logger.add(  # warnings of Realm's: those of user code stay in the log
        lambda line: link.warn(line.record["message"]), level="WARNING",
        filter=lambda record: record["level"].name == "WARNING" and (record["name"] or "").startswith("realm."),
    )  # fmt: skip
    cause, code, trace = "stopped", EXIT_STOPPED, ""
    try:
        codec = Codec(args.run_id, args.schema, name, args.incarnation, args.max_bytes)
        keys = args.keys if config.app.keys_dir else None  # what listens on a host is for that machine alone
        server = Server(codec, config.app.bind_host, args.port, keys) if ROLES[args.role].answers else None
        orders = link.bound(server.address if server else "", WAITS["bound"])
        job = Job(
            args.role, args.index, args.incarnation, orders.epoch, args.run_dir, config, make_plan(config.app),
            orders.spec, orders.book, link, server, codec, args.keys,
        )  # fmt: skip
        logger.info("{} (incarnation {}, pid {}) starts", name, args.incarnation, os.getpid())
        if args.own_network:
            netns.enter()  # the sockets above were opened outside
        if ROLES[args.role].weights or ROLES[args.role].plays:
            enter(config, args.role, args.run_dir)
        _loop_of(args.role)(job)
    except Stopped:
        pass
    except (Exception, _NoTerminalError) as error:  # top of the process: log it and set the exit code
        cause, code, trace = _ending(error, folder_of(config.app.algo))
        logger.error("{} ends: {}\n{}", name, cause, traceback.format_exc())
    link.close(cause, trace)
    logger.info("{} ended: {}; totals {}", name, cause, {k: round(v, 3) for k, v in sorted(link.meters.totals.items())})
    return code


def _loop_of(role: str) -> Callable[[Job], None]:
    """The function that is the role. Its module is imported only now, so a process loads nothing for other roles."""
    match role:
        case "aisrv":
            from realm.roles.aisrv import run
        case "actor":
            from realm.roles.actor import run
        case "buffer":
            from realm.roles.buffer import run
        case "learner":
            from realm.roles.learner import run
        case "model_pool":
            from realm.roles.model_pool import run
        case "evaluator":
            from realm.roles.evaluator import run
        case _:
            raise ValueError(f"there is no role {role!r}")
    return run


def _ending(error: BaseException, package: Path) -> tuple[str, int, str]:
    """Cause, exit code and the last lines of the traceback of a role that an error ends."""
    if isinstance(error, UserError | RunError):  # its text names the place
        return str(error), error.exit_code, _last_lines(error.__cause__)
    place = place_of(error) or place_in(package.resolve(), error)  # the package may be installed
    if isinstance(error, _NoTerminalError | BdbQuit):  # the latter from a process that an environment started
        return f"{place or 'user code'}: {_WANTS_TERMINAL}", EXIT_USER, ""
    if not place and (frames := traceback.extract_tb(error.__traceback__)):
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    cause = f"{type(error).__name__}: {one_line(error)}{f' ({place})' if place else ''}"
    if isinstance(error, ImportError):  # no restart helps
        return f"{cause}; `realm doctor` tells which packages do not fit", EXIT_USER, _last_lines(error)
    return cause, EXIT_FAILED, _last_lines(error)


def _last_lines(error: BaseException | None) -> str:
    """The last three calls of an error's traceback, for the screen; "" without an error."""
    return "".join(traceback.format_exception(error, limit=-3, chain=False))[-2000:].rstrip() if error else ""
