"""The agent: two MLPs, and PPO that acts with them and trains them."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from realm.algorithms.actor_critic import ActorCritic
from realm.algorithms.attention import attention_network
from realm.algorithms.batch import Batch, Rows
from realm.algorithms.distributions import distribution_of
from realm.algorithms.group import Group
from realm.algorithms.losses import Loss, Outputs
from realm.algorithms.networks import Obs
from realm.algorithms.ppo import PPO
from realm.algorithms.recurrent import GRUNetwork, RecurrentPPO
from realm.algorithms.windows import Windows
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, Spec
from realm.zoo.ppo.config import Config


def imitation(coefficient: float) -> Loss:
    """Imitates the actions whose return beat the value: the mean of -log pi times by how much it did, 0 for others.
    Oh et al. 2018 (arXiv:1806.05635), but of the batch that is trained on, without a memory of earlier episodes."""

    def loss(minibatch: Batch, outputs: Outputs) -> Tensor:
        log_prob = (outputs.log_ratio + minibatch.log_prob).reshape(len(minibatch.value), -1).sum(-1)
        return -((minibatch.target - minibatch.value).clamp(min=0.0) * log_prob).mean()

    return Loss("imitation_loss", loss, coefficient)


class Agent:
    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        of = spec.obs, spec.action, config
        own = config, torch.device(device), seed, distribution_of(spec.action, config.ratio == "each")
        losses = [imitation(config.imitation)] if config.imitation else []
        if config.memory != "none":
            network = GRUNetwork if config.memory == "gru" else attention_network
            self.model: nn.Module = network(*of).to(device)
            self.ppo: PPO = RecurrentPPO(self.model, *own, losses)
        else:
            self.model = ActorCritic(*of).to(device)
            self.ppo = PPO(self.model, *own, losses, cut=Windows if config.frames > 1 else Rows)
        # the critic stays with the learner
        self.acting = tuple(name for name in self.model.state_dict() if not name.startswith("critic"))

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays, Arrays]:
        return self.ppo.remember(obs, context)

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
