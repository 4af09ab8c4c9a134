"""The whole pipeline in one process: the same workflow, buffer rules and trainer, connected by plain calls.

Called by `realm start` when `wrapper_type` is local, and by `train_test.py`. No sockets, no reverb, no TensorFlow.
"""

from __future__ import annotations

import time
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psutil
from loguru import logger

from realm.apart import let_learn
from realm.contract import Arrays, Report, Version, WorkflowContext
from realm.contract.versions import seed_of
from realm.data.buffer import NO_ROOM, ReplayBuffer, make_replay_buffer
from realm.errors import LEFT_DEBUGGER, RunError, Stopped, UserError, one_line, place_of_function
from realm.files import from_here
from realm.launch.hooks import Hooks
from realm.launch.signals import Wishes, called, listening
from realm.launch.start import Prepared
from realm.learn.checkpoint import generators, set_generators
from realm.learn.judge import Judge
from realm.learn.results import is_judged
from realm.learn.trainer import Trainer, begin
from realm.policy.local_policy import LocalPolicy
from realm.rollout.rounds import ENDLESS, close, rounds, worker_envs
from realm.user import enter, hyper_of, load_workflow, make_agent
from realm.watch.board import Board
from realm.watch.curves import Curves
from realm.watch.display import STOPS, display
from realm.watch.meters import Meters
from realm.watch.progress import Every, Stillness
from realm.watch.resources import Resources
from realm.watch.status import Status
from realm.watch.summary import warn_of_faults

_SHOW_EVERY_S = 0.2


def run(prepared: Prepared) -> OneProcess:
    """Train until a limit or a signal; returns what has run."""
    title = str(from_here(prepared.run_dir))
    record = partial(_record_end, prepared)
    with _recorded(prepared), display(title, STOPS, prepared.config.app.level) as show, listening(record) as wishes:
        one = None
        try:
            with (one := OneProcess(prepared, show, wishes)):
                idle = False
                with suppress(Stopped):
                    for items in one.rounds():
                        one.add(items)
                    idle = not one.trained.totals["updates"]
                one.finish(idle)
        finally:
            if one is None or not one.trained.totals["updates"]:
                prepared.put_back_config()
        prepared.run_file.cause = one.cause
        prepared.run_file.note_score(one.status("stopped"))
    warn_of_faults(one.board)
    logger.info("the run has ended: {}", one.cause)
    return one


