"""Whether the numbers of the flow between workers, buffer and learner can work together.

Called once by `launch/plan.py`, before any process starts, with every "auto" resolved; the buffer's limiter relies on
what it proves. Pure functions of numbers. A sample is one item of the buffer (a chunk by default), a round is one
sample of every environment of every worker.
"""

from __future__ import annotations

import math
from typing import Literal

from realm.errors import ConfigError


def preload_samples(capacity: int, preload_ratio: float) -> int:
    """Samples that must have arrived before the first update, by the ratio (a batch in any case)."""
    return max(1, int(capacity / preload_ratio))


def check_flow(
    *,
    policy: str,
    sampler: str,
    remover: str,
    capacity: int,
    preload_ratio: float,
    train_batch_size: int,
    ratio: float,
    round_size: int,
    max_version_lag: int | Literal["part"] | None,
) -> None:
    """Raise ConfigError, with the numbers, if a run could stall, lose samples or break its promise about their age.

    On-policy each sample leaves the buffer when it is drawn, and workers wait for room: so preload and one round must
    fit together, and workers that wait for a newer model must first have played enough for it. Off-policy samples
    stay until the remover takes them, and workers wait for the ratio. `max_version_lag` None is no limit, "part" is 0
    with weights that go out before an update is over.
    """
    lag = 0 if max_version_lag == "part" else max_version_lag
    on_policy = policy == "on-policy"
    batch = train_batch_size
    preload = max(batch, preload_samples(capacity, preload_ratio))
    one_round = f"one round of all workers ({round_size} samples)"
    start = (
        f"training starts at {preload} samples (replay_buffer_capacity {capacity} / preload_ratio {preload_ratio:g})"
    )

    if on_policy and ratio != 1:
        raise ConfigError(
            f"production_consume_ratio is {ratio:g}, but on-policy training uses each sample once; allowed is 1 "
            "(several passes over a batch are the algorithm's own), or off-policy"
        )
    if on_policy and sampler != "Fifo":
        raise ConfigError(
            f"reverb_sampler is {sampler}, but on-policy training takes samples in the order of their making; "
            "allowed is Fifo, or off-policy"
        )
    if not on_policy and sampler not in ("Uniform", "Prioritized"):
        raise ConfigError(
            f"reverb_sampler is {sampler}, which in off-policy training gives the same sample again and again; "
            "allowed is Uniform or Prioritized, or on-policy"
        )
    if not on_policy and remover == "Lifo":
        raise ConfigError(
            f"reverb_remover is Lifo, so a full buffer would throw away each new sample and keep its first {capacity} "
            "for ever; allowed is Fifo, Uniform, Prioritized, MinHeap or MaxHeap"
        )
    if not on_policy and lag is not None:
        raise ConfigError(
            f"max_version_lag is {max_version_lag}, but what an off-policy buffer holds may be of any age; "
            "allowed is free, or on-policy"
        )
    if lag == 0 and batch != round_size:
        strict = "part" if max_version_lag == "part" else "0 (strict on-policy)"
        raise ConfigError(
            f"max_version_lag is {strict} and train_batch_size is {batch}, but what one version plays is "
            f"{one_round}; allowed is train_batch_size = {round_size}, or a lag of at least 1"
        )
    if lag is not None and batch % round_size:
        raise ConfigError(
            f"train_batch_size is {batch}, but with max_version_lag {max_version_lag} an update takes whole rounds of "
            f"all workers; allowed is a multiple of {round_size}, or max_version_lag = free"
        )
    if capacity < batch + round_size:
        raise ConfigError(
            f"replay_buffer_capacity is {capacity}, too small for train_batch_size {batch} and {one_round}; "
            f"allowed is at least {batch + round_size}"
        )
    if on_policy and capacity < preload + round_size:
        raise ConfigError(
            f"{start}, and the buffer has no room for {one_round} beside them; allowed is a preload_ratio of at "
            f"least {_up(capacity / (capacity - round_size))}"
        )
    ahead = ((lag or 0) + 1) * batch
    if lag is not None and preload > ahead:
        raise ConfigError(
            f"{start}, but with max_version_lag {max_version_lag} and train_batch_size {batch} workers play only "
            f"{ahead} before the first update; allowed is a preload_ratio of at least {_up(capacity / ahead)}"
        )


def _up(value: float) -> float:
    """Round up to two digits after the point, so that the advice is enough."""
    return math.ceil(value * 100) / 100
