"""The picture that a policy sees, by one kernel: to the bit what Pillow's convert("L") and resize(BOX) give."""

import numpy as np

from realm.contract import Array
from realm.jit import jit

_BITS = 22  # of Pillow's weights behind the point
_HALF = 1 << (_BITS - 1)
# its weights of red, green and blue, and what rounds, in parts of 65,536: sums of these are exact in float32, too
_RED, _GREEN, _BLUE, _ROUND, _PART = (np.float32(x) for x in (19595, 38470, 7471, 32768, 1 / 65536))


def edges(first: int, end: int, side: int) -> Array:
    """Where each of `side` parts of a row from `first` to before `end` begins, with that end, i64 [side + 1]."""
    return np.array([first + int(k * (end - first) / side + 0.5) for k in range(side + 1)])


@jit
def shrunk(screen: Array, rows: Array, columns: Array) -> Array:
    """Grey means of the parts. screen: u8 [H, W, 3]; rows, columns: `edges`. Returns u8 [high, wide]."""
    high, wide, width = len(rows) - 1, len(columns) - 1, screen.shape[1]
    picture, down = np.empty((high, wide), np.uint8), np.empty(wide, np.int64)
    grey, sums = np.empty(width, np.int32), np.zeros(width + 1, np.int64)
    weights = ((2 << _BITS) // np.diff(columns) + 1) >> 1
    weights_down = ((2 << _BITS) // np.diff(rows) + 1) >> 1
    for i in range(high):
        down[:] = 0
        for y in range(rows[i], rows[i + 1]):
            line = screen[y].reshape(-1)
            for x in range(width):
                red, green, blue = np.float32(line[3 * x]), np.float32(line[3 * x + 1]), np.float32(line[3 * x + 2])
                grey[x] = np.int32((_RED * red + _GREEN * green + _BLUE * blue + _ROUND) * _PART)
            for x in range(width):
                sums[x + 1] = sums[x] + grey[x]
            for j in range(wide):
                down[j] += ((sums[columns[j + 1]] - sums[columns[j]]) * weights[j] + _HALF) >> _BITS
        for j in range(wide):
            picture[i, j] = (down[j] * weights_down[i] + _HALF) >> _BITS
    return picture
