"""Reads and writes whole files with care, and keeps former ones.

Reading: a file may have been made by anybody, so it must be a regular file of a bounded size, and its JSON of a bounded
depth. Writing is atomic: a reader sees the old content or the new one, never half of it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

MOST_MANIFEST_BYTES = 1 << 20  # of a checkpoint
_MORE_BYTES = 1 << 16
MOST_LEVELS = 32
"""How deep lists and dicts of a JSON file may be nested."""


def from_here(path: Path) -> Path:
    """A path as somebody who stands in the current directory names it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raises OSError for any other, and waits for no pipe or device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > most:
            raise _too_large(path, status.st_size, most)
        with open(descriptor, "rb", closefd=False) as file:
            # read(n) takes the memory for n bytes first. The loop is for a file that grows, or has no size, as in /proc
            data = file.read(status.st_size + 1)
            while len(data) <= most and (more := file.read(_MORE_BYTES)):
                data += more
    except MemoryError:
        raise OSError(errno.ENOMEM, f"no memory for its {status.st_size:,} bytes", str(path)) from None
    finally:
        os.close(descriptor)
    if len(data) > most:  # it grows, or its size is not known before
        raise _too_large(path, len(data), most)
    return data


def read_text(path: Path, most: int) -> str:
    """`read_bytes` of a text file, which may begin with a byte order mark. Raises OSError or UnicodeDecodeError."""
    return read_bytes(path, most).decode("utf-8-sig")


def read_json(path: Path, most: int) -> Any:
    """`read_bytes` of a JSON file. Raises OSError, or ValueError for what is not JSON or is nested too deeply."""
    text = read_text(path, most)
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's advice is for programmers
            raise ValueError("a number has too many digits") from None
        raise
    level = [content]
    for _ in range(MOST_LEVELS):
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [value for one in inner for value in (one.values() if isinstance(one, dict) else one)]
    if level:
        raise ValueError("nested too deeply")
    return content


def check_archive(file: IO[bytes], most: int) -> None:
    """Refuse, with a ValueError, a zip file that would unpack to more than `most` bytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error
    file.seek(0)
    if unpacked > most:
        raise ValueError(f"unpacks to {unpacked:,} bytes, more than {most:,}")


def _too_large(path: Path, size: int, most: int) -> OSError:
    return OSError(errno.EFBIG, f"too large with {size:,} bytes, it may have {most:,}", str(path))


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
    """Rename a file or folder to `<name>.<n>` with the first free number; returns the new path."""
    number = 1
    while (kept := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(kept)
    return kept
