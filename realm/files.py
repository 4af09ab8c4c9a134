"""Writes a file atomically: a reader sees the old content or the new one, never half of it. Keeps former files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666, sync: bool = True) -> None:
    """Write `data` to a draft next to `path` and rename it. Raises OSError and then leaves no draft.

    mode: permissions of a new file, minus the umask. sync: wait for the disk, so that the file survives a power cut.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # free the space on a full disk
        raise


def set_aside(path: Path) -> Path:
    """Rename a file to `<name>.<n>` with the first free number; returns the new path."""
    number = 1
    while (kept := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(kept)
    return kept
