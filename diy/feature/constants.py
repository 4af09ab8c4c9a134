"""Numbers of the features and of the published reward; used by `definition.py` and `kernels.py`, not tuned.

The game's own numbers live in `realm/env/physics.py`.
"""

from __future__ import annotations

BIN_CELLS = 2  # one-hot position: cells per bin
BINS = 64  # bins along one side of the map

CROP = 3  # cells seen to each side in the small observation
CROP_CELLS = (2 * CROP + 1) ** 2
RAY = 12  # cells a ray looks ahead before it gives up

LAST_MOVE = 1000.0  # units of the longest walk
FAR_CELLS = 200.0  # of walking that count as very far
NEIGHBOUR_CELLS = 2.0**0.5  # the most cells that a move to a neighbouring cell can win
FLASH_CELLS = 60.0  # the most cells that a flash can win
DETOUR_CELLS = 32.0  # of a longer tour that count as very many
LONG_TOUR_CELLS = 500.0

# the published reward, in points: what `config.py` has no field for
CELL_POINTS, FLASH_CELL_POINTS = 1.0, 5.0  # for a cell won by walking, by a flash
WALL_POINTS, FLASH_WALL_POINTS = 1.0, 10.0  # taken off for a walk, a flash against a wall
BUFF_POINTS = 5.0  # for taking the buff; taken off for an episode without it
VISITS_FREE = 0.4  # share of the memory map that a cell may have without costing anything
