"""The verbs `add` and `sample` over sockets: rounds of samples into the buffer, batches out of it.

ItemSender      `add` to the buffer role
BatchReader     `sample` from the buffer role
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from realm.contract import Array, Arrays, SampleInfo, Version
from realm.data.buffer import INVALID, OLD_EPOCH, STALE
from realm.policy.gate import VersionGate
from realm.wire.codec import WireError
from realm.wire.sockets import Client, wait_any


class ItemSender:
    """`add` over a socket. At most one round waits for the buffer's answer: this is the back-pressure.

    The arrays of a round must stay untouched until the next `add` returns, as those of a ChunkBuilder do.
    """

    def __init__(self, client: Client, gate: VersionGate, tick: Callable[[], None]) -> None:
        """tick: called while waiting; raises to give up."""
        self._client, self._gate, self._tick = client, gate, tick
        self._buffer_incarnation = 0
        self.answers: Counter[str] = Counter()

    def add(self, items: Arrays) -> None:
        self.finish()
        self._client.ask("add", {}, items, checksum=True)

    def finish(self) -> None:
        """Wait until the round is answered."""
        while self._client.unanswered:
            self._tick()
            self.poll()
            if self._client.unanswered:
                wait_any([self._client], 50)

    def poll(self) -> None:
        """Take the answers that have arrived; report refused and lost rounds to the gate."""
        while (answer := self._client.collect()) is not None:
            status = answer.text("status")
            self.answers[status] += 1
            if status == INVALID:
                raise WireError(f"the buffer refused a round: {answer.text('reason')}")
            if self._buffer_incarnation not in (0, answer.incarnation):
                self._gate.refill()
            self._buffer_incarnation = answer.incarnation
            if status in (STALE, OLD_EPOCH):
                self._gate.refund(answer.version("wanted"))


class BatchReader:
    """`sample` over a socket, one question ahead: the next batch travels while the learner trains on this one."""

    def __init__(self, client: Client, count: int, tick: Callable[[], None], on_policy: bool = False) -> None:
        """on_policy: no sample may come again from a buffer that was started again."""
        self._client, self._count, self._tick, self._once = client, count, tick, on_policy
        self._seq = 0
        self._had: dict[str, list[int]] = {}  # worker -> incarnation and number of its newest round so far
        self._priorities: Arrays = {}

    def request(self, version: Version) -> None:
        """Ask for the batch that `version` will train on; this also tells the buffer that the last batch arrived."""
        meta = {"count": self._count, "version": list(version), "had": self._had}
        self._seq = self._client.ask("sample", meta, self._priorities)
        self._priorities = {}

    def receive(self) -> tuple[Arrays, SampleInfo]:
        """Wait for the requested batch: item name -> [B, ...]."""
        reply = self._client.wait(self._seq, self._tick)
        if reply.kind == INVALID:
            raise WireError(f"the buffer refused a request for a batch: {reply.text('reason')}")
        info = SampleInfo(
            reply.array("info.key"),
            reply.array("info.probability"),
            reply.array("info.times_sampled"),
            reply.integer("new_env_steps"),
            reply.integer("size"),
        )
        items = {name[5:]: array for name, array in reply.arrays.items() if name.startswith("item.")}
        if self._once:
            rounds = zip(*(items[name].tolist() for name in ("worker", "incarnation", "seq")), strict=True)
            for worker, *origin in set(rounds):  # a round has many rows
                self._had[str(worker)] = max(self._had.get(str(worker), origin), origin)
        return items, info

    def set_priorities(self, info: SampleInfo, priorities: Array) -> None:
        """Set new priorities [B] of the last batch; the next request sends them."""
        self._priorities = {"key": info.key, "priority": np.asarray(priorities, np.float64)}
