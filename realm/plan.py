"""The numbers a run works with, once every `auto` of the configuration is decided (by `launch/plan.py`).

Plain data, made once at the start and handed to every role with its orders.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from realm.buffer import Limiter, NativeStorage, ReplayBuffer, Storage
from realm.contract import Spec


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


def make_replay_buffer(plan: Plan, spec: Spec, table: str, seed: int) -> ReplayBuffer:
    """The buffer that the plan asks for, with its storage; table: the name of reverb's table."""
    fields, selectors = spec.sample_fields, (plan.sampler, plan.remover)
    storage: Storage
    if plan.backend == "reverb":
        from realm.reverb_buffer import ReverbStorage  # loads reverb, which not every machine has

        storage = ReverbStorage(fields, plan.capacity, *selectors, plan.on_policy, plan.priority_exponent, table)
    else:
        storage = NativeStorage(fields, plan.capacity, *selectors, plan.on_policy, plan.priority_exponent, seed)
    limiter = Limiter(
        once=plan.on_policy,
        capacity=plan.capacity,
        preload=plan.preload,
        batch=plan.batch,
        ratio=plan.ratio,
        ahead=plan.round_size,
    )
    return ReplayBuffer(spec, storage, limiter, plan.max_version_lag)
