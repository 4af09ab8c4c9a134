"""The one place that imports numba.

`jit` is `numba.njit(cache=True, nogil=True)` with its type kept for mypy. Every kernel of `realm/env` uses it; users
may use it for their own feature kernels. `copy_bytes` is memcpy for kernels. numba's cache looks at the file of
the kernel only: after editing `physics.py`, kernels in *other* files that call into it keep the old code
until `NUMBA_CACHE_DIR` is emptied; so do all kernels after editing the options of `jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

code: Any = cgutils  # untyped
F = TypeVar("F", bound=Callable[..., object])


def jit(function: F) -> F:
    """Compile `function` at its first call and cache the machine code. No fastmath, so results are exact; while it
    runs, other threads run, too."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def _copy_bytes(_: Any, to: Any, to_at: Any, source: Any, source_at: Any, count: Any) -> Any:
    """Types and LLVM code of `copy_bytes`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to_type, _, source_type, _, _ = signature.args
        to_start = context.make_array(to_type)(context, builder, args[0]).data
        source_start = context.make_array(source_type)(context, builder, args[2]).data
        to_pointer = code.pointer_add(builder, to_start, args[1])
        source_pointer = code.pointer_add(builder, source_start, args[3])
        size = context.get_constant(types.intp, count.literal_value)
        code.raw_memcpy(builder, to_pointer, source_pointer, size, 1)
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, count), generate


# In kernels only: copy_bytes(to, to_at, source, source_at, count) copies `count` bytes (a constant, so that a
# short copy becomes a few wide moves) between arrays, so many bytes after their starts. Nothing is checked.
copy_bytes = cast(
    Callable[[NDArray[Any], int, NDArray[Any], int, int], None], intrinsic(prefer_literal=True)(_copy_bytes)
)
