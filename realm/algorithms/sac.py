"""SAC: Haarnoja et al. 2018 (arXiv:1812.05905), for continuous actions, with a learned temperature.

An agent makes one `SAC` of its network and calls `act` in `predict`, `update` in `learn` with `Transitions`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm.algorithms.adam import Adam
from realm.algorithms.continuous import (
    Metrics,
    Networks,
    OffPolicy,
    both_values,
    normal_log_density,
    uniform_at_first,
    weights_of,
)
from realm.algorithms.networks import Obs
from realm.algorithms.rows import Drawn, Means, priorities_of, row_weights, to_rows
from realm.algorithms.settings import SACSettings
from realm.contract import ActionSpec, Array, Arrays, Learned, SampleInfo, Transitions

LOG_STD_LEAST, LOG_STD_GREATEST = -5.0, 2.0


def squashed(moments: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action of the squashed Gaussian, f32 [n, A] from -1 to 1, and its log-density f32 [n].

    moments: f32 [n, 2 A], mean and log of the deviation, which is bounded smoothly; noise f32 [n, A], standard normal.
    Appendix C of the paper: log pi = log N(u) - sum log(1 - tanh(u)^2), the last in a form that does not overflow:
    2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = moments.chunk(2, dim=-1)
    log_std = LOG_STD_LEAST + 0.5 * (LOG_STD_GREATEST - LOG_STD_LEAST) * (torch.tanh(log_std) + 1)
    before = mean + log_std.exp() * noise
    correction = 2 * (math.log(2) - before - functional.softplus(-2 * before))
    return torch.tanh(before), (normal_log_density(noise, log_std) - correction).sum(-1)


def targets(reward: Tensor, discount: Tensor, values: Tensor, log_density: Tensor, temperature: Tensor) -> Tensor:
    """Soft value of the next state: r + discount (min of the critics - temperature log pi), f32 [n]. Eq. 2 and 3.

    values f32 [2, n]; `discount` is 0 where the episode terminated, and not where a time limit ended it.
    """
    return reward + discount * (torch.minimum(values[0], values[1]) - temperature * log_density)


class SAC(OffPolicy):
    """Trains `network`, and the temperature."""

    def __init__(
        self, network: Networks, action: ActionSpec, settings: SACSettings, device: torch.device, seed: int
    ) -> None:
        super().__init__(network, action, settings, device, seed)
        self.settings = settings
        self.log_temperature = nn.Parameter(torch.tensor(math.log(settings.temperature or 1.0), device=device))
        self.entropy_target = settings.entropy_target or -float(len(action.low))
        self.temperature_adam = Adam([self.log_temperature], 1e-8)
        self.weights, self.target_weights = weights_of(network), weights_of(self.target)

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, env_steps: int) -> Array:
        """Actions f32 [N, A]: drawn where explore f32 [N] is 1, the mean's where it is 0, uniform in the first
        `random_steps`."""
        seen = {name: torch.as_tensor(array, device=self.device) for name, array in obs.items()}
        moments = self.network.actor(self.network.encode(seen)).cpu()
        noise = torch.randn((len(explore), moments.shape[1] // 2), generator=self.generator)
        action = squashed(moments, noise * torch.from_numpy(np.asarray(explore, np.float32))[:, None])[0].numpy()
        if env_steps < self.settings.random_steps:
            action = uniform_at_first(action, explore, self.generator)
        return self.scale.out(action)

    def greedy(self, obs: Obs) -> Obs:
        """The mean's action f32 [N, A], by torch alone (`contract.Agent`)."""
        moments = self.network.actor(self.network.encode(obs))
        return {"action": self.scale.out_tensor(torch.tanh(moments.chunk(2, dim=-1)[0]))}

    def update(self, batch: Transitions, info: SampleInfo) -> Learned:
        """Gradient steps over parts of the batch, in the order drawn; returns each row's error as its priority."""
        means, errors = Means(), []
        self.lr = self.settings.lr_at(info.env_steps)
        if self.steps == 0:  # the network may have got other weights since (preload_model)
            self.follow(1.0)
        rows = to_rows(batch, self.scale.back(batch.action), row_weights(info, self.settings), self.device)
        noise = torch.randn((2, *rows.action.shape), generator=self.generator).to(self.device)
        for part in rows.parts(self.settings.minibatch_size):
            minibatch = rows.at(part)
            metrics, seen, error = self.critics.step(minibatch, self.goals(minibatch, noise[0, part]), self.lr)
            errors.append(error)
            means.add(metrics)
            means.add(self.step_actor(seen, noise[1, part]))
            self.follow(self.settings.tau)
            self.steps += 1
        return {**means.result(), "lr": self.lr}, priorities_of(errors)

    @torch.no_grad()
    def goals(self, rows: Drawn, noise: Tensor) -> Tensor:
        """What the critics should say of n rows, f32 [n]; noise f32 [n, A], standard normal. Eq. 5 of the paper."""
        action, log_density = squashed(self.network.actor(self.network.encode(rows.next_obs)), noise)
        values = both_values(self.target, self.target.encode(rows.next_obs), action)
        return targets(rows.reward, rows.discount, values, log_density, self.log_temperature.exp())

    def step_actor(self, obs: Obs, noise: Tensor) -> Metrics:
        """One gradient step of the actor, eq. 7 and 9 of the paper, and of the temperature, eq. 18. obs: encoded"""
        temperature = self.log_temperature.exp().detach()
        action, log_density = squashed(self.network.actor(obs), noise)
        with self.critics.held():
            values = both_values(self.network, obs, action)
        loss = (temperature * log_density - torch.minimum(values[0], values[1])).mean()
        self.actor_adam.descend(loss, self.lr)
        entropy = -log_density.detach().mean()
        if not self.settings.temperature:
            self.log_temperature.grad = entropy - self.entropy_target
            self.temperature_adam.step(self.lr)
        return {"actor_loss": loss.detach(), "entropy": entropy, "temperature": temperature}

    def state_dict(self) -> dict[str, Any]:
        temperature, adam = self.log_temperature.detach().cpu().clone(), self.temperature_adam.state_dict()
        return {**super().state_dict(), "log_temperature": temperature, "temperature_adam": adam}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if not self.settings.temperature:  # else it is what the settings say, which may have changed
            self.log_temperature.data.copy_(state["log_temperature"])
        self.temperature_adam.load_state_dict(state["temperature_adam"])
