"""The agent: an MLP, and Q-learning that acts with it and trains it."""

from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.networks import Encoder, Obs, mlp
from realm.algorithms.q_learning import Dueling, NoisyLinear, QLearning
from realm.contract import Array, Arrays, Fields, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.dqn.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, actions: int, config: Config) -> None:
        super().__init__()
        linear, encoder = NoisyLinear if config.noisy else nn.Linear, Encoder(fields)
        layers = mlp((encoder.features, config.hidden, config.hidden))
        self.trunk = nn.Sequential(encoder, layers, nn.ReLU())
        self.head = Dueling(config.hidden, actions, linear) if config.dueling else linear(config.hidden, actions)

    def values(self, obs: Obs) -> Tensor:
        return self.head(self.trunk(obs))  # type: ignore[no-any-return]


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs, spec.action.n, config).to(device)
        self.q_learning = QLearning(self.model, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.q_learning.act(obs, context.explore, context.env_steps), {}

    def greedy(self, obs: Obs) -> Obs:
        return self.q_learning.greedy(obs)

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.q_learning.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.q_learning.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.q_learning.load_state_dict(state)
