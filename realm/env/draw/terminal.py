"""An episode in a terminal: the map in coloured half blocks, with the figures next to it or above it.

For `realm play`. Pure functions: `screen` draws one moment of a recording as a grid of characters and colours, as large
as the terminal allows; `changes` says what to write to get from one grid to the next, `lines` writes a grid as text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.color import Color, ColorSystem

from realm.env.draw import pen
from realm.env.draw.pen import Colour
from realm.env.draw.recording import Moment, Recording, Route
from realm.env.map import EXTENT, POINTS, SIZE, Map

SYSTEMS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
"""By the name that rich's console gives to what its terminal can show."""
PANEL = 27  # columns next to the map: a gap, a name, and "605 steps away"
STATUS = 2  # lines above it, where there is no room next to it
ROOMY = 96  # pixels of the map from which on marks are drawn wider
RESET = "\x1b[0m"


class Screen(NamedTuple):
    """What a terminal of L lines and C columns shows."""

    text: NDArray[np.str_]  # [L, C], one character each
    ink: NDArray[np.uint8]  # [L, C, 3]
    paper: NDArray[np.uint8]  # [L, C, 3]

    def put(self, line: int, column: int, text: str, ink: Colour, paper: Colour | None = None) -> int:
        """Write, as far as there is room; returns the column behind it."""
        end = min(column + len(text), self.text.shape[1])
        if 0 <= line < len(self.text) and column < end:
            self.text[line, column:end] = list(text[: end - column])
            self.ink[line, column:end] = ink
            if paper is not None:
                self.paper[line, column:end] = paper
        return end


