"""The geometry and the colours of the realm's pictures, and the pen that draws its symbols.

Used by everything in this package. Coordinates are pixels at scale 1; north is up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from realm.env.map import EXTENT
from realm.env.physics import TRIGGER_RADIUS

WIDTH, HEIGHT = 720, 816
LEFT, TOP, SIDE = 8, 64, 704  # the map
LEGEND = TOP + SIDE  # below it
SMOOTH = 2  # drawn so many times larger, then reduced
TAIL = 60  # the newest steps of the route are bright
ARROW_EVERY = 18  # steps between the arrows on the whole way
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


def to_pixel(x: float, z: float, scale: int = 1) -> tuple[float, float]:
    """Where world coordinates are in the picture: (column, row)."""
    return scale * (LEFT + SIDE * x / EXTENT), scale * (TOP + SIDE * (1 - z / EXTENT))


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


def blend(a: Colour, b: Colour, share: float) -> Colour:
    return tuple(round(p + (q - p) * share) for p, q in zip(a, b, strict=True))
