"""The long run: roles killed and frozen at random, one bad frame in a hundred and strangers, next to a clean run.

Both runs train the same configuration for as many env steps. The first one must learn as well within noise, count
exactly what was injected, and need no more memory, handles and threads as time goes by.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from tools import common
from tools.soak.network import OPENINGS, SERVERS, WRONG, Peer, addresses, counted, visit
from tools.soak.victim import SUPERVISOR, Ground, Outcome, Victim, memory_mb, require

CONFIG = "conf/configure_app.toml"
SETTINGS = (
    "wrapper_type=remote", "predict_local_or_remote=remote", "aisrv_count=2", "restart_budget=1000",
    "restart_window_s=0.01", "report_interval_s=0.5", "dump_model_freq=10",
)  # fmt: skip
QUIET_S = 20.0  # at the end nothing is injected, so that the last counters are told
SHARE = 0.01  # of bad frames
EVENT_S = (4.0, 20.0)  # between two events
FREEZE_S = (1.0, 40.0)
KILLS = 0.7  # of the events of a role; the others are freezes
LOOK_S = 5.0
WARM_UP_MIN = 10.0  # no slope begins earlier: memory grows while a run warms up
LEAST_MIN = 5.0  # that a slope is made of
GROWTH_MB_PER_H = 200.0  # a slope below this counts as flat


@dataclass
class Look:
    """What a run needs at one moment: sums over its living processes."""

    minutes: float
    pss_mb: float
    handles: int
    threads: int
    env_steps: float


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
        if label != SUPERVISOR and draw.random() < KILLS:
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


def look(run: Victim, begin: float) -> Look:
    pss, handles, threads = 0.0, 0, 0
    family = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
    for one in family:
        with contextlib.suppress(psutil.Error):
            pss += memory_mb(one.pid)
            handles += one.num_fds()
            threads += one.num_threads()
    steps = sum(role["totals"].get("env_steps_trained", 0.0) for role in run.status()["roles"].values())
    return Look((time.monotonic() - begin) / 60, pss, handles, threads, steps)


def trained(ground: Ground, name: str, overrides: tuple[str, ...]) -> Victim:
    folder = ground.folder / name
    folder.mkdir(parents=True)
    return Victim(folder, *SETTINGS, *ground.settings, *overrides, config=CONFIG)


def random_faults(ground: Ground) -> Outcome:
    seconds, looks = 60 * ground.minutes, []
    with trained(ground, "faulty", ()) as run:
        run.wait_updates(2)
        begin, next_event = time.monotonic(), 0.0
        injector, draw = Injector(run, ground.seed), random.Random(ground.seed + 1)
        while (now := time.monotonic() - begin) < seconds:
            ground.show(f"minute {now / 60:.1f} of {ground.minutes:g}, {len(injector.done.recovery_s)} faults")
            if now > next_event and now < seconds - QUIET_S:
                injector.event()
                next_event = time.monotonic() - begin + draw.uniform(*EVENT_S)
            injector.noise()
            looks.append(look(run, begin))
            time.sleep(LOOK_S)
        injector.close()
        done, incarnations = injector.done, run.incarnations()
        require(run.interrupt() == 0, run.text())
        require(run.processes() == [], f"left: {run.processes()}")
        sums = run.summary()
        kills = sum(done.kills.values())
        restarts = sum(incarnations.values()) - len(incarnations)
        require(restarts == kills, f"{restarts} restarts after {kills} kills")
        faulty, steps = run.dir, int(sums["env_steps"])
        told = sum(totals.get("wire/bad_frames", 0) for totals in sums["processes"].values())
        sent = sum(number for label, number in done.bad.items() if label != SUPERVISOR)
        require(told == sent, f"the roles have counted {told:.0f} bad frames, {sent} were sent to them")
    with trained(ground, "clean", (f"max_env_steps={steps}",)) as run:
        begin, clean_looks = time.monotonic(), []
        run.wait_running()
        while run.process.poll() is None:
            ground.show(f"the clean run, {100 * (clean_looks[-1].env_steps if clean_looks else 0) / steps:.0f} %")
            with contextlib.suppress(Exception):  # it ends while it is looked at
                clean_looks.append(look(run, begin))
            time.sleep(LOOK_S)
        require(run.finish() == 0, run.text())
        clean = run.dir
    scores = {name: score(path) for name, path in (("faulty", faulty), ("clean", clean))}
    text = judged(scores, last_gain(clean), looks, clean_looks)
    bad = sum(done.bad.values())
    lost = (
        f"{restarts} restarts counted of {kills} kills, {bad:,} bad frames of {bad:,}, {done.wrong_passwords} wrong "
        f"passwords of {done.wrong_passwords}; {text}"
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
    with trained(ground, "undisturbed", ()) as run:
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


def score(run: Path) -> tuple[float, float]:
    """Mean training score over the last tenth of a run's env steps, and its standard error.

    Not what the last model scores with greedy actions: that jumps from one update to the next for most of a training.
    """
    curve = common.read_curves(run).get("episode/score", common.NO_CURVE)
    last = curve.value[curve.env_steps > 0.9 * curve.env_steps[-1]] if len(curve.value) else curve.value
    require(len(last) >= 3, f"{run} has {len(last)} points of the training score in its last tenth; train for longer")
    return float(last.mean()), float(last.std() / math.sqrt(len(last)))


def last_gain(run: Path) -> float:
    """What a run's training score gained in the last third of its env steps: where it still climbs, a training that
    lost some updates stands as much lower."""
    curve = common.read_curves(run).get("episode/score", common.NO_CURVE)
    if len(curve.value) < 10:
        return 0.0
    share = curve.env_steps / curve.env_steps[-1]
    before, last = (curve.value[(share > low) & (share <= high)] for low, high in ((0.55, 0.75), (0.9, 1.0)))
    return max(0.0, float(last.mean() - before.mean())) if len(before) and len(last) else 0.0


def slope(samples: list[tuple[float, float]]) -> float | None:
    """Growth an hour of (minute, value), by least squares over what came after minute ten. None for a shorter run: the
    beginning of a run tells nothing of its hour."""
    after = [sample for sample in samples if sample[0] >= WARM_UP_MIN]
    if len(after) < 3 or after[-1][0] - after[0][0] < LEAST_MIN - 2 * LOOK_S / 60:
        return None
    return float(60 * np.polyfit(*zip(*after, strict=True), 1)[0])


def slopes(looks: list[Look]) -> dict[str, float]:
    """What grows an hour in all processes together; empty for a short run."""
    found = {
        name: slope([(one.minutes, getattr(one, name)) for one in looks]) for name in ("pss_mb", "handles", "threads")
    }
    return {name: value for name, value in found.items() if value is not None}


def judged(scores: dict[str, tuple[float, float]], gain: float, looks: list[Look], clean: list[Look]) -> str:
    """A sentence on scores and on what the runs needed. Raises FaultFailed. gain: of `last_gain`."""
    (faulty, faulty_se), (well, well_se) = scores["faulty"], scores["clean"]
    # of the points, of another training, and of the place on the curve
    noise = 3 * math.hypot(faulty_se, well_se) + 0.02 * abs(well) + gain
    require(faulty >= well - noise, f"a score of {faulty:.1f}, the clean run has {well:.1f}, noise {noise:.1f}")
    told = slopes(looks)
    limits = {"pss_mb": GROWTH_MB_PER_H, "handles": 20, "threads": 5}
    grown = [name for name, value in told.items() if value > limits[name]]
    require(not grown, f"{grown} grow: {told} an hour; clean: {slopes(clean)}")
    growth = "; an hour " + ", ".join(f"{name} {value:+.1f}" for name, value in told.items()) if told else ""
    last, first = looks[-1], clean[-1] if clean else looks[-1]
    return (
        f"score {faulty:.1f} ± {faulty_se:.1f}, clean run {well:.1f} ± {well_se:.1f} (noise {noise:.1f}){growth}"
        f"; at the end {last.pss_mb:.0f} MB, {last.handles} handles, {last.threads} threads, clean "
        f"{first.pss_mb:.0f}, {first.handles}, {first.threads}"
    )
