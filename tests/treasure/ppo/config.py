"""The hyper-parameters of `treasure_ppo`."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import Settings


@dataclass(frozen=True)
class Config(Settings):
    table: ClassVar[str] = "ppo"
    hidden: int = 128
    chunk_length: int = 128
    gamma_start: float = 0.995
    gamma_end: float = 0.995
    advantage: str = "gae"
    lam: float = 0.95
    lr_start: float = 5e-4
    lr_end: float = 5e-4
    entropy_end: float = 0.01
    epochs: int = 4
    minibatch_size: int = 256
