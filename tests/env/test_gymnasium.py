"""gymnasium's manners: stock wrappers and vectorisations, masks for reset, refusals, stable-baselines3."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import vector as vector_wrappers

import realm  # noqa: F401  (registers Realm-v0)
from realm.env import map as maps
from realm.env.options import OptionError
from realm.env.realm_env import RealmEnv, RealmVectorEnv

CONF = {"treasure_num": 3, "max_step": 25}


def test_importing_the_package_is_light() -> None:
    code = "import sys, realm; print([m for m in ('numba', 'yaml', 'torch') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_it_is_made_by_the_packages_name() -> None:
    """In a fresh process, where nothing has imported it."""
    code = """
import gymnasium
one, many = gymnasium.make("realm:Realm-v0"), gymnasium.make_vec("realm:Realm-v0", num_envs=2)
print(type(one.unwrapped).__name__, type(many.unwrapped).__name__)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["RealmEnv", "RealmVectorEnv"]


def test_action_masks_are_those_of_the_observation() -> None:
    """As sb3-contrib's MaskablePPO asks: by `get_wrapper_attr`, of an environment in wrappers."""
    one = wrappers.RecordEpisodeStatistics(gymnasium.make("Realm-v0", usr_conf=CONF))
    many: Any = gymnasium.make_vec("Realm-v0", num_envs=3, observation="vector", usr_conf=CONF).unwrapped
    rng, seen = np.random.default_rng(0), set[int]()
    obs, rows = one.reset(seed=1)[0], many.reset(seed=1)[0]
    for _ in range(60):
        mask, masks = one.get_wrapper_attr("action_masks")(), many.action_masks()
        assert (mask.dtype, mask.shape, masks.dtype, masks.shape) == (np.bool_, (16,), np.bool_, (3, 16))
        assert mask.tolist() == obs["action_mask"].astype(bool).tolist()
        assert masks.tolist() == rows["action_mask"].astype(bool).tolist()
        seen.add(int(mask.sum()))
        obs, _, terminated, truncated, _ = one.step(int(rng.integers(16)))
        if terminated or truncated:
            obs, _ = one.reset()
        rows = many.step(rng.integers(16, size=3))[0]
    assert seen == {8, 16}  # a flash has to wait for the next


@pytest.mark.parametrize("observation", ["full", "vector"])
def test_spaces_hold_what_is_returned(observation: str) -> None:
    envs = gymnasium.make_vec("Realm-v0", num_envs=3, observation=observation, usr_conf=CONF)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    obs, info = envs.reset(seed=1)
    envs.action_space.seed(1)
    assert info == {}
    assert ("image" in obs) == (observation == "full")
    for _ in range(60):
        assert obs in envs.observation_space
        row = {name: array[1] for name, array in obs.items()}
        assert row in envs.single_observation_space
        obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    envs.close()
    envs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasiums_own_vectorisation_plays_the_same(mode: str) -> None:
    stock = gymnasium.make_vec("Realm-v0", num_envs=3, vectorization_mode=mode, usr_conf=CONF)
    ours = gymnasium.make_vec("Realm-v0", num_envs=3, usr_conf=CONF)
    assert isinstance(ours.unwrapped, RealmVectorEnv)
    assert stock.single_observation_space == ours.single_observation_space
    a, b = stock.reset(seed=4)[0], ours.reset(seed=4)[0]
    rng = np.random.default_rng(0)
    for _ in range(90):
        assert all(np.array_equal(a[name], b[name]) for name in b)
        actions = rng.integers(16, size=3)
        a, *stock_rest, stock_info = stock.step(actions)
        b, *our_rest, our_info = ours.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(stock_rest, our_rest, strict=True))
        assert ("stats" in stock_info) == ("stats" in our_info)
        if "stats" in our_info:
            over = our_info["_stats"]
            assert np.array_equal(stock_info["_stats"], over)
            for name in ("score", "length", "treasures", "walls"):
                assert np.array_equal(stock_info["stats"][name][over], our_info["stats"][name][over])
    stock.close()


