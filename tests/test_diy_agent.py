"""The agent: legal actions, the loss against a slow literal version, learning, resuming, and surviving NaN."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diy.algorithm.agent import FEW_ROWS, Agent
from diy.config import Config
from diy.feature.kernels import to_bfloat16
from realm.chunk import ChunkBuilder
from realm.contract import (
    ActionSpec,
    Array,
    Arrays,
    Chunk,
    Field,
    Learned,
    PredictContext,
    Prediction,
    SampleInfo,
    Spec,
    Version,
    arrays_to_chunk,
    chunk_to_arrays,
)
from realm.learn.trainer import complete

STATES, ACTIONS, T = 5, 6, 16
SPEC = Spec(
    obs={"features": Field((STATES,), "int16"), "legal": Field((ACTIONS,), "bool")},
    action=ActionSpec(n=ACTIONS),
    extra={"log_prob": Field((), "float32"), "value": Field((), "float32")},
    chunk_length=T,
)
TINY = Config(
    hidden=16,
    chunk_length=T,
    minibatch_size=64,
    precision="fp32",
    lr_start=3e-3,
    lr_end=1e-3,
    gamma_start=0.9,
    gamma_end=0.9,
    advantage="gae",
    value_source="actor",
)


def bfloat16(values: Array) -> Array:
    """As the small features are: i16."""
    out = np.empty(values.shape, np.int16)
    to_bfloat16(values.astype(np.float32), out)
    return out


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Corridor:
    """E walks over STATES cells; action 1 goes on, the others stay; the last cell pays 1 and ends. One action, other at
    each cell, is illegal. NEXT_STEP autoreset."""

    def __init__(self, num_envs: int) -> None:
        self.at = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, np.bool_)

    def obs(self) -> Arrays:
        legal = np.ones((len(self.at), ACTIONS), np.bool_)
        legal[np.arange(len(self.at)), 2 + self.at % 4] = False
        return {"features": bfloat16(np.eye(STATES))[self.at], "legal": legal}

    def step(self, action: Array) -> tuple[Array, Array, Array, Arrays]:
        assert self.obs()["legal"][np.arange(len(self.at)), action].all(), "an illegal action"
        self.at = np.where(self.over, 0, self.at + (action == 1))
        self.steps = np.where(self.over, 0, self.steps + 1)
        terminated = self.at == STATES - 1
        truncated = ~terminated & (self.steps >= 30)
        self.over = terminated | truncated
        return terminated.astype(np.float32), terminated, truncated, self.obs()


def make_agent(config: Config = TINY, seed: int = 3) -> Agent:
    return Agent(SPEC, config, "cpu", seed)


def context(rows: int, explore: float = 1.0) -> PredictContext:
    return PredictContext(np.arange(rows), np.zeros(rows, np.bool_), np.full(rows, explore, np.float32))


def info(chunks: int) -> SampleInfo:
    return SampleInfo(np.arange(chunks, dtype=np.uint64), np.ones(chunks), np.ones(chunks, np.int64))


def learn(agent: Agent, chunk: Chunk, info: SampleInfo, at_yield: Callable[[], None] | None = None) -> Learned:
    """An update; at_yield: takes the weights there."""

    def go_out() -> bool:
        if at_yield is not None:
            at_yield()
        return at_yield is not None

    return complete(agent.learn(chunk, info), go_out)


def play(agent: Agent, num_envs: int = 8) -> Iterator[Chunk]:
    """Endless chunks of the corridor; the agent may learn between two of them."""
    game = Corridor(num_envs)
    obs = game.obs()
    extra = {name: one for name, one in SPEC.extra.items() if name != "value" or agent.config.value_source == "actor"}
    chunks = ChunkBuilder(dataclasses.replace(SPEC, extra=extra), obs)
    while True:
        action, extra = agent.predict(obs, context(num_envs))
        reward, terminated, truncated, obs = game.step(action)
        chunks.step(Prediction(action, extra, Version(1, agent.ppo.updates)), reward, terminated, truncated, obs)
        if chunks.full:
            yield chunks.take()


def copied(chunk: Chunk) -> Chunk:
    return arrays_to_chunk({name: array.copy() for name, array in chunk_to_arrays(chunk).items()})


def recorded(count: int, num_envs: int = 8) -> list[Chunk]:
    stream = play(make_agent(seed=9), num_envs)
    return [copied(next(stream)) for _ in range(count)]


# ---- predict ----


def test_illegal_actions_are_never_chosen() -> None:
    agent, rng = make_agent(), np.random.default_rng(0)
    with torch.no_grad():  # strong preferences, so that a leak would show
        agent.model.actor_head.weight.normal_(0, 30)
    for explore in (0.0, 1.0):
        for _ in range(50):
            obs = {
                "features": bfloat16(rng.normal(size=(64, STATES))),
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
    obs = {"features": bfloat16(np.ones((n, STATES))), "legal": np.ones((n, ACTIONS), np.bool_)}
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


def literal_vtrace(chunk: Chunk, b: int, t: int, values: Array, logits: Array, config: Config) -> tuple[float, float]:
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


def literal_loss(agent: Agent, chunk: Chunk, config: Config) -> dict[str, float]:
    """One row after the other, from the formulas, in float64; before any gradient step."""
    with torch.no_grad():
        flat = {name: torch.from_numpy(x).flatten(0, 1) for name, x in chunk.obs.items()}
        logits_of, values_of = (x.double().numpy() for x in agent.model(flat))
    size, steps = chunk.reward.shape
    logits_of, values_of = logits_of.reshape(size, steps + 1, ACTIONS), values_of.reshape(size, steps + 1)
    rows = []
    for b in range(size):
        for t in range(steps):
            if not chunk.valid[b, t]:
                continue
            if config.advantage == "vtrace":
                rows.append((b, t, *literal_vtrace(chunk, b, t, values_of[b], logits_of[b], config)))
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
        value_loss.append(0.5 * (values_of[b, t] - target) ** 2)
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


VTRACE = {"advantage": "vtrace", "value_source": "learner"}


@pytest.mark.parametrize("fields", [{}, {"decoupled": True}, VTRACE, {**VTRACE, "shared_trunk": True}], ids=str)
def test_the_loss_of_an_update_is_the_literal_one(fields: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, epochs=1, minibatch_size=10**6, value_source="learner")
    config = dataclasses.replace(config, **fields)
    agent = make_agent(config, seed=4)
    with torch.no_grad():  # another policy than the one that acted
        agent.model.actor_head.weight.normal_(0, 0.3)
    agent.ppo.updates = 1
    chunk = recorded(3)[2]
    assert (~chunk.valid).any()
    assert chunk.terminated.any()
    want = literal_loss(agent, chunk, config)
    metrics, priorities = learn(agent, chunk, info(8))
    assert priorities is None
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
        told.append(learn(agent, chunk, info(8))[0])
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

    def weights(agent: Agent) -> dict[str, torch.Tensor]:
        return {name: x.clone() for name, x in agent.model.state_dict().items()}

    def learned(epochs: int) -> dict[str, torch.Tensor]:
        other = make_agent(dataclasses.replace(config, epochs=epochs), seed=4)
        other.ppo.updates = 7  # the chunk is of an older version
        learn(other, chunk, info(8))
        return weights(other)

    agent, sent = make_agent(config, seed=4), []
    agent.ppo.updates = 7
    metrics, _ = learn(agent, chunk, info(8), lambda: sent.append((weights(agent), agent.save_model())))
    assert metrics["skipped"] == 0
    ((early, state),) = sent
    half, whole = learned(2), learned(4)
    for name, x in early.items():
        torch.testing.assert_close(x, half[name], rtol=0, atol=0)
        torch.testing.assert_close(agent.model.state_dict()[name], whole[name], rtol=0, atol=0)
    # a checkpoint there is one of this version, and one after it of the next
    assert (state["updates"], state["env_steps"]) == (8, int(chunk.valid.sum()))
    assert (agent.save_model()["updates"], agent.ppo.env_steps) == (9, int(chunk.valid.sum()))


def test_a_policy_that_has_moved_on_is_another_than_the_one_that_went_out() -> None:
    """Its batches are of the newest version, and yet of an older policy."""
    agent = make_agent(dataclasses.replace(TINY, **VTRACE))
    stream = play(agent)
    asked, actor = [], agent.model.actor
    for early, computed in ((False, 0), (True, 0), (True, 1), (False, 1), (False, 0)):
        chunk = copied(next(stream))
        assert (chunk.version[..., 1] == agent.ppo.updates).all()
        asked.clear()

        def forward(obs: dict[str, torch.Tensor]) -> torch.Tensor:
            asked.append(torch.is_grad_enabled())
            return actor(obs)  # type: ignore[no-any-return]

        agent.model.actor = forward
        learn(agent, chunk, info(8), (lambda: None) if early else None)
        agent.model.actor = actor
        assert asked.count(False) == computed


def test_values_of_the_actor_are_those_of_the_learner_when_on_policy() -> None:
    agent = make_agent()
    chunk = copied(next(play(agent)))
    results = []
    for source in ("actor", "learner"):
        other = make_agent(dataclasses.replace(TINY, value_source=source))
        other.model.load_state_dict(agent.model.state_dict())
        results.append(learn(other, chunk, info(8))[0])
    for name, value in results[0].items():
        assert results[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_vtrace_of_the_acting_policy_has_the_targets_of_gae() -> None:
    agent = make_agent()
    chunk = copied(next(play(agent)))
    by = {}
    for fields in ({"value_source": "learner"}, VTRACE):
        other = make_agent(dataclasses.replace(TINY, **fields))
        other.model.load_state_dict(agent.model.state_dict())
        by[other.config.advantage] = other.ppo.rows(chunk, other.ppo.schedule(), older=False)
    torch.testing.assert_close(by["vtrace"].log_centre, by["vtrace"].log_prob)
    torch.testing.assert_close(by["vtrace"].target, by["gae"].target)
    assert by["gae"].log_centre is by["gae"].log_prob


@pytest.mark.parametrize("fields", [{}, VTRACE], ids=str)
def test_a_step_with_a_discount_of_its_own_has_it_in_place_of_gamma(fields: dict[str, Any]) -> None:
    chunk = recorded(3)[2]
    own = dataclasses.replace(chunk, step={"discount": np.full(chunk.reward.shape, 0.5, np.float32)})
    targets = []
    for gamma, batch in ((0.5, chunk), (0.9, own), (0.9, chunk)):
        config = dataclasses.replace(TINY, gamma_start=gamma, gamma_end=gamma, **{"value_source": "learner", **fields})
        agent = make_agent(config, seed=4)
        targets.append(agent.ppo.rows(batch, agent.ppo.schedule(), older=True).target)
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
        results.append((learn(agent, other, info(8))[0], agent.model.state_dict()))
    for metrics, weights in results[1:]:
        assert metrics == results[0][0]
        assert all(torch.equal(x, results[0][1][name]) for name, x in weights.items())


def test_the_heads_on_a_shared_trunk_answer_alone_as_together() -> None:
    agent, separate = make_agent(dataclasses.replace(TINY, shared_trunk=True)), make_agent()
    flat = {name: torch.from_numpy(x).flatten(0, 1) for name, x in recorded(1)[0].obs.items()}
    calls = []
    agent.model.body.register_forward_hook(lambda *_: calls.append(1))
    logits, value = agent.model(flat)
    assert len(calls) == 1
    assert torch.equal(logits, agent.model.actor(flat))
    assert torch.equal(value, agent.model.critic(flat))

    def size(model: torch.nn.Module) -> int:
        return sum(x.numel() for x in model.parameters())

    assert size(separate.model) - size(agent.model) == size(agent.model.body)


def test_a_shared_trunk_learns_from_both_heads() -> None:
    chunk, bodies = recorded(1)[0], []
    for vf_coef in (0.0, 0.5):  # without a bound of the gradient, which would join the heads anyway
        agent = make_agent(dataclasses.replace(TINY, shared_trunk=True, vf_coef=vf_coef, max_grad_norm=1e9))
        before = {name: x.clone() for name, x in agent.model.state_dict().items()}
        metrics, _ = learn(agent, chunk, info(8))
        assert metrics["skipped"] == 0
        moved = {name for name, x in agent.model.state_dict().items() if not torch.equal(x, before[name])}
        heads = {"actor_head"} | ({"critic_head"} if vf_coef else set())
        assert {name.split(".")[0] for name in moved} == {"body", *heads}
        bodies.append(agent.model.body[0].weight)
    assert not torch.equal(*bodies)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"advantage": "td"}, "diy.advantage is 'td', it must be one of 'gae', 'vtrace'"),
        (
            {"advantage": "vtrace", "value_source": "actor"},
            "diy.value_source is 'actor', it must be 'learner' if advantage is 'vtrace'",
        ),
        ({**VTRACE, "decoupled": True}, "diy.decoupled is True, it must be false if advantage is 'vtrace'"),
        (
            {"features": "reference", "shared_trunk": True},
            "diy.shared_trunk is True, it must be false unless features is 'small'",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Config(**fields)


def test_schedules_follow_the_env_steps() -> None:
    config = dataclasses.replace(TINY, total_env_steps=100, entropy_start=0.2, entropy_end=0.1)
    agent, chunk = make_agent(config), recorded(1)[0]
    rows = int(chunk.valid.sum())
    first, _ = learn(agent, chunk, info(8))
    second, _ = learn(agent, chunk, info(8))
    assert (first["lr"], first["entropy_coef"]) == (pytest.approx(3e-3), pytest.approx(0.2))
    assert agent.ppo.env_steps == 2 * rows
    assert rows >= 100
    assert (second["lr"], second["entropy_coef"]) == (pytest.approx(1e-3), pytest.approx(0.1))


# ---- learning ----


@pytest.mark.parametrize("fields", [
    {}, {"decoupled": True}, {"precision": "bf16"}, {"value_clip": 0.2}, VTRACE, {"shared_trunk": True},
    {**VTRACE, "shared_trunk": True},
], ids=str)  # fmt: skip
def test_it_learns_the_corridor(fields: dict[str, Any]) -> None:
    agent = make_agent(dataclasses.replace(TINY, **fields))
    stream = play(agent)
    lengths = []
    for _ in range(60):
        chunk = next(stream)
        lengths.append(chunk.valid.sum() / max(1, chunk.terminated.sum()))
        metrics, _ = learn(agent, chunk, info(8))
    assert np.mean(lengths[:5]) > 10
    assert np.mean(lengths[-5:]) < 5  # the best is 4
    assert metrics["explained_variance"] > 0.5
    assert metrics["skipped"] == 0


def test_what_is_not_finite_changes_no_weight_and_is_counted() -> None:
    agent, chunk = make_agent(), recorded(1)[0]
    before = {name: x.clone() for name, x in agent.model.state_dict().items()}
    bad = copied(chunk)
    bad.reward[0, 3] = np.nan
    metrics, _ = learn(agent, bad, info(8))
    assert metrics["skipped"] == agent.config.epochs * 2  # all of them: advantages are normalised over the batch
    bad = copied(chunk)
    bad.obs["features"][:, :, 0] = bfloat16(np.array([[np.inf]]))[0, 0]
    metrics, _ = learn(agent, bad, info(8))
    assert metrics["skipped"] > 0
    for name, x in agent.model.state_dict().items():
        assert torch.equal(x, before[name]), name
    metrics, _ = learn(agent, chunk, info(8))
    assert metrics["skipped"] == 0
    assert not torch.equal(agent.model.actor_head.weight, before["actor_head.weight"])
    assert all(torch.isfinite(x).all() for x in agent.model.state_dict().values())


def test_a_batch_without_valid_rows_changes_nothing() -> None:
    agent, chunk = make_agent(), copied(recorded(1)[0])
    before = {name: x.clone() for name, x in agent.model.state_dict().items()}
    chunk.valid[:] = False
    metrics, _ = learn(agent, chunk, info(8))
    assert metrics["rows"] == 0
    assert all(torch.equal(x, before[name]) for name, x in agent.model.state_dict().items())


def test_read_only_batches_are_taken() -> None:
    chunk = recorded(1)[0]
    for array in chunk_to_arrays(chunk).values():
        array.flags.writeable = False
    learn(make_agent(), chunk, info(8))


# ---- resuming ----


def test_resuming_is_exact_to_the_bit() -> None:
    batches = recorded(10)
    straight = make_agent()
    for batch in batches:
        learn(straight, batch, info(8))
    first = make_agent()
    for batch in batches[:5]:
        learn(first, batch, info(8))
    file = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "agent": first.save_model()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = make_agent(seed=77)
    second.model.load_state_dict(saved["model"])
    second.load_model(saved["agent"])
    for batch in batches[5:]:
        learn(second, batch, info(8))
    for name, x in straight.model.state_dict().items():
        assert torch.equal(x, second.model.state_dict()[name]), name
    assert (second.ppo.env_steps, second.ppo.updates) == (straight.ppo.env_steps, straight.ppo.updates)
    obs = {name: x[:, 0] for name, x in batches[0].obs.items()}
    np.testing.assert_array_equal(straight.predict(obs, context(8))[0], second.predict(obs, context(8))[0])


def test_a_return_to_a_checkpoint_takes_no_number_back() -> None:
    """The trainer numbers the weights of a checkpoint anew, and `updates` says which rows are of an older policy."""
    batches = recorded(4)
    agent = make_agent()
    saved = agent.save_model()
    for batch in batches[:3]:
        learn(agent, batch, info(8))
    agent.load_model(saved)
    assert (agent.ppo.updates, agent.ppo.env_steps) == (3, 0)
    learning = agent.learn(batches[3], info(8))
    next(learning)
    with suppress(StopIteration):
        learning.send(True)  # these weights went out as version 4; the rest of the update spoils them
    agent.load_model(saved)
    assert agent.save_model()["updates"] == agent.ppo.updates == 5


def test_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = make_agent(seed=5)
    torch.manual_seed(2)
    two, other = make_agent(seed=5), make_agent(seed=6)
    assert torch.equal(one.model.actor_head.weight, two.model.actor_head.weight)
    assert not torch.equal(one.model.actor_head.weight, other.model.actor_head.weight)


# ---- the reference network ----


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_network_plays_and_learns(precision: str) -> None:
    from diy.feature.definition import make_envs, spec

    config = Config(
        features="reference",
        reward="reference",
        chunk_length=4,
        epochs=1,
        minibatch_size=8,
        precision=precision,
    )
    envs = make_envs(4, 1, config, {"treasure_num": 9})
    agent = Agent(spec(envs, config), config, "cpu", 1)
    obs, _ = envs.reset()
    chunks = ChunkBuilder(spec(envs, config), obs)
    while not chunks.full:
        action, extra = agent.predict(obs, context(4))
        obs, reward, terminated, truncated, _ = envs.step(action)
        chunks.step(Prediction(action, extra, Version(1, 0)), reward, terminated, truncated, obs)
    metrics, _ = learn(agent, chunks.take(), info(4))
    assert metrics["skipped"] == 0
    assert np.log(8) - 0.01 < metrics["entropy"] < np.log(16) + 0.01  # nearly uniform, some rows without a flash


def test_policy_and_critic_learn_at_the_same_time_in_two_threads_and_the_same_as_in_one() -> None:
    config = dataclasses.replace(TINY, **VTRACE)
    chunk = recorded(3)[2]
    learned = []
    both = threading.Barrier(2, timeout=20)

    def meet(*_: object) -> None:
        both.wait()  # one after the other would never come to an end

    for threads in (1, 2):
        agent = make_agent(config)
        if threads == 2:
            for net in (agent.model.actor_body, agent.model.critic_body):
                net.register_forward_pre_hook(meet)
        torch.set_num_threads(threads)
        learn(agent, chunk, info(8))
        assert torch.get_num_threads() == threads
        learned.append(agent.model.state_dict())
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fields", [VTRACE, {"decoupled": True, "value_source": "actor"}], ids=str)
def test_the_policy_that_acted_is_known_where_it_is_the_one_that_learns(fields: dict[str, Any]) -> None:
    """Then its logits need not be computed again, and the update is the same but for rounding."""
    learned = []
    for older in (False, True):
        agent = make_agent(dataclasses.replace(TINY, **fields))
        chunk = copied(next(play(agent)))
        chunk.version[..., 1] -= older
        nets, actor = [], agent.model.actor

        def asked(obs: dict[str, torch.Tensor], nets: list[bool] = nets, actor: Any = actor) -> torch.Tensor:
            nets.append(torch.is_grad_enabled())
            return actor(obs)  # type: ignore[no-any-return]

        agent.model.actor = asked
        learn(agent, chunk, info(8))
        assert nets.count(False) == older
        learned.append(agent.model.state_dict())
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, {"shared_trunk": True}])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_acts_with_the_weights_that_were_learned_or_loaded(precision: str, fields: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, precision=precision, **fields)
    agent, other = make_agent(config), make_agent(config, seed=7)
    chunk = recorded(3)[2]
    obs = {name: array[:, 0] for name, array in chunk.obs.items()}
    values = []
    for _ in range(3):
        learn(agent, chunk, info(8))
        other.model.load_state_dict(agent.model.state_dict())
        truth = agent.model({name: torch.from_numpy(array) for name, array in obs.items()})[1].detach().numpy()
        for one in (agent, other):
            np.testing.assert_array_equal(one.predict(obs, context(len(truth)))[1]["value"], truth)
        values.append(truth)
    assert (values[0] != values[1]).any()


def test_values_are_not_asked_for_where_the_learner_computes_them() -> None:
    agent = make_agent(dataclasses.replace(TINY, value_source="learner"))
    assert set(agent.predict(Corridor(4).obs(), context(4))[1]) == {"log_prob"}


def test_nobody_needs_the_compiler_of_torch() -> None:
    """Its import takes a second; `torch.optim.Adam` brings it."""
    code = """
