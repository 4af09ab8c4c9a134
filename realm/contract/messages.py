"""What roles tell each other, besides samples."""

from __future__ import annotations

from dataclasses import dataclass

from realm.contract.versions import Version

_WORDS = {"r": "return", "l": "length", "t": "", "layout": "", "turn": ""}
_ENDINGS = {"", "sampled", "median", "deviation", "least", "greatest"}


def curve_name(statistic: str) -> str:
    """What a statistic of an episode is called as a curve: gymnasium's `r` and `l` get words. "" for what is no
    measure: its `t`, the seconds, and which layout was played."""
    first, mark, rest = statistic.partition("_")
    word = _WORDS.get(first, first) if _ENDINGS.issuperset(rest.split("_")) else first  # `r_foot` is the environment's
    return f"{word}{mark}{rest}" if word else ""


@dataclass(frozen=True)
class Report:
    """A role's report to the supervisor, sent every `report_interval_s`.

    env_steps  learner: trained on so far, over all epochs; other roles: 0
    totals     name -> counted since the start of the process
    means      name -> [sum, count] since the last report
    """

    role: str
    index: int
    env_steps: int
    totals: dict[str, float]
    means: dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluator's result for one model, sent to the supervisor.

    env_steps           steps that the model was trained on
    statistic, score    the statistic that compares models, and its mean over the episodes
    best, best_version  the greatest score in this run's directory so far, and its model
    means               statistic -> mean over the episodes
    """

    version: Version
    env_steps: int
    statistic: str
    score: float
    best: float
    best_version: Version
    means: dict[str, float]


Book = dict[str, str]
"""Role name ("actor", "buffer", "model_pool") -> address; every role gets it before it runs."""
