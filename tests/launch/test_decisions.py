"""What the supervisor decides when something goes wrong (`launch/decisions.py`): no process, no socket, no clock."""

from __future__ import annotations

import errno
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm.config.keys import AppConfig
from realm.contract import Report, Version
from realm.errors import ConfigError
from realm.launch import decisions
from realm.launch.decisions import Action, End, Kill, Role, RunState, Say, Spawn, Stacks, Tell
from realm.launch.signals import Wishes
from realm.learn.results import Saved
from realm.roles.table import ROLES
from realm.watch.board import Board

LIVES: Any = SimpleNamespace(pid=5)  # a process that decisions never touch
ALL = [("aisrv", 0), *((name, 0) for name in ROLES if name != "aisrv"), ("aisrv", 1)]
START = 1000.0


def a_run(lag: int | None = None, saved: int | None = None, judged: bool = False, **settings: Any) -> RunState:
    """A run at START in which all roles are ready."""
    app = AppConfig(**{"restart_budget": 3, "report_interval_s": 1.0, **settings})
    plan: Any = SimpleNamespace(max_version_lag=lag)
    newest = Saved(Path(), Version(1, saved), 0) if saved is not None else None
    roles = {key: Role(*key, process=LIVES, incarnation=1, state="ready", heard_at=START) for key in ALL}
    return RunState(app, plan, Board(), Path("run"), roles, Wishes(), lambda: newest, lambda: judged, START)


def trained(run: RunState, updates: int, update_s: float = 0.1, incarnation: int = 1) -> None:
    """The learner reports."""
    totals = {"updates": float(updates), "version_update": float(updates)}
    run.board.take(Report("learner", 0, updates, totals, {"update_s": [update_s, 1.0]}), incarnation)


def asked(run: RunState, twice: bool = False) -> None:
    """A signal has come, a while ago."""
    run.wishes.first, run.wishes.at_once = signal.SIGTERM, twice


def dies(run: RunState, name: str, code: int, now: float, index: int = 0) -> list[Action]:
    role = run.roles[name, index]
    role.process = None
    return decisions.ended(run, role, code, now)


def turns(run: RunState, until: float, start: float = START) -> list[Action]:
    """What is decided in the turns of a second each, the repeated words to stop left out."""
    now, found = start, list[Action]()
    while now < until:
        now += 1.0
        found += decisions.turn(run, now)
    return found


def told(actions: list[Action], kind: str) -> set[str]:
    return {action.role.label for action in actions if isinstance(action, Tell) and action.kind == kind}


def said(actions: list[Action], level: str = "WARNING") -> list[str]:
    return [action.text for action in actions if isinstance(action, Say) and action.level == level]


# --- F1 to F4: a role is killed


@pytest.mark.parametrize("name", ["aisrv", "actor", "model_pool", "learner", "buffer", "evaluator"])
def test_a_role_that_is_killed_is_started_again_at_once(name: str) -> None:
    run = a_run()
    role = run.roles[name, 0]
    actions = dies(run, name, -signal.SIGKILL, START)
    assert said(actions) == [f"{name}-0 ended: killed by SIGKILL; starting it again"]
    assert actions[-1] == Spawn(role)
    role.begin(START)
    assert (role.incarnation, role.state, run.stopping_since) == (2, "starting", None)
    workers = {"aisrv-0", "aisrv-1"} if name == "buffer" else set()  # they play again what it had
    assert told(decisions.started(run, role), "buffer_restarted") == workers


def test_a_role_waits_longer_before_each_restart() -> None:
    run, waits = a_run(restart_budget=9), []
    actor = run.roles["actor", 0]
    for _ in range(8):
        again = Spawn(actor) in dies(run, "actor", -signal.SIGKILL, START)
        waits.append(actor.restart_at - START)
        assert again == (waits[-1] == 0)
        actor.state = "ready"
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
    actor.state, run.turned_at = "waiting", actor.restart_at
    assert decisions.turn(run, actor.restart_at - 0.1) == []
    assert decisions.turn(run, actor.restart_at) == [Spawn(actor)]


