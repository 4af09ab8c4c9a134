"""Looks at the machine and the configuration and decides every `auto`; says what it chose and why.

Called once before a run starts. In: AppConfig, Machine. Out: a Plan, after `check_flow` found that its numbers
can work together.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from realm.config.flow import check_flow, preload_samples
from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.user import takes_early

T = TypeVar("T")

_ENVS_PER_ROUND = 128
_ENVS_ON_TWO_CORES = 64  # the less is played before each update, the fewer steps it takes to learn
_MOST_WORKERS = 16
_FEW_ENVS = 32  # in all: below, a forward costs more than its rows
_ACTOR_ON_CPU = "on a CPU the way to an actor and back takes longer than the forward itself"


@dataclass(frozen=True)
class Plan:
    """Who runs, how many of each, and the flow of samples between them.

    workers, envs_per_worker      N and E
    predict_local                 predict in the worker instead of at the actor
    backend                       reverb or native
    on_policy                     every sample is trained on once
    sampler, remover              names of reverb's selectors, without their prefix
    capacity, preload, batch      samples: what the buffer holds, what must be there first, what an update takes
    ratio                         draws of a sample per sample that came
    max_version_lag               updates; None: free
    publish_early                 weights go out before an update is over; workers play beside the rest of it
    max_unacked_rounds            rounds of a worker that may wait for the buffer's word
    cores                         those that the run may use
    learner_threads               torch threads of the learner
    device                        where the learner's and the actor's models live
    why                           one sentence for each choice that was made, for the user
    """

    workers: int
    envs_per_worker: int
    predict_local: bool
    backend: str
    on_policy: bool
    sampler: str
    remover: str
    priority_exponent: float
    capacity: int
    preload: int
    batch: int
    ratio: float
    max_version_lag: int | None
    publish_early: bool
    max_unacked_rounds: int
    cores: int
    learner_threads: int
    device: str
    why: tuple[str, ...] = ()

    @property
    def round_size(self) -> int:
        """Samples of one round of all workers: N * E."""
        return self.workers * self.envs_per_worker

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        return Plan(**{**data, "why": tuple(data["why"])})


@dataclass(frozen=True)
class Machine:
    """What a plan depends on."""

    cores: int
    gpus: int
    has_reverb: bool


def this_machine() -> Machine:
    """What this process may use, found out without importing torch or reverb."""
    # sched_getaffinity sees taskset and cpusets; it is Linux's own
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) or int(Path("/dev/dxg").exists())  # dxg: Windows' WSL
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            gpus = 0  # this build of torch could not use them
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError("torch is not installed in this Python; README.md says how to install it") from error
    return Machine(cores, gpus, all(importlib.util.find_spec(name) for name in ("reverb", "tensorflow")))


def make_plan(app: AppConfig, machine: Machine) -> Plan:
    """Decide. Raises ConfigError when the numbers cannot work together."""
    why: list[str] = []

    def auto(key: str, wanted: T | Literal["auto"], choice: T, reason: str) -> T:
        """What was asked for, or, for `auto`, the choice, with its reason in `why`."""
        if wanted != "auto":
            return wanted
        why.append(f"{key} = {choice}: {reason}")
        return choice

    local = app.wrapper_type == "local"
    on_policy = app.algorithm_on_policy_or_off_policy == "on-policy"
    cores, gpus = machine.cores, machine.gpus
    if app.device.startswith("cuda") and not gpus:
        raise ConfigError(
            f"device is {app.device}, but there is no GPU (/dev/nvidia0), or this build of torch is for the CPU only; "
            "allowed is auto or cpu"
        )

    device = auto("device", app.device, "cuda" if gpus else "cpu", "a GPU is there" if gpus else "no GPU is there")
    if local:
        place = "local"
    else:
        on_gpu = ("remote", "one forward on the GPU for all workers")
        choice = ("local", _ACTOR_ON_CPU) if device == "cpu" else on_gpu
        place = auto("predict_local_or_remote", app.predict_local_or_remote, *choice)

    choice = ("overlapping", f"{cores} cores, {gpus} GPUs: some play while the learner trains")
    if app.max_version_lag == 0:
        choice = ("alternating", "max_version_lag is 0")
    elif cores == 1 and gpus == 0:
        choice = ("alternating", "there is one core")
    flow = auto("flow", app.flow, *choice)
    alternating = flow == "alternating"

    if local:
        workers = 1
    elif alternating and place == "local":
        workers = auto("aisrv_count", app.aisrv_count, min(cores, _MOST_WORKERS), "a core each while they play")
    elif alternating:
        workers = auto("aisrv_count", app.aisrv_count, 2, "one plays while the actor answers the other")
    elif device == "cpu":
        share = min(max(1, cores // 4), _MOST_WORKERS)
        workers = auto("aisrv_count", app.aisrv_count, share, "on a CPU training takes most of the time")
    else:
        workers = auto("aisrv_count", app.aisrv_count, min(max(1, cores - 2), _MOST_WORKERS), "a core each")
    # an update has costs of its own, which more cores do not make less
    in_all = _ENVS_ON_TWO_CORES if device == "cpu" and cores <= 2 else _ENVS_PER_ROUND
    envs = auto(
        "aisrv_connect_to_kaiwu_env_count",
        app.aisrv_connect_to_kaiwu_env_count,
        max(8, in_all // workers),
        f"about {in_all} environments in all",
    )
    round_size = workers * envs
    batch = auto("train_batch_size", app.train_batch_size, round_size, "one round of all workers")

    bound: tuple[int | Literal["part", "free"], str]
    if not on_policy or batch % round_size:
        bound = ("free", "a bound needs whole rounds" if on_policy else "a replay memory holds samples of any age")
    elif alternating and batch == round_size:
        bound = (0, "every batch is of one version")
    elif not local and device == "cpu" and cores == 2 and batch == round_size and takes_early(app.algo):
        # with more cores, a worker that has one for itself would wait for what it need not wait for
        bound = ("part", "the next round is played beside the last steps on this one")
    else:
        bound = (1, "the next round is played while this one is trained on")
    chosen = auto("max_version_lag", app.max_version_lag, *bound)
    bounded = None if chosen == "free" else chosen
    publish_early, lag = bounded == "part", 0 if bounded == "part" else bounded

    way = ("Fifo", "on-policy") if on_policy else ("Uniform", "off-policy")
    sampler = auto("reverb_sampler", app.reverb_sampler, *way)
    if on_policy:
        room = max(2 * batch, batch + 2 * round_size)
        capacity = auto("replay_buffer_capacity", app.replay_buffer_capacity, room, "room for what is under way")
    else:
        room = 32 * max(batch, round_size)
        capacity = auto("replay_buffer_capacity", app.replay_buffer_capacity, room, "32 batches")

    backend = app.buffer_backend
    if local:
        backend = "native"
    elif backend == "reverb" and not machine.has_reverb:
        raise ConfigError("buffer_backend is reverb, which is not installed in this Python; allowed is auto or native")
    elif machine.has_reverb:
        backend = auto("buffer_backend", backend, "reverb", "it is installed")
    else:
        backend = auto("buffer_backend", backend, "native", "reverb is not installed")

    if local or (alternating and lag == 0 and not publish_early):
        # with any other lag the workers go on playing during an update, whatever the flow is called
        threads = auto("torch_num_threads", app.torch_num_threads, cores, "everyone else waits while it trains")
    else:
        # two at least, one for the policy and one for the critic: on two cores the worker fits in beside them
        spare = max(min(2, cores), cores - workers - (place == "remote"))
        threads = auto("torch_num_threads", app.torch_num_threads, spare, "the cores that workers and actor leave")

    preload_ratio = app.preload_ratio
    if lag is not None and app.replay_buffer_capacity == "auto":
        # workers that wait for a newer version must have played what the first update needs
        preload_ratio = max(preload_ratio, capacity / batch)

    check_flow(
        policy=app.algorithm_on_policy_or_off_policy,
        sampler=sampler,
        remover=app.reverb_remover,
        capacity=capacity,
        preload_ratio=preload_ratio,
        train_batch_size=batch,
        ratio=app.production_consume_ratio,
        round_size=round_size,
        max_version_lag=bounded,
    )
    preload = preload_samples(capacity, preload_ratio)
    return Plan(
        workers=workers,
        envs_per_worker=envs,
        predict_local=place == "local",
        backend=backend,
        on_policy=on_policy,
        sampler=sampler,
        remover=app.reverb_remover,
        priority_exponent=app.priority_exponent,
        capacity=capacity,
        preload=max(batch, preload),
        batch=batch,
        ratio=app.production_consume_ratio,
        max_version_lag=lag,
        publish_early=publish_early,
        max_unacked_rounds=app.max_unacked_rounds,
        cores=cores,
        learner_threads=threads,
        device=device,
        why=tuple(why),
    )


def slow_choices(app: AppConfig, plan: Plan) -> list[str]:
    """A sentence for each choice of the user's that is known to be slow here; `tools/bench/train.py --row`
    measures them (docs/performance.md has the table)."""
    found = []
    if plan.workers > 2 * plan.cores:
        found.append(f"aisrv_count is {plan.workers}, but there are {plan.cores} cores for all workers to step on")
    if plan.learner_threads > plan.cores:
        found.append(f"torch_num_threads is {plan.learner_threads}, but there are {plan.cores} cores to learn on")
    if app.wrapper_type == "remote" and plan.round_size < _FEW_ENVS:
        found.append(
            f"there are {plan.round_size} environments in all, and a forward of so few rows takes nearly as long as "
            f"one of {_FEW_ENVS}"
        )
    if not plan.predict_local and app.predict_batch_size < plan.envs_per_worker:
        found.append(
            f"predict_batch_size is {app.predict_batch_size}, so each worker's question for "
            f"{plan.envs_per_worker} environments is a forward of its own"
        )
    if app.wrapper_type == "remote" and plan.predict_local and plan.device != "cpu":
        found.append("predict_local_or_remote is local, so workers predict on their cores while there is a GPU")
    if not plan.predict_local and plan.device == "cpu":
        found.append(f"predict_local_or_remote is remote, but {_ACTOR_ON_CPU}")
    waits = app.wrapper_type == "remote" and plan.max_version_lag == 0 and not plan.publish_early
    if waits and (plan.cores > 1 or plan.device != "cpu"):
        found.append("max_version_lag is 0, so workers and learner wait for each other, though there is room for both")
    return found
