"""What `diy/feature` gives: shapes, ranges, mask, reward, and what it must not import."""

from __future__ import annotations

import heapq
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diy.config import Config
from diy.feature import kernels
from diy.feature.definition import FeatureEnvs, as_float32, make_envs, spec
from diy.feature.ways import Ways, make_ways
from realm.contract import check_arrays
from realm.env import map as maps
from realm.env.map import Map
from realm.env.options import OptionError
from realm.env.physics import DIRECTION

NINE = {"treasure_random": 1, "treasure_num": 9}
HALF_A_BIT = 2.0**-8  # relative, of a bfloat16
CONFIGS = [Config(), Config(features="reference", reward="reference")]


def made(num_envs: int = 8, config: Config | None = None, **options: Any) -> FeatureEnvs:
    envs = make_envs(num_envs, 1, config or Config(), NINE | options)
    assert isinstance(envs, FeatureEnvs)
    return envs


def flashes_of_use(envs: FeatureEnvs, config: Config) -> Any:
    """bool [E, 8]: ready and, for the small features, landing on road."""
    state, world = envs.game.state, envs.game.world
    to = np.stack([state.x, state.z], axis=1)[:, None] + 8000 * DIRECTION
    x, z = (to // 500).astype(int).transpose(2, 0, 1)
    road = world.obstacle[z + 25, x + 25] > 0
    return (state.flash_wait == 0)[:, None] & (road | (config.features == "reference"))


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
                assert np.abs(as_float32(obs[name]) if name == "features" else obs[name]).max() <= 1.0
        assert obs["legal"][:, :8].all()
        np.testing.assert_array_equal(obs["legal"][:, 8:], flashes_of_use(envs, config))
        flashed |= bool((envs.game.state.flash_wait > 0).any())
        before = {name: array.copy() for name, array in obs.items()}
        following, reward, *_ = envs.step(rng.integers(0, 16, 8))
        assert reward.dtype == np.float32
        assert np.isfinite(reward).all()
        for name, array in before.items():
            np.testing.assert_array_equal(array, obs[name], err_msg="a returned array changed later")
        obs = following
    assert flashed


def test_features_are_rounded_as_torch_rounds_them() -> None:
    import torch

    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-1, 1, 2000), [0.0, -0.0, 1.0, -1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-30]])
    values = values.astype(np.float32).reshape(1, -1)
    out = np.empty(values.shape, np.int16)
    kernels.to_bfloat16(values, out)
    want = torch.from_numpy(values).bfloat16()
    assert torch.equal(torch.from_numpy(out), want.view(torch.int16))
    np.testing.assert_array_equal(as_float32(out), want.float().numpy())


def test_features_that_are_wrong_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write_small = kernels.write_small

    def one_more(*arguments: Any) -> None:
        write_small(*arguments)
        base = arguments[-1].base
        base[arguments[-1].size] = 0.5  # what the kernel itself does to the last environment: numba checks no bounds

    monkeypatch.setattr(kernels, "write_small", one_more)
    with pytest.raises(IndexError, match=f"write_small writes more than SMALL_SIZE, {kernels.SMALL_SIZE} features"):
        made().reset()
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="a feature is NaN or infinite"):
            kernels.to_bfloat16(np.array([[0.5, value, 1.0]], np.float32), np.zeros((1, 3), np.int16))