def test_restarts_are_forgotten_only_after_progress() -> None:
    role = Role("aisrv", 0)
    for count in range(1, 8):
        assert role.count_restart(5.0, 0.0, START + count) == count  # the learner stands still
    assert role.count_restart(6.0, 300.0, START + 9) == 8  # too early
    assert role.count_restart(7.0, 0.5, START + 10) == 1


# --- F23: a role fails again and again; F18 and errors of users: it would not help


def test_a_role_that_fails_again_and_again_ends_the_run_with_its_cause() -> None:
    run = a_run()
    for count in range(4):
        assert run.stopping_since is None
        role = run.roles["aisrv", 0]
        role.cause, role.trace = "KeyError: 'x' (agent.py:5)", "the last lines"
        dies(run, "aisrv", 1, START + count)
    cause = "aisrv-0 failed 4 times in 300 s: KeyError: 'x' (agent.py:5) (see run/log/aisrv-0.log)"
    assert (run.cause, run.exit_code, run.trace) == (cause, 1, "the last lines")


@pytest.mark.parametrize(("code", "exit_code"), [(2, 2), (3, 3), (0, 1)])
def test_an_error_that_no_restart_helps_ends_the_run(code: int, exit_code: int) -> None:
    run = a_run()
    actions = dies(run, "learner", code, START)
    assert (actions, run.exit_code, run.stopping_since) == ([], exit_code, START)


def test_a_run_is_ready_without_those_that_no_host_has_a_place_for() -> None:
    run = a_run()
    pool = run.roles["model_pool", 1] = Role("model_pool", 1)
    assert not run.is_ready()
    pool.at = None
    assert run.is_ready()


@pytest.mark.parametrize("code", [1, 2])
def test_training_goes_on_without_an_evaluator(code: int) -> None:
    run = a_run(restart_budget=0)
    actions = dies(run, "evaluator", code, START)
    assert said(actions, "ERROR")[0].endswith("; training goes on without it")
    assert (run.stopping_since, turns(run, START + 3), run.is_ready()) == (None, [], True)


# --- F14, F15, F36, F37: the run is stopped


def test_who_asks_stops_before_who_answers() -> None:
    run = a_run()
    asked(run)
    first = {"aisrv-0", "aisrv-1", "learner-0", "evaluator-0"}
    assert told(decisions.turn(run, START + 1), "stop") == first
    for role in run.roles.values():
        if role.label in first - {"learner-0"}:
            role.process = None
    assert told(decisions.turn(run, START + 2), "stop") == {"learner-0"}  # it saves
    run.learner.process = None
    assert told(decisions.turn(run, START + 3), "stop") == {"actor-0", "model_pool-0", "buffer-0"}
    for role in run.roles.values():
        role.process = None
    assert (run.is_over(), run.cause, run.exit_code) == (True, "SIGTERM received", 0)
    assert decisions.close(run) == []
    run.board.trains_since = time.monotonic() - 61
    assert said(decisions.close(run), "WARNING")[0].startswith("no model was evaluated")


def test_a_signal_that_came_first_keeps_a_role_from_being_started_again() -> None:
    run = a_run()
    run.wishes.hear(signal.SIGTERM)  # a moment ago: a system that ends a job signals all its processes
    assert dies(run, "aisrv", -signal.SIGTERM, START) == []
    assert (run.cause, run.exit_code) == ("SIGTERM received", 0)


def test_a_signal_that_a_role_heard_ends_the_run() -> None:
    run = a_run()
    decisions.signalled(run, run.roles["actor", 0], signal.SIGUSR2, START)
    assert (run.cause, run.exit_code, run.stopping_since) == ("SIGUSR2 received by actor-0", 0, START)


def test_a_second_wish_ends_all_at_once() -> None:
    run = a_run()
    asked(run)
    decisions.turn(run, START + 1)
    asked(run, twice=True)
    assert decisions.turn(run, START + 2) == [End()]
    assert run.cause == "SIGTERM received, and again: ended at once, without a last checkpoint"


def test_a_role_that_does_not_stop_is_named_once_and_killed() -> None:
    run = a_run(stop_timeout_s=10.0)
    asked(run)
    for role in run.roles.values():
        role.process = LIVES if role.name == "aisrv" else None
    actions = turns(run, START + 20)
    assert said(actions) == [f"aisrv-{index} did not stop in 10 s and is killed" for index in range(2)]
    assert actions.count(Kill(run.roles["aisrv", 0])) > 1  # until it is gone


