"""The display of a running run: a live table on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from loguru import logger
from rich.console import Console
from rich.live import Live
from rich.table import Table

from realm.config.keys import AppConfig
from realm.watch.board import Board
from realm.watch.progress import LINE_EVERY_S, Every

Show = Callable[[Board, str], None]
"""Gets the board and the run's state; cheap enough for many calls a second."""


@contextmanager
def display(app: AppConfig, capacity: int, title: str) -> Iterator[Show]:
    """Yield the function that shows the run. capacity: samples that the buffer holds."""

    def cells(board: Board, state: str) -> dict[str, str]:
        return {"state": state, **board.line(capacity, app.max_env_steps, app.max_seconds)}

    if not sys.stderr.isatty():
        line = Every(LINE_EVERY_S)

        def show_line(board: Board, state: str) -> None:
            if line.due():
                logger.info(" | ".join(f"{name} {text}" for name, text in cells(board, state).items()))

        yield show_line
        return

    console = Console(stderr=True)
    live = Live(console=console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=True)

    def show_table(board: Board, state: str) -> None:
        table = Table(title=f"{title}   (Ctrl+C ends the run)", title_justify="left")
        row = cells(board, state)
        for name in row:
            table.add_column(name, justify="right")
        table.add_row(*row.values())
        live.update(table)

    with suppress(OSError):  # the terminal may be closed at any time, and the run must end in order
        live.start()
    try:
        # log lines go above the table instead of through it; loguru catches the errors of a closed terminal
        logger.remove()
        logger.add(lambda text: live.console.print(text, end="", markup=False, highlight=False), level=app.level,
                   format="{time:HH:mm:ss} {level:<7} {message}")  # fmt: skip
        yield show_table
    finally:
        with suppress(OSError):
            live.stop()
