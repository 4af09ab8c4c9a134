"""The verb `predict` over a line: RemotePolicy asks the actor. User code sees no difference to a LocalPolicy."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from loguru import logger

from realm.contract import Array, Arrays, Prediction, Spec
from realm.errors import RunError
from realm.policy.gate import VersionGate
from realm.policy.local_policy import per_row, reply_fields, request_fields
from realm.policy.state import PolicyState
from realm.wire.codec import WireError
from realm.wire.line import Frame, Head, Layout, Line, LineLost, connect
from realm.wire.sockets import Client

_MOST_FAILED, _PAUSE_S = 20, 0.05  # attempts to open a line, and the pause after each


class RemotePolicy:
    """`predict` at the shared actor: one question per step for all environments of the worker."""

    def __init__(
        self, client: Client, spec: Spec, worker: int, num_envs: int, gate: VersionGate, tick: Callable[[], None],
        timing: Callable[[float], None], count: Callable[[str, float], None] = lambda name, amount: None,
    ) -> None:  # fmt: skip
        """client: asks for a line. tick: called while waiting; raises to give up. timing: gets each answer's delay in
        seconds. count: takes `cleared_memories`."""
        self._client, self._gate, self._tick, self._worker = client, gate, tick, worker
        self._timing = timing
        self._questions, self._answers = Layout(request_fields(spec)), Layout(reply_fields(spec))
        self._slot = np.arange(num_envs)
        self._state = PolicyState(spec.state, num_envs, count)
        self._question = Frame(self._questions, num_envs)
        self._line: Line | None = None
        self._seq = self._failed = 0
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        started = time.perf_counter()
        state = self._state.before(self._slot, first)
        arrays = {
            "first": first,
            "explore": per_row(explore, len(first)),
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
