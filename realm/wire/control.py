"""A role's side of the control channel: one connection to the supervisor, for its reports and for commands.

Every role owns one `Link` and calls `tick` in its loop. Commands need no polling: the role keeps one question ("next")
open at the supervisor, which answers it with the next command.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import psutil
from loguru import logger
from msgspec import Meta

from realm.contract import Book, Evaluation, Report, Spec
from realm.errors import Stopped
from realm.watch.meters import Meters
from realm.watch.progress import Every, Stillness
from realm.wire.codec import Codec, Message, parsed
from realm.wire.curve_keys import CurveKeys
from realm.wire.sockets import Client, Socket

CONTROL_MAX_BYTES = 4 << 20
_MOST_WARNINGS = 20  # of one process, that the user is shown
_MOST_TEXT = 1000


@dataclass(frozen=True)
class Orders:
    """The supervisor's answer when a role may run: all addresses, the shapes and the learner's epoch."""

    book: Book
    spec: Spec
    epoch: int


@dataclass(frozen=True)
class RunSoFar:
    """The supervisor's answer to a report: env steps of the run, and the newest evaluation of this session."""

    env_steps: int = 0
    evaluation: Evaluation | None = None


class Link:
    """The control channel of one role; `tick` raises Stopped when the run ends."""

    def __init__(
        self, codec: Codec, address: str, role: str, index: int, interval_s: float, keys: CurveKeys | None,
        told: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """told: the signal that has asked this process to end, 0 before."""
        self.role, self.index = role, index
        self._told, self._passed_on = told, False
        self.meters = Meters()
        self.env_steps = 0
        self.so_far = RunSoFar()
        self._client = Client(codec, address, keys)
        self._may_report = Every(interval_s)
        self._next_seq = 0
        self._commands: list[str] = []
        self._process = psutil.Process()
        self._sockets: list[Socket] = []
        self._waits: object = None
        self._stillness = Stillness()
        self._warnings: deque[str] = deque(maxlen=_MOST_WARNINGS)
        self._warned: set[str] = set()

    def bound(self, address: str, wait: object) -> Orders:
        """Report this role's address ("" without a server) and wait for the orders. wait: how that is called."""
        bound = self.say("bound", {"address": address, "pid": os.getpid()})
        answer = self._client.wait(bound, self.waiting(wait, self._pass_on))
        self.goes_on()
        if answer.kind == "stop":
            raise Stopped
        return parsed(answer, Orders)

    def ready(self, sockets: list[Socket], origin: str = "") -> None:
        """Report that this role works now; its reports include the traffic of `sockets`.

        origin: a sentence for the user about where this role goes on.
        """
        # objects from the start stay alive: scanning them again would take 0.1 s at each full collection
        gc.freeze()
        gc.enable()  # `launch/child.py` disabled it
        self._sockets = sockets
        self.say("ready", {"env_steps": self.env_steps, "origin": origin})
        self._next_seq = self.say("next", {})

    def say(self, kind: str, meta: dict[str, Any]) -> int:
        """Send the supervisor any other message; returns its number."""
        return self._client.ask(kind, {"role": self.role, "index": self.index, **meta})

    def warn(self, text: str) -> None:
        """Have the supervisor show a warning to the user, with the next `tick`, each text once. Any thread may call
        it."""
        self._warnings.append(text)

    def tick(self) -> None:
        """Take commands, and send warnings, and the report if it is due. Cheap: call it in every turn of a loop."""
        self._pass_on()
        self._send_warnings()
        while (message := self._client.collect()) is not None:
            if message.seq == self._next_seq:
                if message.kind == "stop":
                    raise Stopped
                self._commands.append(message.kind)
                self._next_seq = self.say("next", {})
            elif message.kind == "so_far":
                self.so_far = parsed(message, RunSoFar)
        if self._client.unanswered < 10 and self._may_report.due():  # nobody may answer for a night
            self.report()

    def waiting(self, wait: object, tick: Callable[[], None]) -> Callable[[], None]:
        """`tick` for whoever calls it in each turn of this wait. `goes_on` ends the wait."""

        def ticked() -> None:
            self.waits(wait)
            tick()

        return ticked

    def waits(self, wait: object) -> None:
        """Call it in each turn of a wait, which is named in the log once when it lasts."""
        if wait is not self._waits:
            self._waits = wait
            self._stillness.moved()
        elif still_s := self._stillness.due(time.monotonic()):
            logger.info("for {:.0f} s {}", still_s, wait)

    def goes_on(self) -> None:
        """It waits no longer."""
        self._waits = None

    def _pass_on(self) -> None:
        """Tell the supervisor once that a signal asks this process to end: it ends the whole run in order."""
        if not self._passed_on and self._told():
            self._passed_on = True
            self.say("told", {"signal": self._told()})

    def commands(self) -> list[str]:
        """Commands other than stop since the last call: `save`, `buffer_restarted`, `hold`, `judge_last`."""
        taken, self._commands = self._commands, []
        return taken

    def report(self) -> None:
        traffic = [socket.traffic.totals() for socket in self._sockets]
        for name in traffic[0] if traffic else ():
            self.meters.totals[f"wire/{name}"] = sum(totals[name] for totals in traffic)
        self.meters.totals["pid"] = os.getpid()
        with suppress(OSError, psutil.Error):  # no file handle is left to read it with: a report without it is better
            self.meters.totals["rss_mb"] = self._process.memory_info().rss / 2**20
            self.meters.totals["open_files"] = self._process.num_fds()
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.meters.totals["peak_mb"] = used.ru_maxrss / 2**10
        self.meters.totals["cpu_s"] = used.ru_utime + used.ru_stime
        report = Report(self.role, self.index, self.env_steps, *self.meters.snapshot())
        self._client.ask("report", dataclasses.asdict(report))

    def _send_warnings(self) -> None:
        """Each text once, and not many: those with a number in them may never end."""
        while self._warnings:
            text = self._warnings.popleft()
            if text not in self._warned and len(self._warned) <= _MOST_WARNINGS:
                self._warned.add(text)
                last = len(self._warned) > _MOST_WARNINGS
                self.say("warning", {"text": "further warnings are in its log only" if last else text[:_MOST_TEXT]})

    def close(self, cause: str, trace: str = "") -> None:
        """Send the last report and the cause of the end, and wait up to 2 s for the answers.

        trace: the last lines of a traceback.
        """
        self._pass_on()  # first: what fails then, such as an environment whose children heard it, is no crash
        self.report()
        self._send_warnings()
        self.say("ended", {"cause": cause, "trace": trace})
        deadline = time.monotonic() + 2.0
        while self._client.unanswered > 1 and time.monotonic() < deadline:  # 1 is the open "next"
            if self._client.collect() is None:
                time.sleep(0.01)


def parse_report(message: Message) -> Report:
    """Read the Report in a `report` message. Raises WireError."""
    message.value("means", dict[str, tuple[float, Annotated[float, Meta(gt=0)]]])  # Report itself allows a count of 0
    return parsed(message, Report)
