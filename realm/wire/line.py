"""Direct lines for the verb `predict`: frames of a fixed layout over a stream socket inside this machine.

ZeroMQ hands each message to a thread of its own and back, at both ends. For a question that takes a fraction of a
millisecond to answer, that costs more than all else together; so questions go straight from one process to the other.

The door stays ZeroMQ's: a worker asks the actor's `Server`, which lets nobody in without password or key, for a line,
and gets an address and a key that is good for one connection there (`Lines.invite`). Whatever breaks, the worker asks
for another line. Both ends know the fields of a frame, so its head is seven numbers, and its number of rows is all
that can be wrong with its arrays.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from realm.contract import Arrays, Fields, Version, check_arrays
from realm.wire.codec import Message, WireError
from realm.wire.sockets import Server, Socket, Traffic

_HEAD = struct.Struct("<4sIqqqqq")  # magic, rows, sequence number, epoch, update, env steps, size of the memory
_MAGIC = b"RLN\x01"
_KEY_BYTES = 16
_READ = selectors.EVENT_READ
_HELLO_S = 5.0
WAIT_MS = 50
"""The caller's calls wait so long at most."""
_MOST_STRANGERS = 64
"""Connections that have not said their key yet; a newer one takes the place of the oldest."""


class LineLost(Exception):
    """The other end is gone."""


class Head(NamedTuple):
    """version: of an answer the weights that gave it; of a question the oldest that may answer it."""

    rows: int
    seq: int
    version: Version
    env_steps: int
    memory_size: int


