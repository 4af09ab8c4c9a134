"""Environments that misbehave: an episode is thrown away, an environment made again, and no row of it trained on."""

import dataclasses
import itertools
import os
import re
import shutil
from bdb import BdbQuit
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward

from diy.train_workflow import workflow
from realm.contract import ActionSpec, Field, Prediction, Spec, Version, WorkflowContext, chunk_to_arrays
from realm.errors import RunError, UserCodeError
from realm.rollout import rounds as rollout
from realm.rollout.checks import check_action_space, check_envs
from realm.rollout.rounds import RestartingEnvs, rounds
from realm.watch.meters import Meters
from tests.cluster import ROOT, Run

LENGTH, T = 5, 4  # of an episode, of a chunk
SPEC = Spec({"x": Field((2,), "float32")}, ActionSpec(n=2), {"log_prob": Field((), "float32")}, T)
SPACE = spaces.Dict({"x": spaces.Box(-1e9, 1e9, (2,), np.float32)})


class Counter(gymnasium.Env):
    """obs: which of all environments made so far it is, and the step of the episode. `faults`: call -> what it does."""

    observation_space, action_space = SPACE, spaces.Discrete(2)

    def __init__(self, faults, made):
        self.faults, self.calls, self.t, self.closed = faults, 0, 0, False
        self.number = len(made)
        made.append(self)

    def observe(self):
        return {"x": np.array([self.number, self.t], np.float32)}

    def fault(self):
        fault = self.faults.get(self.calls)
        self.calls += 1
        if isinstance(fault, BaseException):
            raise fault
        return fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.fault() or (self.observe(), {})

    def step(self, action):
        self.t += 1
        return self.fault() or (self.observe(), 1.0, self.t == LENGTH, False, {})

    def close(self):
        self.closed = True


