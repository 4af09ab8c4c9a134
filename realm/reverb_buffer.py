"""The reverb storage: the buffer role's items in a DeepMind reverb table. The only file that imports reverb.

Created by `roles/buffer.py` when `buffer_backend` is reverb. Every item is one row of bytes (a NumPy record), so
reverb moves one tensor an item; and that tensor is a string, the one type that reverb does not compress: compressing
would take more time than all else. `ReplayBuffer` counts for itself and only asks for what is there at once, because a
reverb call that must wait cannot be interrupted.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from realm.contract import Array, Arrays, Fields, SampleInfo

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import: ten lines of noise otherwise

import reverb
import tensorflow as tf

_UNDER_WAY = 64  # samples: more are no faster


class ReverbStorage:
    """A table with its server in this process; nobody else is told the port.

    Reverb (0.14) listens on all interfaces, without authentication, and cannot be told otherwise: anyone who reaches
    the port can list, read and write the table. Close the port at the firewall on a machine that others reach.
    """

    def __init__(
        self, fields: Fields, capacity: int, sampler: str, remover: str, once: bool, exponent: float, name: str
    ) -> None:
        """The arguments of NativeStorage, and the table's name, which is no secret: the server tells it to anyone."""
        self.size = 0
        self.evicted = 0
        self._capacity, self._once = capacity, once
        self._record = np.dtype([(name, one.dtype, one.shape) for name, one in fields.items()])
        self._names = list(fields)
        self._name = f"items-{name}"
        self._removers = (sampler, remover, exponent)
        self._server = reverb.Server([self._table()], port=None)
        self._client = self._server.localhost_client()
        self._writer = self._new_writer()

    def _table(self) -> Any:
        sampler, remover, exponent = self._removers
        return reverb.Table(
            name=self._name,
            sampler=_selector(sampler, exponent),
            remover=_selector(remover, exponent),
            max_size=self._capacity,
            # the limiter is ours: reverb's would evict or block where it cannot be interrupted
            rate_limiter=reverb.rate_limiters.MinSize(1),
            max_times_sampled=1 if self._once else 0,
            signature=tf.TensorSpec((), tf.string),
        )

    def _new_writer(self) -> Any:
        return self._client.writer(max_sequence_length=1)

    def add(self, items: Arrays) -> None:
        count = len(items["worker"])
        rows = np.empty(count, self._record)
        for name in self._names:
            rows[name] = items[name]
        for row in rows:
            self._writer.append(np.array(row.tobytes(), object))  # not of type bytes_, which ends at the last nonzero
            self._writer.create_item(self._name, num_timesteps=1, priority=1.0)
        self._writer.flush()
        overflow = max(0, self.size + count - self._capacity)
        self.evicted += overflow
        self.size += count - overflow

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        record = self._record
        items = {name: np.empty((count, *record[name].shape), record[name].base) for name in self._names}
        key, times = np.empty(count, np.uint64), np.empty(count, np.int64)
        probability = np.empty(count)
        # what Client.sample does, but for its having one sample under way at a time, which takes three times as long
        sampler = self._client._client.NewSampler(self._name, count, min(count, _UNDER_WAY))
        for row in range(count):
            key[row], probability[row], _, _, times[row], data = sampler.GetNextTrajectory()
            one = np.frombuffer(data.item(), record)[0]
            for name, array in items.items():
                array[row] = one[name]
        if self._once:
            self.size -= count
        return items, SampleInfo(key, probability, times)

    def update_priorities(self, key: Array, priority: Array) -> None:
        self._client.mutate_priorities(
            self._name, updates=dict(zip(key.tolist(), priority.astype(float).tolist(), strict=True))
        )

    def clear(self) -> None:
        self._writer.close()
        self._client.reset(self._name)
        self._writer = self._new_writer()
        self.size = 0

    def close(self) -> None:
        self._writer.close()
        self._server.stop()


def _selector(name: str, exponent: float) -> Any:
    match name:
        case "Uniform":
            return reverb.selectors.Uniform()
        case "Fifo":
            return reverb.selectors.Fifo()
        case "Lifo":
            return reverb.selectors.Lifo()
        case "MinHeap":
            return reverb.selectors.MinHeap()
        case "MaxHeap":
            return reverb.selectors.MaxHeap()
        case "Prioritized":
            return reverb.selectors.Prioritized(exponent)
    raise ValueError(f"no reverb selector is called {name!r}")
