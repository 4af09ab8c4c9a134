"""The arrays of a replay memory: in this process, or as files of the run, so that a memory outlives its process.

A file is mapped into memory: what is written into the array is in the file, also if the process is killed in the next
moment. The system writes it to the disk when it likes.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from realm.contract import Array
from realm.errors import ConfigError
from realm.files import read_json, replace_file

_MOST_STATE_BYTES = 64 << 20


class ArrayFiles:
    """Makes arrays by name. folder: where their files lie; None: no files."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array of this name as it was left, or zeros. Raises ConfigError if its file is of another shape."""
        if self._folder is None or 0 in shape:
            return np.zeros(shape, dtype)
        path = self._folder / f"{name.replace('/', '%2F')}.npy"  # an observation may have any name
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make(path, shape, np.dtype(dtype))
        try:
            if not path.is_file():  # a pipe would be waited for
                raise ValueError("not a regular file")
            array = np.load(path, mmap_mode="r+", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(f"{path}: is no array ({error}); move {self._folder} away to begin without it") from error
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise ConfigError(
                f"{path}: holds {array.dtype}{list(array.shape)}, but this run needs {np.dtype(dtype)}{list(shape)}; "
                f"restore replay_buffer_capacity and the shapes of its run, or move {self._folder} away"
            )
        return np.asarray(array)

    def forget(self, name: str) -> None:
        """Have `array` give zeros."""
        if self._folder is not None:
            (self._folder / f"{name}.npy").unlink(missing_ok=True)

    def _make(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        """A file of zeros with all its room taken: in a full one, writing into the array would kill the process."""
        try:
            np.lib.format.open_memmap(path, "w+", dtype, shape)  # type: ignore[no-untyped-call]
            if hasattr(os, "posix_fallocate"):  # not on macOS
                with open(path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            path.unlink(missing_ok=True)
            size = math.prod(shape) * dtype.itemsize / 2**20
            raise ConfigError(
                f"{path}: {size:,.0f} MB for it cannot be had ({error.strerror}); choose a smaller "
                "replay_buffer_capacity, a log_dir with more room, or save_replay = false"
            ) from error

    def keep(self, state: dict[str, Any]) -> None:
        """Keep plain data until `take`. Raises OSError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._folder / "state.json", json.dumps(state).encode())

    def take(self) -> dict[str, Any]:
        """What was kept last, once: after a crash it would no longer fit the arrays. {} if there is nothing."""
        path = self._folder / "state.json" if self._folder is not None else None
        if path is None or not path.is_file():
            return {}
        try:
            state = read_json(path, _MOST_STATE_BYTES)
        except (OSError, ValueError):
            state = {}
        path.unlink(missing_ok=True)
        return state if isinstance(state, dict) else {}
