"""What the supervisor decides: pure functions of the roles, of what has happened, and of the time.

`supervisor.py` calls one of them for each event and `turn` several times a second, and does what they return. What they
decide stands in `RunState` and `Role`. None of them knows a process, a socket or a clock, so tests need none.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from realm.config.keys import AppConfig
from realm.config.plan import Plan
from realm.errors import ConfigError
from realm.launch.child import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USER
from realm.launch.signals import Wishes, called, name_of
from realm.learn.results import Saved
from realm.roles.table import ROLES, Row
from realm.rollout.rounds import ENDLESS
from realm.watch.board import Board
from realm.watch.progress import STILL_S

if TYPE_CHECKING:
    from realm.launch.place import Handle

ENDED = "all workflows have ended"
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)  # it comes and goes
FROZEN_S = 5.0  # no turn of the supervisor's loop takes as long
_OPTIONAL_STOPS_S = 2.0
_ASKED_AGAIN_S = 5.0
_SLOW_START_S = 30.0
_OPTIONAL_S = 60.0  # an evaluator compiles its kernels with the lowest priority, on cores that are full
_RESTART_WINDOW_S = 300.0  # a restart longer ago is forgotten
_MOST_PAUSE_S = 30.0
_QUIET_REPORTS = 30  # missing reports before a role is named
_QUIET_UPDATES = 5  # the same in updates: a role may wait for one, and the learner reports between two
_KILLED_AFTER = 3  # times as long
WORKERS_A_CORE = 2  # at most, where others were lost


@dataclass
class Role:
    """One role of the cluster and its current process. Times are monotonic seconds."""

    name: str
    index: int
    home: int = 0  # the slot of the host that it belongs to; 0: this machine
    at: int | None = 0  # where it runs, or is to start; None: nowhere, until a host comes
    host: str = ""  # the name of that machine, if it is another one
    process: Handle | None = None
    pid: int = 0  # of its process, once it has told it
    created: float = 0.0  # that process, as `rundir.start_of` tells it
    incarnation: int = 0
    address: str = ""
    state: str = "starting"  # starting, bound, ready, waiting (for a restart), stopped (by the user), finished, ended
    cause: str = ""
    trace: str = ""  # the last lines of the cause's traceback
    started_at: float = 0.0
    heard_at: float = 0.0
    starved_s: float = 0.0  # that its process has waited for a core so far
    named: bool = False  # as silent, or as slow to start
    restarts: deque[tuple[float, float]] = field(default_factory=deque)  # when, and the learner's updates by then
    restart_at: float = 0.0
    no_room_since: float = 0.0  # the system has no file handle, or no memory, for its process; 0: it has
    bound: tuple[bytes, int] | None = None  # peer and question that wait for the orders
    next: tuple[bytes, int] | None = None  # peer and question that wait for a command
    report_seq: int = 0
    asked_at: float = 0.0  # to stop, as the run ends
    given_up: bool = False  # it did not stop in time
    unwanted: bool = False  # the user has stopped it: it is asked to end again and again, and not started again

    @property
    def row(self) -> Row:
        return ROLES[self.name]

    @property
    def label(self) -> str:
        return f"{self.name}-{self.index}"

    @property
    def full_label(self) -> str:
        return f"{self.label} on {self.host}" if self.host else self.label

    def shown(self) -> dict[str, Any]:
        """As run.json and `realm status` show it."""
        pid, created = (self.pid, self.created) if self.process else (0, 0.0)
        which = {"incarnation": self.incarnation, "address": self.address, "state": self.state}
        return {"pid": pid, "created": created, **which, **({"host": self.host} if self.home else {})}

    def begin(self, now: float) -> None:
        """Its next process starts."""
        self.incarnation += 1
        self.state, self.cause, self.trace, self.started_at = "starting", "", "", now
        self.bound = self.next = None
        self.pid, self.created, self.report_seq, self.named = 0, 0.0, 0, False

    def heard(self, now: float) -> None:
        """Its process has sent a message."""
        self.heard_at = now
        if self.state == "ready":
            self.named = False

    def move_on(self, seconds: float) -> None:
        """Do not count a time in which nobody listened."""
        self.started_at += seconds
        self.heard_at += seconds
        self.asked_at += seconds if self.asked_at else 0.0

    def starve(self, total_s: float) -> None:
        """Do not count a time in which it had no core. total_s: of its process so far."""
        new, self.starved_s = max(0.0, total_s - self.starved_s), total_s
        self.started_at += new
        self.heard_at += new

    def count_restart(self, updates: float, window_s: float, now: float) -> int:
        """Count one more restart; return how many count now. updates: the learner's so far.

        A restart is forgotten after `window_s`, but only if the learner has made an update since.
        """
        self.restarts.append((now, updates))
        while now - self.restarts[0][0] > window_s and updates > self.restarts[0][1]:
            self.restarts.popleft()
        pause = 0.0 if len(self.restarts) < 2 else min(_MOST_PAUSE_S, 2.0 ** min(10, len(self.restarts) - 2))
        self.restart_at = now + pause
        return len(self.restarts)


@dataclass
class RunState:
    """What is decided about: the roles, how far the run has come, and whether and why it ends.

    newest, is_judged  ask the run's folder for its newest checkpoint, and whether the last model has been judged
    turned_at          when `turn` was called last
    updates_then       the learner's updates, and when that count was first seen
    last_model         is awaited, or saved, and the evaluator judges it before the run ends
    places             slot -> name of a machine that is there, and the most workers that start there; 0: this machine
    """

    app: AppConfig
    plan: Plan
    board: Board
    run_dir: Path
    roles: dict[tuple[str, int], Role]
    wishes: Wishes
    newest: Callable[[], Saved | None]
    is_judged: Callable[[], bool]
    turned_at: float
    stopping_since: float | None = None
    cause: str = ""
    trace: str = ""
    exit_code: int = 0
    last_model: Literal["", "awaited", "saved"] = ""
    last_asked_at: float = 0.0
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.updates_then = 0.0, self.turned_at

    @property
    def learner(self) -> Role:
        return next(role for role in self.roles.values() if role.row.trains)

    @property
    def workers(self) -> list[Role]:
        return [role for role in self.roles.values() if role.row.plays]

    @property
    def updates(self) -> float:
        return self.board.total(self.learner.name, "updates")

    def is_over(self) -> bool:
        return self.stopping_since is not None and all(role.process is None for role in self.roles.values())

    def is_ready(self) -> bool:
        """Whether each role is there, but those that no host has a place for."""
        states = ("ready", "finished", "stopped")
        return all(role.state in states or role.row.optional or role.at is None for role in self.roles.values())

    def log_of(self, role: Role) -> str:
        return f"see {self.run_dir / 'log' / role.label}.log"

    def update_s(self, role: Role) -> float | None:
        """Seconds of the learner's update; None where this role is a learner that has not told of one."""
        learner = self.learner
        told = self.board.of_process(learner.name, learner.index, role.incarnation).get("updates")
        return None if role.row.trains and not told else self.board.recent(f"{learner.name}/update_s")

    def lost(self) -> str:
        """What a learner that has not saved its last model takes with it."""
        saved, told = self.newest(), self.board.total(self.learner.name, "version_update")
        lost = "its updates since the last checkpoint are lost"
        return lost if saved is None or saved.version.update < told else f"{lost}, if it made any: it had told of none"


