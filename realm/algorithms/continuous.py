"""What TD3 and SAC share: the network, steps of its critics and its encoder, the scale of actions, how to begin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realm.algorithms.adam import Adam
from realm.algorithms.networks import MLP, Critic, Encoder, Obs, follow, frozen_copy
from realm.algorithms.rows import Drawn
from realm.algorithms.settings import EncoderSettings, OffPolicySettings
from realm.contract import ActionSpec, Array, Field, Fields
from realm.errors import ContractError

Metrics = dict[str, Tensor]  # f32 [] each


class Networks(nn.Module):
    """What TD3 and SAC train: MLPs as policy and two critics. Images, and the frames before an observation, go through
    one encoder, which the critics train."""

    def __init__(self, fields: Fields, actions: int, outputs: int, hidden: int, settings: EncoderSettings) -> None:
        """outputs: of the policy; settings: of the `Encoder`."""
        super().__init__()
        encoder = Encoder(fields, settings)
        self.encoder = encoder if encoder.cnns or settings.frames > 1 else None
        fields = {"features": Field((encoder.features,), "float32")} if self.encoder else fields
        self.actor_net = nn.Sequential(Encoder(fields), MLP((encoder.features, hidden, hidden, outputs)))
        self.critic_nets = nn.ModuleList(Critic(fields, actions, hidden) for _ in range(2))

    def encode(self, obs: Obs) -> Obs:
        """What policy and critics take: by the encoder, or without one the observations."""
        return {"features": self.encoder(obs)} if self.encoder else obs

    def actor(self, obs: Obs) -> Tensor:
        """For TD3 actions f32 [n, A], from -1 to 1; for SAC f32 [n, 2 A], mean and log of the standard deviation before
        the tanh."""
        return self.actor_net(obs)  # type: ignore[no-any-return]

    def critic(self, number: int, obs: Obs, action: Tensor) -> Tensor:
        """The values of critic 0 or 1, f32 [n]; actions f32 [n, A] from -1 to 1."""
        return self.critic_nets[number](obs, action)  # type: ignore[no-any-return]


def weights_of(network: Networks) -> list[nn.Parameter]:
    """Of the critics, and then of the encoder."""
    return [x for net in (network.critic_nets, network.encoder) if net for x in net.parameters()]


def normal_log_density(noise: Tensor, log_std: Tensor) -> Tensor:
    """Of mean + exp(log_std) noise under the normal distribution, of each number alone: f32 [n, A], as both."""
    return -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)


def both_values(network: Networks, obs: Obs, action: Tensor) -> Tensor:
    """The values of both critics, f32 [2, n]."""
    return torch.stack([network.critic(number, obs, action) for number in (0, 1)])


class TwinCritics:
    """Trains the two critics of a network, and its encoder."""

    def __init__(self, network: Networks) -> None:
        self._network = network
        self._adams = [Adam(net.parameters(), 1e-8) for net in network.critic_nets]
        weights = list(network.encoder.parameters()) if network.encoder else []
        self._encoder = Adam(weights, 1e-8) if weights else None
        self._all = [*self._adams, self._encoder] if self._encoder else self._adams

    def step(self, rows: Drawn, goal: Tensor, lr: float) -> tuple[Metrics, Obs, Tensor]:
        """A gradient step of each towards goal f32 [n]. Returns the observations as the policy gets them, too: encoded,
        before the step; and the mean of both errors' sizes f32 [n]."""
        errors, values = [], []
        encoded = self._network.encode(rows.obs)
        seen = {name: x.detach().requires_grad_(x.requires_grad) for name, x in encoded.items()}
        for number, adam in enumerate(self._adams):
            value = self._network.critic(number, seen, rows.action)
            error = value.detach() - goal
            adam.zero_grad()
            value.backward(2 / len(error) * rows.weight * error)  # type: ignore[no-untyped-call]  # of its mean square
            adam.step(lr)
            errors.append(error)
            values.append(value.detach())
        if self._encoder:
            self._encoder.zero_grad()
            torch.autograd.backward(list(encoded.values()), [x.grad for x in seen.values()])
            self._encoder.step(lr)
        both = torch.stack(errors)
        loss = (rows.weight * both.square()).mean(1).sum()
        metrics = {"critic_loss": loss, "value": torch.stack(values).mean()}
        return metrics, {name: x.detach() for name, x in seen.items()}, both.abs().mean(0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For a policy's loss, which goes through the critics: a third of its time would go into their gradients."""
        weights = [weight for adam in self._adams for weight in adam.parameters if weight.requires_grad]
        for weight in weights:
            weight.requires_grad_(False)
        try:
            yield
        finally:
            for weight in weights:
                weight.requires_grad_(True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [adam.state_dict() for adam in self._all]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for adam, saved in zip(self._all, state, strict=True):
            adam.load_state_dict(saved)


class OffPolicy:
    """What TD3 and SAC train, and all of its state besides the weights. A subclass says what the targets follow."""

    weights: list[nn.Parameter]
    target_weights: list[nn.Parameter]

    def __init__(
        self, network: Networks, action: ActionSpec, settings: OffPolicySettings, device: torch.device, seed: int
    ) -> None:
        self.network, self.device, self.scale = network, device, Scale(action)
        self.target = frozen_copy(network)
        self._buffers = [*zip(self.target.buffers(), network.buffers(), strict=True)]
        self.actor_adam = Adam(network.actor_net.parameters(), 1e-8)
        self.critics, self.lr = TwinCritics(network), settings.lr
        self.generator = torch.Generator().manual_seed(seed)  # draws noise
        self.steps = 0  # gradient steps of the critics

    def follow(self, tau: float) -> None:
        """The targets follow the weights. Buffers, such as running statistics, are theirs at once."""
        follow(self.target_weights, self.weights, tau)
        for mine, newest in self._buffers:
            mine.copy_(newest)

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs besides the weights: tensors and plain numbers."""
        return {
            "targets": [weight.cpu().clone() for weight in self.target_weights],
            "actor_adam": self.actor_adam.state_dict(),
            "critics": self.critics.state_dict(),
            "generator": self.generator.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for weight, saved in zip(self.target_weights, state["targets"], strict=True):
            weight.copy_(saved)
        self.follow(0.0)  # the buffers are the network's
        self.actor_adam.load_state_dict(state["actor_adam"])
        self.critics.load_state_dict(state["critics"])
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]


class Scale:
    """Between actions from -1 to 1, which networks give, and those of the action space, f32 [n, A]."""

    def __init__(self, action: ActionSpec) -> None:
        """Raises ContractError for a space that is not continuous, or has no bounds."""
        self.low, self.high = action.bounds
        if not len(self.low) or not np.isfinite(action.bounds).all() or not (self.low < self.high).all():
            raise ContractError(f"continuous actions with finite bounds, low below high, are needed, got {action}")
        self.middle, self.half = self.high / 2 + self.low / 2, self.high / 2 - self.low / 2

    def out(self, action: Array) -> Array:
        """Within the bounds: the sum alone misses them by a bit."""
        return np.asarray(np.clip(self.middle + self.half * action, self.low, self.high), np.float32)

    def out_tensor(self, action: Tensor) -> Tensor:
        """`out` as operations of torch."""
        own = (self.middle, self.half, self.low, self.high)
        middle, half, low, high = (torch.from_numpy(x).to(action.device) for x in own)
        return torch.minimum(torch.maximum(middle + half * action, low), high)

    def back(self, action: Array) -> Array:
        return np.asarray((action - self.middle) / self.half, np.float32)


def uniform_at_first(action: Array, explore: Array, generator: torch.Generator) -> Array:
    """Uniform actions f32 [N, A] in place of those rows whose explore f32 [N] is above 0."""
    uniform = torch.rand(action.shape, generator=generator).numpy() * 2 - 1
    return np.where(explore[:, None] > 0, uniform, action)