class Vector(VectorEnv):
    """E environments that can only be made again together. Call n of `faults` is a step."""

    def __init__(self, num_envs, faults, made):
        self.num_envs, self.faults = num_envs, faults
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = SPACE, spaces.Discrete(2)
        self.observation_space, self.action_space = (
            batch_space(SPACE, num_envs),
            batch_space(spaces.Discrete(2), num_envs),
        )
        self.number, self.calls = len(made), 0
        self.t = np.zeros(num_envs, int)
        self.ended = np.zeros(num_envs, bool)
        made.append(self)

    def observe(self):
        return {"x": np.stack([np.full(self.num_envs, self.number), self.t], 1).astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        self.t[:] = -np.arange(self.num_envs) % 3  # ends fall everywhere
        self.ended[:] = False
        return self.observe(), {}

    def step(self, actions):
        self.t = np.where(self.ended, 0, self.t + 1)
        self.ended = self.t == LENGTH
        fault = self.faults.get(self.calls)
        self.calls += 1
        if isinstance(fault, BaseException):
            raise fault
        none = np.zeros(self.num_envs, bool)
        info = {"episode": {"r": self.t * 1.0}, "_episode": self.ended.copy()}
        return fault or (self.observe(), np.ones(self.num_envs), self.ended.copy(), none, info)


class Policy:
    def predict(self, obs, first, explore=1.0):
        return Prediction(np.zeros(len(first), np.int64), {"log_prob": np.zeros(len(first), np.float32)}, Version(1, 0))


def sync(faults_of, made):
    """faults_of: row -> the faults of each environment made there, one after the other."""
    left = [list(faults) for faults in faults_of]
    return SyncVectorEnv([lambda one=one: Counter(one.pop(0) if one else {}, made) for one in left])


def play(make, count, spec=SPEC, flow=workflow, whole=True):
    """`count` rounds of `make(seed)`, and the meters. Each round has a valid row."""
    meters = Meters()
    envs = RestartingEnvs(make, 7, spec, meters.count)
    context = WorkflowContext(spec, None, 7, 0, 1, meters)
    source = rounds(flow, envs, Policy(), context, whole)
    given = [{name: np.copy(array) for name, array in next(source).items()} for _ in range(count)]
    assert spec.sample or all(items["valid"].any() for items in given)
    return given, meters.totals, meters


def check_rows(given):
    """Every valid row leads to its true successor, and every first row to the beginning of an episode."""
    for items in given:
        x, valid, ends = items["obs.x"], items["valid"], items["terminated"] | items["truncated"]
        now, after = x[:, :-1][valid], x[:, 1:][valid]
        assert (after - now == [0, 1]).all()
        assert np.isfinite(items["reward"]).all()
        assert (ends[valid] == (after[:, 1] == LENGTH)).all()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(rollout, "_PAUSE_S", 0.0)


NAN = float("nan")
OBS = {"x": np.zeros(2, np.float32)}
WRONG = {
    "raises": (OSError("lost"), r"test_rounds\.py:\d+: OSError: lost"),
    "exits": (SystemExit(3), "SystemExit: 3"),
    "nothing": ((None,), r"Counter\.step returned \(None,\); it must be \(observation, reward"),
    "no observation": ((None, 1.0, False, False, {}), r"Counter\.step returned observation None; it must be a dict"),
    "another key": (({"y": 0}, 1.0, False, False, {}), "must be a dict with the keys"),
    "no part": (({"x": None}, 1.0, False, False, {}), r"observation\['x'\] None; it must be float32\[2\]"),
    "shape": (({"x": np.zeros(3, np.float32)}, 1.0, False, False, {}), r"float32\[3\]; it must be float32\[2\]"),
    "dtype": (({"x": np.array(["a", "b"])}, 1.0, False, False, {}), r"<U1\[2\]; it must be float32\[2\]"),
    "NaN": (
        ({"x": np.array([0, NAN], np.float32)}, 1.0, False, False, {}),
        r"NaN or infinity at \[1\]; it must be finite",
    ),
    "no reward": ((OBS, None, False, False, {}), r"Counter\.step returned reward None; it must be a number"),
    "NaN reward": ((OBS, NAN, False, False, {}), r"Counter\.step returned reward nan; it must be finite"),
    "huge reward": (
        (OBS, -1e39, False, False, {}),
        r"Counter\.step returned reward -1e\+39; it must be finite in float32",
    ),
    "no end": ((OBS, 1.0, None, False, {}), r"Counter\.step returned terminated None; it must be True or False"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_one_environment_of_many_is_made_again(kind):
    """It fails in its third step; the others go on with their own episodes."""
    fault, _ = WRONG[kind]
    made = []
    given, totals, _ = play(lambda seed: sync([[], [{3: fault}], []], made), 12)
    assert len(made) == 4
    assert made[1].closed
    assert totals["env_restarts"] == totals["dropped_episodes"] == totals["dropped_chunks"] == 1
    check_rows(given)
    assert not given[0]["valid"][1].any()
    assert given[0]["valid"][[0, 2]].all()
    others = np.concatenate([one["valid"][[0, 2]] for one in given], 1)
    assert (others == (np.arange(12 * T) % (LENGTH + 1) != LENGTH)).all()
    mine = np.concatenate([one["valid"][1] for one in given[1:]])
    assert (mine == (np.arange(12 * T - T) % (LENGTH + 1) != LENGTH)).all()  # its new episode began in row T
    assert given[1]["obs.x"][1, 0].tolist() == [3, 0]


@pytest.mark.parametrize("kind", WRONG)
def test_three_in_a_row_raise_the_last(kind):
    fault, text = WRONG[kind]
    made = []
    with pytest.raises(RunError, match="environment 1 failed 3 times in a row") as caught:
        play(lambda seed: sync([[], [{2: fault}] * 3], made), 12)
    assert re.search(text, str(caught.value)), caught.value
    assert __file__ in str(caught.value)
    if isinstance(fault, BaseException):
        assert caught.value.__cause__ is fault


@pytest.mark.parametrize("way", ["yields", "adds"])
def test_a_failure_is_thrown_away_where_environments_are_handed_on_one_by_one(way):
    def flow(envs, policy, context, numbers=2):
        for chunk in itertools.islice(workflow(envs, policy, context), 6):
            for env in (0, 1):
                one = {name: array[env : env + 1].copy() for name, array in chunk_to_arrays(chunk).items()}
                one["seq"] = numbers * one["seq"] + env * (numbers - 1)
                if way == "yields":
                    yield one
                else:
                    context.add(one)

    taken, meters, made = [], Meters(), []
    envs = RestartingEnvs(lambda seed: sync([[], [{3: ValueError()}]], made), 7, SPEC, meters.count)
    context = WorkflowContext(SPEC, None, 7, 0, 1, meters, add=taken.append)
    parts = [*rounds(flow, envs, Policy(), context), *taken]
    assert meters.totals["dropped_chunks"] == 1
    check_rows(parts)
    assert [(int(one["env"][0]), int(one["seq"][0])) for one in parts[:4]] == [(0, 0), (0, 2), (1, 3), (0, 4)]
    with pytest.raises(UserCodeError, match="workflow gave a round with seq 0 after 0; it must rise with each"):
        [*rounds(partial(flow, numbers=1), envs, Policy(), context)]  # the buffer would take it for a repeat


def test_environments_that_only_look_like_gymnasiums_are_made_again_as_a_whole():
    class Duck:
        metadata, observation_space, action_space, render_mode, spec = {}, SPACE, spaces.Discrete(2), None, None

        def __init__(self, faults, made):
            self.one = Counter(faults, made)

        def reset(self, **options):
            return self.one.reset(**options)

        def step(self, action):
            return self.one.step(action)

        def close(self):
            self.one.close()

    made = []

    def make(seed):
        return SyncVectorEnv([lambda: Duck({3: OSError()} if len(made) < 2 else {}, made)] * 2)

    given, totals, _ = play(make, 6)
    assert totals["env_restarts"] == 1
    check_rows(given)


def test_a_good_episode_in_between_forgives():
    made = []
    faults = {LENGTH + 3: ValueError("again")}  # in the second episode of each
    given, totals, _ = play(lambda seed: sync([[faults] * 100], made), 40)
    assert totals["env_restarts"] >= 10
    assert totals["dropped_episodes"] == totals["env_restarts"]
    check_rows(given)


def test_a_reset_that_fails_is_tried_again():
    made = []
    given, totals, _ = play(lambda seed: sync([[{0: OSError()}, {0: (None, {})}], []], made), 3)
    assert totals["env_restarts"] == 2
    assert "dropped_chunks" not in totals
    check_rows(given)
    assert given[0]["valid"][0].all()
    with pytest.raises(RunError, match=r"environment 0 failed 3 times .*Counter\.reset returned observation None"):
        play(lambda seed: sync([[{0: (None, 3)}] * 3, []], made), 3)


def test_the_episode_counts_in_no_statistic():
    made = []
    _, totals, meters = play(lambda seed: RecordEpisodeStatistics(sync([[{3: ValueError()}], []], made)), 1)
    assert "episodes" not in totals
    _, totals, meters = play(lambda seed: RecordEpisodeStatistics(sync([[{3: ValueError()}], []], made)), 5)
    assert meters.snapshot()[1]["episode/return"][0] == LENGTH * totals["episodes"]


ONES, NONE = np.ones(3), np.zeros(3, bool)
VECTOR = {"x": np.zeros((3, 2), np.float32)}
WHOLE = {
    "no reward": (VECTOR, None, NONE, NONE, {}),
    "all rewards": (VECTOR, ONES * NAN, NONE, NONE, {}),
    "shape": ({"x": np.zeros((3, 3), np.float32)}, ONES, NONE, NONE, {}),
    "dtype": ({"x": np.zeros((3, 2))}, ONES, NONE, NONE, {}),
    "raises": OSError("lost"),
    "exits": SystemExit(1),
    "a panic of Rust": BaseException("index out of bounds"),
}


@pytest.mark.parametrize(
    ("kind", "at"), [*((kind, 2) for kind in WHOLE), *(("no reward", at) for at in range(2 * T + 1))]
)
def test_a_vector_that_cannot_restart_a_row_is_made_again(kind, at):
    """Its rounds without a valid row are never handed on: such a batch would make the weights of most agents NaN."""
    made, seeds = [], []

    def make(seed):
        seeds.append(seed)
        return Vector(3, {} if made else {at: WHOLE[kind]}, made)

    given, totals, meters = play(make, 8)
    assert len(set(seeds)) == len(made) == 2
    assert totals["env_restarts"] == 1
    assert 2 <= totals["dropped_episodes"] <= 3
    spoiled = {at // T, (at + 1) // T}
    assert totals["dropped_chunks"] == 3 * len(spoiled)
    check_rows(given)
    assert [one["seq"][0] for one in given] == [i for i in range(8 + len(spoiled)) if i not in spoiled]
    assert meters.snapshot()[1]["episode/return"][0] == LENGTH * totals["episodes"]


class InPlace(Vector):
    """Writes each observation into the same array. bad: call -> (row, what is wrong there)."""

    def __init__(self, num_envs, bad, made):
        super().__init__(num_envs, {}, made)
        self.bad, self.seen = bad, super().observe()

    def observe(self):
        self.seen["x"][:] = super().observe()["x"]
        return self.seen

    def step(self, actions):
        row, value = self.bad.get(self.calls, (0, None))
        obs, reward, *rest = super().step(actions)
        if value in ("NaN reward", "no reward"):
            reward = np.array(reward, object if value == "no reward" else float)
            reward[row] = None if value == "no reward" else NAN
        elif value:
            obs["x"][row, 1] = value
        return obs, reward, *rest


@pytest.mark.parametrize("value", [NAN, float("inf"), "NaN reward", "no reward"])
@pytest.mark.parametrize("at", range(T))
def test_a_row_of_a_vector_is_lost_alone_until_its_episode_ends(value, at):
    made = []
    given, totals, meters = play(lambda seed: InPlace(3, {at: (1, value)}, made), 8)
    assert len(made) == 1
    assert "env_restarts" not in totals
    check_rows(given)
    # row 1 ends in step 2, so step 3 is its reset, of which the reward does not matter
    lost = [0] if at < 3 else [] if isinstance(value, str) else [0, 1, 2]
    assert totals["dropped_episodes"] == bool(lost)
    assert totals["dropped_chunks"] == len(lost)
    assert [i for i, items in enumerate(given) if not items["valid"][1].any()] == lost
    assert given[0]["valid"][[0, 2]].any(1).all()
    assert meters.snapshot()[1]["episode/return"][0] == LENGTH * totals["episodes"]
    apart, _, _ = play(lambda seed: InPlace(3, {at: (1, value)}, []), 8, whole=False)
    assert [len(items["env"]) for items in apart] == [3 - (i in lost) for i in range(8)]
    check_rows(apart)


def test_a_row_that_stays_bad_has_its_vector_made_again(monkeypatch):
    made = []
    always = dict.fromkeys(range(100), (1, NAN))
    given, totals, _ = play(lambda seed: InPlace(3, {} if made else always, made), 12)
    assert totals["env_restarts"] == 1  # with its second episode
    check_rows(given)
    monkeypatch.setattr(rollout, "_MOST_BAD_STEPS", 3)
    made = []
    given, totals, _ = play(lambda seed: InPlace(3, {} if made else always, made), 12)
    assert totals["env_restarts"] == 1
    check_rows(given)
    with pytest.raises(RunError, match=r"3 environments failed 3 times in a row.*InPlace\.step returned observation"):
        play(lambda seed: InPlace(3, always, []), 12)


class Leaves(gymnasium.Env):
    """Ends its process in a step."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def __init__(self, leaves):
        self.leaves = leaves

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.leaves:
            os._exit(7)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("at", [0, 1])
def test_a_vector_of_processes_is_closed_where_one_has_ended(at, monkeypatch):
    monkeypatch.setattr(rollout, "_CLOSE_S", 0.2)
    envs = AsyncVectorEnv([lambda row=row: Leaves(row == at) for row in range(2)])
    envs.reset()
    with pytest.raises(EOFError):
        envs.step(np.zeros(2, np.int64))
    rollout.close(envs)
    for process in envs.processes:
        process.join(20)
    assert not any(process.is_alive() for process in envs.processes)


def test_a_chunk_of_a_reset_alone_is_no_round():
    """Chunks of one step: in each sixth round all that happens is a reset."""
    spec = dataclasses.replace(SPEC, chunk_length=1)
    given, _, _ = play(lambda seed: sync([[], []], []), 20, spec)
    assert [int(one["seq"][0]) for one in given] == [i for i in range(24) if i % 6 != 5][:20]


def test_an_update_at_once_gets_no_failed_environment():
    def flow(envs, policy, context):
        for chunk in workflow(envs, policy, dataclasses.replace(context, update=None)):
            context.update(chunk_to_arrays(chunk), None)
            yield chunk

    taken, meters = [], Meters()
    envs = RestartingEnvs(lambda seed: sync([[{3: ValueError()}]], []), 7, SPEC, meters.count)
    context = WorkflowContext(SPEC, None, 7, 0, 1, meters, update=lambda items, info: taken.append(items["seq"][0]))
    next(itertools.islice(rounds(flow, envs, Policy(), context), 3, 4))
    assert taken == [1, 2, 3, 4][: len(taken)]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), BdbQuit()], ids=repr)
def test_what_the_user_ends_is_no_failure(fault):
    for make in (lambda made: sync([[{3: fault}]], made), lambda made: Vector(2, {3: fault}, made)):
        made = []
        with pytest.raises(type(fault)):
            play(lambda seed, make=make, made=made: make(made), 9)
        assert len(made) == 1


def test_a_vector_that_always_fails_ends_the_worker():
    made = []
    with pytest.raises(RunError, match=r"the vector of 3 environments failed 3 times in a row.*ValueError: broken"):
        play(lambda seed: Vector(3, {4: ValueError("broken")}, made), 9)
    assert len(made) == 3


@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
def test_a_vector_that_resets_in_the_step_of_an_end_is_refused(name):
    def make(seed):
        envs = Vector(3, {}, [])
        envs.faults = {1: (envs.observe(), ONES, ~NONE, NONE, {name: np.zeros((3, 2))})}
        return envs

    with pytest.raises(RunError, match=r"test_rounds\.py:\d+: Vector\.step gave the last observation of an episode in"):
        play(make, 2)


@pytest.mark.parametrize("metadata", [{}, {"render_modes": []}, None])
def test_a_vector_that_does_not_say_how_it_resets_is_asked(metadata):
    envs = Vector(3, {}, [])
    envs.metadata = metadata
    with pytest.raises(UserCodeError, match=r"Vector, whose metadata does not say how it resets; .*NEXT_STEP"):
        check_envs(envs, 3)
    envs.metadata = {"autoreset_mode": "NextStep"}
    check_envs(envs, 3)


@pytest.mark.parametrize(
    "score", [10**400, 10**5000, "high", None, 1j, [1, 2], object()], ids=lambda value: type(value).__name__
)
def test_a_statistic_that_is_no_number_is_named_with_the_users_class(score):
    class Scored(Counter):
        def step(self, action):
            return self.observe(), 1.0, True, False, {"episode": {"score": score}}

    with pytest.raises(RunError, match=r"test_rounds\.py:\d+: .*Scored\.step returned info\['episode'\]\['score'\]"):
        play(lambda seed: SyncVectorEnv([lambda: Scored({}, [])] * 2), 3)


class Rude(Counter):
    """Changes its action, and NumPy's errors where it is made."""

    def __init__(self, faults, made):
        np.seterr(all="raise")
        super().__init__(faults, made)

    def step(self, action):
        action += 100
        return super().step(0)


def test_what_an_environment_changes_is_not_the_agents():
    """Neither the action that is learned from nor, where one is made again, this process."""
    before, made = np.geterr(), []
    faults = [{3: OSError("lost")}]

    def make(seed):
        with np.errstate():
            envs = SyncVectorEnv([lambda: Rude(faults.pop() if faults else {}, made)])
        envs.action_space = envs.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        envs.action_space = batch_space(envs.single_action_space, 1)
        return envs

    envs, actions = RestartingEnvs(make, 7, SPEC, Meters().count), np.zeros((1, 1), np.float32)
    envs.reset()
    for _ in range(3 * LENGTH):
        envs.step(actions)
    assert actions.tolist() == [[0.0]]
    assert len(made) == 2
    assert np.geterr() == before


def test_numbers_of_an_action_begin_at_zero():
    envs = sync([[]], [])
    envs.single_action_space = spaces.MultiDiscrete([3, 3], start=[1, 1])
    with pytest.raises(UserCodeError, match="it must have numbers of an action space that starts at 0"):
        check_action_space(envs, ActionSpec(nvec=(3, 3)))


def test_workers_refuse_a_vector_of_another_size(monkeypatch):
    """The trial of a start asks for one environment alone."""
    monkeypatch.setattr(rollout, "load_definition", lambda algo: SimpleNamespace(make_envs=lambda *_: sync([[]], [])))
    monkeypatch.setattr(rollout, "hyper_of", lambda config: None)
    config = SimpleNamespace(app=SimpleNamespace(algo="x", log_info=()), env={})
    with pytest.raises(UserCodeError, match="num_envs = 1; it was asked for num_envs = 8"):
        rollout.worker_envs(config, SimpleNamespace(envs_per_worker=8), SPEC, 7, Meters().count)


def test_what_a_workflow_sets_reaches_the_environment():
    made = []
    envs = RestartingEnvs(lambda seed: sync([[], []], made), 7, SPEC, Meters().count)
    envs.unwrapped.set_attr("t", 5)
    assert [one.t for one in made] == [5, 5]
    assert envs.unwrapped.get_attr("t") == (5, 5)


def test_actions_of_any_form_reach_the_environments():
    given = []
    envs = RestartingEnvs(lambda seed: Vector(2, {}, []), 7, SPEC, Meters().count)
    envs.reset()
    step = envs.env.step
    envs.env.step = lambda actions: given.append(actions) or step(actions)
    action = {"a": np.zeros(2), "b": (np.ones((2, 3)), [1, 2])}
    envs.step(action)
    assert repr(given[0]) == repr(action)
    assert given[0]["a"] is not action["a"]


@pytest.mark.parametrize("value", [np.array([1, 300], np.uint16), np.array([2**9, 0], np.uint32)])
def test_a_whole_number_that_does_not_fit_is_named(value):
    class Small(Counter):
        observation_space = spaces.Dict({"x": spaces.Box(0, 255, (2,), np.uint8)})

        def observe(self):
            return {"x": value}

    with pytest.raises(RunError, match=r"Small\.reset returned observation\['x'\] \[.*; it must fit into uint8"):
        play(lambda seed: SyncVectorEnv([lambda: Small({}, [])] * 2), 1)


def test_a_whole_number_in_a_box_of_floats_is_rounded_as_ever():
    class Rounded(Counter):
        def observe(self):
            return {"x": np.array([16777217, self.t])}

    play(lambda seed: SyncVectorEnv([lambda: Rounded({}, [])] * 2), 1)


class OldReset(Counter):
    def reset(self):
        return self.observe()


class OldSeed(Counter):
    def reset(self, seed=None):
        return self.observe(), {}


class OldStep(Counter):
    def step(self, action):
        return self.observe(), 1.0, False, {}


class OldObs(Counter):
    def reset(self, *, seed=None, options=None):
        return self.observe()["x"]


class Lengths(Counter):
    def step(self, action):
        return self.observe(), 1.0, False, False, {"path": np.zeros(2 + self.number)}


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (OldReset, r"OldReset\.reset is written for gym before 0\.26 .*; it must have reset\(self"),
        (OldSeed, r"OldSeed\.reset is written for gym before 0\.26"),
        (OldStep, r"OldStep\.step is written for gym before 0\.26 .*expected 5, got 4"),
        (OldObs, r"OldObs\.reset returned float32\[2\]; it must be \(observation, info\)"),
        (Lengths, r"Lengths\.step: ValueError: could not broadcast"),
    ],
)
def test_the_users_class_is_named_where_gymnasium_raises(cls, text):
    """Not gymnasium's own file, nor that of Realm's wrappers around it."""

    made = []

    def make(seed):
        envs = SyncVectorEnv([lambda: TimeLimit(OrderEnforcing(cls({}, made)), 99)] * 2)
        return TransformReward(envs, lambda reward: reward)

    with pytest.raises(RunError, match=rf"{__file__}:\d+: {text}") as caught:
        play(make, 3)
    assert "realm/" not in str(caught.value)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (None, "info None; it must be a dict"),
        ({"_episode": np.ones(3, bool)}, r"info\['episode'\] None; it must be a dict"),
        (
            {"_episode": np.ones(3, bool), "episode": {"score": None}},
            r"info\['episode'\]\['score'\] None; it must be numbers",
        ),
        (
            {"_episode": np.ones(3, bool), "episode": {"score": np.array([1, None, 2])}},
            r"info\['episode'\]\['score'\] object\[3\]",
        ),
    ],
)
def test_statistics_that_are_none_name_the_environment(info, text):
    def make(seed):
        envs = Vector(3, {}, [])
        none = np.zeros(3, bool)
        envs.faults = {0: (envs.observe(), np.ones(3), none, none, info)}
        return envs

    with pytest.raises(RunError, match=rf"test_rounds\.py:\d+: Vector\.step returned {text}"):
        play(make, 2)