class Spawn(NamedTuple):
    """Start the role's next process, then call `started` or `not_started`."""

    role: Role


class Tell(NamedTuple):
    """Answer the question that the role keeps open for commands. Without one it does not hear: say it again."""

    role: Role
    kind: str


class Kill(NamedTuple):
    role: Role


class Stacks(NamedTuple):
    """Have the role write its stacks into its log."""

    role: Role


class Say(NamedTuple):
    level: str
    text: str


class End(NamedTuple):
    """Kill all processes at once."""


Action = Spawn | Tell | Kill | Stacks | Say | End


def stop(run: RunState, cause: str, exit_code: int, now: float) -> None:
    """Begin to end the run; only the first cause counts."""
    if run.stopping_since is not None:
        return
    run.stopping_since, run.cause, run.exit_code = now, cause, exit_code
    back = run.learner.state not in ("starting", "bound", "waiting")
    if exit_code == 0 and not back and run.learner.restarts:
        run.exit_code = 1
        run.cause += f"; the learner had ended and was not back yet: {run.lost()}"


def unwanted(run: RunState, name: str) -> None:
    """The user has stopped these roles. A workflow that has ended, and a role that was given up, stay what they are."""
    for role in run.roles.values():
        if role.name == name and role.state not in ("finished", "ended"):
            role.state, role.unwanted = "stopped", True


def signalled(run: RunState, role: Role, number: int, now: float) -> None:
    """A role has heard a signal, which may be on its way to every process of the job, and reach the supervisor last."""
    stop(run, f"{name_of(number)} received by {role.label}", 0, now)
    run.last_model = ""