def play(env: gymnasium.Env[Any, Any], steps: int = 60) -> dict[str, Any]:
    """Random play; returns the last info of an ended episode."""
    env.reset(seed=0)
    env.action_space.seed(0)
    last: dict[str, Any] = {}
    for _ in range(steps):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            last = info
            env.reset()
    return last


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.RecordEpisodeStatistics,
        wrappers.FlattenObservation,
        wrappers.NormalizeReward,
        wrappers.Autoreset,
        lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 10)),
        lambda env: wrappers.TimeLimit(env, 10),
        lambda env: wrappers.FilterObservation(env, ["vector"]),
        lambda env: wrappers.FrameStackObservation(env, 3),
        lambda env: wrappers.NormalizeObservation(wrappers.FlattenObservation(env)),
        lambda env: wrappers.TransformReward(env, lambda reward: reward / 10),
        lambda env: wrappers.StickyAction(env, 0.5),
    ],
)
def test_single_wrappers(wrap: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(wrap(gymnasium.make("Realm-v0", usr_conf=CONF)))


def test_episode_statistics_of_wrapper_and_environment_agree() -> None:
    info = play(wrappers.RecordEpisodeStatistics(gymnasium.make("Realm-v0", usr_conf=CONF)))
    assert info["episode"]["l"] == info["stats"]["length"] == 25
    assert info["episode"]["r"] == pytest.approx(info["stats"]["score"])
    assert type(info["stats"]["treasures"]) is int


@pytest.mark.parametrize(
    "wrap",
    [
        vector_wrappers.RecordEpisodeStatistics,
        vector_wrappers.FlattenObservation,
        vector_wrappers.NormalizeReward,
        vector_wrappers.DictInfoToList,
        lambda envs: vector_wrappers.FilterObservation(envs, ["vector"]),
        lambda envs: vector_wrappers.TransformReward(envs, lambda reward: reward / 10),
        lambda envs: vector_wrappers.DictInfoToList(vector_wrappers.RecordEpisodeStatistics(envs)),
    ],
)
def test_vector_wrappers(wrap: Any) -> None:
    envs = wrap(gymnasium.make_vec("Realm-v0", num_envs=4, usr_conf=CONF))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    lengths = []
    for _ in range(60):
        _, _, _, truncated, info = envs.step(envs.action_space.sample())
        if truncated.any() and isinstance(info, list):
            lengths += [row["stats"]["length"] for row in info if "stats" in row]
    assert set(lengths) <= {25}


def test_returned_data_is_not_reused() -> None:
    envs = RealmVectorEnv(2, usr_conf=CONF)
    kept = [envs.reset(seed=0)[0]]
    kept += [envs.step(np.full(2, 3))[0] for _ in range(4)]
    arrays = [array for obs in kept for array in obs.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    results = [envs.step(np.full(2, 3))[1:4] for _ in range(2)]
    assert not any(np.shares_memory(a, b) for a, b in zip(*results, strict=True))


def test_rows_of_a_buffer_with_environments_first() -> None:
    """out may be buffer[:, t] of [E, T, ...]: only each environment's own row has to be contiguous."""
    envs, twin = RealmVectorEnv(3, usr_conf=CONF), RealmVectorEnv(3, usr_conf=CONF)
    shapes = {name: (space.shape, space.dtype) for name, space in envs.single_observation_space.spaces.items()}
    buffer = {name: np.zeros((3, 5, *shape), dtype) for name, (shape, dtype) in shapes.items()}
    envs.reset(seed=0)
    twin.reset(seed=0)
    for t in range(5):
        envs.step(np.full(3, t), out={name: array[:, t] for name, array in buffer.items()})
        want = twin.step(np.full(3, t))[0]
        assert all(np.array_equal(buffer[name][:, t], want[name]) for name in want)
    bad = {name: np.zeros((*shape[::-1], 3), dtype).T for name, (shape, dtype) in shapes.items()}
    with pytest.raises(ValueError, match="must be contiguous but for its first axis"):
        envs.step(np.full(3, 0), out=bad)


def test_reset_mask_resets_some_and_lets_the_layouts_go_on() -> None:
    envs = RealmVectorEnv(3, layouts=[[3], [4], [5], [6], [7]], usr_conf={"max_step": 50})
    with pytest.raises(ResetNeeded):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.zeros(3, np.int64))
    obs, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert envs.state.steps.tolist() == [5, 0, 5]
    assert envs.state.layout.tolist() == [0, 3, 2]
    assert obs["vector"].shape == (3, 31)
    for mask in (np.zeros(3, bool), np.ones(3, int), np.ones(2, bool)):
        with pytest.raises(ValueError, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})


def test_seeds() -> None:
    envs = RealmVectorEnv(3, usr_conf={"treasure_num": 6}, observation="vector")
    envs.reset(seed=[5, 9, 5])
    a = envs.state.planned.copy()
    assert np.array_equal(a[0], a[2])
    envs.reset(seed=np.int64(5))
    assert np.array_equal(envs.state.planned[0], a[0])
    with pytest.raises(ValueError, match="2 entries"):
        envs.reset(seed=[1, 2])
    drawn = [RealmVectorEnv(3, usr_conf={"treasure_num": 6}) for _ in range(2)]
    for unseeded in drawn:
        unseeded.reset()
    assert not np.array_equal(drawn[0].state.planned, drawn[1].state.planned)


def test_refusals() -> None:
    env, envs = RealmEnv(usr_conf={"max_step": 2}), RealmVectorEnv(2)
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros(2, np.int64))
    env.reset()
    envs.reset()
    for action in (-1, 16, 1.0, None, "3", np.array([1, 2])):
        with pytest.raises(ValueError, match="action is"):
            env.step(action)  # type: ignore[arg-type]
    for actions in ([0], [0, 16], [-1, 0], [0.0, 1.0], [[0, 0]]):
        with pytest.raises(ValueError, match="actions must be 2 whole numbers"):
            envs.step(np.array(actions))
    env.step(np.int32(3))
    assert env.step(np.array(3))[3]
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="observation is 'image'"):
        RealmEnv(observation="image")
    with pytest.raises(ValueError, match="render_mode is 'opengl'"):
        RealmEnv(render_mode="opengl")
    with pytest.raises(OptionError, match="reset takes the options usr_conf and layouts only"):
        env.reset(options={"usr_conf": {}, "map": "other"})


def test_map_by_keyword(tmp_path: Any) -> None:
    maps.save(maps.generate(5), tmp_path)
    env = gymnasium.make("Realm-v0", map=str(tmp_path))
    assert np.array_equal(env.unwrapped.map.road, maps.generate(5).road)
    play(env)
    with pytest.raises(maps.MapError, match="cannot read"):
        gymnasium.make_vec("Realm-v0", num_envs=2, map="no/such/map")


def test_stable_baselines3_accepts_it() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    for observation in ("full", "vector"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checker.check_env(gymnasium.make("Realm-v0", observation=observation).unwrapped)
