"""Mario: decisions, rewards and presses on a small game of the same face, and the game itself where it is installed."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import sys
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from realm.config.load import RunConfig, load_config
from realm.contract import Array, Chunk, Version, WorkflowContext
from realm.errors import ConfigError
from realm.launch.smoke_test import try_user_code
from realm.policy.local_policy import LocalPolicy
from realm.rollout.rounds import RestartingEnvs
from realm.user import calling, hyper_of, load_definition, load_workflow, make_agent, make_envs
from realm.watch.meters import Meters
from realm.zoo.mario.emulators import Fce, rom_of
from realm.zoo.mario.game import Mario
from realm.zoo.mario.level import Level
from realm.zoo.mario.picture import edges, shrunk
from realm.zoo.mario.presses import BITS, BUTTONS, SETS, Plan, bits_of
from realm.zoo.mario.rewards import TERMS, State, paid, terms_of, values
from tests.corridor import Training

ROOT = Path(__file__).parents[2]
RUNS = sorted(
    path for path in (ROOT / "conf" / "mario").glob("*.toml") if path.stem not in ("game", "base", "off_policy")
)
FLAG, PIT, CLOCK = 120, 60, 400


def needs(package: str) -> pytest.MarkDecorator:
    here = find_spec("gym_super_mario_bros") and find_spec(package)
    return pytest.mark.skipif(here is None, reason=f"{package} and the game are not installed")


EMULATORS = [
    pytest.param("nes-py", marks=needs("nes_py")),
    pytest.param("stable-retro", marks=needs("stable_retro")),
]


class Street:
    """A level of 120 pixels: right walks 2 a frame, at 60 is a pit that only A crosses; a coin for each 40."""

    def __init__(self, world: int, stage: int) -> None:
        self.name, self.held = f"{world}-{stage}", list[int]()

    def reset(self) -> State:
        self.x = self.frame = 0
        self.held.clear()
        return self.state()

    def step(self, buttons: int) -> State:
        self.held.append(buttons)
        self.frame += 1
        self.x = max(0, self.x + 2 * bool(buttons & BITS[0]) - 2 * bool(buttons & BITS[1]))
        self.over_pit = self.x == PIT and not buttons & BITS[6]
        return self.state()

    over_pit = False

    def state(self) -> State:
        clock = CLOCK - self.frame // 24
        return State(self.x, 200 * (self.x // 40), clock, self.x >= FLAG, self.over_pit or clock == 0, self.over_pit)

    status = 0

    def picture(self) -> Any:
        """As bright as the number of the frame, but for the status line."""
        screen = np.full((224, 240, 3), self.frame % 251, np.uint8)
        screen[:24] = self.status
        return screen

    def close(self) -> None:
        pass


def street(**options: Any) -> Mario:
    env = Mario(**{"emulator": Street, **options})
    env.reset(seed=1)
    return env


def played(env: Mario, action: Any) -> tuple[list[float], dict[str, Any]]:
    """The rewards of an episode of one action, and what its last step tells."""
    rewards = []
    while True:
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
        if terminated:
            return rewards, info


# ---- an episode ----


@pytest.mark.parametrize("first", [0, 24])
def test_the_picture_is_to_the_bit_what_pillow_makes_of_the_screen(first: int) -> None:
    random = np.random.default_rng(0)
    screens = [random.integers(0, 256, (224, 240, 3), np.uint8) for _ in range(5)]
    for screen in [*screens, *(np.full((224, 240, 3), value, np.uint8) for value in (0, 1, 254, 255))]:
        grey = Image.fromarray(screen).convert("L").resize((84, 84), Image.Resampling.BOX, (0, first, 240, 224))
        np.testing.assert_array_equal(shrunk(screen, edges(first, 224, 84), edges(0, 240, 84)), grey)


def test_an_episode_ends_at_the_flag_in_a_pit_or_by_the_clock() -> None:
    names = SETS["simple"]
    rewards, info = played(street(), names.index("right A"))
    assert (info["cleared"], info["x"], info["score"], info["frames"]) == (100, FLAG, 600, 60)
    assert sum(rewards) == FLAG - 2  # two numbers of the clock
    rewards, info = played(street(), names.index("right"))
    assert (info["cause_fall"], info["x"], info["frames"]) == (100, PIT, 30)
    assert rewards[-1] == 4 - 15
    assert len(rewards) == 8
    _, info = played(street(skip=100), names.index("left"))
    assert (info["cause_clock"], info["cause_fall"], info["cleared"], info["clock"]) == (100, 0, 0, 0)


def test_a_decision_shows_its_last_frame_without_the_status_line() -> None:
    env = street(skip=3)
    obs, *_ = env.step(1)
    assert obs.shape == (84, 84)
    assert obs.dtype == np.uint8
    assert (obs == 3).all()
    whole = street(skip=3, status_line=True)
    whole._game.status = 99  # type: ignore[attr-defined]
    obs, *_ = whole.step(1)
    assert (obs[:9] == 99).all()
    assert (obs[9:] == 3).all()


def test_a_film_shows_the_buttons_that_are_held() -> None:
    env = street(actions="buttons")
    env.step([0, 1, 0, 0, 0, 0, 1])
    picture = env.render()
    assert picture.shape == (240, 240, 3)
    assert (picture[24:224] == 4).all()
    bright = [int(picture[226, 240 // 7 * number + 2, 0]) > 200 for number in range(7)]
    assert bright == [False, True, False, False, False, False, True]
    env.reset()
    assert not (env.render()[224:] == 230).any()


def test_each_episode_draws_a_level() -> None:
    env = street(level=["1-1", "1-2", "8-4"])
    drawn = []
    for _ in range(30):
        env.reset()
        drawn.append(env._game.name)  # type: ignore[attr-defined]
    assert set(drawn) == {"1-1", "1-2", "8-4"}
    again = street(level=["1-1", "1-2", "8-4"])
    for name in drawn:
        again.reset()
        assert again._game.name == name  # type: ignore[attr-defined]


# ---- rewards ----


@st.composite
def decisions(draw: st.DrawFn) -> list[State]:
    x, score, clock, states = draw(st.integers(0, 3000)), 0, 400, []
    for _ in range(draw(st.integers(2, 9))):
        states.append(State(x, score, clock, draw(st.booleans()), draw(st.booleans()), draw(st.booleans())))
        x, score = x + draw(st.integers(-40, 40)), score + draw(st.integers(0, 3)) * 100
        clock = clock + draw(st.integers(-2, 1))
    return states


@given(decisions())
@settings(max_examples=60, deadline=None)
def test_the_terms_are_those_of_a_slow_version(frames: list[State]) -> None:
    progress = clock = 0
    for i in range(1, len(frames)):
        if -5 <= frames[i].x - frames[i - 1].x <= 5:
            progress += frames[i].x - frames[i - 1].x
        if frames[i].clock < frames[i - 1].clock:
            clock += frames[i].clock - frames[i - 1].clock
    found = values(frames)
    assert (found["progress"], found["clock"]) == (progress, clock)
    assert found["score"] == frames[-1].score - frames[0].score
    assert found["flag"] == frames[-1].flag
    assert found["death"] == -frames[-1].dead
    assert found["standing"] == -(frames[-1].x == frames[0].x)
    given = [{"term": "progress", "weight": 0.5, "least": -1.0, "most": 3.0}, {"term": "score", "weight": 0.01}]
    assert paid(terms_of(given), found) == {
        "progress": max(-1.0, min(3.0, 0.5 * progress)), "score": pytest.approx(0.01 * found["score"]),
    }  # fmt: skip


def test_what_each_term_paid_adds_up_to_the_return() -> None:
    given = [{"term": name, "weight": 1.0 + number} for number, name in enumerate(TERMS)]
    rewards, info = played(street(reward=given), SETS["simple"].index("right A"))
    assert sum(rewards) == pytest.approx(sum(info[f"paid_{name}"] for name in TERMS))
    assert info["paid_flag"] == 4.0
    assert info["paid_score"] == 5.0 * 600


def test_a_weight_goes_with_the_env_steps() -> None:
    given = [{"term": "progress", "weight": 2.0, "weight_end": 1.0, "weight_steps": 100}, {"term": "flag", "weight": 3}]
    for env_steps, weight in ((0, 2.0), (25, 1.75), (100, 1.0), (900, 1.0)):
        told = paid(terms_of(given), {"progress": 10.0, "flag": 1.0}, env_steps)
        assert told == {"progress": 10.0 * weight, "flag": 3.0}
    env = street(reward=given)
    env.env_steps = 50
    assert played(env, SETS["simple"].index("right A"))[1]["paid_progress"] == 1.5 * FLAG


def test_each_button_is_paid_for_what_happened_while_it_was_held() -> None:
    given = [{"term": "progress"}, {"term": "death", "weight": 5}, {"term": "buttons", "weight": 0.5, "most": 20.0}]
    env, total = street(actions="durations", reward=given), 0.0
    for action in (press(right=0.2, A=0.1), press(right=0.05, left=0.05), press(right=0.9, B=0.1), press(right=0.9)):
        before, begin = env._state, len(env._game.held)  # type: ignore[attr-defined]
        _, reward, terminated, _, info = env.step(action)
        total += float(env.credit.sum())
        held, x, paid_to = env._game.held[begin:], before.x, [0.0] * 7  # type: ignore[attr-defined]
        for number, buttons in enumerate(held):
            step = 2 * bool(buttons & 128) - 2 * bool(buttons & 64)
            pays = max(0, x + step) - x - 5 * (terminated and number == len(held) - 1)
            x += step
            for button, bit in enumerate(BITS):
                paid_to[button] += 0.5 * pays * bool(buttons & bit)
        np.testing.assert_allclose(env.credit, np.minimum(paid_to, 20.0), rtol=1e-6)
        assert reward == x - before.x - 5 * terminated
        if terminated:
            break
    assert terminated
    assert info["paid_buttons"] == pytest.approx(total)


@pytest.mark.slow
def test_pay_of_a_button_is_added_to_its_own_advantage() -> None:
    sets = ["ppo.chunk_length=6", "ppo.ratio=each", "ppo.normalise_advantage=none"]
    config = load_config(ROOT / "conf" / "mario" / "durations.toml", sets)
    config.env.update(emulator=Street, reward=[{"term": "progress"}, {"term": "buttons", "weight": 2.0}])
    chunk, agent = a_chunk(config)
    assert np.abs(chunk.step["credit"][chunk.valid]).max() > 1
    now = hyper_of(config).schedule(0)
    whole = agent.ppo.estimate(chunk, now, stale=False)
    shared = dataclasses.replace(chunk, step={"discount": chunk.step["discount"]})
    alone = agent.ppo.estimate(shared, now, stale=False)
    expected = alone.advantage[..., None].numpy() + chunk.step["credit"]
    np.testing.assert_allclose(whole.advantage.numpy()[chunk.valid], expected[chunk.valid], rtol=1e-5)
    assert (whole.target == alone.target).all()
    metrics = Training(agent).learn(chunk)
    assert metrics["skipped"] == 0


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ppo.ratio=joint", r"needs PPO with ppo\.ratio = 'each'"),
        (
            "ppo.gamma_end=0.99",
            r"ppo\.gamma_end is 0.99, but steps here differ .* must be gamma_start, 0.9$",
        ),
    ],
)
def test_settings_that_do_not_go_with_steps_of_their_own(key: str, says: str) -> None:
    config = load_config(ROOT / "conf" / "mario" / "durations.toml", ["ppo.ratio=each", key])
    config.env.update(emulator=Street, reward=[{"term": "progress"}, {"term": "buttons"}])
    with pytest.raises(ConfigError, match=says):
        load_definition(config.app.algo).spec(make_envs(config, 1, 1), hyper_of(config))


def test_evaluations_need_the_same_of_each_step() -> None:
    config = load_config(ROOT / "conf" / "mario" / "buttons_credit.toml", ["eval_env.reward=[{term = 'score'}]"])
    config.env["emulator"] = Street
    with pytest.raises(ConfigError, match=r"makes another task: what a step stores is {}, in training"):
        try_user_code(config, hyper_of(config))


# ---- starts ----


def test_episodes_begin_over_an_earlier_one_from_its_end_backwards(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    env = street(keep_episode=str(path))
    played(env, SETS["simple"].index("right"))  # into the pit
    assert not path.exists()
    env.reset()
    played(env, SETS["simple"].index("right A"))
    written = path.read_bytes()
    env.reset()
    played(env, SETS["simple"].index("right B"))
    assert path.read_bytes() == written
    later = street(start_along=str(path), start_steps=1000)
    length = FLAG // 2
    for env_steps in (None, 0, 250, 999, 1000, 5000):
        later.env_steps, begun = env_steps, set()
        for _ in range(200):
            later.reset()
            begun.add(later._state.x // 2)
            assert later._state.x == 2 * len(later._game.held)  # type: ignore[attr-defined]
        if env_steps is None or env_steps >= 1000:
            assert begun == {0}
        else:
            assert min(begun) >= int(0.9 * length * (1 - env_steps / 1000))
            assert int(0.9 * length) - 2 <= max(begun) <= 0.9 * length
            assert len(begun) > 5 or env_steps == 0
    later.env_steps = 0
    later.reset()
    assert len(played(later, SETS["simple"].index("right A"))[0]) == 2  # of four frames each


def test_starts_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    says = "start_along is .*, it must be a file that keep_episode wrote"
    with pytest.raises(ValueError, match=says):
        street(start_along=str(path))
    for held in ('"1234"', "5", "[1e999]", "[256]", "[1.5]", "[" * 9999):
        path.write_text(f'{{"level": "1-1", "held": {held}}}')
        with pytest.raises(ValueError, match=says):
            street(start_along=str(path))
    path.write_text('{"level": "1-2", "held": [1, 2]}')
    with pytest.raises(ValueError, match="an episode of 1-2, it must be one of 1-1"):
        street(start_along=str(path))
    path.write_text(json.dumps({"level": "1-1", "held": [BITS[0]] * 200}))  # into the pit
    with pytest.raises(ValueError, match=r"start_along is .*, it must be one of this game; played again"):
        street(start_along=str(path))


def test_a_game_that_does_not_start_is_told() -> None:
    class Off:
        def frame(self, buttons: int) -> bytes:
            return bytes(2048)

        def write(self, values: dict[int, int]) -> None: ...

    with pytest.raises(ValueError, match="rom is damaged: the game does not start"):
        Level(cast(Any, Off()), 1, 1)


# ---- presses ----


def slow_frames(seconds: float, least: int, most: int) -> int:
    """How long a button is held."""
    if seconds * 60 < 0.5:
        return 0
    frames = math.floor(seconds * 60 + 0.5)
    return max(least, min(frames, most))


numbers = st.lists(st.floats(-1, 1, width=32), min_size=7, max_size=7)


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 5), st.sampled_from([5, 20, 60]))
@settings(max_examples=60, deadline=None)
def test_a_press_to_the_end_is_as_long_as_its_number(several: list[list[float]], least: int, most: int) -> None:
    plan = Plan("to the end", least, most)
    for seconds in several:
        frames = [slow_frames(one, least, most) for one in seconds]
        wanted = [
            sum(bit for bit, long in zip(BITS, frames, strict=True) if frame < long)
            for frame in range(max(frames) or least)
        ]
        assert plan.decide(np.array(seconds, np.float32)) == wanted
        assert not plan.left.any()


@given(st.lists(numbers, min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_plan_that_can_change_counts_down_and_lets_go(several: list[list[float]], least: int) -> None:
    plan, left = Plan("can change", least, 60), [0] * 7
    for seconds in several:
        for button in range(7):
            if left[button] and seconds[button] < 0:
                left[button] = 0
            elif not left[button]:
                left[button] = slow_frames(seconds[button], least, 60)
        wanted, held = [], [long for long in left if long]
        for _ in range(min(held) if held else least):
            wanted.append(sum(bit for bit, long in zip(BITS, left, strict=True) if long))
            left = [max(0, long - 1) for long in left]
        assert plan.decide(np.array(seconds, np.float32)) == wanted
        assert plan.left.tolist() == left


def test_sets_of_buttons_are_those_of_the_package() -> None:
    assert [len(SETS[name]) for name in ("right", "simple", "complex")] == [5, 7, 12]
    assert [bits_of(name) for name in SETS["simple"]] == [0, 128, 129, 130, 131, 1, 64]


def press(**seconds: float) -> Array:
    return np.array([seconds.get(name, 0.0) for name in BUTTONS], np.float32)


def test_a_long_press_shows_its_first_and_last_frame_and_is_discounted_by_its_frames() -> None:
    env = street(actions="durations", shots=5)
    obs, *_ = env.step(press(right=0.4, A=0.1))
    assert obs.shape == (84, 84, 5)
    assert obs[0, 0, 0] == 1
    assert obs[0, 0, -1] == 24
    assert (np.diff(obs[0, 0].astype(int)) >= 0).all()
    assert env.duration == 6.0
    assert env._game.held[:7] == [129] * 6 + [128]  # type: ignore[attr-defined]
    env.step(press())
    assert env.duration == 0.25
    obs, *_, info = env.step(press(right=1.0))
    assert info["cause_fall"] == 100
    assert info["x"] == PIT
    assert obs[0, 0, -1] == 24 + 1 + 6
    assert env.duration == 1.5


# ---- as a package sees it ----


def test_the_workflow_tells_a_curriculum_the_env_steps() -> None:
    config = load_config(ROOT / "conf" / "mario" / "right.toml", ["ppo.chunk_length=3", "ppo.frames=1"])
    config.env["emulator"] = Street
    hyper, algo = hyper_of(config), config.app.algo
    envs = make_envs(config, 2, 1)
    spec = load_definition(algo).spec(envs, hyper)
    many = RestartingEnvs(lambda seed: envs, 1, spec, lambda name, amount: None)
    policy = LocalPolicy(make_agent(config, spec, "cpu", 1), spec, 2, lambda: (Version(1, 0), 0, 0))
    steps = iter(range(10, 100, 10))
    context = WorkflowContext(spec, hyper, 1, 0, 1, Meters(), env_steps=lambda: next(steps))
    play = load_workflow(algo)(many, policy, context)
    for told in (10, 20, 30):
        next(play)
        assert envs.unwrapped.get_attr("env_steps") == (told, told)


def test_statistics_of_an_episode_are_those_of_the_game() -> None:
    config = load_config(ROOT / "conf" / "mario" / "right.toml", [])
    config.env["emulator"] = Street
    envs = make_envs(config, 2, 1)
    assert load_definition(config.app.algo).spec(envs, hyper_of(config)).obs["state"].shape == (84, 84, 1)
    envs.reset(seed=1)
    for _ in range(15):
        *_, info = envs.step(np.array([2, 1]))
        if "_episode" in info and info["_episode"][1]:
            assert envs.unwrapped.told["cause_fall"] == 100
            assert info["episode"]["r"][1] == 60 - 1 - 65 + 0.025 * 200


def a_chunk(config: RunConfig) -> tuple[Chunk, Any]:
    """The first chunk of two environments, and the agent that played it."""
    hyper, algo = hyper_of(config), config.app.algo
    spec = load_definition(algo).spec(make_envs(config, 2, 1), hyper)
    envs = RestartingEnvs(lambda seed: make_envs(config, 2, seed), 1, spec, lambda name, amount: None)
    agent = make_agent(config, spec, "cpu", 1)
    policy = LocalPolicy(agent, spec, 2, lambda: (Version(1, 0), 0, 0))
    return next(load_workflow(algo)(envs, policy, WorkflowContext(spec, hyper, 1, 0, 1, Meters()))), agent


@pytest.mark.slow
def test_durations_train_with_the_discount_of_each_step() -> None:
    config = load_config(ROOT / "conf" / "mario" / "durations.toml", ["ppo.chunk_length=6", "ppo.ratio=each"])
    config.env["emulator"] = Street
    chunk, agent = a_chunk(config)
    whole = chunk.valid & ~chunk.terminated  # an end cuts a press
    assert whole.any()
    for env, step in np.argwhere(whole):
        frames = max(slow_frames(one, 1, 30) for one in chunk.action[env, step].tolist()) or 1
        assert chunk.step["discount"][env, step] == pytest.approx(0.9 ** (frames / 4))
    assert chunk.extra["log_prob"].shape == (2, 6, 7)
    before = agent.model.actor_net[0][0].weight.detach().clone()
    metrics = Training(agent).learn(chunk)
    assert metrics["skipped"] == 0
    assert (agent.model.actor_net[0][0].weight != before).any()


@pytest.mark.parametrize("file", RUNS, ids=lambda path: path.stem)
def test_a_run_is_a_small_file_over_the_base(file: Path) -> None:
    config = load_config(file)
    hyper_of(config)
    assert config.app.run_name == file.stem
    assert len(file.read_text().splitlines()) < 30
    street(**{name: value for name, value in config.env.items() if name not in ("id", "reward_scale", "clip_reward")})


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"level": "9-1"}, "level is '9-1', it must be a world from 1 to 8"),
        ({"level": []}, "level is []"),
        ({"actions": "simpel"}, "one of right, simple, complex, buttons, durations (did you mean 'simple'?)"),
        ({"plan": "to the and"}, "(did you mean 'to the end'?)"),
        ({"reward": [{"term": "progres"}]}, "(did you mean 'progress'?)"),
        ({"reward": [{"term": "flag", "weight": math.nan}]}, "weight of 'flag' is nan"),
        ({"reward": [{"term": "flag", "least": 2, "most": 1}]}, "least not above most"),
        ({"reward": [{"term": "flag"}, {"term": "flag"}]}, "names a term twice"),
        ({"reward": "flag"}, "reward is 'flag', it must be a list"),
        ({"reward": [{"term": "flag", "wait": 1}]}, "a list of {term, weight, weight_end, weight_steps, least, most}"),
        ({"least": 9, "most": 8}, "most is 8, it must be from `least`, 9, to 60 frames"),
        ({"most": 0}, "most is 0, it must be from `least`, 1, to 60 frames"),
        ({"least": 10**9}, "least is 1000000000, it must be a whole number of frames from 1 to 60"),
        ({"shots": 10**12}, "shots is 1000000000000, it must be from 2, the first and the last, to 60"),
        ({"least": 0}, "least is 0"),
        ({"most": -1}, "most is -1"),
        ({"shots": 1}, "shots is 1, it must be from 2"),
        ({"skip": 0}, "skip is 0"),
        ({"skip": 10**12}, "it must be a whole number from 1 to 600"),
        ({"level": 5}, "level is 5, it must be a world"),
        ({"rom": 5}, "rom is 5, it must be the path of a file"),
        ({"signed": "false"}, "signed is 'false', it must be true or false"),
        ({"emulator": 5}, "emulator is 5, it must be one of stable-retro, nes-py"),
        ({"keep_episode": "/nowhere/way.json"}, "it must be a file in a folder that is there"),
        ({"keep_episode": "/"}, "keep_episode is '/', it must be a file"),
        ({"reward": []}, "reward is empty"),
        ({"reward": [{"term": "flag", "weight": True}]}, "weight of 'flag' is True"),
        ({"reward": [{"term": "buttons"}]}, "it must be 'buttons' or 'durations' with the term 'buttons'"),
        ({"start_steps": 0}, "start_steps is 0"),
        ({"start_along": "a.json", "level": ["1-1", "1-2"]}, "it must be empty with several levels"),
        ({"reward": [{"term": "flag", "weight_end": math.inf}]}, "'flag' needs finite weights"),
        ({"emulator": "nespy"}, "one of stable-retro, nes-py (did you mean 'nes-py'?)"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Mario(**{"emulator": Street, **options})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_option_is_told_with_its_place() -> None:
    config = load_config(ROOT / "conf" / "mario" / "right.toml", ["env.level=9-1"])
    config.env["emulator"] = Street
    says = r"--set env.level=9-1: key 'env.level': level is '9-1'"
    with pytest.raises(ConfigError, match=says), calling(config, "make_envs"):
        make_envs(config, 1, 1)


def test_a_missing_package_or_rom_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.nes"
    own.write_bytes(b"the game")
    monkeypatch.setattr("realm.zoo.mario.game.rom_of", lambda path: path)
    for package, emulator in (("nes_py", "nes-py"), ("stable_retro", "stable-retro")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr("realm.zoo.mario.emulators.np.__version__", "1.26.4")  # a newer one is told of first
        sets = [f"env.emulator={emulator}", f"env.rom={own}"]
        config = load_config(ROOT / "conf" / "mario" / "right.toml", sets)
        with pytest.raises(ConfigError, match=f"needs a package that is not installed: run .* {emulator}=="):
            make_envs(config, 1, 1)
    (tmp_path / "other.nes").write_bytes(b"NES\x1a" + bytes(40_000))
    for name, says in (
        ("none.nes", "cannot be read: No such file"), ("other.nes", "is not Super Mario Bros."),
        ("other.bin", "its name must end in .nes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            rom_of(str(tmp_path / name))
    monkeypatch.setattr("realm.zoo.mario.emulators.find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match="which holds the game, or say `rom`"):
        rom_of("")


def test_a_second_file_in_a_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm.zoo.mario.emulators._Core.rom", "a.nes")
    with pytest.raises(ValueError, match=r"rom is 'b.nes', but this process plays 'a.nes', it must be one file"):
        Fce("b.nes")


# ---- the game ----

DRAWN = [1, 2, 4, 2, 4, 1, 1]  # how often each of the seven actions


@pytest.mark.parametrize("emulator", EMULATORS)
@pytest.mark.parametrize(
    ("level", "last", "sum_of_all"), [("1-1", (292, 0, 394), 3580978636), ("4-2", (139, 0, 397), 3567190683)]
)
def test_each_emulator_plays_the_same_game(
    emulator: str, level: str, last: tuple[int, int, int], sum_of_all: int
) -> None:
    """x, score, clock and the end of 2,000 frames, of which four at a time hold the same buttons."""
    env = Mario(level, emulator=emulator)
    draws = random.Random(1)
    states = [env._game.reset()]
    while len(states) < 2000:
        names = SETS["simple"][draws.choices(range(7), DRAWN)[0]]
        for _ in range(4):
            states.append(env._game.step(bits_of(names)))
            if states[-1].dead or states[-1].flag:
                states.append(env._game.reset())
                break
    assert states[-1][:3] == last
    assert crc32(repr([tuple(map(int, one)) for one in states]).encode()) == sum_of_all
    env.close()


@pytest.mark.parametrize("emulator", EMULATORS)
def test_environments_of_one_process_do_not_know_of_each_other(emulator: str) -> None:
    """Several share FCEUmm's core."""
    alone, one, other = (Mario(level, emulator=emulator) for level in ("1-1", "1-1", "1-2"))
    expected = [alone.reset(seed=1)[0], *(alone.step(3)[0] for _ in range(60))]
    one.reset(seed=1)
    seen = [one._seen([one._picture()])]
    other.reset(seed=1)
    for step in range(60):
        seen.append(one.step(3)[0])
        other.step(step % 5)
        assert (one._picture() == seen[-1]).all()
    np.testing.assert_array_equal(seen, expected)
    for env in (alone, one, other):
        env.close()


@needs("nes_py")
def test_the_reward_is_that_of_the_package() -> None:
    """A frame at a time, to a death."""
    with redirect_stderr(io.StringIO()):
        from gym_super_mario_bros.smb_env import SuperMarioBrosEnv

    theirs = SuperMarioBrosEnv(target=(1, 1))
    theirs.reset()
    env = Mario(
        skip=1, reward=[{"term": "progress"}, {"term": "clock"}, {"term": "death", "weight": 25}], emulator="nes-py"
    )
    env.reset(seed=1)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(1)
        *_, told, done, facts = theirs.step(bits_of(SETS["simple"][1]))
        assert max(-15, min(15, reward)) == told
        assert (info["score"], info["clock"], terminated) == (facts["score"], facts["time"], done)
    assert info["x"] > 200
    assert info["cause_enemy"] == 100
    env.close()
