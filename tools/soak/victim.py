"""Runs that faults are done to: a fast cluster of the counting user, and what it is asked meanwhile.

Its learner ends the run at the first row that is lost, doubled, out of order or trained on across a reset
(`tests/counting`), so the exit code 0 says that none was. `Outcome` is what the report tells of a fault.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from realm.wire.codec import Codec
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.sockets import Client
from tests.cluster import PATIENCE_S, Run

STRICT = ("max_version_lag=0", "counting.strict=true")
FAST = ("restart_budget=1000", "counting.learn_s=0.01", "dump_model_freq=20")
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
    hosts: list[dict[str, Any]] = field(default_factory=list)
    """Of each fault of a host: see `hosts.Row`."""


@dataclass(frozen=True)
class Ground:
    """What a fault gets: a folder of its own, a seed, settings for its runs, and where to say how far it is."""

    folder: Path
    seed: int
    minutes: float
    rounds: int
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
        self.goes_on()
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
