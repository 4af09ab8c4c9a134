"""Runs that faults are done to: a fast cluster of the counting user, what it is asked, and who knocks at its ports.

Its learner ends the run at the first row that is lost, doubled, out of order or trained on across a reset
(`tests/counting`), so the exit code 0 says that none was. `Outcome` is what the report tells of a fault.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.sockets import Client
from tests.broken import GREETING, SOCKET_TYPE, mutate
from tests.cluster import PATIENCE_S, Run

STRICT = ("max_version_lag=0", "counting.strict=true")
FAST = ("restart_budget=1000", "restart_window_s=0.01", "counting.learn_s=0.01", "dump_model_freq=20")
BEAT = "report_interval_s=0.1"  # a role is named after 3 s of silence and started again after 9
SUPERVISOR = "supervisor"


class FaultFailed(Exception):
    """The run did not do what it must do after a fault."""


@dataclass
class Outcome:
    """What was done and what came of it; numbers for the report."""

    injected: str
    times: int
    lost: str
    recovery_s: list[float] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    """Of each process: process, first_mb and last_mb after minute ten, mb_per_h."""


@dataclass(frozen=True)
class Ground:
    """What a fault gets: a folder of its own, a seed, settings for its runs, and where to say how far it is."""

    folder: Path
    seed: int
    minutes: float
    settings: tuple[str, ...]
    show: Callable[[str], None]

    @contextlib.contextmanager
    def victim(self, *overrides: str) -> Iterator[Victim]:
        """A run that trains. It is ended with the block, whatever happens."""
        folder = self.folder / f"run-{len(list(self.folder.glob('run-*')))}"
        folder.mkdir(parents=True)
        with Victim(folder, *FAST, "buffer_backend=native", *self.settings, *overrides) as run:
            yield run


class Victim(Run):
    """A run with questions that the tests do not need."""

    _control: Client | None = None

    def __exit__(self, *exc: Any) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        super().__exit__(*exc)
        if self._control is not None:
            self._control.close()

    def status(self) -> dict[str, Any]:
        """The supervisor's answer: {roles: label -> {state, pid, incarnation, totals}, traffic}."""
        if self._control is None:
            found = self.file()
            self._control = Client(Codec(found["run_id"], "", "soak", 1, CONTROL_MAX_BYTES), found["control"])
        deadline = time.monotonic() + PATIENCE_S

        def check() -> None:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise FaultFailed(f"the supervisor does not answer\n{self.text()}")

        return dict(self._control.wait(self._control.ask("status", {}), check).meta)

    def updates(self) -> tuple[int, float]:
        """(incarnation of the learner, updates that it has made)"""
        role = self.status()["roles"]["learner-0"]
        return role["incarnation"], role["totals"].get("updates", 0.0)

    def wait_updates(self, number: int = 10) -> None:
        self.wait_running()
        self.goes_on(number)

    def goes_on(self, more: int = 10, what: str = "training goes on") -> float:
        """Wait for `more` updates; return the seconds."""
        begin, (incarnation, before) = time.monotonic(), self.updates()

        def reached() -> bool:
            now, count = self.updates()
            return count >= (more if now > incarnation else before + more)

        self.wait_for(reached, what)
        return time.monotonic() - begin

    def pid_of(self, label: str) -> int:
        return int(self.process.pid if label == SUPERVISOR else self.pid(label))

    def labels(self) -> list[str]:
        return list(self.file()["roles"])

    def incarnations(self) -> dict[str, int]:
        return {label: role["incarnation"] for label, role in self.file()["roles"].items()}

    def restarts(self) -> int:
        return sum(self.incarnations().values()) - len(self.incarnations())

    def kill_and_recover(self, label: str) -> float:
        """kill -9; the seconds until training goes on with a new process."""
        begin = time.monotonic()
        self.kill(label)
        self.pid(label)
        self.goes_on(learner_ended=False)
        return time.monotonic() - begin

    def end(self) -> dict[str, dict[str, float]]:
        """Ctrl+C; require a clean end and accounts that agree. Role -> totals of all its processes."""
        restarts = self.restarts()
        code = self.interrupt()
        require(code == 0, f"exit code {code}\n{self.text()}")
        require(self.processes() == [], f"left: {self.processes()}")
        require(self.file()["state"] == "stopped", self.file()["cause"])
        version = self.totals("learner")
        sums = {role: self.totals(role) for role in ("aisrv", "actor", "buffer", "learner", "model_pool")}
        buffer = sums["buffer"]
        if restarts == 0:  # a process that was killed has not told its last tenth of a second
            require(self.checkpoints()[-1][1] == version["version_update"], "the last version was not saved")
            refused = buffer["refused_old_epoch"] + buffer["refused_stale"]
            open_ = sums["aisrv"]["items"] - buffer["inserted"] - refused
            require(0 <= open_ <= 4 * 12, f"{open_} samples went out and did not come in")
        return sums

    def rows(self) -> str:
        """Of the report."""
        return f"0 of {self.summary()['env_steps']:,} rows lost or doubled"


def require(condition: object, what: str) -> None:
    if not condition:
        raise FaultFailed(what)


def frozen(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def memory_mb(pid: int) -> float:
    """What a process takes for itself, with its share of what it has in common with others."""
    return float(psutil.Process(pid).memory_full_info().pss / 2**20)


# ---- who knocks at it ----

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


def addresses(run: Victim) -> dict[str, str]:
    """Label -> address of every port of a run."""
    found = run.file()
    return {"supervisor": found["control"], **{label: found["roles"][label]["address"] for label in SERVERS}}


def counted(run: Victim, label: str, name: str) -> float:
    """A counter of a port's present process."""
    status = run.status()
    totals = status["traffic"] if label == "supervisor" else status["roles"][label]["totals"]
    return float(totals.get(name if label == "supervisor" else f"wire/{name}", 0.0))
