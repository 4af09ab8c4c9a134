"""What `treasure_ppo` and `treasure_dqn` see and are rewarded for, for many environments in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from realm.env.map import POINTS, SIZE
from realm.env.physics import VIEW, State, World
from realm.env.realm_env import RealmVectorEnv
from realm.jit import jit

BLOCK, BLOCKS, NEAREST, WINDOW = 8, SIZE // 8, 3, 3  # cells of a block; blocks a side; treasures; cells around the hero
CROP = (2 * WINDOW + 1) ** 2
FEATURES = 2 * BLOCKS + 9 * (1 + NEAREST) + 1 + 2 * CROP
WALKS = 8


class TreasureEnvs(VectorEnv[Any, Any, Any]):
    """E realms with these features. NEXT_STEP autoreset."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": RealmVectorEnv.metadata["autoreset_mode"]}

    def __init__(
        self, num_envs: int, seed: int, options: Mapping[str, Any], reward: tuple[float, float, float]
    ) -> None:
        """reward: for a unit of the way to the end, for a point of the score, for a step; the end is worth 2."""
        conf = dict(options)
        self._game = RealmVectorEnv(num_envs, map=conf.pop("map", "default"), usr_conf=conf, observation="none")
        self.num_envs, self._seed, self._reward = num_envs, seed, reward
        self._way = np.zeros(num_envs, np.float32)
        self.single_observation_space = spaces.Dict({"state": spaces.Box(-1.0, 1.0, (FEATURES,), np.float32)})
        self.single_action_space = spaces.Discrete(WALKS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._game.reset(seed=self._seed if seed is None else seed, options=options)
        self._way = self._to_end()
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        _, _, terminated, truncated, info = self._game.step(actions)
        told = {"episode": info["stats"], "_episode": info["_stats"]} if "stats" in info else {}
        way_weight, point_weight, step_cost = self._reward
        way, state = self._to_end(), self._game.state
        taken = 100.0 * state.took_treasures
        reward = way_weight * (self._way - way) + point_weight * taken - step_cost + 2.0 * terminated
        self._way = way
        return self._observe(), np.where(state.fresh, 0.0, reward).astype(np.float32), terminated, truncated, told

    def _to_end(self) -> Any:
        state = self._game.state
        return self._game.world.near[state.cell_z, state.cell_x, state.end]

    def _observe(self) -> dict[str, Any]:
        out = np.zeros((self.num_envs, FEATURES), np.float32)
        write(self._game.state, self._game.world, out)
        return {"state": out}


@jit
def write(s: State, w: World, out: Any) -> None:
    """out: f32 [E, FEATURES] of zeros."""
    order = np.empty(POINTS, np.int64)
    for e in range(len(out)):
        row, cx, cz = out[e], s.cell_x[e], s.cell_z[e]
        row[cx // BLOCK] = row[BLOCKS + cz // BLOCK] = 1.0
        near = w.near[cz, cx]
        relative(s, w, e, s.end[e], near[s.end[e]], row[2 * BLOCKS : 2 * BLOCKS + 9])
        n = 0
        for p in range(1, POINTS):  # treasures by their distance
            if s.there[e, p]:
                k = n
                while k > 0 and near[order[k - 1]] > near[p]:
                    order[k] = order[k - 1]
                    k -= 1
                order[k] = p
                n += 1
        at = 2 * BLOCKS + 9
        for k in range(min(n, NEAREST)):
            relative(s, w, e, order[k], near[order[k]], row[at + 9 * k : at + 9 * k + 9])
        at += 9 * NEAREST
        row[at] = s.flash_wait[e] == 0
        at += 1
        for dz in range(-WINDOW, WINDOW + 1):
            for dx in range(-WINDOW, WINDOW + 1):
                z, x = cz + VIEW + dz, cx + VIEW + dx
                row[at] = w.obstacle[z, x] / 255.0
                row[at + CROP] = s.memory[e, z, x] / 255.0
                at += 1


@jit
def relative(s: State, w: World, e: int, p: int, distance: float, out: Any) -> None:
    """Direction of point p, one of eight, and how far it is to walk."""
    dx, dz = w.points[p, 0] - s.x[e], w.points[p, 1] - s.z[e]
    if dx != 0.0 or dz != 0.0:
        out[round(math.atan2(dz, dx) / (math.pi / 4)) % WALKS] = 1.0
    out[WALKS] = distance
