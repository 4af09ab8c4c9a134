"""A trained model to use in a program of one's own: what `realm.load_policy` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from realm.config.load import RunConfig
from realm.contract import Array, Arrays, PredictContext, Spec, check_arrays
from realm.errors import ContractError
from realm.learn.evaluate import Player
from realm.user import make_envs


@dataclass
class TrainedPolicy:
    """Acts with a trained model.

    spec    the shapes of observations and actions
    config  of the run that trained it
    """

    player: Player
    config: RunConfig
    _begun: int = field(default=0, init=False)  # rows that have been seen before

    @property
    def spec(self) -> Spec:
        return self.player.spec

    def act(self, obs: Mapping[str, Any] | Any, first: Any = None, explore: float = 0.0) -> Array:
        """The actions for observations: the greedy ones, or with explore=1 sampled ones, as training had come to
        explore when it saved this model.

        obs: name -> [N, ...] of N environments, or name -> [...] of one, as `make_envs` gives them; where `spec.obs`
        has a single name, also that array alone. first: bool [N], which rows begin an episode; only an agent with a
        memory looks at it, and without it the first call begins one. Returns [N, ...], or the action of one.
        Raises ContractError for other shapes.
        """
        arrays = self._arrays(obs)
        one = all(array.shape == self.spec.obs[name].shape for name, array in arrays.items())
        rows = {name: array[None] for name, array in arrays.items()} if one else arrays
        count = len(next(iter(rows.values())))
        check_arrays(rows, self.spec.obs, (count,), "the observations")
        begin = np.arange(count) >= self._begun if first is None else np.reshape(first, count).astype(np.bool_)
        self._begun = max(self._begun, count)
        context = PredictContext(np.arange(count), begin, np.full(count, explore, np.float32))
        action = self.player.predict(rows, context)[0]
        return np.asarray(action[0] if one else action)

    def make_envs(self, num_envs: int, seed: int = 0) -> Any:
        """Environments as the model was trained in, with its features: a gymnasium vector environment."""
        return make_envs(self.config, num_envs, seed)

    def _arrays(self, obs: Any) -> Arrays:
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
            name: array.astype(fields[name].dtype, copy=False) if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }
