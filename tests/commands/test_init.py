"""`realm init`: every kind of space becomes numbers that a package trains on; refusals; a package that trains."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from realm.commands.init import _MATTER, _name_of
from realm.commands.main import main
from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config
from realm.contract import (
    ActionSpec,
    Array,
    SampleInfo,
    Version,
    WorkflowContext,
    arrays_to_chunk,
    arrays_to_transitions,
)
from realm.data.memory import ReplayMemory
from realm.errors import ConfigError, ContractError, UserCodeError
from realm.launch.smoke_test import try_user_code
from realm.learn.results import newest_model
from realm.policy.local_policy import LocalPolicy
from realm.rollout.rounds import RestartingEnvs, rounds
from realm.user import load_agent, load_config_class, load_definition, load_hyper, load_workflow
from realm.watch.meters import Meters
from realm.zoo.gym import action_spec, make_vec, obs_fields, step_fields
from tests.cluster import ROOT
from tests.console import end, realm, start
from tests.corridor import complete
from tests.odd import Odd, registered

FLOATS = spaces.Box(-1, 1, (3,), np.float64)


def made(obs: spaces.Space[Any], action: spaces.Space[Any]) -> Any:
    return make_vec(2, {"id": registered(obs, action)}, "")


def hot(counts: list[int], chosen: Any) -> list[float]:
    return [float(i == value) for count, value in zip(counts, chosen, strict=True) for i in range(count)]


OBSERVATIONS: list[tuple[spaces.Space[Any], Any]] = [
    (FLOATS, lambda x: {"state": x.astype(np.float32)}),
    (spaces.Discrete(4, start=1), lambda x: {"state": hot([4], [x - 1])}),
    (spaces.MultiDiscrete([2, 3]), lambda x: {"state": hot([2, 3], x)}),
    (spaces.MultiBinary(4), lambda x: {"state": x}),
    (spaces.Box(-1, 1, (), np.float32), lambda x: {"state": np.asarray([x])}),
    (spaces.Box(0, 255, (40, 44, 3), np.uint8), lambda x: {"state": x}),
    (spaces.Box(0, 255, (4, 40, 44), np.uint8), lambda x: {"state": np.moveaxis(x, 0, -1)}),
    (spaces.Box(0, 255, (40, 44), np.uint8), lambda x: {"state": x[:, :, None]}),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), lambda x: {"state": x}),
    (
        spaces.Dict({"a": FLOATS, "b": spaces.Dict({"c": spaces.Discrete(3)})}),
        lambda x: {"a": x["a"].astype(np.float32), "b.c": hot([3], [x["b"]["c"]])},
    ),
    *(
        (
            spaces.Dict({"a": spaces.Discrete(2), key: mask}),
            lambda x, key=key: {"a": hot([2], [x["a"]]), "legal": x[key] > 0},
        )
        for key, mask in (
            ("legal", spaces.MultiBinary(2)),
            ("action_mask", spaces.MultiBinary(2)),
            ("action_mask", spaces.Box(0, 1, (2,), np.float32)),
            ("action_mask", spaces.MultiDiscrete([2, 2])),
        )
    ),
    (
        spaces.Tuple((FLOATS, spaces.Dict({"a/b": spaces.Discrete(3, start=-1)}))),
        lambda x: {"0": x[0].astype(np.float32), "1.a/b": hot([3], [x[1]["a/b"] + 1])},
    ),
    (
        spaces.Dict({1: FLOATS, "größe": spaces.MultiDiscrete(np.array([[2, 3], [1, 2]])), "": spaces.MultiBinary(2)}),
        lambda x: {
            "1": x[1].astype(np.float32),
            "größe": hot([2, 3, 1, 2], x["größe"].reshape(-1)),
            "state": x[""],
        },
    ),
    (spaces.Box(0, 60_000, (3,), np.uint16), lambda x: {"state": x.astype(np.float32)}),
]


@pytest.mark.parametrize(("space", "wanted"), OBSERVATIONS, ids=[str(space)[:30] for space, _ in OBSERVATIONS])
def test_observations_become_numbers(space: spaces.Space[Any], wanted: Any) -> None:
    envs = made(space, spaces.Discrete(2))
    inner, fields = envs.unwrapped.envs, obs_fields(envs)
    obs, _ = envs.reset(seed=1)
    for _ in range(8):
        for e, env in enumerate(inner):
            literal = wanted(env.unwrapped.seen[-1])
            assert obs.keys() == literal.keys() == fields.keys()
            for name, value in literal.items():
                array = obs[name][e]
                assert (array.shape, str(array.dtype)) == (fields[name].shape, fields[name].dtype)
                assert np.array_equal(array, value)
        assert envs.observation_space.contains(obs)
        obs = envs.step(envs.action_space.sample())[0]


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), ActionSpec(n=3)),
        (spaces.Discrete(3, start=-1), ActionSpec(n=3)),
        (spaces.MultiDiscrete([2, 3]), ActionSpec(nvec=(2, 3))),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), ActionSpec(nvec=(2, 3))),
        (spaces.MultiDiscrete([3]), ActionSpec(n=3)),
        (spaces.MultiBinary(30), ActionSpec(nvec=(2,) * 30)),
        (spaces.Discrete(3, start=5, dtype=np.int8), ActionSpec(n=3)),
        (spaces.MultiDiscrete(np.array([[2, 3], [1, 2]])), ActionSpec(nvec=(2, 3, 1, 2))),
        (spaces.Box(-1, 1, (2,), np.int8), ActionSpec(nvec=(3, 3))),
        (spaces.Box(250, 255, (), np.uint8), ActionSpec(n=6)),
        (spaces.Box(0, 1, (3,), np.bool_), ActionSpec(nvec=(2, 2, 2))),  # type: ignore[arg-type]  # stubs of numbers
        (spaces.Box(-2, 3, (2,)), ActionSpec(low=(-2.0, -2.0), high=(3.0, 3.0))),
        (spaces.Box(-2, 3, (2, 1)), ActionSpec(low=(-2.0, -2.0), high=(3.0, 3.0))),
        (spaces.Box(np.float32([0, 7, 1]), np.float32([1, 7, 3])), ActionSpec(low=(0.0, 1.0), high=(1.0, 3.0))),
        (spaces.Box(np.float16([0.7, 0.1]), np.float16([0.9, 0.3]), dtype=np.float16), None),
        (spaces.Box(np.array([0.7, 1]), np.array([0.9, 1 + 1e-12]), dtype=np.float64), None),
    ],
    ids=str,
)
def test_actions_are_of_the_environments_space(space: spaces.Space[Any], action: ActionSpec | None) -> None:
    envs = made(FLOATS, space)
    own = action_spec(envs)
    assert action in (own, None)
    envs.reset(seed=1)
    for number in range(24):  # the environment itself checks them
        if own.low:
            bound = (np.float32(own.low), np.float32(own.high))[number % 2]
            envs.step(np.stack([bound, envs.action_space.sample()[1]]))
        else:
            envs.step(np.full(2, number % own.n) if own.n else np.tile(number % np.array(own.nvec), (2, 1)))


def test_several_numbers_are_one_where_it_is_asked_for_or_the_mask_has_one_for_each_combination() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[1, -1])
    masked = {numbers: spaces.Dict({"a": FLOATS, "action_mask": spaces.MultiBinary(numbers)}) for numbers in (5, 6)}
    envs = make_vec(2, {"id": registered(FLOATS, space)}, "", joint=True)
    assert action_spec(envs) == action_spec(made(masked[6], space)) == ActionSpec(n=6)
    assert action_spec(made(masked[5], space)) == ActionSpec(nvec=(2, 3))
    assert action_spec(made(FLOATS, space), spaces.Discrete) == ActionSpec(n=6)
    envs.reset(seed=1)
    for number in range(6):  # the environment itself checks them
        envs.step(np.full(2, number))


class Methodical(gymnasium.Env):
    """Says the legal actions by a method, as sb3-contrib has it: all but the step's; each step is worth -30."""

    action_space = spaces.Discrete(3)

    def __init__(self, nested: bool = False) -> None:
        self.nested = nested
        self.observation_space = spaces.Dict({"a": FLOATS}) if nested else FLOATS

    def action_masks(self) -> Array:
        return np.arange(3) != self.steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.look(), -30.0, self.steps == 2, False, {}

    def look(self) -> Any:
        seen = np.zeros(FLOATS.shape, np.float32)
        return {"a": seen} if self.nested else seen