def test_small_features_say_where_the_hero_is_and_what_is_left() -> None:
    envs = made()
    rng = np.random.default_rng(1)
    obs, _ = envs.reset()
    state, walk = envs.game.state, make_ways(envs.game.map, [1]).walk[0]
    for _ in range(40):
        np.testing.assert_allclose(as_float32(obs["features"]), envs.unrounded, rtol=HALF_A_BIT)
        f = envs.unrounded
        np.testing.assert_array_equal(f[:, :64].argmax(1), state.cell_x // 2)
        np.testing.assert_array_equal(f[:, 64:128].argmax(1), state.cell_z // 2)
        np.testing.assert_array_equal(f[:, :128].sum(1), 2)
        np.testing.assert_allclose((state.cell_x + f[:, 130]) * 500, state.x, rtol=1e-4)
        np.testing.assert_allclose((state.cell_z + f[:, 131]) * 500, state.z, rtol=1e-4)
        np.testing.assert_array_equal(f[:, 132:148], state.there)
        np.testing.assert_array_equal(f[:, 148:164].argmax(1), state.end)
        for e in range(8):
            x, z = state.cell_x[e], state.cell_z[e]
            np.testing.assert_allclose(f[e, 164:180], np.minimum(walk[z, x] / 200, 1.0), rtol=1e-6)
        # the middle of the crop is the hero's own cell: road, and visited
        assert (f[:, 436 + 24] == 1).all()
        assert (f[:, 436 + 49 + 24] > 0).all()
        obs = envs.step(rng.integers(0, 8, 8))[0]


def test_small_features_say_where_actions_lead() -> None:
    """Against the cells that physics says a step to the neighbour, or a flash, comes to."""
    envs = made()
    rng = np.random.default_rng(4)
    obs, _ = envs.reset()
    state, world, walk = envs.game.state, envs.game.world, make_ways(envs.game.map, [1]).walk[0]
    step = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
    for _ in range(30):
        np.testing.assert_allclose(as_float32(obs["features"]), envs.unrounded, rtol=HALF_A_BIT)
        won = envs.unrounded[:, 180:436].reshape(8, 16, 16)
        for e in range(8):
            x, z = int(state.cell_x[e]), int(state.cell_z[e])
            shown = (state.there[e] == 1) | (np.arange(16) == state.end[e])
            for a in range(16):
                if a < 8:
                    tx, tz, most = x + step[a][0], z + step[a][1], 2**0.5
                else:
                    to = np.array([state.x[e], state.z[e]]) + 8000 * DIRECTION[a - 8]
                    tx, tz, most = int(to[0] // 500), int(to[1] // 500), 60.0
                if world.obstacle[tz + 25, tx + 25]:
                    want = np.where(shown, np.clip((walk[z, x] - walk[tz, tx]) / most, -1, 1), 0)
                else:
                    want = np.full(16, -1.0 if a < 8 else 0.0)
                np.testing.assert_allclose(won[e, a], want, rtol=1e-5, err_msg=f"action {a}")
        obs = envs.step(rng.integers(0, 8, 8))[0]


# ---- ways ----


Cell = tuple[int, int]  # x, z


def literal_lengths(map_: Map, seeds: dict[Cell, float], barred: set[Cell]) -> dict[Cell, float]:
    """Dijkstra's algorithm with a heap over the cells of a map, from cells with a length of their own, never on over
    those that are barred."""
    road, best = map_.road, {}
    heap = [(length, cell) for cell, length in seeds.items()]
    heapq.heapify(heap)
    while heap:
        length, (x, z) = heapq.heappop(heap)
        if (x, z) in best:
            continue
        best[x, z] = length
        if (x, z) in barred:
            continue
        for dx, dz in itertools.product((-1, 0, 1), repeat=2):
            tx, tz = x + dx, z + dz
            if 0 <= tx < 128 and 0 <= tz < 128 and road[tz, tx] and road[z, tx] and road[tz, x]:
                heapq.heappush(heap, (length + (dx * dx + dz * dz) ** 0.5, (tx, tz)))
    return best


def disc_of(map_: Map, point: int) -> set[Cell]:
    px, pz = map_.points[point]
    cells = [(int(x), int(z)) for z, x in np.argwhere(map_.road)]
    disc = {(x, z) for x, z in cells if (500 * x + 250 - px) ** 2 + (500 * z + 250 - pz) ** 2 <= 1000**2}
    return disc | {(int(px // 500), int(pz // 500))}


@pytest.mark.parametrize(("point", "end"), [(0, 1), (7, 1), (1, 1), (4, 9)])
def test_walking_lengths_are_those_of_dijkstra(point: int, end: int) -> None:
    map_ = maps.default()
    ways = make_ways(map_, [end])
    cells = [(int(x), int(z)) for z, x in np.argwhere(map_.road)]
    barred = set() if point == end else disc_of(map_, end)
    length = literal_lengths(map_, dict.fromkeys(disc_of(map_, point), 0.0), barred)
    others = [(int(x), int(z)) for i, (x, z) in enumerate(map_.cells) if i != end]
    assert all(cell in length for cell in others), "the end bars the way: choose another one"
    for x, z in cells:
        assert ways.walk[0, z, x, point] == pytest.approx(length.get((x, z), 1e4), rel=1e-5)
    seeds = dict(length)
    for x, z in cells:
        for dx, dz in 8000 * DIRECTION:
            to = (int((500 * x + 250 + dx) // 500), int((500 * z + 250 + dz) // 500))
            if to in length and to not in barred:
                seeds[x, z] = min(seeds.get((x, z), 1e4), length[to] + 699 / 500)
    flashed = literal_lengths(map_, seeds, barred)
    for x, z in cells:
        assert ways.with_flash[0, z, x, point] == pytest.approx(flashed.get((x, z), 1e4), rel=1e-5)


def test_an_end_that_bars_the_only_way_is_walked_over() -> None:
    """A corridor two cells wide with the end in its middle."""
    road = np.zeros((128, 128), np.uint8)
    road[60:62, 5:120] = 1
    points = np.array([[500 * (6 + 7 * i) + 250, 500 * 60 + 250] for i in range(16)], float)
    ways = make_ways(Map(road, points), [8, 15])
    assert ways.walk[0, 60, 6, 12] == ways.walk[0, 60, 6, 8] + 28  # over the end
    assert ways.walk[1, 60, 6, 12] == ways.walk[0, 60, 6, 12]  # the last point bars nothing


def literal_tour(envs: FeatureEnvs, ways: Ways, e: int, share: float) -> float:
    """Every order of the treasures left, the flash on every part of it."""
    state, cells, at = envs.game.state, envs.game.map.cells, ways.row[envs.game.state.end[e]]
    stops = [p for p in range(1, 16) if state.there[e, p]]
    on_foot = best = np.inf
    for order in itertools.permutations(stops):
        froms = [(state.cell_x[e], state.cell_z[e]), *(cells[p] for p in order)]
        legs = list(zip(froms, [*order, int(state.end[e])], strict=True))
        walks = [ways.walk[at, z, x, p] for (x, z), p in legs]
        saved = max(walk - ways.with_flash[at, z, x, p] for walk, ((x, z), p) in zip(walks, legs, strict=True))
        on_foot, best = min(on_foot, sum(walks)), min(best, sum(walks), sum(walks) - saved)
    return float(on_foot if state.flash_wait[e] > 0 else share * best + (1 - share) * on_foot)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_tours_are_the_best_of_all_orders(share: float) -> None:
    ends = [1, 15, 7, 2]
    envs = made(12, layouts=[{"start": 9, "end": end, "treasure_num": 5} for end in ends])
    envs.reset()
    rng = np.random.default_rng(2)
    state, ways = envs.game.state, make_ways(envs.game.map, ends)
    out = np.empty(12, np.float32)
    for n in range(20):
        envs.step(rng.integers(0, 16 if n > 10 else 8, 12))
        if n % 5 == 0:
            for e in range(12):  # as if some treasures had been taken
                state.there[e, rng.integers(1, 16)] = 0
            kernels.tour_to_go(state, *ways, share, out)
            np.testing.assert_allclose(out, [literal_tour(envs, ways, e, share) for e in range(12)], rtol=1e-5)
    assert (state.flash_wait > 0).any()
    state.there[:, 1:] = 0
    kernels.tour_to_go(state, *ways, share, out)
    np.testing.assert_allclose(out, [literal_tour(envs, ways, e, share) for e in range(12)], rtol=1e-5)


def test_nearest_is_the_nearest() -> None:
    envs = made(8, treasure_num=3)
    envs.reset()
    state, distance = envs.game.state, envs.game.world.distance
    state.there[:4, 1:] = 0
    out = np.empty(8, np.float32)
    kernels.nearest_to_go(state, envs.game.world, out)
    for e in range(8):
        left = [p for p in range(1, 16) if state.there[e, p]] or [int(state.end[e])]
        assert out[e] == min(distance[p, state.cell_z[e], state.cell_x[e]] for p in left)


def test_other_ends_by_options() -> None:
    """Tours are made for the ends of the episodes to come."""
    envs = made(2)
    envs.reset()
    envs.reset(options={"layouts": [{"end": 5, "treasure_num": 2}, {"end": 9, "treasure_num": 2}]})
    out = np.empty(2, np.float32)
    ways = make_ways(envs.game.map, [5, 9])
    kernels.tour_to_go(envs.game.state, *ways, 1.0, out)
    np.testing.assert_allclose(out, [literal_tour(envs, ways, e, 1.0) for e in range(2)], rtol=1e-5)
    assert np.isfinite(envs.step(np.zeros(2, np.int64))[1]).all()


# ---- rewards ----


def test_rewards_of_an_episode_add_up() -> None:
    """The way that was won telescopes."""
    config = Config(reward_scale=0.01, treasure_points=30.0)
    envs = made(4, config, max_step=300)
    envs.reset()
    ways, way = make_ways(envs.game.map, [1]), np.empty((2, 4), np.float32)
    kernels.tour_to_go(envs.game.state, *ways, config.flash_share, way[0])
    rng = np.random.default_rng(3)
    total = np.zeros(4)
    for n in range(300):
        _, reward, terminated, truncated, info = envs.step(rng.integers(0, 16, 4))
        assert not terminated.any()
        assert truncated.all() == (n == 299)
        total += reward
    assert info["_episode"].all()
    kernels.tour_to_go(envs.game.state, *ways, config.flash_share, way[1])
    want = 30.0 * info["episode"]["treasures"] - config.step_points * 300 + config.way_points * (way[0] - way[1])
    np.testing.assert_allclose(total, 0.01 * want, atol=1e-4)
    _, reward, terminated, truncated, _ = envs.step(rng.integers(0, 16, 4))  # the autoreset
    assert not np.concatenate([reward, terminated, truncated]).any()


def test_reaching_the_end_pays_and_missed_treasures_cost() -> None:
    """Walk to the end by following the map's distances."""
    config = Config(reward_scale=1.0, way_points=0.0)
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
    assert reward[0] == pytest.approx(config.end_points - config.step_points - config.missed_points * missed, abs=1e-3)


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
    root = Path(__file__).resolve().parents[2]
    for _ in range(2):  # the first one may compile the kernels, which takes memory of its own
        out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    loaded, memory_mb = out.split("\n")[:2]
    assert loaded == "[]"
    assert int(memory_mb) < 250


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"gamma_end": 1.5}, "diy.gamma_end is 1.5, it must be from 0 to 1"),
        ({"precision": "fp8"}, "diy.precision is 'fp8', it must be one of 'auto', 'fp32', 'bf16'"),
        (
            {"features": "reference", "position": False},
            "diy.position is False, it must be true unless features is 'small'",
        ),
        ({"features": "reference", "tours": True}, "diy.tours is True, it must be false unless features is 'small'"),
        ({"epochs": 0}, "diy.epochs is 0, it must be at least 1"),
        ({"lr_start": 0.0}, "diy.lr_start is 0.0, it must be above 0"),
        ({"treasure_points": -1.0}, "diy.treasure_points is -1.0, it must be 0 or more"),
        ({"step_points": float("nan")}, "diy.step_points is nan, it must be 0 or more"),
        ({"lam": float("nan")}, "diy.lam is nan, it must be from 0 to 1"),
    ],
)
def test_config_refuses_what_cannot_work(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence) + "$"):
        Config(**fields)
