"""A trained model to use in a program of one's own: what `realm.load_policy` returns.

A package may put vector wrappers of gymnasium around its environments, which change observations or actions. `act` goes
through them, so that a program needs only the environment itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorObservationWrapper

from realm.config.load import RunConfig
from realm.contract import Array, Arrays, PredictContext, Spec, check_arrays
from realm.errors import ContractError
from realm.learn.evaluation import Player
from realm.learn.results import layers
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
        as `make_envs` gives them, name -> [N, ...] or [...]. Returns an action of the environment, or [N, ...].
        first: bool [N], which rows begin an episode: an agent with a memory keeps one for each row. Without it, those
        begin one that are new since `reset`. Raises ContractError for an observation that does not fit.
        """
        arrays, one = self._arrays(obs)
        count = len(next(iter(arrays.values())))
        check_arrays(arrays, self.spec.obs, (count,), "the observations")
        begin = np.arange(count) >= self._begun if first is None else np.reshape(first, count).astype(np.bool_)
        self._begun = max(self._begun, count)
        context = PredictContext(np.arange(count), begin, np.full(count, explore, np.float32))
        action = own_actions(self.player.envs, self.player.predict(arrays, context)[0])
        return action[0] if one else action

    def reset(self) -> None:
        """Forget what was seen, if the agent has a memory. Call it where an episode begins."""
        self._begun = 0

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
        envs = self.player.envs
        fields = self.spec.obs
        agents = spaces.Dict(
            [(name, spaces.Box(0, 1, one.shape, np.dtype(one.dtype).type)) for name, one in fields.items()]
        )
        try:
            seen, one = _batch(getattr(envs.unwrapped, "single_observation_space", agents), obs)
        except ContractError:
            with suppress(ContractError):
                return _batch(agents, obs)
            raise
        for layer in reversed(list(layers(envs))):
            seen = layer.observations(seen) if isinstance(layer, VectorObservationWrapper) else seen
        return dict(seen) if isinstance(seen, Mapping) else {next(iter(fields)): seen}, one


def own_actions(envs: Any, actions: Array) -> Any:
    """What the innermost environment gets for actions [N, ...] of the agent."""
    for layer in layers(envs):
        actions = layer.actions(actions) if isinstance(layer, VectorActionWrapper) else actions
    return actions


def _batch(space: Any, obs: Any) -> tuple[Any, bool]:
    """Observations of a space with a leading N, as vector environments give them, and whether it was one without."""
    leading = set[tuple[int, ...]]()

    def fitted(space: Any, obs: Any, label: str) -> Any:
        got = f"a {type(obs).__name__}"
        if isinstance(space, spaces.Dict):
            if isinstance(obs, Mapping) and not (missing := space.spaces.keys() - obs.keys()):
                return {key: fitted(part, obs[key], f"{label}[{key!r}]") for key, part in space.spaces.items()}
            names = ", ".join(map(str, space.spaces))
            got = f"one without {', '.join(map(str, missing))}" if isinstance(obs, Mapping) else got
            raise ContractError(f"{label} must be a dict of {names}, got {got}")
        if isinstance(space, spaces.Tuple):
            if isinstance(obs, tuple | list) and len(obs) == len(space.spaces):
                return tuple(fitted(part, obs[i], f"{label}[{i}]") for i, part in enumerate(space.spaces))
            raise ContractError(f"{label} must be a tuple of {len(space.spaces)} parts, got {got}")
        shape, dtype = space.shape or (), space.dtype
        with suppress(ValueError):  # of lists of several lengths
            array = np.asarray(obs)
            more = array.ndim - len(shape)
            got = f"{array.dtype}{list(array.shape)}" if array.dtype.kind in "biuf" else got
            numbers = "biuf" if getattr(dtype, "kind", "") == "f" else "biu"
            if array.dtype.kind in numbers and more in (0, 1) and array.shape[more:] == shape:
                leading.add(array.shape[:more])
                return array.astype(dtype).reshape(*(array.shape[:more] or (1,)), *shape)
        many = f"{dtype}{['N', *shape]}".replace("'", "")
        raise ContractError(f"{label} must be {dtype}{list(shape)} or {many}, got {got}")

    batch = fitted(space, obs, "the observation")
    if len(leading) != 1:
        rows = " and ".join(sorted(f"{list(axes)}" for axes in leading))
        raise ContractError(f"the parts of the observation differ in their leading axes, {rows}")
    return batch, leading == {()}