class Layout:
    """What the frames of one direction hold: name -> Field, without the rows that lead each array."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.parts = [(name, np.dtype(field.dtype), field.shape, field.nbytes) for name, field in fields.items()]
        self.row_bytes = sum(part[-1] for part in self.parts)


class Frame:
    """A message in one piece of memory: a head, then `rows` rows of each field, each array on a multiple of 8 bytes."""

    def __init__(self, layout: Layout, rows: int) -> None:
        starts, size = [], _HEAD.size
        for *_, row_bytes in layout.parts:
            starts.append(size)
            size += -(-rows * row_bytes // 8) * 8
        self.layout, self.rows = layout, rows
        self.bytes = memoryview(bytearray(size))
        self.arrays: Arrays = {
            name: np.ndarray((rows, *shape), dtype, self.bytes, start)
            for (name, dtype, shape, _), start in zip(layout.parts, starts, strict=True)
        }
        self._groups: dict[str, Arrays] = {}

    def group(self, name: str) -> Arrays:
        """The arrays `name.x` as x; the same dict each time."""
        if name not in self._groups:
            self._groups[name] = {
                inner: array
                for full, array in self.arrays.items()
                for group, _, inner in [full.partition(".")]
                if group == name and inner
            }
        return self._groups[name]

    def put(self, arrays: Arrays, label: str) -> None:
        """Copy arrays name -> [rows, ...] into the frame. Raises ContractError, naming `label`, for other fields."""
        mine = self.arrays
        if arrays.keys() != mine.keys() or any(
            array.dtype != mine[name].dtype or array.shape != mine[name].shape for name, array in arrays.items()
        ):
            check_arrays(arrays, self.layout.fields, (self.rows,), label)
        for name, array in arrays.items():
            mine[name][...] = array

    def address(self, seq: int, version: Version, env_steps: int = 0, memory_size: int = 0) -> None:
        """Write the head."""
        _HEAD.pack_into(self.bytes, 0, _MAGIC, self.rows, seq, *version, env_steps, memory_size)

    def head(self) -> Head:
        """Read the head. Raises WireError if it is none."""
        magic, rows, seq, epoch, update, *known = _HEAD.unpack_from(self.bytes)
        if magic != _MAGIC:
            raise WireError(f"a line: magic {magic!r} instead of {_MAGIC!r}")
        return Head(rows, seq, Version(epoch, update), *known)


class Line:
    """One end of a line."""

    def __init__(
        self, connection: socket.socket, layout: Layout, max_bytes: int, traffic: Traffic, wait_ms: int = 0
    ) -> None:
        """layout, max_bytes: of the frames that come in. wait_ms: so long a call waits at most, to send or receive."""
        connection.setblocking(wait_ms > 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO) if wait_ms else ():
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 1000 * wait_ms))
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._layout, self._traffic = connection, layout, traffic
        self._most_rows = max_bytes // max(1, layout.row_bytes)
        self._frame, self._got = Frame(layout, 0), 0
        self._unsent: memoryview | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def unsent(self) -> bool:
        """Whether a part of the last frame is still here."""
        return self._unsent is not None

    def send(self, frame: Frame) -> None:
        """Send as much as goes now; `flush` sends the rest. The frame must not change until then. Raises LineLost."""
        self._unsent = frame.bytes
        self._traffic.messages_out += 1
        self._traffic.bytes_out += len(frame.bytes)
        self.flush()

    def flush(self) -> None:
        """Send more of the last frame. Raises LineLost."""
        try:
            while self._unsent is not None:
                sent = self._socket.send(self._unsent)
                self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None
        except BlockingIOError:
            return
        except OSError as error:
            raise LineLost(str(error)) from error

    def receive(self) -> tuple[Head, Frame] | None:
        """The next frame once the whole of it is here; the call after this one may overwrite it.

        Raises LineLost, or WireError for what is no frame.
        """
        while True:
            try:
                count = self._socket.recv_into(self._frame.bytes[self._got :])
            except BlockingIOError:
                return None
            except OSError as error:
                raise LineLost(str(error)) from error
            if count == 0:
                raise LineLost("it was closed")
            self._got += count
            if self._got < _HEAD.size:
                continue
            head = self._frame.head()
            if head.rows != self._frame.rows or head.rows == 0:
                self._resize(head.rows)
            if self._got == len(self._frame.bytes):
                self._got = 0
                self._traffic.messages_in += 1
                self._traffic.bytes_in += len(self._frame.bytes)
                return head, self._frame

    def _resize(self, rows: int) -> None:
        """Make room for a frame of `rows` rows, whose head was read into one of others."""
        if not 0 < rows <= self._most_rows:
            raise WireError(f"a line: {rows} rows; must be from 1 to {self._most_rows}")
        frame = Frame(self._layout, rows)
        if self._got > len(frame.bytes):
            raise WireError(f"a line: {self._got} bytes for {rows} rows; must be {len(frame.bytes)}")
        frame.bytes[: self._got] = self._frame.bytes[: self._got]
        self._frame = frame


class Question(NamedTuple):
    """A frame that waits for an answer; `caller` names who asks."""

    caller: int
    line: Line
    head: Head
    frame: Frame


class Lines:
    """The server's ends of all lines, and the door to them. `waiting`: the newest question of each caller."""

    def __init__(self, server: Server, others: Sequence[Socket], questions: Fields, answers: Fields) -> None:
        """server: its codec's limit holds here, too, and it counts what is wrong. others: end a wait, too."""
        self._server, self._questions, self._answers = server, Layout(questions), Layout(answers)
        self.waiting: dict[int, Question] = {}
        self._listener = _listen()
        self._invited: dict[bytes, int] = {}
        self._strangers: dict[int, tuple[socket.socket, float]] = {}
        self._lines: dict[int, tuple[int, Line]] = {}  # by file descriptor, as the strangers are
        self._selector = selectors.DefaultSelector()
        for fd in (self._listener.fileno(), *(other.fileno() for other in others)):
            self._selector.register(fd, _READ)
        self._frames: dict[int, Frame] = {}  # the last answer to each caller

    def close(self) -> None:
        self._selector.close()
        self._listener.close()
        for stranger, _ in self._strangers.values():
            stranger.close()
        for _, line in self._lines.values():
            line.close()

    def invite(self, caller: int) -> dict[str, str]:
        """Where this caller finds its line, and the key that opens it once; earlier ones of the caller are void."""
        self._invited = {key: other for key, other in self._invited.items() if other != caller}
        key = secrets.token_bytes(_KEY_BYTES)
        self._invited[key] = caller
        name = self._listener.getsockname()
        address = name[1:].decode() if isinstance(name, bytes) else f"{name[0]}:{name[1]}"
        return {"address": address, "key": key.hex()}

    def receive(self, timeout_s: float) -> bool:
        """Wait until something arrives here or at the others, at most so long, and take what is for here.

        Returns whether something may wait at the others.
        """
        elsewhere = False
        for key, _ in self._selector.select(timeout_s):
            if key.fd in self._lines:
                self._hear(key.fd)
            elif key.fd in self._strangers:
                self._open(key.fd)
            elif key.fd == self._listener.fileno():
                self._accept()
            else:
                elsewhere = True
        if self._strangers:
            for fd in [fd for fd, (_, until) in self._strangers.items() if until < time.monotonic()]:
                self._turn_away(fd)
        return elsewhere

    def answer(self, question: Question, known: tuple[Version, int, int], arrays: Arrays, row: int) -> None:
        """Send name -> [N, ...] from this row on, as many rows as were asked about; their dtypes must be right.

        known: the version that answers, its env steps and the memory's size.
        """
        frame = self._frames.get(question.caller)
        if frame is None or frame.rows != question.head.rows:
            frame = self._frames[question.caller] = Frame(self._answers, question.head.rows)
        try:
            if question.line.unsent:  # of this very frame
                raise WireError("a line: asked again before it took the answer")
            for name, array in frame.arrays.items():
                array[...] = arrays[name][row : row + frame.rows]
            frame.address(question.head.seq, *known)
            question.line.send(frame)
            self._watch(question.line)
        except LineLost:
            self._end(question.line)
        except WireError as error:
            self._reject(question.line, error)

    def _watch(self, line: Line) -> None:
        """Wait for room, too, as long as a part of the line's last answer is still here."""
        events = _READ | selectors.EVENT_WRITE if line.unsent else _READ
        if self._selector.get_key(line.fileno()).events != events:
            self._selector.modify(line.fileno(), events)

    def _hear(self, fd: int) -> None:
        caller, line = self._lines[fd]
        try:
            if line.unsent:
                line.flush()
                self._watch(line)
            self.waiting.pop(caller, None)  # a newer question takes its place, and its memory
            received = line.receive()
            if received is not None:
                self.waiting[caller] = Question(caller, line, *received)
        except LineLost:
            self._end(line)
        except WireError as error:
            self._reject(line, error)

    def _accept(self) -> None:
        """Let somebody in as far as to say a key."""
        if len(self._strangers) >= _MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers)))
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone, or no file handle is left
            for fd in list(self._strangers):
                self._turn_away(fd)
            return
        connection.setblocking(False)
        self._strangers[connection.fileno()] = connection, time.monotonic() + _HELLO_S
        self._selector.register(connection, _READ)

    def _open(self, fd: int) -> None:
        """Make a line of a connection that said a key; end one that said anything else."""
        connection, _ = self._strangers[fd]
        try:
            caller = self._invited.pop(connection.recv(_KEY_BYTES), None)
        except OSError:
            caller = None
        if caller is None:
            self._server.traffic.refused_peers += 1
            self._turn_away(fd)
            return
        del self._strangers[fd]
        for line in [line for other, line in self._lines.values() if other == caller]:
            self._end(line)
        traffic, most = self._server.traffic, self._server.codec.max_bytes
        self._lines[fd] = caller, Line(connection, self._questions, most, traffic)

    def _turn_away(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._strangers.pop(fd)[0].close()

    def _reject(self, line: Line, error: WireError) -> None:
        caller, _ = self._lines[line.fileno()]
        self._server.reject(b"line of %d" % caller, error)
        self._end(line)

    def _end(self, line: Line) -> None:
        self._selector.unregister(line.fileno())
        caller, _ = self._lines.pop(line.fileno())
        self.waiting.pop(caller, None)
        self._frames.pop(caller, None)
        line.close()


def _listen() -> socket.socket:
    """A socket that only this machine reaches. On Linux it has no file, so a killed process leaves none behind."""
    if sys.platform != "linux":
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0realm-{secrets.token_hex(8)}")
    listener.listen(_MOST_STRANGERS)
    return listener


def connect(invitation: Message, answers: Layout, max_bytes: int, traffic: Traffic) -> Line:
    """The caller's end of the line that `Lines.invite` named. Raises LineLost or WireError."""
    address, key = invitation.text("address"), invitation.text("key")
    host, _, port = address.rpartition(":")
    connection = socket.socket(socket.AF_INET if host else socket.AF_UNIX)
    try:
        connection.connect((host, int(port)) if host else f"\0{address}")
        connection.sendall(bytes.fromhex(key))
    except OSError as error:
        connection.close()
        raise LineLost(f"{address} cannot be reached: {error}") from error
    return Line(connection, answers, max_bytes, traffic, WAIT_MS)
