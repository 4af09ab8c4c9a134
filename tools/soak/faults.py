"""The faults that are done to running processes: each is one function that does it, waits, checks and tells.

In `random_faults`, the long run, roles are killed and frozen at random; in `undisturbed` no process may grow.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tools import common
from tools.soak.victim import (
    BEAT,
    STRICT,
    SUPERVISOR,
    Ground,
    Outcome,
    Victim,
    frozen,
    memory_mb,
    require,
)

CONFIG = "conf/configure_app.toml"
SETTINGS = (
    "wrapper_type=remote", "predict_local_or_remote=remote", "aisrv_count=2", "restart_budget=1000",
    "report_interval_s=0.5", "dump_model_freq=10",
)  # fmt: skip
QUIET_S = 20.0  # at the end nothing is injected, so that the last counters are told
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


def trained(ground: Ground) -> Victim:
    ground.folder.mkdir(parents=True)
    return Victim(ground.folder, *SETTINGS, *ground.settings, config=CONFIG)


def random_faults(ground: Ground) -> Outcome:
    """Roles are killed and frozen at random for `minutes`; restarts must be as many as kills."""
    end_s, draw, took, kills, frozen_s = (
        60 * ground.minutes,
        random.Random(ground.seed),
        list[float](),
        0,
        list[float](),
    )
    with trained(ground) as run:
        run.wait_updates(2)
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < end_s - QUIET_S:
            ground.show(f"minute {now / 60:.1f} of {ground.minutes:g}, {len(took)} faults")
            label = draw.choice([*run.labels(), SUPERVISOR])
            if label != SUPERVISOR and draw.random() < KILL_SHARE:
                took.append(run.kill_and_recover(label))
                kills += 1
            else:
                frozen_s.append(math.exp(draw.uniform(*map(math.log, FREEZE_S))))
                frozen(run.pid_of(label), frozen_s[-1])
                took.append(run.goes_on(2, f"training goes on after {label} was frozen"))
            time.sleep(draw.uniform(*EVENT_S))
        time.sleep(max(0.0, end_s - (time.monotonic() - begin)))
        restarts = run.restarts()
        require(run.interrupt() == 0, run.text())
        require(run.processes() == [], f"left: {run.processes()}")
        require(restarts == kills, f"{restarts} restarts after {kills} kills")
        lost = f"{restarts} restarts counted of {kills} kills; training score {score(run.dir):.1f}"
    injected = f"{ground.minutes:g} minutes: {kills} kills, {len(frozen_s)} freezes of {sum(frozen_s):.0f} s in all"
    return Outcome(injected, kills + len(frozen_s), lost, took)


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
