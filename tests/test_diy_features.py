"""What `diy/feature` gives: shapes, ranges, mask, reward, and what it must not import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diy.config import Config
from diy.feature import kernels
from diy.feature.definition import FeatureEnvs, make_envs, spec
from realm.contract import check_arrays
from realm.env.options import OptionError

NINE = {"treasure_random": 1, "treasure_num": 9}
CONFIGS = [Config(), Config(features="reference", reward="reference", way="nearest")]


def made(num_envs: int = 8, config: Config | None = None, **options: Any) -> FeatureEnvs:
    envs = make_envs(num_envs, 1, config or Config(), NINE | options)
    assert isinstance(envs, FeatureEnvs)
    return envs


@pytest.mark.parametrize("config", CONFIGS, ids=["small", "reference"])
def test_observations_are_what_the_spec_says(config: Config) -> None:
    envs = made(config=config, max_step=60)
    rng = np.random.default_rng(0)
    obs, _ = envs.reset()
    flashed = False
    for _ in range(150):
        check_arrays(obs, spec(envs, config).obs, (8,), "obs")
        for name in ("features", "vector"):
            if name in obs:
                assert np.abs(obs[name]).max() <= 1.0
        assert obs["legal"][:, :8].all()
        ready = envs.game.state.flash_wait == 0
        np.testing.assert_array_equal(obs["legal"][:, 8:], np.repeat(ready[:, None], 8, axis=1))
        flashed |= not ready.all()
        before = {name: array.copy() for name, array in obs.items()}
        following, reward, *_ = envs.step(rng.integers(0, 16, 8))
        assert reward.dtype == np.float32
        assert np.isfinite(reward).all()
        for name, array in before.items():
            np.testing.assert_array_equal(array, obs[name], err_msg="a returned array changed later")
        obs = following
    assert flashed


def test_small_features_say_where_the_hero_is_and_what_is_left() -> None:
    envs = made()
    rng = np.random.default_rng(1)
    obs, _ = envs.reset()
    state, world = envs.game.state, envs.game.world
    for _ in range(40):
        f = obs["features"]
        np.testing.assert_array_equal(f[:, :64].argmax(1), state.cell_x // 2)
        np.testing.assert_array_equal(f[:, 64:128].argmax(1), state.cell_z // 2)
        np.testing.assert_array_equal(f[:, :128].sum(1), 2)
        np.testing.assert_array_equal(f[:, 130:146], state.there)
        np.testing.assert_array_equal(f[:, 146:162].argmax(1), state.end)
        for e in range(8):
            for p in range(16):
                shown = state.there[e, p] or p == state.end[e]
                near = min(world.distance[p, state.cell_z[e], state.cell_x[e]] / 256, 1.0) if shown else 1.0
                assert f[e, 162 + p] == pytest.approx(near)
        # the middle of the crop is the hero's own cell: road, and visited
        assert (f[:, 178 + 24] == 1).all()
        assert (f[:, 178 + 49 + 24] > 0).all()
        obs = envs.step(rng.integers(0, 8, 8))[0]


def literal_way(envs: FeatureEnvs, e: int, tree: bool) -> float:
    """The same estimate by Kruskal's algorithm."""
    state, world = envs.game.state, envs.game.world
    distance = world.distance
    left = [p for p in range(1, 16) if state.there[e, p]]
    end = int(state.end[e])
    here = [int(distance[p, state.cell_z[e], state.cell_x[e]]) for p in left or [end]]
    total = float(min(here))
    if not tree:
        return total
    nodes = [*left, end]
    group = {p: p for p in nodes}
    edges = sorted(
        (int(distance[a, world.cells[b, 1], world.cells[b, 0]]), a, b) for a in nodes for b in nodes if a < b
    )
    for length, a, b in edges:
        if group[a] != group[b]:
            total += length
            old, new = group[a], group[b]
            group = {p: new if g == old else g for p, g in group.items()}
    return total


@pytest.mark.parametrize("tree", [True, False])
def test_way_to_go_is_the_literal_one(tree: bool) -> None:
    envs = made(16, treasure_num=6)
    envs.reset()
    rng = np.random.default_rng(2)
    state = envs.game.state
    way = np.empty(16, np.float32)
    for n in range(30):
        envs.step(rng.integers(0, 16, 16))
        if n % 5 == 0:
            for e in range(16):  # as if some treasures had been taken
                state.there[e, rng.integers(1, 16)] = 0
        kernels.way_to_go(state, envs.game.world, tree, way)
        np.testing.assert_array_equal(way, [literal_way(envs, e, tree) for e in range(16)])


