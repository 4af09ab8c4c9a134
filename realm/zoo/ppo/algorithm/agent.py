"""The agent: two MLPs, and PPO that acts with them and trains them."""

from collections.abc import Generator
from typing import Any

import torch

from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.distributions import distribution_of
from realm.algorithms.networks import Obs
from realm.algorithms.ppo import PPO
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec
from realm.zoo.ppo.config import Config


class Agent:
    acting = ("actor_net.", "observations.")  # the critic stays with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = ActorCritic(spec.obs, spec.action, config).to(device)
        self.ppo = PPO(self.model, config, torch.device(device), seed, distribution_of(spec.action))

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.ppo.act(obs, context.explore)

    def greedy(self, obs: Obs) -> Obs:
        return self.ppo.greedy(obs)

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        return (yield from self.ppo.update(batch, info))

    def save_model(self) -> dict[str, Any]:
        return self.ppo.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.ppo.load_state_dict(state)