gymnasium.register("Methodical-v0", Methodical)


def test_a_method_action_masks_of_several_numbers_has_their_choices_side_by_side() -> None:
    spaces_ = spaces.MultiDiscrete([1, 2]), spaces.MultiBinary(1), spaces.Box(0, 2, (1,), np.int64)
    shapes = []
    for number, space in enumerate(spaces_):
        gymnasium.register(f"Methods-v{number}", type("Methods", (Methodical,), {"action_space": space}))
        shapes.append(make_vec(1, {"id": f"Methods-v{number}"}, "").single_observation_space["legal"].shape)
    assert shapes == [(3,), (2,), (3,)]


@pytest.mark.parametrize("nested", [False, True])
def test_a_method_action_masks_is_the_mask(nested: bool) -> None:
    envs = make_vec(2, {"id": "Methodical-v0", "nested": nested}, "")
    assert set(envs.single_observation_space.spaces) == {"a" if nested else "state", "legal"}
    obs, _ = envs.reset(seed=0)
    for step in range(2):
        assert obs["legal"].tolist() == [[number != step for number in range(3)]] * 2
        obs = envs.step(np.zeros(2, np.int64))[0]


def test_what_an_environment_has_by_chance_is_not_asked_for() -> None:
    envs = make_vec(1, {"id": "Methodical-v0"}, "")
    one = envs.unwrapped.envs[0].unwrapped  # type: ignore[attr-defined]
    one.duration = 200
    assert step_fields(envs) == {}
    one.metadata = {"realm": ["duration"]}
    assert list(step_fields(envs)) == ["discount"]
    del one.duration
    with pytest.raises(ConfigError, match="metadata names 'duration'"):
        step_fields(envs)
    for ones in ([object()], [], {"a": 1}):  # simulators of a vector of one's own
        envs.unwrapped.__class__ = type("Own", (gymnasium.vector.VectorEnv,), {"envs": ones})
        assert step_fields(envs) == {}


