"""A terminal that is held by lines which rewrite themselves, and is lent to whoever reads from it.

Used by `display.py` and `progress.py`. The lines would be written over a debugger's prompt and over what is typed.
So they vanish when anything uses standard input, and come back a second later. What user code prints goes above them.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from rich.console import Console

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

_AWAY_S = 1.0  # the next step of a debugger is faster, and the lines do not flicker
Lines = TypeVar("Lines", bound="Live | Progress")


class Held(Generic[Lines]):
    """Shows the lines in a `with` block, while nobody reads from the terminal."""

    def __init__(self, console: Console, make: Callable[[], Lines]) -> None:
        """make: makes the lines. It is called each time that they come back, because several old ones would be written
        over what was printed meanwhile."""
        self._make, self._away_until = make, 0.0
        self._pid = os.getpid()  # a fork of this process shows no lines
        self._above = _Above(console, sys.stdout) if sys.stdout and sys.stdout.isatty() else None
        self._stdin, self._input = sys.stdin, builtins.input
        self._watched = _Watched(sys.stdin, self.give_way) if sys.stdin else None

    def __enter__(self) -> Held[Lines]:
        if self._watched:
            sys.stdin = self._watched
        builtins.input = self._ask = self._asking
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()
        if self._watched and sys.stdin is self._watched:
            sys.stdin = self._stdin
        if builtins.input is self._ask:
            builtins.input = self._input

    def back(self) -> Lines:
        """The lines, which are shown again if nobody has read from the terminal for a second."""
        if not self._is_shown and time.monotonic() >= self._away_until:
            self._start()
        return self._lines

    def give_way(self) -> None:
        """Take the lines off the terminal: somebody is about to read from it, or has just done so."""
        if os.getpid() == self._pid:
            self._away_until = time.monotonic() + _AWAY_S
            self._stop()

    def _asking(self, *prompt: object) -> str:
        self.give_way()
        try:
            return self._input(*prompt)
        finally:
            self.give_way()

    def _start(self) -> None:
        self._lines, self._is_shown = self._make(), True
        with suppress(OSError):  # the terminal may be closed at any time, and the run must end in order
            self._lines.start()
        if self._above and sys.stdout is self._above.file:
            sys.stdout = self._above

    def _stop(self) -> None:
        self._is_shown = False
        with suppress(OSError):
            self._lines.stop()
            if self._above:
                self._above.finish()
        if self._above and sys.stdout is self._above:
            sys.stdout = self._above.file


class _Above:
    """Standard output while the lines are shown: what is printed goes above them, a line at a time."""

    def __init__(self, console: Console, file: TextIO) -> None:
        self.file, self._console, self._rest = file, console, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        whole, newline, self._rest = (self._rest + text).rpartition("\n")
        if newline:
            self._console.out(whole, highlight=False)
        return len(text)

    def finish(self) -> None:
        """Print the line that has no end yet, such as a question."""
        rest, self._rest = self._rest, ""
        self.file.write(rest)
        self.file.flush()


class _Watched:
    """Standard input that says so before anybody uses it."""

    def __init__(self, file: TextIO, before: Callable[[], None]) -> None:
        self._file, self._before = file, before

    def __getattr__(self, name: str) -> Any:
        self._before()
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line