def turn(run: RunState, now: float) -> list[Action]:
    """What is due: to start, name or kill a role; to end the run by a signal or a limit, or to go on with that."""
    frozen, run.turned_at = now - run.turned_at, now
    actions: list[Action] = []
    if frozen > FROZEN_S:  # do not count that time against any role
        actions.append(Say("WARNING", f"the supervisor itself stood still for {frozen:.0f} s"))
        for role in run.roles.values():
            role.move_on(frozen)
    if run.wishes.settled():
        stop(run, called(run.wishes.first), 0, now)
    if run.wishes.at_once:
        if run.learner.process is not None:
            run.cause += ", and again: ended at once, without a last checkpoint"
        return [End()]
    for role in run.roles.values():
        actions += _watch(run, role, now)
    _heed_limits(run, now)
    return actions + (_drive_stop(run, now) if run.stopping_since is not None else [])


def started(run: RunState, role: Role) -> list[Action]:
    """Its process has been started."""
    role.no_room_since = 0.0
    return [Tell(worker, "buffer_restarted") for worker in run.workers] if role.row.stores else []


def not_started(run: RunState, role: Role, error: ConfigError | OSError, now: float) -> list[Action]:
    """No process could be started. One that the system has no room for is tried again each second: strangers at a port
    may hold file handles, until they are thrown out. Raises ConfigError where the run has not begun."""
    role.no_room_since = role.no_room_since or now
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        waited_s = now - role.no_room_since
        if waited_s <= run.app.start_timeout_s:
            role.state, role.restart_at = "waiting", now + 1.0
            first = f"{role.label} cannot be started: {error.strerror}; trying it again each second"
            return [Say("WARNING", first)] if waited_s == 0 else []
    if role.incarnation > 1:
        return _fail(run, role, f"{role.label} cannot be started again: {error}", 1, now)
    raise error if isinstance(error, ConfigError) else ConfigError(f"{role.label} cannot be started: {error}")


def ready(role: Role, origin: str, now: float) -> list[Action]:
    """It works now. origin: a sentence about where a learner goes on, else ""."""
    role.state, role.named = "ready", False
    seconds = max(0.0, now - role.started_at)  # less than 0 if the supervisor was frozen
    pid = f"pid {role.pid}, " if role.pid else ""
    said = f"{role.full_label} is ready ({pid}{seconds:.1f} s)"
    return [Say("INFO", said), *([Say("INFO", origin)] if origin else [])]


def ended(run: RunState, role: Role, code: int, now: float) -> list[Action]:
    """Its process has ended with this exit code, negative for a signal."""
    if run.wishes.first:  # it came before this end: then the role is not started again
        stop(run, called(run.wishes.first), 0, now)
    state, role.state = role.state, "ended"
    cause = role.cause or (f"killed by {name_of(-code)}" if code < 0 else f"exit code {code}")
    if run.stopping_since is not None:
        return _ended_while_stopping(run, role, state, code, cause)
    if role.unwanted:
        role.state = "stopped"
        return [Say("INFO", f"{role.label} was stopped by the user")]
    if role.home in run.places and role.at != role.home:
        role.state, role.at = "waiting", role.home
        return [Spawn(role)]
    if code == EXIT_STOPPED and role.row.plays:
        role.state = "finished"
        if all(one.state in ("finished", "stopped") for one in run.workers):
            stop(run, ENDED, 0, now)
        return [Say("INFO", f"{role.label}: its workflow has ended")]
    if code == EXIT_STOPPED:
        return _fail(run, role, f"{role.label} ended by itself ({run.log_of(role)})", 1, now)
    if code in (EXIT_USER, EXIT_DIVERGED):  # starting it again would not help
        return _fail(run, role, f"{role.full_label}: {cause} ({run.log_of(role)})", code, now)
    count = role.count_restart(run.updates, _RESTART_WINDOW_S, now)
    if count > run.app.restart_budget:
        within = f"in {max(now - role.restarts[0][0], _RESTART_WINDOW_S):.0f} s"
        return _fail(
            run, role, f"{role.full_label} failed {count} times {within}: {cause} ({run.log_of(role)})", 1, now
        )
    role.state = "waiting"
    pause = role.restart_at - now
    when = f" in {pause:.0f} s" if pause > 0 else ""
    said = Say("WARNING", f"{role.full_label} ended: {cause}; starting it again{when}")
    return [said] if when else [said, Spawn(role)]


def host_lost(run: RunState, slot: int, why: str, now: float) -> list[Action]:
    """All that ran on this host is lost. Its workers start elsewhere, where there is room; this spends no restart."""
    name, _ = run.places.pop(slot)
    lost = [role for role in run.roles.values() if role.at == slot]
    for role in lost:
        if role.process is not None:
            role.state = "stopped" if role.unwanted else "waiting"
        role.process, role.at, role.host, role.address, role.bound, role.next = None, None, "", "", None, None
        role.incarnation += 1  # should it come back, it is told to stop
    actions = _settle(run, now)
    wait = sum(role.at is None for role in lost if role.row.plays)
    said = f"the host {name} is lost ({why}); {f'{wait} of its' if wait else 'none of its'} workers wait for a host"
    return [Say("WARNING", f"{said}, the others start elsewhere"), *actions]


