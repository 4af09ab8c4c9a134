"""The environment and its shapes. Workers call it, so it imports no torch."""

from typing import Any

from realm.contract import Field, Spec
from realm.errors import ConfigError
from realm.zoo.gym import action_spec, attention_memory, frames_before, make_vec, obs_fields, step_fields
from realm.zoo.ppo.config import Config


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    return make_vec(num_envs, options, "CartPole-v1")


def spec(envs: Any, config: Config) -> Spec:
    action = action_spec(envs)
    if config.advantage == "q" and not action.n:
        raise ConfigError("ppo.advantage is 'q', but actions here are not one of n; it must be another, such as 'gae'")
    numbers = action.field.shape if config.ratio == "each" else ()
    extra = {"log_prob": Field(numbers, "float32")}  # what `predict` returns besides the action
    if action.low:
        extra["drawn"] = Field((len(action.low),), "float32")  # before it was cut to the action space
    obs = obs_fields(envs)
    memory = frames_before(obs, config.frames - 1)
    if config.memory == "gru":
        memory = {"memory": Field((config.hidden,), "float32")}
    if config.memory == "attention":
        memory = attention_memory(config.memory_layers, config.memory_steps, config.hidden)
    step = step_fields(envs, config.ratio == "each")
    if "discount" in step and config.gamma_end != config.gamma_start:
        raise ConfigError(
            f"ppo.gamma_end is {config.gamma_end}, but steps here differ in duration and no schedule changes their "
            f"discounts; it must be gamma_start, {config.gamma_start}"
        )
    return Spec(obs, action, extra, config.chunk_length, step=step, state=memory)
