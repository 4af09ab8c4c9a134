"""Any gymnasium environment as a package needs it: vector environments with dicts as observations, and their shapes.

A package of the zoo takes its environment's name from the table `[env]`: `id = "Pendulum-v1"`; the other keys of that
table go to `gymnasium.make_vec`. Workers call this, so it imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation

from realm.contract import ActionSpec, Arrays, Field, Fields
from realm.errors import ConfigError

_MOST_COMBINATIONS = 4096


def make_vec(num_envs: int, options: Mapping[str, Any], default: str) -> VectorEnv[Any, Any, Any]:
    """Environments that report each episode's return; observations are dicts, `{"state": ...}` where they were none,
    and f64 becomes f32. options: the table `[env]`; default: the id if it names none."""
    given = dict(options)
    name = given.pop("id", default)
    try:
        envs: Any = gymnasium.make_vec(name, num_envs, vectorization_mode="sync", **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"[env] id is {name}, which needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(f"[env] id is {name!r}: {str(error).splitlines()[0]}") from error
    if isinstance(envs.single_action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        envs = _JointActions(envs)
    single, batched = _as_dict(envs.single_observation_space), _as_dict(envs.observation_space)
    return TransformObservation(RecordEpisodeStatistics(envs), _observed, batched, single)


class _JointActions(VectorActionWrapper):
    """Each combination of several discrete actions as one action; for spaces with few combinations."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        space: Any = envs.single_action_space
        self._nvec = np.asarray(space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2))
        count = int(np.prod(self._nvec, dtype=np.int64))
        if count > _MOST_COMBINATIONS:
            raise ConfigError(f"the action space {space} has {count} combinations, more than {_MOST_COMBINATIONS}")
        self.single_action_space = spaces.Discrete(count)
        self.action_space = spaces.MultiDiscrete([count] * envs.num_envs)

    def actions(self, actions: Any) -> Any:
        joint: Any = self.env.single_action_space
        parts = np.stack(np.unravel_index(actions, self._nvec.reshape(-1)), -1)
        return parts.reshape(-1, *self._nvec.shape).astype(joint.dtype)


def _observed(obs: Any) -> Arrays:
    parts = obs if isinstance(obs, dict) else {"state": obs}
    return {name: np.asarray(array, _dtype(array.dtype)) for name, array in parts.items()}


def _dtype(dtype: np.dtype[Any] | None) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype == np.float64 or dtype is None else dtype


def _as_dict(space: spaces.Space[Any]) -> spaces.Dict:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"state": space}
    return spaces.Dict({name: _single(part) for name, part in parts.items()})


def _single(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def obs_fields(envs: VectorEnv[Any, Any, Any]) -> Fields:
    """Name -> shape and dtype of one environment's observation."""
    space = envs.single_observation_space
    assert isinstance(space, spaces.Dict)
    return {name: Field(part.shape or (), str(part.dtype)) for name, part in space.spaces.items()}


def action_spec(envs: VectorEnv[Any, Any, Any]) -> ActionSpec:
    """The action space as an ActionSpec. Raises ConfigError for one that is no Discrete or flat Box."""
    space = envs.single_action_space
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ActionSpec(n=int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return ActionSpec(low=tuple(map(float, space.low)), high=tuple(map(float, space.high)))
    raise ConfigError(
        f"the action space is {space}; it must be Discrete from 0, MultiDiscrete, MultiBinary or a Box of one axis"
    )
