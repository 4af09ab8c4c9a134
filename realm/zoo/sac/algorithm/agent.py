"""The agent: MLPs, and SAC that acts with them and trains them."""

from typing import Any

import torch

from realm.algorithms.continuous import Networks
from realm.algorithms.networks import Obs
from realm.algorithms.sac import SAC
from realm.algorithms.windows import frames_of, with_frames
from realm.contract import Array, Arrays, Learned, PredictContext, SampleInfo, Spec, Transitions
from realm.zoo.sac.config import Config


class Agent:
    acting = ("actor_net.", "encoder.")  # the critics stay with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        actions = spec.action.field.size
        self.model = Networks(spec.obs, actions, 2 * actions, config.hidden, config).to(device)
        self.sac = SAC(self.model, spec.action, config, torch.device(device), seed)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        seen, memory = with_frames(obs, context)
        return self.sac.act(seen, context.explore, context.env_steps), {}, memory

    def greedy(self, obs: Obs) -> Obs:
        seen, memory = frames_of(obs)
        return self.sac.greedy(seen) | memory

    def learn(self, batch: Transitions, info: SampleInfo) -> Learned:
        return self.sac.update(batch, info)

    def save_model(self) -> dict[str, Any]:
        return self.sac.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state)
