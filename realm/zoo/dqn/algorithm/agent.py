"""The agent: an MLP, and Q-learning that acts with it and trains it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.networks import MLP, Encoder, Obs
from realm.algorithms.q_learning import Dueling, NoisyLinear, QLearning
from realm.algorithms.windows import frames_of, with_frames
from realm.contract import Array, Arrays, Fields, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.dqn.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, actions: int, config: Config) -> None:
        super().__init__()
        linear, encoder = NoisyLinear if config.noisy else nn.Linear, Encoder(fields, config)
        layers = MLP((encoder.features, config.hidden, config.hidden))
        self.trunk = nn.Sequential(encoder, layers, nn.ReLU())
        self.head = Dueling(config.hidden, actions, linear) if config.dueling else linear(config.hidden, actions)

    def values(self, obs: Obs) -> Tensor:
        return self.head(self.trunk(obs))  # type: ignore[no-any-return]


def with_one_mask(obs: Arrays) -> Arrays:
    """Observations [B, frames, ...] as a batch has them, but of a mask of legal actions the newest alone, [B, A]."""
    return {name: x[:, -1] if name == "legal" else x for name, x in obs.items()}


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.frames = config.frames
        self.model = Model(spec.obs, spec.action.n, config).to(device)
        self.q_learning = QLearning(self.model, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        seen, memory = with_frames(obs, context)
        return self.q_learning.act(seen, context.explore, context.env_steps), {}, memory

    def greedy(self, obs: Obs) -> Obs:
        seen, memory = frames_of(obs)
        return self.q_learning.greedy(seen) | memory

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        if self.frames > 1:
            batch = replace(batch, obs=with_one_mask(batch.obs), next_obs=with_one_mask(batch.next_obs))
        return self.q_learning.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.q_learning.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.q_learning.load_state_dict(state)
