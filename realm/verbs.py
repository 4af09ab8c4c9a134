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
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from realm.buffer import NO_ROOM, ReplayBuffer
from realm.contract import (
    NO_VERSION,
    Agent,
    Array,
    Arrays,
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
    """Bounds policy lag at the source: a worker plays at most `window` rounds with any one version.

    A round is one chunk of each of the worker's environments. Asking for a version newer than that of `window`
    rounds ago needs no count of rounds that others could lose: a worker that was restarted, or whose round was
    refused, falls into step by itself. `window` None: no bound.
    """

    def __init__(self, window: int | None) -> None:
        self._played: deque[Version] = deque(maxlen=window)
        self._window = window

    def minimum(self) -> Version:
        """The oldest version that the next prediction may come from."""
        if self._window is None or len(self._played) < self._window:
            return NO_VERSION
        return Version(self._played[0].epoch, self._played[0].update + 1)

    def close_round(self, version: Array) -> None:
        """A round was played; version i64 [..., 2] of its rows."""
        oldest = min(map(tuple, version.reshape(-1, 2)))
        self._played.append(Version(int(oldest[0]), int(oldest[1])))


def gate_window(max_version_lag: int | None, train_batch_size: int, round_size: int) -> int | None:
    """Rounds at one version that keep the lag within `max_version_lag` updates and still fill a batch."""
    if max_version_lag is None:
        return None
    return max(-(-train_batch_size // round_size), (max_version_lag + 1) * train_batch_size // round_size)


# --- predict


class LocalPolicy:
    """`predict` by a plain call to an agent in this process.

    refresh: called before each prediction with the oldest version allowed; loads newer weights if there are any
    (waiting if there must be) and says which version the agent has now.
    """

    def __init__(self, agent: Agent, num_envs: int, gate: VersionGate, refresh: Callable[[Version], Version]) -> None:
        self._agent, self._gate, self._refresh = agent, gate, refresh
        self._slot = np.arange(num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float = 1.0) -> Prediction:
        version = self._refresh(self._gate.minimum())
        context = PredictContext(self._slot, first, np.full(len(first), explore, np.float32))
        action, extra = self._agent.predict(obs, context)
        self.actions += len(first)
        return Prediction(action, extra, version)


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
        self._reply_fields = reply_fields(spec)
        self._slot = np.arange(num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float = 1.0) -> Prediction:
        started = time.perf_counter()
        seq = self._client.ask(
            "predict",
            {"worker": self._worker, "min_version": list(self._gate.minimum())},
            {
                "slot": self._slot,
                "first": first,
                "explore": np.full(len(first), explore, np.float32),
                **{f"obs.{name}": array for name, array in obs.items()},
            },
        )
        reply = self._client.wait(seq, self._tick)
        check_arrays(reply.arrays, self._reply_fields, (len(first),), "the actor's reply")
        self.actions += len(first)
        self._timing(time.perf_counter() - started)
        extra = {name[6:]: array for name, array in reply.arrays.items() if name.startswith("extra.")}
        return Prediction(reply.array("action"), extra, reply.version())


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


def parse_request(message: Message, fields: Fields) -> PredictRequest:
    """The request in a `predict` message. Raises WireError or ContractError."""
    first = message.array("first")
    if first.ndim != 1 or len(first) == 0:
        raise WireError(f"predict from {message.sender}: no rows")
    check_arrays(message.arrays, fields, (len(first),), f"predict from {message.sender}")
    return PredictRequest(
        worker=message.integer("worker"),
        incarnation=message.incarnation,
        seq=message.seq,
        slot=message.array("slot"),
        first=first,
        obs={name[4:]: array for name, array in message.arrays.items() if name.startswith("obs.")},
        explore=message.array("explore"),
        min_version=message.version("min_version"),
    )


# --- add and sample


class Sender(Protocol):
    """The verb `add`."""

    def add(self, items: Arrays) -> None:
        """Hand over one round (name -> [n, ...]); returns when the next one may be played."""
        ...


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
    """`add` over a socket: at most `max_unacked` rounds wait for the buffer's word, which is the back-pressure."""

    def __init__(self, client: Client, max_unacked: int, tick: Callable[[], None]) -> None:
        self._client, self._max_unacked, self._tick = client, max_unacked, tick
        self.answers: Counter[str] = Counter()

    def add(self, items: Arrays) -> None:
        self._settle(self._max_unacked - 1)
        self._client.ask("add", {}, items, checksum=True)

    def _settle(self, unanswered: int) -> None:
        while self._client.unanswered > unanswered:
            answer = self._client.collect()
            if answer is None:
                self._tick()
                wait_any([self._client], 50)
            else:
                status = answer.text("status")
                if status == "invalid":
                    raise WireError(f"the buffer refused a round: {answer.text('reason')}")
                self.answers[status] += 1


class BatchReader:
    """`sample` over a socket, one question ahead: the next batch travels while this one is trained on."""

    def __init__(self, client: Client, count: int, tick: Callable[[], None]) -> None:
        self._client, self._count, self._tick = client, count, tick
        self._seq = 0
        self._confirm = 0
        self._priorities: Arrays = {}

    def request(self, version: Version) -> None:
        """Ask for the batch that `version` will be trained on; confirms the batch before."""
        meta = {"count": self._count, "version": list(version), "confirm": self._confirm}
        self._seq = self._client.ask("sample", meta, self._priorities)
        self._priorities = {}

    def receive(self) -> tuple[Arrays, SampleInfo]:
        """Wait for the batch that was asked for: item name -> [B, ...]."""
        reply = self._client.wait(self._seq, self._tick)
        self._confirm = reply.seq
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
        self._client.ask("latest", {"have": list(self.version)})
        return changed

    def wait(self, minimum: Version, tick: Callable[[], None]) -> Version:
        """Wait until `minimum` or newer is loaded; takes what has arrived in any case."""
        while not self.poll() and (self.version < minimum or self.version == NO_VERSION):
            tick()
            wait_any([self._client], 50)
        return self.version


class ModelWriter:
    """The other side of `latest`: the learner's way to the pool. Only the newest model waits to be taken."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tag = ModelTag(NO_VERSION, 0, "")
        self._weights = np.empty(0, np.uint8)
        self._seq = 0
        self._offered_at = time.monotonic()
        self.published = 0

    def publish(self, version: Version, env_steps: int, weights: bytes) -> None:
        self._tag = ModelTag(version, env_steps, hashlib.sha256(weights).hexdigest())
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
        meta = {"version": list(self._tag.version), "env_steps": self._tag.env_steps, "sha256": self._tag.sha256}
        self._seq = self._client.ask("publish", meta, {"weights": self._weights})


def parse_model(message: Message) -> ModelTag:
    """The tag of a `model` or `publish` message, after comparing its bytes with their sha256. Raises WireError."""
    digest, named = hashlib.sha256(message.array("weights").data).hexdigest(), message.text("sha256")
    if digest != named:
        raise WireError(f"{message.kind} from {message.sender}: sha256 {digest[:8]} instead of {named[:8]}")
    return ModelTag(message.version(), message.integer("env_steps"), digest)
