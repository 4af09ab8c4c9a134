"""Gymnasium's CartPole-v1 and its shapes. Workers call it, so it imports no torch."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation

from realm.contract import ActionSpec, Field, Spec
from realm.zoo.cartpole.config import Config


def make_envs(num_envs: int, seed: int, config: Config, options: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Make `num_envs` environments that step in one call; options: the table `[env]`, for `gymnasium.make_vec`."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", **options)
    return TransformObservation(  # observations are dicts, and `info["episode"]` tells of each episode
        RecordEpisodeStatistics(envs),
        lambda obs: {"state": obs},
        spaces.Dict({"state": envs.observation_space}),
        spaces.Dict({"state": envs.single_observation_space}),
    )


def spec(envs: VectorEnv[Any, Any, Any], config: Config) -> Spec:
    """Cart position and speed, pole angle and speed; push left or right."""
    return Spec(
        {"state": Field((4,), "float32")}, ActionSpec(n=2), {"log_prob": Field((), "float32")}, config.chunk_length
    )
