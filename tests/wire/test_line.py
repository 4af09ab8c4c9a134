"""realm/wire/line.py: frames over real sockets, who gets a line, and what is left of one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm.contract import Field, Version
from realm.errors import ContractError
from realm.wire import line as lines_module
from realm.wire.codec import Codec, Message, WireError
from realm.wire.line import Frame, Head, Layout, Line, LineLost, Lines, connect
from realm.wire.sockets import Server, Traffic

FIELDS = {
    "flag": Field((), "bool"),
    "x": Field((3, 2), "float32"),
    "n": Field((), "int64"),
    "none": Field((0,), "int8"),
}
LAYOUT = Layout(FIELDS)


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
    return result


def full(rows: int, seed: int = 0) -> Frame:
    draw, frame = np.random.default_rng(seed), Frame(LAYOUT, rows)
    arrays = {"flag": draw.random(rows) < 0.5, "x": draw.normal(size=(rows, 3, 2)).astype(np.float32)}
    frame.put(arrays | {"n": draw.integers(-9, 9, rows), "none": np.zeros((rows, 0), np.int8)}, "a test")
    frame.address(seed + 1, Version(2, seed), 17)
    return frame


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(Codec("run-1", "abcd1234", "actor-0", 1, 1 << 20), "127.0.0.1")
    yield one
    one.close()


@pytest.fixture
def lines(server: Server) -> Iterator[Lines]:
    one = Lines(server, [], FIELDS, FIELDS)
    yield one
    one.close()


def invited(lines: Lines, caller: int) -> Message:
    return Message("line", 1, lines.invite(caller))


def caller(lines: Lines, number: int = 0) -> Line:
    return connect(invited(lines, number), LAYOUT, 1 << 20, Traffic())


def lost(line: Line) -> bool:
    try:
        line.receive()
    except LineLost:
        return True
    return False


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_frames_of_any_size_both_ways(server: Server, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Also such as no buffer of a socket holds: who does not read keeps nobody waiting."""
    monkeypatch.setattr(lines_module.sys, "platform", platform)
    lines = Lines(server, [], FIELDS, FIELDS)
    line = caller(lines)
    for seed, rows in enumerate((1, 5, 5, 20_000, 2)):
        question = full(rows, seed)
        line.send(question)

        def asked() -> bool:
            lines.receive(0.01)
            line.flush()
            return bool(lines.waiting)

        until(asked)
        asked_ = lines.waiting.pop(0)
        assert asked_.head == (rows, seed + 1, Version(2, seed), 17, 0)
        assert all((asked_.frame.arrays[name] == question.arrays[name]).all() for name in FIELDS)
        lines.answer(asked_, (Version(2, seed), 17, 0), full(rows, seed).arrays, 0)

        def answered() -> tuple[Head, Frame] | None:
            lines.receive(0)
            return line.receive()

        assert bytes(until(answered)[1].bytes) == bytes(question.bytes)
    lines.close()
    until(lambda: lost(line))


def test_arrays_of_other_shapes_are_refused() -> None:
    frame = full(4)
    good = dict(frame.arrays)
    for name, wrong in (("x", good["x"][:2]), ("flag", good["n"]), ("n", good["n"].astype(np.int32))):
        with pytest.raises(ContractError, match=f"a question: {name} must be {FIELDS[name].dtype}"):
            frame.put({**good, name: wrong}, "a question")
    with pytest.raises(ContractError, match=r"a question: missing \['x'\]"):
        frame.put({name: good[name] for name in ("flag", "n", "none")}, "a question")


def test_a_newer_question_takes_the_place_of_the_one_that_waits(lines: Lines) -> None:
    line = caller(lines)
    for seed in range(3):
        line.send(full(2, seed))
        until(lambda: lines.receive(0.01) or (lines.waiting and lines.waiting[0].head.seq == seed + 1))  # noqa: B023
    assert len(lines.waiting) == 1
    assert (lines.waiting[0].frame.arrays["x"] == full(2, 2).arrays["x"]).all()
    newer = caller(lines)
    until(lambda: lines.receive(0.01) or lost(line))  # and a newer line that of the older one
    newer.send(full(2, 5))
    until(lambda: lines.receive(0.01) or lines.waiting)
    assert lines.waiting[0].head.seq == 6


