"""`realm play`: an episode live in the terminal."""

from __future__ import annotations

import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from realm.env.commands.episodes import summary
from realm.env.draw import Recording, ansi, terminal

MOST_FRAMES_PER_S, HOLD_S = 30, 1.0


def play(recording: Recording, speed: float) -> None:
    """Show an episode in the terminal, `speed` steps a second, and at last its end and summary.

    Only these two, without colours, where there is no terminal that could show it.
    """
    console, last = Console(highlight=False), len(recording.moments) - 1
    if not console.is_terminal or console.color_system is None:
        print(ansi(recording.map, recording.moments[-1]), end="")
        print(summary(recording))
        return
    system = terminal.SYSTEMS[console.color_system]
    with _silent_keyboard(), console.screen():
        begin, before, k = time.monotonic(), None, 0
        while True:
            now = terminal.screen(recording, k, console.width, console.height)
            sys.stdout.write(terminal.changes(now, before, system))
            sys.stdout.flush()
            if k == last:
                break
            before = now
            time.sleep(max(1 / MOST_FRAMES_PER_S, 1 / speed))
            k = min(last, int((time.monotonic() - begin) * speed))
        time.sleep(HOLD_S)
    print(terminal.lines(terminal.screen(recording, last, console.width, console.height - 3), system))
    print(summary(recording))


@contextmanager
def _silent_keyboard() -> Iterator[None]:
    """Keys that are pressed are not shown, nor read by the shell afterwards; Ctrl+C still counts."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)