def screen(recording: Recording, k: int, columns: int, lines: int) -> Screen:
    """Draw moment k. The map is a square of at most SIZE pixels, two of them in a character."""
    beside = min(columns - PANEL, 2 * lines, SIZE)
    below = min(columns, 2 * (lines - STATUS), SIZE)
    top = 0 if beside >= 0.9 * below else STATUS
    side = max(2, (below if top else beside) // 2 * 2)
    shape = (max(lines, top + side // 2), max(columns, side))
    drawn = Screen(np.full(shape, " "), np.zeros((*shape, 3), np.uint8), np.empty((*shape, 3), np.uint8))
    drawn.paper[:] = pen.PAPER

    pixels = _ground(recording.map, side).copy()
    _draw_route(pixels, recording.route[: k + 1], recording.moments[k])
    at = (slice(top, top + side // 2), slice(0, side))
    drawn.text[at] = "▀"
    drawn.ink[at], drawn.paper[at] = pixels[::2], pixels[1::2]
    _draw_marks(drawn, top, side, recording, k)
    if top:
        _status(drawn, recording.moments[k])
    else:
        _panel(drawn, side + 2, recording.moments[k])
    return drawn


@lru_cache(maxsize=4)
def _ground(map_: Map, side: int) -> NDArray[np.uint8]:
    """The map alone, u8 [side, side, 3], north up."""
    share = np.asarray(Image.fromarray(map_.road[::-1] * np.uint8(255)).resize((side, side), Image.Resampling.BOX))
    wall, road = np.array(pen.WALL, np.float64), np.array(pen.ROAD, np.float64)
    return np.asarray(wall + (road - wall) * (share[..., None] / 255), np.uint8)


def _draw_route(pixels: NDArray[np.uint8], route: Route, now: Moment) -> None:
    """The way walked, newer steps brighter (when all is over, the whole of it by its age), and flashes as dots."""
    side, count = len(pixels), len(route) - 1
    tail = count if now.terminated or now.truncated else pen.TAIL
    for j in sorted(range(1, count + 1), key=lambda j: route[j, 2]):  # flashes on top
        (x, z, _), (to_x, to_z, flash) = route[j - 1], route[j]
        length = max(abs(to_x - x), abs(to_z - z)) / EXTENT * side  # in pixels
        share = np.linspace(0, 1, max(2, int(length / 2 if flash else 2 * length) + 1))
        column, row = ((x + (to_x - x) * share) / EXTENT * side), ((1 - (z + (to_z - z) * share) / EXTENT) * side)
        age = min(1.0, (count - j) / max(1, tail))
        new, old = np.array(pen.NEW_ROUTE), np.array(pen.OLD_ROUTE)
        colour = pen.FLASH if flash else new + (old - new) * age
        pixels[row.astype(int).clip(0, side - 1), column.astype(int).clip(0, side - 1)] = colour


def _draw_marks(drawn: Screen, top: int, side: int, recording: Recording, k: int) -> None:
    """Start, end, treasures, buff and hero."""
    now, points = recording.moments[k], recording.map.points
    over = now.terminated or now.truncated

    def mark(x: float, z: float, text: str, colours: tuple[Colour, Colour]) -> None:
        text = f" {text} " if side >= ROOMY else text
        line, column = int((1 - z / EXTENT) * side) // 2, int(x / EXTENT * side) - (len(text) - 1) // 2
        drawn.put(top + line, max(0, min(column, side - len(text))), text, *colours)

    mark(points[0, 0], points[0, 1], "B", BUFF[now.there[0]])
    for i in (i for i in range(1, POINTS) if now.planned[i]):
        mark(points[i, 0], points[i, 1], str(i), TAKEN if not now.there[i] else MISSED if over else TREASURE)
    mark(points[now.start, 0], points[now.start, 1], "S", START)
    mark(points[now.end, 0], points[now.end, 1], "E", END)
    mark(now.x, now.z, "@", BUFFED if now.buff_left > 0 else HERO)


# ink and paper of the marks
START, END = (pen.START, pen.EDGE), (pen.PAPER, pen.END)
TREASURE, TAKEN = (pen.GOLD_DARK, pen.GOLD), (pen.GOLD_DIM, pen.GOLD_DARK)
MISSED = (pen.PAPER, pen.MISSED)
HERO, BUFFED = (pen.PAPER, pen.HERO), (pen.PAPER, pen.BUFF)
BUFF = {True: (pen.PAPER, pen.BUFF), False: (pen.BUFF, pen.WALL)}  # by whether it is there


def _facts(now: Moment) -> list[tuple[str, str, str, Colour]]:
    """What counts: name, value, unit, colour of the value."""
    facts: list[tuple[str, str, str, Colour]] = [
        ("step", str(now.steps), f"/ {now.max_step}", pen.TEXT),
        ("score", f"{now.score:.1f}", "", pen.TEXT),
        ("treasures", str(now.taken), f"/ {sum(now.planned)}", pen.GOLD),
        ("flash", "ready", "", pen.FLASH)
        if now.flash_wait == 0
        else ("flash", str(now.flash_wait), "steps away", pen.QUIET),
    ]
    if now.buff_left > 0:
        facts.append(("buff", str(now.buff_left), "steps left", pen.BUFF))
    elif now.buff_wait > 0:
        facts.append(("buff", str(now.buff_wait), "steps away", pen.QUIET))
    else:
        facts.append(("buff", "on the map", "", pen.BUFF))
    return facts


def _ending(now: Moment) -> tuple[str, Colour]:
    return now.ending, pen.END if now.terminated else pen.MISSED


def _status(drawn: Screen, now: Moment) -> None:
    """Above the map: as many facts in a line as have room."""
    line = column = 0
    text, colour = _ending(now)
    for name, value, unit, ink in [*_facts(now), *([(text, "", "", colour)] if text else [])]:
        words = [(name, pen.QUIET if value else ink), (value, ink), (unit, pen.QUIET)]
        if column and column + sum(len(word) + 1 for word, _ in words if word) > drawn.text.shape[1]:
            line, column = line + 1, 0
        for word, one in words:
            if word and line < STATUS:
                column = drawn.put(line, column, word, one) + 1
        column += 2


def _panel(drawn: Screen, left: int, now: Moment) -> None:
    """Beside the map: a line for each fact, what the marks mean at the bottom."""
    line = 1
    for name, value, unit, colour in _facts(now):
        drawn.put(line, left, name, pen.QUIET)
        column = drawn.put(line, left + 11, value, colour)
        drawn.put(line, column + 1, unit, pen.QUIET)
        line += 2 if len(drawn.text) >= 22 else 1
    drawn.put(line, left, *_ending(now))
    marks = [("@", HERO, "hero"), ("S", START, "start"), ("E", END, "end"), ("7", TREASURE, "treasure"),
             ("7", TAKEN, "taken"), ("B", BUFF[True], "buff")]  # fmt: skip
    bottom = len(drawn.text) - len(marks) // 2 - 1
    for i, (text, (ink, paper), meaning) in enumerate(marks if bottom > line else ()):
        column = drawn.put(bottom + i // 2, left + 12 * (i % 2), f" {text} ", ink, paper)
        drawn.put(bottom + i // 2, column + 1, meaning, pen.QUIET)


# ---- to the terminal ----


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
    used = 1 + max(np.flatnonzero((drawn.text != " ").any(1)))
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
