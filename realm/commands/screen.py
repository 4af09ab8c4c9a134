"""What a terminal shows, as a grid of characters and colours: for `realm play`, of the realm and of any environment.

`show` writes one grid after the other. `of_text` and `of_picture` make grids of what an environment renders, and
`as_picture` makes a picture of a grid.
"""

from __future__ import annotations

import math
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.color import Color, ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.text import Text

Colour = tuple[int, ...]
MOST_FRAMES_PER_S, HOLD_S = 30, 1.0
RESET = "\x1b[0m"
_INK: Colour = (220, 220, 220)
_CELL = (6, 11)  # pixels of a character of Pillow's own font


class Screen(NamedTuple):
    """What a terminal of L lines and C columns shows."""

    text: NDArray[np.str_]  # [L, C], one character each
    ink: NDArray[np.uint8]  # [L, C, 3]
    paper: NDArray[np.uint8]  # [L, C, 3]

    def put(self, line: int, column: int, text: str, ink: Colour, paper: Colour | None = None) -> int:
        """Write, as far as there is room; returns the column behind it. What would steer a terminal becomes a "?"."""
        end = min(column + len(text), self.text.shape[1])
        if 0 <= line < len(self.text) and column < end:
            self.text[line, column:end] = [sign if sign.isprintable() else "?" for sign in text[: end - column]]
            self.ink[line, column:end] = ink
            if paper is not None:
                self.paper[line, column:end] = paper
        return end


Draws = Callable[[int, int], Screen]
"""Draws a moment for so many columns and lines."""


def empty(lines: int, columns: int) -> Screen:
    """Nothing on black."""
    shape = (lines, columns, 3)
    return Screen(np.full(shape[:2], " "), np.zeros(shape, np.uint8), np.zeros(shape, np.uint8))


def with_caption(drawn: Screen, caption: str, columns: int, lines: int) -> Screen:
    """As much of it as there is room for, above a line of text."""
    whole = empty(lines, columns)
    for there, part in zip(whole, drawn, strict=True):
        there[: lines - 1, :columns][: len(part), : part.shape[1]] = part[: lines - 1, :columns]
    whole.put(min(len(drawn.text), lines - 1), 0, caption, _INK)
    return whole


# ---- what environments render ----


def of_text(text: str) -> Screen:
    """What an environment gives with render_mode = "ansi", in its colours."""
    rows = Text.from_ansi(text).split("\n") or [Text()]
    drawn, console = empty(len(rows), max(1, *map(len, rows))), Console()
    for line, row in enumerate(rows):
        column = 0
        for part, style, _ in row.render(console):
            colours = (style.color, style.bgcolor) if style else (None, None)
            ink, paper = (tuple(one.get_truecolor()) if one else None for one in colours)
            column = drawn.put(line, column, part, ink or _INK, paper)
    return drawn


def of_picture(picture: NDArray[np.uint8], columns: int, lines: int) -> Screen:
    """A picture, u8 [H, W, 3], as large as there is room, two pixels in a character."""
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    size = max(1, int(scale * width)), max(2, int(scale * height) // 2 * 2)
    pixels = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    return Screen(np.full((size[1] // 2, size[0]), "▀"), pixels[::2], pixels[1::2])


def as_picture(drawn: Screen) -> NDArray[np.uint8]:
    """The characters in Pillow's own font, which knows Latin-1, u8 [22 L, 12 C, 3]."""
    width, height = _CELL
    image = Image.fromarray(drawn.paper.repeat(height, 0).repeat(width, 1))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default_imagefont()
    for line, column in np.argwhere(drawn.text != " ").tolist():
        sign = str(drawn.text[line, column]).encode("latin-1", "replace")
        pen.text((column * width, line * height), sign, tuple(drawn.ink[line, column].tolist()), font)
    return np.asarray(image).repeat(2, 0).repeat(2, 1)


# ---- to the terminal ----


def can_show(console: Console) -> bool:
    """Whether there is a terminal that has colours."""
    return sys.stdout.isatty() and console.color_system is not None  # FORCE_COLOR makes rich see one in a pipe, too


def show(console: Console, moments: Iterable[Draws], speed: float) -> None:
    """Show moments, `speed` a second at most; the last one stays there.

    One that is late is not drawn, but the last one is. The next moment may change what the one before would draw.
    """
    system, before = COLOR_SYSTEMS[console.color_system or "standard"], None
    begin, shown = 0.0, -math.inf
    draws: Draws = lambda columns, lines: empty(lines, columns)  # noqa: E731
    with _silent_keyboard(), console.screen():
        for k, draws in enumerate(moments):
            begin = begin or time.monotonic()  # the first one may take long
            time.sleep(max(0.0, begin + k / speed - time.monotonic()))
            if time.monotonic() - shown >= 1 / MOST_FRAMES_PER_S:
                before = _write(draws(console.width, console.height), before, system)
                shown = time.monotonic()
        _write(draws(console.width, console.height), before, system)
        time.sleep(HOLD_S)
    print(lines(draws(console.width, console.height - 3), system))


def _write(now: Screen, before: Screen | None, system: ColorSystem) -> Screen:
    sys.stdout.write(changes(now, before, system))
    sys.stdout.flush()
    return now


def changes(now: Screen, before: Screen | None, system: ColorSystem) -> str:
    """What to write so that a terminal that shows `before` (None: anything) shows `now`."""
    if before is None or before.text.shape != now.text.shape:
        changed, parts = np.ones(now.text.shape, np.bool_), ["\x1b[2J"]
    else:
        changed, parts = now.text != before.text, []
        changed |= (now.ink != before.ink).any(-1) | (now.paper != before.paper).any(-1)
    for line in np.flatnonzero(changed.any(1)):
        edges = np.flatnonzero(np.diff(changed[line], prepend=False, append=False))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            parts.append(f"\x1b[{line + 1};{first + 1}H{_written(now, line, first, end, system)}")
    return "".join(parts)


def lines(drawn: Screen, system: ColorSystem) -> str:
    """The whole of it as lines of text, without empty ones at the bottom."""
    used = 1 + max(np.flatnonzero((drawn.text != " ").any(1)), default=0)
    return "\n".join(_written(drawn, line, 0, drawn.text.shape[1], system) for line in range(used))


def _written(drawn: Screen, line: int, first: int, end: int, system: ColorSystem) -> str:
    """The characters of a line from `first` to before `end`, with their colours."""
    parts, last = list[str](), ""
    for column in range(first, end):
        ink, paper = drawn.ink[line, column].tolist(), drawn.paper[line, column].tolist()
        codes = f"\x1b[{_codes(*ink, True, system)};{_codes(*paper, False, system)}m"
        parts.append(f"{codes if codes != last else ''}{drawn.text[line, column]}")
        last = codes
    return "".join([*parts, RESET])


@lru_cache(maxsize=4096)
def _codes(red: int, green: int, blue: int, foreground: bool, system: ColorSystem) -> str:
    return ";".join(Color.from_rgb(red, green, blue).downgrade(system).get_ansi_codes(foreground))


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
