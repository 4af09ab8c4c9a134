"""Signals: which of them end a run, what they ask for, and how each process hears them.

The command line calls `make_sane` first, which undoes what a launcher has done to signals and descriptors. The
supervisor and each role call `listen`; a run in one process is within `listening`. A new process hears no signal before
that (`blocked`), because a signal to all processes of a job may come at any moment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_WISHES = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_NAMES = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT"]
_ENDS: tuple[int, ...] = (*_WISHES, *(getattr(signal, name) for name in _NAMES if hasattr(signal, name)))
if hasattr(signal, "SIGRTMIN"):  # not on macOS
    _ENDS = (*_ENDS, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
"""All that would end a process without telling of an error in it. Batch systems send any of them before a limit."""
_OF_A_TERMINAL: dict[int, str] = {signal.SIGINT: "Ctrl+C", signal.SIGQUIT: "Ctrl+\\", signal.SIGHUP: ""}
_SAME_S = 0.2

Handler = Callable[[int, FrameType | None], Any]


def make_sane() -> None:
    """Undo what a launcher may have left: closed descriptors 0 to 2, blocked signals, and an ignored SIGCHLD, without
    which no child could be waited for. Raises KeyboardInterrupt if one has been waiting."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end at once in the middle of an import: that may swallow it, or make another error
    of it. A second one ends the process in any case."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while frame is not None:
        if frame.f_globals.get("__name__") in ("importlib._bootstrap", "_frozen_importlib"):
            os.write(2, b"\x1b[?25hinterrupted\n" if os.isatty(2) else b"interrupted\n")  # a spinner hides the cursor
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def ends() -> list[int]:
    """The signals that end a run in order.

    Not one that somebody ignores, as nohup does SIGHUP, or has another use for, as profilers have. But always those by
    which people end programs: a shell ignores SIGINT and SIGQUIT in all that it starts in the background.
    """
    return [number for number in _ENDS if number in _WISHES or signal.getsignal(number) is signal.SIG_DFL]


def listen(handler: Handler, but: Collection[int] = ()) -> dict[int, Any]:
    """Have a handler of this module called for each signal that ends a run; returns the former handlers."""
    before = {number: signal.signal(number, handler) for number in ends() if number not in but}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    return before


@contextmanager
def blocked() -> Iterator[None]:
    """Hold these signals back from processes that are started in the block, until they `listen`."""
    from multiprocessing import resource_tracker  # late: `--help` needs none

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        resource_tracker.ensure_running()  # its first start lets some of them through again
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def called(number: int) -> str:
    """What a signal is called as the cause of an end."""
    if (os.isatty(0) or os.isatty(2)) and _OF_A_TERMINAL.get(number):
        return _OF_A_TERMINAL[number]
    return f"{name_of(number)} received"


def name_of(number: int) -> str:
    """`SIGTERM`; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Wishes:
    """What the signals so far have asked for. first: the first one, 0 before. at_once: somebody asked twice."""

    def __init__(self) -> None:
        self.first, self.at_once = 0, False
        self._first_at = 0.0
        self._since: dict[int, float] = {}

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """Note a signal. Two of a kind within a moment are one wish, as `timeout` and other wrappers send them; and so
        is a warning before a limit with the SIGTERM that follows it."""
        now = time.monotonic()
        if not self.first:
            self.first, self._first_at = number, now
        if number in _WISHES and now - self._since.setdefault(number, now) > _SAME_S:
            self.at_once = True

    def settled(self) -> bool:
        """Whether one came, and what comes now is another wish: who has seen the run stop may ask again."""
        return self.first != 0 and time.monotonic() - self._first_at > _SAME_S


@contextmanager
def listening(record: Callable[[Wishes], None]) -> Iterator[Wishes]:
    """Hear signals in a thread, since the main thread may be in user code that does not return; `record` is called
    there after each one. The second wish then ends the process as that signal does by default."""
    wishes, (ear, mouth) = Wishes(), os.pipe()
    os.set_blocking(mouth, False)

    def hear() -> None:
        while number := os.read(ear, 1)[0]:
            if signal.getsignal(number) is _nothing:  # else user code has another use for it
                wishes.hear(number)
                record(wishes)
            if wishes.at_once:
                ctypes.CDLL(None).signal(number, None)  # to the default; Python lets only the main thread do it
                os.kill(os.getpid(), number)
                os._exit(128 + number)  # the first process of a container does not die of it

    wake_up = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    before = listen(_nothing)
    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    try:
        yield wishes
    finally:
        # after a signal the process is about to end, and the second one may still come
        if not wishes.first:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wake_up)
            os.write(mouth, b"\0")  # not closed: a fork may have the pipe, too
            thread.join()
            os.close(mouth)
            os.close(ear)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The thread of `listening` hears it."""


def _in_a_fork() -> None:
    """In a fork, such as a worker of an environment, signals do again what they do by default. Only those of a terminal
    wait until the second time: its parent hears them, too, and ends it in order."""
    for number in _ENDS:
        if getattr(signal.getsignal(number), "__module__", None) == __name__:
            signal.set_wakeup_fd(-1)
            signal.signal(number, _wait_once if number in _OF_A_TERMINAL else signal.SIG_DFL)


def _wait_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_a_fork)
