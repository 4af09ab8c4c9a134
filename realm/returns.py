"""Returns and losses: from rewards, values and log-probabilities to what a gradient is taken of.

Pure functions on torch tensors, called by an agent's `learn`; no state, no networks, no options read from elsewhere.
It imports torch, so only processes that hold weights import it.
Axes: B chunks, T steps, A actions, n rows of a minibatch. `value` has T + 1 columns because `obs` has: column t is
V(obs[t]). Bootstrapping follows the drawing in `contract`: V(obs[t+1]) unless `terminated[t]`, and a trace ends where
an episode ends or where the next row is not valid. Rows that are not valid get zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

ILLEGAL_LOGIT = -1e9
"""Stands for minus infinity: its probability is exactly 0, and 0 * ILLEGAL_LOGIT is not NaN."""


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float,
    discount: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), backwards over the steps of each chunk.

        delta[t] = reward[t] + gamma V[t+1] (1 - terminated[t]) - V[t]
        A[t]     = delta[t] + gamma lam A[t+1], without the second term where the trace ends

    reward: f32 [B, T]
    value: f32 [B, T+1], V(obs)
    terminated, truncated, valid: bool [B, T]
    discount: f32 [B, T], used in place of gamma where steps differ in duration, or None
    Returns advantage f32 [B, T] and target f32 [B, T], advantage + V.
    """
    gamma_t = torch.full_like(reward, gamma) if discount is None else discount
    now = value[:, :-1]
    delta = reward + gamma_t * value[:, 1:] * ~terminated - now
    decay = gamma_t * lam * _goes_on(terminated, truncated, valid)
    advantage = torch.zeros_like(reward)
    trace = torch.zeros_like(reward[:, 0])
    for t in reversed(range(reward.shape[1])):
        trace = delta[:, t] + decay[:, t] * trace
        advantage[:, t] = trace
    return torch.where(valid, advantage, 0.0), torch.where(valid, advantage + now, 0.0)


def vtrace(
    reward: Tensor,
    value: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    discount: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace, off-policy corrected values (Espeholt et al. 2018, IMPALA, eq. 1 and section 4.2).

        rho[t]   = min(rho_clip, ratio[t]),  c[t] = lam min(c_clip, ratio[t])
        vs[t]    = V[t] + rho[t] delta[t] + gamma c[t] (vs[t+1] - V[t+1])
        A[t]     = rho[t] (reward[t] + gamma vs[t+1] - V[t])

    with delta as in `gae`; where the trace ends, vs[t+1] is V[t+1], and nothing follows where terminated.

    reward: f32 [B, T]
    value: f32 [B, T+1], V(obs)
    log_ratio: f32 [B, T], log pi(action) now minus log pi(action) of the policy that acted
    terminated, truncated, valid: bool [B, T]
    discount: f32 [B, T], used in place of gamma where steps differ in duration, or None
    Returns advantage f32 [B, T] and target f32 [B, T], which is vs.
    """
    gamma_t = torch.full_like(reward, gamma) if discount is None else discount
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), lam * ratio.clamp(max=c_clip)
    now, following = value[:, :-1], value[:, 1:]
    gamma_t = gamma_t * ~terminated
    delta = rho * (reward + gamma_t * following - now)
    goes_on = _goes_on(terminated, truncated, valid)
    decay = gamma_t * c * goes_on
    excess = torch.zeros_like(value)  # vs - V
    for t in reversed(range(reward.shape[1])):
        excess[:, t] = delta[:, t] + decay[:, t] * excess[:, t + 1]
    vs_following = following + excess[:, 1:] * goes_on
    advantage = rho * (reward + gamma_t * vs_following - now)
    return torch.where(valid, advantage, 0.0), torch.where(valid, now + excess[:, :-1], 0.0)


def _goes_on(terminated: Tensor, truncated: Tensor, valid: Tensor) -> Tensor:
    """bool [B, T]: whether the trace of step t reaches into step t + 1 of the same chunk."""
    next_valid = torch.ones_like(valid)  # nothing is known about row T: the bootstrap stands there
    next_valid[:, :-1] = valid[:, 1:]
    return ~terminated & ~truncated & next_valid


def masked_log_softmax(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Log-probabilities over the legal actions. logits: float [n, A]; legal: bool [n, A], or None: all are; returns
    f32 [n, A]."""
    masked = logits.float() if legal is None else torch.where(legal, logits.float(), ILLEGAL_LOGIT)
    return torch.log_softmax(masked, dim=-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Of each row's policy. log_probs: f32 [n, A], of `masked_log_softmax` (illegal actions add 0); returns f32 [n]."""
    bounded = log_probs.clamp(min=-80.0)  # of what is no float32, ILLEGAL_LOGIT's, exp takes twenty times as long
    return -(bounded.exp() * bounded).sum(dim=-1)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's clipped surrogate per row, to be minimised (Schulman et al. 2017, eq. 7).

        - min(r A, clip(r, 1 - clip, 1 + clip) A)

    log_ratio: f32 [n], log pi(action) minus log pi(action) of the policy that acted
    advantage: f32 [n]
    Returns f32 [n].
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def decoupled_policy_loss(
    log_ratio: Tensor, log_behaviour_weight: Tensor, advantage: Tensor, clip: float, weight_clip: float
) -> Tensor:
    """The surrogate with a proximal policy of its own, for samples of older policies, per row (Hilton et al. 2021,
    "Batch size-invariance for policy optimization", eq. 3).

        - min(w, weight_clip) min(r A, clip(r, 1 - clip, 1 + clip) A)

    log_ratio: f32 [n], log pi(action) minus log pi_proximal(action)
    log_behaviour_weight: f32 [n], log of w: log pi_proximal(action) minus log pi of the policy that acted
    advantage: f32 [n]
    weight_clip: bound of w, which is not in the paper (infinity leaves w as it is)
    Returns f32 [n].
    """
    weight = log_behaviour_weight.exp().clamp(max=weight_clip)
    return weight * clipped_policy_loss(log_ratio, advantage, clip)


def value_loss(value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float = 0.0) -> Tensor:
    """Half the squared error per row; with clip > 0 the larger of it and the one of a value kept near the old one.

    value, target, old_value: f32 [n]; returns f32 [n].
    """
    error = (value - target).square()
    if clip > 0.0 and old_value is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return 0.5 * error


def approx_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || new) estimated from samples of old, never negative: k3 of Schulman's note "Approximating KL
    divergence", mean of r - 1 - log r. log_ratio: f32 [n], log new minus log old, or [n, A] of the A numbers of
    an action, whose sum counts; returns f32 []."""
    return (log_ratio.expm1() - log_ratio).sum() / len(log_ratio)


def clip_fraction(log_ratio: Tensor, clip: float) -> Tensor:
    """Share of rows whose ratio lies outside 1 - clip to 1 + clip. log_ratio: f32 [n]; returns f32 []."""
    return ((log_ratio.exp() - 1.0).abs() > clip).float().mean()


def effective_sample_size(log_weight: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2), in (0, 1]: 1 when all weights are equal. log_weight: f32 [n] or [n, A]; returns f32."""
    weight = (log_weight - log_weight.max()).exp()
    return weight.sum().square() / (weight.numel() * weight.square().sum())


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant; 0 where the target does not
    vary. value, target: f32 [n]; returns f32 []."""
    variance = target.var(unbiased=False)
    unexplained = (target - value).var(unbiased=False)
    return torch.where(variance > 0, 1.0 - unexplained / variance.clamp(min=1e-12), torch.zeros_like(variance))
