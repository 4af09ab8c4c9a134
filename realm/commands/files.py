"""Files that a command is asked to write: refuse bad names before the work, and put the system's errors in a sentence.

Used by the framework's commands, by those of games, and by the tools.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from realm.errors import ConfigError


def check_file(option: str, path: Path | None, endings: tuple[str, ...] = ()) -> None:
    """Refuse the file that `option` names if it cannot be written, or if its name has none of these endings."""
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path}: the name must end in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot be written; it must be a file in a folder that you can write to")


def below(folder: Path) -> Iterator[os.stat_result]:
    """What the system knows of each file below a folder; what is behind a link does not count."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a living run has just deleted it
                yield os.lstat(os.path.join(parent, name))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around code that writes `path`: turn an OSError into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from None
