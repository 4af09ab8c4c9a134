"""RLlib: PPO, new API; action masks.

Each sampling process, as many as there are spare cores, has its share of the environments in one vector environment;
the learner is in the driver, and the policy network masks.
"""

# requires: ray[rllib]==2.60.0

from __future__ import annotations

import os
import tempfile
from typing import Any

import gymnasium
import numpy as np
import ray
import ray.tune.trainable.trainable
from gymnasium.vector import AutoresetMode, VectorEnv
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune.registry import register_env

from tools.peers.common import Setup, make_envs, network, pack, read_setup, report, row_space, shapes


class Envs(VectorEnv):
    """Realms in one call, which are reset in the next step, as RLlib wants it; an observation ends with the mask."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, setup: Setup, num_envs: int, seed: int) -> None:
        self.num_envs, self._envs = num_envs, make_envs(num_envs, setup.seed + seed, setup.ppo, setup.env)
        size, self._dtype, actions = shapes(self._envs)
        self.single_observation_space = row_space(size + actions, self._dtype)
        self.single_action_space = self._envs.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = self._envs.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._seen(self._envs.reset()[0]), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        obs, *rest, info = self._envs.step(np.asarray(actions, np.int64))
        if "_episode" in info:
            info = {"score": info["episode"]["score"], "_score": info["_episode"]}
        return self._seen(obs), *rest, info

    def _seen(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([pack(obs), obs["legal"]], 1, dtype=self._dtype)


class Networks(TorchRLModule, ValueFunctionAPI):
    def setup(self) -> None:
        self.actions = self.action_space.n
        self.features = self.observation_space.shape[0] - self.actions
        self.actor, self.critic = (
            network(self.model_config["ppo"], self.features, outputs) for outputs in (self.actions, 1)
        )

    def _forward(self, batch: dict[str, Any], **rest: Any) -> dict[str, Any]:
        features, legal = batch[Columns.OBS].split([self.features, self.actions], -1)
        return {Columns.ACTION_DIST_INPUTS: self.actor(features).masked_fill(legal == 0, -1e9)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        return self.critic(batch[Columns.OBS][..., : self.features]).squeeze(-1)


def keep_score(env_index: int, env: Any = None, episode: Any = None, metrics_logger: Any = None, **rest: Any) -> None:
    """Called by RLlib at an episode's end."""
    metrics_logger.log_value("score", episode.get_infos(-1)["score"], reduce="item_series")


if __name__ == "__main__":
    setup = read_setup()
    ppo, runners = setup.ppo, min(len(os.sched_getaffinity(0)) - 1, 8)
    share = setup.num_envs // max(1, runners)
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # else it writes into the home folder
    ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH = tempfile.gettempdir()  # else it is ~/ray_results
    ray.init(include_dashboard=False, num_cpus=len(os.sched_getaffinity(0)), log_to_driver=False)
    register_env("realm", lambda place: Envs(setup, place["num_envs"], os.getpid()))
    config = (
        PPOConfig()
        .environment("realm")
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=share, rollout_fragment_length=ppo.chunk_length,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Networks, model_config={"ppo": ppo}))
        .training(
            lr=ppo.lr_start, gamma=ppo.gamma_start, lambda_=ppo.lam, clip_param=ppo.clip, vf_clip_param=1e6,
            vf_loss_coeff=ppo.vf_coef, entropy_coeff=ppo.entropy_start, use_kl_loss=False, num_epochs=ppo.epochs,
            grad_clip=ppo.max_grad_norm, grad_clip_by="global_norm", minibatch_size=setup.minibatch,
            train_batch_size_per_learner=setup.batch,
        )
        .debugging(seed=setup.seed)
        .callbacks(on_episode_end=keep_score)
    )  # fmt: skip
    algorithm, update = config.build_algo(), 0
    while True:
        results, update = algorithm.train()[ENV_RUNNER_RESULTS], update + 1
        scores = [float(score) for score in np.atleast_1d(results.get("score", []))]
        report(results[NUM_ENV_STEPS_SAMPLED_LIFETIME], update, scores)
