"""Faults at the sockets of a run: strangers at its ports, other processes at its table."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import psutil
import pytest
import zmq

from realm.contract import Field
from realm.wire.codec import Codec, Message
from realm.wire.sockets import Client, Server, wait_any
from tests.backends import NEEDS_REVERB
from tests.broken import GREETING, SOCKET_TYPE

CODEC = Codec("the run's id", "abcd1234", "aisrv-0", 1, 256 << 20)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers everything."""
    server, over = Server(CODEC, "127.0.0.1"), threading.Event()

    def answer() -> None:
        while not over.is_set():
            wait_any([server], 20)
            while (received := server.receive()) is not None:
                server.send(received[0], Message("answer", received[1].seq, received[1].meta))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield server
    over.set()
    thread.join()
    server.close()


def ask(client: Client, n: int) -> None:
    deadline = time.monotonic() + 30

    def check() -> None:
        assert time.monotonic() < deadline, "no answer"

    assert client.wait(client.ask("question", {"n": n}), check).meta == {"n": n}


OPENINGS = {
    "without a password": (b"NULL\0\0\0\0", b"\x05READY" + SOCKET_TYPE),
    "with a wrong password": (b"PLAIN\0\0\0", b"\x05HELLO\x05realm\x05wrong"),
    "with a wrong name": (b"PLAIN\0\0\0", b"\x05HELLO\x04root\x0cthe run's id"),
    "with no handshake at all": (b"PLAIN\0\0\0", b"\x08INITIATE" + SOCKET_TYPE),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_message_without_an_end_from_a_stranger(server: Server, opening: str) -> None:
    client = Client(CODEC, server.address)
    ask(client, 0)
    mechanism, command = OPENINGS[opening]
    before, sent = psutil.Process().memory_info().rss, 0
    part = b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)  # a frame of 1 MB, and more will follow
    for n in range(3):
        port = int(server.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger, suppress(ConnectionError):
            stranger.sendall(GREETING % mechanism + bytes([4, len(command)]) + command)
            for _ in range(200):
                stranger.sendall(part)
                sent += 1
        ask(client, n)
    assert sent < 100
    assert psutil.Process().memory_info().rss - before < 50 << 20
    assert server.traffic.messages_in == 4
    client.close()


@pytest.mark.parametrize("password", ["another run's id", "x"])
def test_a_peer_with_a_wrong_password_is_refused_and_counted(server: Server, password: str) -> None:
    honest = Client(CODEC, server.address)
    ask(honest, 1)
    raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    raw.setsockopt(zmq.PLAIN_USERNAME, b"realm")
    raw.setsockopt(zmq.PLAIN_PASSWORD, password.encode())
    raw.setsockopt(zmq.SNDTIMEO, 0)
    raw.connect(server.address)
    with suppress(zmq.Again):  # it may be refused before it has sent anything
        raw.send(b"x")
    deadline = time.monotonic() + 30
    while server.traffic.refused_peers == 0:
        assert time.monotonic() < deadline, "the stranger was not counted"
        time.sleep(0.01)
    ask(honest, 2)
    raw.close()
    assert server.traffic.totals()["refused_peers"] >= 1
    assert server.traffic.messages_in == 2
    honest.close()


INTRUDER = """
import sys
import numpy as np
from realm.data.reverb import _reverb
client = _reverb.Client("localhost:" + sys.argv[1])
if sys.argv[2] == "takes":
    client.NewSampler("items-test", 1, 1).GetNextTrajectory()
else:
    writer = client.NewWriter(chunk_length=1, max_timesteps=1, max_in_flight_items=1)
    row = {"short": [np.array(b"x", object)], "number": [np.array(5)], "two": [np.zeros(1), np.zeros(1)]}[sys.argv[2]]
    writer.Append(row)
    writer.CreateItem("items-test", 1, 1.0)
    writer.Flush()
"""


@NEEDS_REVERB
@pytest.mark.slow
@pytest.mark.parametrize("deed", ["takes", "short", "number", "two"])
def test_another_process_at_the_table_is_an_error(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a wait for ever, and never an array from somebody else's bytes."""
    from realm.data import reverb

    fields = {"worker": Field((), "int32"), "x": Field((2,), "float32")}
    storage = reverb.ReverbStorage(fields, 100, "Fifo", "Fifo", True, 1.0, "test")
    items = {"worker": np.arange(4, dtype=np.int32), "x": np.ones((4, 2), np.float32)}
    storage.add(items)
    sampled, _ = storage.sample(3)
    assert sampled["worker"].tolist() == [0, 1, 2]
    subprocess.run([sys.executable, "-c", INTRUDER, str(storage._port), deed], check=True, timeout=120)
    if deed == "takes":
        monkeypatch.setattr(reverb, "_SAMPLE_WITHIN_S", 3)
    what = "gave no 1 items in 3 s" if deed == "takes" else "not one row of 12 bytes"
    with pytest.raises(RuntimeError, match=f"reverb's table .*{what}.* port {storage._port}"):
        storage.sample(1 if deed == "takes" else 2)
