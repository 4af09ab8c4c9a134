"""The agent: MLPs, and SAC that acts with them and trains them."""

from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.networks import MLP, Critic, Encoder, Obs
from realm.algorithms.sac import SAC
from realm.contract import Array, Arrays, Fields, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.sac.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, actions: int, hidden: int) -> None:
        super().__init__()
        encoder = Encoder(fields)
        self.actor_net = nn.Sequential(encoder, MLP((encoder.features, hidden, hidden, 2 * actions)))
        self.critic_nets = nn.ModuleList(Critic(fields, actions, hidden) for _ in range(2))

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_net(obs)  # type: ignore[no-any-return]

    def critic(self, number: int, obs: Obs, action: Tensor) -> Tensor:
        return self.critic_nets[number](obs, action)  # type: ignore[no-any-return]


class Agent:
    acting = ("actor_net.",)  # the critics stay with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs, spec.action.field.size, config.hidden).to(device)
        self.sac = SAC(self.model, spec.action, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.sac.act(obs, context.explore, context.env_steps), {}

    def greedy(self, obs: Obs) -> Obs:
        return self.sac.greedy(obs)

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.sac.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.sac.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state)
