"""realm/wire.py: the codec on any array and on ten thousand broken messages, and sockets through every kind of loss."""

from __future__ import annotations

import dataclasses
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zmq.utils.monitor import recv_monitor_message

from realm.contract import Array, Version
from realm.wire import connections, sockets
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import CONTROL_MAX_BYTES, Link, RunSoFar
from realm.wire.sockets import Client, Server, Traffic, Waker, wait_any
from tests.broken import HEADER, framed, mutate, parts

CODEC = Codec("run-1", "abcd1234", "aisrv-0", 3, 1 << 20)
DTYPES = ("b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", "q")


class Count(int):
    """A number that is not quite plain."""


def message() -> Message:
    return Message(
        "add",
        7,
        {"count": 5, "version": [1, 2], "name": "x", "book": {"a": "b"}},
        {
            "x": np.arange(12, dtype=np.float32).reshape(3, 4),
            "large": np.arange(100_000, dtype=np.uint8).reshape(2, 50_000),
            "flag": np.array([True, False]),
            "one": np.array(5, np.int64),
        },
    )


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


# --- the codec


def arrays_of(dtype: str) -> st.SearchStrategy[Array]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    return hnp.arrays(np.dtype(dtype), shapes)


views = st.sampled_from(["as it is", "transposed", "reversed", "every other", "read-only"])


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(DTYPES).flatmap(arrays_of), views), max_size=4),
    st.integers(0, 2**60),
    st.booleans(),
)
def test_round_trip_of_any_array(named: dict[str, tuple[Array, str]], seq: int, checksum: bool) -> None:
    arrays = {}
    for name, (array, view) in named.items():
        match view:
            case "transposed":
                array = array.T
            case "reversed":
                array = array[::-1] if array.ndim else array
            case "every other":
                array = array[..., ::2] if array.ndim else array
            case "read-only":
                array.setflags(write=False)
        arrays[name] = array
    sent = Message("kind", seq, {"text": "ü", "list": [1, 2.5, None]}, arrays)
    got = CODEC.decode([bytes(frame) for frame in CODEC.encode(sent, checksum)])
    assert (got.kind, got.seq, got.meta, got.sender, got.incarnation) == ("kind", seq, sent.meta, "aisrv-0", 3)
    assert list(got.arrays) == list(arrays)
    for name, array in arrays.items():
        assert got.arrays[name].dtype == array.dtype
        assert got.arrays[name].shape == array.shape
        assert got.arrays[name].tobytes() == array.tobytes()
        assert not got.arrays[name].flags.writeable


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros(2, ">f4"), ">f4"),
        (np.zeros(2, np.complex64), "complex64"),
        (np.array(["a"]), "<U1"),
        (np.array([object()]), "object"),
        (np.zeros(2, [("a", "i4")]), "'a'"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
    ],
)
def test_what_the_other_side_would_refuse_is_not_sent(array: Array, what: str) -> None:
    with pytest.raises(WireError, match=f"x: array obs is .*{what}.* must be plain little-endian numbers"):
        CODEC.encode(Message("x", arrays={"obs": array}))


def test_limits_are_the_senders_too() -> None:
    CODEC.encode(Message("x", arrays={"a": np.zeros(CODEC.max_bytes, np.uint8)}))
    with pytest.raises(
        WireError, match=f"2 arrays of {CODEC.max_bytes + 1} bytes; must be at most 256 arrays of {CODEC.max_bytes}"
    ):
        CODEC.encode(Message("x", arrays={"a": np.zeros(CODEC.max_bytes, np.uint8), "b": np.zeros(1, np.uint8)}))
    with pytest.raises(WireError, match="257 arrays"):
        CODEC.encode(Message("x", arrays={str(n): np.zeros(1) for n in range(257)}))
    with pytest.raises(WireError, match="a header of"):
        CODEC.encode(Message("x", meta={"text": "y" * (1 << 20)}))
    for value in (2**64, object(), "\ud800", np.int64(1)):
        with pytest.raises(WireError, match="x: its values cannot be sent"):
            CODEC.encode(Message("x", meta={"value": value}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -(2**63), 2**64 - 1, 1e-300, {"a": [None, True, "ü"]}])
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    got = CODEC.decode([bytes(one) for one in CODEC.encode(Message("x", meta={"value": value}))]).meta["value"]
    assert repr(got) == repr(value)


