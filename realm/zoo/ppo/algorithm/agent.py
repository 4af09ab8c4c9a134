"""The agent: two MLPs, and PPO that acts with them and trains them."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.distributions import distribution_of
from realm.algorithms.networks import MLP, Deviations, Encoder, Obs
from realm.algorithms.normalise import Moments, Observations
from realm.algorithms.ppo import PPO
from realm.contract import ActionSpec, Array, Arrays, Chunk, Fields, Learned, PredictContext, SampleInfo, Spec
from realm.zoo.ppo.config import Config


class Model(nn.Module):
    def __init__(self, fields: Fields, action: ActionSpec, config: Config) -> None:
        super().__init__()
        self.observations = Observations(fields) if config.normalise_obs else None
        self.returns = Moments() if config.normalise_returns else None
        self.actor_net = _net(fields, config, action.n or sum(action.nvec) or len(action.low), 0.01)
        if action.low:
            self.actor_net.append(Deviations(len(action.low), config.log_std))
        self.critic_net = _net(fields, config, 1, 1.0)

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_net(obs)  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        return self.critic_net(obs).squeeze(-1)  # type: ignore[no-any-return]


def _net(fields: Fields, config: Config, outputs: int, gain: float) -> nn.Sequential:
    encoder, hidden = Encoder(fields), config.hidden
    layers = MLP((encoder.features, hidden, hidden, outputs), nn.Tanh if config.activation == "tanh" else nn.ReLU)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not config.orthogonal:  # as torch makes them
        return nn.Sequential(encoder, layers)
    for layer, scale in zip(linears, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(encoder, layers)


class Agent:
    acting = ("actor_net.", "observations.")  # the critic stays with the learner

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model(spec.obs, spec.action, config).to(device)
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
