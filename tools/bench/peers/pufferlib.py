"""PufferLib: PuffeRL; action masks.

All environments are one vector environment of its own kind, and the policy network masks. It draws segments of a batch
by the size of their advantages, as many as the passes would use, and none longer than a minibatch; Adam in place of its
Muon, float32, one process. It clamps each reward to -1..1 and takes a truncated episode for one that goes on (its
pufferl.py, `evaluate`): it learns from other rewards than the others, which its score tells and its speed does not.
"""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import numpy as np
import pufferlib
import torch
from gymnasium import spaces
from pufferlib.pufferl import PuffeRL
from torch import Tensor, nn

from tools.bench.peers.common import Realms, network, read_setup, report, row_space


class Envs(pufferlib.PufferEnv):
    """E realms in one call; an observation is the features and then the mask."""

    def __init__(self, realms: Realms) -> None:
        self.realms, self.num_agents = realms, realms.num_envs
        self.single_observation_space = row_space(realms.size + realms.actions, realms.dtype)
        self.single_action_space = spaces.Discrete(realms.actions)
        super().__init__()

    def _see(self, features: np.ndarray, legal: np.ndarray) -> None:
        self.observations[:, : self.realms.size], self.observations[:, self.realms.size :] = features, legal

    def reset(self, seed: Any = None) -> tuple[np.ndarray, list[Any]]:
        self._see(*self.realms.reset())
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        step = self.realms.step(actions)
        self._see(step.features, step.legal)
        self.rewards[:], self.terminals[:], self.truncations[:] = step.reward, step.terminated, step.truncated
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None: ...


class Policy(nn.Module):
    def __init__(self, features: int, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.features, self.actor, self.critic = features, actor, critic

    def forward(self, obs: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        features, legal = obs[:, : self.features], obs[:, self.features :]
        return self.actor(features).masked_fill(legal == 0, -1e9), self.critic(features)

    forward_eval = forward


if __name__ == "__main__":
    setup = read_setup()
    # so that -1..1 are 100 points: with diy's small features only what treasures left behind cost goes beyond
    setup = setup._replace(ppo=dataclasses.replace(setup.ppo, reward_scale=min(setup.ppo.reward_scale, 0.01)))
    ppo, realms = setup.ppo, Realms(setup)
    torch.manual_seed(setup.seed)
    config = {
        "seed": setup.seed, "torch_deterministic": True, "cpu_offload": False, "device": "cpu", "optimizer": "adam",
        "anneal_lr": False, "precision": "float32", "total_timesteps": 10**12, "learning_rate": ppo.lr_start,
        "gamma": ppo.gamma_start, "gae_lambda": ppo.lam, "update_epochs": ppo.epochs, "clip_coef": ppo.clip,
        "vf_coef": ppo.vf_coef, "vf_clip_coef": 1e6, "max_grad_norm": ppo.max_grad_norm,
        "ent_coef": ppo.entropy_start, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": ppo.adam_eps,
        "data_dir": tempfile.mkdtemp(), "checkpoint_interval": 10**9, "batch_size": setup.batch, "use_rnn": False,
        "minibatch_size": setup.minibatch, "max_minibatch_size": setup.minibatch,
        "bptt_horizon": min(ppo.chunk_length, setup.minibatch),
        "compile": False, "vtrace_rho_clip": 1.0, "vtrace_c_clip": 1.0, "prio_alpha": 0.8, "prio_beta0": 0.2,
        "env": "realm",
    }  # fmt: skip
    actor, critic = (network(ppo, realms.size, outputs) for outputs in (realms.actions, 1))
    trainer = PuffeRL(config, Envs(realms), Policy(realms.size, actor, critic))
    while True:
        trainer.evaluate()
        trainer.train()
        report(trainer.global_step, trainer.epoch, realms.scores)
