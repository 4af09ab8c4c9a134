"""`diy` on more than one map: several maps' environments as one, and features for any map."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diy.algorithm.agent import Agent
from diy.config import Config
from diy.feature.definition import FeatureEnvs, as_float32, make_envs, spec
from diy.feature.joined import JoinedEnvs
from diy.feature.ways import make_ways
from realm.commands import main as cli
from realm.config.load import load_config
from realm.contract import Arrays, Version, check_arrays
from realm.env.layouts import plays_layouts
from realm.env.map import MapError
from realm.env.physics import DIRECTION
from realm.learn import checkpoint

ROOT = Path(__file__).parents[2]
ANYWHERE = Config(position=False, tours=True)
MAPS = ["generated:3", "default", "generated:4"]
LAYOUTS = [
    {"start": 5, "end": 8, "treasure_num": 4},
    {"start": 8, "end": 15, "treasure_num": 2, "max_step": 25},
    {"start": 1, "end": 3, "treasure_random": 0, "treasure_id": [2, 4, 14]},
]


def joined(num_envs: int, config: Config = ANYWHERE, **options: Any) -> JoinedEnvs:
    envs = make_envs(num_envs, 7, config, {"map": MAPS, "layouts": LAYOUTS, "max_step": 40} | options)
    assert isinstance(envs, JoinedEnvs)
    return envs


def single(num_envs: int, seed: int, config: Config = ANYWHERE, **options: Any) -> FeatureEnvs:
    envs = make_envs(num_envs, seed, config, {"layouts": LAYOUTS, "max_step": 40} | options)
    assert isinstance(envs, FeatureEnvs)
    return envs


# ---- several maps as one ----


@pytest.mark.parametrize("config", [ANYWHERE, Config(features="reference", reward="reference")])
def test_joined_environments_are_the_single_ones_row_by_row(config: Config) -> None:
    envs, sizes = joined(7, config), [2, 2, 3]
    begin = [0, 2, 4]
    parts = [single(n, 7 + first, config, map=name) for n, first, name in zip(sizes, begin, MAPS, strict=True)]
    assert envs.num_envs == 7
    assert envs.observation_space == single(7, 0, config, map="default").observation_space
    assert envs.action_space == single(7, 0, config, map="default").action_space
    assert envs.metadata["autoreset_mode"] == parts[0].metadata["autoreset_mode"]
    assert spec(envs, config) == spec(parts[0], config)
    rng, ended = np.random.default_rng(0), 0

    def check(obs: Arrays, wanted: list[Arrays]) -> None:
        check_arrays(obs, spec(envs, config).obs, (7,), "obs")
        for name, array in obs.items():
            np.testing.assert_array_equal(array, np.concatenate([one[name] for one in wanted]))

    check(envs.reset()[0], [part.reset()[0] for part in parts])
    for n in range(130):
        if n == 90:  # seeds of one's own
            check(envs.reset(seed=50)[0], [one.reset(seed=50 + at)[0] for one, at in zip(parts, begin, strict=True)])
        action = rng.integers(0, 16, 7)
        obs, *arrays, info = envs.step(action)
        wanted = [part.step(action[first : first + part.num_envs]) for part, first in zip(parts, begin, strict=True)]
        check(obs, [one[0] for one in wanted])
        for array, each in zip(arrays, zip(*(one[1:4] for one in wanted), strict=True), strict=True):
            np.testing.assert_array_equal(array, np.concatenate(each))
            assert array.dtype == each[0].dtype
        over = np.concatenate([one[4].get("_episode", np.zeros(len(one[1]), np.bool_)) for one in wanted])
        ended += int(over.sum())
        assert ("_episode" in info) == over.any()
        if over.any():
            np.testing.assert_array_equal(info["_episode"], over)
            for first, one in zip(begin, wanted, strict=True):
                for name, array in one[4].get("episode", {}).items():
                    np.testing.assert_array_equal(info["episode"][name][first : first + len(array)], array)
    assert ended > 20


def test_seeds_and_options_reach_every_part() -> None:
    envs = joined(5)
    first, _ = envs.reset(seed=3)
    again, _ = envs.reset(seed=[3, 4, 5, 6, 7])
    np.testing.assert_array_equal(first["features"], again["features"])
    envs.reset(options={"usr_conf": {"start": 6, "end": 11, "treasure_num": 13}})
    for part in envs.parts:
        assert isinstance(part, FeatureEnvs)
        assert (part.game.state.total == 13).all()
        assert (part.game.state.end == 11).all()
    assert np.isfinite(envs.step(np.zeros(5, np.int64))[1]).all()
    with pytest.raises(ValueError, match=r"^seed has 2 entries, there are 5 environments$"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match=r"^reset_mask: environments of several maps are reset together only$"):
        envs.reset(options={"reset_mask": np.ones(5, np.bool_)})
    envs.close()
    # a layout is not one for all of them together
    assert not plays_layouts(envs)
    assert plays_layouts(envs.parts[0])


def test_fewer_environments_than_maps_play_some_of_them() -> None:
    """As when the framework makes one, to see the shapes."""

    def names(num_envs: int, seed: int) -> list[str]:
        envs = make_envs(num_envs, seed, Config(), {"map": MAPS})
        assert isinstance(envs, JoinedEnvs)
        assert envs.num_envs == num_envs
        return [part.game.map.name for part in envs.parts if isinstance(part, FeatureEnvs)]

    assert {tuple(names(1, seed)) for seed in range(12)} == {("generated-3",), ("default",), ("generated-4",)}
    assert len(set(names(2, 1))) == 2
    assert names(4, 1) == ["generated-3", "default", "generated-4"]


@pytest.mark.parametrize(
    ("map_", "sentence"),
    [
        ([], "map is [], a list of maps needs one at least"),
        (["default", "generated:"], "map is 'generated:', after generated: comes a seed"),
        (["default", 4], "map is 4, it must be default, generated:SEED or a path"),
        ([["default"]], "map is ['default'], it must be default, generated:SEED or a path"),
        ("nowhere", "cannot read nowhere: No such file"),
    ],
)
def test_maps_that_cannot_be_played_are_refused(map_: Any, sentence: str) -> None:
    for num_envs in (1, 4):
        with pytest.raises((MapError, ValueError), match="^" + re.escape(sentence)):
            make_envs(num_envs, 0, Config(), {"map": map_})


def test_the_configuration_for_maps() -> None:
    config = load_config(ROOT / "conf" / "maps.toml")
    layouts, names = config.env["layouts"], config.env["map"]
    assert names == [f"generated:{seed}" for seed in range(1, 17)]
    assert sorted(one["end"] for one in layouts) == sorted(2 * list(range(1, 16)))
    assert len({(one["start"], one["end"]) for one in layouts}) == 30
    assert {0, 9, 13} <= {one["treasure_num"] for one in layouts}
    assert sum(one["treasure_num"] == 9 for one in layouts) > 15
    hyper = Config(**config.hyper)
    envs = make_envs(3, 1, hyper, config.env)
    obs, _ = envs.reset()
    check_arrays(obs, spec(envs, hyper).obs, (3,), "obs")


# ---- features for any map ----


def test_without_a_position_the_rest_is_as_it_was() -> None:
    """And nothing in it tells where the hero is."""
    options = {"map": "generated:5"}
    kinds = [Config(), Config(position=False), Config(tours=True), ANYWHERE]
    default, rest, tours, both = (single(4, 1, one, **options).reset()[0]["features"] for one in kinds)
    assert [one.shape[1] for one in (default, rest, tours, both)] == [549, 419, 582, 452]
    np.testing.assert_array_equal(rest, default[:, 130:])
    np.testing.assert_array_equal(tours[:, :549], default)
    np.testing.assert_array_equal(both, tours[:, 130:])


def literal_tour(ways: Any, cells: Any, at: tuple[int, int], stops: list[int], end: int) -> float:
    """The shortest of all orders."""
    best = np.inf
    for order in itertools.permutations(stops):
        froms = [at, *((int(x), int(z)) for x, z in cells[list(order)])]
        best = min(best, sum(ways.walk[ways.row[end], z, x, p] for (x, z), p in zip(froms, [*order, end], strict=True)))
    return float(best)


def test_tours_are_what_all_orders_say() -> None:
    every = [{"start": end % 15 + 1, "end": end, "treasure_num": end % 6} for end in range(1, 16)]
    envs = single(15, 3, ANYWHERE, layouts=every, map="generated:5", max_step=2000)
    obs, _ = envs.reset()
    state, world, map_ = envs.game.state, envs.game.world, envs.game.map
    ways, rng = make_ways(map_, range(1, 16)), np.random.default_rng(1)
    step = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
    seen_walls = seen_flash = 0
    for n in range(24):
        if n % 8 == 0:
            for e in range(15):
                at, end = (int(state.cell_x[e]), int(state.cell_z[e])), int(state.end[e])
                left = [p for p in range(1, 16) if state.there[e, p]]
                here = literal_tour(ways, map_.cells, at, left, end)
                want = np.ones(16)
                for p in left or [end]:
                    others = [q for q in left if q != p]
                    point = tuple(map_.cells[p].tolist())
                    rest = literal_tour(ways, map_.cells, point, others, end) if left else 0.0
                    want[p] = min(1.0, (ways.walk[ways.row[end], at[1], at[0], p] + rest - here) / 32)
                told = envs.unrounded[e, -33:]
                np.testing.assert_allclose(told[:16], want, atol=1e-4)
                assert told[32] == pytest.approx(min(1.0, here / 500), abs=1e-5)
                assert told[:16].min() == pytest.approx(0.0, abs=1e-5)
                for a in range(16):
                    to = np.array([state.x[e], state.z[e]]) + 8000 * DIRECTION[a % 8]
                    tx, tz, most = int(to[0] // 500), int(to[1] // 500), 60.0
                    if a < 8:
                        tx, tz, most = at[0] + step[a][0], at[1] + step[a][1], 2**0.5
                    if not world.obstacle[tz + 25, tx + 25]:
                        won, seen_walls = (-1.0 if a < 8 else 0.0), seen_walls + 1
                    else:
                        won = (here - literal_tour(ways, map_.cells, (tx, tz), left, end)) / most
                        seen_flash += a >= 8
                    assert told[16 + a] == pytest.approx(min(1.0, max(-1.0, won)), abs=1e-4)
        obs = envs.step(rng.integers(0, 16, 15))[0]
        np.testing.assert_allclose(as_float32(obs["features"]), envs.unrounded, rtol=2**-8)
        assert np.abs(envs.unrounded).max() <= 1.0
    assert seen_walls > 50
    assert seen_flash > 20


# ---- commands ----


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has learned nothing."""
    (tmp_path / "config.toml").write_text(
        '[app]\n[env]\nmap = ["generated:3", "generated:4"]\nmax_step = 30\n'
        '[eval_env]\nmap = ["generated:501", "generated:502"]\n'
        "[diy]\nposition = false\ntours = true\n"
    )
    shapes = spec(joined(3), ANYWHERE)
    agent = Agent(shapes, ANYWHERE, "cpu", 1)
    checkpoint.save(tmp_path / "ckpt", agent, Version(1, 4), 1000, shapes.schema, keep=1)
    return tmp_path


def test_commands_about_one_map_name_the_way(run_dir: Path, capsys: Any) -> None:
    for command in ("play", "record"):
        assert cli.main([command, str(run_dir)]) == 2
        assert capsys.readouterr().err == (
            "error: [env] of this run has 2 maps; name the one to play, like --map generated:1\n"
        )
    assert cli.main(["play", str(run_dir), "--map", "generated:5", "--random", "2"]) == 0
    assert "ran out of time in 30 steps" in capsys.readouterr().out
    why = "the oracle is asked about one map, and [env] has 2: --set eval_env.map=generated:501 takes one\n"
    assert cli.main(["eval", str(run_dir), "--all"]) == 2
    assert capsys.readouterr().err.endswith(f"(/work/main/diy)\nerror: --all: {why}".replace("/work/main", str(ROOT)))
    assert cli.main(["eval", str(run_dir), "--episodes", "2"]) == 0
    assert f"without the oracle: {why}" in capsys.readouterr().out
    assert (
        cli.main(["eval", str(run_dir), "--episodes", "2", "--no-oracle", "--set", "eval_env.map=generated:501"]) == 0
    )
    assert "without the oracle" not in capsys.readouterr().out
