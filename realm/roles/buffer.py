"""The buffer role: answers `add` and `sample` over ZeroMQ from a ReplayBuffer (reverb or native storage).

Two threads: this module's loop moves messages and never blocks; `Keeper` owns the ReplayBuffer, whose storage may be
slow. A round without room and a draw without enough samples wait in the keeper: their missing answers are the
back-pressure.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from loguru import logger

from realm.contract import Arrays, Field, Version, check_arrays
from realm.data.buffer import ACCEPTED, INVALID, NO_ROOM, OLD_EPOCH, STALE, ReplayBuffer, make_replay_buffer
from realm.errors import ContractError
from realm.roles import WAITS
from realm.roles.job import Job
from realm.watch.meters import Meters
from realm.watch.progress import Stillness
from realm.wire.codec import Message, WireError
from realm.wire.sockets import Waker, wait_any

Answer = tuple[bytes, Message]

_HOLD_S = 5.0
"""So long the word of the supervisor holds that there is no memory; it comes again every second."""

_Had = dict[Annotated[int, msgspec.Meta(ge=0)], tuple[int, int]]  # worker -> (incarnation, seq) of a round
_PRIORITIES = {"key": Field((), "uint64"), "priority": Field((), "float64")}


def run(job: Job) -> None:
    """Serve until stopped."""
    link, server = job.link, job.bound()
    questions: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
    waker = Waker()
    # not the run id: it is secret, and reverb shows the table's name to anyone
    folder = job.run_dir / "replay" if job.config.app.save_replay else None
    buffer = make_replay_buffer(job.plan, job.spec, secrets.token_hex(8), job.seed, folder)
    # workers that are killed leave theirs behind, until there is room
    keeper = Keeper(buffer, link.meters, 16 * job.plan.workers)
    thread = threading.Thread(target=_keep, args=(keeper, questions, answers, waker.wake), daemon=True)
    thread.start()
    if job.plan.max_version_lag is not None:  # else a workflow may yield rounds of any size
        server.expect(max(job.plan.batch, job.plan.envs_per_worker) * job.spec.sample_bytes)
    server.expect_clients(job.plan.workers)
    link.ready([server])
    try:
        while True:
            link.meters.totals.update(buffer.totals())
            link.meters.totals["refused_invalid"] = keeper.invalid
            link.tick()
            if "hold" in link.commands():
                keeper.hold()
            if still := keeper.standstill(time.monotonic()):
                logger.warning("{}", still)
            moved = False
            while (received := server.receive()) is not None:
                questions.put(received)
                moved = True
            while not answers.empty():
                answer = answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                server.send(*answer, checksum=bool(answer[1].arrays))
                moved = True
            if not moved:
                wait_any([server, waker], 20)
                waker.drain()
    finally:
        questions.put(None)
        thread.join(timeout=2.0)


def _keep(
    keeper: Keeper,
    questions: queue.SimpleQueue[Answer | None],
    answers: queue.SimpleQueue[Answer | BaseException],
    wake: Callable[[], None],
) -> None:
    """The keeper's thread: handles one question after the other. An error goes to the role's loop, which raises it."""
    try:
        while True:
            try:
                question = questions.get(timeout=1.0)
            except queue.Empty:
                given = keeper.turn()  # no question tells when there is memory again
            else:
                if question is None:
                    break
                given = keeper.handle(*question)
            for answer in given:
                answers.put(answer)
            wake()
        keeper.buffer.close()
    except BaseException as error:  # the role's loop raises it
        answers.put(error)
        wake()


@dataclass
class _Draw:
    """The learner's request for a batch. asked: its sender, incarnation and sequence number."""

    peer: bytes
    asked: tuple[str, int, int]
    count: int
    version: Version
    since: float


