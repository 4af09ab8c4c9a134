"""The environments: gymnasium's checker, seeding, autoresets, options, layouts, episode statistics."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import realm  # noqa: F401  (registers Realm-v0)
from realm.env.games import episode_stats
from realm.env.options import OptionError
from realm.env.realm_env import RealmEnv, RealmVectorEnv

SHORT = {"max_step": 7}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("observation", ["full", "vector"])
def test_gymnasium_checker(observation: str) -> None:
    check_env(gymnasium.make("Realm-v0", observation=observation).unwrapped)


def test_vector_env_i_plays_like_a_single_env_with_seed_plus_i() -> None:
    rng = np.random.default_rng(0)
    usr_conf = {"treasure_num": 9, "max_step": 150}
    envs = RealmVectorEnv(4, usr_conf=usr_conf)
    singles = [RealmEnv(usr_conf=usr_conf) for _ in range(4)]
    obs, _ = envs.reset(seed=11)
    for i, env in enumerate(singles):
        assert same(env.reset(seed=11 + i)[0], {k: v[i] for k, v in obs.items()})
    over = np.zeros(4, dtype=bool)
    for _ in range(400):
        actions = rng.integers(16, size=4)
        obs, reward, terminated, truncated, _ = envs.step(actions)
        for i, env in enumerate(singles):
            row = {k: v[i] for k, v in obs.items()}
            if over[i]:
                assert same(env.reset()[0], row)
                assert (reward[i], terminated[i], truncated[i]) == (0, False, False)
            else:
                one = env.step(actions[i])
                assert same(one[0], row)
                assert one[1:4] == (reward[i], terminated[i], truncated[i])
        over = terminated | truncated
    assert envs.state.turn.min() >= 8


def test_same_seed_same_episodes() -> None:
    def play(seed: int) -> list[np.ndarray]:
        envs = RealmVectorEnv(3, usr_conf=SHORT, observation="vector")
        envs.reset(seed=seed)
        drawn = []
        for _ in range(50):
            envs.step(np.zeros(3, dtype=np.int64))
            drawn.append(envs.state.planned.copy())
        return drawn

    a, b, c = play(5), play(5), play(6)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_random_treasures_are_uniform_and_as_many_as_asked() -> None:
    envs = RealmVectorEnv(500, usr_conf={"treasure_num": 9, "start": 4, "end": 7}, observation="vector")
    envs.reset(seed=1)
    planned = envs.state.planned
    assert (planned.sum(1) == 9).all()
    assert not planned[:, [0, 4, 7]].any()
    share = np.delete(planned, [0, 4, 7], axis=1).mean(0)
    assert np.abs(share - 9 / 13).max() < 0.08


def test_options_survive_three_autoresets() -> None:
    envs = RealmVectorEnv(2, usr_conf=SHORT, observation="vector")
    envs.reset(seed=0)
    assert (envs.state.total == 5).all()
    envs.reset(options={"diy": {"treasure_num": 11, **SHORT}})
    resets = 0
    for _ in range(3 * 8):
        assert (envs.state.planned.sum(1) == 11).all()
        assert (envs.state.max_step == 7).all()
        envs.step(np.zeros(2, dtype=np.int64))
        resets += int(envs.state.fresh[0])
    assert resets == 3
    env = RealmEnv(usr_conf=SHORT)
    env.reset(seed=0, options={"usr_conf": {"treasure_id": [3, 4]}})
    env.reset()
    assert env.state.planned[0].nonzero()[0].tolist() == [3, 4]


def test_layouts_are_handed_out_in_order() -> None:
    layouts = [[3], [4, 5], {"treasure_num": 13}, {"start": 9, "treasure_id": []}, [15]]
    envs = RealmVectorEnv(2, usr_conf=SHORT, layouts=layouts, observation="vector")
    envs.reset(seed=0)
    seen = []
    for t in range(8 * 5):
        if t % 8 == 0:
            assert envs.state.fresh.all()
            seen += envs.state.layout.tolist()
            assert envs.state.turn.tolist() == [len(seen) - 2, len(seen) - 1]
        envs.step(np.zeros(2, dtype=np.int64))
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert envs.state.total.tolist() == [1, 2]  # layouts 0 and 1 of the third round
    envs.reset(options={"layouts": [[7]]})
    assert (envs.state.planned.sum(0) == np.eye(16)[7] * 2).all()


def test_rewards_add_up_to_the_score_and_statistics_come_with_the_end() -> None:
    envs = RealmVectorEnv(64, usr_conf={"treasure_num": 13, "max_step": 400}, observation="vector")
    envs.reset(seed=3)
    rng = np.random.default_rng(3)
    total, ended = np.zeros(64), 0
    held = rng.integers(16, size=64)
    for _ in range(900):
        held = np.where(rng.random(64) < 0.15, rng.integers(16, size=64), held)
        _, reward, terminated, truncated, info = envs.step(held)
        total[envs.state.fresh] = 0
        total += reward
        over = terminated | truncated
        assert ("stats" in info) == over.any()
        if over.any():
            stats = info["stats"]
            assert np.array_equal(info["_stats"], over)
            assert np.allclose(stats["score"][over], total[over])
            want = np.where(terminated, 150 + 0.2 * (400 - stats["length"]) + 100 * stats["treasures"], 0)
            assert np.allclose(stats["score"][over], want[over])
            assert (stats["treasures"] + stats["missed"] == 13).all()
            assert np.array_equal(stats["reached_end"], terminated)
            ended += int(over.sum())
    assert ended > 64


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"start": 0}, "start is 0, it must be a whole number from 1 to 15"),
        ({"end": 16}, "end is 16"),
        ({"start": 3, "end": 3}, "end is 3, it must differ from start"),
        ({"treasure_random": 2}, "treasure_random is 2"),
        ({"treasure_random": True}, "treasure_random is True"),
        ({"treasure_num": 14}, "treasure_num is 14, it must be a whole number from 0 to 13"),
        ({"treasure_num": 1.5}, "treasure_num is 1.5"),
        ({"treasure_id": [3, 3]}, "treasure_id has 3 twice"),
        ({"treasure_id": [2]}, "treasure_id has 2, which is the start"),
        ({"treasure_id": [0]}, "treasure_id has 0"),
        ({"treasure_id": "34"}, "treasure_id is '34'"),
        ({"treasure_random": 0}, "treasure_random is 0, so treasure_id must be given"),
        ({"max_step": 0}, "max_step is 0"),
        ({"talent_type": 2}, "talent_type is 2, it must be 1"),
        ({"treasures": 2}, "treasures is 2, but there is no such option"),
        ({"diy": {"start": "2"}}, "start is '2'"),
        ({"diy": 3}, "must be"),
        (7, "usr_conf is 7"),
    ],
)
def test_wrong_options_are_refused_with_key_value_and_what_is_allowed(conf: object, words: str) -> None:
    with pytest.raises(OptionError) as error:
        RealmEnv(usr_conf=conf)  # type: ignore[arg-type]
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_layouts_are_refused() -> None:
    with pytest.raises(OptionError, match=r"layouts\[1\]: treasure_id has 1, which is the end"):
        RealmEnv(layouts=[[3], [1]])
    for wrong in ([], 5, "3", {"start": 1}):
        with pytest.raises(OptionError, match="layouts is"):
            RealmEnv(layouts=wrong)  # type: ignore[arg-type]
    RealmEnv(layouts=np.array([[3, 7], [8, 9]]))  # type: ignore[arg-type]  # any rows of ids are taken


def test_out_and_copy() -> None:
    envs = RealmVectorEnv(3)
    envs.reset(seed=0)
    rows = {
        "image": np.zeros((5, 3, 4, 51, 51), np.uint8),
        "vector": np.zeros((5, 3, 31), np.float32),
        "action_mask": np.zeros((5, 3, 16), np.int8),
    }
    twin = RealmVectorEnv(3)
    twin.reset(seed=0)
    lazy = RealmVectorEnv(3, copy=False)
    first = lazy.reset(seed=0)[0]
    for t in range(5):
        actions = np.full(3, t, dtype=np.int64)
        envs.step(actions, out={k: v[t] for k, v in rows.items()})
        obs = twin.step(actions)[0]
        assert same(obs, {k: v[t] for k, v in rows.items()})
        assert lazy.step(actions)[0]["image"] is first["image"]
        assert same(obs, first)
    with pytest.raises(ValueError, match="out must hold"):
        envs.step(np.zeros(3, np.int64), out={"vector": rows["vector"][0]})


def test_stats_are_copies() -> None:
    envs = RealmVectorEnv(2)
    envs.reset(seed=0)
    stats = episode_stats(envs.state)
    assert all(not np.shares_memory(v, getattr(envs.state, k, v.copy())) for k, v in stats.items())
