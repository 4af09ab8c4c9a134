"""Returns and losses against slow literal NumPy loops written from the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from realm import returns
from realm.chunk import ChunkBuilder
from realm.contract import ActionSpec, Field, Prediction, Spec, Version

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


def literal_gae(
    reward: F64, value: F64, terminated: Bools, truncated: Bools, valid: Bools, gamma: F64, lam: float
) -> tuple[F64, F64]:
    """Sums the exponentially weighted deltas of each row, forwards, until its trace ends."""
    rows, steps = reward.shape
    advantage, target = np.zeros((rows, steps)), np.zeros((rows, steps))
    for b in range(rows):
        for t in range(steps):
            if not valid[b, t]:
                continue
            weight = 1.0
            for k in range(t, steps):
                following = 0.0 if terminated[b, k] else value[b, k + 1]
                advantage[b, t] += weight * (reward[b, k] + gamma[b, k] * following - value[b, k])
                if terminated[b, k] or truncated[b, k] or (k + 1 < steps and not valid[b, k + 1]):
                    break
                weight *= gamma[b, k] * lam
            target[b, t] = advantage[b, t] + value[b, t]
    return advantage, target


def literal_vtrace(
    reward: F64,
    value: F64,
    ratio: F64,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    gamma: F64,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[F64, F64]:
    """vs as the sum over n >= t of gamma^(n-t) (product of c) rho delta, literally."""
    rows, steps = reward.shape

    def last(b: int, t: int) -> bool:
        return bool(terminated[b, t] or truncated[b, t] or (t + 1 < steps and not valid[b, t + 1]) or t + 1 == steps)

    def corrected(b: int, t: int) -> float:
        total, weight = float(value[b, t]), 1.0
        for k in range(t, steps):
            following = 0.0 if terminated[b, k] else value[b, k + 1]
            delta = min(rho_clip, ratio[b, k]) * (reward[b, k] + gamma[b, k] * following - value[b, k])
            total += weight * delta
            if last(b, k):
                break
            weight *= gamma[b, k] * lam * min(c_clip, ratio[b, k])
        return total

    advantage, target = np.zeros((rows, steps)), np.zeros((rows, steps))
    for b in range(rows):
        for t in range(steps):
            if not valid[b, t]:
                continue
            target[b, t] = corrected(b, t)
            following = value[b, t + 1] if last(b, t) else corrected(b, t + 1)
            following *= not terminated[b, t]
            advantage[b, t] = min(rho_clip, ratio[b, t]) * (reward[b, t] + gamma[b, t] * following - value[b, t])
    return advantage, target


def random_stream(seed: int, rows: int, steps: int, end_rate: float) -> dict[str, NDArray[np.generic]]:
    """Rows as a ChunkBuilder would cut them: a reset row after each end, which may be the first of the chunk."""
    rng = np.random.default_rng(seed)
    ends = rng.random((rows, steps)) < end_rate
    kind = rng.random((rows, steps)) < 0.5
    valid = np.ones((rows, steps), np.bool_)
    ended = rng.random(rows) < end_rate
    for t in range(steps):
        valid[:, t] = ~ended
        ends[:, t] &= valid[:, t]
        ended = ends[:, t]
    return {
        "reward": np.where(valid, rng.normal(size=(rows, steps)), 0.0),
        "value": rng.normal(size=(rows, steps + 1)),
        "log_ratio": rng.normal(size=(rows, steps)) * 0.5,
        "terminated": ends & kind,
        "truncated": ends & ~kind,
        "valid": valid,
        "discount": rng.uniform(0.5, 1.0, (rows, steps)),
    }


def tensors(stream: dict[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in stream.items()}


streams = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.5, 1.0])
)


@settings(max_examples=150, deadline=None)
@given(streams, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]), st.booleans())
def test_gae_is_the_literal_sum(shape: tuple[int, int, int, float], gamma: float, lam: float, durations: bool) -> None:
    stream = random_stream(*shape)
    t = tensors(stream)
    got = returns.gae(
        t["reward"],
        t["value"],
        t["terminated"],
        t["truncated"],
        t["valid"],
        gamma,
        lam,
        discount=t["discount"] if durations else None,
    )
    gamma_t = stream["discount"] if durations else np.full(stream["reward"].shape, gamma)
    want = literal_gae(
        stream["reward"], stream["value"], stream["terminated"], stream["truncated"], stream["valid"], gamma_t, lam
    )
    np.testing.assert_allclose(got[0].numpy(), want[0], atol=1e-10)
    np.testing.assert_allclose(got[1].numpy(), want[1], atol=1e-10)


@settings(max_examples=150, deadline=None)
@given(streams, st.sampled_from([0.9, 1.0]), st.sampled_from([0.9, 1.0]), st.sampled_from([(1.0, 1.0), (2.0, 1.0)]))
def test_vtrace_is_the_literal_sum(
    shape: tuple[int, int, int, float], gamma: float, lam: float, clips: tuple[float, float]
) -> None:
    stream = random_stream(*shape)
    t = tensors(stream)
    args = (t["reward"], t["value"], t["log_ratio"], t["terminated"], t["truncated"], t["valid"])
    got = returns.vtrace(*args, gamma, lam, rho_clip=clips[0], c_clip=clips[1])
    want = literal_vtrace(
        stream["reward"],
        stream["value"],
        np.exp(stream["log_ratio"]),
        stream["terminated"],
        stream["truncated"],
        stream["valid"],
        np.full(stream["reward"].shape, gamma),
        lam,
        *clips,
    )
    np.testing.assert_allclose(got[0].numpy(), want[0], atol=1e-10)
    np.testing.assert_allclose(got[1].numpy(), want[1], atol=1e-10)


def test_vtrace_of_the_acting_policy_has_the_targets_of_gae() -> None:
    t = tensors(random_stream(3, 5, 20, 0.1))
    ends = (t["terminated"], t["truncated"], t["valid"])
    _, target = returns.gae(t["reward"], t["value"], *ends, 0.99, 0.9)
    _, vs = returns.vtrace(t["reward"], t["value"], torch.zeros_like(t["reward"]), *ends, 0.99, 0.9)
    torch.testing.assert_close(vs, target)


def test_one_chunk_by_hand() -> None:
    """The drawing of `contract`: an episode ends at step 1, row 2 is the reset."""
    reward = torch.tensor([[1.0, 2.0, 0.0, 3.0]])
    value = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0]])
    valid = torch.tensor([[True, True, False, True]])
    at_1 = torch.tensor([[False, True, False, False]])
    never = torch.zeros_like(at_1)
    advantage, target = returns.gae(reward, value, at_1, never, valid, 0.5, 0.5)
    assert advantage.tolist() == [[1 + 10 - 10 + 0.25 * (2 - 20), 2 - 20, 0.0, 3 + 25 - 40]]
    assert target.tolist() == [[advantage[0, 0].item() + 10, 2.0, 0.0, 28.0]]
    advantage, _ = returns.gae(reward, value, never, at_1, valid, 0.5, 0.5)
    assert advantage[0, 1] == 2 + 0.5 * 30 - 20, "a truncated step bootstraps from the true last observation"


def test_two_chunks_give_what_one_long_chunk_gives_when_lam_is_0() -> None:
    """Chunk borders: the bootstrap at obs[T] is the value at the next chunk's obs[0]."""
    t = tensors(random_stream(5, 3, 16, 0.2))
    names = ("terminated", "truncated", "valid")
    long, _ = returns.gae(t["reward"], t["value"], *(t[n] for n in names), 0.9, 0.0)
    for part in (slice(0, 8), slice(8, 16)):
        value = t["value"][:, part.start : part.stop + 1]
        short, _ = returns.gae(t["reward"][:, part], value, *(t[n][:, part] for n in names), 0.9, 0.0)
        torch.testing.assert_close(short, long[:, part])


