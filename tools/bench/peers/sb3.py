"""Stable-Baselines3: MaskablePPO of sb3-contrib; action masks.

All environments are one vector environment. It knows diy's small features alone, not the published image and vector.
"""

# requires: stable-baselines3==2.9.2 sb3-contrib==2.9.2

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from tools.bench.peers.common import Realms, read_setup, report, row_space


class Envs(VecEnv):
    """E realms in one call, as Stable-Baselines3 wants them."""

    def __init__(self, realms: Realms) -> None:
        self.realms = realms
        space = row_space(realms.size, realms.dtype)
        super().__init__(realms.num_envs, space, spaces.Discrete(realms.actions))

    def reset(self) -> Any:
        features, self._legal = self.realms.reset()
        return features

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.realms.step(self._actions)
        self._legal = step.legal
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if step.final is not None:
            for i in (step.terminated | step.truncated).nonzero()[0]:
                infos[i] = {"terminal_observation": step.final[i], "TimeLimit.truncated": bool(step.truncated[i])}
        return step.features, step.reward, step.terminated | step.truncated, infos

    def has_attr(self, attr_name: str) -> bool:
        return attr_name == "action_masks"  # how MaskablePPO asks whether there are any

    def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return list(self._legal)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...
    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def close(self) -> None: ...


class Tell(BaseCallback):
    def _on_rollout_start(self) -> None:  # the update before it is done
        if self.num_timesteps:
            report(self.num_timesteps, self.num_timesteps // setup.batch, envs.realms.scores)

    def _on_step(self) -> bool:
        return True


if __name__ == "__main__":
    setup = read_setup()
    ppo = setup.ppo
    if ppo.features != "small":
        sys.exit("error: this row knows diy's small features alone")
    envs = Envs(Realms(setup))
    layers = [ppo.hidden, ppo.hidden]
    MaskablePPO(
        "MlpPolicy", envs, learning_rate=ppo.lr_start, n_steps=ppo.chunk_length, batch_size=setup.minibatch,
        n_epochs=ppo.epochs, gamma=ppo.gamma_start, gae_lambda=ppo.lam, clip_range=ppo.clip,
        ent_coef=ppo.entropy_start, vf_coef=ppo.vf_coef, max_grad_norm=ppo.max_grad_norm, seed=setup.seed, device="cpu",
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": nn.ReLU},
    ).learn(10**12, callback=Tell())  # fmt: skip
