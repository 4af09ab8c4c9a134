"""Roles without a run, for parts.py and actor.py: real processes and sockets, whose supervisor is this process."""

from __future__ import annotations

import secrets
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import zmq

from realm.config.load import to_toml
from realm.config.plan import this_machine
from realm.errors import ConfigError
from realm.launch.child import ChildArgs, run_role
from realm.launch.environment import role_environment
from realm.launch.place import place
from realm.roles.table import holds_weights
from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES, parse_report
from realm.wire.sockets import Client, Server, wait_any
from tools.bench import limits

PATIENCE_S = 120.0
MAX_BYTES = 1 << 30


class Stage:
    """Role processes whose supervisor is this process."""

    def __init__(self, setting: limits.Setting, folder: Path) -> None:
        self._setting, self._folder, self._run_id = setting, folder, secrets.token_hex(8)
        self._server = Server(Codec(self._run_id, "", "supervisor", 1, CONTROL_MAX_BYTES), "127.0.0.1")
        self._processes: dict[str, BaseProcess] = {}
        self.totals: dict[str, dict[str, float]] = {}
        """Role -> what its last report counted."""
        self._book: dict[str, str] = {}
        self._ready: set[str] = set()
        (folder / "log").mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(setting.config))

    def start(self, role: str) -> str:
        """Start a role and wait until it works. Returns its address; raises ConfigError if it does not work."""
        setting = self._setting
        own_network = role == "buffer" and setting.plan.backend == "reverb" and this_machine().own_network
        arguments = ChildArgs(
            role, 0, 1, self._folder, self._run_id, self._server.address, 0, setting.spec.schema, MAX_BYTES, own_network
        )
        log, until = self._folder / "log" / f"{role}.log", time.monotonic() + PATIENCE_S
        torch = holds_weights(role, setting.plan)
        process = place(
            run_role, arguments, role_environment(role, setting.plan), log, role, imports_torch=torch,
            own_network=own_network,
        )  # fmt: skip
        self._processes[role] = process
        while role not in self._ready:
            wait_any([self._server], 100)
            self.tick()
            if process.exitcode is not None or time.monotonic() > until:
                raise ConfigError(f"the {role} did not get ready: {log.read_text()[-2000:]}")
        return self._book[role]

    def pid(self, role: str) -> int:
        pid = self._processes[role].pid
        assert pid
        return pid

    def tick(self) -> None:
        """Answer what roles tell their supervisor."""
        while (received := self._server.receive()) is not None:
            peer, message = received
            role = message.text("role")
            if message.kind == "bound":
                self._book[role] = message.text("address")
                orders = {"book": self._book, "spec": self._setting.spec.to_json(), "epoch": 1}
                self._server.send(peer, Message("run", message.seq, orders))
            elif message.kind != "next":  # that question stays open
                self._server.send(peer, Message("ok", message.seq))
                self._ready |= {role} if message.kind == "ready" else set()
                if message.kind == "report":
                    self.totals[role] = parse_report(message).totals

    def client(self, sender: str, address: str) -> Client:
        """A client that is connected."""
        client = Client(self.codec(sender), address)
        until = time.monotonic() + PATIENCE_S
        while not client.fileno_socket().poll(50, zmq.POLLOUT) and time.monotonic() < until:
            self.tick()
        return client

    def codec(self, sender: str) -> Codec:
        return Codec(self._run_id, self._setting.spec.schema, sender, 1, MAX_BYTES)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()
        self._server.close()
