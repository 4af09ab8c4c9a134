"""The supervisor's hands: starts the roles, answers them, and keeps the run's files. What to do, `decisions.py` says.

`realm start` makes it (`commands/train.py`). It owns the server of the control channel. A role starts in two phases: it
reports its address, and runs when all servers are bound. One that dies is started again at the same address.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from loguru import logger

from realm.contract import Evaluation
from realm.errors import ConfigError, one_line
from realm.files import from_here
from realm.launch import decisions
from realm.launch.child import ChildArgs, run_role
from realm.launch.decisions import WORKERS_A_CORE, Role
from realm.launch.environment import role_environment
from realm.launch.hooks import Hooks
from realm.launch.host import AGENT
from realm.launch.hosts import Hosts
from realm.launch.place import place, starved_s
from realm.launch.ports import CONTROL, fixed_ports
from realm.launch.rundir import start_of_leader
from realm.launch.signals import Wishes, listen
from realm.launch.start import Prepared
from realm.learn.results import is_judged, newest_model
from realm.roles.table import ROLES, holds_weights, processes
from realm.user import has_enter
from realm.watch.board import Board
from realm.watch.curves import Curves
from realm.watch.resources import Resources
from realm.watch.status import HostStatus, Status
from realm.watch.summary import shares
from realm.wire.codec import Codec, Message, WireError, parsed
from realm.wire.control import CONTROL_MAX_BYTES, RunSoFar, parse_report
from realm.wire.sockets import Server, wait_any


class Supervisor:
    """One run of the cluster; `run` returns its exit code."""

    def __init__(
        self, prepared: Prepared, own_network: bool, hosts: Hosts | None = None, dealt: Sequence[int] = ()
    ) -> None:
        """own_network: the buffer has a network namespace of its own. hosts: that have come; dealt: workers of this
        machine and of each of them."""
        self.app, self.plan, self.spec = prepared.config.app, prepared.plan, prepared.spec
        self.run_dir, self.run_file = prepared.run_dir, prepared.run_file
        self._own_network, self._keys, self._hosts = own_network, prepared.keys, hosts
        self._workers_import = has_enter(self.app.algo)  # what such a package runs in a worker may need torch, too
        self.board = Board(plays_on=self.plan.free_running)
        control = Codec(self.run_file.run_id, "", "supervisor", 1, CONTROL_MAX_BYTES)
        address = self.app.bind_host, fixed_ports(self.app)[CONTROL]
        self._server = hosts.server if hosts else Server(control, *address, self._keys)
        self._max_bytes = max(256 << 20, 2 * max(self.plan.batch, self.plan.envs_per_worker) * self.spec.sample_bytes)
        self._hooks, self._resources = Hooks(self.app.algo), Resources(self.run_dir)
        self._curves = Curves(self.run_dir, prepared.config, self._hooks.tell)
        roles = [Role(name, index) for name in ROLES for index in range(processes(name, self.plan))]
        homes = [slot for slot, workers in enumerate(dealt) for _ in range(workers)]
        for role, home in zip((role for role in roles if role.row.plays), homes, strict=False):
            role.home = role.at = home
        roles += [Role("model_pool", slot, home=slot, at=slot) for slot in sorted({*homes} - {0})]
        self.state = decisions.RunState(
            self.app, self.plan, self.board, self.run_dir, {(role.name, role.index): role for role in roles}, Wishes(),
            partial(newest_model, self.run_dir), partial(is_judged, self.run_dir), time.monotonic(),
            places={0: ("this machine", WORKERS_A_CORE * self.plan.cores)},
        )  # fmt: skip
        for slot, host in hosts.living.items() if hosts else ():
            decisions.host_came(self.state, slot, host.info.name, host.info.cores, time.monotonic())
        self.roles = self.state.roles.values()
        self.ran: dict[str, str] = {}
        """Process, as the board calls it, -> the host that it ran on."""
        self.run_file.control = self._server.address
        self.run_file.keys_dir = str(Path(self._keys.folder).absolute()) if self._keys else ""

    def run(self, show: Callable[[Status], None]) -> int:
        """Start all roles and watch them to the end; return the exit code. show: gets the status in each turn."""
        run = self.state
        listen(run.wishes.hear)  # nothing else: a handler can interrupt any code
        try:
            for role in self.roles:
                if not run.wishes.first:
                    self._spawn(role)
            run.turned_at = time.monotonic()  # on a cold disk the first import of torch takes long
            while not run.is_over():
                wait_any([self._server], 100)
                self._server.serve(self._handle)
                self._look_at_hosts()
                self._look_at_processes()
                self._do(decisions.turn(run, time.monotonic()))
                self._watch_resources()
                if self._hooks.reason:
                    decisions.stop(run, self._hooks.reason, 0, time.monotonic())
                if run.stopping_since is not None:
                    self.run_file.state = "judging" if run.last_model and not run.wishes.first else "stopping"
                elif self.run_file.state == "starting" and run.is_ready():
                    self.run_file.state, self.board.trains_since = "running", time.monotonic()
                    logger.info("all roles are ready; curves: realm tensorboard {}", from_here(self.run_dir))
                    self._say_traffic()
                self._record()
                if run.stopping_since is None or run.learner.process is not None:
                    self._curves.write_due(self.board)
                show(self.status())
        except Exception as error:  # such as of a process that cannot be started
            self.run_file.cause, self.run_file.state = one_line(error), "failed"
            raise
        finally:
            self._kill_all()
        self._curves.write(self.board)
        self._curves.close()
        self._do(decisions.close(run))
        self._hooks.end(run.cause, self.app.stop_timeout_s, run.wishes)
        self.run_file.note_score(self.status())
        self.run_file.cause, self.run_file.state = run.cause, "failed" if run.exit_code else "stopped"
        self._record()
        return run.exit_code

    def status(self) -> Status:
        """The run at this moment."""
        limits = self.app.max_env_steps, self.app.max_seconds
        status = self.board.status(self.run_file.state, self.plan.capacity, *limits)
        if self._hosts is None:
            return status
        now, at = time.monotonic(), [role.at for role in self.state.workers]
        so_far, seconds = shares(self.board, self.ran), 1e6 * max(1.0, self.board.training_s)
        hosts = []
        for slot, host in self._hosts.living.items():
            up, down = (so_far.get(host.info.name, {}).get(way, 0.0) / seconds for way in ("up", "down"))
            hosts.append(HostStatus(host.info.name, at.count(slot), up, down, now - host.heard_at))
        return dataclasses.replace(status, hosts=hosts, homeless=at.count(None))

    def _do(self, actions: Iterable[decisions.Action]) -> None:
        for action in actions:
            match action:
                case decisions.Spawn(role):
                    self._spawn(role)
                case decisions.Tell(role, kind):
                    self._tell(role, kind)
                case decisions.Kill(role) if role.process is not None:
                    role.process.kill()
                case decisions.Stacks(role) if role.process is not None:
                    role.process.write_stacks()
                case decisions.Say(level, text):
                    logger.log(level, "{}", text)
                case decisions.End():
                    self._kill_all()

    def _spawn(self, role: Role) -> None:
        role.begin(time.monotonic())
        if role.row.trains:  # counted here, not in files, which may be lost: an epoch is never used twice
            self.run_file.epoch += 1
        fixed = {} if role.at else fixed_ports(self.app)
        port = int(role.address.rpartition(":")[2]) if role.address else fixed.get(role.name, 0)
        own_network = self._own_network and role.row.stores
        torch = holds_weights(role.name, self.plan) or (role.row.plays and self._workers_import)
        arguments = ChildArgs(
            role.name, role.index, role.incarnation, self.run_dir, self.run_file.run_id,
            self._server.address, port, self.spec.schema, self._max_bytes, self._keys, own_network,
        )  # fmt: skip
        role.host = self.state.places[role.at][0] if role.at else ""
        if role.host:
            self.ran[f"{role.label}.{role.incarnation}"] = role.host
        try:
            role.process = self._hosts.place(role.at, arguments) if self._hosts and role.at else place(
                run_role, arguments, role_environment(role.name, self.plan),
                self.run_dir / "log" / f"{role.label}.log", f"{role.label} {self.run_dir}", torch, own_network,
            )  # fmt: skip
        except (ConfigError, OSError) as error:
            self._do(decisions.not_started(self.state, role, error, time.monotonic()))
            return
        self._record()
        self._do(decisions.started(self.state, role))

    def _look_at_hosts(self) -> None:
        if self._hosts is None:
            return
        now = time.monotonic()
        lost, came = self._hosts.turn(now)
        for slot, why in lost.items():
            self._do(decisions.host_lost(self.state, slot, why, now))
        for slot in came:
            info = self._hosts.living[slot].info
            self._do(decisions.host_came(self.state, slot, info.name, info.cores, now))

    def _say_traffic(self) -> None:
        """What each host puts on its cable, without the headers of the network."""
        model = self.board.of_process("model_pool", 0, self.state.roles["model_pool", 0].incarnation)
        for slot, host in self._hosts.living.items() if self._hosts else ():
            logger.info(
                "host {}: {} cores, {} workers; {:,.0f} bytes an env step go up, {:,.0f} bytes an update come down",
                host.info.name, host.info.cores, sum(role.at == slot for role in self.state.workers),
                self.spec.sample_bytes / self.spec.steps_per_sample,
                model.get("model_bytes", 0),
            )  # fmt: skip

    def _look_at_processes(self) -> None:
        for role in self.roles:
            process = role.process
            if process is not None and (code := process.exit_code) is not None:
                process.kill()  # the processes that it started
                role.process = None
                self._do(decisions.ended(self.state, role, code, time.monotonic()))
            elif process is not None and role.row.optional:  # it has the lowest priority
                role.starve(starved_s(role.pid))

    def _watch_resources(self) -> None:
        """Warn before disk, memory or file handles end; hold the workers back while there is no memory for more."""
        alive = ((key, role) for key, role in self.state.roles.items() if role.process is not None and not role.at)
        told = {role.label: self.board.of_process(*key, role.incarnation) for key, role in alive}
        if self._resources.look("supervisor", told):
            self._do(decisions.Tell(role, "hold") for role in self.roles if role.row.stores)
        if self._resources.gone:
            decisions.stop(self.state, self._resources.gone, 1, time.monotonic())

    def _kill_all(self) -> None:
        alive = [role.process for role in self.roles if role.process is not None]
        for process in alive:
            process.kill()
        for process in alive:
            process.join()
        for role in self.roles:
            role.process = None
        self._record()

    def _handle(self, peer: bytes, message: Message) -> None:
        if message.sender == AGENT and self._hosts:
            self._hosts.take(peer, message)
            return
        if message.kind in ("status", "stop_role", "save"):
            self._handle_user(peer, message)
            return
        role = self.state.roles.get((message.text("role"), message.integer("index")))
        if role is None or message.incarnation != role.incarnation:
            self._server.send(peer, Message("stop", message.seq))
            return
        now = time.monotonic()
        role.heard(now)
        match message.kind:
            case "bound":
                role.address, role.bound = message.text("address"), (peer, message.seq)
                if not role.at:  # else it means nothing here
                    role.pid = message.integer("pid")
                    role.created = start_of_leader(role.pid)
                role.state = "stopped" if role.unwanted else "bound"
                self._give_orders()
                return  # these are the answer
            case "next":
                role.next = (peer, message.seq)
                return  # a command is the answer
            case "ready":
                env_steps, origin = message.integer("env_steps"), message.text("origin")
                if role.state not in ("ready", "stopped"):  # a late answer makes the role say it twice
                    self._do(decisions.ready(role, origin, now))
                    if role.row.trains:
                        self._curves.begin(self.board, env_steps)
                        self.run_file.beginning += [origin] if role.incarnation == 1 else []
            case "report":
                if message.seq > role.report_seq:  # a late answer makes the role send it twice
                    role.report_seq = message.seq
                    self.board.take(parse_report(message), message.incarnation)
                so_far = dataclasses.asdict(RunSoFar(self.board.env_steps, self.board.evaluation))
                self._server.send(peer, Message("so_far", message.seq, so_far))
                return
            case "evaluated":
                self._curves.take(self.board, parsed(message, Evaluation), self.run_file.epoch)
            case "told":
                decisions.signalled(self.state, role, message.integer("signal"), now)
            case "warning":
                logger.warning("{}: {}", role.label, message.text("text"))
            case "ended":
                role.cause, role.trace = message.text("cause"), message.text("trace")
            case kind:
                raise WireError(f"the supervisor does not answer {kind!r}")
        self._server.send(peer, Message("ok", message.seq))

    def _handle_user(self, peer: bytes, message: Message) -> None:
        """Answer `realm status`, `attach`, `runs`, `save` and `stop ROLE`."""
        if message.kind == "save":
            self._tell(self.state.learner, "save")
        elif message.kind == "stop_role":
            decisions.unwanted(self.state, message.text("role"))
        roles = {
            role.label: {**role.shown(), "totals": self.board.of_process(*key, role.incarnation)}
            for key, role in self.state.roles.items()
        }
        meta = {"roles": roles, "status": msgspec.to_builtins(self.status())}
        self._server.send(peer, Message("status", message.seq, meta))

    def _give_orders(self) -> None:
        """Once all servers are bound, let the waiting roles run."""
        book = {role.name: role.address for role in self.roles if role.row.answers and not role.home}
        if not all(book.values()):
            return
        pools = {role.at: role.address for role in self.roles if role.row.answers and role.home}
        for role in self.roles:
            pool = pools.get(role.at, book["model_pool"]) if role.row.plays else book["model_pool"]
            if pool:  # else a worker waits for the pool of its host
                orders = {"book": {**book, "model_pool": pool}, "spec": self.spec.to_json()}
                self._tell(role, "run", {**orders, "epoch": self.run_file.epoch})

    def _tell(self, role: Role, kind: str, meta: dict[str, Any] | None = None) -> None:
        # one that starts knows no other command than these two
        if waiting := role.bound if kind == "run" else role.next or (role.bound if kind == "stop" else None):
            self._server.send(waiting[0], Message(kind, waiting[1], meta or {}))
            role.next = role.bound = None

    def _record(self) -> None:
        """Write run.json, unless it says all that already."""
        self.run_file.roles = {role.label: role.shown() for role in self.roles}
        self.run_file.write_or_warn(self.run_dir)
