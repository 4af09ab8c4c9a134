"""The faults that are done to running processes: each is one function that does it, waits, checks and tells.

`random_faults` is the long run: roles killed and frozen at random, one bad frame in a hundred and strangers. It must go
on training and count exactly what was injected. `undisturbed` is a run whose processes must not grow.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tools import common
from tools.soak.victim import (
    BEAT,
    OPENINGS,
    SERVERS,
    STRICT,
    SUPERVISOR,
    WRONG,
    Ground,
    Outcome,
    Peer,
    Victim,
    addresses,
    counted,
    frozen,
    memory_mb,
    require,
    visit,
)

CONFIG = "conf/configure_app.toml"
SETTINGS = (
    "wrapper_type=remote", "predict_local_or_remote=remote", "aisrv_count=2", "restart_budget=1000",
    "restart_window_s=0.01", "report_interval_s=0.5", "dump_model_freq=10",
)  # fmt: skip
QUIET_S = 20.0  # at the end nothing is injected, so that the last counters are told
SHARE = 0.01  # of bad frames
EVENT_S = (4.0, 20.0)  # between two events
FREEZE_S = (1.0, 40.0)
KILL_SHARE = 0.7  # of the events of a role; the others are freezes
LOOK_S = 5.0
WARM_UP_MIN = 10.0  # no slope begins earlier: memory grows while a run warms up
LEAST_MIN = 5.0  # that a slope is made of
GROWTH_MB_PER_H = 200.0  # a slope below this counts as flat
KILLS = 5

# ---- killed ----


def kill(label: str, ground: Ground) -> Outcome:
    took = []
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates()
        for number in range(KILLS):
            ground.show(f"kill {number + 1} of {KILLS}")
            took.append(run.kill_and_recover(label))
        require(run.restarts() == KILLS, f"{run.restarts()} restarts after {KILLS} kills")
        run.end()
        lost = f"{run.rows()}; {KILLS} restarts counted"
    return Outcome(f"kill -9 of {label}", KILLS, lost, took)


def kill_learner_then_buffer(ground: Ground) -> Outcome:
    """While workers write, which is why their lag is free."""
    took, times = [], 3
    with ground.victim(BEAT, "max_version_lag=free", "train_batch_size=20") as run:
        run.wait_updates()
        for number in range(times):
            ground.show(f"kill {number + 1} of {times}")
            run.wait_for(lambda: run.checkpoints()[-1][1] >= 20, "a checkpoint")
            begin = time.monotonic()
            run.kill("learner-0")
            run.kill("buffer-0")
            run.pid("learner-0")
            run.goes_on(5)
            took.append(time.monotonic() - begin)
        log = (run.dir / "log" / "learner-0.log").read_text()
        begun = [int(update) for update in re.findall(r"training from version \d+\.(\d+)", log)]
        require(len(begun) == times + 1 and min(begun[1:]) > 0, f"not resumed from a checkpoint: {begun}")
        require(run.restarts() == 2 * times, f"{run.restarts()} restarts after {2 * times} kills")
        buffer = run.end()["buffer"]
        old = int(buffer["refused_old_epoch"] + buffer["dropped_old_epoch"])
        lost = f"{run.rows()}; {old} samples of old epochs refused and counted"
    require(max(took) <= 60, f"an outage of {max(took):.0f} s")
    return Outcome("kill -9 of the learner, then of the buffer", times, lost, took)


# ---- frozen ----

FREEZES_S = (1, 12, 30, 40)


def freeze_each(ground: Ground) -> Outcome:
    """Every role in turn, and the supervisor, at the default heartbeat: none is started again."""
    took, number = [], 0
    settings = ("report_interval_s=0.5", "eval_cpu_share=0.2", "algo=tests.evaluated", "max_version_lag=0")
    with ground.victim(*settings) as run:
        run.wait_updates()
        before, labels = run.incarnations(), [*run.labels(), SUPERVISOR]
        for label in labels:
            for seconds in FREEZES_S:
                number += 1
                ground.show(f"{number} of {len(labels) * len(FREEZES_S)}: {label} for {seconds} s")
                frozen(run.pid_of(label), seconds)
                took.append(run.goes_on(10, f"training goes on after {label} stood still for {seconds} s"))
        require(run.incarnations() == before, f"started again: {run.incarnations()}, before {before}")
        run.end()
        lost = f"{run.rows()}; 0 restarts"
    return Outcome("a role or the supervisor frozen for 1, 12, 30, 40 s", number, lost, took)


# ---- the long run ----


@dataclass
class Injected:
    """How often what was done; by label, and in all."""

    kills: dict[str, int] = field(default_factory=dict)
    freezes: dict[str, int] = field(default_factory=dict)
    frozen_s: float = 0.0
    bad: dict[str, int] = field(default_factory=dict)
    visits: int = 0
    wrong_passwords: int = 0
    recovery_s: list[float] = field(default_factory=list)


class Injector:
    """Does one fault after the other to a run, by a seed."""

    def __init__(self, run: Victim, seed: int) -> None:
        self._run, self._draw = run, random.Random(seed)
        self.done = Injected()
        self._peers: dict[str, tuple[int, Peer, int, int]] = {}  # label -> pid, peer, messages before, wrong passwords

    def event(self) -> None:
        draw, labels = self._draw, [*self._run.labels(), SUPERVISOR]
        label = draw.choice(labels)
        if label != SUPERVISOR and draw.random() < KILL_SHARE:
            self.settle(label)
            self.done.recovery_s.append(self._run.kill_and_recover(label))
            self.done.kills[label] = self.done.kills.get(label, 0) + 1
            self._forget(label)
        else:
            seconds = math.exp(draw.uniform(*map(math.log, FREEZE_S)))
            pid = self._run.pid_of(label)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self.done.frozen_s += seconds
            self.done.freezes[label] = self.done.freezes.get(label, 0) + 1
            self.done.recovery_s.append(self._run.goes_on(2, f"training goes on after {label} was frozen"))

    def noise(self) -> None:
        """Bad frames until they are one in a hundred of what came in, and now and then a stranger."""
        for label in (*SERVERS, SUPERVISOR):
            pid = self._run.pid_of(label)
            if label not in self._peers or self._peers[label][0] != pid:
                self._forget(label)
                self._peers[label] = (pid, Peer(self._run.file()["run_id"], addresses(self._run)[label]), 0, 0)
            _, peer, _, wrong = self._peers[label]
            goal = SHARE * counted(self._run, label, "messages_in")
            if peer.sent < goal:
                peer.send_many(self._draw, math.ceil(goal) - peer.sent)
            opening = self._draw.choice(list(OPENINGS))
            visit(addresses(self._run)[label], opening, self._draw)
            self.done.visits += 1
            self._peers[label] = (pid, peer, 0, wrong + (opening == WRONG))

    def settle(self, label: str) -> None:
        """Wait until a port has counted what was sent to it, so that a kill takes no count with it."""
        if label not in self._peers or self._peers[label][0] != self._run.pid_of(label):
            return
        _, peer, _, wrong = self._peers[label]
        for name, number in (("bad_frames", peer.sent), ("refused_peers", wrong)):
            self._run.wait_for(lambda b=name, n=number: counted(self._run, label, b) >= n, f"{label} counts {name}")  # type: ignore[misc]
            got = counted(self._run, label, name)
            require(got == number, f"{label} has counted {got:.0f} {name}, {number} were sent")

    def _forget(self, label: str) -> None:
        if label in self._peers:
            _, peer, _, wrong = self._peers.pop(label)
            self.done.bad[label] = self.done.bad.get(label, 0) + peer.sent
            self.done.wrong_passwords += wrong
            peer.close()

    def close(self) -> None:
        for label in list(self._peers):
            self.settle(label)
            self._forget(label)


def trained(ground: Ground) -> Victim:
    ground.folder.mkdir(parents=True)
    return Victim(ground.folder, *SETTINGS, *ground.settings, config=CONFIG)


def random_faults(ground: Ground) -> Outcome:
    seconds = 60 * ground.minutes
    with trained(ground) as run:
        run.wait_updates(2)
        begin, next_event = time.monotonic(), 0.0
        injector, draw = Injector(run, ground.seed), random.Random(ground.seed + 1)
        while (now := time.monotonic() - begin) < seconds:
            ground.show(f"minute {now / 60:.1f} of {ground.minutes:g}, {len(injector.done.recovery_s)} faults")
            if now > next_event and now < seconds - QUIET_S:
                injector.event()
                next_event = time.monotonic() - begin + draw.uniform(*EVENT_S)
            injector.noise()
            time.sleep(LOOK_S)
        injector.close()
        done, incarnations = injector.done, run.incarnations()
        require(run.interrupt() == 0, run.text())
        require(run.processes() == [], f"left: {run.processes()}")
        sums = run.summary()
        kills = sum(done.kills.values())
        restarts = sum(incarnations.values()) - len(incarnations)
        require(restarts == kills, f"{restarts} restarts after {kills} kills")
        told = sum(totals.get("wire/bad_frames", 0) for totals in sums["processes"].values())
        sent = sum(number for label, number in done.bad.items() if label != SUPERVISOR)
        require(told == sent, f"the roles have counted {told:.0f} bad frames, {sent} were sent to them")
    bad = sum(done.bad.values())
    lost = (
        f"{restarts} restarts counted of {kills} kills, {bad:,} bad frames of {bad:,}, {done.wrong_passwords} wrong "
        f"passwords of {done.wrong_passwords}; training score {score(run.dir):.1f}"
    )
    freezes = sum(done.freezes.values())
    injected = (
        f"{ground.minutes:g} minutes: {kills} kills, {freezes} freezes of {done.frozen_s:.0f} s in all, {done.visits} "
        f"strangers, {bad:,} bad frames"
    )
    return Outcome(injected, kills + freezes, lost, done.recovery_s)


def undisturbed(ground: Ground) -> Outcome:
    """A run that nobody touches: the memory of each of its processes."""
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}  # label and pid -> minute and MB
    with trained(ground) as run:
        run.wait_updates(2)
        begin = time.monotonic()
        while (minute := (time.monotonic() - begin) / 60) < ground.minutes:
            ground.show(f"minute {minute:.1f} of {ground.minutes:g}, undisturbed")
            for label in (SUPERVISOR, *run.labels()):
                seen.setdefault((label, pid := run.pid_of(label)), []).append((minute, memory_mb(pid)))
            time.sleep(LOOK_S)
        require(run.interrupt() == 0, run.text())
    memory = []
    for (label, _), samples in sorted(seen.items()):
        after = [mb for minute, mb in samples if minute >= WARM_UP_MIN]
        if (growth := slope(samples)) is not None:  # else it was started again
            memory.append({"process": label, "first_mb": after[0], "last_mb": after[-1], "mb_per_h": growth})
    grown = [one["process"] for one in memory if one["mb_per_h"] > GROWTH_MB_PER_H]
    require(not grown, f"{grown} grow: {memory}")
    told = f"{len(memory)} processes, {sum(one['last_mb'] for one in memory):.0f} MB in all"
    if not memory:
        told = f"too short for a slope, which takes {WARM_UP_MIN + LEAST_MIN:g} minutes"
    return Outcome(f"{ground.minutes:g} minutes undisturbed", 0, told, [], memory)


def score(run: Path) -> float:
    """Mean training score over the last tenth of a run's env steps."""
    curve = common.read_curves(run).get("episode/score", common.NO_CURVE)
    require(len(curve.value), f"{run} has no training score; train for longer")
    return float(curve.value[curve.env_steps >= 0.9 * curve.env_steps[-1]].mean())


def slope(samples: list[tuple[float, float]]) -> float | None:
    """Growth an hour of (minute, value), by least squares over what came after minute ten. None for a shorter run: the
    beginning of a run tells nothing of its hour."""
    after = [sample for sample in samples if sample[0] >= WARM_UP_MIN]
    if len(after) < 3 or after[-1][0] - after[0][0] < LEAST_MIN - 2 * LOOK_S / 60:
        return None
    return float(60 * np.polyfit(*zip(*after, strict=True), 1)[0])


FAULTS: dict[str, tuple[float, Callable[[Ground], Outcome]]] = {
    "F1": (0.5, partial(kill, "aisrv-0")),
    "F2": (0.5, partial(kill, "actor-0")),
    "F3": (0.5, partial(kill, "model_pool-0")),
    "F4": (1, kill_learner_then_buffer),
    "F26": (0, random_faults),  # --minutes
    "F27": (10, freeze_each),
    "memory": (0, undisturbed),  # --minutes
}
"""Name in docs/reliability.md -> about how many minutes it takes, and what is done."""
