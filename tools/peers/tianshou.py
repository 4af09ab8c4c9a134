"""Tianshou: PPO, on-policy trainer; action masks.

All environments are one vector environment; the policy network masks.
"""

# requires: tianshou==2.0.1

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from torch import Tensor, nn

from tools.peers.common import Realms, network, read_setup, report, row_space


class Envs(BaseVectorEnv):
    """E realms in one call; an observation is the features and then the mask."""

    def __init__(self, realms: Realms) -> None:
        self.realms, self.env_num, self.is_async, self.is_closed = realms, realms.num_envs, False, False
        self.space = row_space(realms.size + realms.actions, realms.dtype)
        self.info = np.array([{"env_id": i} for i in range(self.env_num)])

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        attributes = {"action_space": spaces.Discrete(self.realms.actions), "observation_space": self.space}
        return [attributes.get(key)] * self.env_num

    def reset(self, env_id: Any = None, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        if env_id is None:
            self.obs = np.concatenate(self.realms.reset(), 1, dtype=self.realms.dtype)
            return self.obs, self.info
        return self.obs[env_id], self.info[env_id]  # `step` has reset these

    def step(self, action: np.ndarray, id: Any = None) -> tuple[np.ndarray, ...]:
        step = self.realms.step(action)
        self.obs = seen = np.concatenate([step.features, step.legal], 1, dtype=self.realms.dtype)
        if step.final is not None:
            seen = seen.copy()
            ended = step.terminated | step.truncated
            seen[ended, : self.realms.size] = step.final[ended]
        return seen, step.reward, step.terminated, step.truncated, self.info


class Actor(nn.Module):
    def __init__(self, features: int, net: nn.Module) -> None:
        super().__init__()
        self.features, self.net = features, net

    def forward(self, obs: np.ndarray, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        seen = torch.as_tensor(obs)
        return self.net(seen[:, : self.features]).masked_fill(seen[:, self.features :] == 0, -1e9), state


class Critic(nn.Module):
    def __init__(self, features: int, net: nn.Module) -> None:
        super().__init__()
        self.features, self.net = features, net

    def forward(self, obs: np.ndarray) -> Tensor:
        return self.net(torch.as_tensor(obs)[:, : self.features])


if __name__ == "__main__":
    setup = read_setup()
    ppo, realms = setup.ppo, Realms(setup)
    envs = Envs(realms)
    actor, critic = (network(ppo, realms.size, outputs) for outputs in (realms.actions, 1))
    policy = DiscreteActorPolicy(actor=Actor(realms.size, actor), action_space=spaces.Discrete(realms.actions))
    algorithm = PPO(
        policy=policy, critic=Critic(realms.size, critic),
        optim=AdamOptimizerFactory(ppo.lr_start, eps=ppo.adam_eps), eps_clip=ppo.clip, vf_coef=ppo.vf_coef,
        ent_coef=ppo.entropy_start, max_grad_norm=ppo.max_grad_norm, gae_lambda=ppo.lam, gamma=ppo.gamma_start,
        max_batchsize=4096,
    )  # fmt: skip

    def tell(epoch: int, env_steps: int) -> None:  # the update before it is done
        if env_steps:
            report(env_steps, env_steps // setup.batch, realms.scores)

    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(policy, envs, VectorReplayBuffer(setup.batch, setup.num_envs)),
            max_epochs=10**9, epoch_num_steps=10**9, collection_step_num_env_steps=setup.batch,
            batch_size=setup.minibatch, update_step_num_repetitions=ppo.epochs, training_fn=tell, show_progress=False,
            verbose=False,
        )
    )  # fmt: skip
