"""Hyper-parameters: TD3's in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import EncoderSettings, TD3Settings


@dataclass(frozen=True)
class Config(EncoderSettings, TD3Settings):
    table: ClassVar[str] = "td3"
    hidden: int = 256
    chunk_length: int = 20  # steps between two sends to the buffer
