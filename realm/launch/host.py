"""`realm host`, the agent: it runs roles on another machine as the supervisor does on its own, and decides nothing.

It asks at the supervisor's control port, as roles do; `hosts.py` answers. `hello` says what this machine is, and brings
the run's configuration into a scratch folder. Then a `report` says five times a second what is new. The answer names
the roles that shall run here, so a message that is lost or comes twice does no harm. When nothing has come from the
supervisor for 30 s the agent ends, and all of its roles with it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from loguru import logger
from msgspec import Meta

from realm.config.load import load_config
from realm.config.plan import make_plan, usable_cores
from realm.errors import ConfigError, RunError
from realm.launch.child import ChildArgs, run_role
from realm.launch.environment import role_environment
from realm.launch.place import Handle, place, start_fork_server
from realm.launch.signals import Wishes, called, listen
from realm.roles.table import holds_weights
from realm.user import folder_of
from realm.watch.progress import Every
from realm.watch.resources import Resources
from realm.wire.codec import Codec, Message, parsed
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.curve_keys import CurveKeys
from realm.wire.sockets import Client, wait_any

AGENT = "host"
"""Sender of all messages of an agent. Its incarnation is a random number: each agent is another one."""
LOG_BYTES = 1 << 16
"""Of a log in one report."""
_REPORT_EVERY_S = 0.2
_SILENT_S, _LEAVE_S, _LAST_LOGS = 30.0, 2.0, 20
_PATIENCE_S = 600.0  # for the answer to hello: the supervisor tries the user's code meanwhile

Which: TypeAlias = "tuple[str, int, int]"
"""Role, index, incarnation."""
_Text: TypeAlias = Annotated[str, Meta(max_length=100)]


@dataclass(frozen=True)
class HostInfo:
    """What a machine says of itself. versions: what must be the same here and there -> its version."""

    name: Annotated[str, Meta(pattern=r"\A[\w.-]{1,64}\Z")]
    cores: Annotated[int, Meta(ge=1, le=1 << 16)]
    versions: Annotated[dict[_Text, _Text], Meta(max_length=20)]


@dataclass(frozen=True)
class HostReport:
    """What is new on a host. ended: roles with their exit codes. log: a role, and what is new in its log. left: why the
    agent ends, with all roles."""

    ended: list[tuple[str, int, int, int]] = field(default_factory=list)
    log: tuple[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    left: str = ""


@dataclass(frozen=True)
class Wanted:
    """What shall run on a host: role, index, incarnation, port, schema, max_bytes, as `ChildArgs` has them. dump: those
    of them that shall write their stacks."""

    roles: list[tuple[str, int, int, int, str, int]]
    dump: list[Which]


def this_host(algo: str) -> HostInfo:
    """This machine. algo: the run's package."""
    versions = {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "Realm": _hash(Path(__file__).parents[1]),
    }
    for name in ("torch", "numpy", "gymnasium"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name).partition("+")[0]  # a build for the CPU trains with one for a GPU
    versions[f"the package {algo}"] = _hash(folder_of(algo))
    return HostInfo(re.sub(r"[^\w.-]", "-", socket.gethostname())[:64] or "host", usable_cores(), versions)


def _hash(folder: Path) -> str:
    """Of the sources in a folder; what is hidden, as by an editor, is none."""
    digest, names = hashlib.sha256(), sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    for name in names:
        if not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name}\0".encode() + (folder / name).read_bytes() + b"\0")
    return digest.hexdigest()[:12] if names else "missing"


def serve(address: str, run_id: str, algo: str, keys: CurveKeys) -> None:
    """Run this machine's share of a run with the package `algo`, until it ends. Raises ConfigError or RunError."""
    wishes = Wishes()
    listen(wishes.hear)
    environment = role_environment("aisrv", None)
    start_fork_server(environment)
    # a role that is placed later must not wait for its imports, as no report is sent meanwhile
    place(int, 0, environment, Path(os.devnull), "fork server", imports_torch=True).join()
    client = Client(Codec(run_id, "", AGENT, secrets.randbits(60), CONTROL_MAX_BYTES), address, keys)
    with tempfile.TemporaryDirectory(prefix="realm-host-") as folder:
        agent = _Agent(client, address, keys, Path(folder), wishes)
        logger.add(lambda text: agent.warnings.append(text.strip()[:1000]), level="WARNING", format="{message}")
        try:
            cause = agent.run(algo)
        finally:
            agent.kill_all()
        agent.leave(cause)
        logger.info("this machine's share of the run has ended: {}", cause)
        client.close()


