"""The display of a running run: lines that are rewritten on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loguru import logger
from rich.console import Console
from rich.live import Live
from rich.text import Text

from realm.errors import plain
from realm.watch.progress import LINE_EVERY_S, Every, has_screen
from realm.watch.status import LOG_FORMAT, Status, lines, one_line, wrapped
from realm.watch.terminal import Held

Show = Callable[[Status], None]
"""Shows the run; cheap enough for many calls a second."""


STOPS = "Ctrl+C ends the run"


@contextmanager
def display(title: str, hint: str, level: str = "INFO") -> Iterator[Show]:
    """Yield the function that shows the run. hint: what Ctrl+C does here. level: the lowest that is logged."""
    if not has_screen():
        if level != "INFO":
            logger.remove()
            logger.add(sys.stderr, level=level, format=LOG_FORMAT)
        line = Every(LINE_EVERY_S)

        def show_line(status: Status) -> None:
            if line.due():
                logger.info("{}", one_line(status))

        yield show_line
        return

    with live_lines(level) as show_lines:

        def show(status: Status) -> None:
            show_lines(lambda width: [*heading(f"{title}: {status.state}", hint, width), *lines(status, width)])

        yield show


@contextmanager
def live_lines(level: str = "INFO") -> Iterator[Callable[[Callable[[int], list[str]]], None]]:
    """Yield the function that shows lines at the bottom of the terminal, made for its width.

    They vanish at the end. Log lines go above them instead of through them.
    """
    console = Console(stderr=True)
    with Held(console, lambda: Live(console=console, transient=True, redirect_stdout=False)) as held:

        def show(make: Callable[[int], list[str]]) -> None:
            # a line that is as wide as the terminal leaves the cursor in the next one
            text = Text("\n".join(map(plain, make(console.width - 1))), no_wrap=True, overflow="ignore")
            held.back().update(text)

        # loguru catches the errors of a closed terminal
        logger.remove()
        logger.add(
            lambda text: console.print(wrapped(text, console.width), end="", markup=False, highlight=False),
            level=level, format=LOG_FORMAT,
        )  # fmt: skip
        yield show


def heading(title: str, hint: str, width: int) -> list[str]:
    """The title, and at the right edge what Ctrl+C does; below each other where there is no room."""
    room = width - len(title) - len(hint)
    return [f"{title}{' ' * room}{hint}"] if room >= 3 else [title, hint]
