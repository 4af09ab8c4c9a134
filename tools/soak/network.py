"""What is done to the connections of a run: strangers, damaged peers, floods, and a line that is cut or slow."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from realm.wire.codec import Codec, Message
from realm.wire.sockets import Client
from tests.broken import GREETING, SOCKET_TYPE, mutate
from tools.soak.victim import Victim, require

MANY = 256 << 20
SERVERS = ("actor-0", "buffer-0", "model_pool-0")
HELLO = b"\x05HELLO\x05realm\x05wrong"
OPENINGS = {  # of strangers: all that is sent
    "random bytes": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "no password": GREETING % b"NULL\0\0\0\0" + b"\x04\x26\x05READY" + SOCKET_TYPE + b"\x00\xff" + bytes(255),
    "a wrong password": GREETING % b"PLAIN\0\0\0" + bytes([4, len(HELLO)]) + HELLO,
    "a part of 1 GB": GREETING % b"PLAIN\0\0\0" + b"\x02" + struct.pack(">Q", 1 << 30) + bytes(1000),
    "parts without an end": GREETING % b"PLAIN\0\0\0" + (b"\x03" + struct.pack(">Q", 1 << 16) + bytes(1 << 16)) * 50,
}
WRONG = "a wrong password"  # the only one of them that is counted; the others are closed by ZeroMQ


def visit(address: str, opening: str, draw: random.Random) -> None:
    """Be a stranger at a port for a moment."""
    port = int(address.rpartition(":")[2])
    data = OPENINGS[opening] or draw.randbytes(draw.randrange(1, 500))
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(data)
        # until it is turned away: a connection that is closed at once may never be looked at
        stranger.settimeout(0.1 if opening != WRONG else 10)
        answer = b""
        while b"RROR" not in answer and (more := stranger.recv(4096)):
            answer += more


class Peer:
    """Knows the run's secret, as a damaged worker would, and sends what is no message."""

    def __init__(self, run_id: str, address: str) -> None:
        self._codec = Codec(run_id, "damaged", "aisrv-0", 1, MANY)
        self._client = Client(self._codec, address)
        self._good = [bytes(one) for one in self._codec.encode(Message("add", 1, {"a": [1, 2]}), checksum=True)]
        self.sent = 0

    def send_bad(self, draw: random.Random) -> bool:
        """Send one broken message; whether it went out."""
        frames, bad = mutate(draw, self._good)
        if not bad or not frames:
            frames = [draw.randbytes(30)]
        took = self._client._send(frames)
        self.sent += took
        return took

    def send_many(self, draw: random.Random, number: int) -> None:
        """Send so many; waits while ZeroMQ takes none."""
        deadline, goal = time.monotonic() + 120, self.sent + number
        while self.sent < goal:
            if not self.send_bad(draw):
                require(time.monotonic() < deadline, "a peer with the secret gets no message through")
                time.sleep(0.001)

    def close(self) -> None:
        self._client.close()


class RawPeer:
    """Knows the run's secret and speaks ZeroMQ by hand, since its own sockets wait, and send whole messages only."""

    def __init__(self, run_id: str, address: str) -> None:
        hello = b"\x05HELLO\x05realm" + bytes([len(run_id)]) + run_id.encode()
        begin = b"\x08INITIATE" + SOCKET_TYPE
        self._socket = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20)
        self._socket.sendall(GREETING % b"PLAIN\0\0\0" + bytes([4, len(hello)]) + hello)
        self._await(b"WELCOME")
        self._socket.sendall(bytes([4, len(begin)]) + begin)
        self._await(b"READY")

    def _await(self, word: bytes) -> None:
        answer = b""
        while word not in answer:
            more = self._socket.recv(4096)
            require(more, f"the handshake of a peer with the secret ended before {word.decode()}")
            answer += more

    def flood(self, seconds: float) -> int:
        """Send messages that are none as fast as the line takes them; how many."""
        text, sent, until = b"no message", 0, time.monotonic() + seconds
        many = (b"\x00" + bytes([len(text)]) + text) * 1000
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                self._socket.sendall(many)
                sent += 1000
        return sent

    def endless(self, part_bytes: int, most_bytes: int, look: Callable[[], None]) -> int:
        """Send parts of one message that does not end; the bytes that went out. look: called after every part."""
        part, sent = b"\x03" + struct.pack(">Q", part_bytes) + bytes(part_bytes), 0
        with contextlib.suppress(OSError):
            while sent < most_bytes:
                self._socket.sendall(part)
                sent += part_bytes
                look()
        return sent

    def close(self) -> None:
        self._socket.close()


def addresses(run: Victim) -> dict[str, str]:
    """Label -> address of every port of a run."""
    found = run.file()
    return {"supervisor": found["control"], **{label: found["roles"][label]["address"] for label in SERVERS}}


def counted(run: Victim, label: str, name: str) -> float:
    """A counter of a port's present process."""
    status = run.status()
    totals = status["traffic"] if label == "supervisor" else status["roles"][label]["totals"]
    return float(totals.get(name if label == "supervisor" else f"wire/{name}", 0.0))


class Line:
    """A TCP line with a switch: `mode` is pass, cut, slow, or one that loses what goes "there" or comes "back"."""

    def __init__(self, listen: int, to: int) -> None:
        self.mode = "pass"
        self.connections = 0
        self._listen, self._to = listen, to
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        require(self._ready.wait(30), "the line does not come up")

    def set(self, mode: str) -> None:
        """Change the mode; a line that is cut, or that has lost something, loses its connections."""
        before, self.mode = self.mode, mode
        if mode == "cut" or before in ("there", "back"):
            self._call(self._drop)

    def close(self) -> None:
        self.mode = "cut"
        self._call(self._drop)
        self._call(self._loop.stop)
        self._thread.join(10)

    def _call(self, what: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._meet, "127.0.0.1", self._listen))
        self._ready.set()
        self._loop.run_forever()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "cut":
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, to_writer}
        for one in (self._pipe(reader, to_writer, "there"), self._pipe(to_reader, writer, "back")):
            task = self._loop.create_task(one)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.mode == "slow":
                    await asyncio.sleep(0.2)
                if self.mode != way:
                    writer.write(data)
                    await writer.drain()
        writer.close()
