"""The NumPy storage: the buffer's items in arrays of this process. The one in `memory.py` cuts chunks into rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from realm.contract import Array, Arrays, Fields, SampleInfo

if TYPE_CHECKING:
    from realm.data.sumtree import SumTree


class NativeStorage:
    """Items in NumPy arrays, with reverb's selectors; runs wherever Python runs.

    Where items leave in the order in which they came, the arrays are a ring: item k lies at k modulo the capacity, and
    every operation takes a time that does not depend on how many items there are. The other selectors look at all.
    """

    def __init__(
        self, fields: Fields, capacity: int, sampler: str, remover: str, on_policy: bool, exponent: float, seed: int
    ) -> None:
        """on_policy: a draw takes the oldest items out, and no item is discarded. Else sampler: Uniform or Prioritized;
        remover: these, Fifo, MinHeap or MaxHeap (`config/flow.py`)."""
        self.size = self.evicted = 0
        self._rows = {name: np.zeros((capacity, *field.shape), field.dtype) for name, field in fields.items()}
        self._key = np.zeros(capacity, np.uint64)  # 0: free place; keys count up from 1, so they sort by age
        self._priority = np.zeros(capacity)
        self._times = np.zeros(capacity, np.int64)
        self._last_key = 0
        self._remover, self._once, self._exponent = remover, on_policy, exponent
        self._is_ring = on_policy or remover == "Fifo"
        self._tree: SumTree | None = None
        if sampler == "Prioritized":
            from realm.data.sumtree import SumTree  # late: it imports numba

            self._tree = SumTree(capacity)
        self._greatest = 1.0  # priority so far, and that of a new item: it is drawn soon, so that its own becomes known
        self._rng = np.random.default_rng(seed)

    def add(self, items: Arrays) -> None:
        count, capacity = len(items["worker"]), len(self._key)
        key = np.arange(self._last_key + 1, self._last_key + count + 1, dtype=np.uint64)
        self._last_key += count
        overflow = max(0, self.size + count - capacity)
        self.evicted += overflow
        stays: slice | Array = slice(None)
        places: slice | Array
        if self._is_ring:
            places = ring_places(self._last_key - count, count, capacity)
        else:
            stays = self._evict(overflow, key)
            key = key[stays]
            places = np.flatnonzero(self._key == 0)[: len(key)]
        for name, rows in self._rows.items():
            rows[places] = items[name][stays]
        self._key[places] = key
        self._priority[places] = self._greatest
        self._times[places] = 0
        self.size = min(self.size + count, capacity)
        if self._tree is not None:
            leaves = as_array(places)
            self._tree.set(leaves, self._priority[leaves] ** self._exponent)

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        places, probability = self._draw(count)
        np.add.at(self._times, places, 1)
        items = {name: rows[places] for name, rows in self._rows.items()}
        info = SampleInfo(self._key[places], probability, self._times[places])
        if self._once:
            self._key[places] = 0
            self.size -= count
        return items, info

    def update_priorities(self, key: Array, priority: Array) -> None:
        if self._is_ring:
            places = ((key - np.uint64(1)) % np.uint64(len(self._key))).astype(np.int64)
        else:
            order = np.argsort(self._key)
            places = order[np.searchsorted(self._key, key, sorter=order).clip(max=len(order) - 1)]
        exists = self._key[places] == key
        places, priority = places[exists], priority[exists]
        self._priority[places] = priority
        if self._tree is not None:
            self._greatest = max(self._greatest, float(priority.max(initial=0.0)))
            self._tree.set(places, priority**self._exponent)

    def clear(self) -> None:
        self._key[:] = 0
        self.size = 0
        if self._tree is not None:
            self._tree.clear()

    def close(self) -> None:
        self._rows.clear()

    def _draw(self, count: int) -> tuple[Array, Array]:
        """The places i64 [count] of drawn items, and their probabilities f64 [count]."""
        oldest = self._last_key - self.size  # of a ring, its key, less one
        if self._once:
            return (oldest + np.arange(count)) % len(self._key), np.ones(count)
        if self._tree is not None and self._tree.total > 0:
            places = self._tree.draw(self._rng.random(count))
            return places, self._tree.weight(places) / self._tree.total
        chosen = self._rng.integers(0, self.size, count)  # as in reverb: without a positive priority all are equal
        places = (oldest + chosen) % len(self._key) if self._is_ring else np.flatnonzero(self._key)[chosen]
        return places, np.full(count, 1 / self.size)

    def _evict(self, count: int, new: Array) -> Array:
        """Make room by the remover, among the stored items and those with the keys `new`; returns which of the new ones
        stay, bool [n]. As in reverb, new items may have to leave, too."""
        live, stays = np.flatnonzero(self._key), np.ones(len(new), np.bool_)
        if count:
            key = np.concatenate([self._key[live], new])
            priority = np.concatenate([self._priority[live], np.full(len(new), self._greatest)])
            if self._remover in ("Uniform", "Prioritized"):
                weight = priority**self._exponent if self._remover == "Prioritized" else np.ones(len(key))
                weight = np.maximum(weight, 1e-12 * (weight.sum() or 1.0))  # without a positive priority all are equal
                leaves = self._rng.choice(len(key), count, replace=False, p=weight / weight.sum())
            else:  # the oldest item first among equal priorities
                leaves = np.lexsort((key, priority if self._remover == "MinHeap" else -priority))[:count]
            gone = live[leaves[leaves < len(live)]]
            self._key[gone] = 0
            if self._tree is not None:
                self._tree.set(gone, np.zeros(len(gone)))
            stays[leaves[leaves >= len(live)] - len(live)] = False
        return stays


def as_array(places: slice | Array) -> Array:
    """The places i64 [n] that a result of `ring_places` means."""
    return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def ring_places(before: int, count: int, capacity: int) -> slice | Array:
    """Where `count` items lie that come after `before` others in a ring; a slice where they lie in a row."""
    start = before % capacity
    if start + count <= capacity:
        return slice(start, start + count)
    return (start + np.arange(count)) % capacity
