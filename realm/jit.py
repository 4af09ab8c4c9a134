"""The one place that imports numba.

`jit` is `numba.njit(cache=True, nogil=True)` with its type kept for mypy, and without the entry for C, which nobody
calls and which takes time to compile. Every kernel of the game uses it, and user code may. `copy_bytes` is memcpy for
kernels.

numba's cache notices changes in the kernel's own file only, not in a file from which it takes a constant or a kernel.
So the cache folder is named after a hash of all source next to the kernel and next to every kernel imported before it:
a kernel can call only those. The folder is below `NUMBA_CACHE_DIR`, else below `.cache/numba` of a checkout. (An
installed package, which nobody edits, uses numba's default folder.)
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

code: Any = cgutils  # untyped, like numba.config
settings: Any = numba.config
F = TypeVar("F", bound=Callable[..., object])
_ROOT = Path(__file__).resolve().parents[1]
_folders: list[Path] = []  # of the kernels imported so far, in import order


def jit(function: F) -> F:
    """Compile `function` at its first call and cache the machine code. Without fastmath, so results are exact; without
    the GIL, so other threads run meanwhile."""
    return _compiled(function, no_cpython_wrapper=False)


def jit_helper(function: F) -> F:
    """`jit` for what kernels alone call: without the entry for Python, which often takes longer to compile than the
    rest."""
    return _compiled(function, no_cpython_wrapper=True)


def _compiled(function: F, no_cpython_wrapper: bool) -> F:
    folder = Path(function.__code__.co_filename).resolve().parent
    if folder not in _folders:
        _folders.append(folder)
    settings.CACHE_DIR = cache_folder(tuple(sorted(_folders)))  # numba reads it in the next line
    # options that numba's types do not know
    options: Any = {"no_cfunc_wrapper": True, "no_cpython_wrapper": no_cpython_wrapper}
    return cast(F, numba.njit(cache=True, nogil=True, **options)(function))


@functools.cache
def cache_folder(sources: tuple[Path, ...]) -> str:
    """The cache folder for a kernel compiled from these source folders; "" is numba's default."""
    base = os.environ.get("NUMBA_CACHE_DIR") or (
        _ROOT / ".cache" / "numba" if (_ROOT / "pyproject.toml").exists() else ""
    )
    if not base:
        return ""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(file for folder in sources for file in folder.glob("*.py")):
        digest.update(file.read_bytes())
    return str(Path(base) / digest.hexdigest()[:16])


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


# In kernels only: copy_bytes(to, to_at, source, source_at, count) copies `count` bytes between arrays. `to_at` and
# `source_at` are byte offsets. `count` must be a constant, so that a short copy becomes a few wide moves. No checks.
copy_bytes = cast(
    Callable[[NDArray[Any], int, NDArray[Any], int, int], None], intrinsic(prefer_literal=True)(_copy_bytes)
)
