"""The verb `predict` by a plain call: LocalPolicy asks an agent in this process. User code sees no difference.

Also what a question and its answer must hold, wherever the agent is: the actor and its line check by the same fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from realm.contract import Agent, Array, Arrays, Field, Fields, PredictContext, Prediction, Spec, Version, check_arrays
from realm.errors import ContractError, place_of_function
from realm.policy.state import PolicyState

Refresh = Callable[[], tuple[Version, int, int]]
"""Loads newer weights if there are any, waits where they are too old, and returns the agent's version, its env steps
and the memory's size."""


class LocalPolicy:
    """`predict` by a plain call to an agent in this process.

    refresh: called before each prediction.
    """

    def __init__(
        self, agent: Agent, spec: Spec, num_envs: int, refresh: Refresh,
        count: Callable[[str, float], None] = lambda name, amount: None,
    ) -> None:  # fmt: skip
        """count: takes `cleared_memories`."""
        self.agent, self.refresh = agent, refresh
        self._checked = answer_checker(agent, spec)
        self._slot = np.arange(num_envs)
        self._state = PolicyState(spec.state, num_envs, count)
        self.actions = 0

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        version, env_steps, size = self.refresh()
        state = self._state.before(self._slot, first)
        context = PredictContext(self._slot, first, per_row(explore, len(first)), env_steps, state, size)
        predicted = self.agent.predict(forwards(obs), context)
        self._checked(predicted, len(first))
        self._state.after(self._slot, predicted[2] if len(predicted) == 3 else {})
        self.actions += len(first)
        return Prediction(predicted[0], predicted[1], version, env_steps, state, size)


def per_row(explore: float | Array, rows: int) -> Array:
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


def answer_checker(agent: Agent, spec: Spec) -> Callable[[Any, int], Arrays]:
    """What turns a result of Agent.predict and its number of rows into the arrays of a reply. It checks them, in the
    agent's process, so that its ContractError blames the agent and not the receiver."""
    fields, more = reply_fields(spec), ", and a dict of the memory that Spec.state names" if spec.state else ""
    label = f"{place_of_function(agent.predict)}: the result of Agent.predict"

    def checked(predicted: Any, rows: int) -> Arrays:
        dicts = isinstance(predicted, tuple) and all(isinstance(part, dict) for part in predicted[1:])
        if not (dicts and 2 + bool(more) <= len(predicted) <= 3):
            raise ContractError(f"{label}: must be an array and a dict of arrays{more}")
        action, extra, state = (*predicted, {})[:3]
        answer = {"action": action, **{f"extra.{name}": array for name, array in extra.items()}}
        answer |= {f"state.{name}": array for name, array in state.items()}
        strange = [name for name, array in answer.items() if not isinstance(array, np.ndarray)]
        if strange:
            raise ContractError(f"{label}: {strange[0]} must be a NumPy array, got {type(answer[strange[0]]).__name__}")
        check_arrays(answer, fields, (rows,), label)
        return answer

    return checked


def forwards(obs: Arrays) -> Arrays:
    """These observations for torch, which takes no array that runs backwards, as a mirrored one does."""
    return {name: np.ascontiguousarray(x) if min(x.strides, default=0) < 0 else x for name, x in obs.items()}
