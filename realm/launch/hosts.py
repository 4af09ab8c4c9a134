"""The hosts of a run, as the supervisor knows them: who came, what runs there, and who was lost.

`realm start` makes it where `hosts` is not 0, before it decides the number of workers. `host.py` is the other end,
which Ray starts (`on_ray.py`) or a person, and `decisions.py` says which role runs where. A host has a slot, from 1 on.
One that is lost leaves its slot to the next.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from loguru import logger

from realm.config.keys import AppConfig
from realm.config.load import RunConfig, to_toml
from realm.errors import ConfigError
from realm.launch.child import ChildArgs
from realm.launch.decisions import FROZEN_S
from realm.launch.host import LOG_BYTES, HostInfo, HostReport, Wanted, Which, this_host
from realm.launch.on_ray import OnRay
from realm.launch.place import Handle, open_log
from realm.launch.ports import CONTROL, fixed_ports
from realm.wire.codec import Codec, Message, WireError, parsed
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.curve_keys import CurveKeys
from realm.wire.sockets import Server, wait_any

LOST_AFTER_S = 10.0
"""Of silence."""
_END_S, _LINGER_S = 5.0, 0.5  # for all agents to end; for those that were refused to read why


@dataclass
class _Away:
    """The handle of a role on a host, whose agent asks what shall run there."""

    arguments: ChildArgs
    exit_code: int | None = None
    wanted: bool = True
    dumps: bool = False

    def kill(self) -> None:
        self.wanted = False

    def join(self, timeout_s: float | None = None) -> None:
        """Its agent kills it, in any case."""

    def write_stacks(self) -> None:
        self.dumps = True


@dataclass
class Host:
    """One machine and its agent. hello: peer and question. heard_at: monotonic seconds. left: why it has ended."""

    info: HostInfo
    agent: int
    hello: tuple[bytes, int]
    heard_at: float
    left: str = ""
    heard: int = 0  # the newest report
    roles: dict[Which, _Away] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)  # of all that were started there

    def wanted(self) -> Wanted:
        wanted = {which: away for which, away in self.roles.items() if away.wanted}
        dump = [which for which, away in wanted.items() if away.dumps]
        for which in dump:
            wanted[which].dumps = False
        given = [away.arguments for away in wanted.values()]
        return Wanted([(a.role, a.index, a.incarnation, a.port, a.schema, a.max_bytes) for a in given], dump)


class Hosts:
    """All hosts of one run. It owns the server of the control channel, where agents and roles ask."""

    def __init__(self, app: AppConfig, keys: CurveKeys, by_hand: bool) -> None:
        self.run_id = secrets.token_hex(8)
        codec = Codec(self.run_id, "", "supervisor", 1, CONTROL_MAX_BYTES)
        self.server = Server(codec, app.bind_host, fixed_ports(app)[CONTROL], keys)
        self.living: dict[int, Host] = {}
        """By slot."""
        self.line = f"{self.server.address} {self.run_id} {app.algo}"
        """What an agent must be told."""
        self._ray = None if by_hand else OnRay(self.line, app)
        self._wanted, self._versions = app.hosts, this_host(app.algo).versions
        self._refused, self._config, self._logs, self._over = "", "", Path(), False
        self._came: list[int] = []
        self._looked_at = time.monotonic()

    def gather(self, within_s: float) -> tuple[int, ...]:
        """Wait for all; returns their cores. Raises ConfigError if one does not fit, or if they are too few."""
        deadline = time.monotonic() + within_s
        while len(self.living) < self._wanted:
            self._serve()
            for slot, host in list(self.living.items()):
                if not self.server.send(host.hello[0], Message("wait")):
                    del self.living[slot]  # it has left
            self._heed_ray()
            if self._refused:
                raise ConfigError(self._refused)
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"hosts = {self._wanted}, and within start_timeout_s = {within_s:g} s there came {self._names()}; "
                    f"{self._ray.said if self._ray else 'call `realm host` on each of the other machines'}; set a "
                    "smaller number or a longer time, or get more machines"
                )
        return tuple(host.info.cores for host in self.living.values())

    def begin(self, config: RunConfig, run_dir: Path) -> None:
        """Welcome them. config: decided; a host predicts for itself, and its own pool listens on its loopback alone."""
        app = dataclasses.replace(
            config.app, hosts=0, bind_host="127.0.0.1", keys_dir="", base_port=0, predict_local_or_remote="local"
        )
        self._config, self._logs = to_toml(dataclasses.replace(config, app=app)), run_dir / "log"
        self._came.clear()
        for host in self.living.values():
            self._welcome(host)

    def end(self) -> None:
        """Have all agents end, with all that they have started, and wait until they have."""
        deadline, self._over = time.monotonic() + _END_S, True
        for host in self.living.values():  # one that was welcomed hears it by its next report
            self.server.send(host.hello[0], Message("end", host.hello[1], {"cause": "the run has ended"}))
        while self._config and not all(host.left for host in self.living.values()) and time.monotonic() < deadline:
            self._serve()
        time.sleep(0.0 if self._config else _LINGER_S)  # what has come to a client is lost with the connection
        self.server.close()
        if self._ray:
            self._ray.end()

    def place(self, slot: int, arguments: ChildArgs) -> Handle:
        """Start a role on a host."""
        away, host = _Away(arguments), self.living[slot]
        host.roles[arguments.role, arguments.index, arguments.incarnation] = away
        host.labels.add(f"{arguments.role}-{arguments.index}")
        return away

    def turn(self, now: float) -> tuple[dict[int, str], list[int]]:
        """Slot of each host that was lost since the last call -> why; slots of those that came."""
        self._heed_ray()
        still, self._looked_at = now - self._looked_at, now
        lost = dict[int, str]()
        for slot, host in list(self.living.items()):
            host.heard_at = min(now, host.heard_at + still) if still > FROZEN_S else host.heard_at
            if host.left or now - host.heard_at > LOST_AFTER_S:
                lost[slot] = host.left or f"silent for {now - host.heard_at:.0f} s"
                del self.living[slot]
        came, self._came = self._came, []
        return lost, came

    def take(self, peer: bytes, message: Message) -> None:
        """A message of an agent. Raises WireError."""
        known = [host for host in self.living.values() if host.agent == message.incarnation]
        if message.kind == "hello":
            self._hello(peer, message, known)
            return
        report = parsed(message, HostReport)
        for host in known:
            host.heard_at, host.left = time.monotonic(), report.left[:100]
            if message.seq <= host.heard:  # the answer was lost
                continue
            host.heard = message.seq
            for role, index, incarnation, code in report.ended:
                if away := host.roles.pop((role, index, incarnation), None):
                    away.exit_code = code
            for text in report.warnings:
                logger.warning("{}: {}", host.info.name, text[:1000])
            if report.log:
                self._log(host, *report.log)
        if known and not self._over:
            self.server.send(peer, Message("wanted", message.seq, dataclasses.asdict(known[0].wanted())))
        else:
            self.server.send(peer, Message("end", message.seq, {"cause": "the run has ended, or goes on without it"}))

    def _heed_ray(self) -> None:
        for level, text in self._ray.turn(time.monotonic()) if self._ray else ():
            if level == "ERROR" and not self._config:
                raise ConfigError(text)
            logger.log("WARNING" if level == "ERROR" else level, "{}", text)

    def _serve(self) -> None:
        wait_any([self.server], 100)
        self.server.serve(self.take)

    def _hello(self, peer: bytes, message: Message, known: list[Host]) -> None:
        info = parsed(message, HostInfo)
        for what, own in self._versions.items():
            if (theirs := info.versions.get(what, own)) != own:
                self._refused = f"{info.name}: {what} is {theirs} there, and {own} here; it must be the same everywhere"
                self._refuse(peer, message.seq, self._refused)
                return
        free = [slot for slot in range(1, self._wanted + 1) if slot not in self.living]
        if known:  # it asks again
            known[0].hello = peer, message.seq
            self._welcome(known[0])
        elif not free:
            self._refuse(peer, message.seq, f"{info.name} is one too many: this run has {self._names()}")
        else:
            if any(info.name == host.info.name for host in self.living.values()):
                info = dataclasses.replace(info, name=f"{info.name}-{free[0]}")
            host = self.living[free[0]] = Host(info, message.incarnation, (peer, message.seq), time.monotonic())
            logger.info("the host {} has come: {} cores", info.name, info.cores)
            self._came += free[:1]
            self._welcome(host)

    def _welcome(self, host: Host) -> None:
        host.heard_at = time.monotonic()
        if self._config:
            self.server.send(host.hello[0], Message("welcome", host.hello[1], {"config": self._config}))

    def _refuse(self, peer: bytes, seq: int, why: str) -> None:
        self.server.send(peer, Message("end", seq, {"cause": why}))
        if self._config or not self._refused:  # else `gather` raises it
            logger.warning("a host was refused: {}", why)

    def _log(self, host: Host, label: str, text: str) -> None:
        """Append to a role's log in the run's folder."""
        if label not in host.labels:
            raise WireError(f"the log of {label!r:.50} from {host.info.name}, where no such role runs")
        # a full disk is what the supervisor itself warns of
        with suppress(OSError), open(open_log(self._logs / f"{label}.log"), "wb") as log:
            log.write(text.encode()[: 2 * LOG_BYTES])

    def _names(self) -> str:
        names = ", ".join(host.info.name for host in self.living.values())
        return f"{len(self.living)} ({names})" if names else "none"
