"""Messages between processes: a checked header and raw array buffers over ZeroMQ; the only file that imports zmq.

Called by every role. A `Server` (ROUTER) answers, a `Client` (DEALER) asks; each question carries a sequence
number and is open until it is answered; each answer is matched by it. Open questions are sent again when the
connection was lost, so a restarted server costs time and nothing else, while a server that merely takes its time is
left in peace. Servers see a question once or more and must answer all the same.
A message is one header frame (magic, checksum, MessagePack), one frame of all its small arrays, end to end, and one
frame per large array. Nothing is unpickled, everything is checked before a buffer becomes an array; what does not
pass is counted per peer and dropped.
"""

from __future__ import annotations

import math
import secrets
import struct
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import zmq
from isal.isal_zlib import crc32  # zlib's, ten times as fast
from loguru import logger
from zmq.utils.monitor import recv_monitor_message

from realm.contract import Array, Arrays, Version

PROTOCOL = 3
_PREFIX = struct.Struct("<4sHHI")  # magic, protocol, reserved, crc32 of the header that follows
_MAGIC = b"RLM\x01"
_SMALL_BYTES = 100_000  # measured: below this, copying into one frame beats a frame that ZeroMQ sends without a copy
_MAX_HEADER_BYTES = 1 << 20
_MAX_ARRAYS = 256
_LINGER_MS = 500
_HEARTBEAT_MS = 2_000
_DEAD_AFTER_MS = 10_000
_WARN_EVERY_S = 60.0
_DTYPES = {
    dtype.str: dtype for dtype in map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))
}
"""What an array may be made of: plain numbers, little-endian."""
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
# plain numbers: an operation on zmq's flags takes longer than a whole call of ZeroMQ
_LAST, _MORE, _READABLE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.POLLIN)
RESEND_AFTER_S = 30.0
"""For messages lost on a living connection (a full queue, a damaged answer): TCP loses none, so this is rare."""


_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Shape = Annotated[tuple[_Length, ...], msgspec.Meta(max_length=16)]
_Entry = tuple[str, str, _Shape]
"""An array's name, its dtype as NumPy's `dtype.str`, its shape."""


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What stands in a header frame; whoever decodes one has checked all of this."""

    run: str
    schema: str
    sender: str
    incarnation: int
    kind: str
    seq: int
    meta: dict[str, Any]
    arrays: Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=_MAX_ARRAYS)]
    crc: int | None


def _plain(value: Any) -> Any:
    """A number or text of a subclass, such as users' np.float64 and np.str_, as a plain one: msgspec takes no other."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is no plain value")


_ENCODER, _DECODER = msgspec.msgpack.Encoder(enc_hook=_plain), msgspec.msgpack.Decoder(_Header)


class WireError(ValueError):
    """A message that is not well-formed, or not of this run; the text says what about it."""


