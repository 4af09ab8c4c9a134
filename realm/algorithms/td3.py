"""TD3: Fujimoto et al. 2018 (arXiv:1802.09477), for continuous actions.

An agent makes one `TD3` of its network and calls `act` in `predict`, `update` in `learn` with `Transitions`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from realm.algorithms.continuous import Metrics, Networks, OffPolicy, both_values, uniform_at_first, weights_of
from realm.algorithms.networks import Obs
from realm.algorithms.rows import Drawn, Means, priorities_of, row_weights, to_rows
from realm.algorithms.settings import TD3Settings
from realm.contract import ActionSpec, Array, Arrays, Learned, SampleInfo, Transitions


def smoothed(action: Tensor, noise: Tensor, deviation: float, clip: float) -> Tensor:
    """The target policy's action with clipped noise, f32 [n, A]; noise: standard normal. Eq. 14 of the paper."""
    return (action + (noise * deviation).clamp_(-clip, clip)).clamp_(-1.0, 1.0)


def targets(reward: Tensor, discount: Tensor, values: Tensor) -> Tensor:
    """Clipped double Q: r + discount * min of the critics, f32 [n]; values f32 [2, n], reward and discount f32 [n].

    Algorithm 1 of the paper; `discount` is 0 where the episode terminated, and not where a time limit ended it.
    """
    return torch.addcmul(reward, discount, torch.minimum(values[0], values[1]))


class TD3(OffPolicy):
    """Trains `network`."""

    def __init__(
        self, network: Networks, action: ActionSpec, settings: TD3Settings, device: torch.device, seed: int
    ) -> None:
        super().__init__(network, action, settings, device, seed)
        self.settings = settings
        self.weights, self.target_weights = (
            [*net.actor_net.parameters(), *weights_of(net)] for net in (network, self.target)
        )

    @torch.inference_mode()
    def act(self, obs: Arrays, explore: Array, env_steps: int) -> Array:
        """Actions f32 [N, A]: with noise of `explore_noise` times explore f32 [N]; uniform ones in the first
        `random_steps`."""
        seen = {name: torch.as_tensor(array, device=self.device) for name, array in obs.items()}
        action = self.network.actor(self.network.encode(seen)).cpu().numpy()
        noise = torch.randn(action.shape, generator=self.generator).numpy() * self.settings.explore_noise
        action = np.clip(action + noise * explore[:, None], -1.0, 1.0)
        if env_steps < self.settings.random_steps:
            action = uniform_at_first(action, explore, self.generator)
        return self.scale.out(action)

    def greedy(self, obs: Obs) -> Obs:
        """The action f32 [N, A] without noise, by torch alone (`contract.Agent`)."""
        return {"action": self.scale.out_tensor(self.network.actor(self.network.encode(obs)))}

    def update(self, batch: Transitions, info: SampleInfo) -> Learned:
        """Gradient steps over parts of the batch, in the order drawn; returns each row's error as its priority."""
        own, means, errors = self.settings, Means(), []
        self.lr = own.lr_at(info.env_steps)
        if self.steps == 0:  # the network may have got other weights since (preload_model)
            self.follow(1.0)
        rows = to_rows(batch, self.scale.back(batch.action), row_weights(info, self.settings), self.device)
        noise = torch.randn(rows.action.shape, generator=self.generator).to(self.device)
        end = 0
        while end < len(noise):
            # the targets stay as they are until the actor's next step: one pass over all rows until then
            begin, end = end, end + own.minibatch_size * (own.policy_delay - self.steps % own.policy_delay)
            ahead = rows.at(slice(begin, end))
            goal = self.goals(ahead, noise[begin:end])
            for part in ahead.parts(own.minibatch_size):
                minibatch = ahead.at(part)
                metrics, seen, error = self.critics.step(minibatch, goal[part], self.lr)
                errors.append(error)
                means.add(metrics)
                self.steps += 1
                if self.steps % own.policy_delay == 0:
                    means.add(self.step_actor(seen))
        return {**means.result(), "lr": self.lr}, priorities_of(errors)

    @torch.no_grad()
    def goals(self, rows: Drawn, noise: Tensor) -> Tensor:
        """What the critics should say of n rows, f32 [n]; noise f32 [n, A], standard normal."""
        own = self.settings
        seen = self.target.encode(rows.next_obs)
        next_action = smoothed(self.target.actor(seen), noise, own.target_noise, own.target_noise_clip)
        return targets(rows.reward, rows.discount, both_values(self.target, seen, next_action))

    def step_actor(self, obs: Obs) -> Metrics:
        """One gradient step of the actor up the first critic, then the targets follow. The deterministic policy
        gradient, as in algorithm 1 of the paper. obs: encoded"""
        with self.critics.held():
            loss = -self.network.critic(0, obs, self.network.actor(obs)).mean()
        self.actor_adam.descend(loss, self.lr)
        self.follow(self.settings.tau)
        return {"actor_loss": loss.detach()}
