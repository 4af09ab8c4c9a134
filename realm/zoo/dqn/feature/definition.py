"""The environment and its shapes. Workers call it, so it imports no torch."""

from typing import Any

from gymnasium import spaces

from realm.contract import Draw, Spec
from realm.zoo.dqn.config import Config
from realm.zoo.gym import action_spec, frames_before, make_vec, obs_fields, step_fields


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    return make_vec(num_envs, options, "CartPole-v1", joint=True)


def spec(envs: Any, config: Config) -> Spec:
    obs, before = obs_fields(envs), config.frames - 1
    draw = Draw(config.n_step, config.gamma, look_back=before)
    action, step, memory = action_spec(envs, spaces.Discrete), step_fields(envs), frames_before(obs, before)
    return Spec(obs, action, {}, config.chunk_length, step=step, state=memory, draw=draw)