def test_a_spec_of_other_shapes_names_the_class_inside_of_many():
    other = dataclasses.replace(SPEC, obs={"x": Field((3,), "float32")})
    with pytest.raises(RunError, match=r"test_rounds\.py:\d+: Counter\.reset: spec and environment differ"):
        play(lambda seed: sync([[], []], []), 1, other)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "yielded None; it must be a Chunk"),
        ({}, r"yielded \{\}; it"),
        ({"worker": np.zeros(2, np.int64)}, "missing"),
    ],
)
def test_a_workflow_that_yields_something_else(given, text):
    def flow(envs, policy, context):
        yield given

    with pytest.raises(UserCodeError, match=rf"test_rounds\.py:\d+: workflow {text if 'yield' in text else ''}"):
        play(lambda seed: Vector(2, {}, []), 1, flow=flow)


def test_items_without_valid_rows_go_with_their_round():
    fields = {"worker": Field((), "int64"), "incarnation": Field((), "int64"), "env": Field((), "int64")}
    fields |= {"seq": Field((), "int64"), "version": Field((2,), "int64")}
    spec = Spec(SPEC.obs, SPEC.action, SPEC.extra, 1, fields)

    def flow(envs, policy, context):
        envs.reset()
        for seq in range(100):
            envs.step(np.zeros(2, np.int64))
            items = {name: np.zeros((2, *one.shape), np.int64) for name, one in fields.items()}
            yield {**items, "env": np.arange(2), "seq": np.full(2, seq)}

    made = []
    given, totals, _ = play(lambda seed: sync([[], [{3: ValueError()}]], made), 6, spec, flow)
    assert [one["seq"][0] for one in given] == [0, 1, 3, 4, 5, 6]
    assert totals["dropped_chunks"] == 2