@pytest.mark.parametrize(("value", "plain"), [(np.float64(1.5), 1.5), (np.str_("x"), "x"), (Count(3), 3)])
def test_numbers_and_texts_of_a_subclass_arrive_as_plain_ones(value: Any, plain: Any) -> None:
    meta = {"value": value, "nested": {"a": [value]}}
    got = CODEC.decode([bytes(one) for one in CODEC.encode(Message("x", meta=meta))]).meta
    assert got == {"value": plain, "nested": {"a": [plain]}}
    assert type(got["value"]) is type(plain)


def test_fields_of_meta_are_checked_when_read() -> None:
    got = message()
    assert got.integer("count") == 5
    assert got.text("name") == "x"
    assert got.version() == Version(1, 2)
    assert got.value("book", dict[str, str]) == {"a": "b"}
    with pytest.raises(WireError, match="add from aisrv-4: book: Expected `str`, got `int`"):
        Message("add", 1, {"book": {1: "b"}}, sender="aisrv-4").value("book", dict[str, str])
    bad = Message("add", 1, {"count": True, "name": 5, "version": [1, 2.0], "book": []}, sender="aisrv-4")
    for read in (bad.integer, bad.text, bad.version, lambda name: bad.value(name, dict[str, Any])):
        for name in ("count", "name", "version", "book", "absent"):
            if (read, name) in ((bad.integer, "name"),):
                continue
            with pytest.raises(WireError, match=f"add from aisrv-4: {name}: Expected"):
                read(name)
    with pytest.raises(WireError, match="add from aisrv-4: array x is missing"):
        bad.array("x")


def refused(codec: Codec, frames: list[bytes], match: str) -> None:
    with pytest.raises(WireError, match=match):
        codec.decode(frames)


def test_each_check_of_the_header() -> None:
    good = [bytes(one) for one in CODEC.encode(message(), checksum=True)]
    assert CODEC.decode(good).arrays["one"] == 5
    head, bodies = good[0], good[1:]
    refused(CODEC, [], "a message without frames")
    refused(CODEC, [b"", *bodies], "a header of 0 bytes")
    refused(CODEC, [head[:12], *bodies], "a header of 12 bytes")
    refused(CODEC, [head + b" " * (1 << 20), *bodies], "a header of")
    refused(CODEC, [b"HTTP" + head[4:], *bodies], "magic b'HTTP'")
    refused(CODEC, [head[:4] + b"\x09\x00" + head[6:], *bodies], "protocol 9")
    refused(CODEC, [head[:-1] + b"\0", *bodies], "header checksum")
    wanted = r" bytes instead of \[58, 100000\] for 4 arrays"
    refused(CODEC, good[:-1], r"bodies of \[58\]" + wanted)
    refused(CODEC, [head, bodies[1]], r"bodies of \[100000\]" + wanted)
    refused(CODEC, [*good, b""], r"bodies of \[58, 100000, 0\]" + wanted)
    refused(CODEC, [head, bodies[0][:-1], bodies[1]], r"bodies of \[57, 100000\]" + wanted)
    refused(CODEC, [head, bodies[0], bodies[1][:-1]], r"bodies of \[58, 99999\]" + wanted)
    refused(CODEC, [head, bytes(58), bodies[1]], "body checksum")
    refused(CODEC, [head, bodies[0], bytes(100_000)], "body checksum")
    refused(dataclasses.replace(CODEC, run_id="run-2"), good, "a message of another run$")
    refused(dataclasses.replace(CODEC, schema="ffff"), good, "schema 'abcd1234' instead of 'ffff'")
    refused(dataclasses.replace(CODEC, max_bytes=100_057), good, "100058 bytes; must be at most 100057")
    deep, huge = b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"  # arrays within arrays; one of 2**32 - 1 elements
    for text in (
        b"{",
        b"\xff\xfe\xfd",
        b"\xc1",
        deep,
        huge,
        b"\x81\xa1a\x01",
        b"\x90",
        b"\xc0",
        framed(parts(good))[12:-1],
    ):
        refused(CODEC, [framed(None, text)], "^header: ")
    for text in (deep, huge):
        refused(CODEC, [framed(parts(good) | {"meta": {"a": msgspec.Raw(text)}}), *bodies], "^header: ")
    for place, name in enumerate(HEADER):
        for junk in (None if name != "crc" else "x", 1.5, True, {"a": 1} if name != "meta" else "x"):
            refused(CODEC, [framed(parts(good) | {name: junk}), *bodies], rf"^header: Expected .* at `\$\[{place}\]`")
        short = {one: value for one, value in parts(good).items() if one != name}
        refused(CODEC, [framed(short), *bodies], "^header: ")
    refused(CODEC, [framed(parts(good) | {"new": 1}), *bodies], "^header: ")
    refused(CODEC, [framed(parts(good) | {"arrays": [["a", "|u1", [0]]] * 257})], "^header: .* length <= 256")


