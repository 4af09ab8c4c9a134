"""Hyper-parameters: those of Q-learning in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import EncoderSettings, QSettings


@dataclass(frozen=True)
class Config(EncoderSettings, QSettings):
    table: ClassVar[str] = "dqn"
    hidden: int = 128
    chunk_length: int = 20  # steps between two sends to the buffer
    dueling: bool = False  # a head that adds up the state's value and each action's advantage
    noisy: bool = False  # the head explores by learned noise, instead of by random actions