def test_an_environment_that_cannot_be_made_is_not_said_to_be_unknown() -> None:
    def fails() -> None:
        raise gymnasium.error.Error("my simulator has no licence")

    gymnasium.register("Fails-v0", fails)
    gymnasium.register("Vectors-v0", vector_entry_point=fails)
    for name, says in (("Fails-v0", "my simulator has no licence"), ("Vectors-v0", ".* entry_point is not specified")):
        with pytest.raises(ConfigError, match=rf"^\[env\] id is '{__name__}:{name}': {says}$"):
            make_vec(1, {"id": f"{__name__}:{name}"}, "")
    with pytest.raises(ConfigError, match=rf"doesn't exist.*; .*{Path(__file__).name} registers none of this name"):
        make_vec(1, {"id": f"{__name__}:Unknown-v0"}, "")


def test_rewards_are_scaled_and_clipped_but_episodes_report_their_own() -> None:
    envs = make_vec(1, {"id": "Methodical-v0", "reward_scale": 0.1, "clip_reward": 2}, "")
    envs.reset(seed=0)
    rewards, infos = zip(*[envs.step(np.zeros(1, np.int64))[1::3] for _ in range(2)], strict=True)
    assert [float(reward[0]) for reward in rewards] == [-2.0, -2.0]
    assert infos[1]["episode"]["r"][0] == -60
    envs = make_vec(1, {"id": "Methodical-v0", "reward_scale": 0.1}, "")
    envs.reset(seed=0)
    assert float(envs.step(np.zeros(1, np.int64))[1][0]) == pytest.approx(-3.0)


