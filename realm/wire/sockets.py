"""Sockets that ask and answer over ZeroMQ.

Called by every role. A `Server` (ROUTER) answers, a `Client` (DEALER) asks. Each question carries a sequence number,
which matches the answer to it; it stays open until the answer arrives. After a lost connection the client sends open
questions again, so a restarted server costs only time; it does not repeat questions to a server that is only slow,
unless one is open for `RESEND_AFTER_S`. So a server may see a question twice, and each kind of question allows that: a
round that comes again is a duplicate, the last batch is kept until the learner asks for the next one, `latest` says
which version the asker has, `publish` and `offer` name one, and an actor keeps the newest question of a worker.
Messages that `codec` refuses are counted per peer and dropped. `door.py` decides who may connect: a stranger's first
message is never read.
"""

from __future__ import annotations

import secrets
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq
from loguru import logger
from zmq.utils.monitor import recv_monitor_message

from realm.contract import Arrays
from realm.watch.progress import Every
from realm.wire import door
from realm.wire.codec import SMALL_BYTES, Codec, Message, WireError
from realm.wire.connections import Connections
from realm.wire.curve_keys import CurveKeys

_LINGER_MS = 500
_WARN_EVERY_S = 60.0
_MOST_A_TURN = 256  # messages that a server takes before its owner does something else: a flood must not stop it
_DOUBT_AFTER = 5  # handshakes in a row that the server broke off
# plain numbers: one operation on zmq's flag enums takes longer than a whole ZeroMQ call
_LAST, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
RESEND_AFTER_S = 30.0
"""For messages lost on a living connection (a full queue, a damaged answer). Rare, because TCP loses none."""


@dataclass
class Traffic:
    """Counters since the socket's owner started."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    resent: int = 0
    unmatched: int = 0  # second answers to questions that were sent twice; answers to forgotten ones do not count
    bad_frames: Counter[str] = field(default_factory=Counter)
    refused_peers: int = 0  # with a wrong password or key; those without one are closed by ZeroMQ

    def count_bad(self, text: str) -> None:
        """Count a bad message under its fault `text`; a flood of different faults takes bounded memory."""
        key = text[:200]
        self.bad_frames[key if key in self.bad_frames or len(self.bad_frames) < 1000 else "others"] += 1

    def totals(self) -> dict[str, float]:
        return {**vars(self), "bad_frames": sum(self.bad_frames.values())}


class Socket:
    """The base of Server and Client: sends and receives whole messages and never blocks."""

    def __init__(self, kind: int, codec: Codec, events: int) -> None:
        """events: those of the connections that `_next_event` tells."""
        self.codec = codec
        self.traffic = Traffic()
        self._latest: zmq.Frame | None = None  # of the message received last
        self._zmq: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        # no heartbeats: they abort a process that was frozen for longer than their time-out (libzmq issue 4767)
        self._zmq.setsockopt(zmq.LINGER, _LINGER_MS)
        self._zmq.setsockopt(zmq.MAXMSGSIZE, codec.max_bytes)
        # counted in messages: fewer for larger messages, so that a queue holds bounded bytes
        self._zmq.set_hwm(max(4, min(1000, (64 << 20) // codec.max_bytes)))
        self._events = _monitor(self._zmq, events)
        # closes both sockets in the right order even if nobody calls `close`, and keeps them alive until then
        self._end = weakref.finalize(self, _end_monitored, self._zmq, self._events)
        self._end.atexit = False  # at exit another thread may still use them

    def fileno_socket(self) -> zmq.Socket[bytes]:
        return self._zmq

    def fileno(self) -> int:
        """Readable once something may be here. ZeroMQ does not say it again, so look now and then in any case."""
        return int(self._zmq.FD)

    def close(self) -> None:
        self._end()

    def _next_event(self) -> Mapping[str, Any] | None:
        """The next event of a connection: `event`, `value` and `endpoint`, as `recv_monitor_message` has them."""
        return recv_monitor_message(self._events) if _readable(self._events) else None

    def _send(self, frames: list[Any]) -> bool:
        """Whether ZeroMQ took the message; False if its queue is full or no peer is connected."""
        try:
            for frame in frames[:-1]:
                self._zmq.send(frame, _MORE, copy=len(frame) < SMALL_BYTES)
            self._zmq.send(frames[-1], _LAST, copy=len(frames[-1]) < SMALL_BYTES)
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
        """The buffers of the next message's frames, or None."""
        if not _readable(self._zmq):
            return None
        frames = [self._zmq.recv(_LAST, copy=False)]
        while frames[-1].more:
            frames.append(self._zmq.recv(_LAST, copy=False))
        self._latest = frames[-1]
        buffers = [frame.buffer.toreadonly() for frame in frames]
        self.traffic.messages_in += 1
        self.traffic.bytes_in += sum(len(buffer) for buffer in buffers)
        return buffers


