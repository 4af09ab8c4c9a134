"""Write a file so that nobody ever reads half of it. Used by everything that keeps files which others read."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write `data` to a draft next to `path`, flush it to the disk, and rename it to `path`. Raises OSError."""
    draft = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
