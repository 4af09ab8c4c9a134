"""A trained model to use in a program of one's own: what `realm.load_policy` returns.

A package may put vector wrappers of gymnasium around its environments, which change observations or actions. `act` goes
through them, so that a program needs only the environment itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorObservationWrapper

from realm.config.load import RunConfig
from realm.contract import Array, Arrays, PredictContext, Spec, check_arrays
from realm.errors import ContractError
from realm.learn.evaluation import Player
from realm.user import make_envs


@dataclass
class TrainedPolicy:
    """Acts with a trained model.

    spec    the shapes of observations and actions as the agent has them
    config  of the run that trained it
    """

    player: Player
    config: RunConfig
    _begun: int = field(default=0, init=False)  # rows that have been seen before

    @property
    def spec(self) -> Spec:
        return self.player.spec

    def act(self, obs: Any, first: Any = None, explore: float = 0.0) -> Any:
        """The actions for observations: the greedy ones, or with explore=1 sampled ones, as training had come to
        explore when it saved this model.

        obs: an observation of the environment, as `gymnasium.make` gives it, or of N with a leading N in each array; or
        as `make_envs` gives them: name -> [N, ...], or name -> [...] of one; where `spec.obs` has a single name, also
        that array alone. first: bool [N], which rows begin an episode; only an agent with a memory looks at it, and
        without it the first call begins one. Returns an action of the environment, or [N, ...].
        Raises ContractError for other shapes.
        """
        arrays, one = self._arrays(obs)
        count = len(np.atleast_1d(next(iter(arrays.values()))))
        check_arrays(arrays, self.spec.obs, (count,), "the observations")
        begin = np.arange(count) >= self._begun if first is None else np.reshape(first, count).astype(np.bool_)
        self._begun = max(self._begun, count)
        context = PredictContext(np.arange(count), begin, np.full(count, explore, np.float32))
        action = own_actions(self.player.envs, self.player.predict(arrays, context)[0])
        return action[0] if one else action

    def make_envs(self, num_envs: int, seed: int = 0) -> Any:
        """Environments as the model was trained in, with its features: a gymnasium vector environment. They take what
        `act` returns, which are actions of the environment itself."""
        envs = make_envs(self.config, num_envs, seed)
        while isinstance(envs, VectorActionWrapper):
            envs = envs.env
        for layer in layers(envs):
            while isinstance(getattr(layer, "env", None), VectorActionWrapper):
                layer.env = layer.env.env
        return envs

    def _arrays(self, obs: Any) -> tuple[Arrays, bool]:
        """Observations as the agent has them, name -> [N, ...], and whether they are of one environment."""
        fields, envs = self.spec.obs, self.player.envs
        raw = getattr(envs.unwrapped, "single_observation_space", None)
        shapes = _leading(raw, obs)
        if len(shapes) == 1 and (leading := shapes.pop()) is not None:
            one = leading == ()
            obs = _batch(raw, obs, leading or (1,))
            for layer in reversed(list(layers(envs))):
                obs = layer.observations(obs) if isinstance(layer, VectorObservationWrapper) else obs
            return self._of_spec(obs), one
        arrays = self._of_spec(obs)
        one = all(array.shape == fields[name].shape for name, array in arrays.items())
        return {name: array[None] if one else array for name, array in arrays.items()}, one

    def _of_spec(self, obs: Any) -> Arrays:
        fields = self.spec.obs
        if not isinstance(obs, Mapping):
            if len(fields) != 1:
                raise ContractError(f"the observations must be a dict of {', '.join(fields)}, got {type(obs).__name__}")
            obs = {next(iter(fields)): obs}
        if missing := fields.keys() - obs.keys():
            raise ContractError(
                f"the observations lack {', '.join(sorted(missing))}; they must hold {', '.join(fields)}"
            )
        arrays = {name: np.asarray(obs[name]) for name in fields}
        # gymnasium's environments give float64 where the packages of the zoo take float32
        return {
            name: array.astype(fields[name].dtype)
            if array.dtype.kind == "f" == np.dtype(fields[name].dtype).kind
            else array
            for name, array in arrays.items()
        }


def layers(envs: Any) -> Iterator[Any]:
    """A vector environment and what it wraps, the outermost first."""
    while envs is not None:
        yield envs
        envs = getattr(envs, "env", None)


def own_actions(envs: Any, actions: Array) -> Any:
    """What the innermost environment gets for actions [N, ...] of the agent."""
    for layer in layers(envs):
        actions = layer.actions(actions) if isinstance(layer, VectorActionWrapper) else actions
    return actions


def _leading(space: Any, obs: Any) -> set[tuple[int, ...] | None]:
    """The axes in front of the arrays of `obs`, () or (N,), if it is an observation of `space` or N; None if not."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping) and obs.keys() == space.spaces.keys():
        return set[tuple[int, ...] | None]().union(*(_leading(part, obs[key]) for key, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list) and len(obs) == len(space.spaces):
        return set[tuple[int, ...] | None]().union(*map(_leading, space.spaces, obs))
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        array, shape = np.asarray(obs), space.shape or ()
        more = array.ndim - len(shape)
        numbers = array.dtype.kind in ("biuf" if isinstance(space, spaces.Box) else "biu")
        if numbers and more in (0, 1) and array.shape[more:] == shape:
            return {array.shape[:more]}
    return {None}


def _batch(space: Any, obs: Any, leading: tuple[int, ...]) -> Any:
    """The same with a leading N, as vector environments give it."""
    if isinstance(space, spaces.Dict):
        return {key: _batch(part, obs[key], leading) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batch(part, one, leading) for part, one in zip(space.spaces, obs, strict=True))
    return np.reshape(obs, (*leading, *space.shape))
