"""The verbs `add` and `sample`: which items enter the buffer, when the learner may draw, and where items are stored.

`ReplayBuffer` is the buffer, both in one process and in the cluster's buffer role (`roles/buffer.py`). It checks items,
refuses duplicates and outdated ones, and holds back producer and consumer by the `Limiter`. A storage holds the items:
`NativeStorage` (NumPy, `native.py`), `ReverbStorage` (`reverb.py`) or, where `Spec.draw` asks for rows of chunks,
`ReplayMemory` (`memory.py`). Nothing blocks: a call that must wait says so. Every dropped item is counted.

A *sample* is what the limits count: an item, or a step of a chunk with `Spec.draw`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from realm.config.plan import Plan
from realm.contract import (
    NO_VERSION,
    Array,
    Arrays,
    SampleInfo,
    Spec,
    Version,
    check_arrays,
    check_finite,
    count_env_steps,
)
from realm.data.array_files import ArrayFiles
from realm.data.native import NativeStorage
from realm.errors import ContractError

ACCEPTED, DUPLICATE, OLD_EPOCH, STALE = "accepted", "duplicate", "old_epoch", "stale"
NO_ROOM, INVALID = "no_room", "invalid"
_EXPONENT = 0.6  # a Prioritized selector draws by this power of a priority (Schaul et al. 2015)


class Storage(Protocol):
    """Holds the items. Called from one thread, and only for operations that can complete at once.

    size: samples that can be drawn. evicted: samples that left to make room.
    """

    size: int
    evicted: int

    def add(self, items: Arrays) -> None:
        """Store n items (name -> [n, ...]), no more than fit; a full one evicts by its remover. It keeps no view."""

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        """Draw `count` samples by the sampler: name -> [count, ...]."""

    def update_priorities(self, key: Array, priority: Array) -> None:
        """Set the priorities of items; keys that are gone are ignored."""

    def clear(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Limiter:
    """Holds back producer and consumer so that the flow has exactly the configured ratio. All counts are samples.

    One of the two can always go on: on-policy `flow.check_flow` sees to it; off-policy a learner that must wait means
    inserted < preload + sampled / ratio, and then one more round of everybody has room.

    on_policy    every sample is drawn once, so production waits for room
    capacity     that the storage holds
    preload      that must arrive before the first draw
    batch        of one draw
    ratio        draws per sample that arrived (production_consume_ratio)
    headroom     that production may be ahead of that ratio; at least one item
    free_running off-policy: no ratio, both go on as fast as they can
    """

    on_policy: bool
    capacity: int
    preload: int
    batch: int
    ratio: float
    headroom: int
    free_running: bool = False
    inserted: int = 0
    sampled: int = 0

    def room(self, size: int) -> int:
        """Samples that may go in now."""
        if self.on_policy:
            return self.capacity - size
        if self.free_running:
            return self.capacity
        return min(
            self.capacity, int(self.preload + (self.sampled + self.batch) / self.ratio + self.headroom) - self.inserted
        )

    def insert(self, samples: int, size: int) -> None:
        """Count samples that came in. size: those that can be drawn now."""
        self.inserted += samples
        if size == 0 and not self.on_policy:
            # rows need n steps of one environment: as long as there is none, the learner is owed no draw for these, and
            # there is room for more
            self.inserted = min(self.inserted, self.preload + int(self.sampled / self.ratio) - 1)

    @property
    def warm_up_left(self) -> int:
        """Samples that must come in before the first draw from a replay memory."""
        return 0 if self.on_policy else max(0, self.preload - self.inserted)

    @property
    def whole(self) -> int:
        """The greatest round that finds room as a whole sooner or later, whatever the consumer waits for."""
        if self.on_policy:
            return self.capacity - max(self.preload, self.batch)
        return self.capacity if self.free_running else min(self.headroom, self.capacity)

    def may_sample(self, count: int, size: int) -> bool:
        if self.inserted < self.preload or size < (count if self.on_policy else 1):
            return False
        return self.on_policy or self.free_running or self.sampled <= (self.inserted - self.preload) * self.ratio


class ReplayBuffer:
    """The buffer: `add` and `draw` with every rule about accepting and handing out items."""

    def __init__(
        self,
        spec: Spec,
        storage: Storage,
        limiter: Limiter,
        max_version_lag: int | None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """max_version_lag: refuse on-policy items that would be older than this when they are drawn. keep: called at
        the end; keeps what a resume needs besides the storage's files."""
        self.fields = spec.sample_fields
        self.storage = storage
        self.limiter = limiter
        self.counters: Counter[str] = Counter()
        self._by_steps = spec.draw is not None
        # nobody knows how many env steps come with an item of the user's own
        self._warm_up = ("warm_up_samples_left", 1) if spec.sample else ("warm_up_left", spec.steps_per_sample)
        self._most_samples = spec.chunk_length if spec.draw else 1  # of an item: not every step of a chunk is valid
        self._max_lag = max_version_lag
        self._keep = keep
        self._next = NO_VERSION  # the version that trains on the next batch, as far as known
        self._seen: dict[int, tuple[int, int]] = {}
        self._begun: dict[int, tuple[tuple[int, int], int]] = {}  # worker -> origin of a round, items of it that are in
        self.unreported = 0
        """Env steps that came in since the last batch."""

    @property
    def size(self) -> int:
        return self.storage.size

    @property
    def new_env_steps(self) -> int:
        """Env steps that came in since the last batch; 0 on-policy, where steps count when they are drawn."""
        return 0 if self.limiter.on_policy else self.unreported

    def wanted(self, count: int) -> Version:
        """The oldest version that `count` more items may hold: they queue behind all stored items."""
        if not self.limiter.on_policy or self._max_lag is None:
            return Version(self._next.epoch, 0)
        turn = self._next.update + (self.size + count - 1) // self.limiter.batch
        return Version(self._next.epoch, max(0, turn - self._max_lag))

    def add(self, items: Arrays) -> str:
        """Take one round of a worker (name -> [n, ...]): ACCEPTED, DUPLICATE, OLD_EPOCH, STALE or NO_ROOM.

        DUPLICATE: not newer than the last one taken from this worker. OLD_EPOCH, STALE: its weights would be too old
        when its turn comes; it is refused now rather than handed out late, and the worker gets its credits back.
        NO_ROOM: offer the round again after the next draw. A round too large ever to find room as a whole goes in by
        parts, each as large as there is room for; what is in stays in. Raises ContractError for items of another shape
        or with NaN.
        """
        count = len(items["worker"]) if items.get("worker") is not None and items["worker"].ndim == 1 else 0
        if count == 0:
            raise ContractError("a round must have at least one item, with `worker` of shape [n]")
        check_arrays(items, self.fields, (count,), "a round")
        worker, origin = int(items["worker"][0]), (int(items["incarnation"][0]), int(items["seq"][0]))
        if origin <= self._seen.get(worker, (-1, -1)):
            self.counters["duplicate"] += count
            return DUPLICATE
        begun, taken = self._begun.get(worker, (origin, 0))
        taken = taken if begun == origin else 0
        if taken:
            items = {name: array[taken:] for name, array in items.items()}
            count -= taken
        oldest, newest = _oldest_and_newest(items["version"])
        if self._next == NO_VERSION:
            self._next = Version(newest.epoch, 0)
        elif newest.epoch > self._next.epoch:
            return NO_ROOM  # the new epoch's learner has not asked yet, and only it knows the next version
        if oldest < self.wanted(count):
            old_epoch = oldest.epoch < self._next.epoch
            self._seen[worker] = origin
            self.counters["refused_old_epoch" if old_epoch else "refused_stale"] += count
            return OLD_EPOCH if old_epoch else STALE
        least = max(1, self.limiter.whole // self._most_samples)
        if (room := self.limiter.room(self.size) // self._most_samples) < min(count, least):
            return NO_ROOM
        check_finite(items, "a round")
        while room < count:
            self._store({name: array[:room] for name, array in items.items()})
            items = {name: array[room:] for name, array in items.items()}
            taken, count = taken + room, count - room
            self._begun[worker] = (origin, taken)
            if (room := self.limiter.room(self.size) // self._most_samples) < min(count, least):
                return NO_ROOM
        self._store(items)
        self._begun.pop(worker, None)
        self._seen[worker] = origin
        return ACCEPTED

    def _store(self, items: Arrays) -> None:
        self.storage.add(items)
        steps = count_env_steps(items)
        samples = steps if self._by_steps else len(items["worker"])
        self.limiter.insert(samples, self.size)
        self.counters["inserted"] += samples
        self.unreported += steps

    def had(self, origins: dict[int, tuple[int, int]]) -> None:
        """Refuse rounds as duplicates that the learner has had from the buffer before this one: it may have been killed
        before it answered the workers. Only on-policy.

        origins: worker -> (incarnation, seq) of its newest such round.
        """
        if self.limiter.on_policy:
            self._seen |= origins

    def draw(self, count: int, version: Version) -> tuple[Arrays, SampleInfo] | None:
        """Draw `count` samples for `version` to train on, or return None if there are not enough yet.

        The first request of a new epoch drops on-policy items of older epochs; off-policy items stay. The learner of
        an older epoch never gets a batch.
        """
        if version.epoch < self._next.epoch:
            return None
        if version.epoch > self._next.epoch and self.limiter.on_policy and self.size:
            self.counters["dropped_old_epoch"] += self.size
            self.storage.clear()
        self._next = max(self._next, version)
        if not self.limiter.may_sample(count, self.size):
            return None
        items, info = self.storage.sample(count)
        self._next = max(self._next, Version(version.epoch, version.update + 1))
        self.limiter.sampled += count
        self.counters["sampled"] += count
        # on-policy every step is trained on once, and those of this batch are the ones that count as new
        new, self.unreported = count_env_steps(items) if self.limiter.on_policy else self.unreported, 0
        return items, replace(info, new_env_steps=new, size=self.size)

    def close(self) -> None:
        """End in order. Raises OSError if what a resume needs cannot be written."""
        self._keep()
        self.storage.close()

    def totals(self) -> dict[str, float]:
        """The counters since the start and the levels of this moment, for reports."""
        names = ("inserted", "sampled", "duplicate", "refused_old_epoch", "refused_stale", "dropped_old_epoch")
        counted = {name: float(self.counters[name]) for name in names}
        return {
            **counted,
            "evicted": float(self.storage.evicted),
            "size": float(self.size),
            "new_env_steps": float(self.new_env_steps),
            self._warm_up[0]: float(self.limiter.warm_up_left * self._warm_up[1]),
        }


def _oldest_and_newest(version: Array) -> tuple[Version, Version]:
    """The least and the greatest (epoch, update) in version i64 [..., 2]."""
    pairs = version.reshape(-1, 2)
    epoch, update = pairs[:, 0], pairs[:, 1]
    first, last = int(epoch.min()), int(epoch.max())
    return Version(first, int(update[epoch == first].min())), Version(last, int(update[epoch == last].max()))


def make_replay_buffer(plan: Plan, spec: Spec, table: str, seed: int, folder: Path | None = None) -> ReplayBuffer:
    """Make the plan's buffer with its storage; table: the name of reverb's table; folder: keeps a replay memory."""
    fields, selectors = spec.sample_fields, (plan.sampler, plan.remover)
    storage: Storage
    if spec.draw:
        return _make_replay_memory(plan, spec, seed, ArrayFiles(folder))
    if plan.backend == "reverb":
        from realm.data.reverb import ReverbStorage  # late: reverb may not be installed

        storage = ReverbStorage(fields, plan.capacity, *selectors, plan.on_policy, _EXPONENT, table)
    else:
        storage = NativeStorage(fields, plan.capacity, *selectors, plan.on_policy, _EXPONENT, seed)
    return ReplayBuffer(spec, storage, _make_limiter(plan, spec), plan.max_version_lag)


def _make_replay_memory(plan: Plan, spec: Spec, seed: int, files: ArrayFiles) -> ReplayBuffer:
    from realm.data.memory import ReplayMemory  # late: it imports numba

    is_prioritized = plan.sampler == "Prioritized"
    memory = ReplayMemory(spec, plan.capacity, is_prioritized, _EXPONENT, seed, files)
    limiter, state = _make_limiter(plan, spec), files.take()
    if state:
        memory.restore(state["memory"])
    # what it holds counts as the warm-up; draws of the process before do not, since its ratio may have been another
    limiter.inserted = min(memory.size, limiter.preload)

    def keep() -> None:
        files.keep({"unreported": buffer.unreported, "memory": memory.state()})

    buffer = ReplayBuffer(spec, memory, limiter, plan.max_version_lag, keep)
    buffer.unreported = int(state.get("unreported", 0))
    return buffer


def _make_limiter(plan: Plan, spec: Spec) -> Limiter:
    return Limiter(
        on_policy=plan.on_policy,
        capacity=plan.capacity,
        preload=-(-plan.warm_up_steps // spec.steps_per_sample) or plan.preload,
        batch=plan.batch,
        ratio=plan.ratio,
        headroom=plan.round_size * (spec.chunk_length if spec.draw else 1),
        free_running=plan.free_running,
    )
