"""The game's own face: `reset` gives an observation, `step` six things, all read by attribute.

Used by code written for the competition (`realm/kaiwu`) and by people who know the game. The rules, seeds and
arrays are those of the gymnasium face (`realm_env.py`). Positions are world units, times are steps, angles
count from east.

    env = RealmGame()
    obs = env.reset(usr_conf={"diy": {"treasure_random": 1, "treasure_num": 9}})
    frame_no, obs, score, terminated, truncated, env_info = env.step(3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from realm.env import observe, physics
from realm.env.games import Games, checked_action
from realm.env.map import CELL, EXTENT, FAR, POINTS, Map

HERO_ID = 1  # choice
TREASURE, BUFF = 1, 2  # sub_type of an organ
TALENT_FLASH = 1
# choice: up to these distances in cells it is 1 very small, 2 small, 3 medium, 4 large; beyond 5 very large
L2_LIMITS = (16, 32, 48, 64)
PATH_LIMITS = (32, 64, 96, 128)
VERY_LARGE = 5


@dataclass(frozen=True, slots=True)
class Position:
    """World units, cells or shares of the map, as the name of the attribute says."""

    x: float
    z: float


@dataclass(frozen=True, slots=True)
class RelativePosition:
    """Where a point lies, seen from the hero. What is absent has direction 0, distances 5 and 1.0."""

    direction: int  # 0 none, 1 East, then counter-clockwise to 8 SouthEast
    l2_distance: int  # 1 very small .. 5 very large
    path_distance: int  # the same over road cells; 5 if unreachable
    grid_distance: float  # steps over road cells / 256, at most 1


ABSENT = RelativePosition(0, VERY_LARGE, VERY_LARGE, 1.0)


@dataclass(frozen=True, slots=True)
class Feature:
    """What the hero sees. The four maps are f32 [2601]: 51 x 51 cells around the hero, [z, x], row 0
    south."""

    norm_pos: Position
    grid_pos: Position
    start_pos: RelativePosition
    end_pos: RelativePosition
    buff_pos: RelativePosition
    treasure_pos: list[RelativePosition]  # 15, index = id - 1
    obstacle_map: NDArray[np.float32]
    memory_map: NDArray[np.float32]
    treasure_map: NDArray[np.float32]
    end_map: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Observation:
    feature: Feature
    legal_act: list[int]  # [walk, flash]


@dataclass(frozen=True, slots=True)
class Score:
    score: float  # points of the treasures so far
    total_score: float  # the episode's score once the end is reached, 0 before and on time-out
    treasure_count: int  # taken
    buff_count: int  # taken
    talent_count: int  # flashes used


@dataclass(frozen=True, slots=True)
class Talent:
    talent_type: int
    status: int  # 1 ready, 0 cooling down
    cooldown: int  # steps until it is ready


@dataclass(frozen=True, slots=True)
class Hero:
    hero_id: int
    pos: Position
    speed_up: int  # 1 with the buff
    talent: Talent


@dataclass(frozen=True, slots=True)
class Organ:
    sub_type: int  # 1 treasure, 2 buff
    config_id: int  # the point's id
    status: int  # 1 there, 0 not
    pos: Position
    cooldown: int  # steps until it is back (the buff only)


@dataclass(frozen=True, slots=True)
class FrameState:
    frame_no: int
    heroes: list[Hero]  # one
    organs: list[Organ]  # the buff, then the treasures of the episode


@dataclass(frozen=True, slots=True)
class GameInfo:
    score: float  # as Score
    total_score: float
    step_no: int
    pos: Position
    treasure_count: int
    treasure_score: float
    buff_count: int
    talent_count: int
    buff_remain_time: int  # steps at the higher speed to come
    buff_duration: int  # steps that a buff lasts


@dataclass(frozen=True, slots=True)
class EnvInfo:
    frame_state: FrameState
    game_info: GameInfo


class RealmGame:
    """One realm behind the game's protocol. `seed` starts its generator; the same seed gives the same
    episodes."""

    def __init__(
        self,
        usr_conf: Mapping[str, Any] | None = None,
        map: Map | str | Path = "default",
        seed: int | None = None,
    ) -> None:
        self._usr_conf = {} if usr_conf is None else usr_conf
        self.games = Games(1, usr_conf, map=map)
        self.map, self.state = self.games.map, self.games.state
        self.games.seed([int(np.random.SeedSequence(seed).entropy)])  # type: ignore[arg-type]
        self._action = np.zeros(1, dtype=np.int64)
        self._image = np.zeros((1, 4, physics.WINDOW, physics.WINDOW), dtype=np.uint8)
        self._started = False

    def reset(self, usr_conf: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode with these options, or without with those given to the constructor."""
        self.games.configure(self._usr_conf if usr_conf is None else usr_conf)
        self.games.reset()
        self._started = True
        return self._observation()

    def step(self, action: int) -> tuple[int, Observation, Score, bool, bool, EnvInfo]:
        """One action, 0-7 walk, 8-15 flash: (frame_no, obs, score, terminated, truncated, env_info)."""
        s = self.state
        if not self._started or s.terminated[0] or s.truncated[0]:
            raise ResetNeeded("the episode is over or has not begun: call reset first")
        self._action[0] = checked_action(action)
        self.games.step(self._action)
        over = bool(s.terminated[0]), bool(s.truncated[0])
        return self._frame_no(), self._observation(), self._score(), *over, self._env_info()

    def _frame_no(self) -> int:
        return 1 + physics.FRAMES_PER_STEP * int(self.state.steps[0])

    def _position(self) -> Position:
        return Position(float(self.state.x[0]), float(self.state.z[0]))

    def _observation(self) -> Observation:
        s = self.state
        observe.write_image(s, self.games.world, self._image)
        maps = self._image[0].reshape(4, -1) / np.float32(255)
        feature = Feature(
            norm_pos=Position(float(s.x[0]) / EXTENT, float(s.z[0]) / EXTENT),
            grid_pos=Position(int(s.cell_x[0]), int(s.cell_z[0])),
            start_pos=self._relative(int(s.start[0])),
            end_pos=self._relative(int(s.end[0])),
            buff_pos=self._relative(0) if s.there[0, 0] else ABSENT,
            treasure_pos=[self._relative(i) if s.there[0, i] else ABSENT for i in range(1, POINTS)],
            obstacle_map=maps[0],
            memory_map=maps[1],
            treasure_map=maps[2],
            end_map=maps[3],
        )
        return Observation(feature, legal_act=[1, int(s.flash_wait[0] == 0)])

    def _relative(self, i: int) -> RelativePosition:
        """Point i as seen from the hero."""
        s = self.state
        dx, dz = (float(v) for v in self.map.points[i] - (s.x[0], s.z[0]))
        # the nearest of eight directions; standing on the point gives none
        direction = 1 + round(math.atan2(dz, dx) / (math.pi / 4)) % 8 if (dx, dz) != (0.0, 0.0) else 0
        steps = int(self.map.distance[i, s.cell_z[0], s.cell_x[0]])
        return RelativePosition(
            direction=direction,
            l2_distance=_bin(math.hypot(dx, dz) / CELL, L2_LIMITS),
            path_distance=_bin(steps, PATH_LIMITS) if steps != FAR else VERY_LARGE,
            grid_distance=min(steps / physics.MAX_GRID_DISTANCE, 1.0),
        )

    def _score(self) -> Score:
        s = self.state
        return Score(
            score=self._treasure_points(),
            total_score=self._total_score(),
            treasure_count=int(s.treasures[0]),
            buff_count=int(s.buffs[0]),
            talent_count=int(s.flashes[0]),
        )

    def _treasure_points(self) -> float:
        return physics.TREASURE_SCORE * int(self.state.treasures[0])

    def _total_score(self) -> float:
        return float(self.state.score[0]) if self.state.terminated[0] else 0.0

    def _env_info(self) -> EnvInfo:
        s = self.state
        wait, buff_wait = int(s.flash_wait[0]), int(s.buff_wait[0])
        hero = Hero(
            hero_id=HERO_ID,
            pos=self._position(),
            speed_up=int(s.buff_left[0] > 0),
            talent=Talent(TALENT_FLASH, status=int(wait == 0), cooldown=wait),
        )
        organs = [
            Organ(
                sub_type=TREASURE if i else BUFF,
                config_id=i,
                status=int(s.there[0, i]),
                pos=Position(*(float(v) for v in self.map.points[i])),
                cooldown=0 if i else buff_wait,
            )
            for i in range(POINTS)
            if i == 0 or s.planned[0, i]
        ]
        game_info = GameInfo(
            score=self._treasure_points(),
            total_score=self._total_score(),
            step_no=int(s.steps[0]),
            pos=self._position(),
            treasure_count=int(s.treasures[0]),
            treasure_score=self._treasure_points(),
            buff_count=int(s.buffs[0]),
            talent_count=int(s.flashes[0]),
            buff_remain_time=int(s.buff_left[0]),
            buff_duration=physics.BUFF_STEPS,
        )
        return EnvInfo(FrameState(self._frame_no(), [hero], organs), game_info)


def _bin(cells: float, limits: tuple[int, ...]) -> int:
    return 1 + sum(cells > limit for limit in limits)