def test_targets_of_built_chunks_are_the_true_returns() -> None:
    """ChunkBuilder and `gae` with lam 1 over three chunks, V exact: episodes of 5 steps of reward 1, then the reset."""
    gamma, length, chunk_length = 0.9, 5, 4
    spec = Spec({"t": Field((), "float32")}, ActionSpec(n=2), {}, chunk_length)
    builder = ChunkBuilder(spec, {"t": np.zeros(1, np.float32)})
    prediction = Prediction(np.zeros(1, np.int64), {}, Version(1, 1))
    now, chunks, resets = 0, 0, 0
    while chunks < 3:
        reset = now == length
        now = 0 if reset else now + 1
        reward = np.array([99.0 if reset else 1.0], np.float32)  # what comes back with a reset must not count
        builder.step(
            prediction, reward, np.array([now == length]), np.array([False]), {"t": np.array([now], np.float32)}
        )
        if not builder.full:
            continue
        chunk = builder.take()
        value = torch.from_numpy(((1 - gamma ** (length - chunk.obs["t"])) / (1 - gamma)).astype(np.float32))
        ends = (torch.from_numpy(array) for array in (chunk.terminated, chunk.truncated, chunk.valid))
        advantage, target = returns.gae(torch.from_numpy(chunk.reward), value, *ends, gamma, 1.0)
        np.testing.assert_allclose(advantage.numpy(), 0.0, atol=1e-5)
        np.testing.assert_allclose(target.numpy(), np.where(chunk.valid, value.numpy()[:, :-1], 0.0), atol=1e-5)
        resets += int((~chunk.valid).sum())
        chunks += 1
    assert resets == 2


