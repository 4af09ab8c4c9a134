"""The realm as gymnasium environments: `RealmEnv` (one) and `RealmVectorEnv` (E in one call).

Made by `gymnasium.make("Realm-v0")` and `gymnasium.make_vec("Realm-v0", num_envs=E)` after `import realm`, or directly.

Observation, a dict: `image` u8 [4, 51, 51] (obstacle, memory, treasures, end around the hero, times 255;
    row 0 south; left out with observation="vector"), `vector` f32 [31] (the reference features, 0..1),
    `action_mask` i8 [16] (1 = legal). With observation="none" the dict is empty, for everybody who reads `state`.
Action: 0-7 walk, 8-15 flash, direction `a % 8` times 45 degrees from east. An illegal flash walks.
Reward: the change of the game's score, so that an episode's rewards add up to its score: +100 a treasure,
    150 + 0.2 * (max_step - steps) at the end; running out of time takes the treasures' points back.
    Learners shape rewards of their own from `state`.
Info: on the step that ends an episode, `info["stats"]` holds `games.episode_stats` (score, length,
    treasures, missed, flashes, buffs, walls, reached_end, layout, turn): numbers from RealmEnv; arrays [E]
    from RealmVectorEnv, with the mask `info["_stats"]` bool [E] of the environments that they are final for.
    Otherwise it is empty. (The key `episode` is left to gymnasium's RecordEpisodeStatistics, which refuses
    to share it.)
Render modes: `rgb_array`, u8 [816, 720, 3], and `ansi`, 33 lines of text, both by `draw/`; the way of the
    current episode is kept only for `rgb_array`. RealmVectorEnv renders a tuple, one entry for each environment.
    There is no `human`: `gymnasium.wrappers.HumanRendering` makes a window of `rgb_array`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from realm.env import observe, physics
from realm.env.games import Games, checked_action, episode_stats
from realm.env.map import Map

Obs = dict[str, NDArray[Any]]
Picture = NDArray[np.uint8] | str
Routes = list[list[tuple[float, float, bool]]]  # for each environment x, z and whether a flash led there, oldest first
METADATA: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 15}
SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "image": ((4, physics.WINDOW, physics.WINDOW), np.uint8),
    "vector": ((physics.VECTOR,), np.float32),
    "action_mask": ((physics.ACTIONS,), np.int8),
}


def observation_names(observation: str) -> list[str]:
    """The parts of an observation that is "full", "vector" (no image) or "none"."""
    parts = {"full": ["image", "vector", "action_mask"], "vector": ["vector", "action_mask"], "none": []}
    if observation not in parts:
        raise ValueError(f"observation is {observation!r}, it must be 'full', 'vector' or 'none'")
    return parts[observation]


def make_observation_space(names: Sequence[str]) -> spaces.Space[Obs]:
    """The space of one environment's observation with these parts."""
    parts: dict[str, spaces.Space[Any]] = {
        "image": spaces.Box(0, 255, SHAPES["image"][0], np.uint8),
        "vector": spaces.Box(0.0, 1.0, SHAPES["vector"][0], np.float32),
        "action_mask": spaces.Box(0, 1, SHAPES["action_mask"][0], np.int8),
    }
    return cast("spaces.Space[Obs]", spaces.Dict({name: parts[name] for name in names}))


def check_render_mode(render_mode: str | None) -> None:
    """Refuse a render mode that METADATA does not list."""
    if render_mode is not None and render_mode not in METADATA["render_modes"]:
        raise ValueError(f"render_mode is {render_mode!r}, it must be None or one of {METADATA['render_modes']}")


def empty_obs(names: Sequence[str], num_envs: int) -> Obs:
    """Uninitialised observation arrays with leading axis E."""
    return {name: np.empty((num_envs, *SHAPES[name][0]), SHAPES[name][1]) for name in names}


def first_row(obs: Obs) -> Obs:
    """The observation of the first environment."""
    return {name: array[0] for name, array in obs.items()}


def write_obs(games: Games, out: Obs) -> None:
    """Write the observation of all environments into the arrays of `out` ([E, ...] each)."""
    if "image" in out:
        observe.write_image(games.state, games.world, out["image"])
    if "vector" in out:
        observe.write_vector(games.state, games.world, out["vector"])
        observe.write_mask(games.state, out["action_mask"])


def step_obs(games: Games, actions: NDArray[np.int64], out: Obs) -> None:
    """`games.step(actions)` and `write_obs(games, out)` in one kernel call."""
    if not out:
        games.step(actions)
        return
    state, world, episodes = games.state, games.world, games.episodes
    vector, mask = out["vector"], out["action_mask"]
    if "image" in out:
        observe.step_and_write_full(state, world, episodes, actions, out["image"], vector, mask)
    else:
        observe.step_and_write(state, world, episodes, actions, vector, mask)


