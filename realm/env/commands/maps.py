"""`realm map show|generate|check`: facts about a map, its picture, and whether it can be played."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from realm.commands.parser import check_file, writing
from realm.env import draw, options
from realm.env import map as maps
from realm.env.map import Map
from realm.errors import ConfigError


def show_map(map_: str, out: Path | None) -> None:
    """Print facts about a map, and draw it: to `out` (.png), else as text."""
    check_file("--out", out, (".png",))
    loaded = maps.resolve(map_)
    if out is None:
        print("\n".join([*facts(loaded), "", draw.ansi(loaded)]), end="")
        return
    with writing(out):
        draw.write_png(draw.draw(loaded, scale=2), out)
    print("\n".join([*facts(loaded), f"drawn in {out}"]))


def generate_map(seed: int, folder: Path) -> None:
    """Write a generated map's two files and its picture into `folder`."""
    if seed < 0:
        raise ConfigError(f"--seed is {seed}, it must be 0 or more")
    made, files = maps.generate(seed), (maps.FLAGS_FILE, maps.POINTS_FILE, "map.png")
    for name in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is there already; choose another folder")
    with writing(folder):
        maps.save(made, folder)
        draw.write_png(draw.draw(made, scale=2), folder / "map.png")
    print("\n".join([*facts(made), f"written to {folder}: {', '.join(files)}"]))


def check_map(map_: str) -> None:
    """Say that a map can be played; if not, a MapError gives the reason."""
    loaded = maps.resolve(map_)
    print(f"{loaded.name}: good, {loaded.road.mean():.1%} road, all {maps.POINTS} points reach each other")


def facts(map_: Map) -> list[str]:
    """What is worth knowing about a map, line by line."""
    width = corridor_widths(map_.road)[map_.road == 1]
    apart = map_.distance[:, map_.cells[:, 1], map_.cells[:, 0]]  # [16, 16]
    a, b = divmod(int(apart.argmax()), maps.POINTS)
    start, end = options.DEFAULTS["start"], options.DEFAULTS["end"]
    low, middle, high = np.percentile(width, (5, 50, 95)).round().astype(int)
    lines = [
        f"map        {map_.name}",
        f"road       {map_.road.mean():.1%} of the cells ({map_.road.sum():,} of {map_.road.size:,})",
        f"corridors  {middle} cells wide (median), nine tenths of the road from {low} to {high}",
        f"start-end  {apart[start, end]} cells from point {start} to point {end}, the defaults",
        f"farthest   {apart[a, b]} cells, between points {min(a, b)} and {max(a, b)}",
    ]
    cells = [f"{i} ({x}, {z})" for i, (x, z) in enumerate(map_.cells)]
    for first in range(0, maps.POINTS, 8):
        head = "points     " if first == 0 else " " * 11
        lines.append(head + "  ".join(f"{one:<12}" for one in cells[first : first + 8]).rstrip())
    return lines


def corridor_widths(road: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How wide the road is at each cell: the side of the largest square of road that the cell lies in, 0 off the road.
    road: u8 [Z, X]; i64 [Z, X]."""
    width = road.astype(np.int64)
    for side in range(2, min(road.shape) + 1):
        squares = sliding_window_view(road, (side, side)).all((2, 3))  # by their first corners
        if not squares.any():
            break
        for z, x in np.argwhere(squares):
            width[z : z + side, x : x + side] = side
    return width
