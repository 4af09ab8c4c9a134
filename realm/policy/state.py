"""The memory of a policy between steps (`Spec.state`): it stays with who asks, so an actor that is killed loses none.

Used by both policies (`policy/local_policy.py`, `wire/predict.py`), by evaluation and by the trial of user code.
"""

from __future__ import annotations

import numpy as np

from realm.contract import Array, Arrays, Fields


class PolicyState:
    """The memory of a policy (`Spec.state`) for environments that are numbered from 0."""

    def __init__(self, fields: Fields, num_envs: int) -> None:
        self._fields = fields
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
        """Remember what `predict` gave for these environments."""
        for name, array in self._arrays.items():
            array[slot] = state[name]
