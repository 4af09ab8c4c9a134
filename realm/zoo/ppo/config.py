"""Hyper-parameters: all of PPO's in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import NetworkSettings


@dataclass(frozen=True)
class Config(NetworkSettings):
    table: ClassVar[str] = "ppo"
    chunk_length: int = 128  # steps of each environment for an update
    gamma_start: float = 0.99
    gamma_end: float = 0.99
    lam: float = 0.95
    entropy_start: float = 0.0
    lr_start: float = 1e-3
    total_env_steps: int = 200_000
    epochs: int = 10
    minibatch_size: int = 128
    imitation: float = 0.0  # weight of a further loss, which imitates the actions whose return beat the value
    best_by: tuple[str, ...] = ()  # statistics of an evaluation that choose the best model before the score does

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("imitation",), 0)
        self.check("imitation", not self.imitation or self.advantage != "q", "0 if advantage is 'q'")
        whole = self.memory == "none" or self.minibatch_size >= self.chunk_length
        self.check("minibatch_size", whole, f"chunk_length, {self.chunk_length}, or more with a memory: whole chunks")
