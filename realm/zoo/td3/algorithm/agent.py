"""The agent: MLPs, and TD3 that acts with them and trains them."""

from typing import Any

import torch
from torch import Tensor

from realm.algorithms.continuous import Networks
from realm.algorithms.networks import Obs
from realm.algorithms.td3 import TD3
from realm.algorithms.windows import frames_of, with_frames
from realm.contract import Array, Arrays, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.td3.config import Config


class Model(Networks):
    def actor(self, obs: Obs) -> Tensor:
        return torch.tanh(super().actor(obs))


class Agent:
    acting = ("actor_net.", "encoder.")  # the critics stay with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        actions = spec.action.field.size
        self.model = Model(spec.obs, actions, actions, config.hidden, config).to(device)
        self.td3 = TD3(self.model, spec.action, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        seen, memory = with_frames(obs, context)
        return self.td3.act(seen, context.explore, context.env_steps), {}, memory

    def greedy(self, obs: Obs) -> Obs:
        seen, memory = frames_of(obs)
        return self.td3.greedy(seen) | memory

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.td3.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.td3.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.td3.load_state_dict(state)
