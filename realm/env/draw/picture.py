"""The map, or an episode on it, as a picture; a whole episode as an animation.

`draw` makes one picture, `frames` those of an episode, `write_png` and `write_gif` write files. Pure functions of what
`recording.py` keeps. Row 0 of the map's arrays is the picture's lowest row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from realm.env.draw.pen import (
    ARROW_EVERY,
    BUFF,
    EDGE,
    END,
    FLASH,
    HEIGHT,
    LEFT,
    LEGEND,
    MISSED,
    NEW_ROUTE,
    OLD_ROUTE,
    PAPER,
    QUIET,
    ROAD,
    SIDE,
    SMOOTH,
    START,
    TAIL,
    TEXT,
    TOP,
    WALL,
    WALL_FACE,
    WIDTH,
    Colour,
    Pen,
    blend,
    to_pixel,
)
from realm.env.draw.recording import Moment, Recording, Route
from realm.env.map import POINTS, SIZE, Map
from realm.env.physics import BUFF_STEPS, FLASH_COOLDOWN


def draw(map_: Map, now: Moment | None = None, route: Route | None = None, scale: int = 1) -> NDArray[np.uint8]:
    """Draw the map with all its points, or an episode on it. route: f64 [n, 3], oldest first. u8 [H, W, 3]."""
    large = SMOOTH * scale
    picture = _background(map_, large).copy()
    pen = Pen(picture, large)
    if now is None:
        for i in range(POINTS):
            if i == 0:
                pen.buff(*to_pixel(*map_.points[0]), True)
            else:
                pen.disc(*to_pixel(*map_.points[i]), str(i), START, PAPER)
        _map_title(pen, map_)
    else:
        _draw_episode(pen, map_, now, np.zeros((0, 3)) if route is None else route)
        _title(pen, now)
        _legend(pen)
    return np.asarray(picture.reduce(SMOOTH))


@lru_cache(maxsize=4)
def _background(map_: Map, scale: int) -> Image.Image:
    """The picture without anything that moves. Copy it before drawing."""
    picture = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), PAPER)
    cell = SIDE * scale // SIZE
    road = map_.road[::-1].repeat(cell, 0).repeat(cell, 1).astype(np.bool_)
    colours = np.where(road[..., None], np.array(ROAD, np.uint8), np.array(WALL, np.uint8))
    # walls seem to stand up: their south sides show, and their outline is lit
    face = ~road & np.roll(road, -cell, 0)
    face[-cell:] = False
    colours[face] = WALL_FACE
    line = max(1, scale // 2)
    outline = np.zeros_like(road)
    for axis in (0, 1):
        for shift in range(-line, line + 1):
            outline |= np.roll(road, shift, axis) & ~road
    colours[outline] = EDGE
    picture.paste(Image.fromarray(colours), (LEFT * scale, TOP * scale))
    return picture


def _draw_route(pen: Pen, route: Route, whole: bool) -> None:
    """The way walked, newer steps brighter: of the last TAIL steps, or with `whole` of all."""
    at = [to_pixel(x, z) for x, z, _ in route]
    last = len(at) - 1
    tail = last if whole else TAIL
    shades = [round(24 * max(0.0, 1 - (last - k) / tail)) for k in range(1, last + 1)]
    run = 0
    for k in range(1, last + 1):
        # steps of one shade are one line; a flash stands alone
        ends = k == last or shades[k] != shades[k - 1] or route[k + 1, 2] or route[k, 2]
        if route[k, 2]:
            run = k
        elif ends:
            pen.line(at[run : k + 1], blend(OLD_ROUTE, NEW_ROUTE, shades[k - 1] / 24), 3)
            run = k
    for k in range(ARROW_EVERY, last + 1, ARROW_EVERY) if whole else ():
        if at[k] != at[k - 1] and not route[k, 2]:
            pen.arrow(at[k - 1], at[k], blend(OLD_ROUTE, NEW_ROUTE, shades[k - 1] / 24))


def _draw_flashes(pen: Pen, route: Route) -> None:
    at = [to_pixel(x, z) for x, z, _ in route]
    for k in range(1, len(at)):
        if route[k, 2]:
            if at[k] != at[k - 1]:
                pen.dashes(at[k - 1], at[k], FLASH, 2)
            for x, y in (at[k - 1], at[k]):
                pen.spark(x, y, FLASH)


def _draw_episode(pen: Pen, map_: Map, now: Moment, route: Route) -> None:
    at = [to_pixel(x, z) for x, z in map_.points]
    over = now.terminated or now.truncated
    used = {0, now.start, now.end, *(i for i in range(POINTS) if now.planned[i])}
    for i in range(POINTS):
        if i not in used:
            pen.circle(*at[i], 7, (*PAPER, 110), None)
            pen.text(*at[i], str(i), 9, QUIET)
    _draw_route(pen, route, over)
    _draw_flashes(pen, route)
    pen.buff(*at[0], now.there[0])
    pen.disc(*at[now.start], str(now.start), START, PAPER)
    pen.disc(*at[now.end], str(now.end), END, PAPER)
    for i in (i for i in range(1, POINTS) if now.planned[i]):
        pen.treasure(*at[i], str(i), "taken" if not now.there[i] else "missed" if over else "there")
    hero = to_pixel(now.x, now.z)
    pen.label(*at[now.start], "START", START, hero)
    pen.label(*at[now.end], "END", END, hero)
    pen.hero(*hero, _heading(route), now.buff_left > 0)


def _heading(route: Route) -> tuple[float, float]:
    """The direction of the last step that moved, in picture coordinates; (0, 0) without one."""
    for a, b in zip(route[-2::-1], route[:0:-1], strict=True):
        if (a[:2] != b[:2]).any():
            return float(b[0] - a[0]), float(a[1] - b[1])
    return 0.0, 0.0


def _map_title(pen: Pen, map_: Map) -> None:
    pen.text(20, 32, map_.name, 22, TEXT, "lm")
    share = f"{map_.road.mean():.1%} road"
    pen.text(WIDTH - 20, 32, share, 16, QUIET, "rm")
    pen.buff(24, LEGEND + 24, True)
    width = pen.text(40, LEGEND + 24, "buff (point 0)", 12, QUIET, "lm")
    pen.disc(72 + width, LEGEND + 24, "1", START, PAPER)
    pen.text(88 + width, LEGEND + 24, "start, end or treasure", 12, QUIET, "lm")


def _title(pen: Pen, now: Moment) -> None:
    _column(pen, 20, "STEP", str(now.steps), f"/ {now.max_step}")
    _column(pen, 150, "SCORE", f"{now.score:.1f}")
    _column(pen, 280, "TREASURES", str(now.taken), f"/ {sum(now.planned)}")
    if now.ending:
        _column(pen, 430, "EPISODE", now.ending, colour=END if now.terminated else MISSED)
        return
    if now.flash_wait == 0:
        _column(pen, 430, "FLASH", "ready", colour=FLASH)
    else:
        _column(pen, 430, "FLASH", str(now.flash_wait), "steps", colour=QUIET)
        _bar(pen, 430, 1 - now.flash_wait / FLASH_COOLDOWN, FLASH)
    if now.buff_left > 0:
        _column(pen, 580, "BUFF", str(now.buff_left), "steps left", colour=BUFF)
        _bar(pen, 580, now.buff_left / BUFF_STEPS, BUFF)
    elif now.buff_wait > 0:
        _column(pen, 580, "BUFF", str(now.buff_wait), "steps away", colour=QUIET)
    else:
        _column(pen, 580, "BUFF", "on the map", colour=BUFF)


def _column(pen: Pen, x: float, name: str, value: str, unit: str = "", colour: Colour = TEXT) -> None:
    pen.text(x, 17, name, 10, QUIET, "lm")
    width = pen.text(x, 37, value, 21, colour, "lm")
    pen.text(x + width + 5, 39, unit, 12, QUIET, "lm")


def _bar(pen: Pen, x: float, share: float, colour: Colour) -> None:
    pen.line([(x, 54), (x + 110, 54)], WALL_FACE, 3)
    pen.line([(x, 54), (x + 110 * share, 54)], colour, 3)


def _legend(pen: Pen) -> None:
    y = LEGEND + 24
    x = 24.0

    def words(text: str) -> None:
        nonlocal x
        x += 19 + pen.text(x + 19, y, text, 12, QUIET, "lm") + 36

    pen.hero(x, y, (1, 0), False)
    words("hero")
    for kind in ("there", "taken", "missed"):
        pen.treasure(x, y, "", kind)
        words("treasure" if kind == "there" else kind)
    pen.buff(x, y, True)
    words("buff")
    x += 6
    for k in range(12):
        pen.line([(x - 18 + 2 * k, y), (x - 16 + 2 * k, y)], blend(OLD_ROUTE, NEW_ROUTE, k / 11), 3)
    words("way")
    x += 14
    pen.dashes((x - 26, y), (x + 4, y), FLASH, 2)
    pen.spark(x - 26, y, FLASH)
    pen.spark(x + 4, y, FLASH)
    words("flash")


def frames(recording: Recording, most: int = 150) -> list[NDArray[np.uint8]]:
    """Draw about `most` moments of an episode at most: evenly spread, with the first, the last, and each flash."""
    last = len(recording.moments) - 1
    every = max(1, math.ceil(last / most))
    chosen = {*range(0, last, every), last}
    chosen |= {k for k in range(1, last + 1) if recording.route[k, 2]}
    return [draw(recording.map, recording.moments[k], recording.route[: k + 1]) for k in sorted(chosen)]


def write_png(picture: NDArray[np.uint8], path: str | Path) -> None:
    """Write one picture, u8 [H, W, 3]. Raises OSError."""
    Image.fromarray(picture).save(path, format="PNG", optimize=True)


def write_gif(pictures: Sequence[NDArray[np.uint8]], path: str | Path) -> None:
    """Write pictures, u8 [H, W, 3] each, as an animation that shows the last one for 3 s. Raises OSError.

    All share one palette, without dithering, so that only what changes takes room.
    """
    middle = pictures[len(pictures) // 2]
    sample = Image.fromarray(np.concatenate([pictures[0], middle, pictures[-1]]))
    palette = sample.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    images = [Image.fromarray(one).quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    times_ms = [1000 // 15] * (len(images) - 1) + [3000]
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=times_ms, loop=0, optimize=False
    )
