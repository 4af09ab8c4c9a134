"""Whether the numbers of the flow between workers, buffer and learner can work together.

Called once before any process starts, with every "auto" resolved; the buffers' limiters then rely on what it proves.
Pure functions of numbers. A sample is one item of the buffer, a round is one chunk of every environment (N x E).
"""

from __future__ import annotations

import math

from realm.config import ConfigError


def preload_samples(capacity: int, preload_ratio: float) -> int:
    """Samples that must have arrived before the first update."""
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
    max_version_lag: int | None,
) -> None:
    """Raise ConfigError, with the numbers, if a run could stall, drop samples or break its promise about age.

    The limiter holds both sides: the first update is due after `preload` samples, each further one after
    train_batch_size / ratio more; and workers wait when they are further ahead than that, so that a buffer blocks
    where it would otherwise throw away. That needs room above the preload for what may be under way: one round, or
    one update's new samples. `max_version_lag` None is no limit.
    """
    on_policy = policy == "on-policy"
    preload = preload_samples(capacity, preload_ratio)
    round_text = f"one round of all workers ({round_size} samples)"

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
            f"reverb_sampler is {sampler}, which in off-policy training fills a batch with copies of one sample; "
            "allowed is Uniform or Prioritized, or on-policy"
        )
    if not on_policy and remover == "Lifo":
        raise ConfigError(
            f"reverb_remover is Lifo, so a full buffer would throw away each new sample and keep its first {capacity} "
            "for ever; allowed is Fifo, Uniform, Prioritized, MinHeap or MaxHeap"
        )
    if max_version_lag is not None and not on_policy:
        raise ConfigError(
            f"max_version_lag is {max_version_lag}, but the samples of an off-policy buffer may be of any age; "
            "allowed is free, or on-policy"
        )
    if max_version_lag == 0 and train_batch_size != round_size:
        raise ConfigError(
            f"max_version_lag is 0 (strict on-policy) and train_batch_size is {train_batch_size}, but a batch of one "
            f"version is {round_text}; allowed is train_batch_size = {round_size}, or a lag of at least 1"
        )
    if capacity < train_batch_size + round_size:
        raise ConfigError(
            f"replay_buffer_capacity is {capacity}, too small for train_batch_size ({train_batch_size}) and "
            f"{round_text}; allowed is at least {train_batch_size + round_size}"
        )
    room = max(round_size, math.ceil(train_batch_size / ratio))
    if capacity - preload < room:
        raise ConfigError(
            f"replay_buffer_capacity {capacity} / preload_ratio {preload_ratio:g} starts training at {preload} "
            f"samples and leaves room for {capacity - preload}, but {room} may be under way (the larger of "
            f"{round_text} and train_batch_size {train_batch_size} / production_consume_ratio {ratio:g}); "
            f"allowed is a preload_ratio of at least {_up(capacity / (capacity - room))} or a larger capacity"
        )
    if max_version_lag is not None and preload > (max_version_lag + 1) * train_batch_size:
        most = (max_version_lag + 1) * train_batch_size
        raise ConfigError(
            f"training starts at {preload} samples (replay_buffer_capacity {capacity} / preload_ratio "
            f"{preload_ratio:g}), but with max_version_lag {max_version_lag} workers wait for an update after {most} "
            f"(train_batch_size {train_batch_size}); allowed is a preload_ratio of at least {_up(capacity / most)}"
        )


def _up(value: float) -> float:
    """Round up to two digits after the point, so that the advice is enough."""
    return math.ceil(value * 100) / 100
