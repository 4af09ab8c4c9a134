"""numba kernels from the environments' arrays to the small observation and to rewards; called by `definition.py`.

Each loops over E environments and writes into an array that the caller made. `s` is `realm.env.physics.State`, `w` its
`World`. They call no kernel of another file: numba's cache would not notice when that one changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diy.feature import constants as c
from realm.env.jit import jit
from realm.env.map import CELL, EXTENT, POINTS
from realm.env.physics import BUFF_RETURN, BUFF_STEPS, DIRECTIONS, FLASH_COOLDOWN, FLASH_MOVE, VIEW, State, World

SMALL_SIZE = 2 * c.BINS + 2 + 3 * POINTS + 2 * c.CROP_CELLS + 2 * DIRECTIONS + 7

STEP_X = np.array([1, 1, 0, -1, -1, -1, 0, 1])
STEP_Z = np.array([0, 1, 1, 1, 0, -1, -1, -1])


@jit
def write_small(s: State, w: World, out: NDArray[np.float32]) -> None:
    """The small observation. out: f32 [E, SMALL_SIZE], all within -1..1:

    position one-hot by bins of 2 cells, x then z (128) and exactly (2); per point (16) whether it is there, whether it
    is the end, and the walking distance to it if one of both; a 7 x 7 crop of road (49) and of visits (49) around the
    hero; per direction (8) how far the road goes, and whether a flash would land on road; flash ready, flash wait,
    buff left, buff wait, time gone, the last move (2).
    """
    for e in range(len(out)):
        row = out[e]
        row[:] = 0.0
        cx, cz = s.cell_x[e], s.cell_z[e]
        row[cx // c.BIN_CELLS] = 1.0
        row[c.BINS + cz // c.BIN_CELLS] = 1.0
        i = 2 * c.BINS
        row[i] = s.x[e] / EXTENT
        row[i + 1] = s.z[e] / EXTENT
        i += 2
        near = w.near[cz, cx]
        for p in range(POINTS):
            if s.there[e, p]:
                row[i + p] = 1.0
            if p == s.end[e]:
                row[i + POINTS + p] = 1.0
            row[i + 2 * POINTS + p] = near[p] if s.there[e, p] or p == s.end[e] else 1.0
        i += 3 * POINTS
        for dz in range(-c.CROP, c.CROP + 1):
            for dx in range(-c.CROP, c.CROP + 1):
                row[i] = w.obstacle[cz + dz + VIEW, cx + dx + VIEW] / 255.0
                row[i + c.CROP_CELLS] = s.memory[e, cz + dz + VIEW, cx + dx + VIEW] / 255.0
                i += 1
        i += c.CROP_CELLS
        for d in range(DIRECTIONS):
            length = 0
            while (
                length < c.RAY
                and w.obstacle[cz + VIEW + (length + 1) * STEP_Z[d], cx + VIEW + (length + 1) * STEP_X[d]]
            ):
                length += 1
            row[i + d] = length / c.RAY
            fx = int(np.floor((s.x[e] + FLASH_MOVE[d, 0]) / CELL))
            fz = int(np.floor((s.z[e] + FLASH_MOVE[d, 1]) / CELL))
            if w.obstacle[fz + VIEW, fx + VIEW]:
                row[i + DIRECTIONS + d] = 1.0
        i += 2 * DIRECTIONS
        row[i] = 1.0 if s.flash_wait[e] == 0 else 0.0
        row[i + 1] = s.flash_wait[e] / FLASH_COOLDOWN
        row[i + 2] = s.buff_left[e] / BUFF_STEPS
        row[i + 3] = s.buff_wait[e] / BUFF_RETURN
        row[i + 4] = s.steps[e] / s.max_step[e]
        if not s.used_flash[e]:
            row[i + 5] = (s.x[e] - s.from_x[e]) / c.LAST_MOVE
            row[i + 6] = (s.z[e] - s.from_z[e]) / c.LAST_MOVE


@jit
def way_to_go(s: State, w: World, tree: bool, out: NDArray[np.float32]) -> None:
    """Estimate how many cells each hero still has to walk. out: f32 [E].

    From the hero to the nearest treasure left, or to the end when none is left; with `tree`, and then along the
    shortest tree over all treasures left and the end, so that taking a treasure does not change the estimate much.
    """
    left = np.empty(POINTS, np.int64)
    gap = np.empty(POINTS, np.float64)
    for e in range(len(out)):
        cx, cz = s.cell_x[e], s.cell_z[e]
        n = 0
        least = 1e9
        for p in range(1, POINTS):
            if s.there[e, p]:
                left[n] = p
                n += 1
                least = min(least, w.distance[p, cz, cx])
        end = s.end[e]
        total = least if n else w.distance[end, cz, cx]
        if tree:
            # Prim: grow from the end by the treasure with the smallest gap to what is joined
            for i in range(n):
                gap[i] = w.distance[left[i], w.cells[end, 1], w.cells[end, 0]]
            for _ in range(n):
                best = 0
                for i in range(n):
                    if gap[i] < gap[best]:
                        best = i
                total += gap[best]
                joined = left[best]
                n -= 1
                left[best], gap[best] = left[n], gap[n]
                for i in range(n):
                    gap[i] = min(gap[i], w.distance[left[i], w.cells[joined, 1], w.cells[joined, 0]])
        out[e] = total