class Keeper:
    """Decides when each question is answered. Used by one thread."""

    def __init__(self, buffer: ReplayBuffer, meters: Meters, most_held: int) -> None:
        """most_held: rounds that may wait for room."""
        self._most_held = most_held
        self.buffer = buffer
        self.invalid = 0
        self._meters = meters
        self._held: dict[tuple[str, int, int], tuple[bytes, Arrays, float]] = {}  # rounds that wait for room
        self._draw: _Draw | None = None
        self._last: tuple[_Draw, Message] | None = None  # kept until the next request shows that it arrived
        self._stillness = Stillness()
        self._hold_until = 0.0

    def handle(self, peer: bytes, message: Message) -> list[Answer]:
        """Take one question; return all answers that are possible now, also to earlier questions."""
        answers: list[Answer] = []
        try:
            match message.kind:
                case "add":
                    key = (message.sender, message.incarnation, message.seq)
                    if key not in self._held and len(self._held) >= self._most_held:
                        raise WireError(f"{message.sender} sends more rounds than may wait for an answer")
                    since = self._held[key][2] if key in self._held else time.monotonic()
                    self._held[key] = (peer, message.arrays, since)
                case "sample":
                    answers += self._take_draw(peer, message)
                case kind:
                    raise WireError(f"the buffer does not answer {kind!r}")
        except (WireError, ContractError) as error:
            self.invalid += 1
            answers.append((peer, Message("invalid", message.seq, {"status": INVALID, "reason": str(error)})))
        return answers + self.turn()

    def turn(self) -> list[Answer]:
        """All answers that are possible now."""
        answers: list[Answer] = []
        progress = True
        while progress:
            progress = self._try_draw(answers)  # first: it tells the buffer the next version
            progress |= self._add_held(answers)
            if progress:
                self._stillness.moved()
        return answers

    def hold(self) -> None:
        """Take no round for `_HOLD_S`: memory is nearly gone. Another thread may call it."""
        self._stillness.moved()  # the supervisor has told the user why nothing moves
        self._hold_until = time.monotonic() + _HOLD_S

    def holds(self) -> bool:
        return time.monotonic() < self._hold_until

    def standstill(self, now: float) -> str:
        """Who waits for whom, once, when nothing has moved for long although somebody waits; else "".

        now: monotonic seconds. Another thread may call it.
        """
        wait = WAITS["batch"] if self._draw else WAITS["held"] if self._held else None
        if wait is None or not (still_s := self._stillness.due(now)):
            return ""
        stored = f"{self.buffer.size} of {self.buffer.limiter.capacity} samples are stored"
        return f"nothing has moved for {still_s:.0f} s: {wait} ({stored}, {len(self._held)} rounds wait)"

    def _add_held(self, answers: list[Answer]) -> bool:
        """Offer waiting rounds in order of arrival, until one finds no room; return whether one, or a part of one, was
        taken."""
        before = self.buffer.counters["inserted"]
        if self.holds():
            return False
        if self._draw is None and self._last is None:
            return False  # only the learner's request tells the next version, and so which rounds are too old
        for key, (peer, items, since) in list(self._held.items()):
            try:
                status = self.buffer.add(items)
                reason = ""
            except ContractError as error:
                status, reason = INVALID, f"{key[0]}: {error}"
                self.invalid += 1
            if status == NO_ROOM:
                break  # later rounds wait, too: a later one of the same worker would make this one a duplicate
            del self._held[key]
            if status == ACCEPTED:
                self._meters.put("producer_wait_ms", 1e3 * (time.monotonic() - since))
            meta: dict[str, Any] = {"status": status, "reason": reason}
            if status in (STALE, OLD_EPOCH):
                meta["wanted"] = list(self.buffer.wanted(len(items["worker"])))
            answers.append((peer, Message("added", key[2], meta)))
        return self.buffer.counters["inserted"] > before

    def _take_draw(self, peer: bytes, message: Message) -> list[Answer]:
        asked = (message.sender, message.incarnation, message.seq)
        if self._last is not None and self._last[0].asked == asked:
            return [(peer, self._last[1])]  # the answer was lost
        if message.arrays:
            check_arrays(message.arrays, _PRIORITIES, (message.array("key").size,), "priorities")
            self.buffer.storage.update_priorities(message.array("key"), message.array("priority"))
        count = message.integer("count")
        if count < 1:
            raise WireError(f"sample from {message.sender}: count must be at least 1, got {count}")
        if self._draw is None and self._last is None and "had" in message.meta:
            self.buffer.had(message.value("had", _Had))
        since = self._draw.since if self._draw is not None and self._draw.asked == asked else time.monotonic()
        self._draw = _Draw(peer, asked, count, message.version(), since)
        return []

    def _try_draw(self, answers: list[Answer]) -> bool:
        """Answer the learner if a batch is available; return whether it was (then there may be room)."""
        draw = self._draw
        if draw is None:
            return False
        drawn = self.buffer.draw(draw.count, draw.version)
        if drawn is None:
            return False
        items, info = drawn
        arrays = {f"item.{name}": array for name, array in items.items()}
        arrays |= {"info.key": info.key, "info.probability": info.probability, "info.times_sampled": info.times_sampled}
        reply = Message("batch", draw.asked[2], {"new_env_steps": info.new_env_steps, "size": info.size}, arrays)
        self._meters.put("consumer_wait_ms", 1e3 * (time.monotonic() - draw.since))
        self._last = (draw, reply)
        self._draw = None
        answers.append((draw.peer, reply))
        return True
