"""Watches the numbers of a training run and names what looks wrong, each thing once, in a sentence for the user.

`curves.py` calls `Health.check` with the means since its last call, every two seconds. Names are those that the
algorithm reports (`realm/algorithms/ppo.py`), and `score` for the mean of the last episodes. An agent that reports
other names is not judged by the rules that need these. The thresholds are far from what healthy runs show
(`tests/healthy.json`): a warning is worth reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_FIRST = 3  # observations that say how large a loss is at the beginning
_LEAST = 0.1  # a loss or a gradient that was smaller at first may grow as if it had been this large
_LOSS_TIMES = 10_000  # a healthy critic's loss grows a hundredfold when the first large reward is found
_GRADIENT_TIMES = 1000


@dataclass
class Level:
    """What is remembered of one number; size is its absolute value."""

    count: int = 0
    first: float = 0.0
    """The greatest size of the first observations."""
    highest: float = -math.inf
    lowest: float = math.inf

    def take(self, value: float) -> None:
        if math.isfinite(value):
            self.first = max(self.first, abs(value)) if self.count < _FIRST else self.first
            self.count, self.highest, self.lowest = self.count + 1, max(self.highest, value), min(self.lowest, value)


class Since(NamedTuple):
    """When something was first seen that has been there ever since, and how often it was observed."""

    updates: int
    env_steps: int
    observations: int


Numbers = Mapping[str, float]
Levels = Mapping[str, Level]


class Rule(NamedTuple):
    """look: what is wrong in these numbers, "" if nothing is, None if they do not tell. It is named when it has been
    there for this number of `observations` in a row and for this number of `updates`."""

    name: str
    look: Callable[[Numbers, Levels], str | None]
    observations: int
    updates: int
    advice: str


def _explodes(of: Callable[[str], bool], times: int) -> Callable[[Numbers, Levels], str | None]:
    def look(numbers: Numbers, levels: Levels) -> str | None:
        names = sorted(filter(of, numbers), reverse=True)  # value_loss before the sum of all, loss
        for name in names:
            first = levels[name].first
            if not abs(numbers[name]) <= times * max(_LEAST, first):  # NaN, too
                return f"{name} is {numbers[name]:.3g} and was {first:.3g} at first"
        return "" if names else None

    return look


def _explains_nothing(numbers: Numbers, levels: Levels) -> str | None:
    variance, loss = numbers.get("explained_variance"), numbers.get("value_loss")
    if variance is None or loss is None:
        return None
    # where all returns are alike, as when a task is solved, the least error is more than their variance
    errs = loss > 0.01 * levels["value_loss"].highest
    return f"explained_variance is {variance:.2f}, worse than predicting the mean" if errs and variance < -0.5 else ""


def _runs_away(numbers: Numbers, levels: Levels) -> str | None:
    kl = numbers.get("approx_kl")
    if kl is None:
        return None
    return f"approx_kl is {kl:.3g} in an update" if not kl <= 0.5 else ""


def _collapsed(numbers: Numbers, levels: Levels) -> str | None:
    entropy = numbers.get("entropy")
    if entropy is None:
        return None
    highest, score, of_score = levels["entropy"].highest, numbers.get("score"), levels.get("score", Level())
    good = score is not None and score > of_score.lowest + 0.9 * (of_score.highest - of_score.lowest)
    # the entropy of continuous actions may be below 0, and its size says nothing
    gone = 0 <= entropy < 0.01 * highest
    return (
        f"entropy is {entropy:.2g} and was {highest:.2g}, and the score is not at its best" if gone and not good else ""
    )


def _stands_still(numbers: Numbers, levels: Levels) -> str | None:
    lr = numbers.get("lr")
    return None if lr is None else f"lr is {lr:g}" if lr == 0 else ""


def _at_its_least(numbers: Numbers, levels: Levels) -> str | None:
    score = numbers.get("score")
    if score is None:
        return None
    lowest, highest = levels["score"].lowest, levels["score"].highest
    spread = highest - lowest
    was_better = spread > 0.1 * max(abs(highest), abs(lowest))
    never_scored = spread == 0 and highest <= 0  # above 0 it may be the best score that there is
    least = (was_better or never_scored) and score <= lowest + 0.05 * spread
    return f"the mean score stands at {score:.4g}, and its highest was {highest:.4g}" if least else ""


RULES = (
    Rule(
        "exploding loss", _explodes(lambda name: name == "loss" or name.endswith("_loss"), _LOSS_TIMES), 3, 0,
        "try a smaller learning rate, or rewards scaled down",
    ),
    Rule(
        "exploding gradient", _explodes(lambda name: name.endswith("grad_norm"), _GRADIENT_TIMES), 3, 0,
        "try a smaller learning rate, and look for very large observations or rewards",
    ),
    Rule(
        "the critic predicts nothing", _explains_nothing, 10, 100,
        "try rewards scaled down, a larger critic, or more epochs, and check that observations tell what is to come",
    ),
    Rule(
        "the policy runs away", _runs_away, 3, 10,
        "try a smaller learning rate, fewer epochs, a smaller clip, or a smaller max_version_lag",
    ),
    Rule(
        "the policy explores no more", _collapsed, 5, 50,
        "try a larger entropy coefficient or a smaller learning rate, from an earlier checkpoint",
    ),
    Rule(
        "training changes nothing", _stands_still, 3, 0,
        "try a later end of the schedule (total_env_steps or lr_steps), or a learning rate at its end (lr_end) above 0",
    ),
    Rule(
        "the score is at its least", _at_its_least, 10, 200,
        "try an earlier checkpoint with a smaller learning rate, or rewards that come earlier in an episode",
    ),
)  # fmt: skip


class Health:
    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}
        self._seen: dict[str, Since] = {}  # rule -> since when
        self._named = set[str]()  # rules that the user has been told of

    def check(self, numbers: Numbers, updates: int, env_steps: int) -> list[str]:
        """Take the newest numbers; returns the warnings to show now."""
        for name, value in numbers.items():
            self._levels.setdefault(name, Level()).take(value)
        warnings = []
        for rule in RULES:
            what = rule.look(numbers, self._levels)
            if what is None or rule.name in self._named:
                continue
            if not what:
                self._seen.pop(rule.name, None)
                continue
            since = self._seen.get(rule.name, Since(updates, env_steps, 0))
            since = self._seen[rule.name] = since._replace(observations=since.observations + 1)
            if since.observations >= rule.observations and updates - since.updates >= rule.updates:
                self._named.add(rule.name)
                when = f"since update {since.updates:,} ({since.env_steps:,} env steps)"
                warnings.append(f"{rule.name}: {what}, {when}; {rule.advice}")
        return warnings
