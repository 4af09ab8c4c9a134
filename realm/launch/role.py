"""One role of the cluster as the supervisor sees it: its process, its state, and how long it has been silent.

Reports are the heartbeat: a role that works, or waits for another, sends one every `report_interval_s`. A hang in user
code or a stopped process sends none. Used by `supervisor.py` alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from loguru import logger

from realm.config.keys import AppConfig
from realm.launch import guard
from realm.launch.signals import name_of
from realm.roles.table import ROLES

_SPARE = 300  # thousandths of all memory that a spare role counts as larger
_SLOW_START_S = 30.0
OPTIONAL_S = 60.0  # an evaluator compiles its kernels with the lowest priority, on cores that are full
_MOST_PAUSE_S = 30.0
_QUIET_REPORTS = 30  # missing reports before a role is named
_QUIET_UPDATES = 5  # the same in updates: a role may wait for one, and the learner reports between two
_KILLED_AFTER = 3  # times as long

Key = tuple[str, int]


@dataclass
class Role:
    """One role of the cluster and its current process."""

    name: str
    index: int
    process: BaseProcess | None = None
    incarnation: int = 0
    address: str = ""
    state: str = "starting"  # starting, bound, ready, waiting (for a restart), stopped (by the user), finished, ended
    cause: str = ""
    trace: str = ""  # the last lines of the cause's traceback
    started_at: float = 0.0
    heard_at: float = 0.0
    starved_s: float = 0.0  # that its process has waited for a core so far
    named: bool = False  # as silent, or as slow to start
    restarts: deque[tuple[float, float]] = field(default_factory=deque)  # when, and the learner's updates by then
    restart_at: float = 0.0
    no_room_since: float = 0.0  # the system has no file handle, or no memory, for its process; 0: it has
    bound: tuple[bytes, int] | None = None  # peer and question that wait for the orders
    next: tuple[bytes, int] | None = None  # peer and question that wait for a command
    report_seq: int = 0
    asked_at: float = 0.0  # to stop, as the run ends
    given_up: bool = False  # it did not stop in time
    unwanted: bool = False  # the user has stopped it: it is asked to end again and again, and not started again

    @property
    def label(self) -> str:
        return f"{self.name}-{self.index}"

    def heard(self) -> None:
        """Note a message of this process."""
        self.heard_at = time.monotonic()
        if self.state == "ready":
            self.named = False

    def move_on(self, seconds: float) -> None:
        """Do not count a time in which nobody listened."""
        self.started_at += seconds
        self.heard_at += seconds
        self.asked_at += seconds if self.asked_at else 0.0

    def count_restart(self, updates: float, window_s: float) -> int:
        """Count one more restart; return how many count now. updates: the learner's so far.

        A restart is forgotten after `window_s`, but only if the learner has made an update since.
        """
        now = time.monotonic()
        self.restarts.append((now, updates))
        while now - self.restarts[0][0] > window_s and updates > self.restarts[0][1]:
            self.restarts.popleft()
        pause = 0.0 if len(self.restarts) < 2 else min(_MOST_PAUSE_S, 2.0 ** min(10, len(self.restarts) - 2))
        self.restart_at = now + pause
        return len(self.restarts)


def heed_silence(role: Role, app: AppConfig, update_s: float | None, log: str) -> None:
    """Name a role that has been silent for long, with its stacks in its log; kill it when it stays silent.

    update_s: seconds of the learner's update, None before the first one. An optional role has the lowest priority: the
    time in which it waits for a core does not count, and each restart doubles the patience, for what compiles long.
    """
    process, now = role.process, time.monotonic()
    if process is None or role.unwanted:
        return
    if ROLES[role.name].optional:
        starved_s = waited_for_a_core(pid(role))
        role.move_on(max(0.0, starved_s - role.starved_s))
        role.starved_s = starved_s
    if role.state != "ready":
        waited_for = not ROLES[role.name].optional  # an optional one is slow by intent: it has the lowest priority
        if waited_for and not role.named and now - role.started_at > _SLOW_START_S:
            role.named = True
            logger.warning("{} is not ready after {:.0f} s, it still starts ({})", role.label, _SLOW_START_S, log)
        return
    quiet = now - role.heard_at
    limit = max(_QUIET_REPORTS * app.report_interval_s, _QUIET_UPDATES * (update_s or 0.0))
    if update_s is None and role.name == "learner":
        limit = max(limit, app.start_timeout_s)  # the first update compiles, and nobody knows how long one takes
    if ROLES[role.name].optional:
        limit = max(limit, OPTIONAL_S) * 2 ** min(10, len(role.restarts))
    if quiet > _KILLED_AFTER * limit:
        role.cause = role.cause or f"silent for {quiet:.0f} s, so it was killed"
        kill(process)
    elif quiet > limit and not role.named:
        role.named = True
        logger.warning(
            "{} has been silent for {:.0f} s: it hangs, is stopped, or is very slow; its stacks go to its log ({}), "
            "and after {:.0f} s it is started again",
            role.label, quiet, log, _KILLED_AFTER * limit,
        )  # fmt: skip
        with suppress(ProcessLookupError):
            os.kill(pid(role), signal.SIGUSR1)  # `child.py` has given it a handler


def waited_for_a_core(pid: int) -> float:
    """Seconds that the main thread of a process could have run and had no core to run on; 0 where the system does not
    tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def pid(role: Role) -> int:
    return role.process.pid or 0 if role.process is not None else 0


def kill(process: BaseProcess) -> None:
    """Kill a role's process and all that it started: each role leads its own session."""
    assert process.pid
    if sys.platform == "linux":
        guard.kill([process.pid])
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not have reached its setsid yet


def spare(pid: int) -> None:
    """Have the system end this role before the others when memory is gone. Linux only."""
    with suppress(OSError, ValueError):  # it has ended, or may not be changed
        own = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(1000, own + _SPARE)))


def signal_name(code: int) -> str:
    return f"killed by {name_of(-code)}" if code < 0 else f"exit code {code}"
