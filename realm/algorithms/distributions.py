"""What the outputs of a policy's network mean to PPO: the distribution that an action is drawn from.

Categorical  one of A actions; outputs are its logits [n, A]
Product      several numbers, each one of its own actions; outputs are their logits side by side
Gaussian     A numbers; outputs are means and logs of standard deviations [n, 2 A]

Of several numbers the log-probability is that of all of them, f32 [n], or with `each` that of each, f32 [n, A].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from realm import returns
from realm.algorithms.choose import choose
from realm.algorithms.continuous import Scale, normal_log_density
from realm.algorithms.networks import Obs
from realm.contract import ActionSpec, Array, Arrays

_NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # with a standard deviation of 1


class Distribution(Protocol):
    """outputs: float [n, width] of `Network.actor`, of any width if it is 0; obs: name -> [n, ...], of which a mask
    `legal` counts."""

    width: int

    def act(self, outputs: Tensor, obs: Obs, explore: Array, generator: torch.Generator) -> tuple[Array, Arrays]:
        """Actions [n, ...] and what `learn` needs of them: log_prob f32 [n], and `drawn` where actions are cut after
        that. They are drawn where explore f32 [n] is 1, the most likely ones where it is 0. log_prob is that of
        the policy, whatever explore is."""

    def greedy(self, outputs: Tensor, obs: Obs) -> Obs:
        """The most likely action [n, ...], by torch alone (`contract.Agent`)."""

    def log_prob_and_entropy(self, outputs: Tensor, obs: Obs, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """Of an action, and of the policy, f32 [n] both."""


class Categorical:
    """One of A actions, of those that a mask `legal`, bool [n, A], allows."""

    def __init__(self, count: int = 0) -> None:
        self.width = count

    def act(self, outputs: Tensor, obs: Obs, explore: Array, generator: torch.Generator) -> tuple[Array, Arrays]:
        rows = len(outputs)
        legal = obs["legal"].cpu().numpy() if "legal" in obs else np.ones(outputs.shape, np.bool_)
        action, log_prob = np.empty(rows, np.int64), np.empty(rows, np.float32)
        uniform = torch.rand(rows, generator=generator).numpy()
        choose(outputs.cpu().numpy(), legal, explore.astype(np.float32), uniform, action, log_prob)
        return action, {"log_prob": log_prob}

    def greedy(self, outputs: Tensor, obs: Obs) -> Obs:
        """Also the logits f32 [n, A], -inf where an action is illegal."""
        logits = outputs.masked_fill(~obs["legal"], -torch.inf) if "legal" in obs else outputs
        return {"action": logits.argmax(-1), "logits": logits}

    def log_prob_and_entropy(self, outputs: Tensor, obs: Obs, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = returns.masked_log_softmax(outputs, obs.get("legal"))
        return at_action(log_probs, raw_action), returns.entropy(log_probs)


class Product:
    """Several numbers, of which each is drawn by itself: the policy is the product of a Categorical for each. A mask
    `legal` has those of all numbers side by side, as the logits are."""

    def __init__(self, counts: Sequence[int], each: bool = False) -> None:
        """counts: actions of each number."""
        self._each = each
        self.width, ends = sum(counts), list(accumulate(counts))
        self._slices = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._one = Categorical()

    def _parts(self, outputs: Tensor, obs: Obs) -> Iterator[tuple[Tensor, Obs]]:
        """Logits [n, actions] and mask of each number."""
        for part in self._slices:
            yield outputs[:, part].contiguous(), {"legal": obs["legal"][:, part]} if "legal" in obs else {}

    def act(self, outputs: Tensor, obs: Obs, explore: Array, generator: torch.Generator) -> tuple[Array, Arrays]:
        acted = [self._one.act(*part, explore, generator) for part in self._parts(outputs, obs)]
        log_probs = np.stack([extra["log_prob"] for _, extra in acted], -1)
        log_prob = log_probs if self._each else log_probs.sum(-1)
        return np.stack([action for action, _ in acted], -1), {"log_prob": log_prob}

    def greedy(self, outputs: Tensor, obs: Obs) -> Obs:
        greedy = [self._one.greedy(*part) for part in self._parts(outputs, obs)]
        action, logits = ([one[name] for one in greedy] for name in ("action", "logits"))
        return {"action": torch.stack(action, -1), "logits": torch.cat(logits, -1)}

    def log_prob_and_entropy(self, outputs: Tensor, obs: Obs, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(self._parts(outputs, obs), raw_action.unbind(-1), strict=True)
        each = [self._one.log_prob_and_entropy(*part, action) for part, action in parts]
        log_probs, entropy = (torch.stack(x, -1) for x in zip(*each, strict=True))
        return log_probs if self._each else log_probs.sum(-1), entropy.sum(-1)


class Gaussian:
    """A independent numbers, in units of half the action's range around its middle. The environment gets them cut to
    the range; what was drawn before the cut travels with the chunk as `drawn`, f32 [A]."""

    def __init__(self, action: ActionSpec, each: bool = False) -> None:
        """Raises ContractError for an action space that is not continuous, or has no bounds."""
        self._scale, self._each, self.width = Scale(action), each, 2 * len(action.low)

    def act(self, outputs: Tensor, obs: Obs, explore: Array, generator: torch.Generator) -> tuple[Array, Arrays]:
        mean, log_std = outputs.float().cpu().chunk(2, -1)
        noise = torch.randn(mean.shape, generator=generator) * torch.from_numpy(explore.astype(np.float32))[:, None]
        raw_action = mean + log_std.exp() * noise
        log_prob = self._of_all(normal_log_density(noise, log_std))
        action = self._scale.out(raw_action.clamp(-1, 1).numpy())
        return action, {"log_prob": log_prob.numpy(), "drawn": raw_action.numpy()}

    def greedy(self, outputs: Tensor, obs: Obs) -> Obs:
        return {"action": self._scale.out_tensor(outputs.chunk(2, -1)[0].clamp(-1, 1))}

    def log_prob_and_entropy(self, outputs: Tensor, obs: Obs, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.float().chunk(2, -1)
        log_prob = self._of_all(normal_log_density((raw_action - mean) * torch.exp(-log_std), log_std))
        return log_prob, (log_std + _NORMAL_ENTROPY).sum(-1)

    def _of_all(self, log_probs: Tensor) -> Tensor:
        return log_probs if self._each else log_probs.sum(-1)


def distribution_of(action: ActionSpec, each: bool = False) -> Distribution:
    """The one that fits an action space. each: of several numbers the log-probability of each, not of all."""
    return (
        Gaussian(action, each) if action.low else Product(action.nvec, each) if action.nvec else Categorical(action.n)
    )


def at_action(x: Tensor, action: Tensor) -> Tensor:
    """Of x f32 [..., A] those numbers that are of the action i64 [...]."""
    return x.gather(-1, action.unsqueeze(-1)).squeeze(-1)
