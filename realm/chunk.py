"""Cuts a vector environment's endless stream of steps into chunks: from `env.step` to the buffer.

A workflow (`diy/train_workflow.py`) calls it once a step and gets a batch of E chunks every T steps.
Only this module decides which rows are valid and where an episode begins (see the drawing in `contract`).
"""

from __future__ import annotations

import numpy as np

from realm.contract import Array, Arrays, Chunk, Prediction, Spec, arrays_to_chunk, chunk_fields
from realm.errors import ContractError

_SETS = 3


class ChunkBuilder:
    """Collects T steps of E environments that reset in gymnasium's NEXT_STEP mode.

    It rotates three sets of arrays: a chunk from `take` stays untouched until the second `take` after it. That is long
    enough for a sender that waits for the buffer's answer to one round before it sends the next.
    """

    def __init__(self, spec: Spec, obs: Arrays, worker: int = 0, incarnation: int = 0) -> None:
        """obs: name -> [E, ...], what `envs.reset` returned."""
        self._length = spec.chunk_length
        self._num_envs = len(next(iter(obs.values())))
        self._sets = [_allocate(spec, self._num_envs, worker, incarnation) for _ in range(_SETS)]
        self._now = self._sets[0]
        self._t = 0
        self._seq = 0
        self._ended = np.zeros(self._num_envs, np.bool_)
        for name, rows in self._now.obs.items():
            rows[:, 0] = obs[name]
        self._now.first[:, 0] = True

    @property
    def first(self) -> Array:
        """bool [E]: whether the current observation, which waits for an action, begins an episode."""
        return self._now.first[:, self._t]

    @property
    def full(self) -> bool:
        return self._t == self._length

    def step(
        self,
        prediction: Prediction,
        reward: Array,
        terminated: Array,
        truncated: Array,
        obs: Arrays,
        added: Arrays | None = None,
    ) -> None:
        """Record one `envs.step`: reward [E], terminated and truncated bool [E], and the next obs name -> [E, ...].

        The step after an episode's end is the reset. Its row is not valid and holds no reward and no end, whatever
        the environment returned. added: what `Spec.step` names, name -> [E, ...].
        """
        now, t = self._now, self._t
        if t == 0:
            for name, rows in now.state.items():
                rows[:] = prediction.state[name]
        valid = ~self._ended
        now.action[:, t] = prediction.action
        now.reward[:, t] = np.where(valid, reward, 0.0)
        now.terminated[:, t] = terminated & valid
        now.truncated[:, t] = truncated & valid
        now.valid[:, t] = valid
        now.version[:, t] = prediction.version
        for name, rows in now.extra.items():
            rows[:, t] = prediction.extra[name]
        for name, rows in now.step.items():
            rows[:, t] = _added(added, name)
        for name, rows in now.obs.items():
            rows[:, t + 1] = obs[name]
        now.first[:, t + 1] = self._ended
        self._ended = now.terminated[:, t] | now.truncated[:, t]
        self._t += 1

    def step_reset(self, prediction: Prediction, obs: Arrays) -> None:
        """Record the row of an autoreset for a source that resets by hand; obs is that of the new episode."""
        self._ended[:] = True
        none = np.zeros(self._num_envs, np.bool_)
        nothing = {name: np.zeros_like(rows[:, 0]) for name, rows in self._now.step.items()}
        self.step(prediction, np.zeros(self._num_envs, np.float32), none, none, obs, nothing)

    def take(self) -> Chunk:
        """The full chunks, every array with a leading E; the next chunk begins with their last observation."""
        if not self.full:
            raise RuntimeError(f"ChunkBuilder.take: {self._t} of {self._length} steps are recorded")
        done = self._now
        done.seq[:] = self._seq
        self._seq += 1
        self._now = self._sets[self._seq % _SETS]
        self._t = 0
        for name, rows in self._now.obs.items():
            rows[:, 0] = done.obs[name][:, -1]
        self._now.first[:, 0] = done.first[:, -1]
        return done


def _added(added: Arrays | None, name: str) -> Array:
    if added is None or name not in added:
        raise ContractError(
            f"Spec.step names {name!r}, so the workflow must give it: step(..., added={{{name!r}: ...}})"
        )
    return added[name]


def _allocate(spec: Spec, num_envs: int, worker: int, incarnation: int) -> Chunk:
    flat = {name: np.zeros((num_envs, *field.shape), field.dtype) for name, field in chunk_fields(spec).items()}
    flat["worker"][:] = worker
    flat["incarnation"][:] = incarnation
    flat["env"][:] = np.arange(num_envs)
    return arrays_to_chunk(flat)
