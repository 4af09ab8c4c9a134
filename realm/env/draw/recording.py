"""What is drawn: one moment of an environment, or a whole recorded episode.

`moment` copies what a picture needs out of a state; `record` plays an episode and keeps all its moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from realm.env.map import Map
from realm.env.physics import State

if TYPE_CHECKING:
    from realm.env.realm_env import RealmEnv

Route = NDArray[np.float64]  # [n, 3]: x, z, 1 if a flash led there


class Moment(NamedTuple):
    """What is to be seen of one environment; see `State` for the meaning."""

    x: float
    z: float
    start: int
    end: int
    planned: tuple[bool, ...]  # [16]
    there: tuple[bool, ...]  # [16]
    steps: int
    max_step: int
    score: float
    buff_left: int
    buff_wait: int
    flash_wait: int
    terminated: bool
    truncated: bool

    @property
    def taken(self) -> int:
        """Treasures collected so far."""
        return sum(planned and not there for planned, there in zip(self.planned, self.there, strict=True))

    @property
    def ending(self) -> str:
        """How the episode has ended; "" while it goes on."""
        return "reached the end" if self.terminated else "out of time" if self.truncated else ""


def moment(state: State, e: int = 0) -> Moment:
    """What is to be seen of environment e now, as plain values."""
    values: dict[str, Any] = {name: getattr(state, name)[e].tolist() for name in Moment._fields}
    for name in ("planned", "there"):
        values[name] = tuple(map(bool, values[name]))
    return Moment(**values)


class Recording(NamedTuple):
    """An episode: what was to be seen at each of its T + 1 moments, the way, and what the policy thought if it told."""

    map: Map
    moments: list[Moment]
    route: Route  # [T + 1, 3]
    actions: list[int]  # [T]
    probability: NDArray[np.float32] | None = None  # [T, 16]
    value: NDArray[np.float32] | None = None  # [T], of what was seen before each action


def record(env: RealmEnv, actions: Iterable[Any]) -> Recording:
    """Play an episode until it or the actions end."""
    env.reset()
    state = env.state
    moments, way, played = [moment(state)], [(float(state.x[0]), float(state.z[0]), 0.0)], []
    for action in actions:
        if moments[-1].terminated or moments[-1].truncated:
            break
        env.step(action)
        moments.append(moment(state))
        way.append((moments[-1].x, moments[-1].z, float(state.used_flash[0])))
        played.append(int(action))
    return Recording(env.map, moments, np.array(way), played)