def test_spaces_that_cannot_be_are_refused() -> None:
    choice = spaces.Discrete(2)
    for obs in (spaces.Text(3), spaces.Dict({"a": spaces.Sequence(FLOATS)}), spaces.Box(0, 1, (0,))):
        with pytest.raises(ConfigError, match=r"observation space is or has .*it must be a Box, Discrete"):
            made(obs, choice)
    greatest = float(np.finfo(np.float32).max)
    for space in (
        *(spaces.Dict({"a": FLOATS}), spaces.Tuple((choice, choice)), spaces.Box(-np.inf, np.inf, (2,))),
        *(spaces.Box(0, np.inf, (2,)), spaces.Box(-greatest, greatest, (1, 1)), spaces.Box(0, 1, (0,))),
    ):
        with pytest.raises(ConfigError, match=r"the action space is .*it must be Discrete"):
            action_spec(made(FLOATS, space))
    for space in (spaces.MultiBinary(13), spaces.Box(0, 255, (3,), np.uint8)):
        with pytest.raises(ConfigError, match=r"has (8192|16777216) combinations, .*; it must have 1 to 4096"):
            make_vec(2, {"id": registered(FLOATS, space)}, "", joint=True)
    for space in (spaces.MultiBinary(2049), spaces.Box(0, 2**31 - 2, (2,), np.int32), spaces.Discrete(5000, start=1)):
        with pytest.raises(ConfigError, match=r"has (4098|4294967294|5000) choices; it must have 1 to 4096"):
            made(FLOATS, space)
    with pytest.raises(ConfigError, match="which leaves no choice"):
        made(FLOATS, spaces.Box(1, 1, (2,)))
    for key, space in (("legal", choice), ("action_mask", choice), ("action_mask", spaces.Box(0, 1, (3,)))):
        with pytest.raises(ConfigError, match=rf"observation '{key}' is .*give it another name"):
            made(spaces.Dict({"a": FLOATS, key: spaces.MultiBinary(3)}), space)
    with pytest.raises(ConfigError, match="it must have more than a mask"):
        made(spaces.Dict({"action_mask": spaces.MultiBinary(2)}), choice)
    for keys in (("a.b", "a"), ("state", "")):
        with pytest.raises(ConfigError, match=r"would both be called '.*'; rename one of these keys"):
            made(spaces.Dict({keys[0]: FLOATS, keys[1]: spaces.Dict({"b": FLOATS}) if keys[1] else FLOATS}), choice)


def test_the_wrappers_of_the_page() -> None:
    kinds = {"Unbounded": spaces.Box(-np.inf, np.inf, (2,)), "Pairs": spaces.Tuple(map(spaces.Discrete, (3, 2)))}
    for name, space in kinds.items():
        own = {"obs": FLOATS, "action": space}
        gymnasium.register(f"{name}-v0", entry_point=Odd, kwargs=own, disable_env_checker=True)
    exec((ROOT / "docs" / "your-own.md").read_text().split("# wrapped.py")[1].partition("```")[0], {})
    for name, action in (("Bounded", np.array([[4.5, -5]], np.float32)), ("Flat", np.array([[2, 1]]))):
        envs = make_vec(1, {"id": f"{name}-v0"}, "")
        envs.reset(seed=0)
        assert envs.step(action)[1].tolist() == [1.0]


@pytest.mark.parametrize(
    ("space", "given", "text"),
    [
        (spaces.Discrete(5), -1, "observation -1; it must be of Discrete(5)"),
        (spaces.Dict({"a": spaces.Tuple((spaces.MultiDiscrete([2, 3]),))}), {"a": (np.array([1, 3]),)},
         "observation['a'][0] [1, 3]; it must be of MultiDiscrete([2 3])"),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), "observation [0, 2]; it must be of MultiBinary(2)"),
    ],
)  # fmt: skip
def test_an_observation_outside_its_space_is_named(space: spaces.Space[Any], given: Any, text: str) -> None:
    algo, env = "realm.zoo.ppo", registered(space, spaces.Discrete(2), given)
    with pytest.raises(UserCodeError, match=re.escape(f"Odd.reset returned {text}")):
        try_user_code(RunConfig(AppConfig(algo=algo), {"id": env}, {}, {}), load_config_class(algo)())
    if not isinstance(space, spaces.MultiBinary):
        with pytest.raises(ContractError, match=r"the observation '.*' of Odd.*-v0 is .*, which is not of"):
            make_vec(1, {"id": env}, "").reset()


MASKS = {"a": FLOATS, "action_mask": spaces.MultiBinary(3)}


