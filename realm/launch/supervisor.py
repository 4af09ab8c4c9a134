"""The supervisor: starts the roles as processes, keeps their address book, watches them, and ends them all.

Called by the command line (`realm start`). Owns the control channel's server. A role is started in two phases: it
says where it is bound, and runs when everyone is. A role that dies is started again at the same address with a higher
incarnation, until its budget is used up: then the whole run stops with the cause.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from loguru import logger

from realm.config.keys import AppConfig
from realm.config.plan import Plan
from realm.contract import Evaluation, Spec
from realm.errors import ConfigError
from realm.launch.child import EXIT_STOPPED, EXIT_USER, RUN_ID_VARIABLE, SERVERS
from realm.launch.environment import holds_weights, role_environment
from realm.launch.nursery import Nursery, Process, from_nothing
from realm.launch.rundir import RunFile
from realm.watch.board import Board
from realm.watch.progress import Every
from realm.watch.tensorboard import TensorBoard
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import CONTROL_MAX_BYTES, parse_evaluation, parse_report
from realm.wire.sockets import Server, wait_any

_CURVES_EVERY_S = 2.0
_STOP_ORDER = (("aisrv", "learner", "evaluator"), ("actor", "model_pool", "buffer"))
"""Who plays and trains goes first, so that the last chunks and the last checkpoint find their servers alive."""

_SPARE = ("evaluator",)
"""Roles that training does without: they have low priority from their first import on, nobody waits for one, and when
its restarts are used up, the run goes on."""
_NICE = 10

Key = tuple[str, int]


@dataclass
class Role:
    """One place in the cluster and the process that fills it now."""

    name: str
    index: int
    process: Process | None = None
    incarnation: int = 0
    address: str = ""
    state: str = "starting"  # starting, bound, ready, stopped (by the user), ended
    cause: str = ""
    started_at: float = 0.0
    restarts: deque[float] = field(default_factory=deque)
    bound: tuple[bytes, int] | None = None  # peer and question that wait for the orders
    next: tuple[bytes, int] | None = None  # peer and question that wait for a command
    report_seq: int = 0
    given_up: bool = False  # it did not stop when it was told to

    @property
    def label(self) -> str:
        return f"{self.name}-{self.index}"


class Supervisor:
    """One run of the cluster; `run` returns its exit code."""

    def __init__(self, app: AppConfig, plan: Plan, spec: Spec, run_dir: Path, run: RunFile, nursery: Nursery) -> None:
        self._nursery = nursery
        self.app, self.plan, self.spec, self.run_dir, self.run_file = app, plan, spec, run_dir, run
        self.board = Board()
        self._server = Server(Codec(run.run_id, "", "supervisor", 1, CONTROL_MAX_BYTES), app.bind_host)
        self._max_bytes = max(256 << 20, 2 * max(plan.batch, plan.envs_per_worker) * spec.sample_bytes)
        self._roles: dict[Key, Role] = {}
        for name, count in (
            ("buffer", 1),
            ("model_pool", 1),
            ("learner", 1),
            ("actor", 0 if plan.predict_local else 1),
            ("aisrv", plan.workers),
            ("evaluator", 1 if app.eval_cpu_share > 0 else 0),
        ):
            for index in range(count):
                self._roles[name, index] = Role(name, index)
        self._tensorboard = TensorBoard(run_dir / "log" / "tensorboard")
        self._signals: list[int] = []
        self._ready_at: float | None = None
        self._group_since: dict[tuple[str, ...], float] = {}
        self._first_epoch = run.epoch
        self._stopping_since: float | None = None
        self._cause = ""
        self._exit_code = 0
        run.control = self._server.address

    # --- the run

    def run(self, show: Callable[[Board, str], None], on_ready: Callable[[], None]) -> int:
        """Start everything and stay until the end. show: gets the board and the state, several times a second."""
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, self._on_signal)
        try:
            for role in self._roles.values():
                if not self._signals:
                    self._spawn(role)
            curves = Every(_CURVES_EVERY_S)
            while not self._over():
                wait_any([self._server], 100)
                while (received := self._server.receive()) is not None:
                    try:
                        self._handle(*received)
                    except WireError as error:
                        self._server.reject(received[0], error)
                self._watch()
                self._heed_signals()
                self._check_limits()
                if self.run_file.state == "starting" and self._all_ready():
                    self._set_state("running")
                    self._ready_at = time.monotonic()
                    on_ready()
                if curves.due():
                    self._tensorboard.write(self.board.curves(), self.board.env_steps)
                if self._stopping_since is not None:
                    self._drive_stop()
                show(self.board, self.run_file.state)
        finally:
            self._kill_all()
        self._tensorboard.write(self.board.curves(), self.board.env_steps)
        self._tensorboard.close()
        self.run_file.cause = self._cause
        self._set_state("stopped" if self._exit_code == 0 else "failed")
        return self._exit_code

    @property
    def cause(self) -> str:
        return self._cause

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signals.append(number)  # nothing else: a handler may come in the middle of anything

    def _heed_signals(self) -> None:
        """One signal ends the run, a second one at once."""
        if self._signals:
            self.stop(f"{signal.Signals(self._signals[0]).name} received", 0)
        if len(self._signals) > 1:
            self._kill_all()

    def stop(self, cause: str, exit_code: int) -> None:
        """Begin to end the run; only the first cause counts."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._cause, self._exit_code = cause, exit_code
            self._set_state("stopping")

    def _over(self) -> bool:
        return self._stopping_since is not None and all(role.process is None for role in self._roles.values())

    def _all_ready(self) -> bool:
        return all(role.state == "ready" or role.name in _SPARE for role in self._roles.values())

    def _check_limits(self) -> None:
        if self.app.max_env_steps and self.board.env_steps >= self.app.max_env_steps:
            self.stop(f"max_env_steps = {self.app.max_env_steps} reached", 0)
        elif self.app.max_seconds and self._ready_at and time.monotonic() - self._ready_at >= self.app.max_seconds:
            self.stop(f"max_seconds = {self.app.max_seconds:g} reached", 0)

    # --- messages

    def _handle(self, peer: bytes, message: Message) -> None:
        if message.kind in ("status", "stop_role", "save"):
            self._handle_user(peer, message)
            return
        role = self._roles.get((message.text("role"), message.integer("index")))
        if role is None or message.incarnation != role.incarnation:
            self._server.send(peer, Message("stop", message.seq))
            return
        match message.kind:
            case "bound":
                role.address, role.bound = message.text("address"), (peer, message.seq)
                role.state = "bound"
                self._give_orders()
            case "ready":
                role.state = "ready"
                seconds = time.monotonic() - role.started_at
                logger.info("{} is ready (pid {}, {:.1f} s)", role.label, _pid(role), seconds)
                self._server.send(peer, Message("ok", message.seq))
                self._write_run_file()
            case "next":
                role.next = (peer, message.seq)
            case "report":
                if message.seq > role.report_seq:  # sent twice when an answer is late
                    role.report_seq = message.seq
                    self.board.take(parse_report(message), message.incarnation)
                self._server.send(peer, Message("ok", message.seq))
            case "evaluated":
                self._take_evaluation(parse_evaluation(message))
                self._server.send(peer, Message("ok", message.seq))
            case "ended":
                role.cause = message.text("cause")
                self._server.send(peer, Message("ok", message.seq))
            case kind:
                raise WireError(f"the supervisor does not answer {kind!r}")

    def _take_evaluation(self, one: Evaluation) -> None:
        """Show it, and put it into TensorBoard at the env steps of its model; sent twice when an answer is late."""
        if self.board.evaluation is None or one.version != self.board.evaluation.version:
            values = {f"evaluation/{name}": value for name, value in {**one.means, "best": one.best}.items()}
            self._tensorboard.write(values, one.env_steps)
        self.board.evaluation = one

    def _handle_user(self, peer: bytes, message: Message) -> None:
        """Questions of tools/stop.sh, tools/status.sh and `realm save`."""
        if message.kind == "save":
            self._command(self._roles["learner", 0], "save")
        elif message.kind == "stop_role":
            name = message.text("role")
            for role in self._roles.values():
                if role.name == name and role.process is not None:
                    role.state = "stopped"
                    self._command(role, "stop")
        roles = {
            role.label: {
                "state": role.state,
                "pid": _pid(role),
                "incarnation": role.incarnation,
                "address": role.address,
                "totals": self.board.of_process(role.name, role.index, role.incarnation),
            }
            for role in self._roles.values()
        }
        line = self.board.line(self.plan.capacity, self.app.max_env_steps, self.app.max_seconds)
        self._server.send(peer, Message("status", message.seq, {"roles": roles, "line": line}))

    def _give_orders(self) -> None:
        """Once every server is bound, tell whoever waits to run."""
        servers = [role for role in self._roles.values() if role.name in SERVERS]
        if not all(role.address for role in servers):
            return
        book = {role.name: role.address for role in servers}
        meta = {"book": book, "spec": self.spec.to_json(), "plan": self.plan.to_json(), "epoch": self.run_file.epoch}
        for role in self._roles.values():
            if role.bound is not None:
                peer, seq = role.bound
                role.bound = None
                self._server.send(peer, Message("run", seq, meta))

    def _command(self, role: Role, kind: str) -> None:
        waiting = role.next or role.bound
        if waiting is not None:
            self._server.send(waiting[0], Message(kind, waiting[1]))
            role.next = role.bound = None

    # --- processes

    def _spawn(self, role: Role) -> None:
        role.incarnation += 1
        role.state, role.cause, role.started_at = "starting", "", time.monotonic()
        role.bound = role.next = None
        role.report_seq = 0
        if role.name == "learner":  # counted here, not from files, which may be gone: an epoch never comes twice
            self.run_file.epoch = self._first_epoch + role.incarnation
        port = int(role.address.rpartition(":")[2]) if role.address else 0
        if port == 0 and role.name in SERVERS:
            port = fixed_ports(self.app).get(role.name, 0)
        words = [
            "role", role.name,
            "--index", str(role.index), "--incarnation", str(role.incarnation),
            "--run-dir", str(self.run_dir), "--control", self._server.address,
            "--port", str(port), "--schema", self.spec.schema, "--max-bytes", str(self._max_bytes),
        ]  # fmt: skip
        # the run id is the key to the sockets: a command line can be read by every user of the machine
        environment = {**role_environment(role.name, self.plan), RUN_ID_VARIABLE: self.run_file.run_id}
        with open(self.run_dir / "log" / f"{role.label}.log", "ab") as log:
            if not holds_weights(role.name, self.plan):
                role.process = from_nothing(words, environment, log)
            else:
                try:
                    role.process = self._nursery.spawn(words, environment, log, lambda: bool(self._signals))
                except InterruptedError:
                    return  # the run ends
        if role.name in _SPARE:
            _give_way(role.process.pid)
        self._write_run_file()

    def _watch(self) -> None:
        """Find processes that ended, and those that never got ready."""
        self._nursery.reap({_pid(role) for role in self._roles.values()})
        for role in self._roles.values():
            if role.process is None:
                continue
            code = role.process.poll()
            if code is not None:
                role.process.close()
                _kill_group(role.process.pid)
                role.process = None
                self._role_ended(role, code)
            elif role.state in ("starting", "bound") and role.name not in _SPARE and self._stopping_since is None:
                limit = self.app.start_timeout_s
                if time.monotonic() - role.started_at > limit:
                    self.stop(f"{role.label} was not ready after {limit:g} s ({self._log(role)})", 1)

    def _role_ended(self, role: Role, code: int) -> None:
        if self._stopping_since is not None:
            trained = role.name == "learner" and role.state == "ready"
            role.state = "ended"
            if trained and code != EXIT_STOPPED and len(self._signals) < 2:
                self._exit_code = self._exit_code or 1
                how = role.cause or _signal_name(code)
                self._cause += (
                    f"; the learner did not end well ({how}): what it trained since its last checkpoint is lost"
                )
        elif role.state == "stopped":
            logger.info("{} was stopped by the user", role.label)
        elif code == EXIT_STOPPED:
            role.state = "ended"
            self._fail(role, f"{role.label} ended by itself ({self._log(role)})", 1)
        else:
            cause = role.cause or _signal_name(code)
            if code == EXIT_USER:
                self._fail(role, f"{role.label}: {cause} ({self._log(role)})", EXIT_USER)
                return
            now = time.monotonic()
            role.restarts.append(now)
            while role.restarts and now - role.restarts[0] > self.app.restart_window_s:
                role.restarts.popleft()
            if len(role.restarts) > self.app.restart_budget:
                self._fail(
                    role,
                    f"{role.label} failed {len(role.restarts)} times in {self.app.restart_window_s:g} s: {cause} "
                    f"({self._log(role)})",
                    1,
                )
            else:
                logger.warning("{} ended: {}; starting it again", role.label, cause)
                try:
                    self._spawn(role)
                except (ConfigError, OSError) as error:
                    self._fail(role, f"{role.label} cannot be started again: {error}", 1)
                    return
                if role.name == "buffer":
                    self._tell_workers("buffer_restarted")

    def _fail(self, role: Role, cause: str, exit_code: int) -> None:
        """A role is not started again: the run ends, unless it is one that training does without."""
        if role.name in _SPARE:
            role.state = "ended"
            logger.error("{}; training goes on without it", cause)
            self._write_run_file()
        else:
            self.stop(cause, exit_code)

    def _tell_workers(self, kind: str) -> None:
        for role in self._roles.values():
            if role.name == "aisrv" and role.next is not None:
                self._command(role, kind)

    def _drive_stop(self) -> None:
        """Tell the next group of roles to stop; kill what does not listen."""
        now = time.monotonic()
        for group in _STOP_ORDER:
            alive = [role for role in self._roles.values() if role.name in group and role.process is not None]
            since = self._group_since.setdefault(group, now) if alive else now
            for role in alive:
                assert role.process is not None
                self._command(role, "stop")
                limit = self._patience_s(role)
                if now - since > limit and not role.given_up:
                    role.given_up = True
                    logger.warning("{} did not stop in {:.0f} s and is killed", role.label, limit)
                if role.given_up or role.state == "starting":
                    _kill_group(role.process.pid)
            if alive:
                return

    def _patience_s(self, role: Role) -> float:
        """How long a role may take to stop. The learner hears it after its update, which may be a long one."""
        update_s = self.board.recent("learner/update_s") or 0.0
        return self.app.stop_timeout_s + (3 * update_s if role.name == "learner" else 0.0)

    def _kill_all(self) -> None:
        for role in self._roles.values():
            if role.process is not None:
                _kill_group(role.process.pid)
        for role in self._roles.values():
            if role.process is not None:
                role.process.wait()
                role.process.close()
                role.process = None

    # --- files

    def _log(self, role: Role) -> str:
        return f"see {self.run_dir / 'log' / role.label}.log"

    def _set_state(self, state: str) -> None:
        self.run_file.state = state
        self._write_run_file()

    def _write_run_file(self) -> None:
        for role in self._roles.values():
            alive = role.process is not None
            self.run_file.roles[role.label] = {
                "pid": _pid(role),
                "created": _created(role) if alive else 0.0,
                "incarnation": role.incarnation,
                "address": role.address,
                "state": role.state,
            }
        try:
            self.run_file.write(self.run_dir)
        except OSError as error:
            logger.warning("run.json could not be written: {}", error)


