"""What a decision is paid: a list of terms, each with a weight and bounds. Pure functions; no emulator.

The raw score is no part of it: it is a statistic of each episode, and what models are compared by.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from realm.algorithms.settings import between
from realm.contract import Array
from realm.errors import did_you_mean

BUTTONS = "buttons"
"""The term that pays each button alone: weight times what the others would pay for the frames in which it was held."""
TERMS = ("progress", "clock", "death", "flag", "score", "standing")
_FARTHEST = 5  # pixels of a frame; the package, too, takes more for a pipe or a new life, and pays nothing


class State(NamedTuple):
    """What the memory of the game says after a frame."""

    x: int  # pixels from the start of the level
    score: int
    clock: int  # what is left of it
    flag: bool  # the level is cleared
    dead: bool  # or dying
    below: bool  # the screen


@dataclass(frozen=True)
class Term:
    """One entry of `[env] reward`. What it pays is weight times the term's value, cut to least and most. The weight
    becomes weight_end by the env steps weight_steps, linear between; with 0 steps it stays."""

    term: str
    weight: float = 1.0
    weight_end: float = 0.0
    weight_steps: int = 0
    least: float = -math.inf
    most: float = math.inf

    def __post_init__(self) -> None:
        known = (*TERMS, BUTTONS)
        if self.term not in known:
            near = did_you_mean(str(self.term), known)
            raise ValueError(f"reward has the term {self.term!r}, it must be one of {', '.join(known)}{near}")
        for name in ("weight", "weight_end", "weight_steps", "least", "most"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise ValueError(f"reward: {name} of {self.term!r} is {value!r}, it must be a number")
        weights = (self.weight, self.weight_end, self.weight_steps)
        if not all(map(math.isfinite, weights)) or self.least > self.most or self.weight_steps < 0:
            raise ValueError(f"reward: {self.term!r} needs finite weights, and least not above most")

    def weight_at(self, env_steps: int) -> float:
        return between(self.weight, self.weight_end, self.weight_steps, env_steps)


DEFAULT = (Term("progress"), Term("clock"), Term("death", 15.0))
"""That of gym-super-mario-bros."""


def terms_of(given: Sequence[Mapping[str, Any]] | None) -> tuple[Term, ...]:
    """The terms of a TOML file. Raises ValueError, one sentence."""
    try:
        terms = DEFAULT if given is None else tuple(Term(**entry) for entry in given)
    except TypeError:
        keys = ", ".join(field.name for field in fields(Term))
        raise ValueError(f"reward is {given!r}, it must be a list of {{{keys}}}") from None
    if not terms:
        raise ValueError("reward is empty, it must name a term")
    if len({one.term for one in terms}) < len(terms):
        raise ValueError("reward names a term twice, it must have each once")
    return terms


def values(frames: Sequence[State]) -> dict[str, float]:
    """The value of each term in one decision. frames: the state before it, and after each of its frames."""
    before, after = frames[0], frames[-1]
    pairs = list(pairwise(frames))
    steps = [new.x - old.x for old, new in pairs]
    return {
        "progress": float(sum(step for step in steps if abs(step) <= _FARTHEST)),
        "clock": float(sum(min(0, new.clock - old.clock) for old, new in pairs)),
        "death": -float(after.dead),
        "flag": float(after.flag),
        "score": float(after.score - before.score),
        "standing": -float(after.x == before.x),
    }


def paid(terms: Sequence[Term], found: Mapping[str, float], env_steps: int = 0) -> dict[str, float]:
    """What each term pays. found: of `values`. env_steps: of the run"""
    return {one.term: min(max(one.weight_at(env_steps) * found[one.term], one.least), one.most) for one in terms}


def credit(
    own: Term, terms: Sequence[Term], frames: Sequence[State], held: Sequence[Sequence[bool]], env_steps: int = 0
) -> Array:
    """What `own`, of the buttons, pays each of them, f32 [A]. frames: of `values`; held: of each frame, bool [A]"""
    each = [sum(paid(terms, values(pair), env_steps).values()) for pair in pairwise(frames)]
    whole = own.weight_at(env_steps) * np.asarray(each, np.float32) @ np.asarray(held, np.float32)
    return np.clip(whole, own.least, own.most)
