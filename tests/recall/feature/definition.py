from typing import Any

from realm.contract import Field, Spec
from realm.zoo.gym import action_spec, make_vec, obs_fields
from tests.recall.config import Config


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    return make_vec(num_envs, options, "tests.recall.envs:Recall-v0")


def spec(envs: Any, config: Config) -> Spec:
    extra, memory = {"log_prob": Field((), "float32")}, {"memory": Field((config.hidden,), "float32")}
    return Spec(obs_fields(envs), action_spec(envs), extra, config.chunk_length, state=memory)
