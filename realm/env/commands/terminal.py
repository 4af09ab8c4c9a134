"""An episode in a terminal: the map in coloured half blocks, with the figures next to it or above it.

For `realm play`. `screen` draws one moment of a recording as a grid of characters and colours, as large as the terminal
allows; `realm/commands/screen.py` shows it.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from realm.commands.screen import Screen, can_show, show
from realm.env.commands.episodes import summary
from realm.env.draw import Moment, Recording, Route, ansi, pen
from realm.env.draw.pen import Colour
from realm.env.map import EXTENT, POINTS, SIZE, Map

PANEL = 27  # columns next to the map: a gap, a name, and "605 steps away"
STATUS = 2  # lines above it, where there is no room next to it
ROOMY = 96  # pixels of the map from which on marks are drawn wider


def play(recording: Recording, speed: float) -> None:
    """Show an episode in the terminal, `speed` steps a second, and at last its end and summary.

    Only these two, without colours, where there is no terminal that could show it.
    """
    console = Console(highlight=False)
    if can_show(console):
        show(console, (partial(screen, recording, k) for k in range(len(recording.moments))), speed)
    else:
        print(ansi(recording.map, recording.moments[-1]), end="")
    print(summary(recording))


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