FAILING = """
import os
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from realm.contract import ActionSpec, Field, Spec


class Shaky(gymnasium.Env):
    observation_space = spaces.Dict({"count": spaces.Box(0, 2**40, (3,), np.int64)})
    action_space = spaces.Discrete(1000)
    def __init__(self, row):
        self.row, self.t = row, 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return {"count": np.zeros(3, np.int64)}, {}
    def step(self, action):
        self.t += 1
        if self.row == ROW and WHEN:
            return {"count": np.zeros(3, np.int64)}, None, False, False, {}
        return {"count": np.full(3, self.t)}, 1.0, self.t == 9, False, {}
    def close(self):
        if self.row == 2:
            open("closed", "w").close()
            raise OSError("closing failed")


def make_envs(num_envs, seed, config, options):
    Shaky.count = num_envs  # 1 where the package is tried
    return SyncVectorEnv([lambda row=row: Shaky(row) for row in range(num_envs)])


def spec(envs, config):
    return Spec({"count": Field((3,), "int64")}, ActionSpec(n=1000), {"echo": Field((), "int64")}, config.chunk_length)
"""


AGENT = """
import numpy as np
import torch

class Agent:
    def __init__(self, spec, config, device, seed):
        self.model = torch.nn.Linear(1, 1)
    def predict(self, obs, context):
        return obs["count"][:, 0], {"echo": obs["count"][:, 0].copy()}
    def learn(self, batch, info):
        count = batch.obs["count"][..., 0]
        assert batch.valid.any()
        assert (count[:, 1:] == count[:, :-1] + 1)[batch.valid].all(), (count, batch.valid)
        return {}, None
    def save_model(self):
        return {}
    def load_model(self, state):
        pass
"""


