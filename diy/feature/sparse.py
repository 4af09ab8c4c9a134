"""The small features for a network in float32: of the first columns, which are mostly zeros, only what is not zero.

Kernels, called by `algorithm/model.py: FirstLayer`. They are here since whoever changes a network would otherwise have
them compiled again (`realm/jit.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from realm.jit import jit

F32 = NDArray[np.float32]
_BLOCK = 16  # columns that are looked at together


def split(features: NDArray[np.int16], columns: int) -> tuple[NDArray[np.int32], NDArray[np.int32], F32, F32]:
    """features: bfloat16 as i16 [n, F]; columns: of the first ones, a multiple of 16. Returns row, column and value of
    each number there that is not zero, [k], and all other columns, f32 [n, F - columns]."""
    n, width = features.shape
    (row, column), value = np.empty((2, n * columns), np.int32), np.empty(n * columns, np.float32)
    rest = np.empty((n, width - columns), np.float32)
    k = _split(features, columns, row, column, value.view(np.int32), rest.view(np.int32))
    return row[:k], column[:k], value[:k], rest


@jit
def _split(
    features: NDArray[np.int16], columns: int, row: NDArray[np.int32], column: NDArray[np.int32],
    value: NDArray[np.int32], rest: NDArray[np.int32],
) -> int:  # fmt: skip
    """The bits of a bfloat16 are the upper half of a float32's."""
    k = 0
    for i in range(len(features)):
        for first in range(0, columns, _BLOCK):
            some = np.int16(0)
            for j in range(first, first + _BLOCK):
                some |= features[i, j]
            if some:
                for j in range(first, first + _BLOCK):
                    if features[i, j]:
                        row[k], column[k], value[k] = i, j, np.int32(features[i, j]) << 16
                        k += 1
        for j in range(rest.shape[1]):
            rest[i, j] = np.int32(features[i, columns + j]) << 16
    return k


@jit
def add_rows(value: F32, source: F32, from_row: NDArray[np.int32], target: F32, to_row: NDArray[np.int32]) -> None:
    """target[to_row[k]] += value[k] source[from_row[k]], for each k."""
    for k in range(len(value)):
        x, row, into = value[k], source[from_row[k]], target[to_row[k]]  # indexed twice it takes seven times as long
        for h in range(len(row)):
            into[h] += x * row[h]
