"""The four data verbs as the roles use them: `predict`, `add`, `sample`, `latest`, each as a call and over a socket.

    predict   LocalPolicy   (this process holds the weights)    RemotePolicy   (asks the actor)
    add       LocalBuffer   (a ReplayBuffer here)               ItemSender     (sends to the buffer role)
    sample    LocalBuffer                                       BatchReader    (asks the buffer role)
    latest    -             (one process has one model)         ModelReader    (asks the model pool)

User code never sees which one it has: a workflow calls `policy.predict` and yields items either way.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from realm.buffer import INVALID, NO_ROOM, OLD_EPOCH, STALE, ReplayBuffer
from realm.contract import (
    NO_VERSION,
    Agent,
    Array,
    Arrays,
    ContractError,
    Field,
    Fields,
    ModelTag,
    PredictContext,
    Prediction,
    PredictRequest,
    SampleInfo,
    Spec,
    Version,
    check_arrays,
)
from realm.wire import Client, Message, WireError, wait_any

OFFER_EVERY_S = 1.0


class VersionGate:
    """Bounds policy lag at the source: which version a worker must wait for before it plays another round.

    A bucket of credits, counted in samples: a round (one chunk of every environment of all workers) costs N * E, each
    new version that this worker sees brings one batch, and (max_version_lag + 1) batches fill it. So production keeps
    pace with training and runs at most the lag ahead. Strict on-policy is a bucket of exactly one round.
    Nothing needs a count that the others share: a restarted worker begins with a full bucket, a new epoch or a lost
    buffer fills it (`refill`), a round that the buffer refused is paid back (`refund`), and what is too much after
    that runs over. It cannot stall: a batch is whole rounds (`flow.check_flow`), so after any update all workers
    together have the credits for the next one.
    """

    def __init__(self, max_version_lag: int | None, batch: int, round_size: int) -> None:
        """batch: samples of an update; round_size: N * E. No lag: no bound, nothing is counted."""
        self._bounded = max_version_lag is not None
        self._batch, self._cost = batch, round_size
        self._bucket = ((max_version_lag or 0) + 1) * batch
        self._credits = self._bucket
        self._unpaid = True
        self._seen = NO_VERSION
        self._floor = NO_VERSION

    def minimum(self) -> Version:
        """The oldest version that the next prediction may come from."""
        if not self._bounded or not self._unpaid:
            return NO_VERSION
        missing = max(0, self._cost - self._credits)
        earned = Version(self._seen.epoch, self._seen.update + -(-missing // self._batch)) if missing else NO_VERSION
        return max(earned, self._floor)

    def see(self, version: Version) -> None:
        """A prediction came from `version`; the first of a round pays for it."""
        if version.epoch > self._seen.epoch:
            self._credits = self._bucket
        elif version > self._seen:
            self._credits = min(self._bucket, self._credits + (version.update - self._seen.update) * self._batch)
        self._seen = max(self._seen, version)
        if self._unpaid:
            self._credits -= self._cost
            self._unpaid = False

    def begin_round(self) -> None:
        self._unpaid = True

    def refund(self, wanted: Version) -> None:
        """The buffer refused a round; it would not take rows older than `wanted`."""
        self._credits = min(self._bucket, self._credits + self._cost)
        self._floor = max(self._floor, wanted)

    def refill(self) -> None:
        """The buffer was restarted: what it held is to be played again."""
        self._credits = self._bucket
        # what it refused stood behind items that are gone; the version asked for then may need this worker's next round
        self._floor = NO_VERSION


# --- predict


class LocalPolicy:
    """`predict` by a plain call to an agent in this process.

    refresh: called before each prediction; loads newer weights if there are any (waiting until the gate's minimum is
    there) and says which version the agent has now.
    """

    def __init__(
        self, agent: Agent, spec: Spec, num_envs: int, gate: VersionGate, refresh: Callable[[], Version]
    ) -> None:
        self._agent, self._gate, self._refresh = agent, gate, refresh
        self._fields = reply_fields(spec)
        self._slot = np.arange(num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float = 1.0) -> Prediction:
        version = self._refresh()
        self._gate.see(version)
        context = PredictContext(self._slot, first, np.full(len(first), explore, np.float32))
        predicted = self._agent.predict(obs, context)
        checked_answer(predicted, self._fields, len(first))
        self.actions += len(first)
        return Prediction(*predicted, version)


class RemotePolicy:
    """`predict` at the shared actor: one question a step for all environments of the worker."""

    def __init__(
        self,
        client: Client,
        spec: Spec,
        worker: int,
        num_envs: int,
        gate: VersionGate,
        tick: Callable[[], None],
        timing: Callable[[float], None],
    ) -> None:
        """tick: called while waiting; raises to give up. timing: gets each answer's delay in seconds."""
        self._client, self._gate, self._tick, self._worker = client, gate, tick, worker
        self._timing = timing
        self._request_fields, self._reply_fields = request_fields(spec), reply_fields(spec)
        self._slot = np.arange(num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float = 1.0) -> Prediction:
        started = time.perf_counter()
        arrays = {
            "slot": self._slot,
            "first": first,
            "explore": np.full(len(first), explore, np.float32),
            **{f"obs.{name}": array for name, array in obs.items()},
        }
        check_arrays(arrays, self._request_fields, (len(first),), "what the workflow gave to predict")
        reply = None
        while reply is None:
            minimum = self._gate.minimum()
            seq = self._client.ask("predict", {"worker": self._worker, "min_version": list(minimum)}, arrays)
            reply = self._wait(seq, minimum)
        check_arrays(reply.arrays, self._reply_fields, (len(first),), "the actor's reply")
        self.actions += len(first)
        self._timing(time.perf_counter() - started)
        version = reply.version()
        self._gate.see(version)
        extra = {name[6:]: array for name, array in reply.arrays.items() if name.startswith("extra.")}
        return Prediction(reply.array("action"), extra, version)

    def _wait(self, seq: int, minimum: Version) -> Message | None:
        """The answer; None if what was asked for meanwhile changed (a refund), so that it must be asked again."""
        while (reply := self._client.collect()) is None:
            self._tick()
            if self._gate.minimum() != minimum:
                self._client.forget(seq)
                return None
            wait_any([self._client], 50)
        return reply


