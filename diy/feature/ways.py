"""How far it is to walk: from every cell to every point, and over whole sets of treasures. Made once per map.

`definition.py` makes the tables, `kernels.py` reads them: distances as features, the tours for the shaping of the
reward and, if asked for, as features. Lengths are cells, on foot, corners not cut. All a player can work out from the
map; `realm.env.oracle`, which knows the rules to the frame, is not used.

A tour goes over stops to an end. The stops of an end are the points 1 to 15 without it, and a set of them is a number:
bit k stands for stop k. Where the tours from stop k are looked up, k is in no set, so its bit is left out of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env.map import CELL, POINTS, SIZE, Map
from realm.env.physics import FLASH_MOVE, FRAMES_PER_STEP, TRIGGER_RADIUS, WALK_FRAME
from realm.jit import jit, jit_helper

FAR = np.float32(1e4)  # where no way leads
STOPS = POINTS - 2
SETS = 2 ** (STOPS - 1)  # of all stops but one
OPEN_STEP_CELLS = FRAMES_PER_STEP * WALK_FRAME / CELL  # length of one step in the open


class Ways(NamedTuple):
    """One map's tables, for some ends. `with_flash`: at most one flash on the way, which counts as a step.

    Who comes near the end ends the episode, so ways to other points do not lead over the end's trigger disc.
    """

    row: NDArray[np.int64]  # [16] where in the other tables an end is, -1 if it is not there
    walk: NDArray[np.float32]  # [ends, 128 (z), 128 (x), 16] from a cell to the trigger disc of a point
    with_flash: NDArray[np.float32]  # the same
    tour: NDArray[np.float32]  # [ends, STOPS, SETS] from a stop over all of a set to the end, in the best order
    flash_tour: NDArray[np.float32]  # the same


def make_ways(map_: Map, ends: Iterable[int]) -> Ways:
    """The tables of a map for episodes with these ends, 3 MB for each."""
    known = sorted(set(ends))
    row = np.full(POINTS, -1, np.int64)
    row[known] = np.arange(len(known))
    fields = np.empty((2, len(known), SIZE, SIZE, POINTS), np.float32)
    tours = np.empty((2, len(known), STOPS, SETS), np.float32)
    at_points = (slice(None), map_.cells[:, 1], map_.cells[:, 0])
    everywhere = _lengths(map_, map_.road.copy())  # numba compiles for a read-only array apart
    for end in known:
        lengths = _lengths(map_, map_.road & ~_disc(map_, end))
        # the end's own disc is entered; and where it bars the only way, one leads over it all the same
        barred = (np.delete(lengths[0][at_points], end, axis=1) >= FAR).any(axis=1)
        barred[end] = True
        for part, free in zip(lengths, everywhere, strict=True):
            part[barred] = free[barred]
        _tours(lengths[0][at_points], lengths[1][at_points], end, tours[0, row[end]], tours[1, row[end]])
        fields[:, row[end]] = np.moveaxis(lengths, 1, -1)
    return Ways(row, *fields, *tours)


def _disc(map_: Map, point: int) -> NDArray[np.uint8]:
    """1 for the cells whose middle lies in the trigger disc of a point, and for its own; u8 [128, 128]."""
    middle = (np.arange(SIZE) + 0.5) * CELL
    x, z = map_.points[point]
    disc: NDArray[np.uint8] = ((middle[:, None] - z) ** 2 + (middle - x) ** 2 <= TRIGGER_RADIUS**2).astype(np.uint8)
    disc[map_.cells[point, 1], map_.cells[point, 0]] = 1
    return disc


def _lengths(map_: Map, through: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Ways from every cell to every point that lead over the cells `through` (u8 [128, 128]), walking and with a flash;
    f32 [2, 16, 128 (z), 128 (x)]."""
    walk = np.full((POINTS, SIZE, SIZE), FAR, np.float32)
    for p in range(POINTS):
        walk[p][(map_.road & _disc(map_, p)) == 1] = 0.0
    _spread(map_.road, through, walk)
    with_flash = walk.copy()
    middle = (np.arange(SIZE) + 0.5) * CELL
    road_z, road_x = np.nonzero(map_.road)
    for dx, dz in FLASH_MOVE:  # as from the middle of each cell
        x, z = (np.floor((middle[at] + d) / CELL).astype(np.int64) for at, d in ((road_x, dx), (road_z, dz)))
        ok = (x >= 0) & (z >= 0) & (x < SIZE) & (z < SIZE)
        ok[ok] = through[z[ok], x[ok]] == 1
        here, there = (slice(None), road_z[ok], road_x[ok]), (slice(None), z[ok], x[ok])
        with_flash[here] = np.minimum(with_flash[here], walk[there] + OPEN_STEP_CELLS)
    _spread(map_.road, through, with_flash)
    return np.stack([walk, with_flash])


@jit
def _spread(road: NDArray[np.uint8], through: NDArray[np.uint8], length: NDArray[np.float32]) -> None:
    """Lower each of `length` (f32 [P, 128, 128]) to the least of it and walking from anywhere over cells `through` (u8
    [128, 128]) to a cell, by sweeps to and fro until nothing changes. A diagonal step needs both cells next to it to be
    road."""
    for p in range(len(length)):
        field = length[p]
        changed, forth = True, False
        while changed:
            changed, forth = False, not forth
            for n in range(SIZE * SIZE):
                z, x = divmod(n if forth else SIZE * SIZE - 1 - n, SIZE)
                if road[z, x] == 0:
                    continue
                best = field[z, x]
                for tz in range(max(z - 1, 0), min(z + 2, SIZE)):
                    for tx in range(max(x - 1, 0), min(x + 2, SIZE)):
                        if road[z, tx] and road[tz, x] and through[tz, tx]:
                            far = np.float32(2.0**0.5 if tx != x and tz != z else 1.0)
                            best = min(best, field[tz, tx] + far)
                if best < field[z, x]:
                    field[z, x] = best
                    changed = True


@jit_helper
def stop(point: int, end: int) -> int:
    """The number of a point among the stops."""
    return point - 1 - (point > end)


@jit_helper
def without(stops: int, k: int) -> int:
    """A set of stops with the bit of stop k left out: those above it move down by one."""
    below = (1 << k) - 1
    return stops & below | stops >> 1 & ~below


@jit
def _tours(
    walk: NDArray[np.float32],
    with_flash: NDArray[np.float32],
    end: int,
    tour: NDArray[np.float32],
    flash_tour: NDArray[np.float32],
) -> None:
    """Write the tours to one end, each from shorter ones (Held and Karp, 1962). walk, with_flash: f32 [16 (to), 16
    (from)]; tour, flash_tour: f32 [STOPS, SETS]."""
    for left in range(2**STOPS):
        for a in range(1, POINTS):
            k = stop(a, end)
            if a == end or left >> k & 1:
                continue
            best, best_flash = FAR, FAR
            if left == 0:
                best, best_flash = walk[end, a], with_flash[end, a]
            for p in range(1, POINTS):
                j = stop(p, end)
                if p != end and left >> j & 1:
                    rest = without(left, j)
                    best = min(best, walk[p, a] + tour[j, rest])
                    best_flash = min(best_flash, walk[p, a] + flash_tour[j, rest], with_flash[p, a] + tour[j, rest])
            tour[k, without(left, k)], flash_tour[k, without(left, k)] = best, best_flash
