"""The hyper-parameters of `treasure_dqn`."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import QSettings


@dataclass(frozen=True)
class Config(QSettings):
    table: ClassVar[str] = "dqn"
    hidden: int = 128
    chunk_length: int = 32
    dueling: bool = False
    noisy: bool = False
    gamma: float = 0.98
    lr: float = 5e-4
    target_every: int = 200
    max_grad_norm: float = 5.0
    epsilon_start: float = 0.6
    epsilon_steps: int = 40_000