def test_nobody_gets_a_line_without_its_key(server: Server, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    old, now = invited(lines, 0), invited(lines, 0)
    for key in (b"", bytes(16), bytes.fromhex(old.text("key")), bytes.fromhex(now.text("key"))[:8]):
        line = connect(Message("line", 1, now.meta | {"key": (key or b"x").hex()}), LAYOUT, 1 << 20, Traffic())
        until(lambda: lines.receive(0.01) or lost(line))  # noqa: B023
    assert server.traffic.refused_peers == 4
    line = connect(now, LAYOUT, 1 << 20, Traffic())
    line.send(full(2))
    until(lambda: lines.receive(0.01) or lines.waiting)
    again = connect(now, LAYOUT, 1 << 20, Traffic())  # a key opens once
    until(lambda: lines.receive(0.01) or lost(again))

    monkeypatch.setattr(lines_module, "_HELLO_S", 0.1)
    crowd = []
    for _ in range(2 * lines_module._MOST_STRANGERS):  # they say nothing
        crowd.append(socket.socket(socket.AF_UNIX))
        crowd[-1].connect("\0" + now.text("address"))
        lines.receive(0.01)
    assert len(lines._strangers) <= lines_module._MOST_STRANGERS
    until(lambda: lines.receive(0.01) or not lines._strangers)
    line.send(full(2, 1))
    until(lambda: lines.receive(0.01) or (lines.waiting and lines.waiting[0].head.seq == 2))
    for one in crowd:
        one.close()


def test_a_frame_above_the_limit_takes_no_memory(server: Server, lines: Lines) -> None:
    line, head = caller(lines), full(1)
    head.bytes[4:8] = (40_000).to_bytes(4, "little")  # 33 bytes each: more than the server's 1 MB
    line.send(head)
    until(lambda: lines.receive(0.01) or lost(line))
    assert list(server.traffic.bad_frames) == [f"{b'line of 0'.hex()}: a line: 40000 rows; must be from 1 to 31775"]


def test_who_asks_on_without_reading_is_put_out(server: Server, lines: Lines) -> None:
    line, refused = caller(lines), server.traffic.bad_frames
    for seed in range(2):
        line.send(full(20_000, seed))
        until(lambda: lines.receive(0.01) or line.flush() or lines.waiting)
        lines.answer(lines.waiting.pop(0), (Version(1, 1), 0, 0), full(20_000).arrays, 0)
    assert [text.rpartition(": ")[2] for text in refused] == ["asked again before it took the answer"]
    assert not lines._lines


def test_an_answer_to_an_end_that_is_gone(lines: Lines) -> None:
    line = caller(lines)
    line.send(full(2))
    until(lambda: lines.receive(0.01) or lines.waiting)
    question = lines.waiting.pop(0)
    line.close()
    lines.answer(question, (Version(1, 1), 0, 0), full(2).arrays, 0)
    until(lambda: lines.receive(0.01) or not lines._lines)
    with pytest.raises(LineLost, match="cannot be reached"):
        connect(Message("line", 1, {"address": "realm-nobody", "key": "00"}), LAYOUT, 1 << 20, Traffic())
    with pytest.raises(WireError):
        connect(Message("line", 1, {"address": "realm-nobody"}), LAYOUT, 1 << 20, Traffic())


KILLED = """
import os, signal
from realm.wire.codec import Codec
from realm.wire.line import Lines
from realm.wire.sockets import Server
lines = Lines(Server(Codec("run-1", "", "actor-0", 1, 1 << 20), "127.0.0.1"), [], {}, {})
print(lines.invite(0)["address"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a port")
def test_a_killed_process_leaves_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    assert done.stdout.startswith("realm-")
    assert done.stdout.strip() not in Path("/proc/net/unix").read_text()