def _readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits: takes a third of the time of a receive call that finds none."""
    return bool(socket.getsockopt(zmq.EVENTS) & _READABLE)  # type: ignore[operator]


class Server(Socket):
    """Binds one address and answers. Several questions may wait; `send` takes the peer that asked."""

    def __init__(self, codec: Codec, host: str, port: int = 0, keys: CurveKeys | None = None) -> None:
        """port 0 takes any free port. keys: needed where other machines reach `host`. Raises OSError if the port is
        taken."""
        super().__init__(zmq.ROUTER, codec, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._zmq.setsockopt(zmq.SNDHWM, 1000)  # a peer gets as many answers as it has open questions, which are few
        self._wrong = "an unknown key" if keys else "a wrong password"
        self._may_warn, self._may_tell = (Every(_WARN_EVERY_S, at_once=True) for _ in range(2))
        self.address = f"{host}:{port}"
        self._domain = door.guard(self._zmq, codec.run_id, keys, self._refuse)
        self._connections = Connections(codec.max_bytes)
        self._turn = 0
        try:
            self._zmq.bind(f"tcp://{host}:{port if port else '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error}") from error
        self.address = self._zmq.getsockopt_string(zmq.LAST_ENDPOINT)
        self._connections.port = int(self.address.rpartition(":")[2])

    def close(self) -> None:
        door.forget(self._domain)
        super().close()

    def expect(self, most_bytes: int) -> None:
        """No message is larger from now on: a connection that sends more without an end is closed."""
        self._connections.most_bytes = min(most_bytes, self.codec.max_bytes)

    def expect_clients(self, count: int) -> None:
        """Let `count` more peers be strangers, such as workers, which are silent until their first round is whole."""
        self._connections.most_strangers += count

    def _refuse(self, address: str) -> None:
        """Count a peer that the door turned away. Called by the door's thread."""
        self.traffic.refused_peers += 1
        if self._may_tell.due():
            logger.warning(
                "{}: turned away a peer at {} with {} ({} so far)",
                self.address, address, self._wrong, self.traffic.refused_peers,
            )  # fmt: skip

    def receive(self) -> tuple[bytes, Message] | None:
        """The next valid message and its peer, or None: none waits, or it is time for the caller's other work.

        Bad messages are counted and dropped.
        """
        while self._turn < _MOST_A_TURN:
            self._turn += 1
            if (buffers := self._receive()) is None:
                if self._connections.due():
                    self._look_at_connections()
                break
            assert self._latest is not None
            self._connections.handed_over(int(self._latest.get(zmq.SRCFD)))  # the descriptor that it came from
            peer = bytes(buffers[0])
            try:
                return peer, self.codec.decode(buffers[1:])
            except WireError as error:
                self.reject(peer, error)
        self._turn = 0
        return None

    def serve(self, handle: Callable[[bytes, Message], None]) -> None:
        """Have each message that waits handled; one for which that raises WireError is a bad one."""
        while (received := self.receive()) is not None:
            try:
                handle(*received)
            except WireError as error:
                self.reject(received[0], error)

    def _look_at_connections(self) -> None:
        """End those of strangers that are too many, and those whose message does not end."""
        while (event := self._next_event()) is not None:
            act = self._connections.accepted if event["event"] == zmq.EVENT_ACCEPTED else self._connections.closed
            act(event["value"])
        for _ in range(self._connections.look()):
            self._count_bad("a message without an end")

    def send(self, peer: bytes, message: Message, checksum: bool = False) -> bool:
        return self._send([peer, *self.codec.encode(message, checksum)])

    def reject(self, peer: bytes, error: ValueError) -> None:
        """Count a bad message; called here for the codec, and by roles for messages that break their contract."""
        self._count_bad(f"{peer.hex()}: {error}")

    def _count_bad(self, error: str) -> None:
        self.traffic.count_bad(error)
        if self._may_warn.due():
            bad = sum(self.traffic.bad_frames.values())
            logger.warning("{}: dropped a bad message: {} ({} so far)", self.address, error, bad)


@dataclass
class _Question:
    frames: list[Any]
    sent_at: float | None  # monotonic seconds; None: not yet taken by ZeroMQ
    lost: bool = False  # sent over a connection that was lost


