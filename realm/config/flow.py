"""Checks that the numbers of the flow between workers, buffer and learner work together.

`plan.make_plan` and `launch/start.py` call it, with every `auto` decided; the buffer's limiter relies on its
checks. Pure functions. A sample is one item of the buffer (a chunk by default), a round is one sample of every
environment of every worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from realm.errors import ConfigError

if TYPE_CHECKING:
    from realm.config.plan import Plan
    from realm.contract import Spec

_CHUNKS_OF_AN_ENV = 3  # `ChunkBuilder` holds as many
_WORKER_BYTES = 50 << 20  # a process of its own, without what it shares with others


def check_flow(plan: Plan, preload_ratio: float) -> None:
    """Raise ConfigError, with the numbers, if a run could stall, lose samples or exceed their age limit.

    On-policy, a drawn sample leaves the buffer, and workers wait for room. So the buffer must hold preload and one
    round together, and workers must collect enough for an update before they wait for a newer model. Off-policy,
    samples stay until the remover takes them, and workers wait for the ratio: nothing can stall, and since a sample can
    be drawn again and rounds go in by parts, any batch and any round works.
    """
    said = "part" if plan.publish_early else plan.max_version_lag
    if not plan.on_policy:
        return _check_off_policy(plan, said)
    _check_on_policy(plan)
    _check_batch(plan, said)
    capacity, round_size = plan.capacity, plan.round_size
    one_round = f"one round of all workers ({round_size} samples)"
    if capacity < plan.batch + round_size:
        raise ConfigError(
            f"replay_buffer_capacity is {capacity}, too small for train_batch_size {plan.batch} and {one_round}; "
            f"it must be at least {plan.batch + round_size}"
        )
    start = (
        f"training starts at {plan.preload} samples (replay_buffer_capacity {capacity} / preload_ratio "
        f"{preload_ratio:g})"
    )
    if capacity < plan.preload + round_size:
        raise ConfigError(
            f"{start}, and the buffer has no room for {one_round} as well; preload_ratio must be at "
            f"least {_up(capacity / (capacity - round_size))}"
        )
    ahead = ((plan.max_version_lag or 0) + 1) * plan.batch
    if plan.max_version_lag is not None and plan.preload > ahead:
        raise ConfigError(
            f"{start}, but with max_version_lag {said} and train_batch_size {plan.batch} workers "
            f"collect only {ahead} before the first update; preload_ratio must be at least {_up(capacity / ahead)}"
        )


def check_warm_up(max_env_steps: int, warm_up_steps: int, begins_at: int = 0, key: str = "warm_up_steps") -> None:
    """Raise ConfigError if a run would end before its first update.

    begins_at: env steps that a run has which goes on without its replay memory. key: by which it warms up
    """
    least = begins_at + warm_up_steps + 1
    if begins_at < max_env_steps < least:
        goes_on = f"goes on from {begins_at} with an empty memory, and so trains" if begins_at else "begins"
        raise ConfigError(
            f"max_env_steps is {max_env_steps}, but training {goes_on} after {key}, {warm_up_steps} env steps; "
            f"it must be at least {least}, or {key} smaller"
        )


def check_rows(plan: Plan, spec: Spec) -> None:
    """Raise ConfigError if rows cannot be cut out of chunks as `Spec.draw` asks, if it does."""
    if not spec.draw:
        return
    if plan.on_policy:
        raise ConfigError(
            "Spec.draw cuts chunks into rows, which only a replay memory does; "
            'algorithm_on_policy_or_off_policy must be "off-policy", or the spec without draw'
        )
    if plan.backend == "reverb":
        raise ConfigError(
            "buffer_backend is reverb, which cannot cut chunks into rows as Spec.draw asks; it must be auto or native"
        )
    if plan.remover != "Fifo":
        raise ConfigError(f"reverb_remover is {plan.remover}, but chunks leave in the order they came; it must be Fifo")
    length, n_step, look_back = spec.chunk_length, spec.draw.n_step, spec.draw.look_back
    chunks = 1 + math.ceil((n_step - 1) / length) + math.ceil(look_back / length)
    least = (chunks + 1) * length * plan.round_size
    if plan.capacity < least:
        raise ConfigError(
            f"replay_buffer_capacity is {plan.capacity} steps, but rows of {n_step} steps that look {look_back} back "
            f"need {chunks} chunks of {length} steps of each of the {plan.round_size} environments, and one more that "
            f"comes in; it must be at least {least}"
        )


def check_memory(*, workers: int, envs_per_worker: int, chunk_bytes: int, kept: int, usable: int) -> None:
    """Raise ConfigError, with the numbers, if what a run certainly fills is more than the `usable` bytes.

    kept: bytes that a full buffer holds in memory.
    """
    playing = workers * (_CHUNKS_OF_AN_ENV * envs_per_worker * chunk_bytes + _WORKER_BYTES)
    if playing + kept > usable:
        raise ConfigError(
            f"aisrv_count {workers} x aisrv_connect_to_kaiwu_env_count {envs_per_worker} environments and a "
            f"full replay_buffer_capacity, with chunks of {chunk_bytes:,} bytes, need at least "
            f"{(playing + kept) / 1e9:,.1f} GB of memory (workers {playing / 1e9:,.1f}, buffer {kept / 1e9:,.1f}), "
            f"and {usable / 1e9:,.1f} GB are there; they must be fewer"
        )


def _check_on_policy(plan: Plan) -> None:
    if plan.warm_up_steps:
        raise ConfigError(
            f"warm_up_steps is {plan.warm_up_steps}, but on-policy training has no memory to fill first; it must be "
            "auto or 0, or training off-policy"
        )
    if plan.ratio != 1:
        raise ConfigError(
            f"production_consume_ratio is {plan.ratio:g}, but on-policy training uses each sample once; it must be 1 "
            "(the algorithm itself may pass over a batch several times), or training off-policy"
        )
    if plan.sampler != "Fifo":
        raise ConfigError(
            f"reverb_sampler is {plan.sampler}, but on-policy training takes samples in the order of their arrival; "
            "it must be Fifo, or training off-policy"
        )


def _check_off_policy(plan: Plan, said: str | int | None) -> None:
    if plan.sampler not in ("Uniform", "Prioritized"):
        raise ConfigError(
            f"reverb_sampler is {plan.sampler}, which in off-policy training draws the same sample again and again; "
            "it must be Uniform or Prioritized, or training on-policy"
        )
    if plan.remover == "Lifo":
        raise ConfigError(
            "reverb_remover is Lifo, so a full buffer would discard each new sample and keep its first "
            f"{plan.capacity} for ever; it must be Fifo, Uniform, Prioritized, MinHeap or MaxHeap"
        )
    if plan.max_version_lag is not None:
        raise ConfigError(
            f"max_version_lag is {said}, but samples of an off-policy buffer may be of any age; "
            "it must be free, or training on-policy"
        )


def _check_batch(plan: Plan, said: str | int | None) -> None:
    batch, round_size = plan.batch, plan.round_size
    if plan.max_version_lag == 0 and batch != round_size:
        strict = said or "0 (strict on-policy)"
        raise ConfigError(
            f"max_version_lag is {strict} and train_batch_size is {batch}, but one version collects one round of all "
            f"workers ({round_size} samples); train_batch_size must be {round_size}, or the lag at least 1"
        )
    if plan.max_version_lag is not None and batch % round_size:
        raise ConfigError(
            f"train_batch_size is {batch}, but with max_version_lag {said} an update takes whole rounds of "
            f"all workers; it must be a multiple of {round_size}, or max_version_lag free"
        )


def _up(value: float) -> float:
    """Round up to two digits after the point, so that the advice is enough."""
    return math.ceil(value * 100) / 100
