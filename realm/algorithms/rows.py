"""A drawn batch as tensors, cut into the minibatches of gradient steps. Made by `td3.py`, `sac.py`, `q_learning.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from realm.algorithms.networks import Obs
from realm.contract import Array, Transitions


@dataclass(frozen=True)
class Drawn:
    """n rows on the device. `discount` is gamma^n, and 0 where the episode terminated, but not at a time limit."""

    obs: Obs
    action: Tensor  # f32 [n, A] from -1 to 1, or i64 [n]
    reward: Tensor  # f32 [n]
    discount: Tensor  # f32 [n]
    next_obs: Obs

    def at(self, part: slice) -> Drawn:
        obs, next_obs = ({name: x[part] for name, x in seen.items()} for seen in (self.obs, self.next_obs))
        return Drawn(obs, self.action[part], self.reward[part], self.discount[part], next_obs)

    def parts(self, size: int) -> Iterator[slice]:
        """The rows in parts of `size`, in their order; the last one may be smaller."""
        return (slice(begin, begin + size) for begin in range(0, len(self.reward), size))


def to_rows(batch: Transitions, action: Array, device: torch.device) -> Drawn:
    """action: stands for the batch's own; f32 [B, A] from -1 to 1, or i64 [B]."""

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(array, device=device)

    obs, next_obs = ({name: tensor(x) for name, x in seen.items()} for seen in (batch.obs, batch.next_obs))
    return Drawn(obs, tensor(action), tensor(batch.reward), tensor(batch.discount), next_obs)


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
