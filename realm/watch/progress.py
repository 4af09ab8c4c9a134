"""Progress of long work: a live display on a terminal, otherwise a line now and then.

Everything goes to stderr, so a command's output on stdout is the same with and without it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

Show = Callable[[int, int], None]
"""Gets the number of finished things and the units so far, such as env steps, as often as these change."""

LONG_S = 5.0  # without a terminal, work that takes longer prints a line
LINE_EVERY_S = 10.0
STILL_S = 60.0
"""When nothing has moved for so long, the user is told why."""


class Every:
    """A timer that is due once every `seconds`, counted from its creation; with `at_once` it is due there, too."""

    def __init__(self, seconds: float, at_once: bool = False) -> None:
        self._seconds, self._last = seconds, time.monotonic() - (seconds if at_once else 0.0)

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Stillness:
    """The time since something moved, told once when it is `STILL_S`. Threads may share it."""

    def __init__(self) -> None:
        self.moved()

    def moved(self) -> None:
        self._since, self._told = time.monotonic(), False

    def due(self, now: float) -> float:
        """Seconds without a move if they are to be told now, else 0. now: monotonic seconds."""
        still_s = now - self._since
        if self._told or still_s < STILL_S:
            return 0.0
        self._told = True
        return still_s


def has_screen() -> bool:
    """Whether stderr is a terminal that lets lines be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def busy(label: str) -> Iterator[None]:
    """Show work that has nothing to count: a spinner, or without a terminal one line after `LONG_S`."""
    if has_screen():
        from rich.console import Console  # late, as below
        from rich.live import Live
        from rich.spinner import Spinner

        from realm.watch.terminal import Held

        console, spinner = Console(stderr=True), Spinner("dots", label, style="status.spinner")
        with Held(console, lambda: Live(spinner, console=console, transient=True, redirect_stdout=False)):
            yield
        return
    late = threading.Timer(LONG_S, print, [f"{label} ..."], {"file": sys.stderr, "flush": True})
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def counting(label: str, total: int, unit: str = "steps") -> Iterator[Show]:
    """Show `total` things done one by one: a bar with rate and remaining time, or without a terminal a line with the
    same numbers every `LINE_EVERY_S`.
    """
    begin = time.monotonic()
    with _shown(label) as show:

        def show_count(finished: int, units: int) -> None:
            rate = units / max(1e-9, time.monotonic() - begin)
            rate_text = f"{rate:,.{0 if rate >= 10 else 2}f} {unit}/s"
            show(finished / total, f"{finished:,} of {total:,}, {rate_text}")

        yield show_count


@contextmanager
def measuring(label: str) -> Iterator[Callable[[float], None]]:
    """Show work of which the share that is done is reported, 0..1: a bar with the remaining time, or without a terminal
    a line every `LINE_EVERY_S`."""
    with _shown(label) as show:
        yield lambda share: show(share, f"{share:.0%}")


@contextmanager
def _shown(label: str) -> Iterator[Callable[[float, str], None]]:
    """The function that shows the share that is done, 0..1, and what to say of it."""
    # late: every start imports this module, but few commands count
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from realm.watch.terminal import Held

    terminal, console = has_screen(), Console(stderr=True)
    begin, line = time.monotonic(), Every(LINE_EVERY_S)
    columns = (TextColumn(label), BarColumn(), TextColumn("{task.fields[done]}"))
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not terminal)
    task = progress.add_task("", total=1.0, done="")
    with Held(console, lambda: progress) if terminal else nullcontext() as held:

        def show(share: float, done: str) -> None:
            # at first it compiles, and the first of many episodes says nothing about the rest
            took, known = time.monotonic() - begin, share > 0.1
            left = f"{took * (1 - share) / share:,.0f} s left" if known else "time left not known yet"
            if held:
                held.back()
            progress.update(task, completed=share, done=f"{done}, {left}")
            if not terminal and line.due():
                print(f"{label}: {done}, {left}", file=sys.stderr, flush=True)

        yield show
