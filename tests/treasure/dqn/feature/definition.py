"""The environments and their shapes."""

from typing import Any

from realm.contract import Draw, Spec
from realm.zoo.gym import action_spec, obs_fields
from tests.treasure.dqn.config import Config
from tests.treasure.treasure import TreasureEnvs


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> TreasureEnvs:
    return TreasureEnvs(num_envs, seed, options, reward=(10.0, 0.005, 0.02))


def spec(envs: TreasureEnvs, config: Config) -> Spec:
    return Spec(obs_fields(envs), action_spec(envs), {}, config.chunk_length, draw=Draw(config.n_step, config.gamma))
