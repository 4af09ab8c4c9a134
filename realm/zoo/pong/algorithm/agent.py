"""The agent: the network that the configuration names, and PPO that acts with it and trains it."""

from collections.abc import Generator
from typing import Any

import torch

from realm.algorithms.networks import Obs
from realm.algorithms.normalise import add_moments
from realm.algorithms.ppo import PPO
from realm.algorithms.recurrent import RecurrentPPO
from realm.algorithms.windows import Windows
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec
from realm.zoo.pong.config import Config
from realm.zoo.pong.networks.attention import Attention, PastPPO
from realm.zoo.pong.networks.autoencoder import Autoencoder
from realm.zoo.pong.networks.conv import Conv
from realm.zoo.pong.networks.heads import Heads
from realm.zoo.pong.networks.patches import Patches
from realm.zoo.pong.networks.transformer import transformer


def heads(config: Config, actions: int) -> Heads:
    if config.network == "autoencoder":
        return Autoencoder(config, actions)
    if config.network == "attention":
        return Attention(config, actions)
    trunk = Patches if config.network == "patches" else Conv
    return Heads(lambda: trunk(config), actions, config.shared_trunk)


class Agent:
    acting: tuple[str, ...] = ("trunk.", "actor_head.", "observations.")  # the rest stays with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        recurrent, place = config.network == "transformer", (torch.device(device), seed)
        self.model = model = transformer(config, spec.action) if recurrent else heads(config, spec.action.n)
        add_moments(model, spec.obs, config)
        model.to(device)
        if isinstance(model, Heads):
            ppo = PastPPO if config.network == "attention" else PPO
            cut = Windows if config.frames > 1 else model.cut
            self.ppo: PPO = ppo(model, config, *place, losses=model.losses(), cut=cut, layer=config.layer)
        else:
            self.acting = ("",)
            self.ppo = RecurrentPPO(model, config, *place, layer=config.layer)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        return self.ppo.remember(obs, context)

    def greedy(self, obs: Obs) -> Obs:
        return self.ppo.greedy(obs)

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        return (yield from self.ppo.update(batch, info))

    def save_model(self) -> dict[str, Any]:
        return self.ppo.state_dict()

    def load_model(self, state: dict[str, Any]) -> None:
        self.ppo.load_state_dict(state)
