"""Several vector environments as one: this is how a worker plays more than one map.

Made by `definition.make_envs` when [env] names a list of maps. Environment n of all is environment n - offset of its
part; observations, rewards and statistics are those of the parts, one part below the other. It cannot be given layouts
as `realm eval` gives them (no `metadata["layouts"]`), since each part counts its own episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from realm.contract import Array, Arrays


class JoinedEnvs(VectorEnv[Arrays, Array, Array]):
    """Parts with the same spaces and the same autoreset. Returned arrays are fresh."""

    def __init__(self, parts: Sequence[VectorEnv[Arrays, Array, Array]]) -> None:
        self.parts = list(parts)
        self.metadata = {**parts[0].metadata, "layouts": False}
        self.num_envs = sum(part.num_envs for part in parts)
        self.single_observation_space = parts[0].single_observation_space
        self.single_action_space = parts[0].single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        ends = np.cumsum([part.num_envs for part in parts]).tolist()
        self._slices = [slice(end - part.num_envs, end) for part, end in zip(parts, ends, strict=True)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start an episode everywhere. Environment i takes seed + i (or seed[i]); every part gets all options."""
        if "reset_mask" in (options or {}):
            raise ValueError("reset_mask: environments of several maps are reset together only")
        if isinstance(seed, Sequence) and len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} entries, there are {self.num_envs} environments")
        obs = []
        for part, rows in zip(self.parts, self._slices, strict=True):
            own: Any = seed[rows] if isinstance(seed, Sequence) else None if seed is None else seed + rows.start
            obs.append(part.reset(seed=own, options=options)[0])
        return _below(obs), {}

    def step(self, actions: Array) -> tuple[Arrays, Array, Array, Array, dict[str, Any]]:
        """actions: i64 [E]. Episode statistics are in `info["episode"]` where `info["_episode"]` is true."""
        steps = [part.step(actions[rows]) for part, rows in zip(self.parts, self._slices, strict=True)]
        obs, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        flags = np.concatenate(rewards), np.concatenate(terminated), np.concatenate(truncated)
        return _below(obs), *flags, self._statistics(infos)

    def _statistics(self, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The parts' infos as one; parts in which no episode has ended say nothing, which becomes zeros."""
        info: dict[str, Any] = {}
        for part, rows in zip(infos, self._slices, strict=True):
            if "_episode" not in part:
                continue
            if not info:
                zeros = {name: np.zeros(self.num_envs, array.dtype) for name, array in part["episode"].items()}
                info = {"episode": zeros, "_episode": np.zeros(self.num_envs, np.bool_)}
            info["_episode"][rows] = part["_episode"]
            for name, array in part["episode"].items():
                info["episode"][name][rows] = array
        return info

    def close_extras(self, **kwargs: Any) -> None:
        for part in self.parts:
            part.close(**kwargs)


def _below(obs: Sequence[Arrays]) -> Arrays:
    """Observations [E of a part, ...] to [E of all, ...]."""
    return {name: np.concatenate([one[name] for one in obs]) for name in obs[0]}
