"""What the agent sees and is rewarded for: environments with features, their shapes, and the reward.

Called by the framework in every worker (`make_envs`, `spec`), so it imports no torch. Observations are dicts of arrays
with a leading E; the legal actions are one of them (`legal`). Rewards come from the state that the game's kernels leave
behind each step, all environments in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from diy.config import Config
from diy.feature import constants as c
from diy.feature import kernels
from diy.feature.joined import JoinedEnvs
from diy.feature.ways import make_ways
from realm.contract import ActionSpec, Array, Arrays, Field, Fields, Spec
from realm.env.map import resolve
from realm.env.observe import write_image, write_vector
from realm.env.physics import ACTIONS, VIEW, WINDOW, State
from realm.env.realm_env import RealmVectorEnv, legal_actions

_BEYOND = 64  # numbers after the last features: numba does not say that a kernel writes there

REFERENCE: Fields = {
    "image": Field((4, WINDOW, WINDOW), "uint8"),
    "vector": Field((31,), "float32"),
    "legal": Field((ACTIONS,), "bool"),
}


def small_fields(config: Config) -> Fields:
    """The small observation."""
    size = kernels.SMALL_SIZE
    size += (kernels.TOURS_SIZE if config.tours else 0) - (0 if config.position else kernels.POSITION_SIZE)
    # bfloat16, which NumPy has no type for: half the bytes of float32 on every way, and what the network computes with
    return {"features": Field((size,), "int16"), "legal": Field((ACTIONS,), "bool")}


def as_float32(features: NDArray[np.int16]) -> NDArray[np.float32]:
    """The small features as numbers to read, within -1..1."""
    return (features.astype(np.uint32) << 16).view(np.float32)


def make_envs(num_envs: int, seed: int, config: Config, options: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Make `num_envs` realms. options: the table `[env]`: `map`, `layouts` and the game's own options (`usr_conf`).

    `map` may be a list: then the environments are shared out over these maps. Where there are fewer environments than
    maps, some maps are not played; the seed, another one in each worker, draws which.
    """
    conf = dict(options)
    map_, layouts = conf.pop("map", "default"), conf.pop("layouts", None)

    def make(map_: Any, num_envs: int, seed: int) -> FeatureEnvs:
        game = RealmVectorEnv(num_envs, map=map_, layouts=layouts, usr_conf=conf, observation="none")
        return FeatureEnvs(game, seed, config)

    if not isinstance(map_, list | tuple):
        return make(map_, num_envs, seed)
    if not map_:
        raise ValueError("map is [], a list of maps needs one at least")
    maps = [resolve(one) for one in map_]  # all, so that a wrong one is found in any case
    if num_envs < len(maps):
        maps = [maps[i] for i in sorted(np.random.default_rng(seed).permutation(len(maps))[:num_envs])]
    begin = [k * num_envs // len(maps) for k in range(len(maps) + 1)]
    return JoinedEnvs(
        [make(one, end - first, seed + first) for one, first, end in zip(maps, begin, begin[1:], strict=False)]
    )


def spec(envs: VectorEnv[Any, Any, Any], config: Config) -> Spec:
    """The shapes of what these environments give and of what `Agent.predict` adds."""
    part = envs.parts[0] if isinstance(envs, JoinedEnvs) else envs
    assert isinstance(part, FeatureEnvs)
    extra = ("log_prob", "value") if config.value_source == "actor" else ("log_prob",)
    return Spec(
        obs=part.fields,
        action=ActionSpec(n=ACTIONS),
        extra={name: Field((), "float32") for name in extra},
        chunk_length=config.chunk_length,
    )


class FeatureEnvs(VectorEnv[Arrays, Array, Array]):
    """E realms with the features and the reward of `config`. Returned arrays are fresh. NEXT_STEP autoreset."""

    def __init__(self, game: RealmVectorEnv, seed: int, config: Config) -> None:
        self.game, self.config, self.metadata = game, config, game.metadata
        self.num_envs = game.num_envs
        self.fields = small_fields(config) if config.features == "small" else REFERENCE
        self.single_observation_space = spaces.Dict({name: _space(one) for name, one in self.fields.items()})
        self.single_action_space = game.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = game.action_space
        self._seed: int | None = seed
        self._ways = make_ways(game.map, self._ends())
        self._way = np.zeros(self.num_envs, np.float32)  # cells to go after the last step
        if config.features == "small":
            (size,) = self.fields["features"].shape
            room = np.zeros(self.num_envs * size + _BEYOND, np.float32)
            self.unrounded = room[:-_BEYOND].reshape(self.num_envs, size)  # features now
            self._beyond = room[-_BEYOND:]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start an episode everywhere; without a seed the first reset takes the one given to `make_envs`."""
        self.game.reset(seed=self._seed if seed is None else seed, options=options)
        self._seed = None
        if (self._ways.row[self._ends()] < 0).any():  # other episodes, by `options`
            self._ways = make_ways(self.game.map, self._ends())
        self._way = self._to_go()
        return self._observe(), {}

    def step(self, actions: Array) -> tuple[Arrays, NDArray[np.float32], Array, Array, dict[str, Any]]:
        """actions: i64 [E]. Episode statistics are in `info["episode"]` where `info["_episode"]` is true."""
        _, _, terminated, truncated, info = self.game.step(actions)
        if "stats" in info:
            info = {"episode": info["stats"], "_episode": info["_stats"]}
        return self._observe(), self._reward(), terminated, truncated, info

    def _observe(self) -> Arrays:
        state, world = self.game.state, self.game.world
        obs = {name: np.empty((self.num_envs, *one.shape), one.dtype) for name, one in self.fields.items()}
        if self.config.features == "small":
            ways, features = self._ways, self.unrounded
            kernels.write_small(state, world, ways.row, ways.walk, self.config.position, features)
            if self._beyond.any():
                raise IndexError(f"write_small writes more than SMALL_SIZE, {kernels.SMALL_SIZE} features")
            if self.config.tours:
                kernels.write_tours(state, world, ways.row, ways.walk, ways.tour, features)
            kernels.to_bfloat16(features, obs["features"])
            kernels.write_useful(state, world, obs["legal"])
        else:
            write_image(state, world, obs["image"])
            write_vector(state, world, obs["vector"])
            obs["legal"][:] = legal_actions(state)
        return obs

    def _ends(self) -> list[int]:
        """The ends of all episodes to come."""
        return [int(end) for end in np.unique(self.game.games.episodes.end)]

    def _to_go(self) -> NDArray[np.float32]:
        """f32 [E], cells: the way that the reward is about."""
        out = np.empty(self.num_envs, np.float32)
        if self.config.reward == "small":
            kernels.tour_to_go(self.game.state, *self._ways, self.config.flash_share, out)
        else:
            kernels.nearest_to_go(self.game.state, self.game.world, out)
        return out

    def _reward(self) -> NDArray[np.float32]:
        """f32 [E], scaled. 0 where the episode has just been reset."""
        config, state = self.config, self.game.state
        way = self._to_go()
        nearer, self._way = self._way - way, way
        points = config.treasure_points * state.took_treasures - config.step_points
        missed = state.total - state.treasures
        points += state.terminated * (config.end_points - config.missed_points * missed)
        points += config.way_points * nearer if config.reward == "small" else _reference_points(state, nearer)
        points[state.fresh] = 0.0
        return (config.reward_scale * points).astype(np.float32)


def _reference_points(state: State, nearer: NDArray[np.float32]) -> NDArray[np.float64]:
    """The published terms for how a step went. nearer: f32 [E], cells won; returns f64 [E]."""
    nearer = np.where(state.took_treasures > 0, 0.0, nearer)  # then another treasure is the nearest: not a step back
    visits = state.memory[np.arange(len(nearer)), state.cell_z + VIEW, state.cell_x + VIEW] / 255.0
    points: NDArray[np.float64] = (
        np.where(state.used_flash, c.FLASH_CELL_POINTS, c.CELL_POINTS) * nearer
        - state.hit_wall * np.where(state.used_flash, c.FLASH_WALL_POINTS, c.WALL_POINTS)
        + state.took_buff * c.BUFF_POINTS
        - (state.terminated & (state.buffs == 0)) * c.BUFF_POINTS
        - np.maximum(visits - c.VISITS_FREE, 0.0)
    )
    return points


def _space(one: Field) -> spaces.Box:
    if one.dtype == "float32":
        return spaces.Box(-1.0, 1.0, one.shape, np.float32)
    if one.dtype == "bool":
        return spaces.Box(0, 1, one.shape, np.bool_)  # type: ignore[arg-type]
    bounds = np.iinfo(one.dtype)
    return spaces.Box(bounds.min, bounds.max, one.shape, np.dtype(one.dtype))
