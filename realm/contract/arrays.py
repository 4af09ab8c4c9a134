"""Arrays, and the shapes and dtypes that they are declared with and checked against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from realm.errors import ContractError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one array, without its leading batch axes. What NumPy and gymnasium have for them will do."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        dtype: Any = self.dtype
        object.__setattr__(self, "dtype", dtype if isinstance(dtype, str) else np.dtype(dtype).name)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


Fields = dict[str, Field]


def is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf" and np.dtype(dtype).isnative
    except TypeError:
        return False


def check_arrays(arrays: Arrays, fields: Fields, leading: tuple[int, ...], label: str) -> None:
    """Raise ContractError, naming `label`, unless `arrays` has exactly `fields`, each with `leading` axes in front."""
    if arrays.keys() != fields.keys():
        missing, unknown = sorted(fields.keys() - arrays.keys()), sorted(arrays.keys() - fields.keys())
        raise ContractError(f"{label}: missing {missing}, unknown {unknown}")
    for name, expected in fields.items():
        array = arrays[name]
        if array.dtype != _dtype(expected.dtype) or array.shape != (*leading, *expected.shape):
            raise ContractError(
                f"{label}: {name} must be {expected.dtype}{[*leading, *expected.shape]}, "
                f"got {array.dtype}{list(array.shape)}"
            )


_dtype = lru_cache(np.dtype)  # to read a name takes longer than all else here


def check_finite(arrays: Arrays, label: str) -> None:
    """Raise ContractError, naming `label`, if a float array holds NaN or infinity."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ContractError(f"{label}: {name} holds NaN or infinity")