LEGAL = spaces.Box(np.eye(6, dtype=np.int8)[0], np.ones(6, np.int8), dtype=np.int8)
MASKED = spaces.Dict({"a": FLOATS, "legal": LEGAL})
FINAL = spaces.Dict({"a": FLOATS, "legal": spaces.Box(0, 0, (6,), np.int8)})  # nothing is legal, as at an episode's end
IMAGE = spaces.Box(0, 255, (40, 44, 3), np.uint8)
PICTURED = spaces.Dict({"seen": IMAGE, "b": spaces.Dict({"c": spaces.Discrete(3)})})
FLAT = spaces.Box(-1, 1, (), np.float32)
JOINT, BOX = spaces.MultiDiscrete([2, 3]), spaces.Box(-2, 3, (2,))
EACH = spaces.Box(np.int8([0, 1, 1, 0, 0]), np.ones(5, np.int8), dtype=np.int8)  # a mask of each number's choices
TRAINED: list[tuple[str, spaces.Space[Any], spaces.Space[Any], dict[str, Any]]] = [
    ("ppo", MASKED, JOINT, {}),
    ("ppo", PICTURED, BOX, {}),
    ("ppo", spaces.Dict({"a": FLOATS, "action_mask": LEGAL}), JOINT, {}),
    ("ppo", FINAL, JOINT, {}),
    ("ppo", spaces.Dict({"a": FLOATS, "legal": EACH}), JOINT, {}),
    ("ppo", FLOATS, spaces.MultiBinary((2, 4)), {}),
    ("dqn", FINAL, JOINT, {}),
    ("dqn", MASKED, JOINT, {}),
    ("dqn", MASKED, JOINT, {"frames": 3, "double": True}),
    ("dqn", PICTURED, spaces.Discrete(3), {"frames": 2}),
    ("dqn", FLAT, spaces.Discrete(3), {"frames": 2, "noisy": True}),
    ("td3", PICTURED, BOX, {}),
    ("sac", spaces.Dict({"a": FLAT, "seen": IMAGE}), BOX, {}),
]


@pytest.mark.parametrize(("package", "obs", "action", "options"), TRAINED)
def test_a_package_plays_and_trains_on(
    package: str, obs: spaces.Space[Any], action: spaces.Space[Any], options: dict[str, Any]
) -> None:
    """Its own workflow, agent and rows; illegal actions are played by nobody."""
    algo = f"realm.zoo.{package}"
    config = load_config_class(algo)(hidden=8, minibatch_size=16, chunk_length=6, **options)
    definition = load_definition(algo)
    envs = definition.make_envs(2, 0, config, {"id": registered(obs, action)})
    spec = definition.spec(envs, config)
    agent = load_agent(algo)(spec, config, "cpu", 0)
    policy = LocalPolicy(agent, spec, 2, lambda: (Version(1, 0), 10**6, 0))
    context = WorkflowContext(spec, config, 0, 0, 1, Meters())
    restarting = RestartingEnvs(lambda seed: envs, 0, spec, lambda name, amount: None, most=1)
    going = itertools.islice(rounds(load_workflow(algo), restarting, policy, context), 6)
    played = [{name: array.copy() for name, array in items.items()} for items in going]
    for items in played:
        if "obs.legal" in items:
            mask = items["obs.legal"][:, :-1]
            assert (allowed(mask, items["action"]) | ~items["valid"] | ~mask.any(-1)).all()
            assert not mask.all()
    if spec.draw:
        memory = ReplayMemory(spec, 1000, False, 1.0, 0)
        for items in played:
            memory.add(items)
        rows, info = memory.sample(32)
        metrics, _ = complete(agent.learn(arrays_to_transitions(rows), info))
    else:
        whole = {name: np.concatenate([items[name] for items in played]) for name in played[0]}
        for batch in (whole, {name: array[:1] for name, array in whole.items()}):
            ones = np.ones(len(batch["worker"]))
            info = SampleInfo(ones.astype(np.uint64), ones, ones.astype(np.int64))
            metrics, _ = complete(agent.learn(arrays_to_chunk(batch), info))
    assert metrics
    assert np.isfinite(list(metrics.values())).all()
    if not spec.state:
        seen = {name: torch.from_numpy(played[0][f"obs.{name}"][:, 0]) for name in spec.obs}
        best = agent.greedy(seen)["action"].detach().numpy()
        assert "legal" not in seen or obs is FINAL or allowed(seen["legal"].numpy(), best).all()


