"""TD3: Fujimoto et al. 2018 (arXiv:1802.09477), for continuous actions.

An agent makes one `TD3` of its network and calls `act` in `predict`, `update` in `learn` with `Transitions`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from realm.algorithms.adam import Adam
from realm.algorithms.continuous import Means, Minibatch, Scale, minibatches, uniform_at_first
from realm.algorithms.networks import Obs, follow, frozen_copy
from realm.algorithms.settings import TD3Settings
from realm.contract import ActionSpec, Array, Arrays, Learned, SampleInfo, Transitions


class Network(Protocol):
    """What TD3 trains. Actions are scaled: -1 to 1."""

    @property
    def actor_net(self) -> nn.Module: ...

    @property
    def critic_net(self) -> nn.Module: ...

    def actor(self, obs: Obs) -> Tensor:
        """Actions f32 [n, A], from -1 to 1."""
        ...

    def critics(self, obs: Obs, action: Tensor, count: int = 2) -> Tensor:
        """The values of the first `count` critics f32 [count, n]."""
        ...


def smoothed(action: Tensor, noise: Tensor, deviation: float, clip: float) -> Tensor:
    """The target policy's action with clipped noise, f32 [n, A]; noise: standard normal. Eq. 14 of the paper."""
    return (action + (noise * deviation).clamp_(-clip, clip)).clamp_(-1.0, 1.0)


def targets(reward: Tensor, discount: Tensor, values: Tensor) -> Tensor:
    """Clipped double Q: r + discount * min of the critics, f32 [n]; values f32 [2, n], reward and discount f32 [n].

    Algorithm 1 of the paper; `discount` is 0 where the episode terminated, and not where a time limit ended it.
    """
    return torch.addcmul(reward, discount, torch.minimum(values[0], values[1]))


class TD3:
    """Trains `network`: all of its state besides the weights is in `state_dict`."""

    def __init__(
        self, network: Network, action: ActionSpec, settings: TD3Settings, device: torch.device, seed: int
    ) -> None:
        self.network, self.settings, self.device = network, settings, device
        self.scale = Scale(action)
        self.target = frozen_copy(network)
        self.actor_adam = Adam(network.actor_net.parameters(), 1e-8)
        self.critic_adam = Adam(network.critic_net.parameters(), 1e-8)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.steps = 0  # gradient steps of the critics

    @staticmethod
    def _weights(network: Network) -> list[nn.Parameter]:
        return [*network.actor_net.parameters(), *network.critic_net.parameters()]

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, env_steps: int) -> Array:
        """Actions f32 [N, A]: with noise of `explore_noise` times explore f32 [N]; uniform ones in the first
        `random_steps`."""
        action = self.network.actor({name: self.tensor(array) for name, array in obs.items()}).cpu().numpy()
        noise = self.rng.standard_normal(action.shape, np.float32) * self.settings.explore_noise
        action = np.clip(action + noise * explore[:, None], -1.0, 1.0)
        if env_steps < self.settings.random_steps:
            action = uniform_at_first(action, explore, self.rng)
        return self.scale.out(action)

    def update(self, batch: Transitions, info: SampleInfo) -> Learned:
        """Gradient steps over parts of the batch, in the order drawn."""
        means = Means()
        for part in minibatches(batch, self.scale, self.settings.minibatch_size, self.device):
            noise = torch.randn(part.action.shape, generator=self.generator, device=self.device)
            means.add(self.step_critics(part, noise))
            if self.steps % self.settings.policy_delay == 0:
                means.add(self.step_actor(part.obs))
        return means.result(), None

    def step_critics(self, rows: Minibatch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient step of both critics; noise f32 [n, A], standard normal."""
        own = self.settings
        with torch.no_grad():
            next_action = smoothed(self.target.actor(rows.next_obs), noise, own.target_noise, own.target_noise_clip)
            target = targets(rows.reward, rows.discount, self.target.critics(rows.next_obs, next_action))
        values = self.network.critics(rows.obs, rows.action)
        error = values - target
        loss = error.square().mean(1).sum()
        self.critic_adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic_adam.step(own.lr)
        self.steps += 1
        return {"critic_loss": loss.detach(), "value": values.detach().mean()}

    def step_actor(self, obs: Obs) -> dict[str, Tensor]:
        """One gradient step of the actor up the first critic, then the targets follow. Eq. of the deterministic policy
        gradient, as in algorithm 1 of the paper."""
        parameters = self.actor_adam.parameters
        loss = -self.network.critics(obs, self.network.actor(obs), 1).mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self.actor_adam.step(self.settings.lr)
        follow(self._weights(self.target), self._weights(self.network), self.settings.tau)
        return {"actor_loss": loss.detach()}

    def tensor(self, array: Array) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "targets": [weight.detach().cpu().clone() for weight in self._weights(self.target)],
            "actor_adam": self.actor_adam.state_dict(),
            "critic_adam": self.critic_adam.state_dict(),
            "generator": self.generator.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for weight, saved in zip(self._weights(self.target), state["targets"], strict=True):
            weight.data.copy_(saved)
        self.actor_adam.load_state_dict(state["actor_adam"])
        self.critic_adam.load_state_dict(state["critic_adam"])
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]
