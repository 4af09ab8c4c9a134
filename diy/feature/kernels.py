"""numba kernels from the environments' arrays to the small observation and to rewards; called by `definition.py`.

Each loops over E environments and writes into an array that the caller made. `s` is `realm.env.physics.State`, `w` its
`World`; tables of ways are those of `ways.Ways`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diy.feature import constants as c
from diy.feature.ways import stop, without
from realm.env.map import CELL, EXTENT, POINTS
from realm.env.physics import (
    ACTIONS,
    BUFF_RETURN,
    BUFF_STEPS,
    DIRECTIONS,
    FLASH_COOLDOWN,
    FLASH_MOVE,
    VIEW,
    State,
    World,
)
from realm.jit import jit, jit_helper

POSITION_SIZE = 2 * c.BINS + 2
SMALL_SIZE = POSITION_SIZE + 2 + 3 * POINTS + ACTIONS * POINTS + 2 * c.CROP_CELLS + DIRECTIONS + 7
TOURS_SIZE = POINTS + ACTIONS + 1

EXPONENT = np.uint32(0x7F800000)  # of a float32; all ones in NaN and infinity

STEP_X = np.array([1, 1, 0, -1, -1, -1, 0, 1])
STEP_Z = np.array([0, 1, 1, 1, 0, -1, -1, -1])


# Kernels take arrays out of the tuples before their loops and give helpers only what they need, or numba compiles for
# seconds.


@jit_helper
def _target(x: float, z: float, cx: int, cz: int, action: int) -> tuple[int, int]:
    """The cell (x, z) where an action of a hero at (x, z) in cell (cx, cz) leads: a walk to the next one, a flash to
    where it lands."""
    d = action % DIRECTIONS
    if action < DIRECTIONS:
        return cx + STEP_X[d], cz + STEP_Z[d]
    return int(np.floor((x + FLASH_MOVE[d, 0]) / CELL)), int(np.floor((z + FLASH_MOVE[d, 1]) / CELL))


@jit
def write_small(
    s: State,
    w: World,
    table: NDArray[np.int64],
    walk: NDArray[np.float32],
    position: bool,
    out: NDArray[np.float32],
) -> None:
    """The small observation. table, walk: `Ways.row` and `.walk`; out: f32 [E, SMALL_SIZE or more], all within -1..1:

    position, if asked for: one-hot by bins of 2 cells, x then z (128), and exactly (2); position within the cell (2);
    per point (16) whether it is there, whether it is the end, and how far it is to walk; per action (16) and point
    (16), if that is there or the end, how much nearer it gets; a 7 x 7 crop of road (49) and of visits (49) around the
    hero; per direction (8) how far the road goes; flash ready, flash wait, buff left, buff wait, time gone, the last
    move (2).
    """
    xs, zs, from_x, from_z, cell_x, cell_z = s.x, s.z, s.from_x, s.from_z, s.cell_x, s.cell_z
    end, there, memory, used_flash, flash_wait = s.end, s.there, s.memory, s.used_flash, s.flash_wait
    buff_left, buff_wait, steps, max_step, obstacle = s.buff_left, s.buff_wait, s.steps, s.max_step, w.obstacle
    for e in range(len(out)):
        row = out[e]
        row[:] = 0.0
        x, z, cx, cz = xs[e], zs[e], cell_x[e], cell_z[e]
        i = 0
        if position:
            row[cx // c.BIN_CELLS] = 1.0
            row[c.BINS + cz // c.BIN_CELLS] = 1.0
            row[2 * c.BINS] = x / EXTENT
            row[2 * c.BINS + 1] = z / EXTENT
            i = POSITION_SIZE
        row[i] = x / CELL - cx
        row[i + 1] = z / CELL - cz
        i += 2
        ways = walk[table[end[e]]]
        here = ways[cz, cx]
        for p in range(POINTS):
            if there[e, p]:
                row[i + p] = 1.0
            if p == end[e]:
                row[i + POINTS + p] = 1.0
            row[i + 2 * POINTS + p] = min(1.0, here[p] / c.FAR_CELLS)
        i += 3 * POINTS
        for a in range(ACTIONS):
            to_x, to_z = _target(x, z, cx, cz, a)
            scale = 1.0 / (c.NEIGHBOUR_CELLS if a < DIRECTIONS else c.FLASH_CELLS)
            if obstacle[to_z + VIEW, to_x + VIEW]:
                from_there = ways[to_z, to_x]
                for p in range(POINTS):
                    if there[e, p] or p == end[e]:
                        row[i + p] = max(-1.0, min(1.0, (here[p] - from_there[p]) * scale))
            elif a < DIRECTIONS:
                row[i : i + POINTS] = -1.0
            i += POINTS
        for dz in range(-c.CROP, c.CROP + 1):
            for dx in range(-c.CROP, c.CROP + 1):
                row[i] = obstacle[cz + dz + VIEW, cx + dx + VIEW] / 255.0
                row[i + c.CROP_CELLS] = memory[e, cz + dz + VIEW, cx + dx + VIEW] / 255.0
                i += 1
        i += c.CROP_CELLS
        for d in range(DIRECTIONS):
            length = 0
            while (
                length < c.RAY and obstacle[cz + VIEW + (length + 1) * STEP_Z[d], cx + VIEW + (length + 1) * STEP_X[d]]
            ):
                length += 1
            row[i + d] = length / c.RAY
        i += DIRECTIONS
        row[i] = 1.0 if flash_wait[e] == 0 else 0.0
        row[i + 1] = flash_wait[e] / FLASH_COOLDOWN
        row[i + 2] = buff_left[e] / BUFF_STEPS
        row[i + 3] = buff_wait[e] / BUFF_RETURN
        row[i + 4] = steps[e] / max_step[e]
        if not used_flash[e]:
            row[i + 5] = (x - from_x[e]) / c.LAST_MOVE
            row[i + 6] = (z - from_z[e]) / c.LAST_MOVE


@jit
def to_bfloat16(values: NDArray[np.float32], out: NDArray[np.int16]) -> None:
    """The upper half of each float32's bits, rounded to nearest, ties to even. values: f32 [E, F]; out: i16 [E, F], for
    torch to view as bfloat16. Raises ValueError unless all are finite."""
    bits, finite = values.view(np.uint32), True
    for e in range(len(out)):
        for i in range(out.shape[1]):
            b = bits[e, i]
            finite &= (b & EXPONENT) != EXPONENT
            out[e, i] = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    if not finite:
        raise ValueError("a feature is NaN or infinite")


@jit
def write_useful(s: State, w: World, out: NDArray[np.bool_]) -> None:
    """Which actions may be of use: all walks, and a flash that is ready where it lands on road (elsewhere it would be
    used up for nothing). out: bool [E, ACTIONS]."""
    xs, zs, cell_x, cell_z, flash_wait, obstacle = s.x, s.z, s.cell_x, s.cell_z, s.flash_wait, w.obstacle
    for e in range(len(out)):
        out[e, :DIRECTIONS] = True
        for a in range(DIRECTIONS, ACTIONS):
            x, z = _target(xs[e], zs[e], cell_x[e], cell_z[e], a)
            out[e, a] = flash_wait[e] == 0 and obstacle[z + VIEW, x + VIEW] > 0


# ---- tours: how `Ways` has them is told in ways.py ----


@jit_helper
def _treasures_left(there: NDArray[np.uint8], e: int, end: int) -> int:
    """As a set of stops."""
    left = 0
    for p in range(1, POINTS):
        if there[e, p]:
            left |= 1 << stop(p, end)
    return left


@jit
def write_tours(
    s: State,
    w: World,
    row: NDArray[np.int64],
    walk: NDArray[np.float32],
    tour: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """What the shortest tour on foot over all treasures left to the end says. Arrays as in `Ways`; into the last
    TOURS_SIZE columns of out, f32 [E, TOURS_SIZE or more], all within -1..1:

    per point (16) how much longer the tour gets if that comes next, 1 if it is neither a treasure left nor, after the
    last one, the end; per action (16) how much shorter it gets where that leads; how long it is (1).
    """
    xs, zs, cell_x, cell_z, ends, there, obstacle = s.x, s.z, s.cell_x, s.cell_z, s.end, s.there, w.obstacle
    after = np.empty(POINTS, np.float32)  # the tour from a point on that comes next
    for e in range(len(out)):
        x, z, cx, cz, end = xs[e], zs[e], cell_x[e], cell_z[e], ends[e]
        at, left = row[end], _treasures_left(there, e, end)
        after[:] = np.inf
        if left == 0:
            after[end] = 0.0
        for p in range(1, POINTS):
            if there[e, p]:
                k = stop(p, end)
                after[p] = tour[at, k, without(left, k)]
        ways = walk[at, cz, cx] + after
        here = ways.min()
        i = out.shape[1] - TOURS_SIZE
        for p in range(POINTS):
            out[e, i + p] = min(1.0, (ways[p] - here) / c.DETOUR_CELLS)
        i += POINTS
        for a in range(ACTIONS):
            to_x, to_z = _target(x, z, cx, cz, a)
            scale = 1.0 / (c.NEIGHBOUR_CELLS if a < DIRECTIONS else c.FLASH_CELLS)
            if obstacle[to_z + VIEW, to_x + VIEW]:
                from_there = (walk[at, to_z, to_x] + after).min()
                out[e, i + a] = max(-1.0, min(1.0, (here - from_there) * scale))
            else:
                out[e, i + a] = -1.0 if a < DIRECTIONS else 0.0
        out[e, i + ACTIONS] = min(1.0, here / c.LONG_TOUR_CELLS)


@jit
def tour_to_go(
    s: State,
    row: NDArray[np.int64],
    walk: NDArray[np.float32],
    with_flash: NDArray[np.float32],
    tour: NDArray[np.float32],
    flash_tour: NDArray[np.float32],
    share: float,
    out: NDArray[np.float32],
) -> None:
    """How many cells each hero still has to go over all treasures left to the end, in the best order: on foot, and
    where a flash is ready, with `share` of the weight on the same with one flash. Arrays as in `Ways`; out: f32 [E]."""
    cell_x, cell_z, ends, there, flash_wait = s.cell_x, s.cell_z, s.end, s.there, s.flash_wait
    for e in range(len(out)):
        end, cx, cz = ends[e], cell_x[e], cell_z[e]
        at, left, ready = row[end], _treasures_left(there, e, end), flash_wait[e] == 0
        here, flashed = walk[at, cz, cx], with_flash[at, cz, cx]
        on_foot, best = here[end], flashed[end]
        if left:
            on_foot = best = np.float32(np.inf)
        for p in range(1, POINTS):
            if there[e, p]:
                k = stop(p, end)
                rest = without(left, k)
                on_foot = min(on_foot, here[p] + tour[at, k, rest])
                if ready:
                    best = min(best, here[p] + flash_tour[at, k, rest], flashed[p] + tour[at, k, rest])
        out[e] = on_foot + share * (best - on_foot) if ready else on_foot


@jit
def nearest_to_go(s: State, w: World, out: NDArray[np.float32]) -> None:
    """How many cells it is from each hero to the nearest treasure left, or to the end when none is. out: f32 [E]."""
    cell_x, cell_z, end, there, distance = s.cell_x, s.cell_z, s.end, s.there, w.distance
    for e in range(len(out)):
        cx, cz = cell_x[e], cell_z[e]
        least = np.int32(2**30)
        for p in range(1, POINTS):
            if there[e, p]:
                least = min(least, distance[p, cz, cx])
        out[e] = least if there[e, 1:].any() else distance[end[e], cz, cx]
