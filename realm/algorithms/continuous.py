"""What the algorithms for continuous actions share: the network, the scale of actions, and how to explore at first."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from realm.algorithms.networks import Obs
from realm.contract import ActionSpec, Array


class ActorCritics(Protocol):
    """The network that TD3 and SAC train."""

    @property
    def actor_net(self) -> nn.Module: ...

    @property
    def critic_net(self) -> nn.Module: ...

    def actor(self, obs: Obs) -> Tensor:
        """For TD3 actions f32 [n, A], from -1 to 1; for SAC f32 [n, 2 A], mean and log of the standard deviation before
        the tanh."""
        ...

    def critics(self, obs: Obs, action: Tensor, count: int = 2) -> Tensor:
        """The values of the first `count` critics f32 [count, n]; actions from -1 to 1."""
        ...


class Scale:
    """Between actions from -1 to 1, which networks give, and those of the action space, f32 [n, A]."""

    def __init__(self, action: ActionSpec) -> None:
        """Raises ValueError for a space that is not continuous, or has no bounds."""
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        if not len(low) or not np.isfinite([low, high]).all() or not (low < high).all():
            raise ValueError(f"continuous actions with finite bounds, low below high, are needed, got {action}")
        self.middle, self.half = (high + low) / 2, (high - low) / 2

    def out(self, action: Array) -> Array:
        return np.asarray(self.middle + self.half * action, np.float32)

    def out_tensor(self, action: Tensor) -> Tensor:
        """`out` as operations of torch."""
        middle, half = (torch.from_numpy(x).to(action.device) for x in (self.middle, self.half))
        return middle + half * action

    def back(self, action: Array) -> Array:
        return np.asarray((action - self.middle) / self.half, np.float32)


def uniform_at_first(action: Array, explore: Array, generator: torch.Generator) -> Array:
    """Uniform actions f32 [N, A] in place of those rows whose explore f32 [N] is above 0."""
    uniform = torch.rand(action.shape, generator=generator).numpy() * 2 - 1
    return np.where(explore[:, None] > 0, uniform, action)
