"""PPO as a library: the loss against a slow literal version, what is chosen in its settings, further losses, sequences,
resuming, two threads, and what is not finite."""

from __future__ import annotations

import dataclasses
import io
import threading
from collections.abc import Generator, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm.algorithms.batch import Batch, of_a_pass
from realm.algorithms.distributions import Categorical
from realm.algorithms.losses import Loss, Outputs
from realm.algorithms.networks import Obs
from realm.algorithms.ppo import PPO
from realm.algorithms.settings import Settings
from realm.contract import Array, Arrays, Chunk, Learned, PredictContext, SampleInfo, chunk_to_arrays
from realm.errors import UserCodeError
from tests.corridor import ACTIONS, STATES, Training, context, copied


class EachAction(Settings):
    """Of networks that have a value of each action, if they are asked to."""

    advantages: ClassVar[tuple[str, ...]] = (*Settings.advantages, "q")


TINY = EachAction(
    minibatch_size=64, lr_start=3e-3, lr_end=1e-3, gamma_start=0.9, gamma_end=0.9, advantage="gae",
    value_source="actor",
)  # fmt: skip
VTRACE = {"advantage": "vtrace", "value_source": "learner"}


class Net(nn.Module):
    """Two small MLPs over `features`, or one with two heads."""

    def __init__(self, shared: bool, values: int = 1) -> None:
        super().__init__()
        self.actor_body = nn.Sequential(nn.Linear(STATES, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.actor_head, self.critic_head = nn.Linear(16, ACTIONS), nn.Linear(16, values)
        nn.init.orthogonal_(self.actor_head.weight, 0.01)
        if not shared:
            self.critic_body = nn.Sequential(nn.Linear(STATES, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())

    def actor(self, obs: Obs) -> Tensor:
        return self.actor_head(self.actor_body(obs["features"]))  # type: ignore[no-any-return]

    def critic(self, obs: Obs) -> Tensor:
        body = getattr(self, "critic_body", self.actor_body)
        return self.critic_head(body(obs["features"])).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


class Agent:
    def __init__(self, config: Settings, seed: int, **options: Any) -> None:
        torch.manual_seed(seed)
        values = ACTIONS if config.advantage == "q" else 1
        self.config, self.model = config, Net(config.shared_trunk, values)
        self.ppo = PPO(self.model, config, torch.device("cpu"), seed, **options)

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        return self.ppo.act(obs, context.explore)

    def learn(self, batch: Chunk, info: SampleInfo) -> Generator[None, None, Learned]:
        return (yield from self.ppo.update(batch, info))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encode(features: Array) -> Array:
    return features.astype(np.float32)


def make_agent(config: Settings = TINY, seed: int = 3, **options: Any) -> Agent:
    return Agent(config, seed, **options)


def play(agent: Agent, num_envs: int = 8) -> Iterator[Chunk]:
    return Training(agent).play(encode, num_envs)


def learn(agent: Agent, chunk: Chunk, update: int = 0) -> dict[str, float]:
    """One update, the first one, of weights with this number."""
    return Training(agent, update).learn(chunk)


def recorded(count: int, num_envs: int = 8) -> list[Chunk]:
    stream = play(make_agent(seed=9), num_envs)
    return [copied(next(stream)) for _ in range(count)]


def weights(agent: Agent) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in agent.model.state_dict().items()}


# ---- predict ----


def test_illegal_actions_are_never_chosen() -> None:
    agent, rng = make_agent(), np.random.default_rng(0)
    with torch.no_grad():  # strong preferences, so that a leak would show
        agent.model.actor_head.weight.normal_(0, 30)
    for explore in (0.0, 1.0):
        for _ in range(50):
            obs = {
                "features": encode(rng.normal(size=(64, STATES))),
                "legal": rng.random((64, ACTIONS)) < 0.3,
            }
            obs["legal"][np.arange(64), rng.integers(ACTIONS, size=64)] = True
            action, extra = agent.predict(obs, context(64, explore))
            assert obs["legal"][np.arange(64), action].all()
            assert np.isfinite(extra["log_prob"]).all()
            assert (extra["log_prob"] <= 0).all()


def test_actions_follow_the_policy_or_are_its_best() -> None:
    agent = make_agent()
    with torch.no_grad():
        agent.model.actor_head.weight.normal_(0, 1)
    n = 20_000
    obs = {"features": encode(np.ones((n, STATES))), "legal": np.ones((n, ACTIONS), np.bool_)}
    obs["legal"][:, 4] = False
    with torch.no_grad():
        logits = agent.model.actor({name: torch.from_numpy(x[:1]) for name, x in obs.items()})[0].double().numpy()
    logits[4] = -np.inf
    policy = np.exp(logits - logits.max())
    policy /= policy.sum()
    action, extra = agent.predict(obs, context(n))
    np.testing.assert_allclose(np.bincount(action, minlength=ACTIONS) / n, policy, atol=0.015)
    np.testing.assert_allclose(extra["log_prob"], np.log(policy[action]), atol=1e-4)
    best, extra = agent.predict(obs, context(n, explore=0.0))
    assert (best == policy.argmax()).all()
    np.testing.assert_allclose(extra["log_prob"], np.log(policy.max()), atol=1e-4)
    mixed = PredictContext(np.arange(n), np.zeros(n, np.bool_), (np.arange(n) % 2).astype(np.float32))
    action, _ = agent.predict(obs, mixed)
    assert (action[::2] == policy.argmax()).all()
    assert len(np.unique(action[1::2])) > 1


# ---- the loss ----


def literal_vtrace(chunk: Chunk, b: int, t: int, values: Array, logits: Array, config: Settings) -> tuple[float, float]:
    """Advantage and target of one row: the sums of Espeholt et al. 2018, eq. 1 and section 4.2, clipped at 1."""

    def ratio(k: int) -> float:
        exp = np.where(chunk.obs["legal"][b, k], np.exp(logits[k]), 0.0)
        return float(min(1.0, exp[chunk.action[b, k]] / exp.sum() / np.exp(chunk.extra["log_prob"][b, k])))

    def corrected(start: int) -> float:
        total, weight = float(values[start]), 1.0
        for k in range(start, chunk.reward.shape[1]):
            following = 0.0 if chunk.terminated[b, k] else values[k + 1]
            total += weight * ratio(k) * (chunk.reward[b, k] + config.gamma_start * following - values[k])
            if chunk.terminated[b, k] or chunk.truncated[b, k]:
                break
            weight *= config.gamma_start * config.lam * ratio(k)
        return total

    following = 0.0 if chunk.terminated[b, t] else float(values[t + 1]) if chunk.truncated[b, t] else corrected(t + 1)
    return ratio(t) * (chunk.reward[b, t] + config.gamma_start * following - values[t]), corrected(t)


def literal_loss(agent: Agent, chunk: Chunk, config: Settings) -> dict[str, float]:
    """One row after the other, from the formulas, in float64; before any gradient step."""
    with torch.no_grad():
        flat = {name: torch.from_numpy(x).flatten(0, 1) for name, x in chunk.obs.items()}
        logits_of, values_of = (x.double().numpy() for x in agent.model(flat))
    size, steps = chunk.reward.shape
    logits_of, values_of = logits_of.reshape(size, steps + 1, ACTIONS), values_of.reshape(size, steps + 1, -1)
    if config.advantage != "q":
        values_of = values_of[..., 0]
    rows = []
    for b in range(size):
        for t in range(steps):
            if not chunk.valid[b, t]:
                continue
            if config.advantage == "vtrace":
                rows.append((b, t, *literal_vtrace(chunk, b, t, values_of[b], logits_of[b], config)))
                continue
            if config.advantage == "q":
                means = []
                for at in (t, t + 1):
                    exp = np.where(chunk.obs["legal"][b, at], np.exp(logits_of[b, at]), 0.0)
                    means.append(float((exp / exp.sum() * values_of[b, at]).sum()))
                taken = values_of[b, t, chunk.action[b, t]]
                following = 0.0 if chunk.terminated[b, t] else means[1]
                rows.append((b, t, taken - means[0], chunk.reward[b, t] + config.gamma_start * following))
                continue
            advantage, weight = 0.0, 1.0
            for k in range(t, steps):
                following = 0.0 if chunk.terminated[b, k] else values_of[b, k + 1]
                advantage += weight * (chunk.reward[b, k] + config.gamma_start * following - values_of[b, k])
                if chunk.terminated[b, k] or chunk.truncated[b, k]:
                    break
                weight *= config.gamma_start * config.lam
            rows.append((b, t, advantage, advantage + values_of[b, t]))
    advantages = np.array([row[2] for row in rows])
    mean, std = advantages.mean(), advantages.std(ddof=1)
    policy_loss, value_loss, entropy, clipped, kl = [], [], [], [], []
    for b, t, advantage, target in rows:
        legal = chunk.obs["legal"][b, t]
        exp = np.where(legal, np.exp(logits_of[b, t]), 0.0)
        policy = exp / exp.sum()
        a = (advantage - mean) / (std + 1e-8)
        action = chunk.action[b, t]
        behaviour, proximal = np.exp(chunk.extra["log_prob"][b, t]), policy[action]
        if config.decoupled:
            weight, ratio = min(proximal / behaviour, config.behaviour_weight_clip), policy[action] / proximal
        elif config.advantage == "vtrace":  # the weight is in the advantage
            weight, ratio = 1.0, policy[action] / proximal
        else:
            weight, ratio = 1.0, policy[action] / behaviour
        bounded = min(max(ratio, 1 - config.clip), 1 + config.clip)
        policy_loss.append(-weight * min(ratio * a, bounded * a))
        clipped.append(abs(ratio - 1) > config.clip)
        kl.append(policy[action] / behaviour - 1 - np.log(policy[action] / behaviour))
        value = values_of[b, t, action] if config.advantage == "q" else values_of[b, t]
        value_loss.append(0.5 * (value - target) ** 2)
        entropy.append(-sum(p * np.log(p) for p in policy if p > 0))
    result = {
        "policy_loss": np.mean(policy_loss),
        "value_loss": np.mean(value_loss),
        "entropy": np.mean(entropy),
        "clip_fraction": np.mean(clipped),
        "approx_kl": np.mean(kl),
        "rows": len(rows),
    }
    result["loss"] = (
        result["policy_loss"] + config.vf_coef * result["value_loss"] - config.entropy_start * result["entropy"]
    )
    return {name: float(value) for name, value in result.items()}


LITERAL = ({}, {"decoupled": True}, VTRACE, {**VTRACE, "shared_trunk": True}, {"advantage": "q"})


@pytest.mark.parametrize("fields", [*LITERAL, {"advantage": "q", "shared_trunk": True, "decoupled": True}], ids=str)
def test_the_loss_of_an_update_is_the_literal_one(fields: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, epochs=1, minibatch_size=10**6, value_source="learner")
    config = dataclasses.replace(config, **fields)
    agent = make_agent(config, seed=4)
    with torch.no_grad():  # another policy than the one that acted
        agent.model.actor_head.weight.normal_(0, 0.3)
    chunk = recorded(3)[2]
    assert (~chunk.valid).any()
    assert chunk.terminated.any()
    want = literal_loss(agent, chunk, config)
    metrics = learn(agent, chunk, update=1)
    for name, value in want.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("fields", [{}, {"shared_trunk": True}], ids=str)
def test_metrics_do_not_depend_on_how_a_batch_is_cut(fields: dict[str, Any]) -> None:
    """Where weights hardly change: means over gradient steps, and what is known of the ratios of all rows."""
    chunk, told = recorded(3)[2], []
    for rows in (10**6, 16):
        config = dataclasses.replace(TINY, epochs=1, minibatch_size=rows, lr_start=1e-12, lr_end=1e-12, **fields)
        agent = make_agent(config, seed=4)
        with torch.no_grad():  # another policy than the one that acted
            agent.model.actor_head.weight.normal_(0, 1, generator=torch.Generator().manual_seed(1))
        told.append(learn(agent, chunk))
    whole, parts = told
    assert whole.keys() == parts.keys()
    assert 0 < whole["ess"] < 0.95
    assert whole["clip_fraction"] > 0.05
    for name in ("policy_loss", "value_loss", "entropy", "loss", "approx_kl", "clip_fraction", "ess", "rows"):
        # parts have the same number of rows to within one
        assert parts[name] == pytest.approx(whole[name], rel=0.03 if name != "ess" else 1e-4, abs=0.01), name


@pytest.mark.parametrize("fields", [{}, {"shared_trunk": True}], ids=str)
def test_weights_that_go_out_early_lack_half_of_the_gradient_steps(fields: dict[str, Any]) -> None:
    """They are those of an update of half the passes, policy and critic, and what the update comes to is the same."""
    chunk = recorded(3)[2]
    config = dataclasses.replace(TINY, epochs=4, minibatch_size=16, **VTRACE, **fields)

    def learned(epochs: int) -> dict[str, Tensor]:
        other = make_agent(dataclasses.replace(config, epochs=epochs), seed=4)
        learn(other, chunk, update=7)  # the chunk is of an older version
        return weights(other)

    agent, sent = make_agent(config, seed=4), []
    training = Training(agent, update=7)
    metrics = training.learn(chunk, lambda: sent.append(weights(agent)))
    assert metrics["skipped"] == 0
    (early,) = sent
    half, whole = learned(2), learned(4)
    for name, x in early.items():
        torch.testing.assert_close(x, half[name], rtol=0, atol=0)
        torch.testing.assert_close(agent.model.state_dict()[name], whole[name], rtol=0, atol=0)


def test_the_policy_is_computed_where_other_weights_have_acted() -> None:
    """Also weights with the newest number that went out in the middle of an update, and lack half of it."""
    agent = make_agent(dataclasses.replace(TINY, **VTRACE))
    training = Training(agent)
    stream = training.play(encode)
    asked, actor = [], agent.model.actor
    for early, computed in ((False, 0), (True, 0), (True, 1), (False, 1), (False, 0)):
        chunk = copied(next(stream))
        assert (chunk.version == training.version).all()
        asked.clear()

        def forward(obs: Obs) -> Tensor:
            asked.append(torch.is_grad_enabled())
            return actor(obs)

        agent.model.actor = forward  # type: ignore[method-assign]
        training.learn(chunk, (lambda: None) if early else None)
        agent.model.actor = actor  # type: ignore[method-assign]
        assert asked.count(False) == computed


def test_values_of_the_actor_are_those_of_the_learner_when_on_policy() -> None:
    agent = make_agent()
    chunk = copied(next(play(agent)))
    results = []
    for source in ("actor", "learner"):
        other = make_agent(dataclasses.replace(TINY, value_source=source))
        other.model.load_state_dict(agent.model.state_dict())
        results.append(learn(other, chunk))
    for name, value in results[0].items():
        assert results[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_a_critic_of_one_value_has_none_of_each_action() -> None:
    agent = make_agent(dataclasses.replace(TINY, advantage="q", value_source="learner"))
    agent.model = agent.ppo.network = Net(shared=False)
    with pytest.raises(UserCodeError, match="advantage is 'q', which needs actions of one of n, and a critic with a"):
        learn(agent, recorded(1)[0])


def test_vtrace_of_the_acting_policy_has_the_targets_of_gae() -> None:
    agent = make_agent()
    chunk = copied(next(play(agent)))
    by = {}
    for fields in ({"value_source": "learner"}, VTRACE):
        other = make_agent(dataclasses.replace(TINY, **fields))
        other.model.load_state_dict(agent.model.state_dict())
        by[other.config.advantage] = other.ppo.estimate(chunk, other.config.schedule(0), stale=False)
    torch.testing.assert_close(by["vtrace"].target, by["gae"].target)
    assert all(batch.proximal_log_prob is batch.log_prob for batch in by.values())


@pytest.mark.parametrize("fields", [{}, VTRACE], ids=str)
def test_a_step_with_a_discount_of_its_own_has_it_in_place_of_gamma(fields: dict[str, Any]) -> None:
    chunk = recorded(3)[2]
    own = dataclasses.replace(chunk, step={"discount": np.full(chunk.reward.shape, 0.5, np.float32)})
    targets = []
    for gamma, batch in ((0.5, chunk), (0.9, own), (0.9, chunk)):
        config = dataclasses.replace(TINY, gamma_start=gamma, gamma_end=gamma, **{"value_source": "learner", **fields})
        agent = make_agent(config, seed=4)
        targets.append(agent.ppo.estimate(batch, agent.config.schedule(0), stale=True).target)
    torch.testing.assert_close(targets[1], targets[0])
    assert not torch.allclose(targets[1], targets[2])


def test_vtrace_reads_no_action_of_a_row_that_is_not_valid() -> None:
    chunk = recorded(3)[2]
    results = []
    for junk in (0.0, -1e9, np.nan):
        agent, other = make_agent(dataclasses.replace(TINY, **VTRACE), seed=4), copied(chunk)
        assert (~other.valid).any()
        other.extra["log_prob"][~other.valid] = junk
        other.action[~other.valid] = 0 if junk == 0.0 else ACTIONS + 7
        results.append((learn(agent, other, update=1), agent.model.state_dict()))
    for metrics, weights in results[1:]:
        assert metrics == results[0][0]
        assert all(torch.equal(x, results[0][1][name]) for name, x in weights.items())


def test_a_shared_trunk_learns_from_both_heads() -> None:
    chunk, bodies = recorded(1)[0], []
    for vf_coef in (0.0, 0.5):  # without a bound of the gradient, which would join the heads anyway
        agent = make_agent(dataclasses.replace(TINY, shared_trunk=True, vf_coef=vf_coef, max_grad_norm=1e9))
        before = {name: x.clone() for name, x in agent.model.state_dict().items()}
        metrics = learn(agent, chunk)
        assert metrics["skipped"] == 0
        moved = {name for name, x in agent.model.state_dict().items() if not torch.equal(x, before[name])}
        heads = {"actor_head"} | ({"critic_head"} if vf_coef else set())
        assert {name.split(".")[0] for name in moved} == {"actor_body", *heads}
        bodies.append(agent.model.actor_body[0].weight)
    assert not torch.equal(*bodies)


def test_schedules_follow_the_env_steps() -> None:
    config = dataclasses.replace(TINY, total_env_steps=100, entropy_start=0.2, entropy_end=0.1)
    training, chunk = Training(make_agent(config)), recorded(1)[0]
    rows = int(chunk.valid.sum())
    first, second = training.learn(chunk), training.learn(chunk)
    assert (first["lr"], first["entropy_coef"]) == (pytest.approx(3e-3), pytest.approx(0.2))
    assert training.env_steps == 2 * rows
    assert rows >= 100
    assert (second["lr"], second["entropy_coef"]) == (pytest.approx(1e-3), pytest.approx(0.1))


def test_what_is_not_finite_changes_no_weight_and_is_counted() -> None:
    agent, chunk = make_agent(), recorded(1)[0]
    before = {name: x.clone() for name, x in agent.model.state_dict().items()}
    bad = copied(chunk)
    bad.reward[0, 3] = np.nan
    metrics = learn(agent, bad)
    assert metrics["skipped"] == agent.config.epochs * 2  # all of them: advantages are normalised over the batch
    bad = copied(chunk)
    bad.obs["features"][:, :, 0] = np.inf
    metrics = learn(agent, bad)
    assert metrics["skipped"] > 0
    for name, x in agent.model.state_dict().items():
        assert torch.equal(x, before[name]), name
    metrics = learn(agent, chunk)
    assert metrics["skipped"] == 0
    assert not torch.equal(agent.model.actor_head.weight, before["actor_head.weight"])
    assert all(torch.isfinite(x).all() for x in agent.model.state_dict().values())


def test_a_batch_without_valid_rows_changes_nothing() -> None:
    agent, chunk = make_agent(), copied(recorded(1)[0])
    before = {name: x.clone() for name, x in agent.model.state_dict().items()}
    chunk.valid[:] = False
    metrics = learn(agent, chunk)
    assert metrics["rows"] == 0
    assert all(torch.equal(x, before[name]) for name, x in agent.model.state_dict().items())


def test_read_only_batches_are_taken() -> None:
    chunk = recorded(1)[0]
    for array in chunk_to_arrays(chunk).values():
        array.flags.writeable = False
    learn(make_agent(), chunk)


# ---- resuming ----


def test_resuming_is_exact_to_the_bit() -> None:
    """Also from a state of a time when PPO counted env steps and updates itself."""
    batches = recorded(10)
    straight = Training(make_agent())
    for batch in batches:
        straight.learn(batch)
    first = Training(make_agent())
    for batch in batches[:5]:
        first.learn(batch)
    file = io.BytesIO()
    former = {**first.agent.ppo.state_dict(), "env_steps": 5, "updates": 5}
    torch.save({"model": first.agent.model.state_dict(), "agent": former}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = Training(make_agent(seed=77))
    second.agent.model.load_state_dict(saved["model"])
    second.agent.ppo.load_state_dict(saved["agent"])
    second.version, second.env_steps = first.version, first.env_steps
    for batch in batches[5:]:
        second.learn(batch)
    for name, x in straight.agent.model.state_dict().items():
        assert torch.equal(x, second.agent.model.state_dict()[name]), name
    obs = {name: x[:, 0] for name, x in batches[0].obs.items()}
    one, two = (it.agent.predict(obs, context(8))[0] for it in (straight, second))
    np.testing.assert_array_equal(one, two)


def test_policy_and_critic_learn_at_the_same_time_in_two_threads_and_the_same_as_in_one() -> None:
    config = dataclasses.replace(TINY, **VTRACE)
    chunk = recorded(3)[2]
    learned = []
    both = threading.Barrier(2, timeout=240)

    def meet(*_: object) -> None:
        both.wait()  # one after the other would never come to an end

    for threads in (1, 2):
        agent = make_agent(config)
        if threads == 2:
            for net in (agent.model.actor_body, agent.model.critic_body):
                net.register_forward_pre_hook(meet)
        torch.set_num_threads(threads)
        learn(agent, chunk)
        assert torch.get_num_threads() == threads
        learned.append(agent.model.state_dict())
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fields", [VTRACE, {"decoupled": True, "value_source": "actor"}], ids=str)
def test_the_policy_that_acted_is_known_where_it_is_the_one_that_learns(fields: dict[str, Any]) -> None:
    """Then its logits need not be computed again, and the update is the same but for rounding."""
    learned = []
    for stale in (False, True):
        agent = make_agent(dataclasses.replace(TINY, **fields))
        chunk = copied(next(play(agent)))
        nets, actor = [], agent.model.actor

        def asked(obs: dict[str, torch.Tensor], nets: list[bool] = nets, actor: Any = actor) -> torch.Tensor:
            nets.append(torch.is_grad_enabled())
            return actor(obs)  # type: ignore[no-any-return]

        agent.model.actor = asked
        learn(agent, chunk, update=stale)
        assert nets.count(False) == stale
        learned.append(agent.model.state_dict())
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-5, atol=1e-6)


# ---- what is chosen in the settings ----


@pytest.mark.parametrize(("advantage", "lam"), [("delta", 0.0), ("returns", 1.0)])
def test_advantages_of_one_step_and_of_returns(advantage: str, lam: float) -> None:
    chunk, known = recorded(3)[2], []
    for fields in ({"advantage": advantage, "lam": 0.5}, {"advantage": "gae", "lam": lam}):
        agent = make_agent(dataclasses.replace(TINY, value_source="learner", **fields))
        batch = agent.ppo.estimate(chunk, agent.config.schedule(0), stale=False)
        known.append((batch.advantage, batch.target))
    assert all(torch.equal(one, two) for one, two in zip(*known, strict=True))


def test_advantages_are_normalised_over_the_batch_or_each_minibatch() -> None:
    nothing, advantage = torch.zeros(3), torch.tensor([2.0, 4.0, 6.0])
    minibatch = Batch({}, None, nothing, nothing, nothing, nothing, advantage, nothing)
    for over, want in (("batch", advantage), ("minibatch", advantage / 2)):
        settings, seen = dataclasses.replace(TINY, normalise_over=over, normalise_advantage="std"), list[Batch]()
        agent, chunk = make_agent(settings), recorded(1)[0]
        agent.ppo._descend = lambda part, minibatch, now, seen=seen: seen.append(minibatch)  # type: ignore
        agent.ppo.gradient_step(minibatch, settings.schedule(0))
        assert len(seen) == 2  # policy and critic
        torch.testing.assert_close(seen[0].advantage, want)
        batch = agent.ppo.estimate(chunk, settings.schedule(0), stale=False)
        assert batch.valid is not None
        assert (float(batch.advantage[batch.valid].std()) == pytest.approx(1.0)) == (over == "batch")


def test_a_pass_takes_each_row_once_or_draws_as_many() -> None:
    settings, by = dataclasses.replace(TINY, minibatch_size=30), (torch.Generator().manual_seed(1), torch.device("cpu"))
    for minibatches, once in (("permuted", True), ("drawn", False)):
        parts = of_a_pass(100, 100, dataclasses.replace(settings, minibatches=minibatches), *by)
        assert [len(part) for part in parts] == [34, 33, 33]
        assert (len(torch.cat(parts).unique()) == 100) == once
        agent = make_agent(dataclasses.replace(TINY, minibatches=minibatches))
        assert learn(agent, recorded(1)[0])["skipped"] == 0
    assert [len(part) for part in of_a_pass(3, 100, settings, *by)] == [1, 1, 1]  # of chunks there are fewer


@pytest.mark.parametrize(("kl_stop", "passes"), [(0.0, 4), (1e-9, 1), (100.0, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_passes_end_once_the_policy_has_moved_too_far(kl_stop: float, passes: int, shared: bool) -> None:
    settings = dataclasses.replace(TINY, epochs=4, minibatch_size=10_000, kl_stop=kl_stop, shared_trunk=shared)
    agent, made = make_agent(settings), list[object]()
    step = agent.ppo.gradient_step
    agent.ppo.gradient_step = lambda *of: made.append(of) or step(*of)  # type: ignore
    metrics = learn(agent, recorded(1)[0])
    assert len(made) == passes
    assert metrics["approx_kl"] > 0


@pytest.mark.parametrize(("lr", "factor"), [(1e-6, 1.5), (0.1, 1 / 1.5)])
def test_the_learning_rate_follows_the_kl(lr: float, factor: float) -> None:
    settings = dataclasses.replace(TINY, lr_start=lr, lr_end=lr, kl_target=0.01)
    training, batches = Training(make_agent(settings)), recorded(3)
    rates = [training.learn(batch)["lr"] for batch in batches[:2]]
    assert rates == pytest.approx([lr, lr * factor])
    assert dataclasses.replace(settings, lr_end=0.0).schedule(10**9).lr == lr, "it alone follows the KL"
    resumed = make_agent(settings)
    resumed.ppo.load_state_dict(training.agent.ppo.state_dict())
    assert resumed.ppo.lr_scale == training.agent.ppo.lr_scale
    without = make_agent(dataclasses.replace(settings, kl_target=0.0))
    without.ppo.load_state_dict(training.agent.ppo.state_dict())
    assert without.ppo.lr_scale == 1.0
    assert settings.lr_scale(100.0, 0.0) == 100.0  # where a policy cannot move, it does not grow for ever
    assert settings.lr_scale(1.0, 0.01) == 1.0


@pytest.mark.parametrize("threads", [1, 2])
def test_advantages_may_be_estimated_again_in_each_pass(threads: int) -> None:
    config = dataclasses.replace(TINY, value_source="learner", epochs=3, advantage="vtrace", minibatch_size=30)
    torch.set_num_threads(threads)
    chunk, ends = recorded(3)[2], []
    for again, epochs in ((False, 1), (True, 1), (False, 3), (True, 3)):
        agent = make_agent(dataclasses.replace(config, estimate_each_pass=again, epochs=epochs))
        asked = []

        def critic(obs: Obs, asked: list[bool] = asked, critic: Any = agent.model.critic) -> Tensor:
            asked.append(torch.is_grad_enabled())
            return critic(obs)  # type: ignore[no-any-return]

        agent.model.critic = critic  # type: ignore[method-assign]
        assert learn(agent, chunk, update=1)["skipped"] == 0
        assert asked.count(False) == (2 * epochs - 1 if again else 1)  # in later passes for each half of the chunks
        ends.append(weights(agent))
    assert all(torch.equal(x, ends[1][name]) for name, x in ends[0].items())
    assert not all(torch.equal(x, ends[3][name]) for name, x in ends[2].items())


def test_a_later_pass_weighs_by_the_policy_before_the_update() -> None:
    """A second weight would count what the loss has in its ratio already. Only the critic is new."""
    agent = make_agent(dataclasses.replace(TINY, value_source="learner", advantage="vtrace"))
    chunk, now = recorded(3)[2], agent.config.schedule(0)
    first = agent.ppo.estimate(chunk, now, stale=True)
    with torch.no_grad():
        for name, weight in agent.model.named_parameters():
            if not name.startswith("critic"):
                weight += 0.3 * torch.randn_like(weight)
    later = agent.ppo.estimate(chunk, now, stale=True, proximal=first.proximal_log_prob)
    assert torch.equal(later.advantage, first.advantage)
    assert not torch.equal(agent.ppo.estimate(chunk, now, stale=True).advantage, first.advantage)


def test_the_learning_rate_stays_where_no_step_was_made_or_a_single_one() -> None:
    """Before its first step a policy has not moved."""
    agent = make_agent(dataclasses.replace(TINY, kl_target=0.01, epochs=1, minibatch_size=10_000), seed=9)
    learn(agent, recorded(1)[0])
    assert agent.ppo.lr_scale == 1.0
    agent = make_agent(dataclasses.replace(TINY, kl_target=0.01))
    chunk = recorded(3)[2]
    chunk.reward[:] = np.inf
    assert learn(agent, chunk, update=1)["skipped"] > 0
    assert agent.ppo.lr_scale == 1.0


def test_settings_that_do_not_go_together_are_one_sentence() -> None:
    for fields, sentence in (
        ({"minibatches": "some"}, "ppo.minibatches is 'some', it must be one of 'permuted', 'drawn'"),
        ({"normalise_over": "all"}, "ppo.normalise_over is 'all', it must be one of 'batch', 'minibatch'"),
        ({"estimate_each_pass": True}, "ppo.estimate_each_pass is True, it must be false if value_source is 'actor'"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            dataclasses.replace(TINY, **fields)


# ---- further losses ----


class Reconstructs(Net):
    """A shared trunk that gives a reconstruction of the observation for a further loss."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        self.decoder = torch.nn.Linear(16, STATES)

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Obs]:  # type: ignore[override]
        features = self.actor_body(obs["features"])
        return self.actor_head(features), self.critic_head(features).squeeze(-1), {"again": self.decoder(features)}


def error(minibatch: Batch, outputs: Outputs) -> Tensor:
    return torch.nn.functional.mse_loss(outputs.more["again"], minibatch.rows(minibatch.obs["features"]).float())


def test_a_further_loss_is_descended_and_has_a_curve() -> None:
    told = {}
    for coefficient in (0.0, 10.0):
        torch.manual_seed(1)
        agent = make_agent(dataclasses.replace(TINY, shared_trunk=True))
        agent.model = net = Reconstructs()
        agent.ppo = PPO(
            net, agent.config, torch.device("cpu"), 3, losses=[Loss("reconstruction_loss", error, coefficient)],
            layer="actor_body.0.weight",
        )  # fmt: skip
        training = Training(agent)
        stream = training.play(encode)
        told[coefficient] = [training.learn(next(stream)) for _ in range(30)]
    first, last = told[10.0][0], told[10.0][-1]
    assert last["reconstruction_loss"] < 0.2 * first["reconstruction_loss"]
    assert told[0.0][-1]["reconstruction_loss"] > 0.5 * told[0.0][0]["reconstruction_loss"]
    assert told[0.0][0]["reconstruction_loss_grad_norm"] == 0 < first["reconstruction_loss_grad_norm"]
    assert {"policy_loss_grad_norm", "entropy_grad_norm", "value_loss_grad_norm"} <= last.keys()


@pytest.mark.parametrize("of_critic", [False, True])
def test_the_norm_of_a_gradient_is_that_of_the_term_in_the_sum(of_critic: bool) -> None:
    body = "critic_body" if of_critic else "actor_body"

    def size(minibatch: Batch, outputs: Outputs) -> Tensor:
        return (outputs.value if of_critic else outputs.policy).square().mean()

    losses = [Loss("one", size, of_critic=of_critic), Loss("three", size, lambda now: 3.0, of_critic)]
    metrics = learn(make_agent(losses=losses, layer=f"{body}.0.weight"), recorded(1)[0])
    assert metrics["three"] == pytest.approx(metrics["one"])  # a curve is without the coefficient
    assert metrics["three_grad_norm"] == pytest.approx(3 * metrics["one_grad_norm"], rel=1e-4) != 0
    assert ("policy_loss_grad_norm" in metrics) != of_critic  # of the part of the network that has the layer
    with pytest.raises(ValueError, match=r"^the network has no parameter 'body'; it has actor_body\.0\.weight, "):
        make_agent(layer="body")


@pytest.mark.parametrize(
    ("function", "of_critic"),
    [
        (lambda minibatch, outputs: outputs.value.square().mean(), False),
        (lambda minibatch, outputs: outputs.entropy.mean(), True),
        (lambda minibatch, outputs: outputs.entropy, False),
        (lambda minibatch, outputs: 0.5, False),
    ],
    ids=["a value of the policy", "an entropy of the critic", "a vector", "a float"],
)
def test_a_loss_that_trains_nothing_is_refused(function: Any, of_critic: bool) -> None:
    with pytest.raises(UserCodeError, match="the loss 'own' must give one number"):
        learn(make_agent(losses=[Loss("own", function, of_critic=of_critic)]), recorded(1)[0])


def test_a_network_whose_critic_or_width_is_not_found_is_refused() -> None:
    net: Any = torch.nn.ModuleDict({"actor_head": torch.nn.Linear(STATES, ACTIONS)})
    with pytest.raises(
        UserCodeError, match=r"parameters actor_head\.weight, actor_head\.bias; .* must begin with critic"
    ):
        PPO(net, TINY, torch.device("cpu"), 3)
    chunk = recorded(1)[0]
    agent = make_agent(distribution=Categorical(ACTIONS + 1))
    with pytest.raises(UserCodeError, match=f"Net gives {ACTIONS} numbers .* must give {ACTIONS + 1} in this"):
        agent.ppo.act({name: x[:, 0] for name, x in chunk.obs.items()}, np.ones(len(chunk.reward), np.float32))


# ---- modes ----


@pytest.mark.parametrize("threads", [1, 2])
def test_only_gradient_steps_are_made_in_training_mode(threads: int) -> None:
    torch.set_num_threads(threads)
    config = dataclasses.replace(TINY, value_source="learner", decoupled=True, minibatch_size=30)
    agent = make_agent(config)
    agent.model.actor_body[1], agent.model.critic_body[1] = norms = nn.BatchNorm1d(16), nn.BatchNorm1d(16)
    agent.ppo = PPO(agent.model, config, torch.device("cpu"), 3)
    training, batches, chunk = Training(agent, 1), 0, recorded(3)[2]
    parts = max(1, round(int(chunk.valid.sum()) / 30))
    for _ in range(3):
        training.learn(chunk)
        batches += config.epochs * parts
        agent.predict({name: x[:, 0] for name, x in chunk.obs.items()}, context(8))
        assert [int(norm.num_batches_tracked) for norm in norms] == [batches, batches]
        assert not agent.model.training
