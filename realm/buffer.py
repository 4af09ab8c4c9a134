"""The verbs `add` and `sample`: what enters the buffer, when the learner may draw, and where items lie meanwhile.

`ReplayBuffer` is the buffer, for one process and behind the cluster's door (`roles/buffer.py`) alike: it checks
items, knows duplicates and outdated ones, and holds producer and consumer by the `Limiter`. Items lie in a
storage: `NativeStorage` (NumPy) here, `ReverbStorage` in `reverb_buffer.py`. Nothing blocks: a call that
must wait says so. Nothing is dropped without being counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from realm.contract import (
    NO_VERSION,
    Array,
    Arrays,
    ContractError,
    Fields,
    SampleInfo,
    Spec,
    Version,
    check_arrays,
    check_finite,
)

ACCEPTED, DUPLICATE, OLD_EPOCH, STALE = "accepted", "duplicate", "old_epoch", "stale"
NO_ROOM, INVALID = "no_room", "invalid"


class Storage(Protocol):
    """Where items lie. Called from one thread, and only for what is possible at once."""

    size: int
    evicted: int

    def add(self, items: Arrays) -> None:
        """Store n items (name -> [n, ...]); a full storage evicts by its remover."""
        ...

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        """Draw `count` items by the sampler: name -> [count, ...]."""
        ...

    def update_priorities(self, key: Array, priority: Array) -> None:
        """Set the priorities of items; keys that are gone are passed over."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Limiter:
    """Holds producer and consumer so that the flow asked for comes out, exactly.

    once         on-policy: every item is drawn once, so production waits for room
    capacity     items the storage holds
    preload      items that must have come before the first draw
    batch        items of one draw
    ratio        draws of an item per item that came (KaiwuDRL's production_consume_ratio)
    ahead        items that production may be ahead of that ratio
    """

    once: bool
    capacity: int
    preload: int
    batch: int
    ratio: float
    ahead: int
    inserted: int = 0
    sampled: int = 0

    def may_insert(self, count: int, size: int) -> bool:
        if self.once:
            return size + count <= self.capacity
        return self.inserted + count <= self.preload + (self.sampled + self.batch) / self.ratio + self.ahead

    def may_sample(self, count: int, size: int) -> bool:
        if size < count or self.inserted < self.preload:
            return False
        return self.once or self.sampled <= (self.inserted - self.preload) * self.ratio


