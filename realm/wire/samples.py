"""The verbs `add` and `sample`: rounds of samples into the buffer and batches out of it, as calls and over sockets.

LocalBuffer     `add` on a ReplayBuffer in this process, whose `draw` is `sample`
ItemSender      `add` to the buffer role
BatchReader     `sample` from the buffer role
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from realm.contract import Array, Arrays, SampleInfo, Version
from realm.data.buffer import INVALID, OLD_EPOCH, STALE
from realm.data.gate import VersionGate
from realm.wire.codec import WireError
from realm.wire.sockets import Client, wait_any


class ItemSender:
    """`add` over a socket: at most `max_unacked` rounds wait for the buffer's word, which is the back-pressure.

    The arrays of a round must stay untouched until `add` of the next returns, as those of a ChunkBuilder do.
    """

    def __init__(self, client: Client, max_unacked: int, gate: VersionGate, tick: Callable[[], None]) -> None:
        """tick: called while waiting; raises to give up."""
        self._client, self._max_unacked, self._gate, self._tick = client, max_unacked, gate, tick
        self._buffer_incarnation = 0
        self.answers: Counter[str] = Counter()

    def add(self, items: Arrays) -> None:
        while self._client.unanswered >= self._max_unacked:
            self._tick()
            self.poll()
            if self._client.unanswered >= self._max_unacked:
                wait_any([self._client], 50)
        if self._max_unacked > 1:  # then this round may be sent again later than its arrays are used again
            items = {name: array.copy() for name, array in items.items()}
        self._client.ask("add", {}, items, checksum=True)

    def poll(self) -> None:
        """Take the answers that have come; tells the gate of rounds that were refused or lost."""
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
    """`sample` over a socket, one question ahead: the next batch travels while this one is trained on."""

    def __init__(self, client: Client, count: int, tick: Callable[[], None]) -> None:
        self._client, self._count, self._tick = client, count, tick
        self._seq = 0
        self._priorities: Arrays = {}

    def request(self, version: Version) -> None:
        """Ask for the batch that `version` will be trained on; the buffer takes it that the batch before came."""
        meta = {"count": self._count, "version": list(version)}
        self._seq = self._client.ask("sample", meta, self._priorities)
        self._priorities = {}

    def receive(self) -> tuple[Arrays, SampleInfo]:
        """Wait for the batch that was asked for: item name -> [B, ...]."""
        reply = self._client.wait(self._seq, self._tick)
        if reply.kind == INVALID:
            raise WireError(f"the buffer refused a question for a batch: {reply.text('reason')}")
        info = SampleInfo(reply.array("info.key"), reply.array("info.probability"), reply.array("info.times_sampled"))
        return {name[5:]: array for name, array in reply.arrays.items() if name.startswith("item.")}, info

    def set_priorities(self, info: SampleInfo, priorities: Array) -> None:
        """New priorities [B] of the batch that was trained on; they travel with the next question."""
        self._priorities = {"key": info.key, "priority": np.asarray(priorities, np.float64)}
