"""E realms in one object: map, options, seeds and state, below every face.

Used by the gymnasium environments (`realm_env.py`) and the game's own objects (`protocol.py`), so that both
play the same rules with the same options and seeds. Plain verbs: `configure`, `seed`, `reset`, `step`;
observations are written by the kernels of `physics.py` into arrays given by the caller.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from realm.env import options as opt
from realm.env import physics
from realm.env.map import Map, resolve
from realm.env.options import OptionError


class Games:
    """E realms on one map.

    usr_conf: what each episode is drawn from, `{"diy": {...}}` or the inner dict. layouts: usr_confs or
    treasure-id lists; episode n of all environments together plays layout n % len(layouts);
        keys a layout lacks come from usr_conf.
    """

    def __init__(
        self,
        num_envs: int,
        usr_conf: Mapping[str, Any] | None = None,
        layouts: Sequence[Any] | None = None,
        map: Map | str | Path = "default",
    ) -> None:
        self.map = resolve(map)
        self.world = physics.make_world(self.map)
        self.state = physics.make_state(num_envs)
        self._everyone = np.ones(num_envs, dtype=np.bool_)
        self._usr_conf: Mapping[str, Any] | None = None
        self.configure(usr_conf, layouts)

    def configure(self, usr_conf: Mapping[str, Any] | None = None, layouts: Sequence[Any] | None = None) -> None:
        """Play these episodes from the next reset on. Layouts start from their first again."""
        options = self._usr_conf if usr_conf is None else opt.inner(usr_conf)
        self.layouts = [opt.parse(options)] if layouts is None else opt.parse_layouts(layouts, options)
        self._usr_conf = options  # only now: what is refused changes nothing
        self.episodes = physics.make_episodes(self.layouts)
        self.restart_layouts()

    def restart_layouts(self) -> None:
        """Hand out the layouts from their first again."""
        self.state.cursor[0] = 0

    def configure_from(self, options: Mapping[str, Any] | None) -> None:
        """The options of `reset(options=...)`: {"usr_conf": ..., "layouts": ...}, or a usr_conf itself."""
        if not options:
            return
        if "usr_conf" in options or "layouts" in options:
            for key, value in options.items():
                if key not in ("usr_conf", "layouts"):
                    raise OptionError(f"{key} is {value!r}, but reset takes the options usr_conf and layouts only")
            self.configure(options.get("usr_conf"), options.get("layouts"))
        else:
            self.configure(options)

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seed the generator of environment e with seeds[e] where that is not None."""
        for e, seed in enumerate(seeds):
            if seed is not None:
                self.state.rng[e] = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start an episode in each environment, or where `which` (bool [E]) is true."""
        physics.reset(self.state, self.world, self.episodes, self._everyone if which is None else which)

    def step(self, actions: NDArray[np.int64]) -> None:
        """One action for each environment (i64 [E], 0..15); an environment whose episode is over is reset
        instead."""
        physics.step(self.state, self.world, self.episodes, actions)


def episode_stats(state: physics.State) -> dict[str, NDArray[Any]]:
    """Statistics of the episodes as they stand now, as fresh arrays [E]; final once an episode is over."""
    return {
        "score": state.score.copy(),  # f64
        "length": state.steps.copy(),  # i32, as are the counts below
        "treasures": state.treasures.copy(),
        "missed": state.total - state.treasures,
        "flashes": state.flashes.copy(),
        "buffs": state.buffs.copy(),
        "walls": state.walls.copy(),
        "reached_end": state.terminated.copy(),  # bool
        "layout": state.layout.copy(),  # i32, index into layouts
        "turn": state.turn.copy(),  # i64, episodes handed out before this one
    }


def checked_action(action: Any) -> int:
    """An action as an int; refused if it is none."""
    try:
        number = operator.index(action)
    except TypeError:
        number = -1
    if not 0 <= number < physics.ACTIONS:
        raise ValueError(f"action is {action!r}, it must be a whole number from 0 to {physics.ACTIONS - 1}")
    return number
