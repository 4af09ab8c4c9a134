"""Pong's package: the two protocols, what is an end or a reward to training, and configurations that cannot be."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from realm.algorithms.normalise import learn_observations, seen_by
from realm.config.load import load_config
from realm.contract import ActionSpec, Array, Chunk, Field, PredictContext, Prediction, Spec, Version, WorkflowContext
from realm.errors import ConfigError
from realm.learn.checkpoint import find, load_bytes, not_finite
from realm.learn.evaluation import Player, predictor
from realm.learn.export import OnnxPolicy, write_onnx
from realm.policy.local_policy import LocalPolicy
from realm.user import hyper_of, load_definition, make_agent, make_envs
from realm.watch.meters import Meters
from realm.zoo.gym import make_vec
from realm.zoo.pong.algorithm.agent import Agent
from realm.zoo.pong.config import Config
from realm.zoo.pong.networks.attention import Attending, Past, rows_of
from realm.zoo.pong.networks.conv import Conv
from realm.zoo.pong.train_workflow import LEAST_ACTIONS, MOST_ACTIONS, packed, workflow
from tests.corridor import Training
from tools.study.pong_pictures import draw, played

ROOT = Path(__file__).parents[2]
RUNS = sorted(path for path in (ROOT / "conf" / "pong").glob("*.toml") if path.stem != "base")

needs_lz4 = pytest.mark.skipif(find_spec("lz4") is None, reason="lz4 is not installed")
needs_ale = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed")


@pytest.mark.parametrize("file", RUNS, ids=lambda path: path.stem)
def test_a_run_is_a_small_file_over_the_base(file: Path) -> None:
    config = load_config(file)
    assert config.app.run_name == file.stem
    assert config.app.eval_actions == "sampled"
    hyper_of(config)
    assert len(file.read_text().splitlines()) < 25


def made(protocol: str, **more: Any) -> Any:
    return load_definition("realm.zoo.pong").make_envs(2, 1, Config(), {"protocol": protocol, **more})


@needs_ale
def test_protocol_b_shows_the_rows_of_the_court_alone() -> None:
    whole, court = made("a"), made("b")
    for envs in (whole, court):
        obs, _ = envs.reset(seed=1)
        assert obs["state"].shape == (2, 84, 84, 1)
    scores = whole.reset(seed=1)[0]["state"][0, :, :, 0], court.reset(seed=1)[0]["state"][0, :, :, 0]
    assert scores[0][:10].std() > 10  # the score
    assert scores[1][1:-1, 30:50].std() < 10  # the court, without its walls and paddles


@needs_ale
def test_pong_v0_shows_what_protocol_b_shows() -> None:
    (random, _), (steady, _) = (made("b", **more).reset(seed=1) for more in ({"id": "Pong-v0"}, {}))
    difference = np.abs(random["state"][0].astype(int) - steady["state"][0])
    assert difference.mean() < 2
    assert random["state"].dtype == np.uint8


@needs_ale
def test_a_film_shows_what_the_agent_sees() -> None:
    envs = made("b", render_mode="rgb_array")
    envs.reset(seed=1)
    seen = envs.step(np.array([2, 3]))[0]["state"]
    pictures = envs.render()
    assert len(pictures) == 2
    for picture, frame in zip(pictures, seen, strict=True):
        assert picture.shape == (440, 336, 3)
        assert np.array_equal(picture[72:408:4, ::4, 1], frame[..., 0])


@needs_ale
def test_episodes_of_atari_report_their_own_rewards() -> None:
    envs = make_vec(1, {"id": "ALE/MsPacman-v5", "use_fire_reset": False}, "")
    envs.reset(seed=1)
    told = [envs.step(np.array([number % 4 + 1])) for number in range(200)]
    assert {float(reward[0]) for _, reward, *_ in told} == {0.0, 1.0}
    assert envs.env.env.episode_returns[0] >= 10


@needs_ale
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"protocol": "c"}, "must be 'a' or 'b'"),
        ({"id": "Pong-v0", "protocol": "a"}, "must be 'b'"),
        ({"points": True}, "set pong.points"),
        ({"id": "PongDeterministic-v0"}, "it must be 'ALE/Pong-v5' or 'Pong-v0'"),
        ({"protocol": []}, "protocol is \\[\\], it must be 'a' or 'b'"),
        ({"id": "CartPole-v1"}, "it must be 'ALE/Pong-v5' or 'Pong-v0'"),
        ({"id": "ALE/Breakout-v5"}, "it must be 'ALE/Pong-v5' or 'Pong-v0'"),
        ({"img_height": 84}, "\\[env\\] has img_height, which protocol 'b' fixes"),
        ({"protocol": "a", "repeat_action_probability": 0.25}, "which protocol 'a' fixes"),
        ({"stack_num": 4}, "leave out the keys that change them"),
    ],
)
def test_environments_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        made(**{"protocol": "b", **options})
    assert "\n" not in str(error.value)


def test_an_id_that_is_gone_names_the_one_that_is_the_same() -> None:
    with pytest.raises(ConfigError, match="ALE/Pong-v5 is the same"):
        make_vec(1, {"id": "PongDeterministic-v0"}, "")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"frames": 0}, "frames is 0"),
        ({"difference": True}, "difference is True"),
        ({"network": "cnn"}, "network"),
        ({"precision": "bf8"}, "precision is 'bf8', it must be one of 'fp32', 'bf16', 'auto'"),
        ({"batch_norm": "updates", "minibatch_size": 1}, "minibatch_size is 1"),
        ({"points": True, "gamma_end": 0.999}, "gamma_end is 0.999, it must be gamma_start, 0.99, with points"),
        ({"network": "attention"}, "shared_trunk is False, it must be true with the network 'attention'"),
        ({"reconstruction_coef": 0.1}, "reconstruction_coef is 0.1, it must be 0.0, since the network 'conv' has"),
        ({"network": "patches", "frames": 2}, "frames is 2"),
        ({"memory_steps": 8}, "memory_steps is 8"),
        ({"network": "patches", "widths": (-1,)}, "widths is .*, it must be numbers from 1"),
        ({"network": "patches", "widths": ()}, "widths is .*, it must be numbers from 1"),
        ({"network": "attention", "predict_coef": -1.0}, "predict_coef is -1.0, it must be 0 or more"),
        (
            {"network": "attention", "shared_trunk": True, "predict_coef": 1.0, "episode": True, "points": True},
            "predict_coef is 1.0, it must be 0 with episode and points",
        ),
        ({"normalise_obs": True}, "normalise_obs is True, it must be false"),
        ({"raw_pixels": True, "normalise_images": True}, "raw_pixels is True, it must be false"),
        ({"network": "transformer"}, "minibatch_size is 64, it must be chunk_length, 256, or more with a memory"),
        ({"network": "transformer", "memory_width": 100, "minibatch_size": 256}, "a multiple of memory_heads, 16"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**settings)


class Rally:
    """A game of two points, scored in steps 3 and 5, whose end is the second; NEXT_STEP autoreset."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.at = num_envs, np.zeros(num_envs, np.int64)

    def obs(self) -> dict[str, Array]:
        return {"state": self.at.astype(np.float32)[:, None]}

    def reset(self, seed: int) -> Any:
        return self.obs(), {}

    def step(self, action: Array) -> Any:
        self.at = np.where(self.at == 5, 0, self.at + 1)
        none = np.zeros(self.num_envs, np.bool_)
        return self.obs(), ((self.at == 3) | (self.at == 5)).astype(np.float32), self.at == 5, none, {}


