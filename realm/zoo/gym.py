"""Any gymnasium environment as a package needs it: vector environments with dicts as observations, and their shapes.

A package of the zoo takes its environment's name from the table `[env]`: `id = "Pendulum-v1"`, or `id =
"my_module:MyEnv-v0"` for one that a module registers; the other keys of that table go to `gymnasium.make_vec`. Workers
call this, so it imports no torch. Atari's `id = "ALE/Pong-v5"` gives single grey frames of 84 x 84, made by ale_py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation

from realm.contract import ActionSpec, Array, Arrays, Field, Fields
from realm.errors import ConfigError

_MOST_COMBINATIONS = 4096
_IMAGE_SIDE = 36  # smaller ones are no images to `realm.algorithms.networks.Encoder`
_MOST_CHANNELS = 16
MASK = "legal"


def make_vec(num_envs: int, options: Mapping[str, Any], default: str) -> VectorEnv[Any, Any, Any]:
    """Environments that report each episode's return; observations are dicts of numbers (see `_number_space`), and
    `{"state": ...}` where they were no dicts. One named `legal` is the mask of legal actions.

    options: the table `[env]`; default: the id if it names none.
    """
    given = dict(options)
    env_id = name = given.pop("id", default)
    mode = "sync"
    if str(name).startswith("ALE/"):
        # its own vector environment; a frame stacked there would be stored several times; `Draw.look_back` stacks
        name, mode, given = f"ale_py:{name}", "vector_entry_point", {"stack_num": 1, **given}
    try:
        if mode != "sync" and find_spec("ale_py") is None:
            raise gymnasium.error.DependencyNotInstalled("run `pip install 'gymnasium[atari]' ale-py`")
        envs: Any = gymnasium.make_vec(name, num_envs, vectorization_mode=mode, **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"[env] id is {env_id!r}, which needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(f"[env] id is {env_id!r}: {str(error).splitlines()[0]}") from error
    action: Any = envs.single_action_space
    from_0 = not isinstance(action, spaces.Discrete) or action.start == 0
    if isinstance(action, (spaces.MultiDiscrete, spaces.MultiBinary)) or not from_0:
        envs = _JointActions(envs)
    parts = list(_parts(envs.single_observation_space))
    single = spaces.Dict({_name(path): _number_space(space) for path, space in parts})
    if MASK in single.spaces:
        single = spaces.Dict({**single.spaces, MASK: _mask_space(single[MASK], envs.single_action_space)})

    def observed(obs: Any) -> Arrays:
        seen = {_name(path): _numbers(space, _part(obs, path)) for path, space in parts}
        return seen | {MASK: seen[MASK].astype(np.bool_)} if MASK in seen else seen

    return TransformObservation(
        RecordEpisodeStatistics(_Unrecorded(envs)), observed, batch_space(single, num_envs), single
    )


class _Unrecorded(VectorWrapper):
    """Leaves out what environments say of their episodes themselves: gymnasium's recorder refuses a second report."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *step, info = self.env.step(actions)
        return (*step, {name: x for name, x in info.items() if name not in ("episode", "_episode")})


class _JointActions(VectorActionWrapper):
    """Each combination of several discrete actions as one action from 0; for spaces with few combinations."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        space: Any = envs.single_action_space
        self._nvec = np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else np.asarray(_counts(space))
        self._start = np.asarray(getattr(space, "start", 0))
        count = int(np.prod(self._nvec, dtype=np.int64))
        if count > _MOST_COMBINATIONS:
            raise ConfigError(f"the action space {space} has {count} combinations, more than {_MOST_COMBINATIONS}")
        self.single_action_space = spaces.Discrete(count)
        self.action_space = spaces.MultiDiscrete([count] * envs.num_envs)

    def actions(self, actions: Any) -> Any:
        joint: Any = self.env.single_action_space
        parts = np.stack(np.unravel_index(actions, self._nvec.reshape(-1)), -1)
        return (parts.reshape(-1, *self._nvec.shape) + self._start).astype(joint.dtype)


# ---- observations ----


def _parts(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Keys and space of every leaf of a Dict, which may have others in it. Raises ConfigError."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        yield path, space
    else:
        raise ConfigError(
            f"the observation space is or has {space}; it must be a Box, Discrete, MultiDiscrete, MultiBinary, or a "
            "Dict of these; wrap the environment into one that gives these"
        )


def _name(path: tuple[str, ...]) -> str:
    return ".".join(path) or "state"


def _part(obs: Any, path: tuple[str, ...]) -> Array:
    for key in path:
        obs = obs[key]
    return np.asarray(obs)


def _number_space(space: Any) -> spaces.Box:
    """The space of what `_numbers` gives: images as they are but with channels last, f64 as f32, choices one-hot."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return spaces.Box(0.0, 1.0, (int(np.sum(_counts(space))),), np.float32)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.int8)
    low, high = (_numbers(space, bound[None])[0] for bound in (space.low, space.high))
    return spaces.Box(low, high, low.shape, dtype=low.dtype.type)


def _mask_space(space: spaces.Space[Any], action: Any) -> spaces.Box:
    """Raises ConfigError unless it has a number for each action."""
    wanted = (int(getattr(action, "n", 0)),)
    if space.shape != wanted:
        raise ConfigError(
            f"the observation {MASK!r} is {space}, but what has this name is a mask of the legal actions, here of the "
            f"action space {action}; give it another name if it is none"
        )
    return spaces.Box(0, 1, wanted, np.bool_)  # type: ignore[arg-type]  # its stubs know numbers alone


def _numbers(space: Any, array: Array) -> Array:
    """array: [E, ...] of `space`. Returns [E, ...] with one axis more at least."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        counts = np.ravel(_counts(space))
        chosen = (array - space.start).reshape(len(array), -1) + np.cumsum([0, *counts[:-1]])
        hot = np.zeros((len(array), int(counts.sum())), np.float32)
        np.put_along_axis(hot, chosen.astype(np.int64), 1.0, axis=1)
        return hot
    array = array if array.ndim > 1 else array[:, None]
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.uint8 and min(array.shape[-2:]) >= _IMAGE_SIDE:
        if array.ndim == 3:
            return array[..., None]
        if array.ndim == 4 and array.shape[1] <= _MOST_CHANNELS:
            return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    return array


def _counts(space: Any) -> Any:
    return space.n if isinstance(space, spaces.Discrete) else space.nvec


def obs_fields(envs: VectorEnv[Any, Any, Any]) -> Fields:
    """Name -> shape and dtype of one environment's observation."""
    space = envs.single_observation_space
    assert isinstance(space, spaces.Dict)
    return {name: Field(part.shape or (), str(part.dtype)) for name, part in space.spaces.items()}


def action_spec(envs: VectorEnv[Any, Any, Any], kind: type[spaces.Space[Any]] | None = None) -> ActionSpec:
    """The action space as an ActionSpec. kind: `spaces.Discrete` or `spaces.Box`, what the algorithm needs; None: any.

    Raises ConfigError for another one, and for a Box that is not flat or has no bounds.
    """
    space = envs.single_action_space
    if isinstance(space, spaces.Discrete) and kind in (None, spaces.Discrete):
        return ActionSpec(n=int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded() and kind in (None, spaces.Box):
        return ActionSpec(low=tuple(map(float, space.low)), high=tuple(map(float, space.high)))
    discrete, box = "Discrete, MultiDiscrete or MultiBinary", "a Box of one axis with finite bounds"
    wanted = f"{discrete}, or {box}" if kind is None else discrete if kind is spaces.Discrete else box
    raise ConfigError(f"the action space is {space}; it must be {wanted}")
