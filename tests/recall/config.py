from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import NetworkSettings


@dataclass(frozen=True)
class Config(NetworkSettings):
    table: ClassVar[str] = "recall"
    remember: bool = True
    reward_scale: float = 1.0
    hidden: int = 64
    chunk_length: int = 16
    memory: str = "gru"
    advantage: str = "gae"
    lam: float = 0.95
    entropy_start: float = 0.01
    lr_start: float = 1e-3
    total_env_steps: int = 100_000
    epochs: int = 10
    minibatch_size: int = 256
