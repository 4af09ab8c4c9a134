"""What tools/bench/train.py reads from a run while it trains: env steps and scores after updates, CPU time, memory."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from realm.launch.rundir import read_run
from realm.watch.board import RECENT_EPISODES, RecentMean
from realm.wire.codec import Codec
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.sockets import Client
from tools import common

LOOK_S = 2.0  # between two looks at a score: as often as a run in one process writes its curves
MEMORY_S = 2.0  # between two looks at memory, which cost more than those at CPU time


class Point(NamedTuple):
    """What was known of a run when an update was done."""

    time: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # mean of the last RECENT_EPISODES episodes


def reached(points: Sequence[Point], score: float | None) -> Point | None:
    """When the score was reached first: on the line between the two points around it.

    Points that follow another much sooner than LOOK_S are passed over, since a run in one process has no others, and
    who looks at a noisy mean after each update finds it high sooner.
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


class Status:
    """What a cluster's supervisor answers; env steps change there when the learner reports, right after an update."""

    def __init__(self, run: Path) -> None:
        self._run, self._env_steps = run, 0
        self._client: Client | None = None

    def poll(self) -> list[Point]:
        if self._client is None:
            known = read_run(self._run)
            if known is None or known.state != "running":
                return []
            self._client = Client(Codec(known.run_id, "", "bench", 1, CONTROL_MAX_BYTES), known.control)
            self._client.ask("status", {})
        answer = self._client.collect()
        if answer is None:
            return []
        self._client.ask("status", {})
        totals = answer.mapping("roles")["learner-0"]["totals"]
        env_steps, updates = int(totals.get("env_steps_trained", 0)), int(totals.get("updates", 0))
        if env_steps == self._env_steps:
            return []
        self._env_steps = env_steps
        line = answer.mapping("line")
        enough = int(line["episodes"].replace(",", "")) >= RECENT_EPISODES
        score = float(line["mean score"]) if enough and line["mean score"] != "-" else None
        return [Point(time.time(), env_steps, updates, score)]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Curves:
    """The curves of a run in one process, which are written right after an update, every two seconds."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen = 0
        self._looked = 0.0
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
            episodes = values.get("rate/aisrv/episodes_per_s", 0.0) * (at - (self._before or at))
            self._before = at
            score = self._score.take(values.get("episode/score"), episodes)
            points.append(Point(at, env_steps, int(values.get("learner/version_update", 0)), score))
        return points

    def close(self) -> None: ...


class Processes:
    """A process with all that it started: CPU time and memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known = {self._root}
        self._cpu: dict[psutil.Process, float] = {}  # stays when a process ends
        self.history: list[tuple[float, float]] = []  # time, CPU seconds of all until then
        self.pss_mb = 0.0  # peak
        self._memory_at = 0.0

    def sample(self) -> None:
        now = time.time()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._known |= set(self._root.children(recursive=True))
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                self._cpu[process] = sum(process.cpu_times()[:2])
        self.history.append((now, sum(self._cpu.values())))
        if now - self._memory_at >= MEMORY_S:
            self._memory_at = now
            self.pss_mb = max(self.pss_mb, sum(pss_mb(one.pid) for one in self.alive()))

    def alive(self) -> list[psutil.Process]:
        return [one for one in self._known if one.is_running()]

    def cpu_at(self, when: float) -> float:
        """CPU seconds used until then, between two looks in proportion."""
        before = [one for one in self.history if one[0] <= when] or self.history[:1]
        after = [one for one in self.history if one[0] > when] or self.history[-1:]
        (t0, c0), (t1, c1) = before[-1], after[0]
        return c0 + (c1 - c0) * (when - t0) / (t1 - t0) if t1 > t0 else c0

    def end(self) -> None:
        """End the first process, in order, and then whatever is left."""
        self.sample()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root.terminate()
        psutil.wait_procs([self._root], common.STOP_S)
        left = self.alive()
        psutil.wait_procs(left, 5)  # they end by themselves when the first one is gone
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)


def pss_mb(pid: int) -> float:
    """Memory of a process, shared pages in proportion; 0 where it has just ended."""
    try:
        match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(match[1]) / 1024 if match else 0.0