# ---- losses ----


def rows(seed: int, n: int = 200) -> tuple[F64, F64, F64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=n) * 0.5, rng.normal(size=n) * 0.5, rng.normal(size=n)


@pytest.mark.parametrize("weight_clip", [1.5, float("inf")])
def test_policy_losses_are_the_literal_ones(weight_clip: float) -> None:
    log_ratio, log_weight, advantage = rows(1)
    clip = 0.2
    plain, decoupled = [], []
    for lr, lw, a in zip(log_ratio, log_weight, advantage, strict=True):
        r = np.exp(lr)
        surrogate = min(r * a, min(max(r, 1 - clip), 1 + clip) * a)
        plain.append(-surrogate)
        decoupled.append(-min(np.exp(lw), weight_clip) * surrogate)
    lr_t, lw_t, a_t = (torch.from_numpy(x) for x in (log_ratio, log_weight, advantage))
    np.testing.assert_allclose(returns.clipped_policy_loss(lr_t, a_t, clip).numpy(), plain)
    np.testing.assert_allclose(returns.decoupled_policy_loss(lr_t, lw_t, a_t, clip, weight_clip).numpy(), decoupled)


def test_decoupled_loss_with_fresh_samples_is_the_plain_one() -> None:
    log_ratio, _, advantage = (torch.from_numpy(x) for x in rows(2))
    same = returns.decoupled_policy_loss(log_ratio, torch.zeros_like(log_ratio), advantage, 0.2, 10.0)
    torch.testing.assert_close(same, returns.clipped_policy_loss(log_ratio, advantage, 0.2))


def test_value_losses_are_the_literal_ones() -> None:
    value, target, old = rows(3)
    t = [torch.from_numpy(x) for x in (value, target, old)]
    np.testing.assert_allclose(returns.value_loss(t[0], t[1]).numpy(), 0.5 * (value - target) ** 2)
    want = [
        0.5 * max((v - g) ** 2, (o + min(max(v - o, -0.1), 0.1) - g) ** 2)
        for v, g, o in zip(value, target, old, strict=True)
    ]
    np.testing.assert_allclose(returns.value_loss(*t, clip=0.1).numpy(), want)


def test_masked_policy_gives_illegal_actions_no_probability_and_no_entropy() -> None:
    rng = np.random.default_rng(4)
    logits, legal = rng.normal(size=(50, 6)) * 3, rng.random((50, 6)) < 0.6
    legal[:, 2] = True
    log_probs = returns.masked_log_softmax(torch.from_numpy(logits), torch.from_numpy(legal))
    entropy = returns.entropy(log_probs)
    for i in range(50):
        exp = np.exp(logits[i][legal[i]])
        p = exp / exp.sum()
        np.testing.assert_allclose(log_probs[i][torch.from_numpy(legal[i])].exp(), p, rtol=1e-5)
        np.testing.assert_allclose(entropy[i], -(p * np.log(p)).sum(), atol=1e-5)
    assert (log_probs.exp()[~torch.from_numpy(legal)] == 0).all()


def test_entropy_has_finite_gradients() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    legal = torch.tensor([[True, True, False]])
    returns.entropy(returns.masked_log_softmax(logits, legal)).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] == 0


def test_diagnostics() -> None:
    log_ratio, log_weight, target = rows(5)
    lr, lw, tg = (torch.from_numpy(x) for x in (log_ratio, log_weight, target))
    r, w = np.exp(log_ratio), np.exp(log_weight)
    assert returns.approx_kl(lr).item() == pytest.approx(np.mean(r - 1 - log_ratio))
    assert returns.clip_fraction(lr, 0.2).item() == pytest.approx(np.mean(np.abs(r - 1) > 0.2))
    assert returns.effective_sample_size(lw).item() == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()))
    assert returns.effective_sample_size(torch.full((5,), 3.0)).item() == pytest.approx(1.0)
    assert returns.effective_sample_size(torch.full((5, 7), 3.0)).item() == pytest.approx(1.0)
    numbers = lr[:30].reshape(10, 3)  # of an action each has its own ratio, and the KL of all is the sum
    assert returns.approx_kl(numbers) == pytest.approx(3 * returns.approx_kl(numbers.flatten()))
    value = tg * 0.5 + 3.0
    assert returns.explained_variance(value, tg).item() == pytest.approx(0.75)
    assert returns.explained_variance(value, torch.ones_like(value)).item() == 0.0
