"""The argument of every role's `run`: one plain object for all roles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import Book, Spec
from realm.contract.versions import seed_of
from realm.wire.codec import Codec
from realm.wire.control import Link
from realm.wire.curve_keys import CurveKeys
from realm.wire.sockets import Client, Server


@dataclass(frozen=True)
class Job:
    """Everything that one role needs.

    epoch   the learner's; greater than all earlier epochs in this run directory
    server  bound for roles that answer (actor, buffer, model_pool), else None
    index   number among the processes of the role (0 if there is only one)
    keys    of the connections to other roles; None on loopback without keys
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
    keys: CurveKeys | None = None

    @property
    def seed(self) -> int:
        return seed_of(self.config.app.seed, self.index, self.incarnation, self.epoch)

    def client(self, role: str) -> Client:
        """Connect to a role by its name in the book. A host has no keys_dir: its own pool listens without keys."""
        own = not self.config.app.keys_dir and self.book[role].startswith("tcp://127.")
        return Client(self.codec, self.book[role], None if own else self.keys)

    def bound(self) -> Server:
        assert self.server is not None, f"{self.role} answers questions and has a server"
        return self.server
