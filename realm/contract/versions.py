"""How weights are numbered, and the seeds that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Version(NamedTuple):
    """Names one set of weights; ordered as a pair. Each start of a learner raises `epoch`; each published update raises
    `update`."""

    epoch: int
    update: int

    def __str__(self) -> str:
        """In words, as every message calls a model."""
        return f"update {self.update:,}" + (f" in epoch {self.epoch}" if self.epoch > 1 else "")


NO_VERSION = Version(0, 0)
"""Older than every published model (the first learner starts at epoch 1)."""


def seed_of(seed: int, index: int, incarnation: int, epoch: int) -> int:
    """Differs for every worker, restart and resume, below 2**31; a new run with the same settings gets the same."""
    return int(np.random.SeedSequence((seed, index, incarnation, epoch)).generate_state(1)[0]) >> 1


@dataclass(frozen=True)
class ModelTag:
    """Names one published model: its version, the env steps that it was trained on, and how many samples the buffer
    held."""

    version: Version
    env_steps: int
    memory_size: int = 0