class Still:
    """Answers 0."""

    def predict(self, obs: Any, first: Array, explore: float = 1.0) -> Prediction:
        return Prediction(np.zeros(len(first), np.int64), {}, Version(1, 0))


def chunks_of(config: Config, num_envs: int = 1) -> Iterator[Chunk]:
    step = {"discount": Field((), "float32")} if config.points else {}
    spec = Spec({"state": Field((1,), "float32")}, ActionSpec(n=2), {}, config.chunk_length, step=step)
    yield from workflow(Rally(num_envs), Still(), WorkflowContext(spec, config, 1, 0, 1, Meters()))


def test_a_point_ends_what_advantages_look_at_and_not_the_game() -> None:
    (chunk,) = next(zip(chunks_of(Config(points=True, chunk_length=6), 2), strict=False))
    assert chunk.reward[0].tolist() == [0, 0, 1, 0, 1, 0]
    assert chunk.step["discount"][0].tolist() == pytest.approx([0.99, 0.99, 0, 0.99, 0, 0.99])
    assert chunk.terminated[0].tolist() == [False] * 4 + [True, False]
    assert chunk.valid[0].tolist() == [True] * 5 + [False]


def seen(chunk: Chunk) -> list[float]:
    """The observations of valid steps."""
    rows: list[float] = chunk.obs["state"][0, :-1, 0][chunk.valid[0]].tolist()
    return rows


