"""Gymnasium's CartPole-v1 and its shapes. Workers call it, so it imports no torch."""

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation

from realm.contract import ActionSpec, Field, Spec
from realm.zoo.cartpole.config import Config


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    """Make environments with dicts as observations, and with each episode's return in `info["episode"]`."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", **options)
    space, single = (spaces.Dict({"state": one}) for one in (envs.observation_space, envs.single_observation_space))
    return TransformObservation(RecordEpisodeStatistics(envs), lambda obs: {"state": obs}, space, single)


def spec(envs: Any, config: Config) -> Spec:
    extra = {"log_prob": Field((), "float32")}  # what `predict` returns besides the action
    return Spec({"state": Field((4,), "float32")}, ActionSpec(n=2), extra, config.chunk_length)
