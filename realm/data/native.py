"""The NumPy storage: the buffer's items in arrays of this process."""

from __future__ import annotations

import numpy as np

from realm.contract import Array, Arrays, Fields, SampleInfo


class NativeStorage:
    """Items in NumPy arrays, with reverb's selectors; runs wherever Python runs."""

    def __init__(
        self, fields: Fields, capacity: int, sampler: str, remover: str, once: bool, exponent: float, seed: int
    ) -> None:
        """sampler and remover: Uniform, Fifo, Lifo, Prioritized, MaxHeap, MinHeap; once: a draw removes the item."""
        self.size = 0
        self.evicted = 0
        self._rows = {name: np.zeros((capacity, *field.shape), field.dtype) for name, field in fields.items()}
        self._key = np.zeros(capacity, np.uint64)  # 0: free slot; keys count up, so they sort by age
        self._priority = np.zeros(capacity)
        self._times = np.zeros(capacity, np.int64)
        self._last_key = 0
        self._sampler, self._remover, self._once, self._exponent = sampler, remover, once, exponent
        self._rng = np.random.default_rng(seed)

    def add(self, items: Arrays) -> None:
        count = len(items["worker"])
        key = np.arange(self._last_key + 1, self._last_key + count + 1, dtype=np.uint64)
        self._last_key += count
        stays: slice | Array = slice(None)
        overflow = self.size + count - len(self._key)
        if overflow > 0:
            # as in reverb, new items may be evicted, too
            live = np.flatnonzero(self._key)
            priority = np.concatenate([self._priority[live], np.ones(count)])
            leaves, _ = self._choose(self._remover, np.concatenate([self._key[live], key]), priority, overflow, True)
            self._free(live[leaves[leaves < len(live)]])
            self.evicted += overflow
            stays = np.ones(count, np.bool_)
            stays[leaves[leaves >= len(live)] - len(live)] = False
            key = key[stays]
        places = np.flatnonzero(self._key == 0)[: len(key)]
        for name, rows in self._rows.items():
            rows[places] = items[name][stays]
        self._key[places] = key
        self._priority[places] = 1.0
        self._times[places] = 0
        self.size += len(key)

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        live = np.flatnonzero(self._key)
        chosen, probability = self._choose(self._sampler, self._key[live], self._priority[live], count, self._once)
        places = live[chosen]
        np.add.at(self._times, places, 1)
        items = {name: rows[places] for name, rows in self._rows.items()}
        info = SampleInfo(self._key[places], probability, self._times[places])
        if self._once:
            self._free(places)
        return items, info

    def update_priorities(self, key: Array, priority: Array) -> None:
        order = np.argsort(self._key)
        places = order[np.searchsorted(self._key, key, sorter=order).clip(max=len(order) - 1)]
        exists = self._key[places] == key
        self._priority[places[exists]] = priority[exists]

    def clear(self) -> None:
        self._free(np.flatnonzero(self._key))

    def close(self) -> None:
        self._rows.clear()

    def _free(self, places: Array) -> None:
        self._key[places] = 0
        self.size -= len(places)

    def _choose(
        self, selector: str, key: Array, priority: Array, count: int, without_replacement: bool
    ) -> tuple[Array, Array]:
        """Choose among items by key u64 [n] and priority f64 [n]: indices [count] and their probabilities [count]."""
        if selector in ("Uniform", "Prioritized"):
            weight = priority**self._exponent if selector == "Prioritized" else np.ones(len(key))
            # as in reverb: if no priority is positive, all items are equally likely
            p = weight / weight.sum() if weight.sum() > 0 else np.full(len(key), 1 / len(key))
            nonzero = int((p > 0).sum())
            if without_replacement and nonzero < count:
                p = np.maximum(p, 1e-12)
                p /= p.sum()
            chosen = self._rng.choice(len(key), count, replace=not without_replacement, p=p)
            return chosen, p[chosen]
        if selector in ("Fifo", "Lifo"):
            order = np.argsort(key)[:: 1 if selector == "Fifo" else -1]
        else:  # the oldest item first among equal priorities
            order = np.lexsort((key, priority if selector == "MinHeap" else -priority))
        # without removal the same first item is drawn again
        chosen = order[:count] if without_replacement else np.repeat(order[:1], count)
        return chosen, np.ones(count)
