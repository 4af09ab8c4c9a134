"""What the algorithms for continuous actions share: the scale of actions, and batches cut into minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm.algorithms.networks import Obs
from realm.contract import ActionSpec, Array, Transitions


class Scale:
    """Between actions from -1 to 1, which networks give, and those of the action space, f32 [n, A]."""

    def __init__(self, action: ActionSpec) -> None:
        """Raises ValueError for a space that is not continuous, or has no bounds."""
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        if not len(low) or not np.isfinite([low, high]).all():
            raise ValueError(f"continuous actions with finite bounds are needed, got {action}")
        self.middle, self.half = (high + low) / 2, (high - low) / 2

    def out(self, action: Array) -> Array:
        return np.asarray(self.middle + self.half * action, np.float32)

    def back(self, action: Array) -> Array:
        return np.asarray((action - self.middle) / self.half, np.float32)


def uniform_at_first(action: Array, explore: Array, rng: np.random.Generator) -> Array:
    """Uniform actions f32 [N, A] in place of those rows whose explore f32 [N] is above 0."""
    uniform = rng.random(action.shape, np.float32) * 2 - 1
    return np.where(explore[:, None] > 0, uniform, action)


class Minibatch(NamedTuple):
    """n rows as tensors: action f32 [n, A] from -1 to 1, reward and discount f32 [n]."""

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Obs


def minibatches(batch: Transitions, scale: Scale, size: int, device: torch.device) -> Iterator[Minibatch]:
    """Cut a batch into parts of `size` rows, the last one perhaps smaller, in the order in which they were drawn."""

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(array, device=device)

    obs = {name: tensor(array) for name, array in batch.obs.items()}
    after = {name: tensor(array) for name, array in batch.next_obs.items()}
    action, reward, discount = tensor(scale.back(batch.action)), tensor(batch.reward), tensor(batch.discount)
    for begin in range(0, len(reward), size):
        part = slice(begin, begin + size)
        yield Minibatch(
            {name: array[part] for name, array in obs.items()},
            action[part],
            reward[part],
            discount[part],
            {name: array[part] for name, array in after.items()},
        )


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