def test_a_role_that_starts_is_not_waited_for() -> None:
    run = a_run()
    run.roles["aisrv", 0].state = "starting"
    asked(run)
    assert Kill(run.roles["aisrv", 0]) in decisions.turn(run, START + 1)


def test_the_first_update_of_a_learner_is_waited_for_as_a_start_is() -> None:
    run = a_run(stop_timeout_s=10.0, start_timeout_s=120.0)
    assert decisions.patience_s(run, run.learner) == 370
    assert decisions.patience_s(run, run.roles["aisrv", 0]) == 10
    assert decisions.patience_s(run, run.roles["evaluator", 0]) == 2
    trained(run, 1, update_s=20.0)
    assert decisions.patience_s(run, run.learner) == 70
    run.learner.incarnation = 2  # it compiles again
    assert decisions.patience_s(run, run.learner) == 370
    run.learner.state = "bound"
    assert decisions.patience_s(run, run.learner) == 10


# --- F34: what a learner could not save


def test_a_learner_that_fails_while_stopping_makes_the_run_fail() -> None:
    run = a_run()
    asked(run)
    decisions.turn(run, START + 1)
    run.learner.cause = "the last checkpoint could not be written"
    dies(run, "learner", 1, START + 2)
    assert run.exit_code == 1
    assert run.cause == (
        "SIGTERM received; the learner failed while stopping: the last checkpoint could not be written"
    )  # fmt: skip


@pytest.mark.parametrize(("saved", "end"), [(3, "are lost"), (7, "are lost, if it made any: it had told of none")])
def test_a_learner_that_is_killed_while_stopping_says_what_is_lost(saved: int, end: str) -> None:
    run = a_run(saved=saved)
    trained(run, 7)
    asked(run)
    decisions.turn(run, START + 1)
    dies(run, "learner", -signal.SIGKILL, START + 2)
    assert run.cause.endswith(f"killed by SIGKILL: its updates since the last checkpoint {end}")
    assert run.exit_code == 1


def test_a_learner_that_was_not_back_yet_makes_the_run_fail() -> None:
    run = a_run()
    trained(run, 7)
    for now in (START, START + 1):
        dies(run, "learner", -signal.SIGKILL, now)
    assert run.learner.state == "waiting"
    asked(run)
    assert Spawn(run.learner) not in turns(run, START + 10)
    assert (run.exit_code, run.cause.split("; ")[1][:41]) == (1, "the learner had ended and was not back ye")


# --- F20, F28: a role is silent; F44: it has no core; F27: nobody has listened


def test_a_silent_role_is_named_and_then_killed() -> None:
    run = a_run()
    trained(run, 1)
    worker = run.roles["aisrv", 0]
    for role in run.roles.values():
        role.heard_at = START + 1000 * (role is not worker)
    actions = turns(run, START + 95)
    assert [action for action in actions if not isinstance(action, Say)] == [Stacks(worker), *[Kill(worker)] * 5]
    assert len(said(actions)) == 1
    assert said(actions)[0].startswith("aisrv-0 has been silent for 31 s")
    assert said(dies(run, "aisrv", -signal.SIGKILL, START + 95)) == [
        "aisrv-0 ended: silent for 91 s, so it was killed; starting it again"
    ]


def test_a_long_update_is_no_silence() -> None:
    run = a_run(start_timeout_s=120.0)
    run.learner.heard_at = START + 10
    assert turns(run, START + 40)
    assert run.learner.named is False
    trained(run, 1, update_s=60.0)
    assert decisions.heed_silence(run.learner, run.app, run.update_s(run.learner), "", START + 300) == []
    run.learner.heard(START + 301)
    assert not run.learner.named