@pytest.mark.parametrize(
    "entry",
    [
        None, {}, "x", [], ["x", "<f4"], ["x", "<f4", [1], 0], [1, "<f4", [1]], ["x", 1, [1]],
        ["x", "O", [1]], ["x", "|O8", [1]], ["x", ">f4", [1]], ["x", "", [1]], ["x", "<", [1]], ["x", "<f", [1]],
        ["x", "<U1", [1]], ["x", "|V4", [1]], ["x", "<f4,<f4", [1]], ["x", "(2,)f4", [1]], ["x", "<f3", [1]],
        ["x", "<f0", [1]], ["x", "<f٤", [1]], ["x", "<f²", [1]], ["x", "<M8[s]", [1]], ["x", "<m8", [1]],
        ["x", "<f4", 1], ["x", "<f4", None], ["x", "<f4", [-1]], ["x", "<f4", [-1, -1]], ["x", "<f4", [1.0]],
        ["x", "<f4", [True]], ["x", "<f4", ["1"]], ["x", "<f4", [2]], ["x", "<f4", [0]], ["x", "<f4", [1] * 17],
        ["x", "<f4", [2**62, 4]], ["x", "<f4", [2**61, 4]], ["x", "<f4", [2**64 - 1] * 16], ["x", "<f4", [2**63]],
        ["x", "<f4", [2**40]],
    ],
)  # fmt: skip
def test_absurd_arrays(entry: Any) -> None:
    header = parts([bytes(CODEC.encode(Message("x"))[0])]) | {"arrays": [entry]}
    refused(CODEC, [framed(header), bytes(4)], r"array|at `\$\[7\]\[0\]")


@pytest.mark.parametrize("shape", [[0, 2**40, 2**40], [2**61, 0, 4], [2**62, 0, 4], [0, 2**64 - 1]])
def test_absurd_arrays_without_bytes(shape: list[int]) -> None:
    header = parts([bytes(CODEC.encode(Message("x"))[0])]) | {"arrays": [["x", "<f4", shape]]}
    refused(CODEC, [framed(header), b""], r"array x: impossible shape|at `\$\[7\]\[0\]\[2\]")


def test_ten_thousand_broken_messages() -> None:
    draw = random.Random(0)
    good = [bytes(one) for one in CODEC.encode(message(), checksum=True)]
    refusals = accepted = 0
    tracemalloc.start()
    try:
        for case in range(10_000):
            frames, must_fail = mutate(draw, good)
            try:
                got = CODEC.decode(frames)
            except WireError as error:
                refusals += 1
                str(error).encode(errors="replace")
                continue
            assert not must_fail, f"case {case}: {frames}"
            accepted += 1
            again = CODEC.encode(got)  # whatever was accepted is a message like any other
            assert CODEC.decode([bytes(one) for one in again]).arrays.keys() == got.arrays.keys()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refusals > 7000
    assert accepted > 100
    assert peak < 5 << 20


