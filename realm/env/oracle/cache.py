"""Where the oracle keeps what takes it minutes, under names that change with the code that made it.

Used by `legs.py`, `solving.py` and the game's commands. Files below CACHE: distances of a map of up to 15 MB (.npz),
bounds and answers of some kB. A damaged file counts as none.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from realm.env import physics
from realm.env.map import Map
from realm.files import check_archive, read_bytes, replace_file

CACHE = Path(".cache/oracle")  # of the commands, in the current directory
_MOST_BYTES = 64 << 20  # of a file
_HERE, _RULES = Path(__file__).parent, Path(physics.__file__)
BOUND_SOURCES = (*(_HERE / f"{name}.py" for name in ("bounding", "distances", "lattice", "legs", "lengths")), _RULES)
"""The code that bounds depend on."""
SOURCES = (*BOUND_SOURCES, *(_HERE / f"{name}.py" for name in ("beam", "fields", "orders", "solving")))
"""The code that the oracle's plays depend on."""


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of what these files hold."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(map_: Map, numbers: Iterable[int], sources: Iterable[Path]) -> str:
    """A name for what follows from a map, these numbers and the code."""
    digest = hashlib.sha256(digest_of(sources).encode())
    for part in (map_.road, map_.points, np.array([*numbers])):
        digest.update(part.tobytes())
    return digest.hexdigest()[:24]


def keep(file: Path, data: bytes) -> None:
    """Write a file of the cache, and the folder if need be. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, data)


def keep_arrays(file: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays (.npz). Raises OSError."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    keep(file, content.getvalue())


def kept_arrays(file: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of `keep_arrays`; None if there is no such file, or a damaged one."""
    try:
        content = read_bytes(file, _MOST_BYTES)
        stream = io.BytesIO(content)
        check_archive(stream, _MOST_BYTES)
        with np.load(stream, allow_pickle=False) as data:
            return dict(data)
    except (OSError, ValueError, EOFError, MemoryError, BadZipFile, zlib.error):
        return None