class OneProcess:
    """A worker, a buffer and a trainer, connected by plain calls; its methods raise Stopped where the run ends."""

    def __init__(self, prepared: Prepared, show: Callable[[Status], None], wishes: Wishes) -> None:
        config, plan, spec = prepared.config, prepared.plan, prepared.spec
        app, epoch = config.app, prepared.run_file.epoch
        self.prepared, self._show, self._wishes = prepared, show, wishes
        self.board, self.trained = Board(), Meters()
        seed = seed_of(app.seed, 0, 1, epoch)  # a resumed run plays other episodes than its first session
        self._hooks = Hooks(app.algo)
        enter(config, "local", prepared.run_dir)
        self._played = Meters()
        self._envs = worker_envs(config, plan, spec, seed, self._played.count)
        kept = prepared.run_dir / "replay" if app.save_replay else None
        self._buffer = make_replay_buffer(plan, spec, "local", seed, kept)
        agent = make_agent(config, spec, plan.device, app.seed)
        self.trainer = begin(agent, spec, app, prepared.run_dir, epoch, self.trained)
        prepared.run_file.state = "running"
        prepared.run_file.beginning.append(self.trainer.origin)
        prepared.run_file.write_or_warn(prepared.run_dir)
        self._policy = LocalPolicy(agent, spec, plan.envs_per_worker, self._newest, self._played.count)
        self._context = WorkflowContext(
            spec, hyper_of(config), seed, 0, 1, self._played, self._tick, self.add, self._save, self._update,
            env_steps=lambda: self.board.env_steps, evaluation=lambda: self.board.evaluation,
        )  # fmt: skip
        self._resources = Resources(prepared.run_dir)
        self._curves = Curves(prepared.run_dir, config, self._hooks.tell)
        self._curves.begin(self.board, self.trainer.env_steps)
        self._limit = ""  # which one has ended the run
        self._shown, self._stillness = Every(_SHOW_EVERY_S), Stillness()
        self._judge: Judge | None = None  # between two updates, where evaluations go by env steps
        if app.eval_every_steps:
            self._judge = Judge(config.evaluated(), agent, spec, prepared.run_dir, self._heed_end)

    def rounds(self) -> Iterator[Arrays]:
        """What the workflow yields, until it ends."""
        self.board.trains_since = time.monotonic()
        whole = self.prepared.plan.max_version_lag is not None
        return rounds(load_workflow(self.prepared.config.app.algo), self._envs, self._policy, self._context, whole)

    def finish(self, idle: bool) -> None:
        """Save, not after an error: a resume must not get half-updated weights. Then evaluate the model with which the
        run has reached its last env step, unless that has just been done.

        idle: the workflow has ended by itself before an update was made, which is an error.
        """
        self.trainer.save_last()
        self._buffer.close()
        if idle:
            place = place_of_function(load_workflow(self.prepared.config.app.algo))
            raise RunError(f"{place}: workflow ended before an update was made; {ENDLESS}")
        most = self.prepared.config.app.max_env_steps
        if self._judge and 0 < most <= self.board.env_steps and not is_judged(self.prepared.run_dir):
            with suppress(Stopped):
                self._evaluate(self._judge)

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _report(self.board, self.trainer, self._played, self.trained, self._buffer)
        self._curves.write(self.board)
        self._curves.close()
        close(self._envs)
        if self._judge:
            self._judge.close()
        reason = self.cause if error is None else one_line(error)
        self._hooks.end(reason, self.prepared.config.app.stop_timeout_s, self._wishes)

    @property
    def cause(self) -> str:
        """Why the run has ended."""
        signal = called(self._wishes.first) if self._wishes.first else ""
        return self._limit or signal or "the workflow ended by itself"

    def _newest(self) -> tuple[Version, int, int]:
        """What acts: each batch is trained on at once, so these are always the newest weights."""
        self._tick()  # a workflow that never yields must be seen, and ended, too
        return self.trainer.version, self.trainer.env_steps + self._buffer.new_env_steps, self._buffer.size

    def add(self, items: Arrays) -> None:
        """Put a round into the buffer, and train as often as the buffer lets."""
        plan, trainer, buffer = self.prepared.plan, self.trainer, self._buffer
        self._begin()
        waits = buffer.add(items) == NO_ROOM  # a large round goes in by parts, between updates
        while (drawn := buffer.draw(plan.batch, trainer.version)) is not None:
            priorities = trainer.update(*drawn)
            if priorities is not None:
                buffer.storage.update_priorities(drawn[1].key, priorities)
            waits = waits and buffer.add(items) == NO_ROOM
            if plan.free_running and not waits:
                break  # no ratio: one update for each round, or part of one
        if waits:
            count = len(items["worker"])
            raise RuntimeError(f"no room for a round of {count} samples: the buffer holds {buffer.size}")
        self._stillness.moved()
        self._tick()

    def _update(self, items: Any, info: Any) -> None:
        """Train on these items at once, past the buffer."""
        self._begin()
        self._played.count("env_steps", info.new_env_steps)
        self.trainer.update(items, info)
        self._stillness.moved()
        self._tick()

    def _begin(self) -> None:
        if self._judge and self._judge.is_due(self.trainer.env_steps):
            self._evaluate(self._judge)
        let_learn()

    def _tick(self) -> None:
        """Show the run and write its curves if it is time."""
        app, board, trainer = self.prepared.config.app, self.board, self.trainer
        self._played.totals["actions"] = self._policy.actions
        if self._shown.due():
            _report(board, trainer, self._played, self.trained, self._buffer)
            self._show(self.status("running"))
            # nobody here could wait for memory
            self._resources.look("the run", {})
        self._curves.write_due(board)
        if still_s := self._stillness.due(time.monotonic()):
            actions, played = self._policy.actions, int(self._played.totals["env_steps"])
            logger.warning(
                "nothing has moved for {:.0f} s: the workflow has yielded no round ({:,} actions predicted and {:,} "
                "env steps yielded so far)", still_s, actions, played,
            )  # fmt: skip
        board.count(trainer.env_steps, self._buffer.new_env_steps)
        reached = app.limit_reached(board.env_steps, board.training_s)
        self._limit = reached or self._resources.gone or self._hooks.reason
        if self._limit or self._wishes.first:
            raise Stopped

    def status(self, state: str) -> Status:
        """The run at this moment."""
        app, capacity = self.prepared.config.app, self.prepared.plan.capacity if _is_used(self._buffer) else 0
        return self.board.status(state, capacity, app.max_env_steps, app.max_seconds)

    def _evaluate(self, judge: Judge) -> None:
        before = generators()  # an environment may draw from them, and seed them at a reset
        try:
            result = judge.judge(self.trainer.version, self.trainer.env_steps, self.trainer.memory_size)
        except (UserError, RunError) as error:  # as in a cluster, whose evaluator then ends alone
            logger.error("evaluation ends: {}; training goes on without it", error)
            judge.close()
            self._judge = None
            return
        finally:
            set_generators(before)
        self._curves.take(self.board, result, self.prepared.run_file.epoch)

    def _heed_end(self) -> None:
        """End an evaluation, too, when somebody ends the run or its time is over."""
        time_is_over = self.prepared.config.app.limit_reached(0, self.board.training_s)
        self._limit = self._limit or time_is_over
        if self._wishes.first or time_is_over:
            raise Stopped

    def _save(self) -> None:
        """Keep the model for the user."""
        app = self.prepared.config.app
        self.trainer.save_for_user(self.prepared.run_dir / "user_ckpt", app.user_save_mode_max_count)


