"""Looks at the machine and the configuration and decides every `auto`; says what it chose and why.

Called once before a run starts. In: AppConfig, Machine. Out: a Plan, after `check_flow` found that its numbers
can work together.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from realm.config import AppConfig
from realm.flow import check_flow, preload_samples
from realm.plan import Plan
from realm.verbs import gate_window

T = TypeVar("T")

_FEW_CORES = 4
_ENVS_PER_ROUND = 128


@dataclass(frozen=True)
class Machine:
    """What a plan depends on."""

    cores: int
    gpus: int
    has_reverb: bool


def this_machine() -> Machine:
    """Cores this process may use, NVIDIA devices, and whether reverb is installed (without importing it)."""
    # sched_getaffinity sees taskset and cpusets; it is Linux's own
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    gpus = len([one for one in Path("/dev").glob("nvidia[0-9]*")])
    return Machine(cores, gpus, importlib.util.find_spec("reverb") is not None)


def make_plan(app: AppConfig, machine: Machine) -> Plan:
    """Decide. Raises ConfigError when the numbers cannot work together."""
    why: list[str] = []

    def choose(key: str, value: T, reason: str) -> T:
        why.append(f"{key} = {value}: {reason}")
        return value

    local = app.wrapper_type == "local"
    on_policy = app.algorithm_on_policy_or_off_policy == "on-policy"

    alternating = app.flow == "alternating"
    if app.flow == "auto":
        alternating = machine.cores <= _FEW_CORES and machine.gpus == 0
        cores = f"{machine.cores} cores" + (f" and {machine.gpus} GPUs" if machine.gpus else "")
        choose("flow", "alternating" if alternating else "overlapping", cores)

    workers = 1 if local else app.aisrv_count
    if workers == "auto":
        spare = 2 if alternating else max(1, machine.cores - 2)
        reason = "one plays while the actor answers the other" if alternating else "a core each"
        workers = choose("aisrv_count", min(spare, 16), reason)

    envs = app.aisrv_connect_to_kaiwu_env_count
    if envs == "auto":
        envs = choose(
            "aisrv_connect_to_kaiwu_env_count",
            max(8, _ENVS_PER_ROUND // workers),
            f"about {_ENVS_PER_ROUND} environments in all",
        )
    round_size = workers * envs

    batch = app.train_batch_size
    if batch == "auto":
        batch = choose("train_batch_size", round_size, "one round of all workers")

    lag: int | None
    if app.max_version_lag == "free":
        lag = None
    elif app.max_version_lag != "auto":
        lag = app.max_version_lag
    elif not on_policy:
        lag = None
    else:
        lag = 0 if alternating and batch == round_size else 1
        choose("max_version_lag", lag, "every batch of one version" if lag == 0 else "play the next round while training")

    capacity = app.replay_buffer_capacity
    if capacity == "auto":
        size = max(2 * batch, batch + 2 * round_size) if on_policy else 32 * max(batch, round_size)
        capacity = choose("replay_buffer_capacity", size, "room for what is under way" if on_policy else "32 batches")

    backend: str = app.buffer_backend
    if local:
        backend = "native"
    elif backend == "auto":
        backend = "reverb" if machine.has_reverb else "native"
        choose("buffer_backend", backend, "reverb is installed" if machine.has_reverb else "reverb is not installed")

    threads = app.torch_num_threads
    if threads == "auto":
        threads = machine.cores if alternating or local else max(1, machine.cores - workers - 1)
        choose("torch_num_threads", threads, "everyone else waits while it trains" if alternating else "cores left over")

    device = app.device
    if device == "auto":
        device = choose("device", "cuda" if machine.gpus else "cpu", "a GPU is there" if machine.gpus else "no GPU")

    preload_ratio = app.preload_ratio
    if lag is not None and app.replay_buffer_capacity == "auto":
        # workers that wait for a version must have played what the first update needs
        window = gate_window(lag, batch, round_size)
        assert window is not None
        preload_ratio = max(preload_ratio, capacity / min(window * round_size, batch))

    check_flow(
        policy=app.algorithm_on_policy_or_off_policy,
        sampler=app.reverb_sampler,
        remover=app.reverb_remover,
        capacity=capacity,
        preload_ratio=preload_ratio,
        train_batch_size=batch,
        ratio=app.production_consume_ratio,
        round_size=round_size,
        max_version_lag=lag,
    )
    preload = preload_samples(capacity, preload_ratio)
    return Plan(
        workers=workers,
        envs_per_worker=envs,
        predict_local=local or app.predict_local_or_remote == "local",
        backend=backend,
        on_policy=on_policy,
        sampler=app.reverb_sampler,
        remover=app.reverb_remover,
        priority_exponent=app.priority_exponent,
        capacity=capacity,
        preload=max(batch, preload),
        batch=batch,
        ratio=app.production_consume_ratio,
        max_version_lag=lag,
        max_unacked_rounds=app.max_unacked_rounds,
        learner_threads=threads,
        device=device,
        why=tuple(why),
    )