def shaky(tmp_path, when, *settings, row="1"):
    """A run whose environment `row` of each worker returns the reward None when it says so."""
    package = tmp_path / "shaky"
    shutil.copytree(ROOT / "tests" / "counting", package)
    (package / "feature" / "definition.py").write_text(FAILING.replace("ROW", row).replace("WHEN", when))
    (package / "algorithm" / "agent.py").write_text(AGENT)
    config = tmp_path / "shaky.toml"
    config.write_text((ROOT / "tests/counting/counting.toml").read_text().replace("counting]", "shaky]"))
    config.write_text(config.read_text().replace("tests.counting", "shaky"))
    return Run(tmp_path, "aisrv_count=1", *settings, config=str(config), cwd=tmp_path)


FILE = "f'failed{self.row}'"
ONCE = f"self.count > 1 and self.t == 5 and not os.path.exists({FILE}) and not open({FILE}, 'w').close()"
MODES = {
    "one process": ["wrapper_type=local"],
    "cluster": ["buffer_backend=native", "max_version_lag=0"],
}


@pytest.mark.system
@pytest.mark.parametrize("mode", ["one process", pytest.param("cluster", marks=pytest.mark.slow)])
def test_a_run_goes_on_after_a_failure(tmp_path, mode):
    """In the cluster all environments of the only worker fail in one round, which is a batch."""
    count, row = (1, "1") if mode == "one process" else (6, "self.row")
    with shaky(tmp_path, ONCE, "max_env_steps=3000", *MODES[mode], row=row) as run:
        assert run.finish() == 0, run.text()
        text = run.text()
        assert (tmp_path / "closed").exists()
        assert "closing an environment: OSError: closing failed" in text, text
        assert "Shaky.step returned reward None; it must be a number" in text, text
        assert f"made again {count} times; {count} episodes and {count} chunks were thrown away" in text, text
        if mode == "cluster":
            names = ("env_restarts", "dropped_episodes", "dropped_chunks")
            assert run.summary()["environments"] == {**dict.fromkeys(names, 6), "cleared_memories": 0}
            assert [name for name in run.summary()["processes"] if name.startswith("aisrv")] == ["aisrv-0.1"]
            # the terminal says it, too, and once
            assert len(re.findall(r"WARNING aisrv-0: .* reward None; it must be a number", run.output.read_text())) == 1