def host_came(run: RunState, slot: int, name: str, cores: int, now: float) -> list[Action]:
    """A host takes this slot: the workers that belong there come back to it."""
    run.places[slot] = name, WORKERS_A_CORE * cores
    return _settle(run, now)


def _settle(run: RunState, now: float) -> list[Action]:
    """Send roles home, and workers without a place to where there is the most room, if there is any."""
    actions: list[Action] = []
    for role in run.roles.values():
        taken = [one.at for one in run.workers]
        rooms = {slot: most - taken.count(slot) for slot, (_, most) in run.places.items()}
        roomy = max(rooms, key=lambda slot: rooms[slot])
        if role.home in run.places and role.at != role.home:
            slot = role.home
        elif role.at is None and role.row.plays and rooms[roomy] > 0:
            slot = roomy
        else:
            continue
        if role.process is None:
            role.at, role.restart_at = slot, now
        else:
            actions.append(Kill(role))  # then `ended` sends it home
    return actions


def _ended_while_stopping(run: RunState, role: Role, state: str, code: int, cause: str) -> list[Action]:
    """state: in which its process ended."""
    if code == EXIT_STOPPED:
        return []
    if role.row.trains and state == "ready" and not run.wishes.at_once:
        run.exit_code = run.exit_code or (EXIT_DIVERGED if code == EXIT_DIVERGED else 1)
        reason = cause if role.cause else f"{cause}: {run.lost()}"
        run.cause += f"; the learner failed while stopping: {reason}"
    elif role.row.optional and state != "starting" and not role.given_up:
        return [Say("ERROR", f"{role.label} failed while stopping: {cause} ({run.log_of(role)})")]
    return []


def _fail(run: RunState, role: Role, cause: str, exit_code: int, now: float) -> list[Action]:
    """Give up a role: this ends the run, unless the role is optional."""
    role.state = "ended"
    if role.row.optional:
        return [Say("ERROR", f"{cause}; training goes on without it")]
    run.trace = run.trace or role.trace
    stop(run, cause, exit_code, now)
    return []


def _watch(run: RunState, role: Role, now: float) -> list[Action]:
    """Start a role again when that is due; ask, name or kill one that lives."""
    runs_on = run.stopping_since is None
    if role.process is None:
        due = role.state == "waiting" and role.at is not None and now >= role.restart_at
        return [Spawn(role)] if due and runs_on else []
    took, limit = now - role.started_at, run.app.start_timeout_s
    if role.state in ("starting", "bound") and not role.row.optional and runs_on and took > limit:
        longer = f"start_timeout_s = {limit:g} is over; choose a larger one if it only starts slowly"
        stop(run, f"{role.label} was not ready after {took:.0f} s: {longer} ({run.log_of(role)})", 1, now)
    # again, if it could not take it or a restart has swallowed it
    actions: list[Action] = [Tell(role, "stop")] if role.unwanted else []
    if run.stopping_since is None:
        actions += heed_silence(role, run.app, run.update_s(role), run.log_of(role), now)
    return actions


def heed_silence(role: Role, app: AppConfig, update_s: float | None, log: str, now: float) -> list[Action]:
    """Name a role that has been silent for long, with its stacks in its log; kill it when it stays silent.

    Reports are the heartbeat: a role that works, or waits for another, sends one every `report_interval_s`. A hang in
    user code or a stopped process sends none. update_s: seconds of the learner's update, None before the first one.
    Each restart of an optional role doubles the patience, for what compiles long with the lowest priority.
    """
    if role.unwanted:
        return []
    if role.state != "ready":
        if not role.row.optional and not role.named and now - role.started_at > _SLOW_START_S:
            role.named = True
            slow = f"{role.label} is not ready after {_SLOW_START_S:.0f} s, it still starts ({log})"
            return [Say("WARNING", slow)]
        return []
    quiet = now - role.heard_at
    limit = max(_QUIET_REPORTS * app.report_interval_s, _QUIET_UPDATES * (update_s or 0.0))
    if update_s is None and role.row.trains:
        limit = max(limit, app.start_timeout_s)  # the first update compiles, and nobody knows how long one takes
    if role.row.optional:
        limit = max(limit, _OPTIONAL_S) * 2 ** min(10, len(role.restarts))
    if quiet > _KILLED_AFTER * limit:
        role.cause = role.cause or f"silent for {quiet:.0f} s, so it was killed"
        return [Kill(role)]
    if quiet > limit and not role.named:
        role.named = True
        silent = (
            f"{role.label} has been silent for {quiet:.0f} s: it hangs, is stopped, or is very slow; its stacks go to "
            f"its log ({log}), and after {_KILLED_AFTER * limit:.0f} s it is started again"
        )
        return [Say("WARNING", silent), Stacks(role)]
    return []


