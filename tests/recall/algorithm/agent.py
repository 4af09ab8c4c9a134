"""A GRU and its PPO; with `remember` false it forgets after each step."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from realm.algorithms.distributions import distribution_of
from realm.algorithms.recurrent import GRUNetwork, RecurrentPPO
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec
from tests.recall.config import Config


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.config, self.model = config, GRUNetwork(spec.obs, spec.action, config).to(device)
        self.ppo = RecurrentPPO(self.model, config, torch.device(device), seed, distribution_of(spec.action))

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        return self.ppo.remember(obs, context if self.config.remember else context._replace(first=context.first | True))

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        chunk = batch if self.config.remember else replace(batch, first=batch.first | True)
        return (yield from self.ppo.update(chunk, info))

    def save_model(self) -> dict[str, Any]:
        return self.ppo.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.ppo.load_state_dict(state)
