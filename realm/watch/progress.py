"""Long work says that it goes on: on a terminal while one watches, elsewhere a line now and then.

Everything goes to stderr; what a command prints on stdout is the same with and without it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Show = Callable[[int, int], None]
"""Gets how many are done and the units that they took so far, such as env steps, each time that one is done."""

LONG_S = 5.0  # work that takes longer says so where no terminal is
LINE_EVERY_S = 10.0


class Every:
    """Says once in `seconds` that they are over, counted from when it was made."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


@contextmanager
def busy(what: str) -> Iterator[None]:
    """For work of which no part can be counted: a spinner; without a terminal one line after `LONG_S`."""
    if sys.stderr.isatty():
        with Console(stderr=True).status(what):
            yield
        return
    late = threading.Timer(LONG_S, print, [f"{what} ..."], {"file": sys.stderr, "flush": True})
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def counting(what: str, total: int, unit: str = "steps") -> Iterator[Show]:
    """For `total` things done one by one: a bar with rate and remaining time; without a terminal a line of the same
    every `LINE_EVERY_S`.
    """
    # late: every start imports this module, and few commands count
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
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
                left = f"{took * (total - finished) / finished:,.0f} s left" if finished else "no end in sight yet"
                print(f"{what}: {finished:,} of {total:,}, {rate}, {left}", file=sys.stderr, flush=True)

        yield show
