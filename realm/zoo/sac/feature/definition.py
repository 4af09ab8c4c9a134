"""The environment and its shapes. Workers call it, so it imports no torch."""

from typing import Any

from gymnasium import spaces

from realm.contract import Draw, Spec
from realm.zoo.gym import action_spec, make_vec, obs_fields
from realm.zoo.sac.config import Config


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    return make_vec(num_envs, options, "Pendulum-v1")


def spec(envs: Any, config: Config) -> Spec:
    return Spec(obs_fields(envs), action_spec(envs, spaces.Box), {}, config.chunk_length, draw=Draw(gamma=config.gamma))
