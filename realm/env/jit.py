"""The one place that imports numba.

`jit` is `numba.njit(cache=True)` with its type kept for mypy. Every kernel of `realm/env` uses it; users may
use it for their own feature kernels. numba's cache looks at the file of the kernel only: after editing
`physics.py`, kernels in *other* files that call into it keep the old code until `NUMBA_CACHE_DIR` is emptied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def jit(function: F) -> F:
    """Compile `function` at its first call and cache the machine code. No fastmath, so results are exact."""
    return cast(F, numba.njit(cache=True)(function))
