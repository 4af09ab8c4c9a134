"""Runs a project's workflow, in a worker or in one process, as the framework asks for a workflow.

The project's function never yields: it calls its agent, and these calls reach the framework through the `Side` below
and `WorkflowContext`. Here an exception of the framework (the run ends, an option is wrong) passes through the
project's code as `_Through`, which `except Exception` does not catch. A bare `except` does: see `_insist`.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from loguru import logger

from realm.contract import NO_VERSION, Array, Arrays, SampleInfo, Version, WorkflowContext
from realm.errors import UserCodeError, UserError, place_of_call, place_of_function
from realm.kaiwu import code
from realm.kaiwu.config import Config
from realm.kaiwu.game import Envs, Game
from realm.kaiwu.methods import Side, act_as, checked_answers, first, inside
from realm.kaiwu.model_files import NEWEST, numbers_in
from realm.kaiwu.process import current
from realm.kaiwu.records import from_array, record_fields, to_array
from realm.kaiwu.surface import ATTACHED, Logger, Monitor

_REFRESH_EVERY_S = 0.25
_TICK_EVERY_S = 0.05
_IDLE_S = 60.0
_MOST_TICK_S = 1.0  # longer between two steps: it stood in a call, a debugger, or a machine that slept
_MOST_BYTES = 64 << 20  # of one message
_MOST_CAUGHT = 10  # exceptions of the framework, one after the other, that the project's code may catch


class _Through(BaseException):
    """Carries an exception of the framework through the project's code."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _insist(error: BaseException) -> None:
    """Have the project's next line raise this, also in a handler that catches all; one around that may catch it."""

    def again(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            raise error
        return again

    frame: FrameType | None = sys._getframe()
    while frame := frame.f_back if frame else None:
        its_own = not frame.f_globals.get("__name__", "").startswith("realm.")
        if its_own and Path(frame.f_code.co_filename).is_relative_to(current().config.root):
            frame.f_trace = again
    sys.settrace(lambda *_: None)


def workflow(envs: Envs, policy: Any, context: WorkflowContext) -> Iterator[Any]:
    """Run the project's workflow to its end; yields nothing."""
    yield from ()
    if context.update is not None:
        _run(envs, policy.agent.user, _LocalSide(policy, context), context)
    elif hasattr(policy, "agent"):
        policy.refresh()  # waits for model 0
        policy.agent.monitor.put = partial(_put, context)  # what `predict` tells it has no learner here
        _run(envs, policy.agent.user, _WorkerSide(policy, context), context)
    else:
        from realm.kaiwu.algorithm.agent import agent_to_look_at  # late: it imports torch

        random.seed(context.seed)
        np.random.seed(context.seed % 2**32)
        _run(envs, agent_to_look_at(), _RemoteSide(policy, context), context)


def _run(envs: Envs, agent: Any, side: _Calls, context: WorkflowContext) -> None:
    config: Config = context.config
    function = code.load_workflow()
    act_as(side)
    game = Game(envs.options, envs.map, context.seed, config.package, side.tick, context.monitor.episodes)
    side.game = game
    # in one process an error reaches Python as it is, for a debugger
    named = contextlib.nullcontext() if context.update is not None else code.running("running the workflow")
    try:
        with named, _exit_is_return():
            function([_Guarded(game)], [agent], Logger(), Monitor(partial(_put, context)))
    except _Through as through:
        raise through.error from None
    side.finish(place_of_function(function))


def _put(context: WorkflowContext, name: str, number: float) -> None:
    context.monitor.put(f"user/{name}", number)


@contextlib.contextmanager
def _exit_is_return() -> Iterator[None]:
    """A workflow that calls exit() has finished, as one that returns."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise


class _Calls(Side):
    """What is the same in all of them: the clock, and what the user should know."""

    def __init__(self, policy: Any, context: WorkflowContext) -> None:
        self.policy, self.context = policy, context
        self.game: Game | None = None
        self.learnt = self.loaded = False
        self._ticked_at = time.monotonic()
        self._played_s = self._idle_s = 0.0  # of stepping, in all and since the last agent.learn
        self._told: set[str] = set()
        self._steps = self._raised = 0

    def tick(self) -> None:
        now = time.monotonic()
        passed_s = min(now - self._ticked_at, _MOST_TICK_S)
        if passed_s < _TICK_EVERY_S:
            return
        self._ticked_at = now
        self._played_s, self._idle_s = self._played_s + passed_s, self._idle_s + passed_s
        self.through(self.context.tick)
        if self._idle_s > _IDLE_S:
            self.tell("the workflow has not called agent.learn for a minute")
        if self._played_s > _IDLE_S and self.learnt and not self.loaded:
            self.tell(
                "the workflow never calls agent.load_model; in the competition it would keep the first weights for "
                "ever (here new weights arrive by themselves)"
            )

    def through(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the framework; what it raises passes through the project's code."""
        try:
            given = function(*args)
            self._raised = 0
            return given
        except Exception as error:
            through = _Through(error)
            self._raised += 1
            if self._raised > _MOST_CAUGHT:
                _insist(through)
            raise through from error

    def tell(self, sentence: str) -> None:
        """Warn once."""
        if sentence not in self._told:
            self._told.add(sentence)
            logger.warning("{}", sentence)

    def finish(self, place: str) -> None:
        """The workflow at `place` has returned."""
        if not self.learnt and not self._raised:
            raise UserCodeError(f"{place}: workflow returned before it called agent.learn once; it must go on")

    def answered(self, function: Callable[..., Any], agent: Any, args: Any, kwargs: Any) -> Any:
        """Call predict or exploit of the agent in this process, and check that there are as many answers."""
        answers = function(agent, *args, **kwargs)
        wanted = len(first(args, kwargs))
        self.policy.actions += wanted
        try:
            return checked_answers(function, answers, wanted)
        except UserCodeError as error:
            raise _Through(error) from None

    def steps(self) -> int:
        """Env steps since the last call."""
        assert self.game is not None
        new, self._steps = self.game.steps - self._steps, self.game.steps
        return new

    def mark_learnt(self) -> None:
        self.learnt, self._idle_s = True, 0.0

    def save_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        self.through(self.context.save)

    def load_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        """id: "latest", "random" or a number; a second argument by position is the id, too."""
        if inside():
            return
        self.loaded = True
        wanted = kwargs.get("id", args[1] if len(args) > 1 else "latest")
        self.through(self.choose, _model_id(wanted))

    def choose(self, number: int) -> None:
        """Predict with this model; NEWEST: with the newest weights from now on."""


class _LocalSide(_Calls):
    """One process: the real agent, and an update at once on just these samples."""

    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return self.answered(function, agent, args, kwargs)

    exploit = predict

    def learn(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        if inside():
            return
        samples = first(args, kwargs)
        self.mark_learnt()
        self.through(self._update, samples)

    def _update(self, samples: Any) -> None:
        count, steps = max(1, len(samples)), self.steps()
        version = self.policy.refresh()[0]
        items: Arrays = {**_origin(self.context, 0, count, version), "samples": samples}
        ones = np.ones(count)
        info = SampleInfo(ones.astype(np.uint64), ones, ones.astype(np.int64), steps, count)
        assert self.context.update is not None
        with self._trained():
            self.context.update(items, info)

    def save_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        with self._trained():
            self.through(self.policy.agent.save_for_user)

    @contextlib.contextmanager
    def _trained(self) -> Iterator[None]:
        """With the weights that are trained, also where another model predicts."""
        chosen = self.policy.agent.model_id
        self.policy.agent.choose_model(NEWEST)
        yield
        self.policy.agent.choose_model(chosen)

    def choose(self, number: int) -> None:
        self.policy.agent.choose_model(number)


class _WorkerSide(_Calls):
    """A worker that predicts with a copy of the agent of its own."""

    def __init__(self, policy: Any, context: WorkflowContext) -> None:
        super().__init__(policy, context)
        self._seq = 0
        self._sent: Array = np.zeros(0)  # the newest samples that the buffer has got
        self._checked = False
        self._refreshed_at = 0.0
        self._chosen = NEWEST
        self.version = NO_VERSION
        self._most = max(1, _MOST_BYTES // (4 * context.config.sample_dim))
        self._definition = code.load_definition()
        _let_senders_wait()

    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.refresh()
        return self.answered(function, agent, args, kwargs)

    exploit = predict

    def refresh(self) -> None:
        """Take the newest weights now and then."""
        now = time.monotonic()
        if now - self._refreshed_at > _REFRESH_EVERY_S and not inside():
            self._refreshed_at = now
            self.tick()
            if self._chosen == NEWEST:
                self.version = self.through(self.policy.refresh)[0]

    def learn(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        if inside():
            return
        samples = list(first(args, kwargs))
        if not samples:
            return
        self.mark_learnt()
        for start in range(0, len(samples), self._most):
            self.through(self._send, [self._definition.encode(one) for one in samples[start : start + self._most]])

    def _send(self, vectors: list[Any]) -> None:
        batch = self._batch(vectors)
        if not self._checked:
            with code.calling("decoding the first sample (NumpyData2SampleData)"):
                self._definition.decode(batch[0].copy())
            self._checked = True
        valid = np.zeros(len(batch), np.int64)
        valid[0] = self.steps()
        self._seq += 1
        items = {**_origin(self.context, self._seq, len(batch), self.version), "valid": valid, "vector": batch}
        self.context.add(items)
        self._sent = batch

    def through(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return super().through(function, *args)
        except _Through as through:
            # the buffer looks for NaN anyway and refuses them; once more here would take as long as sending them
            if not np.isfinite(self._sent).all():
                fault = self._about("gave NaN or infinity; a sample must be finite numbers")
                raise _Through(UserCodeError(fault)) from through.error
            raise

    def _batch(self, vectors: list[Any]) -> Array:
        """f32 [n, sample_dim]"""
        dim = self.context.config.sample_dim
        batch = np.empty((len(vectors), dim), np.float32)
        for i, vector in enumerate(vectors):
            right = isinstance(vector, np.ndarray) and vector.shape == (dim,)
            batch[i] = vector if right else self._checked_vector(vector)
        return batch

    def _checked_vector(self, vector: Any) -> Any:
        """A vector of another form than an array in one row. Raises UserCodeError if it is not `sample_dim` numbers."""
        dim = self.context.config.sample_dim
        if hasattr(vector, "detach"):
            vector = vector.detach().cpu().numpy()
        try:
            array = np.asarray(vector, np.float32)
        except (TypeError, ValueError) as error:
            raise UserCodeError(self._about(f"must give numbers in one row, got {type(vector).__name__}")) from error
        if array.ndim != 1:
            raise UserCodeError(self._about(f"must give numbers in one row, got the shape {list(array.shape)}"))
        if len(array) != dim:
            raise UserCodeError(self._about(f"gave {len(array)} numbers, but Config.SAMPLE_DIM is {dim}"))
        return array

    def _about(self, fault: str) -> str:
        return f"{place_of_function(self._definition.encode)}: SampleData2NumpyData {fault}"

    def choose(self, number: int) -> None:
        self._chosen = number
        self.policy.agent.choose_model(number)
        if number == NEWEST:
            self.version = self.policy.refresh()[0]


class _RemoteSide(_WorkerSide):
    """A worker that asks the shared actor. Its own instance of the agent is there to be looked at."""

    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.through(self._ask, first(args, kwargs), 1.0)

    def exploit(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.through(self._ask, first(args, kwargs), 0.0)

    def _ask(self, records: Any, explore: float) -> list[Any]:
        config: Config = self.context.config
        rows = len(records)
        given = [record_fields(record, "what predict was given") for record in records]
        obs: Arrays = {"row": np.full(rows, -1, np.int64), "model": np.full(rows, self._chosen, np.int64)}
        for name, text in config.obs.items():
            obs[f"obs.{name}"] = np.stack([to_array(one.get(name), text, f"ObsData.{name}") for one in given])
        answer = self.policy.predict(obs, np.zeros(rows, np.bool_), explore)
        self.version = answer.version
        return [
            ATTACHED["ActData"](
                **{name: from_array(answer.extra[f"act.{name}"][i], text) for name, text in config.act.items()}
            )
            for i in range(rows)
        ]

    def choose(self, number: int) -> None:
        self._chosen = number


def _let_senders_wait() -> None:
    """Have ZeroMQ's thread wait for a free core. It copies each message into the kernel, and would otherwise push the
    workflow off its core in the middle of `learn`, the moment it is woken."""
    for task in Path("/proc/self/task").iterdir() if hasattr(os, "SCHED_BATCH") else ():
        with contextlib.suppress(OSError):  # a container may forbid it
            if (task / "comm").read_text().startswith("ZMQbg"):
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))


class _Guarded:
    """The environment that the workflow gets: the game's errors pass through the project's code."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def reset(self, usr_conf: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._game.reset(usr_conf)
        except UserError as error:
            raise _Through(UserCodeError(f"{place_of_call() or 'the workflow'}: env.reset: {error}")) from error

    def step(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._game.step(action)
        except ValueError as error:
            raise _Through(UserCodeError(f"{place_of_call() or 'the workflow'}: env.step: {error}")) from error

    def close(self) -> None:
        self._game.close()


def _origin(context: WorkflowContext, seq: int, count: int, version: Version) -> Arrays:
    numbers = {"worker": context.worker, "incarnation": context.incarnation, "env": 0, "seq": seq}
    arrays = {name: np.full(count, number, np.int64) for name, number in numbers.items()}
    return {**arrays, "version": np.tile(np.array(version, np.int64), (count, 1))}


def _model_id(wanted: Any) -> int:
    """Newest, or a number among the models of the run's folder."""
    if wanted == "latest" or wanted is None:
        return NEWEST
    there = numbers_in(current().restore_dir)
    if wanted == "random":
        return random.choice(there) if there else NEWEST
    try:
        number = int(wanted)
    except (TypeError, ValueError):
        number = NEWEST
    if number not in there:
        names = ", ".join(map(str, there)) or "none yet"
        raise UserCodeError(
            f'load_model(id={wanted!r}): no such model; it must be "latest", "random" or one of: {names}'
        )
    return number
