"""Runs a function in a new process: `place(run, argument, environment, log)`.

The supervisor calls it for every role. Processes that need torch are forks of the standard library's fork server, which
imports torch once while the supervisor checks the user's code: this cuts a third of the start time, and all share
torch's memory. Every other process starts from scratch. User code, sockets, CUDA and reverb start after the fork,
because none of them works in a fork once in use. Only Linux has the fork server.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

import setproctitle

from realm import netns
from realm.apart import set_environment
from realm.errors import ConfigError, one_line
from realm.launch import guard
from realm.launch.environment import for_python
from realm.launch.signals import blocked

Argument = TypeVar("Argument")

_GUARD_S = 3.0  # for the guard, which also finds children in sessions of their own
_PRELOADED = "realm.launch.preload"
_MOST_SOCKET_BYTES = 107 - len("/pymp-12345678/listener-12345678")  # of a folder in which it makes its socket


def start_fork_server(environment: Mapping[str, str]) -> None:
    """Import torch in the background. environment: variables that must be set before it: threads, allocator.

    Raises ConfigError where the system does not let it, as without a folder for its socket.
    """
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload([_PRELOADED])
        chosen = tempfile.tempdir
        tempfile.tempdir = _socket_folder()  # and so it is for multiprocessing in the roles
        try:
            with _environment(environment), blocked():
                forkserver.ensure_running()
        except OSError as error:
            raise ConfigError(f"the fork server, which imports torch, cannot be started: {error}") from error
        finally:
            tempfile.tempdir = chosen


def _socket_folder() -> str:
    """The folder of temporary files, or another one where its name, such as that of a batch job, is too long."""
    try:
        for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
            if len(os.fsencode(folder)) <= _MOST_SOCKET_BYTES and os.access(folder, os.W_OK | os.X_OK):
                return folder
        why = f"is longer than {_MOST_SOCKET_BYTES} bytes, and /tmp cannot be written"
        raise ConfigError(f"TMPDIR: {tempfile.gettempdir()}: {why}; set TMPDIR to a folder with a short name")
    except FileNotFoundError as error:
        raise ConfigError(f"TMPDIR: {one_line(error)}; set TMPDIR to a folder that you can write to") from error


def place(
    run: Callable[[Argument], int], argument: Argument, environment: Mapping[str, str], log: Path, title: str,
    imports_torch: bool, own_network: bool = False,
) -> Handle:  # fmt: skip
    """Start a process that runs `run(argument)` and exits with its result.

    It leads its own session, so that Ctrl+C in the terminal does not reach it. It hears no signal that ends a run until
    it calls `signals.listen`. It writes to `log` and ends with this process. environment: all of its variables.
    own_network: `run` may call `netns.enter`. Raises ConfigError or OSError if no process can be started.
    """
    os.close(open_log(log))  # raises OSError here if the log cannot be written
    fork = imports_torch and sys.platform == "linux"
    arguments = (run, argument, dict(environment), log, title, own_network)
    ways: Any = multiprocessing.get_context("forkserver" if fork else "spawn")
    process: BaseProcess = ways.Process(target=_main, args=arguments, name=title)
    try:
        with _environment(environment), blocked():
            _start_guard()
            process.start()
    except EOFError as error:
        raise ConfigError("the fork server, which imports torch, has ended; fix its error, which is above") from error
    _tell_guard(process)
    return _Process(process)


class Handle(Protocol):
    """A role's process, wherever it runs. It leads a session, and what it starts belongs to it. Its pid and its memory
    come in its own messages."""

    @property
    def exit_code(self) -> int | None:
        """None while it lives, negative for a signal."""

    def kill(self) -> None:
        """Kill it and all that it started."""

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, unless that will not be heard of."""

    def write_stacks(self) -> None:
        """Have it write its stacks into its log, for which a role has a handler (`child.py`)."""


class _Process:
    """The handle of a process that `place` has started on this machine."""

    def __init__(self, process: BaseProcess) -> None:
        self._process, self._pid = process, process.pid or 0
        self._known = guard.stat(self._pid)

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        if sys.platform == "linux":
            now = guard.stat(self._pid)
            if now and self._known and now[2] != self._known[2]:
                return  # its pid is another process's, so nothing of its session is left
            guard.kill([self._pid])
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()  # it may not have reached its setsid yet

    def join(self, timeout_s: float | None = None) -> None:
        self._process.join(timeout_s)

    def write_stacks(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR1)


def starved_s(pid: int) -> float:
    """Seconds that the main thread of a process of this machine could have run and had no core to run on; 0 where the
    system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


_guard: subprocess.Popen[bytes] | None = None


def _start_guard() -> None:
    """Linux: start `guard.py`, unless it runs; one for all processes, as there is one fork server."""
    global _guard
    if sys.platform == "linux" and (_guard is None or _guard.poll() is not None):
        command = [sys.executable, "-I", "-S", guard.__file__]
        _guard = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, cwd="/", start_new_session=True)
        for process in multiprocessing.active_children():
            _tell_guard(process)


def _tell_guard(process: BaseProcess) -> None:
    """Have the guard end this process, too, when this one has ended."""
    if _guard and _guard.stdin and process.pid and (known := guard.stat(process.pid)):
        with suppress(OSError):  # the guard has just been killed
            _guard.stdin.write(f"{process.pid} {known[2]}\n".encode())


@contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Set this process's variables for the block, so that new processes inherit them."""
    before = dict(os.environ)
    set_environment(for_python(environment))
    try:
        yield
    finally:
        set_environment(before)


def _main(
    run: Callable[[Argument], int], argument: Argument, environment: dict[str, str], log: Path, title: str,
    own_network: bool,
) -> None:  # fmt: skip
    """The first lines of the new process."""
    os.setsid()
    output = open_log(log)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    setproctitle.setproctitle(f"realm {title}")  # before the variables change: it finds argv by them
    set_environment(environment)
    if own_network:
        netns.prepare()  # before there is a second thread
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # what forks share: random numbers and thread counts
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # OpenMP has read it already
    code = run(argument)
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: a thread in reverb or a ZeroMQ context must not delay the end of the run
    os._exit(code)


def open_log(log: Path) -> int:
    """Open a log to append to it. In a run's folder that somebody else made, it may be a link or a pipe: refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(log, flags, 0o666)


def _die_with_parent() -> None:
    """Wait until the supervisor ends in any way; then kill this process and its session, if the guard has not."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    if sys.platform == "linux":
        time.sleep(_GUARD_S)
    os.killpg(os.getpid(), signal.SIGKILL)
