"""realm/buffer.py and realm/reverb_buffer.py: one contract for both storages, and the rules of the buffer over both."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from realm.config.flow import check_flow
from realm.config.plan import Plan
from realm.contract import ORIGIN_FIELDS, ActionSpec, Array, Arrays, Field, Spec, Version
from realm.data.buffer import ACCEPTED, DUPLICATE, NO_ROOM, OLD_EPOCH, STALE, Limiter, ReplayBuffer, Storage
from realm.data.native import NativeStorage
from realm.errors import ConfigError, ContractError
from realm.launch import local
from realm.roles.buffer import Keeper
from realm.watch.board import Board
from realm.watch.meters import Meters
from realm.wire.codec import Message
from tests.backends import BACKENDS, NEEDS_REVERB, plan_of

ROOT = Path(__file__).parents[2]
FIELDS = {
    **ORIGIN_FIELDS,
    "image": Field((3, 2), "uint8"),
    "flag": Field((), "bool"),
    "value": Field((2,), "float32"),
    "wide": Field((), "float64"),
    "empty": Field((0, 4), "float32"),
}
SPEC = Spec({"x": Field((2,), "float32")}, ActionSpec(n=3), {"value": Field((), "float32")}, chunk_length=2)

MakeStorage = Callable[..., Storage]
MakeBuffer = Callable[..., ReplayBuffer]


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[MakeStorage]:
    """make(capacity, sampler, remover="Fifo", on_policy=False, exponent=1.0, fields=FIELDS) -> Storage"""
    made: list[Storage] = []

    def storage(
        capacity: int, sampler: str, remover: str = "Fifo", on_policy: bool = False, exponent: float = 1.0,
        fields: dict[str, Field] = FIELDS,
    ) -> Storage:  # fmt: skip
        if request.param == "reverb":
            from realm.data.reverb import ReverbStorage

            made.append(ReverbStorage(fields, capacity, sampler, remover, on_policy, exponent, "test"))
        else:
            made.append(NativeStorage(fields, capacity, sampler, remover, on_policy, exponent, seed=0))
        return made[-1]

    yield storage
    for one in made:
        one.close()


def items(names: list[int], draw: np.random.Generator | None = None) -> Arrays:
    """Items that bear their names in `seq`; the rest is random, or nothing."""
    made = {name: np.zeros((len(names), *one.shape), one.dtype) for name, one in FIELDS.items()}
    if draw is not None:
        for name, array in made.items():
            made[name] = (draw.normal(size=array.shape) * 100).astype(array.dtype)
    made["seq"] = np.array(names, np.int64)
    return made


def names(drawn: Arrays) -> list[int]:
    return [int(one) for one in drawn["seq"]]


def keys_of(storage: Storage, count: int) -> dict[int, int]:
    """Name -> key of everything in a storage with a Uniform or Prioritized sampler."""
    found: dict[int, int] = {}
    for _ in range(1000):
        drawn, info = storage.sample(20)
        found |= {name: int(key) for name, key in zip(names(drawn), info.key, strict=True)}
        if len(found) == count:
            return found
    raise AssertionError(f"{count} items should be there, {len(found)} were drawn")


def set_priorities(storage: Storage, keys: dict[int, int], priorities: dict[int, float]) -> None:
    key = np.array([keys[name] for name in priorities], np.uint64)
    storage.update_priorities(key, np.array(list(priorities.values()), np.float64))


def is_near(counts: Counter[int], expected: dict[int, float], total: int) -> None:
    """Within five standard deviations of the binomial distribution."""
    for name, p in expected.items():
        assert abs(counts[name] - total * p) <= 5 * np.sqrt(total * p * (1 - p)) + 1e-9, (name, counts, expected)


class TestStorage:
    """What every storage must do; a new one is added to BACKENDS and nothing else."""

    @pytest.mark.parametrize("remover", ["Fifo", "Lifo", "Uniform", "Prioritized", "MinHeap", "MaxHeap"])
    def test_fifo_once_hands_out_everything_exactly_once_in_order(self, make: MakeStorage, remover: str) -> None:
        """Whatever the remover, which a configuration may name: it has nothing to do."""
        draw, generator = random.Random(0), np.random.default_rng(0)
        storage, literal, added = make(20, "Fifo", remover, on_policy=True), deque[tuple[int, Arrays]](), 0
        keys = set()
        for _ in range(200):
            count = draw.randint(1, 7)
            if draw.random() < 0.5 and len(literal) + count <= 20:
                new = items(list(range(added, added + count)), generator)
                storage.add(new)
                literal += [(added + n, {name: array[n].copy() for name, array in new.items()}) for n in range(count)]
                added += count
                for array in new.values():
                    array[...] = 0  # a storage keeps no view
            elif len(literal) >= count:
                drawn, info = storage.sample(count)
                for n in range(count):
                    name, item = literal.popleft()
                    assert int(drawn["seq"][n]) == name
                    for field, array in drawn.items():
                        assert array.dtype == FIELDS[field].dtype
                        assert array.shape == (count, *FIELDS[field].shape)
                        assert array[n].tobytes() == item[field].tobytes()
                assert (info.times_sampled == 1).all()
                assert (info.probability == 1).all()
                assert info.key.dtype == np.uint64
                assert info.times_sampled.dtype == np.int64
                keys |= set(info.key.tolist())
            assert storage.size == len(literal)
        assert len(keys) == added - len(literal) > 200
        assert storage.evicted == 0

    def test_uniform(self, make: MakeStorage) -> None:
        storage = make(10, "Uniform")
        storage.add(items([0, 1, 2, 3, 4]))
        set_priorities(storage, keys_of(storage, 5), {0: 100.0})  # which a uniform sampler does not look at
        counts: Counter[int] = Counter()
        for _ in range(40):
            drawn, info = storage.sample(100)
            counts.update(names(drawn))
            assert info.probability == pytest.approx(np.full(100, 0.2))
        is_near(counts, dict.fromkeys(range(5), 0.2), 4000)

    @pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
    def test_prioritized(self, make: MakeStorage, exponent: float) -> None:
        storage = make(10, "Prioritized", exponent=exponent)
        storage.add(items([0, 1, 2, 3]))
        priorities = {0: 1.0, 1: 2.0, 2: 8.0, 3: 0.25}
        set_priorities(storage, keys_of(storage, 4), priorities)
        total = sum(one**exponent for one in priorities.values())
        expected = {name: one**exponent / total for name, one in priorities.items()}
        counts: Counter[int] = Counter()
        for _ in range(40):
            drawn, info = storage.sample(100)
            counts.update(names(drawn))
            assert info.probability == pytest.approx([expected[one] for one in names(drawn)])
        is_near(counts, expected, 4000)

    @pytest.mark.parametrize("sampler", ["Prioritized", "Uniform"])
    def test_a_new_item_has_the_greatest_priority_so_far_where_priorities_decide(
        self, make: MakeStorage, sampler: str
    ) -> None:
        """Where they decide only what leaves, a new item has priority 1."""
        storage = make(4, sampler, "MinHeap")
        storage.add(items([0, 1, 2]))
        keys = keys_of(storage, 3)
        set_priorities(storage, keys, {0: 8.0, 1: 2.0, 2: 3.0})
        set_priorities(storage, keys, {0: 1.5})
        storage.add(items([3]))
        if sampler == "Prioritized":
            drawn, info = storage.sample(1000)
            found = dict(zip(names(drawn), info.probability.tolist(), strict=True))
            assert found == pytest.approx({0: 1.5 / 14.5, 1: 2 / 14.5, 2: 3 / 14.5, 3: 8 / 14.5})
        storage.add(items([4]))  # the least leaves
        assert sorted(keys_of(storage, 4)) == ([1, 2, 3, 4] if sampler == "Prioritized" else [0, 1, 2, 4])

    def test_priority_zero_is_never_drawn_while_others_are_above(self, make: MakeStorage) -> None:
        storage = make(10, "Prioritized", exponent=0.6)
        storage.add(items([0, 1, 2, 3]))
        keys = keys_of(storage, 4)
        set_priorities(storage, keys, {0: 0.0, 2: 0.0, 3: 0.0})
        assert names(storage.sample(200)[0]) == [1] * 200
        set_priorities(storage, keys, {1: 0.0})
        drawn, info = storage.sample(2000)  # all are 0: any is as good
        is_near(Counter(names(drawn)), dict.fromkeys(range(4), 0.25), 2000)
        assert info.probability == pytest.approx(np.full(2000, 0.25))

    @pytest.mark.parametrize(
        ("remover", "stay"),
        [("Fifo", [2, 3, 4, 5]), ("MaxHeap", [0, 3, 4, 5]), ("MinHeap", [1, 2, 3, 5])],
    )
    def test_removers(self, make: MakeStorage, remover: str, stay: list[int]) -> None:
        """The new items, of priority 1, are among those that may leave."""
        storage = make(4, "Uniform", remover)
        storage.add(items([0, 1, 2, 3]))
        set_priorities(storage, keys_of(storage, 4), {0: 0.5, 1: 5.0, 2: 6.0, 3: 1.5})
        storage.add(items([4, 5]))
        assert sorted(keys_of(storage, 4)) == stay
        assert (storage.size, storage.evicted) == (4, 2)

    def test_of_equals_a_heap_removes_the_oldest(self, make: MakeStorage) -> None:
        for remover in ("MinHeap", "MaxHeap"):
            storage = make(3, "Uniform", remover)
            storage.add(items([0, 1, 2]))
            storage.add(items([3]))
            assert sorted(keys_of(storage, 3)) == [1, 2, 3]

    def test_a_uniform_remover(self, make: MakeStorage) -> None:
        stayed: Counter[int] = Counter()
        rounds, storage = 60, make(10, "Uniform", "Uniform")
        for _ in range(rounds):
            storage.clear()
            storage.add(items(list(range(10))))
            storage.add(items(list(range(10, 15))))
            there = keys_of(storage, 10)
            stayed.update(there.keys())
            assert set(there) <= set(range(15))
        assert storage.evicted == 5 * rounds
        assert all(0 < stayed[name] < rounds for name in range(10))  # old ones leave by chance, not by age

    def test_a_prioritized_remover(self, make: MakeStorage) -> None:
        storage = make(4, "Uniform", "Prioritized")
        storage.add(items([0, 1, 2, 3]))
        set_priorities(storage, keys_of(storage, 4), {2: 1e12})
        storage.add(items([4]))
        assert sorted(keys_of(storage, 4)) == [0, 1, 3, 4]

    def test_adding_and_evicting_add_up(self, make: MakeStorage) -> None:
        draw, storage, added = random.Random(3), make(15, "Uniform"), 0
        for _ in range(40):
            count = draw.randint(1, 9)
            storage.add(items(list(range(added, added + count))))
            added += count
            assert storage.size == min(added, 15)
            assert storage.evicted == max(0, added - 15)
        assert sorted(keys_of(storage, 15)) == list(range(added - 15, added))

    def test_clear(self, make: MakeStorage) -> None:
        storage = make(4, "Prioritized")
        storage.add(items([0, 1, 2]))
        old = keys_of(storage, 3)
        for begin in (3, 7):
            storage.clear()
            assert (storage.size, storage.evicted) == (0, 0)
            storage.add(items(list(range(begin, begin + 4))))
            set_priorities(storage, old, dict.fromkeys(old, 1e6))  # what is gone is passed over
            new = keys_of(storage, 4)
            assert sorted(new) == list(range(begin, begin + 4))
            assert not set(new.values()) & set(old.values())
            assert storage.sample(1)[1].probability == pytest.approx([0.25])

    def test_priorities_find_their_items_after_evictions(self, make: MakeStorage) -> None:
        storage = make(3, "Prioritized")
        storage.add(items([0, 1, 2]))
        keys = keys_of(storage, 3)
        storage.add(items([3]))  # takes the place of 0
        set_priorities(storage, keys, {0: 7.0, 1: 2.0, 2: 3.0})
        found = {}
        for _ in range(50):
            drawn, info = storage.sample(20)
            found |= dict(zip(names(drawn), info.probability.tolist(), strict=True))
        assert found == pytest.approx({1: 2 / 6, 2: 3 / 6, 3: 1 / 6})

    def test_times_sampled_counts_draws(self, make: MakeStorage) -> None:
        storage = make(4, "Uniform")
        storage.add(items([0, 1, 2]))
        counts: Counter[int] = Counter()
        for _ in range(20):
            drawn, info = storage.sample(5)
            counts.update(names(drawn))
            newest: dict[int, int] = {}
            for name, times in zip(names(drawn), info.times_sampled.tolist(), strict=True):
                newest[name] = max(times, newest.get(name, 0))
            assert newest == {name: counts[name] for name in newest}


# --- the rules


@pytest.fixture
def make_buffer(make: MakeStorage) -> MakeBuffer:
    def buffer(
        on_policy: bool = True, capacity: int = 16, preload: int = 4, batch: int = 4, ratio: float = 1.0,
        headroom: int = 4, lag: int | None = None,
    ) -> ReplayBuffer:  # fmt: skip
        sampler = "Fifo" if on_policy else "Uniform"
        storage = make(capacity, sampler, "Fifo", on_policy, 1.0, SPEC.sample_fields)
        return ReplayBuffer(SPEC, storage, Limiter(on_policy, capacity, preload, batch, ratio, headroom), lag)

    return buffer


@pytest.fixture
def native() -> MakeBuffer:
    def buffer(
        on_policy: bool, capacity: int, preload: int, batch: int, ratio: float, headroom: int, lag: int | None
    ) -> Any:
        storage = NativeStorage(
            SPEC.sample_fields, capacity, "Fifo" if on_policy else "Uniform", "Fifo", on_policy, 1.0, 0
        )
        return ReplayBuffer(SPEC, storage, Limiter(on_policy, capacity, preload, batch, ratio, headroom), lag)

    return buffer


def played(seq: int, worker: int = 0, incarnation: int = 1, version: Any = (1, 0), count: int = 2) -> Arrays:
    """One round; version: one (epoch, update), or one for each row [T = 2]."""
    made = {name: np.zeros((count, *one.shape), one.dtype) for name, one in SPEC.sample_fields.items()}
    made["worker"][:], made["incarnation"][:], made["seq"][:] = worker, incarnation, seq
    made["env"][:] = np.arange(count)
    made["version"][:] = version
    return made


def where_from(drawn: Arrays) -> list[tuple[int, int, int]]:
    return [
        (int(w), int(s), int(e)) for w, s, e in zip(drawn["worker"], drawn["seq"], drawn["env"], strict=True)
    ]  # fmt: skip


def state(buffer: ReplayBuffer) -> Any:
    return buffer.totals(), buffer.limiter.inserted, buffer.limiter.sampled, dict(buffer._seen)


def test_a_round_counts_once(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer()
    assert buffer.add(played(0)) == ACCEPTED
    assert buffer.add(played(0)) == DUPLICATE
    assert buffer.add(played(0, worker=1)) == ACCEPTED
    assert buffer.add(played(2)) == ACCEPTED
    assert buffer.add(played(1)) == DUPLICATE  # numbers only rise: this one came before, and was refused or lost
    assert buffer.add(played(0, incarnation=2)) == ACCEPTED  # restarted, it counts anew
    assert buffer.add(played(3)) == DUPLICATE  # and its forerunner's last words come too late
    drawn, _ = buffer.draw(4, Version(1, 0))  # type: ignore[misc]
    assert where_from(drawn) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert buffer.totals() == {
        "inserted": 8, "sampled": 4, "duplicate": 6, "refused_old_epoch": 0, "refused_stale": 0,
        "dropped_old_epoch": 0, "evicted": 0, "size": 4, "new_env_steps": 0, "warm_up_left": 0,
    }  # fmt: skip


def test_items_of_the_users_own_warm_up_in_samples() -> None:
    """Their env steps come with them, and nobody knows how many; a buffer that is never used is not shown."""
    spec = dataclasses.replace(SPEC, sample={**ORIGIN_FIELDS, "valid": Field((), "int64"), "x": Field((2,), "float32")})
    storage = NativeStorage(spec.sample_fields, 100, "Uniform", "Fifo", False, 0.0, 0)
    limiter = Limiter(on_policy=False, capacity=100, preload=10, batch=2, ratio=1.0, headroom=1, free_running=True)
    buffer, board = ReplayBuffer(spec, storage, limiter, None), Board()

    def warm_up() -> tuple[int, int]:
        local._report(board, SimpleNamespace(env_steps=0), Meters(), Meters(), buffer)  # type: ignore[arg-type]
        status = board.status("running", 100, 0, 0.0)
        return status.warm_up_left, status.warm_up_samples_left

    assert warm_up() == (0, 0)
    items = {name: np.zeros((3, *field.shape), field.dtype) for name, field in spec.sample_fields.items()}
    items["valid"][0] = 640
    items["version"][:] = 1
    assert buffer.add(items) == ACCEPTED
    assert (buffer.new_env_steps, warm_up()) == (640, (0, 7))


def test_a_new_epoch_refuses_and_drops_the_old(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(lag=5)
    assert buffer.add(played(0, version=(1, 30))) == ACCEPTED
    assert buffer.draw(4, Version(2, 25)) is None  # the new learner's first question, after a resume
    assert buffer.size == 0
    assert buffer.add(played(1, version=(1, 31))) == OLD_EPOCH
    assert buffer.add(played(1, version=(1, 31))) == DUPLICATE
    assert buffer.add(played(2, version=[(1, 31), (2, 25)])) == OLD_EPOCH  # one row is enough
    assert buffer.wanted(2) == Version(2, 20)
    assert buffer.add(played(3, version=(2, 25), count=4)) == ACCEPTED
    assert buffer.draw(4, Version(2, 25)) is not None
    # a round of epoch 3 may come before the question of the learner whose weights played it: it has to wait
    assert buffer.add(played(4, version=(2, 26))) == ACCEPTED
    before = state(buffer)
    assert buffer.add(played(5, version=(3, 26), count=4)) == NO_ROOM
    assert buffer.add(played(5, version=[(2, 26), (3, 26)])) == NO_ROOM
    assert state(buffer) == before
    assert buffer.draw(4, Version(3, 27)) is None
    assert buffer.add(played(5, version=(3, 26), count=4)) == ACCEPTED
    assert buffer.draw(4, Version(2, 26)) is None  # the forerunner's last question, to which nobody listens any more
    assert buffer.draw(4, Version(3, 27)) is not None
    totals = buffer.totals()
    assert (totals["dropped_old_epoch"], totals["refused_old_epoch"], totals["duplicate"]) == (4, 4, 2)
    assert totals["inserted"] == totals["sampled"] + totals["dropped_old_epoch"] == 12


def test_a_replay_memory_keeps_what_it_has(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(on_policy=False)
    buffer.add(played(0, count=4))
    assert buffer.draw(4, Version(2, 0)) is not None
    assert buffer.size == 4
    assert buffer.add(played(1)) == OLD_EPOCH
    assert buffer.add(played(2, version=(2, 0))) == ACCEPTED
    assert buffer.totals()["dropped_old_epoch"] == 0


def test_without_room_nothing_changes(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(capacity=8)
    for seq in range(4):
        assert buffer.add(played(seq)) == ACCEPTED
    before = state(buffer)
    for _ in range(3):
        assert buffer.add(played(4)) == NO_ROOM
        assert buffer.add(played(0, worker=1)) == NO_ROOM
    assert state(buffer) == before
    assert buffer.draw(4, Version(1, 0)) is not None
    assert buffer.add(played(4)) == ACCEPTED
    assert buffer.add(played(0, worker=1)) == ACCEPTED
    assert buffer.add(played(5)) == NO_ROOM


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("count", [1, 4, 9, 100, 5000])
def test_a_round_of_any_size_goes_in_and_keeps_the_ratio(make_buffer: MakeBuffer, on_policy: bool, count: int) -> None:
    """What never fits as a whole goes in by parts: each item once, in order, and never further ahead than allowed."""
    capacity, preload, batch, ratio, headroom = 24, 5, 4, 1.0 if on_policy else 0.5, 4
    buffer = make_buffer(on_policy, capacity, preload, batch, ratio, headroom, None)
    drawn: list[int] = []
    for seq in range(-(-200 // count)):
        one = played(seq, count=count)
        one["env"][:] = np.arange(count) + seq * count
        for _ in range(4 * count):
            status = buffer.add(one)
            totals = buffer.totals()
            if not on_policy:
                assert totals["inserted"] <= preload + (totals["sampled"] + batch) / ratio + headroom
            if status == ACCEPTED:
                break
            assert status == NO_ROOM
            batch_drawn = buffer.draw(batch, Version(1, 0))
            assert batch_drawn is not None, "it stands still"
            drawn += batch_drawn[0]["env"].tolist() if on_policy else []
            assert on_policy or buffer.totals()["sampled"] <= (totals["inserted"] - preload) * ratio + batch
        else:
            raise AssertionError("the round never went in")
        assert buffer.add(one) == DUPLICATE
    while on_policy and (batch_drawn := buffer.draw(batch, Version(1, 0))) is not None:
        drawn += batch_drawn[0]["env"].tolist()
    assert buffer.totals()["inserted"] == count * -(-200 // count)
    assert drawn == list(range(len(drawn)))
    assert not on_policy or len(drawn) > buffer.totals()["inserted"] - batch


def spoiled(change: Callable[[Arrays], Any]) -> Arrays:
    one = played(0)
    change(one)
    return one


def fill(name: str, value: float) -> Callable[[Arrays], Any]:
    return lambda one: one[name].reshape(-1).__setitem__(-1, value)


def put(name: str, array: Array) -> Callable[[Arrays], Any]:
    return lambda one: one.__setitem__(name, array)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (fill("reward", np.nan), "a round: reward holds NaN or infinity"),
        (fill("obs.x", np.inf), "a round: obs.x holds NaN or infinity"),
        (fill("extra.value", -np.inf), "a round: extra.value holds NaN or infinity"),
        (put("reward", np.zeros((2, 3), np.float32)), r"reward must be float32\[2, 2\], got float32\[2, 3\]"),
        (put("reward", np.zeros((2, 2))), r"reward must be float32\[2, 2\], got float64\[2, 2\]"),
        (put("valid", np.zeros((2, 2), np.uint8)), r"valid must be bool\[2, 2\], got uint8\[2, 2\]"),
        (put("obs.x", np.zeros((2, 2, 2), np.float32)), r"obs.x must be float32\[2, 3, 2\], got float32\[2, 2, 2\]"),
        (put("first", np.zeros((3, 3), bool)), r"first must be bool\[2, 3\], got bool\[3, 3\]"),
        (put("obs.y", np.zeros(2)), r"missing \[\], unknown \['obs.y'\]"),
        (lambda one: one.pop("seq"), r"missing \['seq'\], unknown \[\]"),
        (lambda one: one.pop("worker"), "a round must have at least one item"),
        (put("worker", np.array(3)), "a round must have at least one item"),
        (put("worker", np.zeros(0, np.int64)), "a round must have at least one item"),
        (put("worker", np.zeros(2)), r"worker must be int64\[2\], got float64\[2\]"),
    ],
)
def test_what_breaks_the_contract_is_refused_and_changes_nothing(
    make_buffer: MakeBuffer, change: Callable[[Arrays], Any], text: str
) -> None:
    buffer = make_buffer()
    before = state(buffer)
    with pytest.raises(ContractError, match=text):
        buffer.add(spoiled(change))
    assert state(buffer) == before
    assert buffer.add(played(0)) == ACCEPTED


def test_stale_rounds_are_refused_by_where_they_would_stand(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(capacity=32, lag=1)
    assert buffer.draw(4, Version(1, 10)) is None
    assert buffer.add(played(0, version=(1, 8))) == STALE  # would be trained on by 10
    assert buffer.add(played(1, version=(1, 9))) == ACCEPTED
    assert buffer.add(played(2, version=[(1, 9), (1, 10)])) == ACCEPTED
    assert buffer.wanted(1) == buffer.wanted(4) == Version(1, 10)  # behind one batch: by 11
    assert buffer.wanted(5) == Version(1, 11)
    assert buffer.add(played(3, version=[(1, 10), (1, 9)])) == STALE  # one old row is enough
    assert buffer.add(played(4, version=(1, 10))) == ACCEPTED
    assert buffer.draw(4, Version(1, 10)) is not None
    assert buffer.wanted(2) == Version(1, 10)
    assert buffer.totals()["refused_stale"] == 4
    assert buffer.size == 2


def test_strict_on_policy_is_one_version_a_batch(native: MakeBuffer) -> None:
    draw, buffer = random.Random(0), native(True, 64, 4, 4, 1.0, 4, 0)
    seq, update = 0, 0
    for _ in range(2000):
        if draw.random() < 0.6:
            buffer.add(played(seq, version=(1, max(0, update - draw.randint(0, 1)))))
            seq += 1
        elif (drawn := buffer.draw(4, Version(1, update))) is not None:
            assert np.unique(drawn[0]["version"].reshape(-1, 2), axis=0).tolist() == [[1, update]]
            update += 1
    assert update > 50


@pytest.mark.parametrize("lag", [0, 1, 3, None])
def test_staleness_against_a_literal_queue(native: MakeBuffer, lag: int | None) -> None:
    """Every refusal is right, every acceptance too: what is drawn is never older than the lag."""
    draw = random.Random(lag)
    batch, buffer = 3, native(True, 30, 3, 3, 1.0, 3, lag)
    queue: list[tuple[int, int]] = []  # (seq, update) of each item
    update, refused = 0, 0
    buffer.draw(batch, Version(1, 0))
    for seq in range(3000):
        count, made = draw.randint(1, 4), max(0, update - draw.randint(0, 3))
        turn = update + (len(queue) + count - 1) // batch
        status = buffer.add(played(seq, version=(1, made), count=count))
        if lag is not None and turn - made > lag:
            assert status == STALE
            refused += count
        elif len(queue) + count > 30:
            assert status == NO_ROOM
        else:
            assert status == ACCEPTED
            queue += [(seq, made)] * count
        if draw.random() < 0.7:
            drawn = buffer.draw(batch, Version(1, update))
            assert (drawn is None) == (len(queue) < batch)
            if drawn is not None:
                assert [one[:2] for one in zip(drawn[0]["seq"].tolist(), strict=True)] == [(s,) for s, _ in queue[:3]]
                lags = update - drawn[0]["version"][..., 1]
                assert lag is None or lags.max() <= lag
                del queue[:batch]
                update += 1
    assert buffer.totals()["refused_stale"] == refused
    assert update > 100
    assert (refused > 0) == (lag is not None)


def accepted(draw: random.Random) -> Plan | None:
    """A plan that `check_flow` accepts, or None."""
    on_policy, preload_ratio = draw.random() < 0.5, draw.choice([1.0, 1.5, 2.0, 6.0])
    plan = plan_of(
        preload_ratio, on_policy=on_policy, capacity=draw.randint(2, 60), batch=draw.randint(1, 20),
        ratio=1.0 if on_policy else draw.choice([0.25, 0.7, 1.0, 3.0, 20.0]), envs_per_worker=draw.randint(1, 12),
    )  # fmt: skip
    try:
        check_flow(plan, preload_ratio)
    except ConfigError:
        return None
    return plan


def test_limiter_against_a_literal_count_and_without_deadlock(native: MakeBuffer) -> None:
    draw, tried = random.Random(0), 0
    while tried < 120:
        plan = accepted(draw)
        if plan is None:
            continue
        tried += 1
        on_policy, batch, ratio, size_of_round = plan.on_policy, plan.batch, plan.ratio, plan.round_size
        preload = plan.preload
        if not on_policy and size_of_round > plan.capacity:
            continue  # it goes in by parts, as another test shows
        buffer = native(on_policy, plan.capacity, preload, batch, ratio, size_of_round, None)
        inserted = sampled = size = seq = 0
        eager = draw.random()  # from here mostly the workers are quick, there the learner
        for _ in range(150):
            may_add = size + size_of_round <= plan.capacity if on_policy else (
                inserted + size_of_round - size_of_round <= preload + (sampled + batch) / ratio
            )  # fmt: skip
            enough = size >= (batch if on_policy else 1) and inserted >= preload
            may_draw = enough and (on_policy or sampled <= (inserted - preload) * ratio)
            assert may_add or may_draw, f"{plan} stalls at {inserted} in, {sampled} out"
            if draw.random() < eager:
                status = buffer.add(played(seq, count=size_of_round))
                assert status == (ACCEPTED if may_add else NO_ROOM), (plan, inserted, sampled)
                if may_add:
                    seq, inserted = seq + 1, inserted + size_of_round
                    size = size + size_of_round if on_policy else min(size + size_of_round, plan.capacity)
            else:
                drawn = buffer.draw(batch, Version(1, 0))
                assert (drawn is not None) == may_draw, (plan, inserted, sampled)
                if drawn is not None:
                    assert len(drawn[0]["worker"]) == batch
                    sampled, size = sampled + batch, size - batch if on_policy else size
            assert buffer.size == size
        if not on_policy and inserted > preload:
            # neither side is ahead of the ratio by more than it may be
            assert sampled <= (inserted - preload) * ratio + batch
            assert inserted <= preload + (sampled + batch) / ratio + size_of_round
        totals = buffer.totals()
        assert (totals["inserted"], totals["sampled"]) == (inserted, sampled)
        assert totals["evicted"] == (0 if on_policy else inserted - size)


def test_a_steady_flow_keeps_the_ratio(make_buffer: MakeBuffer) -> None:
    """Eager on both sides: a sample is drawn `ratio` times on average, to within what may be ahead."""
    for ratio in (0.5, 1.0, 4.0):
        buffer = make_buffer(on_policy=False, capacity=40, preload=10, batch=4, ratio=ratio, headroom=4)
        seq = 0
        for _ in range(200):
            seq += buffer.add(played(seq, count=4)) == ACCEPTED
            buffer.draw(4, Version(1, 0))
        totals = buffer.totals()
        assert totals["inserted"] > 100
        assert abs(totals["sampled"] - (totals["inserted"] - 10) * ratio) <= 4 + (4 + 4) * ratio
        assert totals["evicted"] == totals["inserted"] - 40


def test_nothing_before_the_preload(make_buffer: MakeBuffer) -> None:
    for on_policy in (True, False):
        buffer = make_buffer(on_policy=on_policy, preload=6)
        for seq in range(2):
            assert buffer.add(played(seq)) == ACCEPTED
            assert buffer.draw(2, Version(1, 0)) is None
        buffer.add(played(2))
        assert buffer.draw(2, Version(1, 0)) is not None


@pytest.mark.parametrize("on_policy", [True, False])
def test_accounts_balance(make_buffer: MakeBuffer, on_policy: bool) -> None:
    """Random rounds, doubled, late, of former epochs: everything offered is in exactly one account."""
    draw = random.Random(5)
    buffer = make_buffer(on_policy=on_policy, capacity=16, ratio=1.0, lag=4 if on_policy else None)
    offered = no_room = invalid = 0
    epoch, update = 1, 0
    seqs: Counter[int] = Counter()
    for _ in range(1500):
        chance = draw.random()
        if chance < 0.01:
            epoch, update = epoch + 1, max(0, update - 3)
        if chance < 0.8:
            worker, count = draw.randint(0, 2), draw.randint(1, 3)
            seqs[worker] += draw.choice([0, 1, 1, 1])
            version = (max(1, epoch - (draw.random() < 0.1)), max(0, update - draw.choice([0, 0, 0, 1, 2])))
            one = played(seqs[worker], worker, version=version, count=count)
            offered += count
            try:
                if draw.random() < 0.05:
                    one["reward"][0, 0] = np.nan
                no_room += count if buffer.add(one) == NO_ROOM else 0
            except ContractError:
                invalid += count
        elif buffer.draw(4, Version(epoch, update)) is not None:
            update += 1
    totals = buffer.totals()
    refused = totals["duplicate"] + totals["refused_old_epoch"] + totals["refused_stale"]
    assert offered == totals["inserted"] + refused + no_room + invalid
    assert min(no_room, invalid, totals["sampled"], totals["duplicate"], totals["refused_old_epoch"]) > 0
    if on_policy:
        assert totals["inserted"] == totals["sampled"] + totals["dropped_old_epoch"] + totals["size"]
        assert min(totals["refused_stale"], totals["dropped_old_epoch"]) > 0
        assert totals["evicted"] == 0
    else:
        assert totals["inserted"] == totals["evicted"] + totals["size"]
        assert totals["refused_stale"] == totals["dropped_old_epoch"] == 0


# ---- who waits for whom ----


def test_a_standstill_is_named_once_with_the_numbers(native: MakeBuffer) -> None:
    """A learner that asks for a batch which never comes; then workers that find no room; each is told once."""
    keeper = Keeper(native(True, 8, 4, 4, 1.0, 4, None), Meters(), 8)
    begin = time.monotonic()
    assert keeper.standstill(begin + 1000) == ""  # nobody waits
    draw = Message("sample", 1, {"count": 4, "version": [1, 0]}, sender="learner-0", incarnation=1)
    assert keeper.handle(b"l", draw) == []
    assert keeper.standstill(begin + 30) == ""
    text = keeper.standstill(begin + 100)
    assert text.startswith("nothing has moved for 1")
    assert "the learner waits for a batch, until workers have added" in text
    assert text.endswith("(0 of 8 samples are stored, 0 rounds wait)")
    assert keeper.standstill(begin + 200) == ""
    for seq in range(6):  # 12 samples: 4 are drawn, 8 stay, and the sixth round waits
        keeper.handle(b"w", Message("add", seq, {}, played(seq), sender="aisrv-0", incarnation=1))
    text = keeper.standstill(time.monotonic() + 100)
    assert text == "" or "a round in the buffer waits for room" in text
    keeper.handle(b"w", Message("add", 6, {}, played(6), sender="aisrv-0", incarnation=1))
    text = text or keeper.standstill(time.monotonic() + 100)
    assert "a round in the buffer waits for room, or the first question of the learner" in text
    assert keeper.standstill(time.monotonic() + 200) == ""


# ---- how reverb is loaded ----


@NEEDS_REVERB
def test_reverb_comes_without_the_python_of_tensorflow() -> None:
    code = "import sys, realm.data.reverb; print({'tensorflow', 'reverb', 'absl', 'keras'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")


@NEEDS_REVERB
@pytest.mark.parametrize(
    ("lacks", "cause"),
    [
        ("tensorflow", "tensorflow is not installed"),
        ("reverb", "reverb is not installed"),
        ("libpybind.so", "libpybind.so: cannot open shared object file"),
        ("libtensorflow_framework.so.2", "libtensorflow_framework.so.2: cannot open shared object file"),
    ],
)
def test_reverb_that_does_not_load(lacks: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade of one of the two."""
    from realm.data import reverb as reverb_buffer

    def find(name: str) -> ModuleSpec | None:
        if lacks == name:
            return None
        spec = find_spec(name)
        assert spec
        folder = Path(spec.origin or "").parent
        return ModuleSpec(name, None, origin=str((tmp_path if (folder / lacks).exists() else folder) / "__init__.py"))

    monkeypatch.setattr(reverb_buffer, "find_spec", find)
    with pytest.raises(ConfigError) as caught:
        reverb_buffer._load_extension()
    assert str(caught.value).startswith("buffer_backend is reverb, which cannot be loaded in this Python: ")
    assert cause in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