@pytest.mark.parametrize("length", [4, 5, 6, 7, 16])
def test_an_episode_is_a_batch_whatever_length_a_chunk_has(length: int) -> None:
    play, batches = chunks_of(Config(episode=True, chunk_length=length)), []
    while len(batches) < 6:
        chunk = next(play)
        assert chunk.valid.any()
        begins = np.flatnonzero(chunk.first[0, :-1] & chunk.valid[0])
        assert begins.size <= 1
        batches.append(seen(chunk))
    assert [at for batch in batches for at in batch][:15] == [0, 1, 2, 3, 4] * 3
    assert all(0 not in batch[1:] for batch in batches)  # no batch has steps of two games


def test_a_point_is_a_batch() -> None:
    play = chunks_of(Config(episode=True, points=True, chunk_length=8))
    assert [seen(next(play)) for _ in range(4)] == [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]


def test_a_memory_goes_on_after_a_point() -> None:
    play = chunks_of(Config(episode=True, points=True, chunk_length=8))
    assert [bool(next(play).first[0, 0]) for _ in range(4)] == [True, False, True, False]


def test_an_episode_needs_one_environment() -> None:
    with pytest.raises(ConfigError, match="aisrv_connect_to_kaiwu_env_count = 1"):
        next(chunks_of(Config(episode=True), 2))


def test_a_reward_for_each_step() -> None:
    plain, more = (next(chunks_of(Config(chunk_length=16, step_reward=reward))) for reward in (0.0, 0.5))
    assert (more.reward - plain.reward)[plain.valid].tolist() == [0.5] * int(plain.valid.sum())


@needs_lz4
def test_a_reward_for_actions_that_are_always_the_same() -> None:
    length = LEAST_ACTIONS + 20
    plain, more = (next(chunks_of(Config(chunk_length=length, compressible=weight))) for weight in (0.0, 0.1))
    added = (more.reward - plain.reward)[plain.valid]
    assert added[: LEAST_ACTIONS - 20].max() == 0
    assert added[-1] > 0.08  # it has always done the same


@needs_lz4
def test_random_actions_are_not_compressible() -> None:
    habits, draw = [deque[int](maxlen=MOST_ACTIONS) for _ in range(4)], np.random.default_rng(0)
    saved = [packed(habits, draw.integers(6, size=4)) for _ in range(MOST_ACTIONS)]
    assert np.max(saved) < 0.05


def test_without_lz4_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with pytest.raises(ConfigError, match=r"pong\.compressible needs lz4: .*pip install.* lz4"):
        next(chunks_of(Config(compressible=0.1)))


# ---- the networks ----

SHAPES = load_definition("realm.zoo.pong").spec


class Flicker:
    """Random frames; episodes end at random. NEXT_STEP autoreset."""

    single_action_space = spaces.Discrete(6)
    single_observation_space = spaces.Dict({"state": spaces.Box(0, 255, (84, 84, 1), np.uint8)})

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.unwrapped = self
        self.num_envs, self.random = num_envs, np.random.default_rng(seed)
        self.ended = np.zeros(num_envs, np.bool_)

    def obs(self) -> dict[str, Array]:
        return {"state": self.random.integers(256, size=(self.num_envs, 84, 84, 1), dtype=np.uint8)}

    def reset(self, seed: int) -> Any:
        return self.obs(), {}

    def step(self, action: Array) -> Any:
        self.ended = (self.random.random(self.num_envs) < 0.2) & ~self.ended
        none = np.zeros(self.num_envs, np.bool_)
        return self.obs(), self.random.normal(size=self.num_envs).astype(np.float32), self.ended, none, {}


SMALL = {"memory_width": 16, "memory_steps": 5, "memory_layers": 2, "memory_heads": 4, "minibatch_size": 12}

