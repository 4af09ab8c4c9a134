"""Hyper-parameters: those of Q-learning in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import QSettings


@dataclass(frozen=True)
class Config(QSettings):
    table: ClassVar[str] = "dqn"
    hidden: int = 128  # width of the two hidden layers
    chunk_length: int = 20  # steps between two sends to the buffer
    dueling: bool = False  # a head that adds up the state's value and each action's advantage
    frames: int = 1  # observations that the network sees at once, the newest last
    channels: tuple[int, ...] = ()  # of the convolutions on an image, three at most; empty: 32, 64 and 64
    noisy: bool = False  # the head explores by learned noise, instead of by random actions

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("frames",), 1)
        self.check_channels()