# --- sockets


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(dataclasses.replace(CODEC, sender="buffer-0"), "127.0.0.1")
    yield one
    one.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    one = Client(CODEC, server.address)
    ask(one, server)  # connected: before that, nothing can be sent
    one.traffic, server.traffic = Traffic(), Traffic()
    yield one
    one.close()


def serve(server: Server) -> int:
    """Answer whatever waits with the same arrays; returns how many questions there were."""
    count = 0
    while (received := server.receive()) is not None:
        peer, question = received
        assert server.send(peer, Message("answer", question.seq, question.meta, question.arrays))
        count += 1
    return count


def ask(client: Client, server: Server, **meta: Any) -> Message:
    seq = client.ask("question", meta, {"x": np.arange(3)})
    got: list[Message] = []

    def answered() -> bool:
        serve(server)
        answer = client.collect()
        if answer is not None:
            got.append(answer)
        return bool(got)

    until(answered)
    assert got[0].seq == seq
    assert not got[0].arrays["x"].flags.writeable
    return got[0]


def test_questions_and_answers(server: Server, client: Client) -> None:
    for n in range(5):
        answer = ask(client, server, n=n)
        assert answer.meta == {"n": n}
        assert answer.sender == "buffer-0"
        assert answer.arrays["x"].tolist() == [0, 1, 2]
    assert client.unanswered == 0
    assert client.collect() is None
    assert client.traffic.totals() == {
        "messages_in": 5, "messages_out": 5, "bytes_in": server.traffic.bytes_out - 5 * 5,
        "bytes_out": server.traffic.bytes_in - 5 * 5, "resent": 0, "unmatched": 0, "bad_frames": 0, "refused_peers": 0,
    }  # fmt: skip  # (the server counts ZeroMQ's five bytes of identity, too)


def test_large_arrays_go_without_a_copy_and_arrive_whole(client: Client, server: Server) -> None:
    large = np.random.default_rng(0).integers(0, 255, 900_000, np.uint8)
    seq = client.ask("question", {}, {"large": large, "small": np.arange(2)}, checksum=True)
    until(lambda: serve(server))
    answer = client.wait(seq, lambda: None)
    assert (answer.arrays["large"] == large).all()


def test_wait_can_be_given_up(client: Client) -> None:
    class Enough(Exception):
        pass

    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Enough

    with pytest.raises(Enough):
        client.wait(client.ask("question", {}), check)


def test_a_forgotten_answer_is_dropped(server: Server, client: Client) -> None:
    client.forget(client.ask("question", {}))
    until(lambda: serve(server))
    assert ask(client, server, n=2).meta == {"n": 2}
    assert client.traffic.messages_in == 2
    assert client.traffic.unmatched == 0