@pytest.mark.system
@pytest.mark.parametrize("mode", ["one process", pytest.param("cluster", marks=pytest.mark.slow)])
def test_a_run_with_a_broken_environment_ends_with_its_name(tmp_path, mode):
    with shaky(tmp_path, "self.t == 5", *MODES[mode]) as run:
        assert run.finish() == 1, run.text()
        text = run.output.read_text()
        place = f"{tmp_path}/shaky/feature/definition.py"
        assert re.search(rf"environment 1 failed 3 times .*: {place}:\d+: Shaky.step returned reward None", text)
        assert run.processes() == []


@pytest.mark.system
def test_an_environment_that_is_wrong_at_once_is_the_users_error(tmp_path):
    with shaky(tmp_path, "True", "wrapper_type=local", row="0") as run:
        assert run.finish() == 2, run.text()
        last = run.output.read_text().splitlines()[-1]
        place = f"{tmp_path}/shaky/feature/definition.py"
        assert re.fullmatch(
            rf"error: {place}:\d+: Shaky.step returned reward None; it must be a number",
            last,
        )


class Shop(Counter):
    """Tells in `info` what it has sold, and a word; a customer only in an episode's last step."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        last = {"customers": np.int64(7)} if terminated else {}
        return obs, reward, terminated, truncated, {"sold": 2 * self.t, "word": "x", "nan": NAN, **last}


class Shops(Vector):
    """The same as a vector of its own, which says of `sold` not whose it is, since all tell it."""

    def step(self, actions):
        *step, info = super().step(actions)
        told = {"customers": (self.ended * 7, self.ended)}
        told["word"] = np.full(self.num_envs, "x", object), self.ended | True
        told["nan"] = np.full(self.num_envs, NAN), self.ended | True
        for name, (values, mask) in told.items():
            info |= {name: values, f"_{name}": mask}
        return *step, info | {"sold": 2 * self.t, "of nobody": np.zeros(1), "text": "x"}


@pytest.mark.parametrize(
    "vector", [lambda: RecordEpisodeStatistics(SyncVectorEnv([lambda: Shop({}, [])] * 3)), lambda: Shops(3, {}, [])]
)
def test_keys_of_info_become_statistics_of_each_episode(vector, logged):
    meters = Meters()
    envs = RestartingEnvs(
        lambda seed: vector(), 7, SPEC, meters.count,
        log_info=("sold", "customers", "word", "nan", "missing"),
    )  # fmt: skip
    envs.reset(seed=0)
    for _ in range(2 * (LENGTH + 1)):
        meters.episodes(envs.step(np.zeros(3, np.int64))[4])
    envs.close()
    _, means = meters.snapshot()
    told = {name: [amount / count, count] for name, (amount, count) in means.items()}
    episodes = told["episode/return"][1]
    assert episodes >= 6
    assert told["episode/sold"] == [2 * LENGTH, episodes]
    assert told["episode/customers"] == [7, episodes]
    assert told["episode/word"] == told["episode/nan"] == told["episode/missing"] == [0, episodes]
    assert logged == [
        f"WARNING log_info: {what}; it counts as 0 at this episode's end"
        for what in (
            "'word' is no number",
            "'nan' is no number",
            "'missing' is missing; info has customers, nan, sold, word",
        )
    ]