class Message(msgspec.Struct, frozen=True):
    """What travels: a kind, the number that pairs question and answer, small plain values, and arrays."""

    kind: str
    seq: int = 0
    meta: dict[str, Any] = {}
    arrays: Arrays = {}
    sender: str = ""
    incarnation: int = 0

    def integer(self, name: str) -> int:
        value = self.meta.get(name)
        if type(value) is not int:
            raise WireError(f"{self.kind} from {self.sender}: {name} must be an integer, got {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self.meta.get(name)
        if type(value) is not str:
            raise WireError(f"{self.kind} from {self.sender}: {name} must be a text, got {value!r}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.meta.get(name)
        if type(value) is not dict or any(type(key) is not str for key in value):  # MessagePack has others, too
            raise WireError(f"{self.kind} from {self.sender}: {name} must be a mapping, got {value!r}")
        return value

    def version(self, name: str = "version") -> Version:
        value = self.meta.get(name)
        if type(value) is not list or len(value) != 2 or any(type(one) is not int for one in value):
            raise WireError(f"{self.kind} from {self.sender}: {name} must be [epoch, update], got {value!r}")
        return Version(*value)

    def array(self, name: str) -> Array:
        if name not in self.arrays:
            raise WireError(f"{self.kind} from {self.sender}: array {name} is missing")
        return self.arrays[name]


@dataclass(frozen=True)
class Codec:
    """Turns messages into frames and back, for one sender in one run.

    run_id      keeps two runs, and everything else that speaks to the port, apart
    schema      `Spec.schema`; empty where no spec is known (the control channel)
    max_bytes   the largest legal message
    """

    run_id: str
    schema: str
    sender: str
    incarnation: int
    max_bytes: int

    def encode(self, message: Message, checksum: bool = False) -> list[Any]:
        """Frames to send; with `checksum` the bodies are covered too (chunks, and whatever leaves the machine).

        Raises WireError for what the other side would refuse.
        """
        arrays = message.arrays
        found: list[_Entry] = []
        for name, array in arrays.items():
            code = _CODES.get(array.dtype)
            if code is None:
                raise WireError(f"{message.kind}: array {name} is {array.dtype}; only plain numbers can be sent")
            found.append((name, code, array.shape))
        entries = tuple(found)
        layout = _layout(entries)
        if len(arrays) > _MAX_ARRAYS or layout.total > self.max_bytes:
            raise WireError(
                f"{message.kind}: {len(arrays)} arrays of {layout.total} bytes, "
                f"at most {_MAX_ARRAYS} of {self.max_bytes} bytes can be sent"
            )
        bodies: list[Any] = [b"".join([arrays[name].tobytes() for name in layout.small])] if layout.small else []
        bodies += [_elements(arrays[name]) for name in layout.large]
        header = _Header(
            self.run_id,
            self.schema,
            self.sender,
            self.incarnation,
            message.kind,
            message.seq,
            message.meta,
            entries,
            _crc(bodies) if checksum else None,
        )
        try:
            text = _ENCODER.encode(header)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise WireError(f"{message.kind}: its values cannot be sent: {error}") from error
        if _PREFIX.size + len(text) > _MAX_HEADER_BYTES:
            raise WireError(f"{message.kind}: a header of {len(text)} bytes")
        prefix = _PREFIX.pack(_MAGIC, PROTOCOL, 0, crc32(text))
        return [prefix + text, *bodies]

    def decode(self, frames: Sequence[Any]) -> Message:
        """The message in these frames; arrays are read-only views of them. Raises WireError."""
        if not frames:
            raise WireError("no frames")
        head = bytes(frames[0])
        if not _PREFIX.size < len(head) <= _MAX_HEADER_BYTES:
            raise WireError(f"a header of {len(head)} bytes")
        magic, protocol, _, crc = _PREFIX.unpack_from(head)
        if magic != _MAGIC:
            raise WireError(f"magic {magic!r} instead of {_MAGIC!r}")
        if protocol != PROTOCOL:
            raise WireError(f"protocol {protocol}, this side speaks {PROTOCOL}")
        text = head[_PREFIX.size :]
        if crc32(text) != crc:
            raise WireError("header checksum")
        try:
            header = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            raise WireError(f"header: {error}") from error
        if header.run != self.run_id:
            raise WireError("a message of another run")  # without the ids: they are keys, and this text is logged
        if header.schema != self.schema:
            raise WireError(f"schema {header.schema!r} instead of {self.schema!r}")
        layout, bodies = _layout(header.arrays), frames[1:]
        if (got := [len(body) for body in bodies]) != layout.sizes:
            raise WireError(f"bodies of {got} bytes instead of {layout.sizes} for {len(header.arrays)} arrays")
        if layout.total > self.max_bytes:
            raise WireError(f"{layout.total} bytes, at most {self.max_bytes}")
        if header.crc is not None and header.crc != _crc(bodies):
            raise WireError("body checksum")
        arrays: Arrays = {
            name: np.ndarray(shape, dtype, bodies[body], offset) for name, dtype, shape, body, offset in layout.places
        }
        return Message(header.kind, header.seq, header.meta, arrays, header.sender, header.incarnation)


def _elements(array: Array) -> Any:
    """The bytes of an array's elements in C order; not copied where they stand so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class _Layout(NamedTuple):
    """Where the arrays of a message stand in its bodies, the frames after its header."""

    small: list[str]
    """The names of those in the first body, end to end."""
    large: list[str]
    """The names of those with a body each, after that one."""
    sizes: list[int]
    """Bytes of each body."""
    total: int
    places: list[tuple[str, np.dtype[Any], tuple[int, ...], int, int]]
    """Of each array its name, dtype, shape, body and offset in it; in the order of the entries."""


@lru_cache(maxsize=64)  # a run's messages have few layouts
def _layout(entries: tuple[_Entry, ...]) -> _Layout:
    """The layout of arrays with these entries. Raises WireError for what cannot be an array."""
    sized = [(name, *_dtype_and_bytes(name, code, shape), shape) for name, code, shape in entries]
    small = [name for name, _, size, _ in sized if size < _SMALL_BYTES]
    large: list[str] = []
    sizes = [0] if small else []
    places = []
    for name, dtype, size, shape in sized:
        if size < _SMALL_BYTES:
            places.append((name, dtype, shape, 0, sizes[0]))
            sizes[0] += size
        else:
            places.append((name, dtype, shape, len(sizes), 0))
            sizes.append(size)
            large.append(name)
    return _Layout(small, large, sizes, sum(sizes), places)


def _dtype_and_bytes(name: str, code: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], int]:
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise WireError(f"array {name}: dtype {code!r}")
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        try:
            np.empty(shape, dtype)
        except ValueError as error:  # no bytes, and yet an axis that is too long for NumPy
            raise WireError(f"array {name}: shape {shape}") from error
    return dtype, size


def _crc(bodies: Sequence[Any]) -> int:
    crc = 0
    for body in bodies:
        crc = crc32(body, crc)
    return crc


@dataclass
class Traffic:
    """Counted since the start of a socket's owner."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    resent: int = 0
    unmatched: int = 0  # answers that nobody waits for: to questions that were sent twice, but not to forgotten ones
    bad_frames: Counter[str] = field(default_factory=Counter)

    def count_bad(self, text: str) -> None:
        """Count a message that cannot be used under what is wrong with it; a flood of them takes bounded memory."""
        key = text[:200]
        self.bad_frames[key if key in self.bad_frames or len(self.bad_frames) < 1000 else "others"] += 1

    def totals(self) -> dict[str, float]:
        return {
            "messages_in": self.messages_in,
            "messages_out": self.messages_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "resent": self.resent,
            "unmatched": self.unmatched,
            "bad_frames": sum(self.bad_frames.values()),
        }


class Socket:
    """What Server and Client share: sending and receiving whole messages without ever blocking."""

    def __init__(self, kind: int, codec: Codec) -> None:
        self.codec = codec
        self.traffic = Traffic()
        self._zmq: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        options = {
            zmq.LINGER: _LINGER_MS,
            zmq.MAXMSGSIZE: codec.max_bytes,
            # in messages: few of the largest, or many small ones, so that a queue holds bounded bytes
            zmq.SNDHWM: _high_water_mark(codec.max_bytes),
            zmq.RCVHWM: _high_water_mark(codec.max_bytes),
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _DEAD_AFTER_MS,
        }
        for name, value in options.items():
            self._zmq.setsockopt(name, value)

    def fileno_socket(self) -> zmq.Socket[bytes]:
        return self._zmq

    def close(self) -> None:
        self._zmq.close()

    def _send(self, frames: list[Any]) -> bool:
        """Whether ZeroMQ took the message; False when its queue is full or nobody is there."""
        try:
            for frame in frames[:-1]:
                self._zmq.send(frame, _MORE, copy=len(frame) < _SMALL_BYTES)
            self._zmq.send(frames[-1], _LAST, copy=len(frames[-1]) < _SMALL_BYTES)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:  # ROUTER_MANDATORY: that peer is gone and will ask again
                return False
            raise
        self.traffic.messages_out += 1
        self.traffic.bytes_out += sum(len(frame) for frame in frames)
        return True

    def _receive(self) -> list[Any] | None:
        """The frames' buffers of the next message, or None."""
        if not _readable(self._zmq):
            return None
        frames = [self._zmq.recv(_LAST, copy=False)]
        while frames[-1].more:
            frames.append(self._zmq.recv(_LAST, copy=False))
        buffers = [frame.buffer.toreadonly() for frame in frames]
        self.traffic.messages_in += 1
        self.traffic.bytes_in += sum(len(buffer) for buffer in buffers)
        return buffers


def _readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits: a third of what it takes to ask for one in vain."""
    return bool(socket.getsockopt(zmq.EVENTS) & _READABLE)  # type: ignore[operator]


def _high_water_mark(max_bytes: int) -> int:
    return max(4, min(1000, (64 << 20) // max_bytes))


class Server(Socket):
    """Binds one address and answers. Several questions may wait; `send` names the peer that asked."""

    def __init__(self, codec: Codec, host: str, port: int = 0) -> None:
        """port 0 takes any free one. Raises OSError if the port is taken."""
        super().__init__(zmq.ROUTER, codec)
        self._zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._zmq.bind(f"tcp://{host}:{port if port else '*'}")
        except zmq.ZMQError as error:
            self._zmq.close(0)
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error}") from error
        self.address: str = self._zmq.getsockopt_string(zmq.LAST_ENDPOINT)
        self._warned_at = -_WARN_EVERY_S

    def receive(self) -> tuple[bytes, Message] | None:
        """The next good message and its peer, or None if none waits. Bad ones are counted and dropped."""
        while (buffers := self._receive()) is not None:
            peer = bytes(buffers[0])
            try:
                return peer, self.codec.decode(buffers[1:])
            except WireError as error:
                self.reject(peer, error)
        return None

    def send(self, peer: bytes, message: Message, checksum: bool = False) -> bool:
        return self._send([peer, *self.codec.encode(message, checksum)])

    def reject(self, peer: bytes, error: ValueError) -> None:
        """Count a message that cannot be used; called here, and by a role whose contract it breaks."""
        self.traffic.count_bad(f"{peer.hex()}: {error}")
        if time.monotonic() - self._warned_at > _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            bad = sum(self.traffic.bad_frames.values())
            logger.warning("{}: a message was dropped: {} ({} so far)", self.address, error, bad)


@dataclass
class _Question:
    frames: list[Any]
    sent_at: float | None  # monotonic seconds; None: not yet taken by ZeroMQ
    lost: bool = False  # sent over a connection that is no more


class Client(Socket):
    """Connects to one server and asks; keeps every unanswered question, and sends it again over a new connection."""

    def __init__(self, codec: Codec, address: str) -> None:
        super().__init__(zmq.DEALER, codec)
        # without IMMEDIATE, questions to a dead server pile up in a queue and all arrive at its successor
        self._zmq.setsockopt(zmq.IMMEDIATE, 1)
        self._zmq.setsockopt(zmq.RECONNECT_IVL, 50)
        self._zmq.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._events = _monitor(self._zmq, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        # also when nobody calls `close`: it keeps both sockets alive until then, so that they end in the right order
        self._end = weakref.finalize(self, _end_monitored, self._zmq, self._events)
        self._end.atexit = False  # at the end of a process another thread may be using them
        self._disconnected = False
        self._zmq.connect(address)
        self._next_seq = 1
        self._open: dict[int, _Question] = {}
        self._forgotten: set[int] = set()  # sent, and the answer may yet come

    def close(self) -> None:
        self._end()

    @property
    def unanswered(self) -> int:
        return len(self._open)

    def ask(self, kind: str, meta: dict[str, Any], arrays: Arrays | None = None, checksum: bool = False) -> int:
        """Send a question; returns its number, which `collect` gives back with the answer.

        The arrays must stay untouched until then.
        """
        seq = self._next_seq
        self._next_seq += 1
        frames = self.codec.encode(Message(kind, seq, meta, arrays or {}), checksum)
        self._open[seq] = _Question(frames, time.monotonic() if self._send(frames) else None)
        return seq

    def forget(self, seq: int) -> None:
        """Stop waiting for an answer; should it come, it is dropped."""
        question = self._open.pop(seq, None)
        if question is not None and question.sent_at is not None:
            self._forgotten.add(seq)

    def collect(self) -> Message | None:
        """The next answer to an open question, or None if none waits; sends overdue questions again."""
        while (buffers := self._receive()) is not None:
            try:
                message = self.codec.decode(buffers)
            except WireError as error:
                self.traffic.count_bad(str(error))
                continue
            if self._open.pop(message.seq, None) is not None:
                return message
            self.traffic.unmatched += message.seq not in self._forgotten
            self._forgotten.discard(message.seq)
        self._watch_connection()
        now = time.monotonic()
        for question in self._open.values():
            due = question.lost or question.sent_at is None or now - question.sent_at > RESEND_AFTER_S
            if due and self._send(question.frames):
                self.traffic.resent += question.sent_at is not None
                question.sent_at, question.lost = now, False
        return None

    def _watch_connection(self) -> None:
        """Mark what was sent over a connection that is no more, once there is a new one.

        Not before: at the moment of DISCONNECTED ZeroMQ may still put messages into the dead connection's queue.
        """
        while _readable(self._events):
            if recv_monitor_message(self._events)["event"] == zmq.EVENT_DISCONNECTED:
                self._disconnected = True
            elif self._disconnected:
                self._disconnected = False
                self._forgotten.clear()
                for question in self._open.values():
                    question.lost = question.sent_at is not None

    def wait(self, seq: int, check: Callable[[], None]) -> Message:
        """Block until question `seq` is answered; other answers are dropped.

        `check` is called every 50 ms at least, and may raise to give up.
        """
        while True:
            message = self.collect()
            if message is None:
                check()
                wait_any([self], 50)
            elif message.seq == seq:
                return message


def _monitor(watched: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket that receives the `events` of `watched`; both end together, by `_end_monitored`.

    ZeroMQ's only I/O thread sends them, and waits if it must: with no receiver, or a full queue, it would wait for
    ever, and no socket of the process would send, receive or connect again.
    """
    receiver: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    receiver.setsockopt(zmq.RCVHWM, 0)  # never full: a few hundred bytes a reconnection
    name = _inproc_name("events")
    watched.monitor(name, events)
    receiver.connect(name)
    return receiver


def _end_monitored(watched: zmq.Socket[bytes], receiver: zmq.Socket[bytes]) -> None:
    """Close both, but first end the sending of events: a closed socket still has some while it lingers."""
    watched.disable_monitor()
    receiver.close(0)
    watched.close()


def _inproc_name(kind: str) -> str:
    """Used once: ZeroMQ frees a name some time after its socket was closed, and the id of an object recurs sooner."""
    return f"inproc://{kind}-{secrets.token_hex(8)}"


class Waker:
    """Lets another thread end a `wait_any`: a one-byte pipe inside the process."""

    def __init__(self) -> None:
        name = _inproc_name("waker")
        self._in: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._in.bind(name)
        self._name = name

    def handle(self) -> Callable[[], None]:
        """A function for one other thread to call (a ZeroMQ socket belongs to the thread that uses it)."""
        out: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        out.setsockopt(zmq.LINGER, 0)
        out.connect(self._name)

        def wake() -> None:
            try:
                out.send(b"", zmq.DONTWAIT)
            except zmq.Again:
                return  # a thousand wake-ups wait already: one more adds nothing

        return wake

    def drain(self) -> None:
        while _readable(self._in):
            self._in.recv()

    def fileno_socket(self) -> zmq.Socket[bytes]:
        return self._in


def wait_any(sockets: Sequence[Socket | Waker], timeout_ms: int) -> None:
    """Sleep until one of the sockets has something to receive, at most `timeout_ms`."""
    zmq.zmq_poll([(one.fileno_socket(), _READABLE) for one in sockets], timeout_ms)