def test_rewards_of_an_episode_add_up() -> None:
    config = Config(reward_scale=0.01)
    envs = made(4, config, max_step=300)
    envs.reset()
    rng = np.random.default_rng(3)
    total = np.zeros(4)
    for n in range(300):
        _, reward, terminated, truncated, info = envs.step(rng.integers(0, 16, 4))
        assert not terminated.any()
        assert truncated.all() == (n == 299)
        total += reward
    assert info["_episode"].all()
    want = 100.0 * info["episode"]["treasures"] - 0.2 * 300
    np.testing.assert_allclose(total, 0.01 * want, atol=1e-4)
    _, reward, terminated, truncated, _ = envs.step(rng.integers(0, 16, 4))  # the autoreset
    assert not np.concatenate([reward, terminated, truncated]).any()


def test_reaching_the_end_pays_and_missed_treasures_cost() -> None:
    """Walk to the end by following the map's distances."""
    config = Config(reward_scale=1.0)
    envs = made(1, config, treasure_id=[14], treasure_random=0, start=2, end=1)
    envs.reset()
    state, world = envs.game.state, envs.game.world
    reward = np.zeros(1, np.float32)
    terminated = np.zeros(1, np.bool_)
    rng = np.random.default_rng(0)
    while not terminated[0]:
        far = world.distance[1, state.cell_z[0], state.cell_x[0]]
        goal = [
            a
            for a, (dx, dz) in {0: (1, 0), 2: (0, 1), 4: (-1, 0), 6: (0, -1)}.items()
            if world.distance[1, state.cell_z[0] + dz, state.cell_x[0] + dx] < far
        ]
        action = int(rng.choice(goal)) if goal and rng.random() < 0.8 else int(rng.integers(8))
        _, reward, terminated, truncated, info = envs.step(np.array([action]))
        assert not truncated[0]
    missed = info["episode"]["missed"][0]
    assert reward[0] == pytest.approx(150.0 - 0.2 - 100.0 * missed, abs=1e-3)


@pytest.mark.parametrize("config", CONFIGS, ids=["small", "reference"])
def test_the_first_reset_is_seeded(config: Config) -> None:
    first, _ = make_envs(4, 7, config, NINE).reset()
    same, _ = make_envs(4, 7, config, NINE).reset()
    other, _ = make_envs(4, 8, config, NINE).reset()
    name = "features" if config.features == "small" else "vector"
    np.testing.assert_array_equal(first[name], same[name])
    assert (first[name] != other[name]).any()


def test_options_hold_over_autoresets() -> None:
    envs = made(4, treasure_num=7, max_step=5)
    envs.reset()
    for _ in range(3 * 6):
        envs.step(np.zeros(4, np.int64))
        assert (envs.game.state.total == 7).all()
    with pytest.raises(OptionError, match="treasure_num is 14"):
        made(treasure_num=14)


def test_a_worker_loads_neither_torch_nor_tensorflow_and_stays_small() -> None:
    """In a process of its own: environments of a worker, stepped; prints its memory in MB."""
    code = (
        "import sys, numpy as np\n"
        "from diy.config import Config\n"
        "from diy.feature.definition import make_envs, spec\n"
        "import diy.train_workflow\n"
        "envs = make_envs(64, 1, Config(), {'treasure_num': 9}); spec(envs, Config()); envs.reset()\n"
        "for _ in range(20): envs.step(np.zeros(64, np.int64))\n"
        "print([m for m in ('torch', 'tensorflow', 'reverb') if m in sys.modules])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(int(status['VmHWM'].split()[0]) // 1024)\n"
    )
    root = Path(__file__).resolve().parents[1]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    loaded, memory_mb = out.split("\n")[:2]
    assert loaded == "[]"
    assert int(memory_mb) < 250


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"gamma_end": 1.5}, "diy.gamma_end is 1.5, it must be from 0 to 1"),
        ({"precision": "fp8"}, "diy.precision is 'fp8', it must be one of 'auto', 'fp32', 'bf16'"),
        ({"epochs": 0}, "diy.epochs is 0, it must be at least 1"),
        ({"lr_start": 0.0}, "diy.lr_start is 0.0, it must be above 0"),
        ({"lam": float("nan")}, "diy.lam is nan, it must be from 0 to 1"),
    ],
)
def test_config_refuses_what_cannot_work(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence) + "$"):
        Config(**fields)
