"""The realm as a project's code gets it: one game for a workflow, and E of them for evaluations.

Both give the objects of the game's protocol (`realm/env/protocol.py`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from realm.contract import Array, Arrays
from realm.env import physics
from realm.env.games import Games, episode_stats
from realm.env.protocol import EnvInfo, Observation, RealmGame
from realm.env.realm_env import RealmVectorEnv

Episodes = Callable[[Mapping[str, Any]], None]
Seen = tuple[Observation, EnvInfo]


class Game(RealmGame):
    """One realm for a workflow. Episodes are counted here, so scores do not depend on what the workflow logs."""

    def __init__(
        self, options: Mapping[str, Any] | None = None, map: str = "default", seed: int | None = None, algo: str = "",
        tick: Callable[[], None] = lambda: None, episodes: Episodes = lambda info: None,
    ) -> None:  # fmt: skip
        """tick: called at each step. episodes: gets the statistics of each episode that ends."""
        super().__init__(options, map, seed)
        self._algo, self._tick, self._episodes = algo, tick, episodes
        self.steps = 0

    def reset(self, usr_conf: Mapping[str, Any] | None = None) -> Observation:
        self._tick()
        if isinstance(usr_conf, Mapping) and list(usr_conf) == [self._algo]:
            usr_conf = usr_conf[self._algo]  # some name their own algorithm instead of "diy"
        return super().reset(usr_conf)

    def step(self, action: int) -> tuple[int, Observation, Any, bool, bool, EnvInfo]:
        self._tick()
        result = super().step(action)
        self.steps += 1
        if result[3] or result[4]:
            self._episodes({"episode": episode_stats(self.state), "_episode": np.ones(1, np.bool_)})
        return result

    def close(self) -> None:
        """There is nothing to close."""


class _View(RealmGame):
    """Environment e of many, as the objects of the protocol."""

    def __init__(self, games: Games, e: int) -> None:
        self.games, self.map = games, games.map
        rows = {name: array[e : e + 1] for name, array in games.state._asdict().items() if name != "cursor"}
        self.state = games.state._replace(**rows)
        self._image = np.zeros((1, 4, physics.WINDOW, physics.WINDOW), dtype=np.uint8)

    def seen(self) -> Seen:
        return self._observation(), self._env_info()


class Envs(VectorEnv[Arrays, Array, Array]):
    """E realms for evaluations.

    An observation here is only a number, `row`: the agent is in the same process and looks up the objects of the
    protocol by it (`seen`). The other fields of the spec's observation are 0; workers fill them in.
    """

    def __init__(self, num_envs: int, options: Mapping[str, Any], others: Mapping[str, Array]) -> None:
        """others: name -> one environment's array of zeros."""
        conf = dict(options)
        self.num_envs, self.map, self.options = num_envs, conf.pop("map", "default"), conf
        layouts = conf.pop("layouts", None)
        self._envs = RealmVectorEnv(num_envs, usr_conf=conf, layouts=layouts, map=self.map, observation="none")
        self.metadata, self.action_space = self._envs.metadata, self._envs.action_space
        self.views = [_View(self._envs.games, e) for e in range(num_envs)]
        self._number = next(_numbers)
        _open[self._number] = self
        zeros = {name: np.stack([array] * num_envs) for name, array in others.items()}
        self._obs: Arrays = {**zeros, "row": (self._number << 32) + np.arange(num_envs)}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        self._envs.reset(seed=seed, options=options)
        return self._obs, {}

    def step(self, actions: Array) -> tuple[Arrays, Array, Array, Array, dict[str, Any]]:
        _, reward, terminated, truncated, info = self._envs.step(actions)
        told = {"episode": info["stats"], "_episode": info["_stats"]} if "stats" in info else {}
        return self._obs, reward.astype(np.float32), terminated, truncated, told

    def close_extras(self, **kwargs: Any) -> None:
        self._envs.close()


_numbers = itertools.count(1)
_open: weakref.WeakValueDictionary[int, Envs] = weakref.WeakValueDictionary()
"""Number -> environments of this process: how an agent finds the objects behind an observation's `row`."""


def seen(row: int) -> Seen:
    """The observation and the env_info behind a row."""
    return _open[row >> 32].views[row & 0xFFFFFFFF].seen()
