"""A small process that outlives the supervisor, and then kills its roles and all that they started. Linux only.

`place.py` starts it as a script and tells it each new process. So it imports nothing but the standard library. A role
cannot end itself while it is stopped, or while C code holds Python's lock. A child in a session of its own can be found
only as long as its parent lives.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_MOST_S = 10.0  # what cannot be killed, such as a process that waits for a broken disk, is left


def stat(pid: int) -> tuple[int, int, str] | None:
    """Parent, session and start time of a living process."""
    try:
        # the name in parentheses may hold anything; after it come the state and the fields from number 4
        state, *rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else (int(rest[0]), int(rest[2]), rest[18])


def when_parent_ends(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, even if it is stopped. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def family(roots: Collection[int]) -> dict[int, int]:
    """pid -> session of these processes and sessions that live, and of all their descendants."""
    found: dict[int, int] = {}
    children: dict[int, list[tuple[int, int]]] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if (known := stat(pid)) is None:
            continue
        parent, session, _ = known
        children.setdefault(parent, []).append((pid, session))
        if pid in roots or session in roots:
            found[pid] = session
    new = list(found)
    while new:
        for pid, session in children.get(new.pop(), ()):
            if pid not in found:
                found[pid] = session
                new.append(pid)
    return found


def kill(roots: Collection[int]) -> dict[int, int]:
    """Kill these processes and their families; return them as `family` does."""
    found = family(roots)
    for pid in found:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found


def main() -> None:
    """Read lines `pid start-time` until their sender is gone; then kill the processes that still live."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a batch system sends them to all processes
    when_parent_ends(signal.SIGCONT)  # if somebody has stopped this process
    processes = [line.split() for line in sys.stdin]
    until = time.monotonic() + _MOST_S
    roots = {int(pid) for pid, start in processes if (known := stat(int(pid))) and known[2] == start}
    while (killed := kill(roots)) and time.monotonic() < until:
        # a process that a dead parent has just started is found by its session. Only the sessions that they led: one
        # that has just begun is still in the supervisor's
        roots |= {pid for pid, session in killed.items() if pid == session}
        time.sleep(0.02)


if __name__ == "__main__":
    main()
