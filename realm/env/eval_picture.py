"""The picture of an evaluation of the realm: sorted regret, what it comes to, and the worst routes on the map.

Called by `realm eval --out`; draws with the pen of `realm/env/render.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from realm.contract import Array
from realm.env import render
from realm.env.commands import writing
from realm.env.eval_report import Limits, as_option, regret, rows
from realm.env.map import Map
from realm.env.options import Episode
from realm.env.realm_env import RealmEnv
from realm.env.render import EDGE, GOLD, MISSED, NEW_ROUTE, PAPER, QUIET, ROAD, SMOOTH, TEXT, WALL, WALL_FACE, Pen
from realm.learn.evaluate import Outcome

# ---- geometry, in pixels ----

ACROSS = 3  # routes beside each other
TILE = render.WIDTH
CAPTION = 58  # above a route
CHART = 560  # height of the upper part
PLOT = (110, 120, 1430, 470)  # left, top, right, bottom of the curves
FIGURES = 1520  # where the numbers begin

CURVES = (NEW_ROUTE, GOLD)  # of the first and of the second round
LEAST = 0.1  # regrets below are drawn as that: the axis is logarithmic
TICKS = [base * 10**power for power in range(-1, 4) for base in (1, 2, 5)]

Round = tuple[str, Outcome]  # its name


def write(
    out: Path,
    title: str,
    oracle: str,
    map_: Map,
    layouts: Sequence[Episode],
    rounds: Sequence[Round],
    limits: Limits,
    worst: Sequence[int],
) -> None:
    """Draw rounds of the same layouts to `out`. The worst layouts' routes are those of the first round, whose `actions`
    are needed."""
    tiles = [_route(map_, layouts, rounds[0][1], limits, k, place) for place, k in enumerate(worst, 1)]
    lines = math.ceil(len(tiles) / ACROSS)
    picture = np.full((CHART + lines * (CAPTION + render.HEIGHT), ACROSS * TILE, 3), PAPER, np.uint8)
    picture[:CHART] = _chart(title, oracle, layouts, rounds, limits)
    for n, tile in enumerate(tiles):
        line, column = divmod(n, ACROSS)
        y, x = CHART + line * (CAPTION + render.HEIGHT), column * TILE
        picture[y : y + len(tile), x : x + TILE] = tile
    with writing(out):
        render.write_png(picture, out)


# ---- the upper part ----


def _chart(
    title: str, oracle: str, layouts: Sequence[Episode], rounds: Sequence[Round], limits: Limits
) -> NDArray[np.uint8]:
    """u8 [CHART, ACROSS * TILE, 3]"""
    picture = Image.new("RGB", (ACROSS * TILE * SMOOTH, CHART * SMOOTH), PAPER)
    pen = Pen(picture, SMOOTH)
    pen.text(40, 40, title, 26, TEXT, "lm")
    pen.text(40, 76, oracle, 17, QUIET, "lm")
    lost = [np.maximum(np.sort(regret(played, limits)), LEAST) for _, played in rounds]
    _curves(pen, lost, len(layouts))
    _figures(pen, layouts, rounds, limits)
    return np.asarray(picture.reduce(SMOOTH))


def _curves(pen: Pen, lost: Sequence[Array], count: int) -> None:
    """Sorted regrets, least first, on a logarithmic axis."""
    left, top, right, bottom = PLOT
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
    for values, colour in reversed(list(zip(lost, CURVES, strict=False))):
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


def _figures(pen: Pen, layouts: Sequence[Episode], rounds: Sequence[Round], limits: Limits) -> None:
    """The total line of each round's table, one beside the other."""
    names = ["mean score", "mean regret", "worst regret", "reached the end", "missed treasures", "mean steps"]
    names += ["excess steps, mean", "excess steps, worst"]
    y = PLOT[1] + 44
    for n, name in enumerate(names):
        pen.text(FIGURES, y + n * 40, name, 18, QUIET, "lm")
        pen.line([(FIGURES, y + n * 40 + 20), (ACROSS * TILE - 40, y + n * 40 + 20)], WALL_FACE, 1)
    for (name, played), colour, x in zip(rounds, CURVES, (1880, 2090), strict=False):
        total = rows(layouts, played, limits)[-1]
        pen.line([(x - 130, y - 42), (x - 110, y - 42)], colour, 4)
        pen.text(x, y - 42, name, 15, colour, "rm")
        values = [f"{total.score:,.2f}", f"{total.regret:,.2f}", f"{total.worst_regret:,.1f}"]
        values += [f"{100 * total.reached_end:.1f} %", f"{total.missed:.2f}", f"{total.steps:,.1f}"]
        values += ["-" if one is None else f"{one:.1f} %" for one in (total.excess, total.worst_excess)]
        for n, value in enumerate(values):
            pen.text(x, y + n * 40, value, 20, TEXT, "rm")


# ---- the routes ----


def _route(
    map_: Map, layouts: Sequence[Episode], played: Outcome, limits: Limits, k: int, place: int
) -> NDArray[np.uint8]:
    """The route of layout k with a caption. u8 [CAPTION + HEIGHT, WIDTH, 3]"""
    env = RealmEnv(as_option(layouts[k]), map=map_, observation="vector")
    recording = render.record(env, played.actions[k])
    caption = Image.new("RGB", (TILE * SMOOTH, CAPTION * SMOOTH), PAPER)
    pen = Pen(caption, SMOOTH)
    pen.line([(20, 6), (TILE - 20, 6)], ROAD, 1)
    width = pen.text(20, 36, f"{place}.", 20, TEXT, "lm")
    lost = float(limits.score[k] - played.score[k])
    width += pen.text(28 + width, 36, f"regret {lost:,.1f}", 20, MISSED, "lm")
    pen.text(46 + width, 37, ",".join(map(str, layouts[k].treasure_id or ())), 16, TEXT, "lm")
    limit = f"oracle {limits.score[k]:,.1f}"
    if limits.steps[k]:
        limit += f" in {limits.steps[k]} steps"
    pen.text(TILE - 20, 36, limit, 16, QUIET, "rm")
    return np.concatenate(
        [np.asarray(caption.reduce(SMOOTH)), render.draw(map_, recording.moments[-1], recording.route)]
    )