def fixed_ports(app: AppConfig) -> dict[str, int]:
    """Server role -> the port it is to bind; empty if any free ones will do."""
    return {name: app.base_port + offset for offset, name in enumerate(SERVERS)} if app.base_port else {}


def check_ports(app: AppConfig) -> None:
    """Raise ConfigError, naming port and owner, if a port that the run wants is taken."""
    for role, port in fixed_ports(app).items():
        with socket.socket() as probe:
            # as ZeroMQ binds: a port that was in use a moment ago is free, one that somebody listens on is not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((app.bind_host, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port} for the {role} (base_port = {app.base_port}) cannot be used: {error.strerror}"
                    f"{_owner(port)}; allowed is a base_port with {len(SERVERS)} free ports, or 0 for any free ones"
                ) from error


def _owner(port: int) -> str:
    """` (pid 12, name)` of the process that listens on a port, as far as this user may know it."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
                return f" (pid {one.pid}, {psutil.Process(one.pid).name()})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return ""
    return ""


def _pid(role: Role) -> int:
    return role.process.pid if role.process is not None else 0


def _created(role: Role) -> float:
    try:
        return psutil.Process(_pid(role)).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _kill_group(pid: int) -> None:
    """Kill a role's process and whatever it started: each role leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _give_way(pid: int) -> None:
    """Low priority for a role, also where the kernel shares out CPU time by session (autogroup)."""
    with contextlib.suppress(OSError):  # it has ended, or there are no autogroups
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))


def _signal_name(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
