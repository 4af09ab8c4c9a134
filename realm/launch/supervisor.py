"""The supervisor: starts the roles as processes, keeps their address book, watches them, and ends them all.

`realm start` makes it (`commands/train.py`). It owns the server of the control channel. A role starts in two phases: it
reports its address, and runs when all servers are bound. A role that dies is started again at the same address with a
higher incarnation. When its restart budget is used up, the whole run stops with the cause.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from loguru import logger

from realm.contract import Evaluation
from realm.errors import ConfigError, one_line
from realm.launch.child import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USER, ChildArgs, run_role
from realm.launch.environment import role_environment
from realm.launch.place import place
from realm.launch.ports import fixed_ports
from realm.launch.role import OPTIONAL_S, Key, Role, heed_silence, kill, pid, signal_name, spare
from realm.launch.rundir import start_of
from realm.launch.signals import Wishes, called, listen, name_of
from realm.launch.start import Prepared
from realm.learn.outcome import is_judged, newest_model
from realm.roles.table import ROLES, SERVERS, holds_weights, processes
from realm.rollout.rounds import ENDLESS
from realm.user import has_enter
from realm.watch.board import Board
from realm.watch.curves import Curves
from realm.watch.progress import STILL_S
from realm.watch.resources import Resources
from realm.watch.status import Status
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import CONTROL_MAX_BYTES, parse_evaluation, parse_report
from realm.wire.sockets import Server, wait_any

_ENDED = "all workflows have ended"
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)  # it comes and goes
_FROZEN_S = 5.0  # no turn of the loop takes as long
_OPTIONAL_STOPS_S = 2.0
_ASKED_AGAIN_S = 5.0


class Supervisor:
    """One run of the cluster; `run` returns its exit code."""

    def __init__(self, prepared: Prepared, own_network: bool) -> None:
        """own_network: the buffer has a network namespace of its own."""
        self.app, self.plan, self.spec = prepared.config.app, prepared.plan, prepared.spec
        self.run_dir, self.run_file = prepared.run_dir, prepared.run_file
        self._own_network, self._keys = own_network, prepared.keys
        self._workers_import = has_enter(self.app.algo)  # what such a package runs in a worker may need torch, too
        plan, run, keys = prepared.plan, prepared.run_file, prepared.keys
        self.board = Board(plays_on=plan.unbound)
        control = Codec(run.run_id, "", "supervisor", 1, CONTROL_MAX_BYTES)
        self._server = Server(control, self.app.bind_host, keys=keys)
        self._max_bytes = max(256 << 20, 2 * max(plan.batch, plan.envs_per_worker) * self.spec.sample_bytes)
        self._roles: dict[Key, Role] = {}
        for name in ROLES:
            for index in range(processes(name, plan)):
                self._roles[name, index] = Role(name, index)
        self._curves = Curves(self.run_dir, prepared.config)
        self._resources = Resources(self.run_dir)
        self._wishes = Wishes()
        self._turned_at = time.monotonic()
        self._first_epoch = run.epoch
        self._updates_then = 0.0, time.monotonic()  # the learner's, and since when
        self._stopping_since: float | None = None
        self._last_model: Literal["", "awaited", "saved"] = ""  # by the evaluator, before the run ends
        self._last_asked_at = 0.0
        self.cause, self.trace = "", ""
        self._exit_code = 0
        run.control = self._server.address
        run.keys_dir = str(Path(keys.folder).absolute()) if keys else ""

    # --- the run

    def run(self, show: Callable[[Status], None]) -> int:
        """Start all roles and watch them until the end; return the exit code. show: gets the status several
        times a second."""
        listen(self._wishes.hear)  # nothing else: a handler can interrupt any code
        try:
            for role in self._roles.values():
                if not self._wishes.first:
                    self._spawn_first(role)
            self._turned_at = time.monotonic()  # on a cold disk the first import of torch takes long
            while not self._over():
                wait_any([self._server], 100)
                while (received := self._server.receive()) is not None:
                    try:
                        self._handle(*received)
                    except WireError as error:
                        self._server.reject(received[0], error)
                self._move_on()
                self._watch()
                self._heed_signals()
                self._check_limits()
                self._watch_resources()
                if self.run_file.state == "starting" and self._all_ready():
                    self._set_state("running")
                    self.board.trains_since = time.monotonic()
                    logger.info("all roles are ready; curves: tensorboard --logdir {}", self._curves.folder)
                if self._stopping_since is None or self._roles["learner", 0].process is not None:
                    self._curves.write_due(self.board)
                if self._stopping_since is not None:
                    self._drive_stop()
                show(self.status())
        except Exception as error:  # such as of a process that cannot be started
            self.run_file.cause = one_line(error)
            self._set_state("failed")
            raise
        finally:
            self._kill_all()
        self._curves.write(self.board)
        self._curves.close()
        if self._last_model == "saved" and not is_judged(self.run_dir):
            logger.warning("the last model has not been judged")
        if self.cause == _ENDED and not self.board.total("learner", "updates"):
            self.cause, self._exit_code = f"{_ENDED} before an update was made; a workflow {ENDLESS[3:]}", 1
        self.run_file.cause = self.cause
        self.run_file.note_score(self.status())
        self._set_state("stopped" if self._exit_code == 0 else "failed")
        return self._exit_code

    def status(self) -> Status:
        """The run at this moment."""
        app = self.app
        return self.board.status(self.run_file.state, self.plan.capacity, app.max_env_steps, app.max_seconds)

    def _heed_signals(self) -> None:
        """End the run in order after one signal, at once after a second."""
        if self._wishes.settled():
            self.stop(called(self._wishes.first), 0)
        if self._wishes.at_once:
            if self._roles["learner", 0].process is not None:
                self.cause += ", and again: ended at once, without a last checkpoint"
            self._kill_all()

    def stop(self, cause: str, exit_code: int) -> None:
        """Begin to end the run; only the first cause counts."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.cause, self._exit_code = cause, exit_code
            learner = self._roles["learner", 0]
            back = learner.state not in ("starting", "bound", "waiting")
            if exit_code == 0 and not back and learner.restarts:
                self._exit_code = 1
                self.cause += f"; the learner had ended and was not back yet: {self._lost()}"
            self._set_state("stopping")

    def _move_on(self) -> None:
        """If this process was frozen, do not count that time against any role."""
        now = time.monotonic()
        frozen, self._turned_at = now - self._turned_at, now
        if frozen > _FROZEN_S:
            logger.warning("the supervisor itself stood still for {:.0f} s", frozen)
            for role in self._roles.values():
                role.move_on(frozen)

    def _over(self) -> bool:
        return self._stopping_since is not None and all(role.process is None for role in self._roles.values())

    def _all_ready(self) -> bool:
        return all(
            role.state in ("ready", "finished", "stopped") or ROLES[role.name].optional for role in self._roles.values()
        )

    def _check_limits(self) -> None:
        workers = [role for role in self._roles.values() if role.name == "aisrv"]
        if any(role.state == "finished" for role in workers) and self.plan.max_version_lag is not None:
            updates, now = self.board.total("learner", "updates"), time.monotonic()
            if updates != self._updates_then[0]:
                self._updates_then = updates, now
            elif now - self._updates_then[1] > STILL_S:  # a batch takes a round of each worker
                self.stop("some workflows have ended, and the others wait for them, as max_version_lag is not free", 0)
        limit = self.app.limit_reached(self.board.env_steps, self.board.training_s)
        if limit and self._stopping_since is None:
            self.stop(limit, 0)
            if self.app.eval_every_steps and 0 < self.app.max_env_steps <= self.board.env_steps:
                self._last_model = "awaited"

    def _watch_resources(self) -> None:
        """Warn before disk, memory or file handles end; hold the workers back while there is no memory for more."""
        alive = {role.label: pid(role) for role in self._roles.values() if role.process is not None}
        if self._resources.look({"supervisor": self.run_file.pid} | alive):
            self._command(self._roles["buffer", 0], "hold")
        if self._resources.gone:
            self.stop(self._resources.gone, 1)

    # --- messages

    def _handle(self, peer: bytes, message: Message) -> None:
        if message.kind in ("status", "stop_role", "save"):
            self._handle_user(peer, message)
            return
        role = self._roles.get((message.text("role"), message.integer("index")))
        if role is None or message.incarnation != role.incarnation:
            self._server.send(peer, Message("stop", message.seq))
            return
        role.heard()
        match message.kind:
            case "bound":
                role.address, role.bound = message.text("address"), (peer, message.seq)
                role.state = "stopped" if role.unwanted else "bound"
                self._give_orders()
            case "ready":
                if role.state not in ("ready", "stopped"):  # a late answer makes the role say it twice
                    self._take_ready(role, message.integer("env_steps"), message.text("origin"))
                self._server.send(peer, Message("ok", message.seq))
            case "next":
                role.next = (peer, message.seq)
            case "report":
                if message.seq > role.report_seq:  # a late answer makes the role send it twice
                    role.report_seq = message.seq
                    self.board.take(parse_report(message), message.incarnation)
                self._server.send(peer, Message("ok", message.seq))
            case "evaluated":
                self._take_evaluation(parse_evaluation(message))
                self._server.send(peer, Message("ok", message.seq))
            case "told":  # the signal may be on its way to every process of the job, and reach this one last
                self.stop(f"{name_of(message.integer('signal'))} received by {role.label}", 0)
                self._last_model = ""
                self._server.send(peer, Message("ok", message.seq))
            case "warning":
                logger.warning("{}: {}", role.label, message.text("text"))
                self._server.send(peer, Message("ok", message.seq))
            case "ended":
                role.cause, role.trace = message.text("cause"), message.text("trace")
                self._server.send(peer, Message("ok", message.seq))
            case kind:
                raise WireError(f"the supervisor does not answer {kind!r}")

    def _take_ready(self, role: Role, env_steps: int, origin: str) -> None:
        role.state, role.named = "ready", False
        seconds = max(0.0, time.monotonic() - role.started_at)  # less than 0 if this process was frozen
        logger.info("{} is ready (pid {}, {:.1f} s)", role.label, pid(role), seconds)
        if role.name == "learner":
            self._curves.begin(self.board, env_steps)
            logger.info("{}", origin)
            if role.incarnation == 1:
                self.run_file.beginning.append(origin)
        self._write_run_file()

    def _take_evaluation(self, result: Evaluation) -> None:
        """Show it, and write it to TensorBoard at the env steps of its model; it may arrive twice."""
        if self.board.evaluation is not None and result.version == self.board.evaluation.version:
            return
        values = self.board.judged(result)
        # a model that a lost learner made after its last checkpoint has no place on the axis any more
        if result.version.epoch == self.run_file.epoch or result.env_steps <= self.board.env_steps:
            self._curves.write_evaluation(values, result.env_steps)

    def _handle_user(self, peer: bytes, message: Message) -> None:
        """Answer tools/stop.sh, tools/status.sh and `realm save`."""
        if message.kind == "save":
            self._command(self._roles["learner", 0], "save")
        elif message.kind == "stop_role":
            name = message.text("role")
            for role in self._roles.values():
                if role.name == name and role.state not in ("finished", "ended"):
                    role.state, role.unwanted = "stopped", True
        roles = {
            role.label: {
                "state": role.state,
                "pid": pid(role),
                "incarnation": role.incarnation,
                "address": role.address,
                "totals": self.board.of_process(role.name, role.index, role.incarnation),
            }
            for role in self._roles.values()
        }
        traffic = self._server.traffic.totals()
        meta = {"roles": roles, "status": msgspec.to_builtins(self.status()), "traffic": traffic}
        self._server.send(peer, Message("status", message.seq, meta))

    def _give_orders(self) -> None:
        """Once all servers are bound, let the waiting roles run."""
        servers = [role for role in self._roles.values() if ROLES[role.name].answers]
        if not all(role.address for role in servers):
            return
        book = {role.name: role.address for role in servers}
        meta = {"book": book, "spec": self.spec.to_json(), "epoch": self.run_file.epoch}
        for role in self._roles.values():
            if role.bound is not None:
                peer, seq = role.bound
                role.bound = None
                self._server.send(peer, Message("run", seq, meta))

    def _command(self, role: Role, kind: str) -> None:
        waiting = role.next or (role.bound if kind == "stop" else None)  # one that starts knows no other command
        if waiting is not None:
            self._server.send(waiting[0], Message(kind, waiting[1]))
            role.next = role.bound = None

    # --- processes

    def _spawn_first(self, role: Role) -> None:
        try:
            self._spawn(role)
        except OSError as error:
            if not self._waits_for_room(role, error):
                raise ConfigError(f"{role.label} cannot be started: {error}") from error

    def _spawn(self, role: Role) -> None:
        role.incarnation += 1
        role.state, role.cause, role.trace, role.started_at = "starting", "", "", time.monotonic()
        role.bound = role.next = None
        role.report_seq, role.named = 0, False
        if role.name == "learner":  # counted here, not in files, which may be lost: an epoch is never used twice
            self.run_file.epoch = self._first_epoch + role.incarnation
        port = int(role.address.rpartition(":")[2]) if role.address else 0
        if port == 0 and role.name in SERVERS:
            port = fixed_ports(self.app).get(role.name, 0)
        own_network = self._own_network and role.name == "buffer"
        arguments = ChildArgs(
            role.name, role.index, role.incarnation, self.run_dir.absolute(), self.run_file.run_id,
            self._server.address, port, self.spec.schema, self._max_bytes, own_network, self._keys,
        )  # fmt: skip
        role.process = place(
            run_role,
            arguments,
            role_environment(role.name, self.plan),
            self.run_dir / "log" / f"{role.label}.log",
            f"{role.label} {self.run_dir}",
            imports_torch=holds_weights(role.name, self.plan) or (role.name == "aisrv" and self._workers_import),
            own_network=own_network,
        )
        role.no_room_since = 0.0
        if ROLES[role.name].spare:
            spare(pid(role))
        self._write_run_file()

    def _watch(self) -> None:
        """Find processes that ended, are silent, or did not get ready in time; start again those that are due."""
        for role in self._roles.values():
            if role.process is None:
                if role.state == "waiting" and self._stopping_since is None and time.monotonic() >= role.restart_at:
                    self._start_again(role)
                continue
            code = role.process.exitcode
            if code is not None:
                kill(role.process)  # the processes that it started
                role.process = None
                self._role_ended(role, code)
            elif role.state in ("starting", "bound") and not ROLES[role.name].optional and self._stopping_since is None:
                limit, took = self.app.start_timeout_s, time.monotonic() - role.started_at
                if took > limit:
                    longer = f"start_timeout_s = {limit:g} is over; choose a larger one if it only starts slowly"
                    self.stop(f"{role.label} was not ready after {took:.0f} s: {longer} ({self._log(role)})", 1)
            if code is None and role.unwanted:
                self._command(role, "stop")  # again, if it could not take it or a restart has swallowed it
            if code is None and self._stopping_since is None:
                heed_silence(role, self.app, self._update_s(role), self._log(role))

    def _role_ended(self, role: Role, code: int) -> None:
        if self._wishes.first:  # it came before this end: then the role is not started again
            self.stop(called(self._wishes.first), 0)
        if self._stopping_since is not None:
            trained, began = role.name == "learner" and role.state == "ready", role.state != "starting"
            role.state = "ended"
            if trained and code != EXIT_STOPPED and not self._wishes.at_once:
                self._exit_code = self._exit_code or (EXIT_DIVERGED if code == EXIT_DIVERGED else 1)
                reason = role.cause or f"{signal_name(code)}: {self._lost()}"
                self.cause += f"; the learner failed while stopping: {reason}"
            elif ROLES[role.name].optional and began and code != EXIT_STOPPED and not role.given_up:
                cause = role.cause or signal_name(code)
                logger.error("{} failed while stopping: {} ({})", role.label, cause, self._log(role))
        elif role.unwanted:
            role.state = "stopped"
            logger.info("{} was stopped by the user", role.label)
            self._write_run_file()
        elif code == EXIT_STOPPED and role.name == "aisrv":
            role.state = "finished"
            logger.info("{}: its workflow has ended", role.label)
            if all(one.state in ("finished", "stopped") for one in self._roles.values() if one.name == "aisrv"):
                self.stop(_ENDED, 0)
        elif code == EXIT_STOPPED:
            role.state = "ended"
            self._fail(role, f"{role.label} ended by itself ({self._log(role)})", 1)
        else:
            cause = role.cause or signal_name(code)
            if code in (EXIT_USER, EXIT_DIVERGED):
                self._fail(role, f"{role.label}: {cause} ({self._log(role)})", code)
                return
            count = role.count_restart(self.board.total("learner", "updates"), self.app.restart_window_s)
            if count > self.app.restart_budget:
                seconds = time.monotonic() - role.restarts[0][0]
                within = f"in {max(seconds, self.app.restart_window_s):.0f} s"
                self._fail(role, f"{role.label} failed {count} times {within}: {cause} ({self._log(role)})", 1)
                return
            role.state = "waiting"
            pause = role.restart_at - time.monotonic()
            when = f" in {pause:.0f} s" if pause > 0 else ""
            logger.warning("{} ended: {}; starting it again{}", role.label, cause, when)
            if not when:
                self._start_again(role)

    def _start_again(self, role: Role) -> None:
        try:
            self._spawn(role)
        except (ConfigError, OSError) as error:
            if isinstance(error, OSError) and self._waits_for_room(role, error):
                return
            self._fail(role, f"{role.label} cannot be started again: {error}", 1)
            return
        if role.name == "buffer":
            self._tell_workers("buffer_restarted")

    def _waits_for_room(self, role: Role, error: OSError) -> bool:
        """Whether a role that the system has no room for is tried again in a second: strangers at a port may hold file
        handles, until they are thrown out."""
        now = time.monotonic()
        role.no_room_since = role.no_room_since or now
        if error.errno not in _NO_ROOM or now - role.no_room_since > self.app.start_timeout_s:
            return False
        if role.no_room_since == now:
            logger.warning("{} cannot be started: {}; trying it again each second", role.label, error.strerror)
        role.state, role.restart_at = "waiting", now + 1.0
        return True

    def _fail(self, role: Role, cause: str, exit_code: int) -> None:
        """Give up a role: this ends the run, unless the role is optional."""
        if ROLES[role.name].optional:
            role.state = "ended"
            logger.error("{}; training goes on without it", cause)
            self._write_run_file()
        else:
            self.trace = self.trace or role.trace
            self.stop(cause, exit_code)

    def _tell_workers(self, kind: str) -> None:
        for role in self._roles.values():
            if role.name == "aisrv" and role.next is not None:
                self._command(role, kind)

    def _drive_stop(self) -> None:
        """Ask the next group of roles to stop; kill roles that do not stop in time."""
        now = time.monotonic()
        # roles that ask stop first, so that the last chunks and the last checkpoint find living servers
        for answers in (False, True):
            alive = [
                role
                for role in self._roles.values()
                if ROLES[role.name].answers == answers and role.process is not None
            ]
            for role in alive:
                assert role.process is not None
                if ROLES[role.name].optional and self._judges_last(role):
                    continue
                self._command(role, "stop")
                role.asked_at = role.asked_at or now
                limit = self._patience_s(role)
                if now - role.asked_at > limit and not role.given_up:
                    role.given_up = True
                    level = "INFO" if ROLES[role.name].optional else "WARNING"
                    logger.log(level, "{} did not stop in {:.0f} s and is killed", role.label, limit)
                if role.given_up or role.state == "starting":
                    kill(role.process)
            if alive:
                return

    def _judges_last(self, evaluator: Role) -> bool:
        """Have the evaluator judge the model with which the run has reached its last env step; False when that is over,
        or need not be."""
        if not self._last_model or self._wishes.first or self._exit_code or evaluator.unwanted:
            return False
        now = time.monotonic()
        if self._last_model == "awaited" and self._roles["learner", 0].process is None:
            self._last_model = "" if is_judged(self.run_dir) else "saved"
            if self._last_model:
                logger.info("the last model is saved, {} judges it; Ctrl+C ends that", evaluator.label)
        if self._last_model == "saved" and evaluator.next and now - self._last_asked_at > _ASKED_AGAIN_S:
            self._last_asked_at = now  # again, as a connection that broke may have lost it
            self._command(evaluator, "judge_last")
        heed_silence(evaluator, self.app, None, self._log(evaluator))
        starts = evaluator.state != "ready" and now - evaluator.started_at < OPTIONAL_S
        return self._last_model != "" and (starts or evaluator.state == "ready")

    def _patience_s(self, role: Role) -> float:
        """Seconds that a role may take to stop. The learner stops after its update, which may take long. An optional
        role has nothing to save, and may be in the middle of an evaluation, or compile."""
        if ROLES[role.name].optional:
            return min(_OPTIONAL_STOPS_S, self.app.stop_timeout_s)
        if role.name != "learner" or role.state != "ready":
            return self.app.stop_timeout_s
        update_s = self._update_s(role)
        # the first update compiles, and nobody knows how long one takes
        return self.app.stop_timeout_s + 3 * (self.app.start_timeout_s if update_s is None else update_s)

    def _update_s(self, role: Role) -> float | None:
        """Seconds of the learner's update; None where this role is a learner that has not told of one."""
        told = self.board.of_process("learner", 0, role.incarnation).get("updates")
        return None if role.name == "learner" and not told else self.board.recent("learner/update_s")

    def _lost(self) -> str:
        """What a learner that has not saved its last model takes with it."""
        newest, told = newest_model(self.run_dir), self.board.total("learner", "version_update")
        some = newest is None or newest.update < told
        lost = "its updates since the last checkpoint are lost"
        return lost if some else f"{lost}, if it made any: it had told of none"

    def _kill_all(self) -> None:
        for role in self._roles.values():
            if role.process is not None:
                kill(role.process)
        for role in self._roles.values():
            if role.process is not None:
                role.process.join()
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
                "pid": pid(role),
                "created": start_of(pid(role)) if alive else 0.0,
                "incarnation": role.incarnation,
                "address": role.address,
                "state": role.state,
            }
        self.run_file.write_or_warn(self.run_dir)
