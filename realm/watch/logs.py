"""Keeps the logs of a run small: a log that has grown large is copied aside and emptied.

A role's output goes straight into its log by an open file, which its child processes have, too. None of them can be
told to open another file, so a log is emptied in place: all write in append mode, and go on at its new end. What is
written between copy and emptying, in some microseconds, is lost.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 20 << 20
KEEP = 2  # older ones: <log>.1 is newer than <log>.2


def rotate_all(folder: Path) -> dict[str, str]:
    """Rotate each log of a folder that is too large. Name -> sentence of each for which that failed."""
    failed = {}
    for log in folder.glob("*.log"):
        try:
            if not log.is_symlink() and log.stat().st_size > MOST_BYTES:
                rotate(log)
        except OSError as error:
            failed[str(log)] = f"{log} is large, and cannot be put aside: {error.strerror}"
    return failed


def rotate(log: Path) -> None:
    """Make the log empty and its content `<log>.1`; keep KEEP older ones. Raises OSError; then the log stays."""
    draft = log.with_name(f".{log.name}")
    try:
        shutil.copyfile(log, draft, follow_symlinks=False)
    except OSError:
        # on a full disk the oldest one makes room for the next try
        for left in (draft, _old(log, KEEP)):
            with suppress(OSError):
                left.unlink()
        raise
    for number in range(KEEP, 1, -1):
        with suppress(FileNotFoundError):
            _old(log, number - 1).replace(_old(log, number))
    draft.replace(_old(log, 1))
    os.truncate(log, 0)


def _old(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
