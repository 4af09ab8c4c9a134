"""Hyper-parameters: SAC's in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import EncoderSettings, SACSettings


@dataclass(frozen=True)
class Config(EncoderSettings, SACSettings):
    table: ClassVar[str] = "sac"
    hidden: int = 256
    chunk_length: int = 20  # steps between two sends to the buffer
