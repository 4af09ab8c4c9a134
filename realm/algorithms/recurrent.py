"""PPO with a memory: a network with a GRU, trained on whole chunks, each unrolled from the memory that it began with.

An agent makes one `RecurrentPPO` of its network and calls `remember` in `predict` and `update` in `learn`; its `spec`
names the memory: `Spec(..., state={"memory": Field((hidden,), "float32")})`. Any network will do that gives policy and
value of sequences and, by the names of `Spec.state`, the memory after each step: `GRUNetwork`, or `AttentionNetwork` of
`attention.py`.
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
from realm.algorithms.networks import Encoder, Obs, deviations_of
from realm.algorithms.normalise import add_moments, seen_by
from realm.algorithms.ppo import PPO
from realm.algorithms.settings import NetworkSettings, Settings
from realm.contract import ActionSpec, Array, Arrays, Fields, PredictContext
from realm.errors import UserCodeError


class MemoryNetwork(nn.Module):
    """Features, what a memory makes of them, and the heads of policy and critic on it. A subclass has `remembered`."""

    def __init__(self, encoder: nn.Module, width: int, action: ActionSpec, end: Sequence[nn.Module]) -> None:
        """encoder: from observations to features f32 [n, width]. end: of the policy's head."""
        super().__init__()
        self.encoder = encoder
        self.actor_head = nn.Sequential(nn.Linear(width, action.n or sum(action.nvec) or len(action.low)))
        self.critic_head = nn.Linear(width, 1)
        for head, gain in ((self.actor_head[0], 0.01), (self.critic_head, 1.0)):
            nn.init.orthogonal_(head.weight, gain)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]
        self.actor_head.extend(end)

    def remembered(self, features: Tensor, obs: Obs) -> tuple[Tensor, Obs]:
        """What the heads see at each step, f32 [k, K, width], and the memory after each by its names, [k, K, ...]. It
        is empty before each step that is `first`. features: f32 [k, K, width]; obs: with `first` and the memory"""
        raise NotImplementedError

    def unrolled(self, obs: Obs) -> tuple[Tensor, Obs]:
        seen = {name: x.flatten(0, 1) for name, x in obs.items() if name != "first" and not name.startswith(STATE)}
        return self.remembered(self.encoder(seen).unflatten(0, obs["first"].shape), obs)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_head(self.unrolled(obs)[0])  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_head(self.unrolled(obs)[0]).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Obs]:
        seen, memory = self.unrolled(obs)
        return self.actor_head(seen), self.critic_head(seen).squeeze(-1), memory


class GRUNetwork(MemoryNetwork):
    """Encoder, a layer, a GRU."""

    def __init__(self, fields: Fields, action: ActionSpec, settings: NetworkSettings) -> None:
        encoder, hidden = Encoder(fields), settings.hidden
        layers = nn.Sequential(encoder, nn.Linear(encoder.features, hidden), nn.Tanh())
        super().__init__(layers, hidden, action, deviations_of(action, settings))
        add_moments(self, fields, settings)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def remembered(self, features: Tensor, obs: Obs) -> tuple[Tensor, Obs]:
        first, memory = obs["first"], obs[STATE + "memory"]
        # the GRU runs on until some sequence begins again
        some = first[:, 1:].any(0).nonzero().flatten().add(1).tolist()
        after = []
        for begin, end in pairwise((0, *some, first.shape[1])):
            memory = memory.masked_fill(first[:, begin, None], 0.0)
            states, last = self.gru(features[:, begin:end], memory[None])
            after.append(states)
            memory = last[0]
        states = torch.cat(after, 1)
        return states, {STATE + "memory": states}


class RecurrentPPO(PPO):
    """Trains a network with a memory, which policy and critic share."""

    def __init__(
        self, network: Network, settings: Settings, device: torch.device, seed: int,
        distribution: Distribution | None = None, losses: Sequence[Loss] = (), layer: str = "",
    ) -> None:  # fmt: skip
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
        policy, after = _unrolled(self.network, seen)
        now = {name: x[:, 0] for name, x in seen.items() if name in obs}
        action, extra = self.distribution.act(policy[:, 0], now, context.explore, self.generator)
        return action, extra, {name: after[STATE + name][:, 0].cpu().numpy() for name in context.state}

    def greedy(self, obs: Obs, network: Network | None = None) -> Obs:
        """As `PPO.greedy`; the memory and `first` are among `obs`, the memory after it among what it gives."""
        network = network or self.network
        steps = {name: x if name.startswith(STATE) else x[:, None] for name, x in obs.items()}
        policy, after = _unrolled(network, seen_by(network, self.settings, steps))
        memory = {name: x[:, 0] for name, x in after.items() if name in obs}
        return {**self.distribution.greedy(policy[:, 0], obs), **memory}


def _unrolled(network: Network, obs: Obs) -> tuple[Tensor, Obs]:
    """Policy of each step, [k, K, ...], and the memory after it."""
    policy, _, *more = network(obs)
    if not more or not all(name in more[0] for name in obs if name.startswith(STATE)):
        raise UserCodeError(
            f"{type(network).__name__} cannot be unrolled: with RecurrentPPO a network returns policy, value and the "
            "memory after each step, by the names of Spec.state"
        )
    return policy, more[0]