def allowed(mask: Array, action: Array) -> Array:
    """mask: bool [..., choices]; action: i64 [...], or [..., 2] for JOINT, whose masks are side by side. bool [...]"""
    if action.ndim < mask.ndim:
        action = action[..., None]
    return np.take_along_axis(mask, action + ([0, 2] if action.shape[-1] == 2 else [0]), -1).all(-1)


# ---- the command ----

MODULE = '''
import sys
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Pick(gymnasium.Env):
    """Name the number that is shown."""

    observation_space, action_space = spaces.Dict({"shown": spaces.Discrete(3)}), spaces.MultiBinary(2)

    def __init__(self):
        threading.Thread(target=time.sleep, args=(10**6,)).start()  # as the client of a simulator does

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.shown = 0, self.np_random.integers(3)
        return {"shown": self.shown}, {}

    def step(self, action):
        reward = float(action[0] * 2 + action[1] == self.shown)
        self.steps, self.shown = self.steps + 1, self.np_random.integers(3)
        if "torch" in sys.modules:  # as simulators that play with a network do
            sys.modules["torch"].set_grad_enabled(False)
        return {"shown": self.shown}, reward, False, self.steps == 10, {}


gymnasium.register("Pick-v0", entry_point=Pick)
'''


@pytest.mark.parametrize(
    ("package", "env"),
    [("ppo", "CartPole-v1"), ("ppo", "Taxi-v4"), ("dqn", "Taxi-v4"), ("td3", "Pendulum-v1"), ("sac", "Pendulum-v1")],
)
def test_init_names_the_environment_and_shows_the_keys_that_matter(
    package: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"my_{package}_{env[:4].lower()}"
    assert main(["init", name, "--env", env, "--from", package]) == 0
    assert f'make_vec(num_envs, options, "{env}"' in (tmp_path / name / "feature" / "definition.py").read_text()
    text = (tmp_path / f"{name}.toml").read_text()
    head, own = text.split(f"[{name}]\n")
    own = re.sub("^# ", "", own, flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(f"{head}[{name}]\n{own}")
    given, shown = (load_config(file).hyper for file in (f"{name}.toml", "all.toml"))
    assert shown.keys() >= set(_MATTER[package])
    assert load_hyper(f"realm.zoo.{package}", shown) == load_hyper(f"realm.zoo.{package}", given), (
        "they are the defaults"
    )
    assert all(re.search(rf"^#? ?{key} = \S+ +# \w+", text, re.MULTILINE) for key in _MATTER[package])


def test_init_says_what_to_do_with_a_mask_in_info(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_odd", "--env", registered(FLOATS, spaces.Discrete(3))]) == 0
    assert "tells the legal actions in info['action_mask'], which nothing reads" in capsys.readouterr().out


def test_init_outlives_what_only_now_and_then_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, reset = list[Odd](), Odd.reset

    def fails_in_the_second(self: Odd, **given: Any) -> Any:
        made.append(self)
        if self is not made[0]:
            raise SystemExit("lost the connection")
        return reset(self, **given)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Odd, "reset", fails_in_the_second)
    assert main(["init", "my_failing", "--env", registered(FLOATS, spaces.Discrete(3))]) == 0
    assert len({id(one) for one in made}) == 2


def test_an_environment_that_has_settings_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(list((ROOT / "conf" / "ppo").iterdir()))
    assert re.search(r"^Pendulum-v1 +100,000 env steps +conf/ppo/pendulum\.toml$", "\n".join(listed), re.MULTILINE)
    assert main(["init", "swing", "--env", "Pendulum-v1"]) == 0
    assert "swing.toml are written: Pendulum-v1 with ppo and the settings of conf/ppo/pendulum.toml" in (
        capsys.readouterr().out
    )
    ours, theirs = load_config(Path("swing.toml")), load_config(ROOT / "conf" / "ppo" / "pendulum.toml")
    assert (ours.hyper, ours.env, ours.app.run_name) == (theirs.hyper, theirs.env, "swing")
    assert load_hyper("swing", ours.hyper).normalise_obs
    assert dataclasses.replace(ours.app, algo="", run_name="") == dataclasses.replace(theirs.app, algo="", run_name="")
    assert main(["init", "other", "--env", "Pendulum-v1", "--from", "sac"]) == 0
    assert "conf/ppo" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "obs", "action", "lines"),
    [
        ("of_floats", FLOATS, spaces.Box(-2, 3, (2,)), ["normalise_obs = true", "minibatch_size = 64"]),
        ("of_images", spaces.Box(0, 255, (40, 44, 3), np.uint8), spaces.Discrete(3), ["clip = 0.1", "epochs = 4"]),
    ],
)
def test_an_environment_without_settings_gets_those_of_its_kind(
    name: str,
    obs: spaces.Space[Any],
    action: spaces.Space[Any],
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name, "--env", registered(obs, action), "--from", "ppo"]) == 0
    text = Path(f"{name}.toml").read_text()
    assert all(f"\n{line}" in text for line in lines)
    load_hyper(name, load_config(Path(f"{name}.toml")).hyper)


