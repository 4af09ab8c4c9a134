"""Hyper-parameters: TD3's in `realm/algorithms/settings.py`, and what this agent adds."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import TD3Settings


@dataclass(frozen=True)
class Config(TD3Settings):
    table: ClassVar[str] = "td3"
    hidden: int = 256  # width of the two hidden layers of actor and critics
    chunk_length: int = 20  # steps between two sends to the buffer
    frames: int = 1  # observations that the networks see at once, the newest last
    channels: tuple[int, ...] = ()  # of the convolutions on an image, three at most; empty: 32, 64 and 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("frames",), 1)
        self.check_channels()