class Client(Socket):
    """Connects to one server and asks; keeps every open question and sends it again after a reconnection."""

    def __init__(self, codec: Codec, address: str, keys: CurveKeys | None = None) -> None:
        super().__init__(zmq.DEALER, codec, _WATCHED)
        self._address, self._keys = address, keys
        # without IMMEDIATE, questions to a dead server pile up in a queue and all arrive at its successor
        self._zmq.setsockopt(zmq.IMMEDIATE, 1)
        door.introduce(self._zmq, codec.run_id, keys)
        self._zmq.setsockopt(zmq.RECONNECT_IVL, 50)
        self._zmq.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._disconnected, self._broken_off = False, 0
        self._zmq.connect(address)
        self._next_seq = 1
        self._open: dict[int, _Question] = {}
        self._forgotten: set[int] = set()  # sent, and the answer may still arrive

    @property
    def unanswered(self) -> int:
        return len(self._open)

    def ask(self, kind: str, meta: dict[str, Any], arrays: Arrays | None = None, checksum: bool = False) -> int:
        """Send a question; return its number, which the answer from `collect` carries.

        The arrays must stay untouched until then.
        """
        seq = self._next_seq
        self._next_seq += 1
        frames = self.codec.encode(Message(kind, seq, meta, arrays or {}), checksum)
        # not past one that ZeroMQ has not taken yet: the buffer takes a round that comes late for a duplicate
        waits = any(question.sent_at is None for question in self._open.values())
        self._open[seq] = _Question(frames, time.monotonic() if not waits and self._send(frames) else None)
        return seq

    def forget(self, seq: int) -> None:
        """Stop waiting for an answer; if it still arrives, it is dropped."""
        question = self._open.pop(seq, None)
        if question is not None and question.sent_at is not None:
            self._forgotten.add(seq)

    def collect(self) -> Message | None:
        """The next answer to an open question, or None if none waits; sends overdue questions again.

        Raises ConfigError or RunError, once, if the server turned this client away: it will never be answered.
        """
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
            if not question.lost and question.sent_at is not None and now - question.sent_at <= RESEND_AFTER_S:
                continue
            if not self._send(question.frames):
                break  # the later ones must not overtake it
            self.traffic.resent += question.sent_at is not None
            question.sent_at, question.lost = now, False
        return None

    def _watch_connection(self) -> None:
        """Mark questions sent over a lost connection, once there is a new one.

        Not earlier: after DISCONNECTED, ZeroMQ may still put messages into the dead connection's queue.
        """
        while (told := self._next_event()) is not None:
            event = told["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._disconnected = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._broken_off = 0
                if self._disconnected:
                    self._disconnected = False
                    self._forgotten.clear()
                    for question in self._open.values():
                        question.lost = question.sent_at is not None
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._broken_off += 1
                if self._keys and self._broken_off == _DOUBT_AFTER:
                    logger.warning(
                        "{}: breaks off every connection; if it is the right machine, its public.key is not the one in "
                        "{}/server.key",
                        self._address, self._keys.folder,
                    )  # fmt: skip
            else:
                raise door.refusal(self._address, event == zmq.EVENT_HANDSHAKE_FAILED_AUTH, self._keys)

    def wait(self, seq: int, check: Callable[[], None]) -> Message:
        """Block until question `seq` is answered; other answers are dropped.

        `check` is called at least every 50 ms and may raise to give up.
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

    ZeroMQ's only I/O thread sends them and blocks while it cannot. Without a receiver, or with a full queue, it would
    block for ever, and no socket of the process would send, receive or connect again.
    """
    receiver: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    receiver.setsockopt(zmq.RCVHWM, 0)  # never full: a few hundred bytes per reconnection
    name = (
        f"inproc://events-{secrets.token_hex(8)}"  # unique: ZeroMQ frees a name only some time after its socket closes
    )
    watched.monitor(name, events)
    receiver.connect(name)
    return receiver


def _end_monitored(watched: zmq.Socket[bytes], receiver: zmq.Socket[bytes]) -> None:
    """Close both, but stop the events first: a closed socket still sends some while it lingers."""
    watched.disable_monitor()
    receiver.close(0)
    watched.close()


class Waker:
    """Lets other threads end a `wait_any`."""

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)

    def wake(self) -> None:
        """Any thread may call it."""
        with suppress(BlockingIOError):  # thousands of wake-ups wait already
            self._in.send(b".")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while self._out.recv(4096):
                pass

    def fileno_socket(self) -> int:
        return self._out.fileno()


def wait_any(sockets: Sequence[Socket | Waker], timeout_ms: int) -> None:
    """Sleep until one of the sockets has something to receive, at most `timeout_ms`."""
    zmq.zmq_poll([(socket.fileno_socket(), _READABLE) for socket in sockets], timeout_ms)
