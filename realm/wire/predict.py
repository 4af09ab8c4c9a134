"""The verb `predict`: observations to actions, by a call or over a socket. User code sees no difference.

LocalPolicy     calls an agent in this process
RemotePolicy    asks the actor, which reads the question with `parse_request`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from realm.chunk import PolicyState
from realm.contract import (
    Agent,
    Array,
    Arrays,
    Field,
    Fields,
    PredictContext,
    Prediction,
    PredictRequest,
    Spec,
    Version,
    check_arrays,
)
from realm.data.gate import VersionGate
from realm.errors import ContractError
from realm.wire.codec import Message, WireError
from realm.wire.sockets import Client, wait_any

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
        refresh: Callable[[], tuple[Version, int, int]],
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
        """tick: called while waiting; raises to give up. timing: gets each answer's delay in seconds."""
        self._client, self._gate, self._tick, self._worker = client, gate, tick, worker
        self._timing = timing
        self._request_fields, self._reply_fields = request_fields(spec), reply_fields(spec)
        self._slot = np.arange(num_envs)
        self._state = PolicyState(spec.state, num_envs)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        started = time.perf_counter()
        state = self._state.before(self._slot, first)
        arrays = {
            "slot": self._slot if len(first) == len(self._slot) else np.arange(len(first)),
            "first": first,
            "explore": _per_row(explore, len(first)),
            **{f"obs.{name}": array for name, array in obs.items()},
            **{f"state.{name}": array for name, array in state.items()},
        }
        check_arrays(arrays, self._request_fields, (len(first),), "the workflow's arguments of predict")
        reply = None
        while reply is None:
            minimum = self._gate.minimum()
            seq = self._client.ask("predict", {"worker": self._worker, "min_version": list(minimum)}, arrays)
            reply = self._wait(seq, minimum)
        check_arrays(reply.arrays, self._reply_fields, (len(first),), "the actor's reply")
        self.actions += len(first)
        self._timing(time.perf_counter() - started)
        version = reply.version()
        self._gate.see(version)
        extra, after = _group(reply.arrays, "extra."), _group(reply.arrays, "state.")
        self._state.after(self._slot, after)
        env_steps, size = reply.integer("env_steps"), reply.integer("memory_size")
        return Prediction(reply.array("action"), extra, version, env_steps, state, size)

    def _wait(self, seq: int, minimum: Version) -> Message | None:
        """Wait for the answer; None if a refund changed the minimum version meanwhile, so that it must ask again."""
        while (reply := self._client.collect()) is None:
            self._tick()
            if self._gate.minimum() != minimum:
                self._client.forget(seq)
                return None
            wait_any([self._client], 50)
        return reply


def _per_row(explore: float | Array, rows: int) -> Array:
    """One number, or one for each row, as f32 [rows]."""
    if isinstance(explore, np.ndarray) and explore.shape == (rows,):
        return explore.astype(np.float32)
    return np.full(rows, explore, np.float32)


def request_fields(spec: Spec) -> Fields:
    """Name -> Field of a `predict` message, without its leading E."""
    return {
        "slot": Field((), "int64"),
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


def _group(arrays: Arrays, prefix: str) -> Arrays:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


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


def parse_request(message: Message, fields: Fields) -> PredictRequest:
    """Read the request in a `predict` message. Raises WireError or ContractError."""
    first = message.array("first")
    if first.ndim != 1 or len(first) == 0:
        raise WireError(f"predict from {message.sender}: first must be of shape [E] with E at least 1")
    check_arrays(message.arrays, fields, (len(first),), f"predict from {message.sender}")
    worker = message.integer("worker")
    if not 0 <= worker < 1 << 31:  # the actor shifts it into the upper half of a slot
        raise WireError(f"predict from {message.sender}: worker must be from 0 to 2**31 - 1, got {worker}")
    return PredictRequest(
        worker=worker,
        incarnation=message.incarnation,
        seq=message.seq,
        slot=message.array("slot"),
        first=first,
        obs=_group(message.arrays, "obs."),
        explore=message.array("explore"),
        min_version=message.version("min_version"),
        state=_group(message.arrays, "state."),
    )