def test_a_name_from_an_environments_id() -> None:
    ids = {
        "Pendulum-v1": "pendulum",
        "ALE/Pong-v5": "pong",
        "my:Sweep-v0": "sweep_agent",
        "my:Größe-v0": "gr__e",
        "four:Four": "four",
    }
    assert {id_: _name_of(id_) for id_ in ids} == ids


def test_what_init_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path.parent)
    (tmp_path.parent / "wrong.py").write_text(
        "import gymnasium\ndef make():\n    raise TypeError('bad')\ngymnasium.register('Wrong-v0', entry_point=make)\n"
        "def leave():\n    raise SystemExit('no licence')\ngymnasium.register('Leave-v0', entry_point=leave)\n"
    )
    for arguments, text in {
        "": "say for which environment: --env with an id of gymnasium, like --env CartPole-v1",
        "--env No-v0": "--env 'No-v0': Environment `No` doesn't exist",
        "--env no_such_module:No-v0": "No module named 'no_such_module'",
        "random --env CartPole-v1": "NAME is 'random', which is the name of another Python module",
        "my+agent --env CartPole-v1": "NAME is 'my+agent'; it must be the name of a Python package",
        "sweep --env CartPole-v1": "NAME is 'sweep'; it must be the name of a Python package",
        "größe --env CartPole-v1": "NAME is 'größe'; it must be the name of a Python package",
        "--env wrong:Wrong-v0": f"--env wrong:Wrong-v0: {tmp_path.parent / 'wrong.py'}:3: TypeError: bad was",
        "--env wrong:Leave-v0": f"--env wrong:Leave-v0: {tmp_path.parent / 'wrong.py'}:6: SystemExit: no licence",
        "--env CartPole-v1 --from td3": "--from td3 does not fit the actions of CartPole-v1; it must be dqn or ppo",
        "--env CartPole-v1 --from realm": "--env CartPole-v1: cannot be given with --from realm",
    }.items():
        assert main(["init", *arguments.split()]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert text in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.system
def test_a_module_of_ones_own_trains(tmp_path: Path) -> None:
    (tmp_path / "pick.py").write_text(MODULE)  # so the package needs another name
    code, out, err = realm("init", "--env", "pick:Pick-v0", cwd=tmp_path)
    assert code == 0, err
    assert "pick_agent/ and pick_agent.toml are written: pick:Pick-v0 with ppo" in out
    settings = ("--set", "max_env_steps=6000", "eval_every_steps=3000")
    code, _, err = realm("start", "--config", "pick_agent.toml", *settings, cwd=tmp_path)
    assert code == 0, err
    code, _, err = realm("start", "--config", "pick_agent.toml", "--set", "wrapper_type=remote", "run_name=cluster",
                         "max_env_steps=2000", "eval_every_steps=0", cwd=tmp_path)  # fmt: skip
    assert code == 0, err
    assert (tmp_path / "train" / "cluster" / "summary.json").exists()


TENANTS = {
    "td3": ["Pendulum-v1", "random_steps=100"],
    "sac": ["Pendulum-v1", "random_steps=100"],
    "dqn": ["CartPole-v1", "noisy=true", "dueling=true", "n_step=3", "frames=2"],
}


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("package", TENANTS)
def test_an_off_policy_package_goes_on_where_it_was_killed(package: str, tmp_path: Path) -> None:
    env, *own = TENANTS[package]
    code, out, err = realm("init", "my-agent", "--from", package, "--env", env, cwd=tmp_path)
    assert code == 0, err
    assert f"my_agent/ and my_agent.toml are written: {env} with {package}" in out
    # an update is 20 gradient steps, and comes every 20 env steps
    command = ["-m", "realm", "start", "--config", "my_agent.toml", "--set", "warm_up_steps=100", "eval_every_steps=0",
               "train_batch_size=320", "production_consume_ratio=16", "dump_model_freq=5", "save_replay=true",
               "reverb_sampler=" + ("Prioritized" if package == "dqn" else "Uniform"),
               *(f"my_agent.{one}" for one in ("hidden=32", "minibatch_size=16", *own))]  # fmt: skip
    run = tmp_path / "train" / "my_agent"
    first, deadline = start(*command, cwd=tmp_path), time.monotonic() + 200
    while not (saved := newest_model(run)) or saved.version.update < 5:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.kill()
    first.communicate()
    saved = newest_model(run)
    assert saved
    code, _, err = end(start(*command, f"max_env_steps={saved.env_steps + 400}", cwd=tmp_path))
    assert code == 0, err
    last = newest_model(run)
    assert last
    assert last.env_steps >= saved.env_steps + 400
    # no second warm-up, and no update for steps that had one already
    assert abs(last.version.update - saved.version.update - (last.env_steps - saved.env_steps) / 20) <= 2
    code, _, err = end(start(*command, "wrapper_type=remote", "run_name=cluster", "max_env_steps=400", cwd=tmp_path))
    assert code == 0, err
    model = newest_model(tmp_path / "train" / "cluster")
    assert model
    assert model.version.update > 0


FOLLOW = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Follow(gymnasium.Env):
    """Answer the number that belongs to the one that is shown."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(0, 10, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        reward = -abs(float(action[0]) - self.wanted)
        return self.look(), reward, False, self.steps == 10, {}

    def look(self):
        shown = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        self.wanted = 5 + 4 * float(shown[0])
        return shown


gymnasium.register("Follow-v0", entry_point=Follow)
'''


@pytest.mark.slow
@pytest.mark.system
def test_ppo_learns_continuous_actions(tmp_path: Path) -> None:
    (tmp_path / "follow.py").write_text(FOLLOW)
    assert realm("init", "mine", "--env", "follow:Follow-v0", "--from", "ppo", cwd=tmp_path)[0] == 0
    code, _, err = end(
        start("-m", "realm", "start", "--config", "mine.toml", "--set", "max_env_steps=20_000", cwd=tmp_path)
    )
    assert code == 0, err
    lines = (tmp_path / "train" / "mine" / "evaluations.jsonl").read_text().splitlines()
    scores = [json.loads(line)["score"] for line in lines]
    assert scores[0] < -15  # the middle of the range all the time: -20
    assert scores[-1] > -8
    cluster = ("wrapper_type=remote", "run_name=cluster", "max_env_steps=4000", "eval_every_steps=0")
    code, _, err = end(start("-m", "realm", "start", "--config", "mine.toml", "--set", *cluster, cwd=tmp_path))
    assert code == 0, err
    model = newest_model(tmp_path / "train" / "cluster")
    assert model
    assert model.version.update > 2


def test_a_copy_of_the_games_agent_is_a_package(tmp_path: Path) -> None:
    code, out, err = realm("init", "mine", "--from", "realm", cwd=tmp_path)
    assert code == 0, err
    assert "mine/ and mine.toml are written" in out
    code = (
        "from mine.feature.definition import make_envs; from mine.config import Config; make_envs(1, 0, Config(), {})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    texts = [(tmp_path / "mine.toml").read_text(), *(file.read_text() for file in (tmp_path / "mine").rglob("*.py"))]
    assert not [text for text in texts if "from diy" in text or "[diy]" in text or 'algo = "diy"' in text]
    code, out, err = realm("config", "mine.lr_start", "--config", "mine.toml", cwd=tmp_path)
    assert code == 0, err
    assert "mine.lr_start = " in out
