"""The agent: two small MLPs, and PPO that acts with them and trains them."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.group import Group
from realm.algorithms.networks import Obs
from realm.algorithms.normalise import add_moments
from realm.algorithms.ppo import PPO
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec
from realm.zoo.cartpole.config import Config


class Model(nn.Module):
    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.actor_net, self.critic_net = _mlp(inputs, hidden, actions, 0.01), _mlp(inputs, hidden, 1, 1.0)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_net(obs["state"])  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_net(obs["state"]).squeeze(-1)  # type: ignore[no-any-return]


def _mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    layers = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        layer.bias.data.zero_()
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs["state"].size, spec.action.n, config.hidden)
        add_moments(self.model, spec.obs, config)
        self.model.to(device)
        self.ppo = PPO(self.model, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.ppo.act(obs, context.explore)

    def greedy(self, obs: Obs) -> Obs:
        return self.ppo.greedy(obs)

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        return (yield from self.ppo.update(batch, info))

    def join(self, group: Group) -> None:
        self.ppo.join(group)

    def save_model(self) -> dict[str, Any]:
        return self.ppo.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.ppo.load_state_dict(state)