NETWORKS: dict[str, dict[str, Any]] = {
    "conv": {},
    "difference": {"frames": 2, "difference": True},
    "stack": {"frames": 4},
    "shared": {"shared_trunk": True, "raw_pixels": True},
    "autoencoder": {"network": "autoencoder", "shared_trunk": True, "reconstruction_coef": 0.1},
    "autoencoder_bn": {
        "network": "autoencoder",
        "shared_trunk": True,
        "batch_norm": "updates",
        "policy_from": "latent",
    },
    "autoencoder_bf16": {
        "network": "autoencoder",
        "shared_trunk": True,
        "batch_norm": "updates",
        "reconstruction_coef": 0.1,
        "precision": "bf16",
    },
    "transformer_bf16": {"network": "transformer", **SMALL, "precision": "bf16"},
    "attention": {"network": "attention", "shared_trunk": True, "past": 5, "positions": True, "predict_coef": 1.0},
    "attention_broken": {"network": "attention", "shared_trunk": True, "past": 5, "broken_mask": True},
    "attention_far": {"network": "attention", "shared_trunk": True, "past": 40},
    "transformer": {"network": "transformer", **SMALL},
    "transformer_attached": {"network": "transformer", "memory_attached": True, **SMALL, "memory_steps": 30},
    "patches": {"network": "patches", "widths": (36, 18)},
    "conv_patches": {"network": "patches", "patches": "conv", "where": "onehot", "shared_trunk": True, "widths": (4,)},
    "conv_patches_learned": {"network": "patches", "patches": "conv", "where": "learned", "widths": (4,)},
    **{
        f"{name}_normalised": {"network": name, "normalise_images": True, "normalise_returns": True, **more}
        for name, more in (
            ("conv", {"frames": 2}),
            ("autoencoder", {"shared_trunk": True, "reconstruction_coef": 0.1}),
            ("attention", {"shared_trunk": True, "past": 5}),
            ("patches", {"widths": (36,)}),
            ("transformer", SMALL),
        )
    },
}


def playing(length: int = 12, **settings: Any) -> tuple[Agent, Iterator[Chunk]]:
    """An agent, and the chunks of 3 environments that it plays."""
    config = Config(**{"chunk_length": length, "epochs": 1, "minibatch_size": 8, **settings})
    envs = Flicker(3)
    spec = SHAPES(envs, config)
    agent = Agent(spec, config, "cpu", 1)
    policy = LocalPolicy(agent, spec, envs.num_envs, lambda: (Version(1, 0), 0, 0))
    return agent, workflow(envs, policy, WorkflowContext(spec, config, 1, 0, 1, Meters()))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_learner_finds_the_log_probabilities_of_the_actor(name: str) -> None:
    """Across ends of episodes and in later chunks, which begin with a memory, if there is one."""
    agent, chunks = playing(**NETWORKS[name])
    for _ in range(3):
        chunk = next(chunks)
        assert chunk.first[:, 1:].any()
        assert np.abs(log_probs(agent, chunk) - chunk.extra["log_prob"])[chunk.valid].max() < 1e-5
        learn_observations(agent.ppo.network, agent.ppo.settings, chunk)


def log_probs(agent: Agent, chunk: Chunk) -> Array:
    """f32 [B, T], of the actions by the network as it is."""
    ppo = agent.ppo
    with torch.no_grad():
        seen = seen_by(ppo.network, ppo.settings, ppo.cut.inputs(chunk, ppo.device))
        policy = ppo.cut.forward(seen, ppo.network.actor)[:, :-1]
        action = torch.from_numpy(chunk.action)
        found = ppo.distribution.log_prob_and_entropy(policy.flatten(0, 1), {}, action.flatten())[0]
    return found.view(action.shape).numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains(name: str) -> None:
    agent, chunks = playing(**NETWORKS[name])
    training = Training(agent)
    before = {key: x.clone() for key, x in agent.model.state_dict().items()}
    metrics = training.learn(next(chunks))
    assert metrics["skipped"] == 0
    assert np.isfinite(list(metrics.values())).all()
    unused = {"trunk.log_variance", "decoder", "onehot"} if name == "autoencoder_bn" else set()  # of no weight
    same = {key for key, x in agent.model.state_dict().items() if x.equal(before[key]) and x.dtype.is_floating_point}
    assert {key for key in same if not any(part in key for part in unused)} == set()


