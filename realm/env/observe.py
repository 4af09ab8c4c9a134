"""The observations of the realm: numba kernels from the state of E environments to arrays of the caller.

Called by `realm_env.py`, `protocol.py` and by users who want the published features. `physics.py` has the rules and the
state; here every kernel only reads them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realm.env.map import EXTENT, POINTS
from realm.env.physics import (
    CHANNEL,
    DIRECTIONS,
    FIRST_SHOWN,
    FULL,
    IMAGE,
    ONE,
    PADDED,
    SHOWN,
    VIEW,
    WINDOW,
    Episodes,
    State,
    World,
    step,
)
from realm.jit import copy_bytes, jit


@jit
def write_vector(s: State, w: World, out: NDArray[np.float32]) -> None:
    """The reference features. out: f32 [E, 31] = position / 64000 (x, z), treasures 3..15 there (13), their
    grid_distance (13, 1 if not there), buff there, its grid_distance (1 if not there), grid_distance to the
    end.
    """
    near, there, end = w.near, s.there, s.end
    x, z, cell_x, cell_z = s.x, s.z, s.cell_x, s.cell_z
    for e in range(len(out)):
        cx, cz = cell_x[e], cell_z[e]
        out[e, 0], out[e, 1] = x[e] / EXTENT, z[e] / EXTENT
        for i in range(SHOWN):
            out[e, 2 + i] = there[e, FIRST_SHOWN + i]
            out[e, 2 + SHOWN + i] = near[cz, cx, FIRST_SHOWN + i] if there[e, FIRST_SHOWN + i] else ONE
        out[e, 28] = there[e, 0]
        out[e, 29] = near[cz, cx, 0] if there[e, 0] else ONE
        out[e, 30] = near[cz, cx, end[e]]


@jit
def write_image(s: State, w: World, out: NDArray[np.uint8]) -> None:
    """The 51 x 51 cells around the hero. out: u8 [E, 4, 51, 51], [z, x], row 0 south; channels obstacle (road
    255), memory (51 a visit), treasures there (255), end (255): the game's values times 255.

    Each out[e] must be contiguous, the first axis need not be. A row is put together in the cache and then
    written at once, which is as fast as memory allows; the last two channels are cleared where they were lit.
    """
    obstacle, memory, cells, there, end = w.obstacle, s.memory, w.cells, s.there, s.end
    cell_x, cell_z = s.cell_x, s.cell_z
    image, lit = np.zeros(IMAGE, dtype=np.uint8), np.empty(POINTS, dtype=np.int64)
    for e in range(len(out)):
        # the window's first cell, in padded coordinates, is the hero's cell in plain ones
        cx, cz = cell_x[e], cell_z[e]
        for row in range(WINDOW):
            source = (cz + row) * PADDED + cx
            copy_bytes(image, row * WINDOW, obstacle, source, WINDOW)
            copy_bytes(image, CHANNEL + row * WINDOW, memory, e * PADDED * PADDED + source, WINDOW)
        n = 0
        for i in range(1, POINTS):
            if there[e, i] or i == end[e]:
                dx, dz = cells[i, 0] - cx + VIEW, cells[i, 1] - cz + VIEW
                if 0 <= dx < WINDOW and 0 <= dz < WINDOW:
                    lit[n] = (3 if i == end[e] else 2) * CHANNEL + dz * WINDOW + dx
                    image[lit[n]] = FULL
                    n += 1
        copy_bytes(out, e * out.strides[0], image, 0, IMAGE)
        for k in range(n):
            image[lit[k]] = 0


@jit
def write_mask(s: State, out: NDArray[np.int8]) -> None:
    """Legal actions. out: i8 [E, 16], 1 = legal: walks always, flashes when not cooling down."""
    flash_wait = s.flash_wait
    for e in range(len(out)):
        flash = np.int8(flash_wait[e] == 0)
        for a in range(DIRECTIONS):
            out[e, a] = 1
            out[e, DIRECTIONS + a] = flash


# ---- a step and its observation in one call: entering a kernel with all these arrays takes microseconds ----


@jit
def step_and_write(
    s: State,
    w: World,
    episodes: Episodes,
    actions: NDArray[np.int64],
    vector: NDArray[np.float32],
    mask: NDArray[np.int8],
) -> None:
    """`step`, `write_vector` and `write_mask`."""
    step(s, w, episodes, actions)
    write_vector(s, w, vector)
    write_mask(s, mask)


@jit
def step_and_write_full(
    s: State,
    w: World,
    episodes: Episodes,
    actions: NDArray[np.int64],
    image: NDArray[np.uint8],
    vector: NDArray[np.float32],
    mask: NDArray[np.int8],
) -> None:
    """`step_and_write` and `write_image`."""
    step_and_write(s, w, episodes, actions, vector, mask)
    write_image(s, w, image)
