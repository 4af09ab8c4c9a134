"""The environments and their shapes."""

from typing import Any

from realm.contract import Field, Spec
from realm.zoo.gym import action_spec, obs_fields
from tests.treasure.ppo.config import Config
from tests.treasure.treasure import TreasureEnvs


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> TreasureEnvs:
    return TreasureEnvs(num_envs, seed, options, reward=(20.0, 0.01, 0.01))


def spec(envs: TreasureEnvs, config: Config) -> Spec:
    return Spec(obs_fields(envs), action_spec(envs), {"log_prob": Field((), "float32")}, config.chunk_length)
