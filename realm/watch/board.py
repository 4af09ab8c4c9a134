"""Combines the roles' reports: sums over processes and restarts, rates, the live display, TensorBoard's values.

Used by the supervisor and by the one-process run (`launch/local.py`), which feeds it the same reports.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import repeat
from statistics import fmean

from realm.contract import Evaluation, Report, curve_name
from realm.watch.status import Scored, Status

GAUGES = {
    "pid", "size", "new_env_steps", "warm_up_left", "warm_up_samples_left", "rss_mb", "peak_mb", "open_files",
    "model_bytes", "version_epoch", "version_update", "models_loaded", "published",
}  # fmt: skip
"""Totals that are levels: only the newest value counts. Other totals add up over restarts."""

PLUMBING = "system"
"""First part of the tags of rates, shares, levels and durations of the processes. TensorBoard shows them last."""

RECENT_EPISODES = 200
"""Episodes in the means of the live display."""
_PACE_S = 60.0
"""About how long the displayed speed looks back: a long update is followed by the steps of a round all at once."""
_LONGEST_S = 1000 * 86_400.0
"""A remaining time that is longer is not known."""


def last_episodes() -> deque[float]:
    """One statistic of the last RECENT_EPISODES episodes. They are reported in groups, and each has its group's mean.

    Unlike that of an exponential mean, the result does not depend on how often a role reports.
    """
    return deque(maxlen=RECENT_EPISODES)


@dataclass
class Board:
    """Takes reports and gives numbers. Times are monotonic seconds."""

    started_at: float = field(default_factory=time.monotonic)
    env_steps: int = 0
    """Of the run, over all epochs: the x axis of every curve. What batches have told the learner; before its first
    batch also what came into the buffer since."""
    evaluation: Evaluation | None = None
    """The evaluator's newest result."""
    plays_on: bool = False
    """Workers play on, however long the learner takes: a living run shows what they have played."""
    trains_since: float | None = None
    """When everything was ready for the first env step; None before."""

    def __post_init__(self) -> None:
        self._played_before = 0.0  # env steps of the workers before this begin
        self._begun_at = self._told = self.env_steps  # the learner's env steps at its begin, and now
        self._totals: dict[tuple[str, int, int], dict[str, float]] = {}
        self._means: dict[str, dict[str, list[float]]] = defaultdict(dict)
        self._last: dict[str, float] = {}
        self._last_at = self.started_at
        self._smoothed: dict[str, float] = {}  # running means for the live display
        self._pace = (0.0, 0.0)  # env steps, and in how many seconds, the older the less they count
        self._episodes: dict[str, deque[float]] = {}  # statistic -> of the last episodes, as `last_episodes` has it

    def begin(self, env_steps: int) -> None:
        """A learner begins or goes on here, which may be earlier than a lost one had come."""
        self.env_steps = self._begun_at = self._told = env_steps
        self._played_before = self.total("aisrv", "env_steps")

    def count(self, told: int, new: int) -> None:
        """Set the env steps. told: those of the learner; new: that came into the buffer since its last batch."""
        self._told = max(self._told, told)  # a learner that fails while it starts reports 0
        # the two may be of different moments, and a step would count twice; not before the learner's first batch
        new = new if self._told == self._begun_at else 0
        self.env_steps = max(self.env_steps, self._told + new)

    def judged(self, result: Evaluation) -> dict[str, float]:
        """Show an evaluation; returns its curves, tag -> value."""
        self.evaluation = result
        named = {curve_name(name): value for name, value in result.means.items()} | {"best": result.best}
        return {f"evaluation/{name}": value for name, value in named.items() if name}

    def take(self, report: Report, incarnation: int) -> None:
        """Add one report of one process."""
        role, means = report.role, report.means
        self._totals[role, report.index, incarnation] = report.totals
        for name, (amount, count) in means.items():
            entry = self._means[role].setdefault(name, [0.0, 0.0])
            entry[0] += amount
            entry[1] += count
            mean = amount / count
            if not math.isfinite(mean):
                continue  # a running mean would stay NaN for ever; the curve shows the NaN
            if name.startswith("episode/"):
                self._episodes.setdefault(name, last_episodes()).extend(repeat(mean, int(min(count, RECENT_EPISODES))))
            else:
                old = self._smoothed.get(key := f"{role}/{name}", mean)
                self._smoothed[key] = old + 0.3 * (mean - old)
        if role in ("learner", "buffer"):
            told = report.env_steps if role == "learner" else 0
            self.count(told, int(self.total("buffer", "new_env_steps")))

    def total(self, role: str, name: str) -> float:
        """A counter summed over the role's processes and restarts; a gauge over its living processes."""
        newest: dict[int, int] = {}
        for label, index, incarnation in self._totals:
            if label == role:
                newest[index] = max(incarnation, newest.get(index, 0))
        return sum(
            totals.get(name, 0.0)
            for (label, index, incarnation), totals in self._totals.items()
            if label == role and (name not in GAUGES or incarnation == newest[index])
        )

    def restarted(self, role: str) -> bool:
        """Whether any process of the role was started again; then its totals miss the time after the last report."""
        return any(name == role and incarnation > 1 for name, _, incarnation in self._totals)

    def of_process(self, role: str, index: int, incarnation: int) -> dict[str, float]:
        return self._totals.get((role, index, incarnation), {})

    def processes(self) -> dict[str, dict[str, float]]:
        """`aisrv-0.1` (index, incarnation) -> the last totals of that process."""
        return {f"{role}-{index}.{inc}": totals for (role, index, inc), totals in sorted(self._totals.items())}

    def recent(self, name: str) -> float | None:
        return fmean(self._episodes[name]) if name in self._episodes else self._smoothed.get(name)

    @property
    def score(self) -> float | None:
        """The mean score of the last episodes; of an environment that reports no score, the mean return."""
        return self.recent(self._statistic)

    @property
    def _statistic(self) -> str:
        return "episode/score" if "episode/score" in self._episodes else "episode/return"

    def recent_of(self, role: str) -> dict[str, float]:
        """Name -> smoothed mean of each value that a role has reported."""
        prefix = f"{role}/"
        return {name.removeprefix(prefix): value for name, value in self._smoothed.items() if name.startswith(prefix)}

    def curves(self) -> dict[str, float]:
        """Values for TensorBoard: means since the last call, levels, and rates of every counter."""
        now = time.monotonic()
        seconds = max(now - self._last_at, 1e-6)
        values: dict[str, float] = {}
        for role, means in self._means.items():
            for name, (amount, count) in means.items():
                values[_mean_tag(role, name)] = amount / max(count, 1e-9)
        self._means.clear()
        for role in sorted({role for role, _, _ in self._totals}):
            names = {name for (label, _, _), totals in self._totals.items() if label == role for name in totals}
            for name in sorted(names - {"pid"}):
                total, key = self.total(role, name), f"{PLUMBING}/{role}/{name}"
                if name in GAUGES:
                    values[key] = total
                else:
                    rate = (total - self._last.get(key, 0.0)) / seconds
                    self._last[key] = total
                    # counters of seconds (busy_s, wait_s, cpu_s) become shares of a core; the others become rates
                    values[f"{key[:-2]}_share" if key.endswith("_s") else f"{key}_per_s"] = rate
        new = values.get(f"{PLUMBING}/aisrv/env_steps_per_s", 0.0) * seconds
        played = min(seconds, self.training_s) or seconds  # the start does not count
        values[f"{PLUMBING}/env_steps_per_s"] = new / played
        fade = math.exp(-seconds / _PACE_S)
        self._pace = (self._pace[0] * fade + new, self._pace[1] * fade + played)
        self._last_at = now
        return values

    @property
    def training_s(self) -> float:
        """Seconds of training, as `max_seconds` counts them."""
        return 0.0 if self.trains_since is None else time.monotonic() - self.trains_since

    def status(self, state: str, capacity: int, max_env_steps: int, max_seconds: float) -> Status:
        """The numbers of this moment. capacity: samples that the buffer holds, 0 if it is not used. Limits: 0 is
        none."""
        env_steps = self.env_steps
        if self.plays_on and state == "running":
            env_steps = max(env_steps, self._begun_at + int(self.total("aisrv", "env_steps") - self._played_before))
        rate = self._pace[0] / max(self._pace[1], 1e-6)
        remaining = []
        if max_seconds:
            remaining.append(max(0.0, max_seconds - self.training_s))
        left = max(0, max_env_steps - env_steps)
        if max_env_steps and left < rate * _LONGEST_S:  # where nothing moves, the rate falls for ever
            remaining.append(left / rate)
        evaluation = best = None
        if newest := self.evaluation:
            evaluation = Scored(newest.statistic, newest.score, *newest.version)
            if any(newest.best_version) and newest.version.update:  # the untrained policy is the best of nothing
                best = Scored(newest.statistic, newest.best, *newest.best_version)
        return Status(
            state=state,
            env_steps=env_steps,
            max_env_steps=max_env_steps,
            env_steps_per_s=rate,
            updates=int(self.total("learner", "version_update")),
            episodes=int(self.total("aisrv", "episodes")),
            statistic="score" if self._statistic == "episode/score" else "return",
            score=self.score,
            score_episodes=len(self._episodes.get(self._statistic, ())),
            evaluation=evaluation,
            best=best,
            policy_lag_updates=self.recent("learner/policy_lag_updates"),
            buffer_samples=int(self.total("buffer", "size")),
            buffer_capacity=capacity,
            warm_up_left=int(self.total("buffer", "warm_up_left")),
            warm_up_samples_left=int(self.total("buffer", "warm_up_samples_left")),
            elapsed_s=time.monotonic() - self.started_at,
            remaining_s=min(remaining) if remaining else None,
        )


def _mean_tag(role: str, name: str) -> str:
    """What the user's agent, workflow and episodes report stays as they call it; all else is plumbing."""
    if name.startswith("episode/"):
        return name
    trains = role == "learner" or (role == "aisrv" and not name.endswith("_ms"))
    return f"{role}/{name}" if trains else f"{PLUMBING}/{role}/{name}"
