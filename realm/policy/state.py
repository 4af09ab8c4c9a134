"""The memory of a policy between steps (`Spec.state`): it stays with who asks, so an actor that is killed loses none.

Used by both policies (`policy/local_policy.py`, `wire/predict.py`), by evaluation and by the trial of user code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from loguru import logger

from realm.contract import Array, Arrays, Fields


class PolicyState:
    """The memory of a policy (`Spec.state`) for environments that are numbered from 0."""

    def __init__(
        self, fields: Fields, num_envs: int, count: Callable[[str, float], None] = lambda name, amount: None
    ) -> None:
        """count: takes `cleared_memories`."""
        self._count, self._warned = count, False
        self._arrays = {name: np.zeros((num_envs, *field.shape), field.dtype) for name, field in fields.items()}

    def before(self, slot: Array, first: Array) -> Arrays:
        """The memory of these environments i64 [N], zeros where first bool [N]: name -> [N, ...], a copy."""
        state = {}
        for name, array in self._arrays.items():
            if len(slot) and slot.max() >= len(array):  # an evaluation may have any number of environments
                more = np.zeros((int(slot.max()) + 1 - len(array), *array.shape[1:]), array.dtype)
                self._arrays[name] = array = np.concatenate([array, more])
            state[name] = array[slot]
            state[name][first] = 0
        return state

    def after(self, slot: Array, state: Arrays) -> None:
        """Remember what `predict` gave for these environments. A memory with NaN or infinity, which would stay for the
        rest of an episode, is cleared."""
        spoiled = np.zeros(len(slot), np.bool_)
        for name, array in self._arrays.items():
            array[slot] = state[name]
            if array.dtype.kind == "f" and not np.isfinite(state[name].sum()):  # the sum alone costs little
                spoiled |= ~np.isfinite(state[name].reshape(len(slot), -1)).all(1)
        if spoiled.any():
            self._count("cleared_memories", int(spoiled.sum()))
            if not self._warned:
                logger.warning("the memory that Agent.predict gave has NaN or infinity, and is cleared where it has")
            self._warned = True
            for array in self._arrays.values():
                array[slot[spoiled]] = 0
