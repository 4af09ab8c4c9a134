"""Pictures of the realm: the map, the points, the hero and the way he came, as pixels or as text.

For `env.render()`, `realm map`, `realm record` and whoever has a `State`. Pure functions: `moment` takes what is to be
seen out of a state, `draw` and `ansi` turn it into a picture, `record` plays an episode and `frames` draws it,
`write_png` and `write_gif` write files. North is up: row 0 of the map's arrays is the picture's lowest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from realm.env.map import CELL, EXTENT, POINTS, SIZE, Map
from realm.env.physics import BUFF_STEPS, FLASH_COOLDOWN, TRIGGER_RADIUS, State

if TYPE_CHECKING:
    from realm.env.realm_env import RealmEnv

# ---- the picture's geometry, in pixels at scale 1 ----

WIDTH, HEIGHT = 720, 816
LEFT, TOP, SIDE = 8, 64, 704  # the map
LEGEND = TOP + SIDE  # below it
SMOOTH = 2  # drawn so many times larger, then reduced
TAIL = 60  # the newest steps of the route are bright
ARROW_EVERY = 18  # steps between the arrows on the whole way

# ---- the colours ----

PAPER = (13, 18, 28)
WALL, WALL_FACE, EDGE = (25, 33, 49), (42, 54, 78), (104, 124, 160)
ROAD = (66, 82, 114)
TEXT, QUIET = (238, 242, 250), (137, 152, 180)
OLD_ROUTE, NEW_ROUTE = (84, 140, 236), (74, 240, 208)
FLASH = (214, 143, 255)
GOLD, GOLD_DIM, GOLD_DARK = (255, 201, 60), (206, 172, 92), (92, 62, 4)
MISSED, MISSED_DARK = (255, 92, 92), (96, 26, 40)
BUFF, START, END = (255, 138, 61), (236, 240, 248), (72, 214, 120)
HERO, HERO_CORE = (255, 255, 255), (20, 150, 130)

Colour = tuple[int, ...]
Route = NDArray[np.float64]  # [n, 3]: x, z, 1 if a flash led there


class Moment(NamedTuple):
    """What is to be seen of one environment; see `State` for the meaning."""

    x: float
    z: float
    start: int
    end: int
    planned: tuple[bool, ...]  # [16]
    there: tuple[bool, ...]  # [16]
    steps: int
    max_step: int
    score: float
    buff_left: int
    buff_wait: int
    flash_wait: int
    terminated: bool
    truncated: bool


def moment(state: State, e: int = 0) -> Moment:
    """What is to be seen of environment e now, as plain values."""
    values: dict[str, Any] = {name: getattr(state, name)[e].tolist() for name in Moment._fields}
    for name in ("planned", "there"):
        values[name] = tuple(map(bool, values[name]))
    return Moment(**values)


def to_pixel(x: float, z: float, scale: int = 1) -> tuple[float, float]:
    """Where world coordinates are in the picture: (column, row)."""
    return scale * (LEFT + SIDE * x / EXTENT), scale * (TOP + SIDE * (1 - z / EXTENT))


# ---- drawing ----


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


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


class Pen:
    """Draws in pixels of scale 1 on a picture `scale` times as large; colours may have an alpha."""

    def __init__(self, picture: Image.Image, scale: int) -> None:
        self.on, self.scale = ImageDraw.Draw(picture, "RGBA"), scale

    def text(self, x: float, y: float, text: str, size: float, colour: Colour, anchor: str = "mm") -> float:
        """Write; returns the width."""
        font, at = _font(round(size * self.scale)), (x * self.scale, y * self.scale)
        self.on.text(at, text, font=font, fill=colour, anchor=anchor, stroke_width=self.scale * size / 50)
        return float(self.on.textlength(text, font=font)) / self.scale

    def circle(self, x: float, y: float, r: float, fill: Colour | None, edge: Colour | None, width: float = 1) -> None:
        s = self.scale
        self.on.circle((x * s, y * s), r * s, fill=fill, outline=edge, width=round(width * s))

    def polygon(self, points: Iterable[tuple[float, float]], fill: Colour | None, edge: Colour | None = None) -> None:
        corners = [(x * self.scale, y * self.scale) for x, y in points]
        if fill is not None:
            self.on.polygon(corners, fill=fill)
        if edge is not None:
            self.line([*points, *list(points)[:2]], edge, 1.4)

    def line(self, points: Iterable[tuple[float, float]], colour: Colour, width: float) -> None:
        corners = [(x * self.scale, y * self.scale) for x, y in points]
        self.on.line(corners, fill=colour, width=round(width * self.scale), joint="curve")

    def dashes(self, a: tuple[float, float], b: tuple[float, float], colour: Colour, width: float) -> None:
        """A dashed line; it begins and ends with a dash."""
        length = math.dist(a, b)
        count = max(1, round(length / 9))
        for k in range(count):
            low, high = k / (count - 0.4), (k + 0.6) / (count - 0.4)
            ends = [tuple(p + (q - p) * f for p, q in zip(a, b, strict=True)) for f in (low, high)]
            self.line([(x, y) for x, y in ends], colour, width)

    def spark(self, x: float, y: float, colour: Colour) -> None:
        """A star of eight rays where a flash began or ended."""
        corners = []
        for k in range(16):
            r = 2.6 if k % 2 else 8.0 if k % 4 == 0 else 5.0
            corners.append((x + r * math.sin(k * math.pi / 8), y - r * math.cos(k * math.pi / 8)))
        self.polygon(corners, colour)
        self.circle(x, y, 1.8, HERO, None)

    def arrow(self, a: tuple[float, float], b: tuple[float, float], colour: Colour) -> None:
        """The head of an arrow from a to b, halfway."""
        (x, y), length = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), math.dist(a, b)
        dx, dy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        back = [(x - 4 * dx + side * dy, y - 4 * dy - side * dx) for side in (-5, 5)]
        self.polygon([(x + 5 * dx, y + 5 * dy), *back], colour, PAPER)

    def disc(self, x: float, y: float, text: str, fill: Colour, ink: Colour) -> None:
        """A numbered point."""
        self.circle(x, y, 9, fill, PAPER, 1.2)
        self.text(x, y, text, 11, ink)

    def treasure(self, x: float, y: float, text: str, kind: str) -> None:
        """A numbered gem. kind: there, taken or missed."""
        gem = [(x, y - 12), (x + 12, y), (x, y + 12), (x - 12, y)]
        if kind == "there":
            self.circle(x, y, 17, (*GOLD, 46), None)
            self.polygon(gem, GOLD, PAPER)
            self.polygon([(x, y - 9.5), (x + 9.5, y), (x - 9.5, y)], (255, 224, 130))
            self.text(x, y, text, 11, GOLD_DARK)
        elif kind == "taken":
            self.polygon(gem, (*PAPER, 190), GOLD_DIM)
            self.text(x, y, text, 10.5, GOLD_DIM)
        else:
            self.circle(x, y, 17, (*MISSED, 46), None)
            self.polygon(gem, MISSED_DARK, MISSED)
            self.text(x, y, text, 11, (255, 190, 190))

    def buff(self, x: float, y: float, there: bool) -> None:
        """A bolt in a circle, pale while it is away."""
        self.circle(x, y, 10, BUFF if there else (*PAPER, 190), PAPER if there else (*BUFF, 170), 1.3)
        bolt = [(1.5, -7.5), (-5, 1.5), (-0.8, 1.5), (-1.5, 7.5), (5, -1.8), (0.8, -1.8)]
        self.polygon([(x + dx, y + dy) for dx, dy in bolt], HERO if there else (*BUFF, 190))

    def label(self, x: float, y: float, text: str, colour: Colour, hero: tuple[float, float]) -> None:
        """A word above a point, or below if the hero stands there, on a dark plate that stays inside the map."""
        half = 0.5 * float(self.on.textlength(text, font=_font(10 * self.scale))) / self.scale + 4
        x = min(max(x, LEFT + half), LEFT + SIDE - half)
        hidden = abs(hero[0] - x) < half + 12 and 4 < y - hero[1] < 36
        y = y + 19 if y < TOP + 34 or (hidden and y < LEGEND - 34) else y - 19
        s = self.scale
        self.on.rounded_rectangle(((x - half) * s, (y - 7) * s, (x + half) * s, (y + 7) * s), 4 * s, (*PAPER, 200))
        self.text(x, y, text, 10, colour)

    def hero(self, x: float, y: float, heading: tuple[float, float], buffed: bool) -> None:
        """The hero with the reach of his hands, looking along `heading` (picture coordinates, any length)."""
        self.circle(x, y, SIDE * TRIGGER_RADIUS / EXTENT, (*HERO, 30), (*HERO, 110), 1)
        if buffed:
            self.circle(x, y, 9.5, (*BUFF, 110), BUFF, 1.5)
        length = math.hypot(*heading)
        if length > 0:
            dx, dy = heading[0] / length, heading[1] / length
            wings = [(x + dx * 3 - dy * 7, y + dy * 3 + dx * 7), (x + dx * 14, y + dy * 14)]
            wings.append((x + dx * 3 + dy * 7, y + dy * 3 - dx * 7))
            self.polygon(wings, HERO, PAPER)
        self.circle(x, y, 7.2, HERO, PAPER, 1.2)
        self.circle(x, y, 4, HERO_CORE, None)


def _blend(a: Colour, b: Colour, share: float) -> Colour:
    return tuple(round(p + (q - p) * share) for p, q in zip(a, b, strict=True))


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
            pen.line(at[run : k + 1], _blend(OLD_ROUTE, NEW_ROUTE, shades[k - 1] / 24), 3)
            run = k
    for k in range(ARROW_EVERY, last + 1, ARROW_EVERY) if whole else ():
        if at[k] != at[k - 1] and not route[k, 2]:
            pen.arrow(at[k - 1], at[k], _blend(OLD_ROUTE, NEW_ROUTE, shades[k - 1] / 24))


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
    total, taken = sum(now.planned), sum(p and not t for p, t in zip(now.planned, now.there, strict=True))
    _column(pen, 20, "STEP", str(now.steps), f"/ {now.max_step}")
    _column(pen, 150, "SCORE", f"{now.score:.1f}")
    _column(pen, 280, "TREASURES", str(taken), f"/ {total}")
    if now.terminated or now.truncated:
        text, colour = ("reached the end", END) if now.terminated else ("out of time", MISSED)
        _column(pen, 430, "EPISODE", text, colour=colour)
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
        pen.line([(x - 18 + 2 * k, y), (x - 16 + 2 * k, y)], _blend(OLD_ROUTE, NEW_ROUTE, k / 11), 3)
    words("way")
    x += 14
    pen.dashes((x - 26, y), (x + 4, y), FLASH, 2)
    pen.spark(x - 26, y, FLASH)
    pen.spark(x + 4, y, FLASH)
    words("flash")


# ---- text ----

COLUMNS, LINES = SIZE // 2, SIZE // 4


def ansi(map_: Map, now: Moment | None = None) -> str:
    """The map as 32 lines of 64 half blocks, walls filled, below a line of numbers if there is an episode.

    Points are their numbers: all of them without an episode, else the treasures that are there, with S the start, E the
    end, B the buff if there, @ the hero. Plain characters without colours, so that it can be read from a log file.
    """
    wall = map_.road[::-1].reshape(COLUMNS, 2, COLUMNS, 2).sum((1, 3)) < 2
    rows = [
        ["█" if upper and lower else "▀" if upper else "▄" if lower else " " for upper, lower in zip(a, b, strict=True)]
        for a, b in zip(wall[::2], wall[1::2], strict=True)
    ]

    def put(x: float, z: float, text: str) -> None:
        row, column = LINES - 1 - int(z / CELL) // 4, int(x / CELL) // 2
        column = min(column, COLUMNS - len(text))
        rows[row][column : column + len(text)] = text

    head = []
    if now is None:
        for i, (x, z) in enumerate(map_.points):
            put(x, z, str(i))
    else:
        marks = {i: str(i) for i in range(1, POINTS) if now.planned[i] and now.there[i]}
        marks |= {0: "B"} if now.there[0] else {}
        for i, mark in (marks | {now.start: "S", now.end: "E"}).items():
            put(map_.points[i, 0], map_.points[i, 1], mark)
        put(now.x, now.z, "@")
        flash = "ready" if now.flash_wait == 0 else f"in {now.flash_wait}"
        taken = sum(now.planned) - sum(p and t for p, t in zip(now.planned, now.there, strict=True))
        over = ", reached the end" if now.terminated else ", out of time" if now.truncated else ""
        head = [
            f"step {now.steps}/{now.max_step}, score {now.score:.1f}, treasures {taken}/{sum(now.planned)}, "
            f"flash {flash}, buff {now.buff_left}{over}"
        ]
    return "\n".join([*head, *("".join(row) for row in rows)]) + "\n"


# ---- whole episodes ----


class Recording(NamedTuple):
    """An episode: what was to be seen at each of its T + 1 moments, and the way."""

    map: Map
    moments: list[Moment]
    route: Route  # [T + 1, 3]
    actions: list[int]  # [T]


def record(
    env: RealmEnv, actions: Callable[[Any], Any] | Iterable[Any], reset: dict[str, Any] | None = None
) -> Recording:
    """Play one episode. actions: a function from observation to action, or the actions themselves (playing stops where
    they end). reset: keywords of `env.reset`."""
    obs, _ = env.reset(**reset or {})
    state = env.state
    source = None if callable(actions) else iter(actions)
    moments, way, played = [moment(state)], [(float(state.x[0]), float(state.z[0]), 0.0)], []
    while not (moments[-1].terminated or moments[-1].truncated):
        if source is None:
            action = actions(obs)  # type: ignore[operator]
        else:
            action = next(source, None)
            if action is None:
                break
        obs = env.step(action)[0]
        moments.append(moment(state))
        way.append((moments[-1].x, moments[-1].z, float(state.used_flash[0])))
        played.append(int(action))
    return Recording(env.map, moments, np.array(way), played)


def frames(recording: Recording, most: int = 150) -> list[NDArray[np.uint8]]:
    """Draw about `most` moments of an episode at most: evenly spread, with the first, the last, and each flash."""
    last = len(recording.moments) - 1
    every = max(1, math.ceil(last / most))
    chosen = {*range(0, last, every), last}
    chosen |= {k for k in range(1, last + 1) if recording.route[k, 2]}
    return [draw(recording.map, recording.moments[k], recording.route[: k + 1]) for k in sorted(chosen)]


# ---- files ----


def write_png(picture: NDArray[np.uint8], path: str | Path) -> None:
    """Write one picture, u8 [H, W, 3]. Raises OSError."""
    Image.fromarray(picture).save(path, format="PNG", optimize=True)


def write_gif(pictures: Sequence[NDArray[np.uint8]], path: str | Path, fps: float = 15, hold_s: float = 3) -> None:
    """Write pictures, u8 [H, W, 3] each, as an animation that shows the last one for `hold_s`. Raises OSError.

    All share one palette, without dithering, so that only what changes takes room.
    """
    middle = pictures[len(pictures) // 2]
    sample = Image.fromarray(np.concatenate([pictures[0], middle, pictures[-1]]))
    palette = sample.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    images = [Image.fromarray(one).quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    times_ms = [round(1000 / fps)] * (len(images) - 1) + [round(1000 * hold_s)]
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=times_ms, loop=0, optimize=False
    )