@pytest.mark.parametrize(
    ("quiet_s", "starved_s", "restarts", "killed"),
    [(200, 0, 0, True), (100, 0, 0, False), (600, 500, 0, False), (700, 500, 0, True), (200, 0, 1, False),
     (400, 0, 1, True)],
)  # fmt: skip
def test_starving_is_not_silence(quiet_s: float, starved_s: float, restarts: int, killed: bool) -> None:
    """What compiles for long has more time at each start."""
    evaluator = Role("evaluator", 0, LIVES, state="ready", named=True, heard_at=START)
    evaluator.restarts.extend([(0.0, 0.0)] * restarts)
    evaluator.starve(starved_s)
    found = decisions.heed_silence(evaluator, AppConfig(), 0.1, "its log", START + quiet_s)
    assert found == ([Kill(evaluator)] if killed else [])


def test_a_time_in_which_the_supervisor_was_frozen_counts_against_nobody() -> None:
    run = a_run(start_timeout_s=20.0)
    run.roles["aisrv", 1].state, run.roles["aisrv", 1].started_at = "bound", START
    assert said(decisions.turn(run, START + 300)) == ["the supervisor itself stood still for 300 s"]
    assert turns(run, START + 310, START + 300) == []
    assert run.stopping_since is None


def test_a_start_that_takes_too_long_names_its_key() -> None:
    run = a_run(start_timeout_s=10.0)
    worker = run.roles["aisrv", 0]
    worker.state, worker.started_at = "bound", START
    turns(run, START + 12)
    assert run.exit_code == 1
    assert run.cause == (
        "aisrv-0 was not ready after 11 s: start_timeout_s = 10 is over; choose a larger one if it only starts slowly "
        "(see run/log/aisrv-0.log)"
    )


# --- F39, F40: the system has no room for a process


def test_a_role_without_room_is_tried_again_each_second() -> None:
    run = a_run(start_timeout_s=20.0)
    role, now = run.roles["actor", 0], START
    role.process, full = None, OSError(errno.EMFILE, "Too many open files")
    warnings = said(decisions.not_started(run, role, full, now))
    assert warnings == ["actor-0 cannot be started: Too many open files; trying it again each second"]
    for _ in range(19):
        now += 1.0
        assert decisions.turn(run, now)[-1] == Spawn(role)
        role.begin(now)
        assert decisions.not_started(run, role, full, now) == []
    decisions.started(run, role)
    assert role.no_room_since == 0.0
    decisions.not_started(run, role, full, now)
    decisions.not_started(run, role, full, now + 21)
    assert run.cause == "actor-0 cannot be started again: [Errno 24] Too many open files"


def test_a_role_that_cannot_be_started_at_first_is_one_sentence() -> None:
    run = a_run()
    with pytest.raises(ConfigError, match=r"actor-0 cannot be started: \[Errno 13\] Permission denied"):
        decisions.not_started(run, run.roles["actor", 0], OSError(errno.EACCES, "Permission denied"), START)


# --- workflows that end, limits, the last model, roles that the user stops


def test_workers_that_wait_for_one_that_has_finished_end_the_run() -> None:
    """A batch of bounded age takes a round of each worker, so none comes any more."""
    run = a_run(lag=1, report_interval_s=1000.0)
    trained(run, 5)
    turns(run, START + 100)
    assert said(dies(run, "aisrv", 0, START + 100), "INFO") == ["aisrv-0: its workflow has ended"]
    turns(run, START + 130, START + 100)
    trained(run, 6)
    turns(run, START + 190, START + 130)
    assert run.stopping_since is None
    turns(run, START + 192, START + 190)
    assert run.exit_code == 0
    assert run.cause.startswith("some workflows have ended")
    free = a_run(lag=None, report_interval_s=1000.0)
    dies(free, "aisrv", 0, START)
    turns(free, START + 300)
    assert free.stopping_since is None


@pytest.mark.parametrize("updates", [0, 3])
def test_a_run_whose_workflows_have_all_ended_has_finished(updates: int) -> None:
    run = a_run()
    trained(run, updates)
    dies(run, "aisrv", 0, START)
    assert run.stopping_since is None
    dies(run, "aisrv", 0, START, index=1)
    decisions.close(run)
    assert run.exit_code == (1 if updates == 0 else 0)


