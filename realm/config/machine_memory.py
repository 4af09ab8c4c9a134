"""How much memory there is and how much is left: on the machine, and in control groups with a limit (containers)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def memory() -> tuple[int, int]:
    """(free, total) bytes of the machine or of the control group that has the least left."""
    return min(_all())


def usable_bytes() -> int:
    """Memory that this run may use: that of the machine, or of its container if that is less."""
    return min(total for _, total in _all())


def _all() -> list[tuple[int, int]]:
    machine = psutil.virtual_memory()
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:
        groups = ""  # not Linux
    return [(machine.available, machine.total), *group_memory(_CGROUPS, groups)]


def group_memory(root: Path, groups: str) -> Iterator[tuple[int, int]]:
    """(free, limit) bytes of each control group with a limit that this process is in.

    root: where they are mounted, version 1 or 2. groups: the content of /proc/self/cgroup.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, used, cached = root, "memory.max", "memory.current", ("active_file", "inactive_file")
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = ("total_active_file", "total_inactive_file")
        else:
            continue
        own = base / path.strip("/")
        # inside a container the path may be that of the host, and the mounted folder is the group itself
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(base))):
            with suppress(OSError, ValueError):  # no such file, or "max": there is no limit
                most, now = int((folder / limit).read_text()), int((folder / used).read_text())
                stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                # copies of files count as used, but the system drops them when it needs the room
                yield most - now + sum(int(stat.get(name, 0)) for name in cached), most
