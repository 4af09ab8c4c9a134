"""The verb `predict`: observations to actions, by a call or over a socket. User code sees no difference.

LocalPolicy     calls an agent in this process
RemotePolicy    asks the actor over a line
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from loguru import logger

from realm.chunk import PolicyState
from realm.contract import (
    Agent,
    Array,
    Arrays,
    Field,
    Fields,
    PredictContext,
    Prediction,
    Spec,
    Version,
    check_arrays,
)
from realm.data.gate import VersionGate
from realm.errors import ContractError, RunError
from realm.wire.codec import WireError
from realm.wire.line import Frame, Head, Layout, Line, LineLost, connect
from realm.wire.sockets import Client

_MOST_FAILED, _PAUSE_S = 20, 0.05  # attempts to open a line, and the pause after each

Refresh = Callable[[], tuple[Version, int, int]]
"""Loads newer weights if there are any, waits for the gate's minimum, and returns the agent's version, its env steps
and the memory's size."""


class LocalPolicy:
    """`predict` by a plain call to an agent in this process.

    refresh: called before each prediction.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        num_envs: int,
        gate: VersionGate,
        refresh: Refresh,
    ) -> None:
        self.agent, self._gate, self.refresh = agent, gate, refresh
        self._fields = reply_fields(spec)
        self._slot = np.arange(num_envs)
        self._state = PolicyState(spec.state, num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        version, env_steps, size = self.refresh()
        self._gate.see(version)
        state = self._state.before(self._slot, first)
        context = PredictContext(self._slot, first, _per_row(explore, len(first)), env_steps, state, size)
        # torch takes no array that runs backwards, as a mirrored observation does
        obs = {name: np.ascontiguousarray(x) if min(x.strides, default=0) < 0 else x for name, x in obs.items()}
        predicted = self.agent.predict(obs, context)
        checked_answer(predicted, self._fields, len(first))
        self._state.after(self._slot, predicted[2] if len(predicted) == 3 else {})
        self.actions += len(first)
        return Prediction(predicted[0], predicted[1], version, env_steps, state, size)


class RemotePolicy:
    """`predict` at the shared actor: one question per step for all environments of the worker."""

    def __init__(
        self,
        client: Client,
        spec: Spec,
        worker: int,
        num_envs: int,
        gate: VersionGate,
        tick: Callable[[], None],
        timing: Callable[[float], None],
    ) -> None:
        """client: asks for a line. tick: called while waiting; raises to give up. timing: gets each answer's delay in
        seconds."""
        self._client, self._gate, self._tick, self._worker = client, gate, tick, worker
        self._timing = timing
        self._questions, self._answers = Layout(request_fields(spec)), Layout(reply_fields(spec))
        self._slot = np.arange(num_envs)
        self._state = PolicyState(spec.state, num_envs)
        self._question = Frame(self._questions, num_envs)
        self._line: Line | None = None
        self._seq = self._failed = 0
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        started = time.perf_counter()
        state = self._state.before(self._slot, first)
        arrays = {
            "first": first,
            "explore": _per_row(explore, len(first)),
            **{f"obs.{name}": array for name, array in obs.items()},
            **{f"state.{name}": array for name, array in state.items()},
        }
        if len(first) != self._question.rows:
            self._question = Frame(self._questions, len(first))
        self._question.put(arrays, "the workflow's arguments of predict")
        while (answer := self._ask()) is None:
            pass
        head, frame = answer
        self.actions += len(first)
        self._timing(time.perf_counter() - started)
        self._gate.see(head.version)
        self._state.after(self._slot, frame.group("state"))
        extra = {name: array.copy() for name, array in frame.group("extra").items()}  # the next answer overwrites them
        return Prediction(frame.arrays["action"].copy(), extra, head.version, head.env_steps, state, head.memory_size)

    def _ask(self) -> tuple[Head, Frame] | None:
        """The answer; None to ask again: a refund has changed the minimum version meanwhile, or the line was lost."""
        minimum, question = self._gate.minimum(), self._question
        self._seq += 1
        question.address(self._seq, minimum)
        try:
            if self._line is None:
                self._line = self._opened()
            self._line.send(question)
            while True:
                answer = self._line.receive()
                if answer is None:
                    self._tick()
                    self._line.flush()
                    if self._gate.minimum() != minimum and not self._line.unsent:
                        return None
                elif answer[0].seq == self._seq:
                    if answer[0].rows != question.rows:
                        raise WireError(f"the actor's reply: {answer[0].rows} rows; must be {question.rows}")
                    return answer
        except LineLost as error:
            logger.info("the line to the actor is lost: {}", error)
        except WireError as error:
            self._client.traffic.count_bad(str(error))
        self._client.traffic.resent += 1
        if self._line is not None:
            self._line.close()
            self._line = None
        return None

    def _opened(self) -> Line:
        """A new line, once the actor is there. Raises LineLost, or RunError where that happens again and again."""
        client = self._client
        invitation = client.wait(client.ask("line", {"worker": self._worker}), self._tick)
        try:
            line = connect(invitation, self._answers, client.codec.max_bytes, client.traffic)
        except LineLost as error:
            self._failed += 1
            if self._failed == _MOST_FAILED:
                raise RunError(
                    f"the actor gives lines, but {error}; worker and actor must be on one machine"
                ) from error
            time.sleep(_PAUSE_S)  # an actor that died a moment ago
            raise
        self._failed = 0
        return line


def _per_row(explore: float | Array, rows: int) -> Array:
    """One number, or one for each row, as f32 [rows]."""
    if isinstance(explore, np.ndarray) and explore.shape == (rows,):
        return explore.astype(np.float32)
    return np.full(rows, explore, np.float32)


def request_fields(spec: Spec) -> Fields:
    """Name -> Field of a question, without its leading E."""
    return {
        "first": Field((), "bool"),
        "explore": Field((), "float32"),
        **{f"obs.{name}": field for name, field in spec.obs.items()},
        **{f"state.{name}": field for name, field in spec.state.items()},
    }


def reply_fields(spec: Spec) -> Fields:
    """Name -> Field of the actor's reply, without its leading E."""
    return {
        "action": spec.action.field,
        **{f"extra.{name}": field for name, field in spec.extra.items()},
        **{f"state.{name}": field for name, field in spec.state.items()},
    }


def checked_answer(predicted: Any, fields: Fields, rows: int) -> Arrays:
    """Turn the result of Agent.predict into the arrays of a reply. Checks it here, in the agent's process, so that the
    ContractError blames the agent and not the receiver."""
    label = "the result of Agent.predict"
    parts = 3 if any(name.startswith("state.") for name in fields) else 2
    dicts = isinstance(predicted, tuple) and all(isinstance(part, dict) for part in predicted[1:])
    if not (dicts and len(predicted) == parts):
        more = ", and a dict of the memory that Spec.state names" if parts == 3 else ""
        raise ContractError(f"{label}: must be an array and a dict of arrays{more}")
    answer = {"action": predicted[0], **{f"extra.{name}": array for name, array in predicted[1].items()}}
    answer |= {f"state.{name}": array for name, array in (predicted[2] if parts == 3 else {}).items()}
    strange = [name for name, array in answer.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ContractError(f"{label}: {strange[0]} must be a NumPy array, got {type(answer[strange[0]]).__name__}")
    check_arrays(answer, fields, (rows,), label)
    return answer
