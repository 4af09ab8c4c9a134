"""A drawn batch as tensors, cut into the minibatches of gradient steps. Made by `td3.py`, `sac.py`, `q_learning.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realm.algorithms.networks import Obs
from realm.algorithms.settings import OffPolicySettings
from realm.contract import Array, SampleInfo, Transitions


@dataclass(frozen=True)
class Drawn:
    """n rows on the device. `discount` is gamma^n, and 0 where the episode terminated, but not at a time limit."""

    obs: Obs
    action: Tensor  # f32 [n, A] from -1 to 1, or i64 [n]
    reward: Tensor  # f32 [n]
    discount: Tensor  # f32 [n]
    next_obs: Obs
    weight: Tensor  # f32 [n], what a row counts

    def at(self, part: slice) -> Drawn:
        obs, next_obs = ({name: x[part] for name, x in seen.items()} for seen in (self.obs, self.next_obs))
        return Drawn(obs, self.action[part], self.reward[part], self.discount[part], next_obs, self.weight[part])

    def parts(self, size: int) -> Iterator[slice]:
        """The rows in parts of `size`, in their order; the last one may be smaller."""
        return (slice(begin, begin + size) for begin in range(0, len(self.reward), size))


def to_rows(batch: Transitions, action: Array, weight: Array, device: torch.device) -> Drawn:
    """action: stands for the batch's own; f32 [B, A] from -1 to 1, or i64 [B]. weight: f32 [B]"""

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(array, device=device)

    obs, next_obs = ({name: tensor(x) for name, x in seen.items()} for seen in (batch.obs, batch.next_obs))
    return Drawn(obs, tensor(action), tensor(batch.reward), tensor(batch.discount), next_obs, tensor(weight))


def importance(probability: Array, size: int, beta: float) -> Array:
    """Weights f32 [B] that correct a prioritised draw, at most 1: (1 / (size * p))^beta over their greatest.

    Schaul et al. 2016, section 3.4.
    """
    weight = (size * np.maximum(probability, 1e-12)) ** -beta
    return np.asarray(weight / weight.max(), np.float32)


def row_weights(info: SampleInfo, settings: OffPolicySettings) -> Array:
    """f32 [B]; all 1 where each row was as likely."""
    return importance(info.probability, max(1, info.size), settings.beta_at(info.env_steps))


def priorities_of(errors: Sequence[Tensor]) -> Array:
    """New priorities f64 [B] of the drawn rows, the size of their errors; errors: of each gradient step, f32 [n]."""
    return np.asarray(torch.cat(list(errors)).abs().cpu(), np.float64) + 1e-6


class Means:
    """Means of metrics over gradient steps, read from the device once."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """metrics: name -> f32 []."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value)

    def result(self) -> dict[str, float]:
        return {name: float(torch.stack(values).mean()) for name, values in self._values.items()}
