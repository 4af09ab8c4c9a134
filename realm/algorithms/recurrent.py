"""PPO with a memory: a network with a GRU, trained on whole chunks, each unrolled from the memory that it began with.

An agent makes one `RecurrentPPO` of its network and calls `remember` in `predict` and `update` in `learn`; its `spec`
names the memory: `Spec(..., state={"memory": Field((hidden,), "float32")})`. Any network will do that gives policy and
value of sequences and, by the names of `Spec.state`, the memory after each step; `GRUNetwork` is one.
Axes: k sequences of K steps (K = T + 1 where a chunk is trained on, 1 where it acts), N environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.batch import STATE, Sequences, tensor
from realm.algorithms.distributions import Distribution
from realm.algorithms.losses import Loss, Network
from realm.algorithms.networks import Deviations, Encoder, Obs
from realm.algorithms.normalise import Moments, Observations, seen_by
from realm.algorithms.ppo import PPO
from realm.algorithms.settings import NetworkSettings, Settings
from realm.contract import ActionSpec, Array, Arrays, Fields, PredictContext


class GRUNetwork(nn.Module):
    """Encoder, a layer, a GRU; the heads of policy and critic on it."""

    def __init__(self, fields: Fields, action: ActionSpec, settings: NetworkSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.observations = Observations(fields) if settings.normalise_obs else None
        self.returns = Moments() if settings.normalise_returns else None
        self.encoder = Encoder(fields)
        self.layer = nn.Sequential(nn.Linear(self.encoder.features, hidden), nn.Tanh())
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.actor_head = nn.Sequential(nn.Linear(hidden, action.n or sum(action.nvec) or len(action.low)))
        self.critic_head = nn.Linear(hidden, 1)
        for head, gain in ((self.actor_head[0], 0.01), (self.critic_head, 1.0)):
            nn.init.orthogonal_(head.weight, gain)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]
        if action.low:
            self.actor_head.append(Deviations(len(action.low), settings.log_std))

    def unrolled(self, obs: Obs) -> Tensor:
        """The memory after each step, f32 [k, K, hidden]; it is empty before each step that is `first`."""
        first, memory = obs["first"], obs[STATE + "memory"]
        steps = {name: obs[name].flatten(0, 1) for name in self.encoder.names}
        features = self.layer(self.encoder(steps)).unflatten(0, first.shape)
        some = (
            first[:, 1:].any(0).nonzero().flatten().add(1).tolist()
        )  # the GRU runs on until some sequence begins again
        after = []
        for begin, end in pairwise((0, *some, first.shape[1])):
            memory = memory.masked_fill(first[:, begin, None], 0.0)
            states, last = self.gru(features[:, begin:end], memory[None])
            after.append(states)
            memory = last[0]
        return torch.cat(after, 1)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_head(self.unrolled(obs))  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_head(self.unrolled(obs)).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Obs]:
        memory = self.unrolled(obs)
        return self.actor_head(memory), self.critic_head(memory).squeeze(-1), {STATE + "memory": memory}


class RecurrentPPO(PPO):
    """Trains a network with a memory, which policy and critic share."""

    def __init__(
        self,
        network: Network,
        settings: Settings,
        device: torch.device,
        seed: int,
        distribution: Distribution | None = None,
        losses: Sequence[Loss] = (),
        layer: str = "",
    ) -> None:
        """As `PPO`."""
        settings.check("value_source", settings.value_source == "learner", "'learner', which unrolls the memory")
        settings = dataclasses.replace(settings, shared_trunk=True)
        super().__init__(network, settings, device, seed, distribution, losses, Sequences, layer=layer)

    @torch.inference_mode()
    def remember(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        """Choose an action for each row, as `act` does. obs: name -> [N, ...]

        Returns action [N, ...], extra, and the memory after it, name -> [N, ...].
        """
        steps: dict[str, Any] = {name: x[:, None] for name, x in (*obs.items(), ("first", context.first))}
        steps |= {STATE + name: x for name, x in context.state.items()}
        seen = seen_by(self.network, self.settings, {name: tensor(x, self.device) for name, x in steps.items()})
        policy, _, after = self.network(seen)  # type: ignore[misc]
        now = {name: x[:, 0] for name, x in seen.items() if name in obs}
        action, extra = self.distribution.act(policy[:, 0], now, context.explore, self.generator)
        return action, extra, {name: after[STATE + name][:, 0].cpu().numpy() for name in context.state}

    def greedy(self, obs: Obs, network: Network | None = None) -> Obs:
        """As `PPO.greedy`; the memory and `first` are among `obs`, the memory after it among what it gives."""
        network = network or self.network
        steps = {name: x if name.startswith(STATE) else x[:, None] for name, x in obs.items()}
        policy, _, after = network(seen_by(network, self.settings, steps))  # type: ignore[misc]
        memory = {name: x[:, 0] for name, x in after.items() if name in obs}
        return {**self.distribution.greedy(policy[:, 0], obs), **memory}
