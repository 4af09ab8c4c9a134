"""realm/launch/smoke_test.py: a round of the workflow is played before a run has a directory or a process."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from realm.config.load import load_config
from realm.contract import ActionSpec, Spec
from realm.errors import ConfigError, UserCodeError, to_install
from realm.launch.smoke_test import _random_action, try_user_code
from realm.user import hyper_of, load_hyper

ROOT = Path(__file__).parents[2]
HEAD = "from realm.zoo.cartpole.train_workflow import workflow as whole\n\n\n"


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Gives a function that tries CartPole with another workflow."""
    shutil.copytree(ROOT / "realm" / "zoo" / "cartpole", tmp_path / "mine")
    for file in tmp_path.rglob("*.py"):
        file.write_text(file.read_text().replace("realm.zoo.cartpole", "mine"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(body):
        (tmp_path / "mine" / "train_workflow.py").write_text(f"{HEAD}def workflow(envs, policy, context):\n{body}")
        config = load_config(ROOT / "conf" / "cartpole.toml", ["algo=mine"])
        return try_user_code(config, load_hyper("mine", {}))

    yield run
    for name in [one for one in sys.modules if one.partition(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.mark.parametrize(("name", "table"), [("right", "ppo"), ("dqn", "dqn")])
def test_a_statistic_that_no_evaluation_will_have_is_refused_at_the_start(name, table):
    def run(by):
        sets = ['log_info=["cleared"]', "eval_actions=sampled", f'{table}.best_by=["{by}", "r_least"]']
        config = load_config(ROOT / "conf" / "mario" / f"{name}.toml", sets)
        config.env.clear()  # CartPole
        try_user_code(config, hyper_of(config))

    for by in ("cleared", "l"):
        run(by)
    with pytest.raises(
        ConfigError,
        match=rf"^--set {table}.best_by=.*: {table}.best_by names 'cleard', but .* r_least, "
        r".*\(did you mean 'cleared'\?\)",
    ):
        run("cleard")


def test_evaluations_of_another_task_are_refused_at_the_start():
    config = load_config(ROOT / "conf" / "classic.toml", ["env.id=Acrobot-v1", "eval_env.id=MountainCar-v0"])
    with pytest.raises(ConfigError) as caught:
        try_user_code(config, hyper_of(config))
    assert str(caught.value).startswith(
        "--set eval_env.id=MountainCar-v0: [eval_env] (id) makes another task: state is "
    )
    assert "(2,)" in str(caught.value)
    assert "in training Field(shape=(6,)" in str(caught.value)
    config = load_config(ROOT / "conf" / "classic.toml", ["env.id=Acrobot-v1", "eval_env.max_episode_steps=9"])
    assert try_user_code(config, hyper_of(config)).action.n == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("    yield from whole(envs, policy, context)\n    1 / 0\n", None),
        ("    envs.reset()\n    yield {}['chunk']\n", ":6: KeyError: 'chunk' (while calling workflow)"),
        ("    yield [1, 2]\n", ":4: workflow yielded"),
        ("    return\n    yield\n", ":4: workflow ended without a round; it must yield rounds until the run ends"),
        ("    for _ in range(context.worker):\n        yield\n", ":4: workflow ended without a round"),
        ("    yield from ()\n", ":4: workflow ended without a round"),
        ("    for one in whole(envs, policy, context):\n        yield {'worker': one.worker}\n", "not of the Spec"),
        ("    policy.predict({}, [True])\n    yield\n", "the workflow's arguments of predict: missing ['state']"),
    ],
)  # fmt: skip
def test_a_workflow_that_cannot_work_is_one_sentence_at_the_start(tried, body, text):
    if text is None:
        assert isinstance(tried(body), Spec)
        return
    with pytest.raises(UserCodeError) as caught:
        tried(body)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "env", "command"),
    [
        ("ale_py", "ALE/Pong-v5", "'gymnasium[atari]' ale-py`"),
        ("mujoco", "Hopper-v5", "'gymnasium[mujoco]'`"),
    ],
)
def test_a_missing_package_is_a_sentence_with_the_command_that_installs_it(package, env, command):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    config = load_config(ROOT / "conf" / "classic.toml", [f"env.id={env}"])
    with pytest.raises(ConfigError) as caught:
        try_user_code(config, load_hyper("realm.zoo.dqn", {}))
    assert f"run `{to_install(command)}" in str(caught.value)
    assert str(caught.value).startswith(f"--set env.id={env}: [env] id is {env!r}, ")  # the name that was given


