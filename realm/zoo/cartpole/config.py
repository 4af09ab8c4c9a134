"""Hyper-parameters: all of `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import Settings


@dataclass(frozen=True)
class Config(Settings):
    table: ClassVar[str] = "cartpole"
    hidden: int = 64  # width of the two hidden layers of actor and critic
    chunk_length: int = 32
    gamma_start: float = 0.98
    gamma_end: float = 0.98
    entropy_start: float = 0.0
    lr_start: float = 2e-3
    lr_end: float = 5e-4
    total_env_steps: int = 100_000
    epochs: int = 20
    minibatch_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("hidden",), 1)
        self.check("shared_trunk", not self.shared_trunk, "false, since actor and critic share no weights here")
        self.check("value_source", self.value_source == "learner", "'learner', since the critic does not act")