@pytest.mark.parametrize("judged", [False, True])
def test_the_last_model_is_judged_before_the_run_ends(judged: bool) -> None:
    run = a_run(judged=judged, eval_every_steps=10, max_env_steps=5)
    trained(run, 5)
    evaluator = run.roles["evaluator", 0]
    evaluator.next = (b"peer", 1)
    first = decisions.turn(run, START + 1)
    assert (run.cause, run.last_model) == ("max_env_steps = 5 reached", "awaited")
    assert "learner-0" in told(first, "stop")
    assert "evaluator-0" not in told(first, "stop")
    for role in run.roles.values():
        role.process = LIVES if role is evaluator or role.row.answers else None
    actions = decisions.turn(run, START + 2)
    assert told(actions, "judge_last") == (set() if judged else {"evaluator-0"})
    assert told(actions, "stop") == ({"evaluator-0"} if judged else set())
    asked(run)  # somebody does not want to wait
    assert told(decisions.turn(run, START + 3), "stop") == {"evaluator-0"}


def test_a_role_that_the_user_has_stopped_stays_so() -> None:
    run = a_run()
    decisions.unwanted(run, "actor")
    assert told(turns(run, START + 2), "stop") == {"actor-0"}
    assert said(dies(run, "actor", 0, START + 2), "INFO") == ["actor-0 was stopped by the user"]
    assert (run.roles["actor", 0].state, turns(run, START + 4, START + 2)) == ("stopped", [])
    assert run.stopping_since is None


def test_the_folder_of_a_run_is_gone() -> None:
    run = a_run()
    decisions.stop(run, "run: this run's folder was deleted while it ran", 1, START)
    decisions.stop(run, "another cause", 0, START + 1)
    assert (run.cause, run.exit_code) == ("run: this run's folder was deleted while it ran", 1)


# --- hosts


def two_hosts() -> RunState:
    """Worker 1 belongs to host 1, with its pool."""
    run = a_run()
    run.places[0] = "here", 2
    worker, pool = run.roles["aisrv", 1], Role("model_pool", 1, process=LIVES, state="ready", address="tcp://x:1")
    run.roles["model_pool", 1] = pool
    for role in (worker, pool):
        role.home, role.at, role.host = 1, 1, "beta"
    assert decisions.host_came(run, 1, "beta", 1, START) == []
    return run


def test_a_lost_hosts_workers_start_elsewhere_and_come_back() -> None:
    run = two_hosts()
    worker, pool = run.roles["aisrv", 1], run.roles["model_pool", 1]
    assert worker.full_label == "aisrv-1 on beta"
    (said,) = decisions.host_lost(run, 1, "silent for 11 s", START)
    text = "the host beta is lost (silent for 11 s); none of its workers wait for a host, the others start elsewhere"
    assert said == Say("WARNING", text)
    assert (worker.at, worker.process, worker.incarnation) == (0, None, 2)  # the old one is told to stop
    assert (pool.at, pool.address) == (None, "")
    assert Spawn(worker) in decisions.turn(run, START + 1)
    assert Spawn(pool) not in decisions.turn(run, START + 1)
    assert not worker.restarts
    worker.process, worker.state = LIVES, "ready"
    assert decisions.host_came(run, 1, "gamma", 1, START + 2) == [Kill(worker)]
    assert pool.at == 1
    assert dies(run, "aisrv", -9, START + 3, index=1) == [Spawn(worker)]
    assert (worker.at, run.stopping_since) == (1, None)
    assert not worker.restarts


def test_who_finds_no_place_waits_for_a_host() -> None:
    run = two_hosts()
    worker = run.roles["aisrv", 1]
    run.places[0] = "here", 1
    (said,) = decisions.host_lost(run, 1, "SIGTERM received", START)
    assert isinstance(said, Say)
    assert "(SIGTERM received); 1 of its workers wait for a host" in said.text
    assert worker.at is None
    assert not any(isinstance(one, Spawn) for one in turns(run, START + 30))
    assert decisions.host_came(run, 1, "beta", 1, START) == []
    assert Spawn(worker) in decisions.turn(run, START + 31)


def test_a_host_that_is_lost_while_the_run_ends_holds_nothing_up() -> None:
    run = two_hosts()
    decisions.stop(run, "enough", 0, START)
    decisions.host_lost(run, 1, "silent for 11 s", START)
    assert not any(isinstance(one, Spawn) for one in turns(run, START + 30))
    for role in run.roles.values():
        role.process = None
    assert run.is_over()
