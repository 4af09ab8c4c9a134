"""The agent: MLPs, and TD3 that acts with them and trains them."""

from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.networks import MLP, Critic, Encoder, Obs
from realm.algorithms.td3 import TD3
from realm.contract import Array, Arrays, Fields, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.td3.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, actions: int, hidden: int) -> None:
        super().__init__()
        encoder = Encoder(fields)
        self.actor_net = nn.Sequential(encoder, MLP((encoder.features, hidden, hidden, actions)))
        self.critic_nets = nn.ModuleList(Critic(fields, actions, hidden) for _ in range(2))

    def actor(self, obs: Obs) -> Tensor:
        return torch.tanh(self.actor_net(obs))

    def critic(self, number: int, obs: Obs, action: Tensor) -> Tensor:
        return self.critic_nets[number](obs, action)  # type: ignore[no-any-return]


class Agent:
    acting = ("actor_net.",)  # the critics stay with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs, spec.action.field.size, config.hidden).to(device)
        self.td3 = TD3(self.model, spec.action, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.td3.act(obs, context.explore, context.env_steps), {}

    def greedy(self, obs: Obs) -> Obs:
        return self.td3.greedy(obs)

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.td3.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.td3.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.td3.load_state_dict(state)
