"""Stable-Baselines3: MaskablePPO of sb3-contrib; action masks.

All environments are one vector environment. With the published features an observation is a dict of image and vector.
"""

# requires: stable-baselines3==2.9.2 sb3-contrib==2.9.2

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from tools.bench.peers.common import IMAGE, VECTOR, Realms, Trunk, read_setup, report, row_space, unpack


class Envs(VecEnv):
    """E realms in one call, as Stable-Baselines3 wants them."""

    def __init__(self, realms: Realms) -> None:
        self.realms = realms
        self._small = realms.dtype == np.float32
        vector = spaces.Box(-np.inf, np.inf, (VECTOR,), np.float32)
        both = spaces.Dict({"image": spaces.Box(0, 255, IMAGE, np.uint8), "vector": vector})
        space = row_space(realms.size, realms.dtype) if self._small else both
        super().__init__(realms.num_envs, space, spaces.Discrete(realms.actions))

    def _seen(self, rows: np.ndarray) -> Any:
        return rows if self._small else dict(zip(("image", "vector"), unpack(rows), strict=True))

    def reset(self) -> Any:
        features, self._legal = self.realms.reset()
        return self._seen(features)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        step = self.realms.step(self._actions)
        self._legal = step.legal
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if step.final is not None:
            for i in (step.terminated | step.truncated).nonzero()[0]:
                last = self._seen(step.final[i : i + 1])
                last = last[0] if self._small else {name: array[0] for name, array in last.items()}
                infos[i] = {"terminal_observation": last, "TimeLimit.truncated": bool(step.truncated[i])}
        return self._seen(step.features), step.reward, step.terminated | step.truncated, infos

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


class Extractor(BaseFeaturesExtractor):
    """The published trunk; the image has been divided by 255 already."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space, Trunk.size)
        self.trunk = Trunk()

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.trunk(obs["image"], obs["vector"])


class Tell(BaseCallback):
    def _on_rollout_start(self) -> None:  # the update before it is done
        if self.num_timesteps:
            report(self.num_timesteps, self.num_timesteps // setup.batch, envs.realms.scores)

    def _on_step(self) -> bool:
        return True


if __name__ == "__main__":
    setup = read_setup()
    ppo = setup.ppo
    envs = Envs(Realms(setup))
    layers = [ppo.hidden, ppo.hidden]
    small = ("MlpPolicy", {"net_arch": {"pi": layers, "vf": layers}, "activation_fn": nn.ReLU})
    extractor = {"features_extractor_class": Extractor, "share_features_extractor": False}
    policy, words = small if ppo.features == "small" else ("MultiInputPolicy", {"net_arch": [], **extractor})
    MaskablePPO(
        policy, envs, learning_rate=ppo.lr_start, n_steps=ppo.chunk_length, batch_size=setup.minibatch,
        n_epochs=ppo.epochs, gamma=ppo.gamma_start, gae_lambda=ppo.lam, clip_range=ppo.clip,
        ent_coef=ppo.entropy_start, vf_coef=ppo.vf_coef, max_grad_norm=ppo.max_grad_norm, seed=setup.seed, device="cpu",
        policy_kwargs=words,
    ).learn(10**12, callback=Tell())  # fmt: skip
