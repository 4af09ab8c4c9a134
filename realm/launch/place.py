"""Puts a function into a process of its own: `place(run, argument, environment, log)`.

Called by the supervisor for every role. A process that needs torch is forked off a fork server, the standard library's,
which imports torch once while the supervisor checks the user's code: a start takes two thirds of the time, and the
memory of torch is shared. Every other process starts from scratch. User code, sockets, CUDA and reverb come after the
fork, because a fork survives none of them once they are in use. Without Linux there is no fork server.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import setproctitle

from realm.errors import ConfigError

Argument = TypeVar("Argument")

_PRELOADED = "realm.launch.preload"


def start_fork_server(environment: Mapping[str, str]) -> None:
    """Have torch imported while this process goes on. environment: what must be set before that: threads, allocator."""
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload([_PRELOADED])
        with _environment(environment):
            forkserver.ensure_running()


def place(
    run: Callable[[Argument], int],
    argument: Argument,
    environment: Mapping[str, str],
    log: Path,
    title: str,
    imports_torch: bool,
) -> BaseProcess:
    """Start a process that does `run(argument)` and exits with what it returns.

    It leads a session of its own, so that Ctrl+C in the terminal is not for it, writes to `log`, and ends when this
    process does. environment: all of its variables. Raises ConfigError or OSError if no process can be started.
    """
    with open(log, "ab"):
        pass  # it can be written
    fork = imports_torch and sys.platform == "linux"
    arguments = (run, argument, dict(environment), log, title)
    process: BaseProcess
    if fork:
        process = multiprocessing.get_context("forkserver").Process(target=_main, args=arguments, name=title)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_main, args=arguments, name=title)
    try:
        with _environment(environment):
            process.start()
    except EOFError as error:
        raise ConfigError("the process that imports torch ended; its error is above") from error
    return process


@contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    """This process's variables are those within: what it starts inherits them."""
    before = dict(os.environ)
    _set_environment(environment)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _main(
    run: Callable[[Argument], int], argument: Argument, environment: dict[str, str], log: Path, title: str
) -> None:
    """The first lines of the new process."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    setproctitle.setproctitle(f"realm {title}")  # before the variables: it looks for its place next to them
    _set_environment(environment)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _differ()
    code = run(argument)
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: a thread inside reverb or a ZeroMQ context must not hold up the end of the run
    os._exit(code)


def _differ() -> None:
    """Set what a fork shares with its siblings: random numbers and threads."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # OpenMP has read it already


def _die_with_parent() -> None:
    """Wait for the supervisor's end, however it comes; then end with whatever this process has started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(os.getpid(), signal.SIGKILL)