def legal_actions(state: physics.State) -> NDArray[np.bool_]:
    """Which actions are legal now, bool [E, 16]."""
    legal = np.ones((len(state.x), physics.ACTIONS), dtype=np.bool_)
    legal[:, physics.DIRECTIONS :] = (state.flash_wait == 0)[:, None]
    return legal


def follow(routes: Routes, state: physics.State) -> None:
    """Add the places where the heroes are now; a new episode begins a new route."""
    for e, route in enumerate(routes):
        if state.fresh[e]:
            route.clear()
        if len(route) <= state.steps[e]:  # else this environment has not moved: another one was reset
            route.append((float(state.x[e]), float(state.z[e]), bool(state.used_flash[e])))


def picture_of(games: Games, e: int, routes: Routes, render_mode: str) -> Picture:
    """Environment e in a render mode."""
    from realm.env.draw import ansi, draw, moment  # late: workers need no pictures

    now = moment(games.state, e)
    if render_mode == "ansi":
        return ansi(games.map, now)
    return draw(games.map, now, np.array(routes[e], dtype=np.float64))


class RealmEnv(gymnasium.Env[Obs, np.int64]):
    """One realm. `state` holds it as arrays with a leading axis of 1; returned observations are fresh
    arrays."""

    metadata = METADATA

    def __init__(
        self,
        usr_conf: Mapping[str, Any] | None = None,
        layouts: Sequence[Any] | None = None,
        map: Map | str | Path = "default",
        observation: str = "full",
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._names = observation_names(observation)
        self.observation_space = make_observation_space(self._names)
        self.action_space = spaces.Discrete(physics.ACTIONS)
        self.games = Games(1, usr_conf, layouts, map)
        self.map, self.world, self.state = self.games.map, self.games.world, self.games.state
        self._action = np.zeros(1, dtype=np.int64)
        self._routes: Routes = [[]] if render_mode == "rgb_array" else []
        self._started = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode. A seed restarts the generator (and layouts from their first); `options`
        ({"usr_conf": ..., "layouts": ...} or a usr_conf) hold from now on."""
        super().reset(seed=seed)
        self.games.configure_from(options)
        if seed is not None or not self._started:
            # without a seed gymnasium's generator is seeded by the system
            self.games.seed([int(self.np_random.integers(2**63)) if seed is None else seed])
            self.games.restart_layouts()
        self.games.reset()
        self._started = True
        follow(self._routes, self.state)
        obs = empty_obs(self._names, 1)
        write_obs(self.games, obs)
        return first_row(obs), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """One step; see the module's docstring."""
        state = self.state
        if not self._started or state.terminated[0] or state.truncated[0]:
            raise ResetNeeded("the episode is over or has not begun: call reset first")
        self._action[0] = checked_action(action)
        obs = empty_obs(self._names, 1)
        step_obs(self.games, self._action, obs)
        follow(self._routes, state)
        terminated, truncated = bool(state.terminated[0]), bool(state.truncated[0])
        info: dict[str, Any] = {}
        if terminated or truncated:
            info["stats"] = {name: value[0].item() for name, value in episode_stats(state).items()}
        return first_row(obs), float(state.reward[0]), terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now, bool [16]: what sb3-contrib's MaskablePPO asks for."""
        legal: NDArray[np.bool_] = legal_actions(self.state)[0]
        return legal

    def render(self) -> Picture | None:
        """A picture of the current moment in `render_mode`; None, with a warning, without one."""
        if not self._started:
            raise ResetNeeded("there is nothing to render yet: call reset first")
        if self.render_mode is None:
            gymnasium.logger.warn(f"render needs a render_mode, one of {METADATA['render_modes']}")
            return None
        return picture_of(self.games, 0, self._routes, self.render_mode)


class RealmVectorEnv(VectorEnv[Obs, NDArray[np.int64], NDArray[Any]]):
    """E realms, all stepped in one call. The step after an episode's end resets it and ignores its action
    (gymnasium's NEXT_STEP). Environment i seeded with s plays as a RealmEnv seeded with s + i.

    Returned arrays: observations are fresh each step with copy=True; with copy=False they are the
    environment's own and change with the next call; given `out`, they are written there and `out` is
    returned. Rewards and flags are fresh.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (gymnasium's own declaration)
        **METADATA,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "layouts": True,  # see realm/env/layouts.py
    }

    def __init__(
        self,
        num_envs: int = 1,
        usr_conf: Mapping[str, Any] | None = None,
        layouts: Sequence[Any] | None = None,
        map: Map | str | Path = "default",
        observation: str = "full",
        render_mode: str | None = None,
        copy: bool = True,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.num_envs = num_envs
        names = observation_names(observation)
        self.single_observation_space = make_observation_space(names)
        self.single_action_space = spaces.Discrete(physics.ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.games = Games(num_envs, usr_conf, layouts, map)
        self.map, self.world, self.state = self.games.map, self.games.world, self.games.state
        self.copy = copy
        self._routes: Routes = [[] for _ in range(num_envs)] if render_mode == "rgb_array" else []
        self._buffer = empty_obs(names, num_envs)
        self._started = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        out: Obs | None = None,
    ) -> tuple[Obs, dict[str, Any]]:
        """Start an episode everywhere. Environment i takes seed + i (or seed[i]); layouts start from their
        first.

        `options` ({"usr_conf": ..., "layouts": ...} or a usr_conf) hold from now on, over all autoresets. As
        in gymnasium's SyncVectorEnv, options["reset_mask"] (bool [E]) resets these environments only, and the
        layouts go on.
        """
        seeds: list[int | None]
        if seed is None or isinstance(seed, Sequence):
            super().reset()
            seeds = [None] * self.num_envs if seed is None else list(seed)
        else:
            super().reset(seed=int(seed))
            seeds = [int(seed) + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed has {len(seeds)} entries, there are {self.num_envs} environments")
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if mask is not None:
            mask = np.asarray(mask)
            if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
                raise ValueError(f"reset_mask must be bool [{self.num_envs}] with a True in it, it is {mask!r}")
            seeds = [one if chosen else None for one, chosen in zip(seeds, mask, strict=True)]
        if not self._started:
            if mask is not None and not mask.all():
                raise ResetNeeded("the first reset has to be of all environments")
            # without a seed gymnasium's generator is seeded by the system
            drawn = self.np_random.integers(2**63, size=self.num_envs)
            seeds = [int(new) if one is None else one for new, one in zip(drawn, seeds, strict=True)]
        self.games.configure_from(options)
        self.games.seed(seeds)
        if mask is None:
            self.games.restart_layouts()
        self.games.reset(mask)
        self._started = True
        follow(self._routes, self.state)
        obs = self._target(out)
        write_obs(self.games, obs)
        return self._given(obs), {}

    def step(
        self, actions: NDArray[np.int64], *, out: Obs | None = None
    ) -> tuple[Obs, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of all environments. `out`: arrays [E, ...] (the last axes contiguous) to write the
        observation to."""
        if not self._started:
            raise ResetNeeded("no episode has begun: call reset first")
        state = self.state
        actions = np.asarray(actions)
        whole = actions.shape == (self.num_envs,) and actions.dtype.kind in "iu"
        if not whole or actions.min() < 0 or actions.max() >= physics.ACTIONS:
            raise ValueError(f"actions must be {self.num_envs} whole numbers from 0 to {physics.ACTIONS - 1}")
        obs = self._target(out)
        step_obs(self.games, actions.astype(np.int64, copy=False), obs)
        follow(self._routes, state)
        terminated, truncated = state.terminated.copy(), state.truncated.copy()
        over = terminated | truncated
        info: dict[str, Any] = {}
        if over.any():
            info["stats"], info["_stats"] = episode_stats(state), over
        return self._given(obs), state.reward.copy(), terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now, bool [E, 16]."""
        return legal_actions(self.state)

    def render(self) -> tuple[Picture, ...] | None:
        """Pictures of the current moment, one for each environment as in gymnasium's SyncVectorEnv; None, with a
        warning, without a `render_mode`."""
        if not self._started:
            raise ResetNeeded("there is nothing to render yet: call reset first")
        if self.render_mode is None:
            gymnasium.logger.warn(f"render needs a render_mode, one of {METADATA['render_modes']}")
            return None
        return tuple(picture_of(self.games, e, self._routes, self.render_mode) for e in range(self.num_envs))

    def _target(self, out: Obs | None) -> Obs:
        """Where to write the observation: `out` if given and right, else the environment's own arrays."""
        if out is None:
            return self._buffer
        for name, array in self._buffer.items():
            given = out.get(name)
            if given is None or given.shape != array.shape or given.dtype != array.dtype:
                raise ValueError(f"out must hold {name!r} as {array.dtype} {array.shape}")
            if given.strides[1:] != array.strides[1:]:
                raise ValueError(f"out[{name!r}] must be contiguous but for its first axis")
        return out

    def _given(self, obs: Obs) -> Obs:
        """What the caller gets for the arrays written to."""
        if obs is self._buffer and self.copy:
            return {name: array.copy() for name, array in obs.items()}
        return obs
