"""Hyper-parameters: all of PPO's in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import Settings


@dataclass(frozen=True)
class Config(Settings):
    table: ClassVar[str] = "ppo"
    hidden: int = 64  # width of the two hidden layers of actor and critic
    activation: str = "tanh"  # between them: "tanh" or "relu"
    orthogonal: bool = True  # first weights: orthogonal, with small ones for the actions; or as torch makes them
    log_std: float = 0.0  # of continuous actions at first: the log of the standard deviation, in halves of the range
    chunk_length: int = 128
    gamma_start: float = 0.99
    gamma_end: float = 0.99
    lam: float = 0.95
    entropy_start: float = 0.0
    lr_start: float = 1e-3
    total_env_steps: int = 200_000
    epochs: int = 10
    minibatch_size: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choices({"activation": ("tanh", "relu")})
        self.check_apart()
