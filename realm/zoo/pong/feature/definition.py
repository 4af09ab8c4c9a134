"""Pong and its shapes. Workers call it, so it imports no torch.

The table `[env]` has `protocol`: "a" shows the whole screen and has no sticky actions; "b" repeats an action with
probability 0.25 and shows the rows from 34 to 194 alone. Results of the two are not compared. With `id = "Pong-v0"` the
game skips 2 to 4 frames at random, and shows the rows of "b". Other keys go to ale_py's AtariVectorEnv.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from PIL import Image

from realm.contract import Array, Field, Spec
from realm.errors import ConfigError
from realm.zoo.gym import Observed, action_spec, attention_memory, frames_before, make_vec, obs_fields
from realm.zoo.pong.config import FEATURES, Config

SIDE = 84
_ROWS = slice(18, 102)  # of 110; of the screen's 210 these are the rows from 34 to 194
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "a": {"repeat_action_probability": 0.0},
    "b": {
        "repeat_action_probability": 0.25, "img_height": 110, "maxpool": False, "noop_max": 0, "use_fire_reset": False,
    },
}  # fmt: skip


def make_envs(num_envs: int, seed: int, config: Config, options: dict[str, Any]) -> Any:
    given = {"id": "ALE/Pong-v5", "protocol": "b", **options}
    protocol = given.pop("protocol")
    if "points" in given:
        raise ConfigError("[env] and [eval_env] have no points: evaluations play whole games; set pong.points instead")
    if protocol not in tuple(_PROTOCOLS):
        raise ConfigError(f"[env] protocol is {protocol!r}, it must be 'a' or 'b'")
    if given["id"] not in ("ALE/Pong-v5", "Pong-v0"):
        raise ConfigError(
            f"[env] id is {given['id']!r}, it must be 'ALE/Pong-v5' or 'Pong-v0'; others are for realm.zoo.ppo"
        )
    if given["id"] == "Pong-v0":
        if protocol != "b":
            raise ConfigError("[env] protocol is 'a', it must be 'b' with the id Pong-v0, whose actions are sticky")
        envs = make_vec(num_envs, {"obs_type": "grayscale", **given, "id": "ale_py:Pong-v0"}, "")
        _check_frames(envs, (210, 160, 1))
        return _cut(envs, _scaled)
    if fixed := given.keys() & _PROTOCOLS[protocol].keys():
        raise ConfigError(f"[env] has {min(fixed)}, which protocol {protocol!r} fixes; leave it out")
    envs = make_vec(num_envs, {"num_threads": 1, **_PROTOCOLS[protocol], **given}, "")
    _check_frames(envs, (110 if protocol == "b" else SIDE, SIDE, 1))
    return _cut(envs, _rows) if protocol == "b" else envs


def _check_frames(envs: Any, shape: tuple[int, int, int]) -> None:
    """Raise ConfigError unless the environments show grey frames of this shape."""
    seen = {name: space.shape for name, space in envs.single_observation_space.items()}
    if seen != {"state": shape}:
        raise ConfigError(
            f"[env] gives observations {seen}, but Pong's networks need frames of {shape}; leave out the keys that "
            "change them, such as img_height"
        )


def _rows(screen: Array) -> Array:
    """u8 [E, 110, 84, 1] to [E, 84, 84, 1]."""
    shown: Array = screen[:, _ROWS]
    return np.ascontiguousarray(shown)


def _scaled(screen: Array) -> Array:
    """u8 [E, 210, 160, 1] to [E, 84, 84, 1]."""
    some = [Image.fromarray(one[34:194, :, 0]).resize((SIDE, SIDE), Image.Resampling.BOX) for one in screen]
    return np.stack([np.asarray(one)[..., None] for one in some])


def _cut(envs: Any, seen: Callable[[Array], Array]) -> Any:
    """seen: what is shown of u8 [E, height, width, 1]."""
    space = spaces.Dict({"state": spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)})
    cut = Observed(envs, lambda obs: {"state": seen(obs["state"])}, batch_space(space, envs.num_envs), space)
    cut.inputs = {"state": {"shape": [SIDE, SIDE, 1], "dtype": "uint8"}}
    return cut


def spec(envs: Any, config: Config) -> Spec:
    obs, step = obs_fields(envs), {"discount": Field((), "float32")} if config.points else {}
    extra = {"log_prob": Field((), "float32")}  # what `predict` returns besides the action
    memory = frames_before(obs, config.frames - 1)
    if config.network == "attention":
        extra["features"] = Field((FEATURES,), "float32")
        memory = {"features": Field((config.past, FEATURES), "float32"), "age": Field((), "int64")}
    if config.network == "transformer":
        memory = attention_memory(config.memory_layers, config.memory_steps, config.memory_width)
    return Spec(obs, action_spec(envs), extra, config.chunk_length, step=step, state=memory)
