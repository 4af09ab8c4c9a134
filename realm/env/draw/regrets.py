"""The picture of an evaluation: regrets in rising order, the figures of the table, and the worst routes on the map.

Called by `realm eval --out`. In go plain values (`Curve` for each round, `Tile` for each route), out comes a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from realm.env.draw import pen as sheet
from realm.env.draw.pen import EDGE, GOLD, MISSED, NEW_ROUTE, PAPER, QUIET, ROAD, SMOOTH, TEXT, WALL, WALL_FACE, Pen
from realm.env.draw.picture import draw
from realm.env.draw.recording import Recording

# ---- geometry, in pixels ----

ACROSS = 3  # routes in a row
TILE = sheet.WIDTH
CAPTION = 58  # above a route
CHART = 560  # height of the upper part
PLOT = (110, 120, 1430, 470)  # left, top, right, bottom of the curves
FIGURES = 1520  # where the numbers begin

COLOURS = (NEW_ROUTE, GOLD)  # of the first and of the second curve
LEAST = 0.1  # regrets below are drawn as that: the axis is logarithmic
TICKS = [base * 10**power for power in range(-1, 4) for base in (1, 2, 5)]


class Curve(NamedTuple):
    """One round of an evaluation."""

    name: str
    regret: NDArray[np.float64]  # [K]
    figures: dict[str, str]  # name -> value; each curve has the same names


class Tile(NamedTuple):
    """One route with its caption."""

    recording: Recording
    regret: float
    title: str
    note: str  # on the right, quiet


def draw_evaluation(title: str, note: str, curves: Sequence[Curve], tiles: Sequence[Tile]) -> NDArray[np.uint8]:
    """The whole picture, u8 [H, W, 3]."""
    rows = math.ceil(len(tiles) / ACROSS)
    picture = np.full((CHART + rows * (CAPTION + sheet.HEIGHT), ACROSS * TILE, 3), PAPER, np.uint8)
    picture[:CHART] = _chart(title, note, curves)
    for n, tile in enumerate(tiles):
        row, column = divmod(n, ACROSS)
        y, x = CHART + row * (CAPTION + sheet.HEIGHT), column * TILE
        picture[y : y + CAPTION + sheet.HEIGHT, x : x + TILE] = _route(tile, n + 1)
    return picture


def _chart(title: str, note: str, curves: Sequence[Curve]) -> NDArray[np.uint8]:
    """The upper part, u8 [CHART, ACROSS * TILE, 3]."""
    picture = Image.new("RGB", (ACROSS * TILE * SMOOTH, CHART * SMOOTH), PAPER)
    pen = Pen(picture, SMOOTH)
    pen.text(40, 40, title, 26, TEXT, "lm")
    pen.text(40, 76, note, 17, QUIET, "lm")
    _draw_curves(pen, [np.maximum(np.sort(one.regret), LEAST) for one in curves])
    _draw_figures(pen, curves)
    return np.asarray(picture.reduce(SMOOTH))


def _draw_curves(pen: Pen, lost: Sequence[NDArray[np.float64]]) -> None:
    """Sorted regrets, least first, on a logarithmic axis."""
    left, top, right, bottom = PLOT
    count = len(lost[0])
    low = max(one for one in TICKS if one <= min(one.min() for one in lost))
    high = min((one for one in TICKS if one >= 1.02 * max(one.max() for one in lost)), default=TICKS[-1])
    high = max(high, 2 * low)

    def at(place: float, value: float) -> tuple[float, float]:
        share = math.log(min(value, high) / low) / math.log(high / low)
        return left + (right - left) * place, bottom - (bottom - top) * share

    pen.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], WALL)
    for tick in (one for one in TICKS if low <= one <= high):
        y = at(0, tick)[1]
        pen.line([(left, y), (right, y)], WALL_FACE, 1)
        pen.text(left - 10, y, f"{tick:g}", 14, QUIET, "rm")
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = at(share, low)[0]
        pen.line([(x, top), (x, bottom)], WALL_FACE, 1)
        pen.text(x, bottom + 18, f"{round(count * share):,}", 14, QUIET)
    pen.text((left + right) / 2, bottom + 46, "layouts, sorted by their regret", 15, QUIET)
    pen.text(left, top - 14, "regret: points less than the oracle", 15, QUIET, "lm")
    for values, colour in reversed(list(zip(lost, COLOURS, strict=False))):
        places = (np.arange(len(values)) + 0.5) / len(values)
        # no more corners than pixels
        some = np.unique(np.linspace(0, len(values) - 1, min(len(values), 2 * (right - left))).round().astype(int))
        line = [at(float(places[k]), float(values[k])) for k in some]
        if len(line) == 1:
            pen.circle(*line[0], 5, colour, None)
        else:
            pen.line(line, colour, 3)
            pen.circle(*line[-1], 5, colour, PAPER)
    pen.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], None, EDGE)


def _draw_figures(pen: Pen, curves: Sequence[Curve]) -> None:
    """The figures of each curve, one column each."""
    y = PLOT[1] + 44
    for n, name in enumerate(curves[0].figures):
        pen.text(FIGURES, y + n * 40, name, 18, QUIET, "lm")
        pen.line([(FIGURES, y + n * 40 + 20), (ACROSS * TILE - 40, y + n * 40 + 20)], WALL_FACE, 1)
    for curve, colour, x in zip(curves, COLOURS, (1880, 2090), strict=False):
        left = x - pen.text(x, y - 42, curve.name, 15, colour, "rm") - 10
        pen.line([(left - 20, y - 42), (left, y - 42)], colour, 4)
        for n, value in enumerate(curve.figures.values()):
            pen.text(x, y + n * 40, value, 20, TEXT, "rm")


def _route(tile: Tile, place: int) -> NDArray[np.uint8]:
    """A route with its caption, u8 [CAPTION + HEIGHT, WIDTH, 3]."""
    caption = Image.new("RGB", (TILE * SMOOTH, CAPTION * SMOOTH), PAPER)
    pen = Pen(caption, SMOOTH)
    pen.line([(20, 6), (TILE - 20, 6)], ROAD, 1)
    width = pen.text(20, 36, f"{place}.", 20, TEXT, "lm")
    width += pen.text(28 + width, 36, f"regret {tile.regret:,.1f}", 20, MISSED, "lm")
    pen.text(46 + width, 37, tile.title, 16, TEXT, "lm")
    pen.text(TILE - 20, 36, tile.note, 16, QUIET, "rm")
    recording = tile.recording
    picture = draw(recording.map, recording.moments[-1], recording.route)
    return np.concatenate([np.asarray(caption.reduce(SMOOTH)), picture])
