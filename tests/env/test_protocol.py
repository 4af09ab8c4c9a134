"""The game's objects: the whole tree has exactly the published attributes, and the gymnasium face's
arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from realm.env.options import OptionError
from realm.env.protocol import RealmGame
from realm.env.realm_env import RealmEnv

XZ = {"x": float, "z": float}
RELATIVE = {"direction": int, "l2_distance": int, "path_distance": int, "grid_distance": float}
OBS = {
    "feature": {
        "norm_pos": XZ,
        "grid_pos": {"x": int, "z": int},
        "start_pos": RELATIVE,
        "end_pos": RELATIVE,
        "buff_pos": RELATIVE,
        "treasure_pos": [RELATIVE],
        "obstacle_map": np.ndarray,
        "memory_map": np.ndarray,
        "treasure_map": np.ndarray,
        "end_map": np.ndarray,
    },
    "legal_act": [int],
}
SCORE = {"score": float, "total_score": float, "treasure_count": int, "buff_count": int, "talent_count": int}
HERO = {
    "hero_id": int,
    "pos": XZ,
    "speed_up": int,
    "talent": {"talent_type": int, "status": int, "cooldown": int},
}
ORGAN = {"sub_type": int, "config_id": int, "status": int, "pos": XZ, "cooldown": int}
ENV_INFO = {
    "frame_state": {"frame_no": int, "heroes": [HERO], "organs": [ORGAN]},
    "game_info": {
        "score": float,
        "total_score": float,
        "step_no": int,
        "pos": XZ,
        "treasure_count": int,
        "treasure_score": float,
        "buff_count": int,
        "talent_count": int,
        "buff_remain_time": int,
        "buff_duration": int,
    },
}


def check_tree(thing: Any, want: Any, path: str) -> None:
    """`thing` has exactly the attributes, lists and types of `want`."""
    if isinstance(want, dict):
        names = {field.name for field in dataclasses.fields(thing)}
        assert names == set(want), path
        for name, below in want.items():
            check_tree(getattr(thing, name), below, f"{path}.{name}")
    elif isinstance(want, list):
        assert type(thing) is list, path
        for i, item in enumerate(thing):
            check_tree(item, want[0], f"{path}[{i}]")
    else:
        assert type(thing) is want, f"{path} is {type(thing)}"


def test_objects_are_those_of_the_game_and_agree_with_gymnasium() -> None:
    usr_conf = {"diy": {"treasure_random": 1, "treasure_num": 9, "max_step": 900}}
    game, env = RealmGame(seed=3), RealmEnv()
    obs, (row, _) = game.reset(usr_conf=usr_conf), env.reset(seed=3, options=usr_conf)
    rng = np.random.default_rng(0)
    held, frame_no, terminated, truncated, reward = 0, 1, False, False, 0.0
    seen_directions, total = set(), 0.0
    for t in range(900):
        feature = obs.feature
        check_tree(obs, OBS, "obs")
        maps = [feature.obstacle_map, feature.memory_map, feature.treasure_map, feature.end_map]
        assert all(m.shape == (2601,) for m in maps)
        assert np.array_equal(np.reshape(maps, (4, 51, 51)), row["image"] / np.float32(255))
        here = [np.float32(feature.norm_pos.x), np.float32(feature.norm_pos.z)]
        treasures = feature.treasure_pos
        assert len(treasures) == 15
        vector = [
            *here,
            *(float(p.direction > 0) for p in treasures[2:]),
            *(p.grid_distance for p in treasures[2:]),
            float(feature.buff_pos.direction > 0),
            feature.buff_pos.grid_distance,
            feature.end_pos.grid_distance,
        ]
        assert np.array_equal(np.array(vector, np.float32), row["vector"])
        assert obs.legal_act == [row["action_mask"][0], row["action_mask"][8]]
        seen_directions |= {p.direction for p in treasures}
        assert all(p.direction == 0 or p.l2_distance < 5 or p.path_distance >= 3 for p in treasures)
        if truncated:
            break
        held = int(rng.integers(16)) if rng.random() < 0.2 else held
        frame_no, obs, score, terminated, truncated, env_info = game.step(held)
        row, reward, *over, _ = env.step(held)
        total += reward
        check_tree(score, SCORE, "score")
        check_tree(env_info, ENV_INFO, "env_info")
        assert [terminated, truncated] == over
        frame, info = env_info.frame_state, env_info.game_info
        assert frame_no == frame.frame_no == 1 + 3 * (t + 1)
        assert info.step_no == t + 1
        assert len(frame.heroes) == 1
        assert frame.heroes[0].pos == info.pos
        assert [o.sub_type for o in frame.organs] == [2] + [1] * 9
        assert sum(o.status for o in frame.organs[1:]) == 9 - score.treasure_count
        assert score.score == 100 * score.treasure_count == info.treasure_score
        assert score.total_score == 0
    assert truncated
    assert total == 0
    assert len(seen_directions) > 4
    with pytest.raises(ResetNeeded):
        game.step(0)


def test_reaching_the_end_gives_the_total_score() -> None:
    game = RealmGame()
    # a neighbour point as start: walk down the distance field
    start = int(np.argsort(game.map.distance[5][game.map.cells[:, 1], game.map.cells[:, 0]])[1]) or 4
    game.reset(usr_conf={"start": start, "end": 5, "treasure_id": []})
    terminated, n = False, 0
    while not terminated:
        s = game.state
        field = game.map.distance[5]
        ways = [(int(field[s.cell_z[0] + dz, s.cell_x[0] + dx]), a) for a, (dx, dz) in enumerate(STEPS)]
        _, _, score, terminated, truncated, env_info = game.step(min(ways)[1])
        n += 1
        assert not truncated
    assert score.total_score == 150 + 0.2 * (2000 - n) == env_info.game_info.total_score


STEPS = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]


def test_directions_count_from_east_counter_clockwise() -> None:
    game = RealmGame()
    game.reset()
    px, pz = game.map.points[9]
    for i, (dx, dz) in enumerate(STEPS):
        game.state.x[0], game.state.z[0] = px - 100 * dx, pz - 100 * dz
        assert game._relative(9).direction == 1 + i
    game.state.x[0], game.state.z[0] = px, pz
    assert game._relative(9).direction == 0


def test_options_are_checked_and_hold_for_one_reset() -> None:
    game = RealmGame(usr_conf={"treasure_num": 2})
    game.reset(usr_conf={"diy": {"treasure_id": [3, 4, 5]}})
    assert game.state.total[0] == 3
    game.reset()
    assert game.state.total[0] == 2
    with pytest.raises(OptionError, match="treasure_num is 99"):
        game.reset(usr_conf={"diy": {"treasure_num": 99}})
    with pytest.raises(ValueError, match="action is 16"):
        game.step(16)
