"""The replay memory: keeps chunks, each step once, and draws rows of them as `Spec.draw` asks (`Transitions`).

A ring of chunks: chunk k (counted from 1) lies at place (k - 1) modulo their number, and the oldest leaves. A chunk
knows the one before and the one after it of the same environment, so that a row may reach over a chunk's end. A step is
*ready*, and can be drawn, when it is valid, its n steps are there or the episode ends before, and so are the
observations that it looks back at. Every operation takes a time that does not depend on how many steps there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from realm.contract import Array, Arrays, SampleInfo, Spec, row_fields
from realm.data.array_files import ArrayFiles
from realm.data.native import as_array, ring_places
from realm.data.sumtree import SumTree

_ORIGIN = ("worker", "incarnation", "env", "seq")


class ReplayMemory:
    """Rows of chunks. `size` counts the steps that can be drawn, `evicted` those that left after they could be."""

    def __init__(
        self, spec: Spec, capacity: int, prioritized: bool, exponent: float, seed: int, files: ArrayFiles | None = None
    ) -> None:
        """capacity: steps. prioritized: draw in proportion to priority ** exponent; else all rows are equally likely.
        files: makes the arrays; one with files brings back what they hold. A new row has the greatest priority so
        far, so that its own becomes known soon.
        """
        assert spec.draw is not None
        self.size = self.evicted = 0
        self._draw, self._length = spec.draw, spec.chunk_length
        chunks = max(1, capacity // spec.chunk_length)
        make, steps = (files or ArrayFiles(None)).array, (chunks, spec.chunk_length)
        self._rows = {name: make(name, (chunks, *field.shape), field.dtype) for name, field in row_fields(spec).items()}
        self._key = make("key", (chunks,), np.int64)  # 0: free place
        self._before, self._after = make("before", (chunks,), np.int64), make("after", (chunks,), np.int64)  # 0: none
        self._ready = np.zeros(steps, np.bool_)
        self._times = make("times", steps, np.int32)
        leaves = chunks * spec.chunk_length
        self._tree = SumTree(leaves, make("tree", (SumTree.size_of(leaves),), np.float64)) if prioritized else None
        if files and not prioritized:
            files.forget("tree")  # it would rate rows that are not there any more
        self._exponent, self._greatest = exponent, 1.0
        self._last_key = 0
        self._newest: dict[tuple[int, int], tuple[int, int, int]] = {}  # (worker, env) -> (incarnation, seq, key)
        self._rng = np.random.default_rng(seed)
        # so many chunks before a new one, and after one that leaves, have steps whose readiness may change
        self._reach_back = -(-(self._draw.n_step - 1) // self._length)
        self._reach_on = -(-self._draw.look_back // self._length)
        if self._key.any():
            self._come_back()

    def _come_back(self) -> None:
        """Work out what is not kept. A process that was killed while it stored a chunk left links to nothing."""
        self._last_key = int(self._key.max())
        for links in (self._before, self._after):
            links[self._key[(links - 1) % len(self._key)] != links] = 0
        if self._tree is not None:
            leaf = np.arange(self._ready.size)
            weight = self._tree.weight(leaf)
            self._greatest = max(1.0, float(weight.max()) ** (1 / self._exponent))
        self._mark(np.flatnonzero(self._key))
        if self._tree is not None:
            kept = self._ready.reshape(-1) & (weight > 0)
            self._tree.set(leaf[kept], weight[kept])
            self._weigh(leaf[~self._ready.reshape(-1)], 0.0)

    def state(self) -> dict[str, Any]:
        """What a resume needs besides the arrays: the random numbers, as plain data."""
        return {"rng": self._rng.bit_generator.state, "evicted": self.evicted, "greatest": self._greatest}

    def restore(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.evicted, self._greatest = int(state["evicted"]), float(state["greatest"])

    def add(self, items: Arrays) -> None:
        """Store chunks, name -> [n, ...], no more than fit."""
        count = len(items["worker"])
        where = ring_places(self._last_key, count, len(self._key))
        places = as_array(where)
        self._evict(places[self._key[places] > 0])
        for name, rows in self._rows.items():
            rows[where] = items[name]
        self._key[where] = np.arange(self._last_key + 1, self._last_key + count + 1)
        self._times[where] = 0
        changed = self._link(places)
        self._last_key += count
        self._mark(changed)

    def _link(self, places: Array) -> Array:
        """Tie new chunks to the ones before them; returns the places of all chunks that may have become ready."""
        changed = places.tolist()
        origins = zip(*(self._rows[name][places].tolist() for name in _ORIGIN), strict=True)
        for place, (worker, incarnation, env, seq) in zip(places.tolist(), origins, strict=True):
            key = int(self._key[place])
            was = self._newest.get((worker, env))
            self._newest[worker, env] = (incarnation, seq, key)
            if was is None or was[:2] != (incarnation, seq - 1):
                continue
            last = (was[2] - 1) % len(self._key)
            # an episode that was thrown away leaves a chunk that begins one while the chunk before did not end
            if self._key[last] != was[2] or (self._rows["first"][place, 0] and self._rows["valid"][last, -1]):
                continue
            self._before[place], self._after[last] = was[2], key
            for _ in range(self._reach_back):
                changed.append(last)
                if self._before[last] == 0:
                    break
                last = (int(self._before[last]) - 1) % len(self._key)
        return np.unique(np.array(changed, np.int64))

    def _evict(self, places: Array) -> None:
        """Free the places of the oldest chunks; what looked back at them is no longer ready."""
        gone = int(self._ready[places].sum())
        self.size -= gone
        self.evicted += gone
        self._ready[places] = False
        self._weigh((places[:, None] * self._length + np.arange(self._length)).ravel(), 0.0)
        shortened = []
        for after in self._after[places].tolist():
            if after:
                self._before[(after - 1) % len(self._key)] = 0
            for _ in range(self._reach_on if after else 0):
                place = (after - 1) % len(self._key)
                shortened.append(place)
                after = int(self._after[place])
                if after == 0:
                    break
        self._key[places] = self._before[places] = self._after[places] = 0
        if shortened:
            self._mark(np.setdiff1d(shortened, places))

    def _mark(self, places: Array) -> None:
        """Work out which steps of these chunks are ready, and give new ones their weight."""
        place, row = (one.ravel() for one in np.meshgrid(places, np.arange(self._length), indexing="ij"))
        ready = self._rows["valid"][place, row]
        if self._draw.n_step > 1:
            ready &= self._ahead(place, row)[3]
        if self._draw.look_back:
            ready &= self._behind(place, row)[2]
        ready = ready.reshape(len(places), self._length)
        was = self._ready[places]
        self.size += int(ready.sum()) - int(was.sum())
        self._ready[places] = ready
        leaf = place * self._length + row
        self._weigh(leaf[(ready & ~was).ravel()], self._greatest**self._exponent)
        self._weigh(leaf[(was & ~ready).ravel()], 0.0)

    def _weigh(self, leaf: Array, weight: float) -> None:
        """Give these steps i64 [n] one weight, where rows are drawn by weight."""
        if self._tree is not None:
            self._tree.set(leaf, np.full(len(leaf), weight))

    def _ahead(self, place: Array, row: Array) -> tuple[list[Array], list[Array], Array, Array]:
        """The steps of a row: place and row i64 [B] of each of its n steps, how many count [B], and whether all are
        there, bool [B]. Steps after an episode's end repeat the last one and do not count; one that is not valid
        before that end was thrown away."""
        places, rows = [place], [row]
        counted, complete = np.ones(len(place), np.int64), np.ones(len(place), np.bool_)
        going = ~(self._rows["terminated"][place, row] | self._rows["truncated"][place, row])
        for _ in range(self._draw.n_step - 1):
            over = row + 1 == self._length
            linked = ~over | (self._after[place] > 0)
            then = np.where(over, (self._after[place] - 1) % len(self._key), place)
            next_row = np.where(over, 0, row + 1)
            there = linked & self._rows["valid"][then, next_row]
            complete &= ~going | there
            going &= there
            place, row = np.where(going, then, place), np.where(going, next_row, row)
            counted += going
            places.append(place)
            rows.append(row)
            going = going & ~(self._rows["terminated"][place, row] | self._rows["truncated"][place, row])
        return places, rows, counted, complete

    def _behind(self, place: Array, row: Array) -> tuple[list[Array], list[Array], Array]:
        """Place and row of the observations that end with this one, the oldest first; and whether they are all there,
        bool [B]. row: 0 to T, among a chunk's T + 1 observations. An episode's first one repeats."""
        places, rows, complete = [place], [row], np.ones(len(place), np.bool_)
        for _ in range(self._draw.look_back):
            begins = self._rows["first"][place, row]
            under = row == 0
            linked = begins | ~under | (self._before[place] > 0)
            complete &= linked
            moves = ~begins & linked
            then = np.where(under, (self._before[place] - 1) % len(self._key), place)
            place = np.where(moves, then, place)
            row = np.where(moves, np.where(under, self._length - 1, row - 1), row)
            places.insert(0, place)
            rows.insert(0, row)
        return places, rows, complete

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        place, row, probability = self._choose(count)
        np.add.at(self._times, (place, row), 1)
        key = ((self._key[place] - 1) * self._length + row + 1).astype(np.uint64)
        return self._cut(place, row), SampleInfo(key, probability, self._times[place, row].astype(np.int64))

    def _choose(self, count: int) -> tuple[Array, Array, Array]:
        """Place and row i64 [count] of ready steps, and their probabilities f64 [count]."""
        if self._tree is not None and self._tree.total > 0:
            leaf = self._tree.draw(self._rng.random(count))
            return leaf // self._length, leaf % self._length, self._tree.weight(leaf) / self._tree.total
        steps = min(self._last_key, len(self._key)) * self._length
        leaf = np.zeros(0, np.int64)
        while len(leaf) < count:  # nearly all steps are ready, so nearly all tries succeed
            tried = self._rng.integers(0, steps, count - len(leaf))
            leaf = np.concatenate([leaf, tried[self._ready.reshape(-1)[tried]]])
        return leaf // self._length, leaf % self._length, np.full(count, 1 / self.size)

    def _cut(self, place: Array, row: Array) -> Arrays:
        """The rows that begin at these steps, flat: what `Transitions` says."""
        rows, draw = self._rows, self._draw
        places, at, counted, _ = self._ahead(place, row)
        reward, factor = np.zeros(len(place), np.float32), np.ones(len(place), np.float32)
        for n, (one, step) in enumerate(zip(places, at, strict=True)):
            counts = counted > n
            reward += np.where(counts, factor * rows["reward"][one, step], 0).astype(np.float32)
            gamma = rows["step.discount"][one, step] if "step.discount" in rows else draw.gamma
            factor = np.where(counts, factor * gamma, factor).astype(np.float32)
        last, end = places[-1], at[-1]
        cut: Arrays = {
            "reward": reward,
            "discount": np.where(rows["terminated"][last, end], np.float32(0), factor),
            "action": rows["action"][place, row],
            "version": rows["version"][place, row],
            **{name: rows[name][place] for name in _ORIGIN},
        }
        for name, array in rows.items():
            group, _, inner = name.partition(".")
            if group == "obs":
                cut[name] = self._seen(array, place, row)
                cut[f"next_obs.{inner}"] = self._seen(array, last, end + 1)
            elif group in ("extra", "step"):
                cut[name] = array[place, row]
        return cut

    def _seen(self, array: Array, place: Array, row: Array) -> Array:
        """The observations at these rows, with those that they look back at: [B, ...] or [B, look_back + 1, ...]."""
        if self._draw.look_back:
            places, rows, _ = self._behind(place, row)
            place, row = np.stack(places, 1), np.stack(rows, 1)
        seen: Array = array[place, row]
        return seen

    def update_priorities(self, key: Array, priority: Array) -> None:
        if self._tree is None:
            return
        number = key.astype(np.int64) - 1
        chunk, row = number // self._length + 1, number % self._length
        place = (chunk - 1) % len(self._key)
        exists = (self._key[place] == chunk) & self._ready[place, row]
        self._greatest = max(self._greatest, float(priority[exists].max(initial=0.0)))
        self._tree.set((place * self._length + row)[exists], priority[exists] ** self._exponent)

    def clear(self) -> None:
        for array in (self._key, self._before, self._after, self._ready):
            array[:] = 0
        if self._tree is not None:
            self._tree.clear()
        self._newest.clear()
        self.size = 0

    def close(self) -> None:
        self._rows.clear()
