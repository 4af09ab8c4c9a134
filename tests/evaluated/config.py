"""Settings of the evaluated user: see `feature/definition.py`."""

from dataclasses import dataclass

from tests.counting.config import Config as CountingConfig


@dataclass(frozen=True)
class Config(CountingConfig):
    reports: bool = True  # whether the evaluator's environments report their episodes
    step_s: float = 0.0  # a step of the evaluator's environments takes at least this long