def _report(board: Board, trainer: Trainer, played: Meters, trained: Meters, buffer: ReplayBuffer) -> None:
    """Give the board the same reports that the roles of a cluster send."""
    board.take(Report("aisrv", 0, 0, *played.snapshot()), 1)
    board.take(Report("learner", 0, trainer.env_steps, *trained.snapshot()), 1)
    if _is_used(buffer):
        board.take(Report("buffer", 0, 0, buffer.totals(), {}), 1)


def _is_used(buffer: ReplayBuffer) -> bool:
    """Whether anything has ever been in it: a workflow may train past it (`WorkflowContext.update`)."""
    return buffer.size > 0 or buffer.counters["inserted"] > 0


@contextmanager
def _recorded(prepared: Prepared) -> Iterator[None]:
    """Keep run.json up to date: the epoch, and at the end stopped or failed."""
    run_file = prepared.run_file
    run_file.epoch += 1
    run_file.write_or_warn(prepared.run_dir)
    state = "failed"
    try:
        yield
        state = "stopped"
    except BdbQuit as error:
        run_file.cause = LEFT_DEBUGGER
        raise RunError(LEFT_DEBUGGER) from error
    except Exception as error:
        run_file.cause = one_line(error)
        raise
    finally:
        run_file.state = state
        run_file.write_or_warn(prepared.run_dir)


def _record_end(prepared: Prepared, wishes: Wishes) -> None:
    """Write into run.json that a signal ends the run. Where it ends at once, nobody else could, or could end what the
    environments have started."""
    run_file = prepared.run_file
    if run_file.state in ("stopped", "failed"):
        return  # all is written
    run_file.state = "stopping"
    if wishes.at_once:
        cause = f"{called(wishes.first)}, and again: ended at once, without a last checkpoint"
        run_file.state, run_file.cause = "failed", cause
    run_file.write_or_warn(prepared.run_dir)
    for child in psutil.Process().children(recursive=True) if wishes.at_once else ():
        with suppress(psutil.Error):
            child.kill()