def test_a_question_sent_twice_is_answered_twice_and_taken_once(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RESEND_AFTER_S", 0.05)
    seq = client.ask("question", {"n": 1})
    until(lambda: client.collect() is None and client.traffic.resent == 1)
    until(lambda: serve(server) + server.traffic.messages_out >= 2)
    monkeypatch.setattr(sockets, "RESEND_AFTER_S", 60)
    assert client.wait(seq, lambda: None).meta == {"n": 1}
    until(lambda: client.collect() is None and client.traffic.unmatched == server.traffic.messages_out - 1)
    assert ask(client, server, n=2).meta == {"n": 2}


def test_a_server_that_takes_its_time_is_asked_once(server: Server, client: Client) -> None:
    seq = client.ask("question", {"n": 1}, {"x": np.arange(3)})
    began = time.monotonic()
    while time.monotonic() - began < 3:
        assert client.collect() is None
        time.sleep(0.01)
    assert client.traffic.resent == 0
    assert serve(server) == 1
    assert client.wait(seq, lambda: None).meta == {"n": 1}


SERVER = """
import sys, time
from realm.wire.codec import Codec, Message
from realm.wire.sockets import Server
server = Server(Codec("run-1", "abcd1234", "buffer-0", 1, 1 << 20), "127.0.0.1", int(sys.argv[1]))
print("there", flush=True)
while True:
    received = server.receive()
    if received is None:
        time.sleep(0.005)
    elif sys.argv[2] == "answer":
        server.send(received[0], Message("answer", received[1].seq, received[1].meta))
    else:
        print("holds", flush=True)
"""


@pytest.mark.system
def test_a_server_killed_with_a_question_in_its_hands() -> None:
    """kill -9 and a new process at the same port: asked again by the new connection, long before the slow timer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def start(what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(port), what], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return process

    one = Client(CODEC, f"tcp://127.0.0.1:{port}")
    try:
        for n in range(3):
            process = start("hold")
            seq = one.ask("question", {"n": n}, {"x": np.arange(30_000)})
            until(lambda: one.collect() is None and one._open[seq].sent_at is not None)  # noqa: B023
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            process.kill()
            process.wait()
            process = start("answer")
            began = time.monotonic()
            assert one.wait(seq, lambda: None).meta == {"n": n}
            assert time.monotonic() - began < sockets.RESEND_AFTER_S / 2
            assert one.traffic.resent > n
            process.kill()
            process.wait()
    finally:
        one.close()


def test_answers_to_many_open_questions_all_go_out_at_once(server: Server, client: Client) -> None:
    asked = [client.ask("add", {}) for _ in range(64)]
    questions: list[tuple[bytes, Message]] = []
    until(lambda: (questions.extend(taken(server)), client.collect(), len(questions) == 64)[2])
    assert [message.seq for _, message in questions] == asked
    assert all(server.send(peer, Message("added", message.seq)) for peer, message in questions)
    answers: list[int] = []

    def collected() -> bool:
        if (answer := client.collect()) is not None:
            answers.append(answer.seq)
        return len(answers) == 64

    until(collected)
    assert answers == asked


def taken(server: Server) -> list[tuple[bytes, Message]]:
    return [one] if (one := server.receive()) is not None else []


def test_no_question_overtakes_one_that_could_not_be_sent(server: Server) -> None:
    """Nobody is connected at first, or the queue is full: then they wait here, and go out in their order."""
    one = Client(Codec("run-1", "abcd1234", "aisrv-0", 1, 1 << 28), server.address)  # queues of four messages
    asked, came = [one.ask("add", {}) for _ in range(200)], list[int]()
    until(lambda: (came.extend(message.seq for _, message in taken(server)), one.collect(), len(came) == 200)[2])
    assert came == asked
    one.close()


def test_a_server_that_comes_back_at_its_port_is_asked_again(server: Server, client: Client) -> None:
    ask(client, server)
    first = client.ask("question", {"n": 1})
    until(lambda: server.receive() is not None)  # it dies with the question in its hands
    port = int(server.address.rpartition(":")[2])
    server.close()
    second = client.ask("question", {"n": 2})  # nobody is there
    reborn: list[Server] = []

    def bound() -> bool:
        try:
            reborn.append(Server(CODEC, "127.0.0.1", port))
        except OSError:
            return False  # ZeroMQ closes the old one in the background
        return True

    until(bound)
    got: dict[int, Message] = {}

    def both() -> bool:
        serve(reborn[0])
        answer = client.collect()
        if answer is not None:
            got[answer.seq] = answer
        return len(got) == 2

    until(both)
    assert {seq: answer.meta["n"] for seq, answer in got.items()} == {first: 1, second: 2}
    assert client.traffic.resent >= 1
    reborn[0].close()


def test_a_port_that_is_taken(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        Server(CODEC, "127.0.0.1", port)
    foreign = socket.create_server(("127.0.0.1", 0))
    with foreign, pytest.raises(OSError, match="already in use"):
        Server(CODEC, "127.0.0.1", foreign.getsockname()[1])


def test_an_answer_to_nobody_is_not_sent(server: Server) -> None:
    assert not server.send(b"\x00nobody", Message("answer", 1))
    assert server.traffic.messages_out == 0


def test_questions_to_nobody_wait_here() -> None:
    """Not in a queue of ZeroMQ, from which nobody could take them back; and the end of a process waits for nobody."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one = Client(CODEC, f"tcp://127.0.0.1:{port}")
    for n in range(50):
        one.ask("question", {"n": n}, {"x": np.zeros(100_000)})
    assert one.collect() is None
    assert one.traffic.messages_out == 0
    assert one.unanswered == 50
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 10


OTHERS = """
import gc, os, socket, sys, time
import numpy as np, zmq
from realm.wire.codec import Codec
from realm.wire.sockets import Client, Server

codec = Codec("run-1", "abcd1234", "aisrv-0", 1, 64 << 20)

def dropped(cycle):
    # one whose last reference goes while it still has something to send, before its server goes
    server = Server(codec, "127.0.0.1")
    client = Client(codec, server.address)
    assert client.fileno_socket().poll(30_000, zmq.POLLOUT)
    for _ in range(40):
        client.ask("question", {}, {"x": np.zeros(1 << 20, np.uint8)})  # the server reads none
        time.sleep(0.002)
    if cycle:
        client.itself = client
    del client
    gc.collect()
    time.sleep(0.1)  # less than it lingers
    server.close()
    time.sleep(0.5)

def unread():
    # one that nobody collects from, and a port where connections end as soon as they are made
    door = socket.create_server(("127.0.0.1", 0))
    address = "tcp://127.0.0.1:%d" % door.getsockname()[1]
    client = Client(codec, address)
    client.fileno_socket().disconnect(address)
    client.fileno_socket().setsockopt(zmq.RECONNECT_IVL, 1)  # for the sake of the test's time
    client.fileno_socket().setsockopt(zmq.RECONNECT_IVL_MAX, 0)
    client.fileno_socket().connect(address)
    door.settimeout(10)
    try:
        for _ in range(2500):  # ZeroMQ's queues hold 2000 unless told otherwise
            door.accept()[0].close()
    except TimeoutError:
        pass  # no connection comes any more
    return client

kept = {"dropped": lambda: dropped(False), "dropped in a cycle": lambda: dropped(True), "unread": unread}[sys.argv[1]]()
server = Server(codec, "127.0.0.1")
client = Client(codec, server.address)
print("connected" if client.fileno_socket().poll(10_000, zmq.POLLOUT) else "ZeroMQ stands still", flush=True)
os._exit(0)  # where it stands still it would never end
"""


@pytest.mark.system
@pytest.mark.parametrize("how", ["dropped", "dropped in a cycle", "unread"])
def test_no_client_takes_the_others_down(how: str) -> None:
    """Events of connections go through ZeroMQ's I/O thread: it must never wait for somebody to take them."""
    run = subprocess.run([sys.executable, "-c", OTHERS, how], capture_output=True, text=True, timeout=120, check=False)
    assert (run.stdout, run.returncode) == ("connected\n", 0), run.stderr


# --- broken messages from peers that know the password


def dealer(address: str) -> zmq.Socket[bytes]:
    """A socket without any of our code behind it."""
    raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    raw.setsockopt(zmq.PLAIN_USERNAME, b"realm")
    raw.setsockopt(zmq.PLAIN_PASSWORD, CODEC.run_id.encode())
    raw.connect(address)
    return raw


def test_bad_frames_are_counted_and_honest_clients_do_not_notice(server: Server, client: Client) -> None:
    draw = random.Random(1)
    good = [bytes(one) for one in CODEC.encode(message(), checksum=True)]
    foreign = [bytes(one) for one in dataclasses.replace(CODEC, run_id="other").encode(message())]
    raw = dealer(server.address)
    sent = 0
    for n in range(300):
        frames = [b""]
        while frames in ([b""], []):
            frames, must_fail = mutate(draw, good) if n % 10 else (foreign, True)
            frames = frames if must_fail else []
        raw.send_multipart(frames)
        sent += 1
        if n % 30 == 0:
            assert ask(client, server, n=n).meta == {"n": n}
    until(lambda: (serve(server), sum(server.traffic.bad_frames.values()) == sent)[1])
    raw.close()
    assert ask(client, server, n="last").meta == {"n": "last"}
    assert client.traffic.bad_frames == {}
    assert client.traffic.resent == 0
    assert server.traffic.totals()["bad_frames"] == sent
    assert any("a message of another run" in text for text in server.traffic.bad_frames)
    assert not any("run-1" in text for text in server.traffic.bad_frames)  # who knows the id may speak


def test_a_flood_of_bad_frames_is_counted_in_bounded_memory(server: Server) -> None:
    for n in range(3000):
        server.reject(b"\x00" + n.to_bytes(4, "big"), WireError("kind " + "x" * 100_000))
    assert sum(server.traffic.bad_frames.values()) == 3000
    assert server.traffic.bad_frames["others"] == 2000
    assert sum(map(len, server.traffic.bad_frames)) < 300_000


def test_a_bad_answer_is_counted_and_asked_for_again(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RESEND_AFTER_S", 0.05)
    seq = client.ask("question", {"n": 1})
    peers: list[bytes] = []

    def asked() -> bool:
        received = server.receive()
        peers.extend([received[0]] if received else [])
        return bool(peers)

    until(asked)
    server._send([peers[0], b"not an answer"])
    until(lambda: client.collect() is None and client.traffic.totals()["bad_frames"] == 1)
    until(lambda: (client.collect(), serve(server))[1])
    assert client.wait(seq, lambda: None).meta == {"n": 1}


def test_http_at_the_port(server: Server, client: Client) -> None:
    port = int(server.address.rpartition(":")[2])
    request = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        with suppress(ConnectionError):
            stranger.sendall(request * 200)
            while stranger.recv(4096):
                pass  # until ZeroMQ closes the connection
        assert ask(client, server, n=1).meta == {"n": 1}
    assert ask(client, server, n=2).meta == {"n": 2}
    assert server.traffic.messages_in == 2
    assert not server.traffic.bad_frames


def test_a_frame_above_the_limit_is_not_taken(server: Server, client: Client) -> None:
    raw = dealer(server.address)
    events = raw.get_monitor_socket()
    raw.send(bytes(2 * CODEC.max_bytes))
    gone = []

    def thrown_out() -> bool:
        serve(server)
        while events.poll(0):
            gone.append(recv_monitor_message(events)["event"])
        return zmq.EVENT_DISCONNECTED in gone

    until(thrown_out)
    raw.disable_monitor()
    raw.close()
    assert ask(client, server).meta == {}
    assert server.traffic.bytes_in < CODEC.max_bytes


def speak_zmtp(stranger: socket.socket, password: str) -> None:
    """Open a connection as a DEALER by ZMTP 3 with the PLAIN mechanism."""
    secret = password.encode()
    hello = b"\x05HELLO" + b"\x05realm" + bytes([len(secret)]) + secret
    initiate = b"\x08INITIATE" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00PLAIN" + bytes(15) + b"\x00" + bytes(31))
    received = b""
    for command, answer in ((hello, b"\x07WELCOME"), (initiate, b"\x05READY")):
        stranger.sendall(bytes([4, len(command)]) + command)
        while answer not in received:
            received += stranger.recv(4096)


def test_a_gigabyte_is_announced_and_never_allocated(server: Server, client: Client) -> None:
    """Speaks ZMTP 3 by hand: greeting, password, then the head of a frame of 1 GB and its first megabyte."""
    port = int(server.address.rpartition(":")[2])
    ask(client, server)
    before = psutil.Process().memory_info().rss
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        speak_zmtp(stranger, CODEC.run_id)
        stranger.sendall(b"\x02" + struct.pack(">Q", 1 << 30))
        with suppress(ConnectionError):
            stranger.sendall(bytes(1 << 20))
            while stranger.recv(4096):
                serve(server)
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert ask(client, server).meta == {}
    assert server.traffic.messages_in == 2


def test_a_message_without_an_end_ends_its_connection(server: Server, client: Client) -> None:
    """Parts of 100 kB, each of which says that more follow, until the server has had enough."""
    before, most, sent = psutil.Process().memory_info().rss, 300 << 20, 0
    part = b"\x03" + struct.pack(">Q", 100_000) + bytes(100_000)
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=30) as peer:
        speak_zmtp(peer, CODEC.run_id)
        with suppress(ConnectionError):
            while sent < most:
                peer.sendall(part)
                sent += len(part)
                serve(server)
    assert sent < most
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert list(server.traffic.bad_frames) == ["a message without an end"]
    assert ask(client, server).meta == {}


@pytest.mark.parametrize("most_bytes", [1 << 20, 300_000])
def test_many_large_messages_end_no_connection(server: Server, client: Client, most_bytes: int) -> None:
    """Many times the size of a message on one connection, while a second one sends as much."""
    server.expect(most_bytes)
    other = Client(CODEC, server.address)
    large = {name: np.zeros(most_bytes // 3, np.uint8) for name in "abc"}
    for _ in range(30):
        for each in (client, other):
            each.ask("question", {}, large)
        until(lambda: (serve(server), client.collect(), other.collect(), client.unanswered + other.unanswered == 0)[-1])
    assert server.traffic.bad_frames == {}
    assert client.traffic.resent == other.traffic.resent == 0
    other.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody looks at connections")
@pytest.mark.parametrize("awaited", [0, connections.MOST_STRANGERS])
def test_of_strangers_that_only_connect_the_oldest_leave(server: Server, client: Client, awaited: int) -> None:
    """Who has asked something stays, and who knocks behind them is let in. awaited: clients that may be silent."""
    ask(client, server)
    server.expect_clients(awaited)
    port, most = int(server.address.rpartition(":")[2]), connections.MOST_STRANGERS
    strangers = []
    for _ in range(3 * most):
        strangers.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        strangers[-1].setblocking(False)
        serve(server)

    def gone(stranger: socket.socket) -> bool:
        try:
            return not stranger.recv(100)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    oldest = strangers[:most]
    until(lambda: serve(server) or all(gone(one) for one in oldest))
    assert not any(gone(one) for one in strangers[2 * most - awaited :])
    other = Client(dataclasses.replace(CODEC, sender="aisrv-9"), server.address)
    ask(other, server)
    ask(client, server)
    assert (client.traffic.resent, other.traffic.resent) == (0, 0)
    assert not client._disconnected
    other.close()
    for one in strangers:
        one.close()


def test_a_flood_leaves_the_server_time_for_other_work(server: Server, client: Client) -> None:
    """However many messages wait, `receive` says None now and then; an honest question is answered meanwhile."""
    raw = dealer(server.address)
    until(lambda: raw.poll(0, zmq.POLLOUT))
    for _ in range(900):
        raw.send(b"nothing")
    turns = []

    def turn() -> bool:
        before = server.traffic.messages_in
        serve(server)
        turns.append(server.traffic.messages_in - before)
        return sum(server.traffic.bad_frames.values()) == 900

    assert ask(client, server, n=1).meta == {"n": 1}
    until(turn)
    assert max(turns) <= 256
    raw.close()


# --- waiting


def test_a_waker_ends_a_wait_from_another_thread(server: Server) -> None:
    waker = Waker()
    began = time.monotonic()
    thread = threading.Thread(target=waker.wake)
    thread.start()
    wait_any([server, waker], 30_000)
    assert time.monotonic() - began < 20
    thread.join()
    waker.drain()
    wait_any([waker], 0)
    for _ in range(5000):
        waker.wake()  # never blocks, however many wait
    waker.drain()


def test_reports_do_not_pile_up_while_the_supervisor_is_stopped() -> None:
    """A night after Ctrl+Z: roles go on, and nobody answers."""
    server = Server(Codec("run-1", "", "supervisor", 1, CONTROL_MAX_BYTES), "127.0.0.1")
    link = Link(Codec("run-1", "", "learner-0", 1, CONTROL_MAX_BYTES), server.address, "learner", 0, 0.0, None)
    link.ready([], "")
    for _ in range(100):
        link.tick()
    assert 2 < link._client.unanswered <= 10

    def answered() -> bool:
        link.tick()
        while (received := server.receive()) is not None:
            server.send(received[0], Message("so_far", received[1].seq))
        return link.so_far.env_steps == 7

    link.so_far = RunSoFar(7)
    until(lambda: not answered())
    assert link._client.unanswered <= 10
    link._client.close()
    server.close()
