"""The agent: MLPs of a vector observation, and TD3 that acts with them and trains them."""

from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.networks import Several, mlp
from realm.algorithms.td3 import TD3
from realm.contract import Array, Arrays, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.td3.config import Config


class Model(nn.Module):
    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.actor_net = mlp((inputs, hidden, hidden, actions))
        self.critic_net = Several(2, (inputs + actions, hidden, hidden))

    def actor(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.tanh(self.actor_net(obs["state"]))

    def critics(self, obs: dict[str, Tensor], action: Tensor, count: int = 2) -> Tensor:
        return self.critic_net(torch.cat((obs["state"], action), -1), count)  # type: ignore[no-any-return]


class Agent:
    acting = ("actor_net.",)  # the critics stay with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs["state"].size, spec.action.field.size, config.hidden).to(device)
        self.td3 = TD3(self.model, spec.action, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.td3.act(obs, context.explore, context.env_steps), {}

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.td3.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.td3.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.td3.load_state_dict(state)