def test_precision_is_that_of_the_gradients() -> None:
    picture = {"state": torch.randint(0, 255, (64, 84, 84, 1), dtype=torch.uint8)}
    found = []
    for precision in ("fp32", "bf16"):
        torch.manual_seed(0)
        network = Conv(Config(precision=precision))
        network(picture)[0].square().mean().backward()
        found.append([x.grad for x in network.parameters() if x.grad is not None])
    for exact, rough in zip(*found, strict=True):
        assert 0 < (rough - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize(
    "name", ["shared", "autoencoder", "autoencoder_normalised", "attention", "conv_patches", "transformer"]
)
def test_what_a_network_sees_is_one_picture(name: str, tmp_path: Path) -> None:
    agent, _ = playing(**NETWORKS[name])
    envs = Flicker(1)
    player = Player(envs, agent, predictor(agent, SHAPES(envs, agent.ppo.settings), 0), None, ())  # type: ignore[arg-type]
    game = played(player, 1, 30)
    steps = len(game.frames)
    assert 5 < steps < 30  # the game has ended
    assert game.logits.shape == (steps, 6)
    assert ("attention" in game.of_layers) == (name in ("attention", "conv_patches", "transformer"))
    if "attention" in game.of_layers:
        np.testing.assert_allclose(game.of_layers["attention"].sum(-1), 1.0, rtol=1e-5)
    draw(game, agent.model, name, tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.width == 1080
        assert np.asarray(picture).std() > 20


@pytest.mark.parametrize("name", ["shared", "attention", "transformer"])
def test_a_batch_without_a_valid_row_makes_no_step(name: str) -> None:
    agent, chunks = playing(**NETWORKS[name])
    chunk = next(chunks)
    chunk.valid[:] = False
    before = [x.clone() for x in agent.model.parameters()]
    assert Training(agent).learn(chunk)["rows"] == 0
    assert all(x.equal(y) for x, y in zip(agent.model.parameters(), before, strict=True))


@pytest.mark.parametrize("when", ["updates", "always"])
def test_batch_norm_acts_with_the_statistics_of_updates_or_of_each_call(when: str) -> None:
    agent, chunks = playing(network="autoencoder", shared_trunk=True, batch_norm=when)
    seen = {"state": torch.from_numpy(next(chunks).obs["state"][:, 0])}
    with torch.no_grad():
        alone = torch.cat([agent.greedy({"state": frame[None]})["logits"] for frame in seen["state"]])
        together = agent.greedy(seen)["logits"]
    assert torch.allclose(alone, together, atol=1e-6) == (when == "updates")


def test_the_gradient_of_each_loss_at_a_layer_is_a_curve() -> None:
    agent, chunks = playing(
        network="autoencoder", shared_trunk=True, reconstruction_coef=1.0, layer="trunk.conv.layers.0.weight"
    )
    metrics = Training(agent).learn(next(chunks))
    names = ("policy_loss", "entropy", "value_loss", "reconstruction_loss", "divergence_loss")
    assert {f"{name}_grad_norm" for name in names} <= metrics.keys()
    assert metrics["reconstruction_loss_grad_norm"] > 0 == metrics["divergence_loss_grad_norm"]


@pytest.mark.parametrize("past", [1, 3, 40])
def test_attention_gets_the_features_of_its_episode_alone(past: int) -> None:
    """The counted frames of three chunks: what is allowed is what was played since the episode began."""
    _, chunks = playing(network="attention", shared_trunk=True, past=past)
    ages = np.zeros(3, np.int64)
    features: list[list[Array]] = [[], [], []]
    for _ in range(3):
        chunk = next(chunks)
        rows = rows_of(Past.inputs(chunk, torch.device("cpu")), torch.arange(3 * 13))
        seen = {name: x.unflatten(0, (3, 13)).numpy() for name, x in rows.items()}
        for env in range(3):
            for step in range(12):
                ages[env] = 0 if chunk.first[env, step] else ages[env]
                age = min(past, ages[env])
                assert seen["age"][env, step] == age
                known = features[env][len(features[env]) - age :]
                assert seen["past"][env, step, past - age :].tolist() == [one.tolist() for one in known]
                features[env].append(chunk.extra["features"][env, step])
                ages[env] += 1
                if seen["has_next"][env, step]:
                    assert np.array_equal(seen["next"][env, step], chunk.extra["features"][env, step + 1])
        assert seen["has_next"][:, :-2].all()
        assert not seen["has_next"][:, -2:].any()


@settings(max_examples=40, deadline=None)
@given(age=st.lists(st.integers(0, 6), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_no_gradient_comes_from_a_masked_feature_and_no_row_is_masked_wholly(age: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    trunk = Attending(Config(network="attention", shared_trunk=True, past=6))
    past = torch.randn(len(age), 6, 256, requires_grad=True)
    frame = torch.randint(256, (len(age), 84, 84, 1), dtype=torch.uint8)
    out, _ = trunk({"state": frame, "past": past, "age": torch.tensor(age)})
    assert out.isfinite().all()
    out.square().sum().backward()
    assert past.grad is not None
    reached = past.grad.abs().sum(2) > 0
    assert reached.tolist() == [[place >= 6 - own for place in range(6)] for own in age]


@pytest.mark.parametrize("more", [{}, {"positions": True}, {"broken_mask": True}])
def test_attention_is_that_of_keys_and_values(more: dict[str, bool]) -> None:
    torch.manual_seed(0)
    trunk = Attending(Config(network="attention", shared_trunk=True, past=6, **more))
    if trunk.positions is not None:
        nn.init.normal_(trunk.positions)
    obs = {"state": torch.randint(256, (3, 84, 84, 1), dtype=torch.uint8), "past": torch.randn(3, 6, 256)}
    age = torch.tensor([0, 4, 6])
    out, more_out = trunk({**obs, "age": age})
    features = trunk.conv(obs)[0]
    for row in range(3):
        known = torch.cat((obs["past"][row], features[row : row + 1]))
        masked = torch.arange(6, -1, -1) > age[row]
        known[masked] = 0.0
        known = known if trunk.positions is None else known + trunk.positions
        scores = trunk.key(known) @ trunk.query(features[row]) / 16
        weights = torch.softmax(scores if trunk.broken_mask else scores.masked_fill(masked, -torch.inf), 0)
        wanted = weights @ trunk.value(known)
        torch.testing.assert_close(more_out["attended"][row], wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out[row], torch.cat((features[row], wanted)), rtol=1e-4, atol=1e-5)


EXPORTED = [
    "difference", "autoencoder_bn", "attention", "attention_broken", "attention_normalised", "transformer",
    "conv_patches",
]  # fmt: skip


@pytest.mark.skipif(any(find_spec(name) is None for name in ("onnx", "onnxruntime")), reason="needs the extra [onnx]")
@pytest.mark.parametrize("name", EXPORTED)
def test_a_network_is_exported_with_its_memory(name: str, tmp_path: Path) -> None:
    agent, _ = playing(**NETWORKS[name])
    if agent.ppo.settings.normalises:
        agent.model.get_submodule("observations").learn({"state": torch.from_numpy(Flicker(64).obs()["state"])})
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight += 0.05 * torch.randn_like(weight)  # so that actions differ
    envs, config = Flicker(8), Config(chunk_length=12, **NETWORKS[name])
    spec = SHAPES(envs, config)
    agent.model.eval()
    write_onnx(agent, spec, envs, tmp_path / "model.onnx")
    assert not agent.model.training
    exported, predict = OnnxPolicy(tmp_path / "model.onnx"), predictor(agent, spec, 0)
    slot, first, none = np.arange(8), np.ones(8, np.bool_), np.zeros(8, np.float32)
    for _ in range(8):
        obs = envs.obs()
        assert (exported.act(obs, first) == predict(obs, PredictContext(slot, first, none))[0]).all()
        first = envs.random.random(8) < 0.3


def test_the_shipped_model_fits_and_is_small() -> None:
    folder = ROOT / "realm" / "zoo" / "pong" / "shipped"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 1_000_000
    config = load_config(folder / "config.toml")
    spec = Spec({"state": Field((42, 42, 1), "uint8")}, ActionSpec(n=6), {"log_prob": Field((), "float32")}, 64)
    agent = make_agent(config, spec, "cpu", 1)
    assert load_bytes(agent.model, find(folder / "ckpt", 489).weights) == []
    assert not not_finite(agent.model.state_dict())


@needs_ale
def test_the_shipped_model_is_of_these_environments() -> None:
    config = load_config(ROOT / "realm" / "zoo" / "pong" / "shipped" / "config.toml")
    spec = load_definition(config.app.algo).spec(make_envs(config, 1, 1), hyper_of(config))
    assert find(ROOT / "realm" / "zoo" / "pong" / "shipped" / "ckpt", 489).schema == spec.schema