class ReplayBuffer:
    """The buffer: `add` and `draw` with every rule about what is accepted and what is handed out."""

    def __init__(self, spec: Spec, storage: Storage, limiter: Limiter, max_version_lag: int | None) -> None:
        """max_version_lag: on-policy items that would be older than this when their turn comes are refused."""
        self.fields = spec.sample_fields
        self.storage = storage
        self.limiter = limiter
        self.counters: Counter[str] = Counter()
        self._max_lag = max_version_lag
        self._next = NO_VERSION  # the version that the next batch will be trained on, as far as it is known
        self._seen: dict[int, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        return self.storage.size

    def wanted(self, count: int) -> Version:
        """The oldest row that `count` more items may hold: they wait behind all that is here."""
        if not self.limiter.once or self._max_lag is None:
            return Version(self._next.epoch, 0)
        turn = self._next.update + (self.size + count - 1) // self.limiter.batch
        return Version(self._next.epoch, max(0, turn - self._max_lag))

    def add(self, items: Arrays) -> str:
        """Take one round of a worker (name -> [n, ...]): ACCEPTED, DUPLICATE, OLD_EPOCH, STALE or NO_ROOM.

        NO_ROOM changes nothing: offer the round again when something was asked for. Raises ContractError for items
        of another shape or with NaN, and for more than would ever find room.
        """
        count = len(items["worker"]) if items.get("worker") is not None and items["worker"].ndim == 1 else 0
        if count == 0:
            raise ContractError("a round has at least one item, with `worker` of shape [n]")
        check_arrays(items, self.fields, (count,), "a round")
        if count > self.limiter.capacity:
            raise ContractError(f"a round of {count} items, the buffer's capacity is {self.limiter.capacity}")
        worker, origin = int(items["worker"][0]), (int(items["incarnation"][0]), int(items["seq"][0]))
        if origin <= self._seen.get(worker, (-1, -1)):
            self.counters["duplicate"] += count
            return DUPLICATE
        oldest, newest = _oldest_and_newest(items["version"])
        if self._next == NO_VERSION:
            self._next = Version(newest.epoch, 0)
        elif newest.epoch > self._next.epoch:
            return NO_ROOM  # its learner has not asked yet, and only it knows which version comes next
        if oldest < self.wanted(count):
            old_epoch = oldest.epoch < self._next.epoch
            self._seen[worker] = origin
            self.counters["refused_old_epoch" if old_epoch else "refused_stale"] += count
            return OLD_EPOCH if old_epoch else STALE
        if not self.limiter.may_insert(count, self.size):
            return NO_ROOM
        check_finite(items, "a round")
        self._seen[worker] = origin
        self.storage.add(items)
        self.limiter.inserted += count
        self.counters["inserted"] += count
        return ACCEPTED

    def draw(self, count: int, version: Version) -> tuple[Arrays, SampleInfo] | None:
        """A batch of `count` items to train `version` on, or None if it cannot be had yet.

        The first question of a new epoch drops on-policy items of older ones; a replay memory keeps what it has.
        The learner of an older epoch is gone: it never gets a batch.
        """
        if version.epoch < self._next.epoch:
            return None
        if version.epoch > self._next.epoch and self.limiter.once and self.size:
            self.counters["dropped_old_epoch"] += self.size
            self.storage.clear()
        self._next = max(self._next, version)
        if not self.limiter.may_sample(count, self.size):
            return None
        batch = self.storage.sample(count)
        self._next = max(self._next, Version(version.epoch, version.update + 1))
        self.limiter.sampled += count
        self.counters["sampled"] += count
        return batch

    def totals(self) -> dict[str, float]:
        """What was counted since the start, for reports."""
        names = ("inserted", "sampled", "duplicate", "refused_old_epoch", "refused_stale", "dropped_old_epoch")
        counted = {name: float(self.counters[name]) for name in names}
        return {**counted, "evicted": float(self.storage.evicted), "size": float(self.size)}


def _oldest_and_newest(version: Array) -> tuple[Version, Version]:
    """The least and the greatest (epoch, update) in version i64 [..., 2]."""
    pairs = version.reshape(-1, 2)
    epoch, update = pairs[:, 0], pairs[:, 1]
    first, last = int(epoch.min()), int(epoch.max())
    return Version(first, int(update[epoch == first].min())), Version(last, int(update[epoch == last].max()))


class NativeStorage:
    """Items in NumPy arrays, with reverb's selectors; runs wherever Python runs."""

    def __init__(
        self, fields: Fields, capacity: int, sampler: str, remover: str, once: bool, exponent: float, seed: int
    ) -> None:
        """sampler and remover: Uniform, Fifo, Lifo, Prioritized, MaxHeap, MinHeap; once: a draw removes."""
        self.size = 0
        self.evicted = 0
        self._rows = {name: np.zeros((capacity, *one.shape), one.dtype) for name, one in fields.items()}
        self._key = np.zeros(capacity, np.uint64)  # 0: the place is free; keys count up, so they order by age
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
            # as in reverb, the new items are among those that may leave
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
        found = order[np.searchsorted(self._key, key, sorter=order).clip(max=len(order) - 1)]
        there = self._key[found] == key
        self._priority[found[there]] = priority[there]

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
        """Choose among items by key u64 [n] and priority f64 [n]: which [count], and the probability of each."""
        if selector in ("Uniform", "Prioritized"):
            weight = priority**self._exponent if selector == "Prioritized" else np.ones(len(key))
            # reverb: without a single positive priority every item is as likely
            p = weight / weight.sum() if weight.sum() > 0 else np.full(len(key), 1 / len(key))
            nonzero = int((p > 0).sum())
            if without_replacement and nonzero < count:
                p = np.maximum(p, 1e-12)
                p /= p.sum()
            chosen = self._rng.choice(len(key), count, replace=not without_replacement, p=p)
            return chosen, p[chosen]
        if selector in ("Fifo", "Lifo"):
            order = np.argsort(key)[:: 1 if selector == "Fifo" else -1]
        else:  # of equal priorities the oldest
            order = np.lexsort((key, priority if selector == "MinHeap" else -priority))
        # a table that keeps what it hands out hands out its first item again
        chosen = order[:count] if without_replacement else np.repeat(order[:1], count)
        return chosen, np.ones(count)