def request_fields(spec: Spec) -> Fields:
    """Name -> Field of a `predict` message, without its leading E."""
    return {
        "slot": Field((), "int64"),
        "first": Field((), "bool"),
        "explore": Field((), "float32"),
        **{f"obs.{name}": one for name, one in spec.obs.items()},
    }


def reply_fields(spec: Spec) -> Fields:
    """Name -> Field of the actor's reply, without its leading E."""
    return {"action": spec.action.field, **{f"extra.{name}": one for name, one in spec.extra.items()}}


def checked_answer(predicted: Any, fields: Fields, rows: int) -> Arrays:
    """What Agent.predict returned, as the arrays of a reply. Raises ContractError where the agent is, not where its
    answer goes."""
    what = "what Agent.predict returned"
    if not (isinstance(predicted, tuple) and len(predicted) == 2 and isinstance(predicted[1], dict)):
        raise ContractError(f"{what}: must be an array and a dict of arrays")
    answer = {"action": predicted[0], **{f"extra.{name}": array for name, array in predicted[1].items()}}
    strange = [name for name, array in answer.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ContractError(f"{what}: {strange[0]} must be a NumPy array, got {type(answer[strange[0]]).__name__}")
    check_arrays(answer, fields, (rows,), what)
    return answer


def parse_request(message: Message, fields: Fields) -> PredictRequest:
    """The request in a `predict` message. Raises WireError or ContractError."""
    first = message.array("first")
    if first.ndim != 1 or len(first) == 0:
        raise WireError(f"predict from {message.sender}: no rows")
    check_arrays(message.arrays, fields, (len(first),), f"predict from {message.sender}")
    worker = message.integer("worker")
    if not 0 <= worker < 1 << 31:  # the actor makes slots of it
        raise WireError(f"predict from {message.sender}: worker {worker}")
    return PredictRequest(
        worker=worker,
        incarnation=message.incarnation,
        seq=message.seq,
        slot=message.array("slot"),
        first=first,
        obs={name[4:]: array for name, array in message.arrays.items() if name.startswith("obs.")},
        explore=message.array("explore"),
        min_version=message.version("min_version"),
    )


# --- add and sample


class LocalBuffer:
    """`add` on a ReplayBuffer in this process.

    make_room: called when the buffer is full; must draw (train) or raise.
    """

    def __init__(self, buffer: ReplayBuffer, make_room: Callable[[], None]) -> None:
        self._buffer, self._make_room = buffer, make_room

    def add(self, items: Arrays) -> None:
        while self._buffer.add(items) == NO_ROOM:
            self._make_room()


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


# --- latest


class ModelReader:
    """`latest`: keeps one question open at the pool, which answers as soon as it has something newer.

    load: puts safetensors bytes into the agent's model.
    """

    def __init__(self, client: Client, load: Callable[[bytes], None]) -> None:
        self._client, self._load = client, load
        self.version = NO_VERSION
        self.loaded = 0
        self.delay_s = 0.0
        """From the learner's publishing to the newest load; the monotonic clock is one on all of a machine."""
        self._client.ask("latest", {"have": list(NO_VERSION)})

    def poll(self) -> bool:
        """Load what has arrived; whether the version changed."""
        message = self._client.collect()
        if message is None:
            return False
        tag = parse_model(message)
        changed = tag.version > self.version
        if changed:
            self._load(message.array("weights").tobytes())
            self.version = tag.version
            self.loaded += 1
            self.delay_s = time.monotonic() - message.integer("published_ns") / 1e9
        self._client.ask("latest", {"have": list(self.version)})
        return changed

    def wait(self, minimum: Callable[[], Version], tick: Callable[[], None]) -> Version:
        """Take what has arrived, and wait until `minimum()` or newer is loaded; tick: called while waiting."""
        self.poll()
        while self.version < minimum() or self.version == NO_VERSION:
            tick()
            wait_any([self._client], 50)
            self.poll()
        return self.version


class ModelWriter:
    """The other side of `latest`: the learner's way to the pool. Only the newest model waits to be taken."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tag = ModelTag(NO_VERSION, 0, "", 0)
        self._weights = np.empty(0, np.uint8)
        self._seq = 0
        self._offered_at = time.monotonic()
        self.published = 0

    @property
    def newest(self) -> Version:
        return self._tag.version

    def publish(self, version: Version, env_steps: int, weights: bytes) -> None:
        self._tag = ModelTag(version, env_steps, hashlib.sha256(weights).hexdigest(), time.monotonic_ns())
        self._weights = np.frombuffer(weights, np.uint8)
        self.published += 1
        self._send()

    def tick(self) -> None:
        """Take the pool's answers; once a second offer the newest model, which a restarted pool then wants."""
        while (answer := self._client.collect()) is not None:
            if answer.kind == "want":
                self._send()
        if time.monotonic() - self._offered_at > OFFER_EVERY_S and self._client.unanswered == 0:
            self._offered_at = time.monotonic()
            self._client.ask("offer", {"version": list(self._tag.version)})

    def _send(self) -> None:
        self._client.forget(self._seq)
        self._seq = self._client.ask("publish", tag_meta(self._tag), {"weights": self._weights})


def parse_model(message: Message) -> ModelTag:
    """The tag of a `model` or `publish` message, after comparing its bytes with their sha256. Raises WireError."""
    digest, named = hashlib.sha256(message.array("weights").data).hexdigest(), message.text("sha256")
    if digest != named:
        raise WireError(f"{message.kind} from {message.sender}: sha256 {digest[:8]} instead of {named[:8]}")
    return ModelTag(message.version(), message.integer("env_steps"), digest, message.integer("published_ns"))


def tag_meta(tag: ModelTag) -> dict[str, Any]:
    """The tag as it travels beside the weights."""
    return {**asdict(tag), "version": list(tag.version)}
