"""Progress of long work: a live display on a terminal, otherwise a line now and then.

Everything goes to stderr, so a command's output on stdout is the same with and without it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int, int], None]
"""Gets the number of finished things and the units so far, such as env steps, after each finished thing."""

LONG_S = 5.0  # without a terminal, work that takes longer prints a line
LINE_EVERY_S = 10.0


class Every:
    """A timer that is due once every `seconds`, counted from its creation."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


@contextmanager
def busy(label: str) -> Iterator[None]:
    """Show work that has nothing to count: a spinner, or without a terminal one line after `LONG_S`."""
    if sys.stderr.isatty():
        from rich.console import Console  # late, as below

        with Console(stderr=True).status(label):
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
    # late: every start imports this module, but few commands count
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    terminal = sys.stderr.isatty()
    begin, line = time.monotonic(), Every(LINE_EVERY_S)
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not terminal) as progress:
        task = progress.add_task("", total=total, rate="")

        def show(finished: int, units: int) -> None:
            took = max(1e-9, time.monotonic() - begin)
            rate = f"{units / took:,.{0 if units / took >= 10 else 2}f} {unit}/s"
            progress.update(task, completed=finished, rate=rate)
            if not terminal and line.due():
                left = f"{took * (total - finished) / finished:,.0f} s left" if finished else "time left not known yet"
                print(f"{label}: {finished:,} of {total:,}, {rate}, {left}", file=sys.stderr, flush=True)

        yield show


@contextmanager
def measuring(label: str) -> Iterator[Callable[[float], None]]:
    """Show work of which the share that is done is reported, 0..1: a bar with the remaining time, or without a terminal
    a line every `LINE_EVERY_S`."""
    from rich.console import Console  # late, as above
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    terminal = sys.stderr.isatty()
    begin, line = time.monotonic(), Every(LINE_EVERY_S)
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not terminal) as progress:
        task = progress.add_task("", total=1.0)

        def show(share: float) -> None:
            progress.update(task, completed=share)
            if not terminal and share > 0 and line.due():
                took = time.monotonic() - begin
                # at first it compiles, which says nothing about the rest
                left = f"{took * (1 - share) / share:,.0f} s left" if share > 0.1 else "time left not known yet"
                print(f"{label}: {share:.0%}, {left}", file=sys.stderr, flush=True)

        yield show