import dataclasses, sys
import numpy as np
from test_diy_agent import SPEC, STATES, ACTIONS, TINY, Agent, PredictContext, info, learn, recorded
from realm.learn.checkpoint import load_bytes, to_bytes

for precision in ("fp32", "bf16"):
    agent = Agent(SPEC, dataclasses.replace(TINY, precision=precision), "cpu", 1)
    load_bytes(agent.model, to_bytes(agent.model))
    obs = {"features": np.zeros((4, STATES), np.int16), "legal": np.ones((4, ACTIONS), bool)}
    agent.predict(obs, PredictContext(np.arange(4), np.ones(4, bool), np.ones(4, np.float32)))
    learn(agent, recorded(3)[2], info(8))
    agent.load_model(agent.save_model())
print("torch._dynamo" in sys.modules)
"""
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(folder.parent)))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr


def test_a_few_rows_are_predicted_on_one_thread_and_many_on_all() -> None:
    agent, used = make_agent(), []
    agent.player.model().actor_head.register_forward_pre_hook(lambda *_: used.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    for rows in (1, FEW_ROWS, FEW_ROWS + 1):
        obs = {"features": bfloat16(np.zeros((rows, STATES))), "legal": np.ones((rows, ACTIONS), np.bool_)}
        agent.predict(obs, context(rows))
        assert torch.get_num_threads() == 2
    assert used == [1, 1, 2]