class _Agent:
    def __init__(self, client: Client, address: str, keys: CurveKeys, folder: Path, wishes: Wishes) -> None:
        self._client, self._address, self._keys, self._folder, self._wishes = client, address, keys, folder, wishes
        self._roles: dict[Which, Handle] = {}
        self._started: set[Which] = set()
        self._ended: list[tuple[str, int, int, int]] = []
        self._logged: dict[str, int] = {}  # log -> bytes that were sent of it
        self.warnings: list[str] = []
        """That the supervisor shall show."""

    def run(self, algo: str) -> str:
        """Do as the supervisor says until the run ends; returns why. Raises ConfigError if it refuses this machine."""
        self._join(algo)
        if (niceness := os.nice(0)) > 0:
            logger.warning("other programs here come first, as this one runs at niceness {}", niceness)
        heard_at, due, resources = time.monotonic(), Every(_REPORT_EVERY_S), Resources(self._folder)
        while not self._wishes.first:
            wait_any([self._client], 50)
            if (answer := self._client.collect()) is not None:
                heard_at = time.monotonic()
                if answer.kind == "end":
                    return answer.text("cause")
                self._do(parsed(answer, Wanted))
            for which, handle in list(self._roles.items()):
                if (code := handle.exit_code) is not None:
                    self._roles.pop(which).kill()  # the processes that it started
                    self._ended.append((*which, code))
            resources.look(AGENT, {})
            if not self._client.unanswered and due.due():
                report = HostReport(self._ended, self._new_lines(), self.warnings)
                self._ended, self.warnings = [], []
                self._client.ask("report", asdict(report))
            if time.monotonic() - heard_at > _SILENT_S:
                return f"nothing came from its supervisor for {_SILENT_S:.0f} s"
        return called(self._wishes.first)

    def kill_all(self) -> None:
        for handle in self._roles.values():
            handle.kill()
        for handle in self._roles.values():
            handle.join(_LEAVE_S)

    def leave(self, cause: str) -> None:
        """Tell the supervisor the last lines of the logs, and that nothing of the run lives here any more."""
        with suppress(RunError):
            for log in itertools.islice(iter(self._new_lines, None), _LAST_LOGS):
                self._ask("report", asdict(HostReport(log=log)), _LEAVE_S)
            self._ask("report", asdict(HostReport(left=cause)), _LEAVE_S)

    def _join(self, algo: str) -> None:
        logger.info("joining the run at {}; Ctrl+C takes this machine out of it again", self._address)
        answer = self._ask("hello", asdict(this_host(algo)), _PATIENCE_S)
        if answer.kind != "welcome":
            raise ConfigError(answer.text("cause"))
        (self._folder / "log").mkdir()
        (self._folder / "config.toml").write_text(answer.text("config"), "utf-8")
        self._plan = make_plan(load_config(self._folder / "config.toml").app)

    def _ask(self, kind: str, meta: dict[str, Any], within_s: float) -> Message:
        deadline = time.monotonic() + within_s

        def check() -> None:
            if self._wishes.first and kind == "hello":
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                raise RunError(
                    f"{self._address}: has not answered; is this the line that the start has printed, does it still "
                    "run, and does a firewall let its port through?"
                )

        return self._client.wait(self._client.ask(kind, meta), check)

    def _do(self, wanted: Wanted) -> None:
        for role, index, incarnation, port, schema, max_bytes in wanted.roles:
            which, label = (role, index, incarnation), f"{role}-{index}"
            if which in self._started:
                continue
            self._started.add(which)
            arguments = ChildArgs(
                *which, self._folder, self._client.codec.run_id, self._address, port, schema, max_bytes, self._keys
            )
            log, title = self._folder / "log" / f"{label}.log", f"{label} {self._folder}"
            environment, torch = role_environment(role, self._plan), holds_weights(role, self._plan)
            try:
                self._roles[which] = place(run_role, arguments, environment, log, title, torch)
            except (ConfigError, OSError) as error:
                logger.warning("{} cannot be started: {}", label, error)
                self._ended.append((*which, 1))
        stay = {role[:3] for role in wanted.roles}
        for which, handle in self._roles.items():
            if which not in stay:
                handle.kill()
            elif which in wanted.dump:
                handle.write_stacks()

    def _new_lines(self) -> tuple[str, str] | None:
        """What is new in one of the logs, if anything: so much at once that a role that writes without an end takes a
        part of the connection, and no memory."""
        for path in sorted((self._folder / "log").glob("*.log"), key=lambda path: self._logged.get(path.stem, 0)):
            at, size = self._logged.get(path.stem, 0), path.stat().st_size
            at = at if size >= at else 0  # it has been emptied
            if size > at:
                with open(path, "rb") as file:
                    file.seek(at)
                    data = file.read(LOG_BYTES)
                self._logged[path.stem] = at + len(data)
                return path.stem, data.decode(errors="replace")
        return None