@pytest.mark.parametrize(
    ("algo", "env", "more", "text"),
    [
        ("dqn", "Nope-v1", [], "--set env.id=Nope-v1: [env] id is 'Nope-v1': Environment `Nope` doesn't exist"),
        ("dqn", "Pendulum-v1", [], "--set env.id=Pendulum-v1: the action space is Box(-2.0, 2.0, (1,), float32); it"),
        ("ppo", "Pendulum-v1", ["ppo.advantage=q"], "--set ppo.advantage=q: ppo.advantage is 'q', but actions here"),
    ],
)
def test_what_a_package_refuses_is_told_with_the_place_of_its_key(algo, env, more, text):
    config = load_config(ROOT / "conf" / "classic.toml", [f"algo=realm.zoo.{algo}", f"env.id={env}", *more])
    with pytest.raises(ConfigError) as caught:
        try_user_code(config, hyper_of(config))
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("algo", ["realm.zoo.cartpole", "realm.zoo.dqn"])
def test_options_of_another_environment_are_a_sentence_with_the_place_and_the_way_out(algo):
    config = load_config(ROOT / "conf" / "configure_app.toml", [f"algo={algo}"])
    with pytest.raises(ConfigError) as caught:
        try_user_code(config, load_hyper(algo, {}))
    assert "conf/configure_app.toml:33: key 'env.start': " in str(caught.value)
    assert str(caught.value).endswith("give the configuration of this one with --config")


@pytest.mark.parametrize(("key", "value"), [("reward_scale", "nan"), ("clip_reward", "0"), ("clip_reward", "true")])
def test_numbers_that_no_reward_can_take_are_refused(key, value):
    config = load_config(ROOT / "conf" / "classic.toml", [f"env.{key}={value}"])
    with pytest.raises(
        ConfigError, match=f"--set env.{key}={value}: key 'env.{key}': {key} is .*, it must be a number"
    ):
        try_user_code(config, hyper_of(config))


def test_only_legal_actions_are_tried():
    space, random = ActionSpec(n=5), np.random.default_rng(0)
    assert set(_random_action(space, None, 100, random)) == set(range(5))
    legal = np.tile([False, True, False, True, False], (100, 1))
    assert set(_random_action(space, legal, 100, random)) == {1, 3}
    assert set(_random_action(space, np.ones((100, 2), bool), 100, random)) == set(range(5))  # no mask of these actions
    tried = _random_action(ActionSpec(nvec=(2, 3)), legal, 100, random)
    assert {*map(tuple, tried.tolist())} == {(1, 1)}


def test_actions_that_are_tried_are_within_bounds():
    inf = float("inf")
    for low, high in ((-1, 1), (2, inf), (-inf, -3), (-inf, inf), (-5, inf)):
        actions = _random_action(ActionSpec(low=(low,), high=(high,)), None, 100, np.random.default_rng(0))
        assert np.isfinite(actions).all()
        assert ((low <= actions) & (actions <= high)).all()


def test_what_is_no_fault_of_the_workflow_ends_the_trial(tried):
    """One that never yields, one that hands its rounds over, and an environment that dislikes a random action."""
    asks = "    obs, _ = envs.reset()\n    policy.predict(obs, envs.reset()[0]['state'][:, 0] > 9)\n"
    assert tried("    while True:\n        context.tick()\n    yield\n")
    assert tried(f"{asks}    context.add({{}})\n    1 / 0\n    yield\n")
    assert tried(f"{asks}    envs.step([99])\n    1 / 0\n    yield\n")