def _heed_limits(run: RunState, now: float) -> None:
    """End a run that has reached a limit, or in which nothing moves any more as some workflows have ended."""
    if any(role.state == "finished" for role in run.workers) and run.plan.max_version_lag is not None:
        if run.updates != run.updates_then[0]:
            run.updates_then = run.updates, now
        elif now - run.updates_then[1] > STILL_S:  # a batch takes a round of each worker
            waits = "some workflows have ended, and the others wait for them, as max_version_lag is not free"
            stop(run, waits, 0, now)
    app, env_steps = run.app, run.board.env_steps
    limit = app.limit_reached(env_steps, run.board.training_s)
    if limit and run.stopping_since is None:
        stop(run, limit, 0, now)
        if app.eval_every_steps and 0 < app.max_env_steps <= env_steps:
            run.last_model = "awaited"


def _drive_stop(run: RunState, now: float) -> list[Action]:
    """Ask the next group of roles to stop; kill roles that do not stop in time."""
    actions: list[Action] = []
    # roles that ask stop first, so that the last chunks and the last checkpoint find living servers
    for answers in (False, True):
        alive = [role for role in run.roles.values() if role.row.answers == answers and role.process is not None]
        for role in alive:
            judges = _judge_last(run, role, now) if role.row.optional else None
            if judges is not None:
                actions += judges
                continue
            actions.append(Tell(role, "stop"))
            role.asked_at = role.asked_at or now
            limit = patience_s(run, role)
            if now - role.asked_at > limit and not role.given_up:
                role.given_up = True
                level = "INFO" if role.row.optional else "WARNING"
                actions.append(Say(level, f"{role.label} did not stop in {limit:.0f} s and is killed"))
            if role.given_up or role.state == "starting":
                actions.append(Kill(role))
        if alive:
            break
    return actions


def _judge_last(run: RunState, evaluator: Role, now: float) -> list[Action] | None:
    """Have the evaluator judge the model with which the run has reached its last env step; None when that is over, or
    need not be."""
    if not run.last_model or run.wishes.first or run.exit_code or evaluator.unwanted:
        return None
    actions: list[Action] = []
    if run.last_model == "awaited" and run.learner.process is None:
        run.last_model = "" if run.is_judged() else "saved"
        if run.last_model:
            judges = f"the last model is saved, {evaluator.label} judges it; Ctrl+C ends that"
            actions.append(Say("INFO", judges))
    if run.last_model == "saved" and evaluator.next and now - run.last_asked_at > _ASKED_AGAIN_S:
        run.last_asked_at = now  # again, as a connection that broke may have lost it
        actions.append(Tell(evaluator, "judge_last"))
    actions += heed_silence(evaluator, run.app, None, run.log_of(evaluator), now)
    starts = evaluator.state != "ready" and now - evaluator.started_at < _OPTIONAL_S
    return actions if run.last_model and (starts or evaluator.state == "ready") else None


def patience_s(run: RunState, role: Role) -> float:
    """Seconds that a role may take to stop. The learner stops after its update, which may take long. An optional role
    has nothing to save, and may be in the middle of an evaluation, or compile."""
    app = run.app
    if role.row.optional:
        return min(_OPTIONAL_STOPS_S, app.stop_timeout_s)
    if not role.row.trains or role.state != "ready":
        return app.stop_timeout_s
    update_s = run.update_s(role)
    # the first update compiles, and nobody knows how long one takes
    return app.stop_timeout_s + 3 * (app.start_timeout_s if update_s is None else update_s)


def close(run: RunState) -> list[Action]:
    """All processes have ended."""
    if run.cause == ENDED and not run.updates:
        run.cause, run.exit_code = f"{ENDED} before an update was made; a workflow {ENDLESS[3:]}", 1
    if run.last_model == "saved" and not run.is_judged():
        return [Say("WARNING", "the last model has not been judged")]
    judges = ("evaluator", 0) in run.roles and run.board.training_s > _OPTIONAL_S
    if judges and run.board.evaluation is None:
        return [Say("WARNING", "no model was evaluated: the run was too short for it, or the cores too full")]
    return []
