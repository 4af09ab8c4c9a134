"""Disk, memory and file handles of a run: read every second, and named before they end.

The supervisor and the one-process run own one `Resources` and call its `look` in their loops. The numbers come from the
system (`read`). What to say and what to do is decided by plain functions of them (`shortages`, `must_hold`, `Warner`).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from loguru import logger

from realm.config.machine_memory import memory
from realm.errors import ConfigError
from realm.watch.logs import rotate_all
from realm.watch.progress import Every

_LOOK_EVERY_S = 1.0
_SAY_EVERY_S = 60.0
_GIB = 1 << 30
_FEWEST_FILES = 64
_MOST_FILES = 1 << 20  # some programs try to close every number up to the limit


@dataclass(frozen=True)
class Reading:
    """What is left. Disk and memory in bytes; open_files: process -> the files that it has open, of files_limit."""

    disk_free: int
    disk_total: int
    memory_free: int
    memory_total: int
    open_files: Mapping[str, int]
    files_limit: int


# --- decisions


def low_memory(total: int) -> int:
    """Bytes of memory below which the user is warned; half of it holds the workers back."""
    return min(_GIB, total // 10)


def shortages(now: Reading, before: Collection[str], run_dir: Path) -> dict[str, str]:
    """Name of each resource that is about to run out -> a sentence for the user.

    before: the names that the call before has returned. They need half as much again to count as good.
    """

    def short(name: str, left: float, low: float) -> bool:
        return left < (1.5 * low if name in before else low)

    found = {}
    if short("disk", now.disk_free, min(_GIB, now.disk_total // 20)):
        found["disk"] = (
            f"{run_dir}: {in_words(now.disk_free)} of the disk are left; when it is full, checkpoints, logs and curves "
            "are not written until there is room again; `realm runs --prune --keep 5` deletes old runs"
        )
    if short("memory", now.memory_free, low_memory(now.memory_total)):
        found["memory"] = (
            f"{in_words(now.memory_free)} of {in_words(now.memory_total)} of memory are left; end other programs, or "
            "start the run with fewer environments, fewer workers or a smaller replay_buffer_capacity"
        )
    for label, count in now.open_files.items():
        if short(f"files of {label}", now.files_limit - count, 0.2 * now.files_limit):
            found[f"files of {label}"] = (
                f"{label} has {count} files and sockets open, and the system allows {now.files_limit}; find out why "
                "(ls -l /proc/<pid>/fd), or raise the hard limit (ulimit -Hn)"
            )
    return found


def must_hold(now: Reading, holding: bool) -> bool:
    """Whether the workers must wait because memory is nearly gone. holding: whether they do already."""
    low = low_memory(now.memory_total)
    return now.memory_free < (low if holding else low // 2)


class Warner:
    """Says each sentence once, and again only if all was good in between; at most one a minute of each name."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._said: set[str] = set()

    def heed(self, sentences: Mapping[str, str], now: float) -> list[str]:
        """The sentences to say now. sentences: name -> sentence of all that is bad; now: monotonic seconds."""
        self._said &= sentences.keys()
        due = [
            name
            for name in sentences
            if name not in self._said and now - self._said_at.get(name, -math.inf) >= _SAY_EVERY_S
        ]
        self._said.update(due)
        self._said_at.update(dict.fromkeys(due, now))
        return [sentences[name] for name in due]


# --- the system


class Resources:
    """Watches one run."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._due = Every(_LOOK_EVERY_S)
        self._warner = Warner()
        self._bad: dict[str, str] = {}
        self._holding = self._told = False
        self._told_at = -math.inf
        self._folder = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC) if sys.platform == "linux" else None
        self.gone = ""
        """Why nothing more can be kept of this run; then it ends."""

    def _follow(self) -> None:
        """Where somebody has renamed the run's folder, lay a link at its old name: every process goes on to write into
        the one folder."""
        if self._folder is None or self.gone:
            return
        held = os.fstat(self._folder)
        with suppress(OSError):
            if os.path.samestat(held, os.stat(self._run_dir)):
                return
        now = os.readlink(f"/proc/self/fd/{self._folder}")
        try:
            if held.st_nlink == 0:
                self.gone = f"{self._run_dir}: this run's folder was deleted while it ran"
                return
            self._run_dir.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(now, self._run_dir)
            logger.warning(
                "{}: this run's folder was renamed to {}; it goes on there, and the link that is now at the old name "
                "leads there: remove it when the run has ended", self._run_dir, now,
            )  # fmt: skip
        except OSError as error:
            self.gone = f"{self._run_dir}: this run's folder was renamed to {now}, and {error.strerror} at its old name"

    def look(self, own: str, told: Mapping[str, Mapping[str, float]]) -> bool:
        """Once a second: warn of what runs out, and rotate the logs. Return whether the workers must wait now.

        own: the name of this process. told: the name of each other process -> the totals of its last report;
        {} where no workers can be held back.
        """
        if not self._due.due():
            return False
        self._follow()
        try:
            files = {label: int(totals["open_files"]) for label, totals in told.items() if "open_files" in totals}
            now = read(self._run_dir, own, files)
        except OSError:  # the disk does not answer, or the folder is gone: whoever writes there tells the user
            return self._holding
        self._bad = {**shortages(now, self._bad, self._run_dir), **rotate_all(self._run_dir / "log")}
        for sentence in self._warner.heed(self._bad, time.monotonic()):
            logger.warning(sentence)
        if told:
            self._hold(now, {label: totals.get("rss_mb", 0.0) for label, totals in told.items()})
        return self._holding

    def _hold(self, now: Reading, sizes_mb: Mapping[str, float]) -> None:
        self._holding = must_hold(now, self._holding)
        if self._holding and time.monotonic() - self._told_at >= _SAY_EVERY_S:
            self._told, self._told_at = True, time.monotonic()
            largest = sorted(sizes_mb, key=lambda label: sizes_mb[label], reverse=True)[:3]
            logger.warning(
                "{} of memory are left: the buffer takes nothing, so the workers wait, until there are {}; the largest "
                "processes of the run are {}",
                in_words(now.memory_free), in_words(low_memory(now.memory_total)),
                ", ".join(f"{label} ({in_words(sizes_mb[label] * 2**20)})" for label in largest),
            )  # fmt: skip
        elif self._told and not self._holding:
            self._told = False
            logger.info("{} of memory are left: the workers go on", in_words(now.memory_free))


def read(folder: Path, own: str, others: Mapping[str, int]) -> Reading:
    """Ask the system. folder: on the disk that is meant. own: the name of this process; others: their open files."""
    disk, open_files = psutil.disk_usage(str(folder)), {own: psutil.Process().num_fds(), **others}
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Reading(disk.free, disk.total, *memory(), open_files, limit if limit > 0 else _MOST_FILES)


def raise_file_limit() -> None:
    """Let this process, and those that it starts, open as many files as the system allows. Raises ConfigError if those
    are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS refuses some numbers; the limit stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if 0 <= wanted < _FEWEST_FILES:
        raise ConfigError(
            f"the system allows this process {wanted} open files; a run needs {_FEWEST_FILES} at least: raise the hard "
            "limit (ulimit -Hn)"
        )


def in_words(size: float) -> str:
    """A number of bytes with its unit: 1.5 GB."""
    power = min(3, max(0, int(size).bit_length() - 1) // 10)
    number = size / 1024**power
    return f"{number:{'.1f' if power == 3 and number < 10 else ',.0f'}} {('bytes', 'KB', 'MB', 'GB')[power]}"
