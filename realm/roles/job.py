"""What a role is given when it runs: the same plain object for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import Book, Spec
from realm.wire.codec import Codec
from realm.wire.control import Link
from realm.wire.sockets import Client, Server


@dataclass(frozen=True)
class Job:
    """One role's surroundings.

    epoch   the learner's; greater than every epoch before it in this run directory
    server  bound for roles that answer (actor, buffer, model_pool), else None
    index   which of several (0 where there is one)
    """

    role: str
    index: int
    incarnation: int
    epoch: int
    run_dir: Path
    config: RunConfig
    plan: Plan
    spec: Spec
    book: Book
    link: Link
    server: Server | None
    codec: Codec

    @property
    def seed(self) -> int:
        """Different for every worker, restart and resume, below 2**31; the same for a new run of the same settings."""
        parts = (self.config.app.seed, self.index, self.incarnation, self.epoch)
        return int(np.random.SeedSequence(parts).generate_state(1)[0]) >> 1

    def client(self, role: str) -> Client:
        """Connect to a role by its name in the book."""
        return Client(self.codec, self.book[role])

    def bound(self) -> Server:
        assert self.server is not None, f"{self.role} answers questions and has a server"
        return self.server
