"""What tools/bench/train.py reads from a run while it trains: env steps and scores after updates, CPU time, memory."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import psutil

from realm.watch.board import RECENT_EPISODES, RecentMean
from tools import common

LOOK_S = 2.0  # between two looks at a score: as often as a run writes its curves
MEMORY_S = 2.0  # between two looks at memory, which cost more than those at CPU time
STOP_S = 60.0  # an update of the reference's network takes some seconds, and is finished first


class Point(NamedTuple):
    """What was known of a run when an update was done."""

    time: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # mean of the last RECENT_EPISODES episodes


def reached(points: Sequence[Point], score: float | None) -> Point | None:
    """When the score was reached first: on the line between the two points around it.

    Points that follow another much sooner than LOOK_S are passed over, since ours have no others, and who looks at a
    noisy mean after each update finds it high sooner.
    """
    if score is None:
        return None
    before: Point | None = None
    for one in points:
        if one.score is None or (before is not None and one.time - before.time < 0.9 * LOOK_S):
            continue
        if one.score >= score:
            if before is None or before.score is None:
                return one
            share = (score - before.score) / (one.score - before.score)
            time_, env_steps = (a + share * (b - a) for a, b in zip(before[:2], one[:2], strict=True))
            return one._replace(time=time_, env_steps=round(env_steps), score=score)
        before = one
    return None


class Score:
    """Mean over the last RECENT_EPISODES episodes, the same for every row however often it reports."""

    def __init__(self) -> None:
        self._recent = RecentMean()

    def take(self, mean: float | None, count: float) -> float | None:
        """`count` more episodes had this mean. Returns the recent mean, None before there are enough."""
        if mean is not None and count > 0:
            self._recent.take(mean, count)
        return self._recent.mean() if self._recent.taken >= RECENT_EPISODES else None


class Source(Protocol):
    def poll(self) -> list[Point]:
        """Return points that are new."""
        ...

    def close(self) -> None: ...


class Lines:
    """The lines of JSON that tools/bench/plain_ppo.py and peers write into their log."""

    def __init__(self, log: Path) -> None:
        self._file = open(log, "rb")  # noqa: SIM115 - closed by `close`
        self._rest = b""
        self._score = Score()

    def poll(self) -> list[Point]:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        points = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a log has other lines, too
                one = json.loads(line)
                score = self._score.take(one["score"], one["episodes"])
                points.append(Point(one["time"], one["env_steps"], one["updates"], score))
        return points

    def close(self) -> None:
        self._file.close()


class Curves:
    """The curves of a run, which are written every two seconds."""

    def __init__(self, run: Path) -> None:
        self._run, self._seen, self._looked = run, 0, 0.0
        self._before: float | None = None  # when the event before was written
        self._score = Score()

    def poll(self) -> list[Point]:
        if time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked = time.monotonic()
        events = [one for one in common.read_events(self._run) if one.values]
        new, self._seen = events[self._seen :], len(events)
        points = []
        for _, at, env_steps, values in new:
            # the rate is since the event before; since when that of the first one is, is not known
            episodes = values.get("system/aisrv/episodes_per_s", 0.0) * (at - (self._before or at))
            self._before = at
            score = self._score.take(values.get("episode/score"), episodes)
            points.append(Point(at, env_steps, int(values.get("system/learner/version_update", 0)), score))
        return points

    def close(self) -> None: ...


class Processes:
    """A process with all that it started: CPU time and memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known = {self._root}
        self._cpu: dict[psutil.Process, float] = {}  # stays when a process ends
        self.history: list[tuple[float, float]] = []  # time, CPU seconds of all until then
        self.pss_mb = 0.0  # peak; memory that is shared counts once
        self._memory_at = 0.0

    def sample(self) -> None:
        now = time.time()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._known |= set(self._root.children(recursive=True))
        look_at_memory, pss = now - self._memory_at >= MEMORY_S, 0
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                self._cpu[process] = sum(process.cpu_times()[:2])
                pss += process.memory_full_info().pss if look_at_memory else 0
        self.history.append((now, sum(self._cpu.values())))
        if look_at_memory:
            self._memory_at, self.pss_mb = now, max(self.pss_mb, pss / 2**20)

    def alive(self) -> list[psutil.Process]:
        return [one for one in self._known if one.is_running()]

    def cpu_at(self, when: float) -> float:
        """CPU seconds used until then, between two looks in proportion."""
        return float(np.interp(when, *zip(*self.history, strict=True)))

    def end(self) -> None:
        """End the first process, in order, and then whatever is left."""
        self.sample()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root.terminate()
        psutil.wait_procs([self._root], STOP_S)
        _, left = psutil.wait_procs(self.alive(), 5)  # they end by themselves when the first one is gone
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)
