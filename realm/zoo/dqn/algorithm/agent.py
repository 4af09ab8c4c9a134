"""The agent: an MLP, and Q-learning that acts with it and trains it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realm.algorithms.networks import MLP, Encoder, Obs, beside
from realm.algorithms.q_learning import Dueling, NoisyLinear, QLearning
from realm.contract import Array, Arrays, Field, Fields, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.dqn.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, actions: int, config: Config) -> None:
        super().__init__()
        self.frames = config.frames
        if self.frames > 1:
            fields = {
                name: Field((*it.shape[:-1], it.shape[-1] * self.frames), it.dtype) for name, it in fields.items()
            }
        linear, encoder = NoisyLinear if config.noisy else nn.Linear, Encoder(fields)
        layers = MLP((encoder.features, config.hidden, config.hidden))
        self.trunk = nn.Sequential(encoder, layers, nn.ReLU())
        self.head = Dueling(config.hidden, actions, linear) if config.dueling else linear(config.hidden, actions)

    def values(self, obs: Obs) -> Tensor:
        return self.head(self.trunk(beside(obs) if self.frames > 1 else obs))  # type: ignore[no-any-return]


def with_frames(now: Array, before: Array, first: Array) -> Array:
    """Observations [N, ...] behind those before them [N, frames - 1, ...], for which an episode's first one stands in
    where first, bool [N]."""
    begins = first.reshape(-1, *[1] * now.ndim)
    return np.concatenate([np.where(begins, now[:, None], before), now[:, None]], 1)


def with_one_mask(obs: Arrays) -> Arrays:
    """Observations [B, frames, ...] as a batch has them, but of a mask of legal actions the newest alone, [B, A]."""
    return {name: x[:, -1] if name == "legal" else x for name, x in obs.items()}


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs, spec.action.n, config).to(device)
        self.q_learning = QLearning(self.model, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays] | tuple[Array, Arrays, Arrays]:
        if not context.state:
            return self.q_learning.act(obs, context.explore, context.env_steps), {}
        seen = {name: with_frames(obs[name], before, context.first) for name, before in context.state.items()}
        action = self.q_learning.act({**obs, **seen}, context.explore, context.env_steps)
        return action, {}, {name: frames[:, 1:] for name, frames in seen.items()}

    def greedy(self, obs: Obs) -> Obs:
        return self.q_learning.greedy(obs)

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        if self.model.frames > 1:
            batch = replace(batch, obs=with_one_mask(batch.obs), next_obs=with_one_mask(batch.next_obs))
        return self.q_learning.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.q_learning.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.q_learning.load_state_dict(state)
