"""realm/data/memory.py: rows are cut out of chunks as a literal replay of every episode says."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm.chunk import ChunkBuilder
from realm.config.flow import check_rows
from realm.config.keys import AppConfig
from realm.config.plan import Machine, Plan, decide, make_plan
from realm.contract import ActionSpec, Array, Arrays, Draw, Field, Prediction, Spec, Version, chunk_to_arrays
from realm.data.array_files import ArrayFiles
from realm.data.buffer import NO_ROOM, Limiter, ReplayBuffer, make_replay_buffer
from realm.data.memory import ReplayMemory
from realm.data.sumtree import SumTree
from realm.errors import ConfigError
from tests.backends import plan_of


def spec_of(draw: Draw, length: int, own_discount: bool = False) -> Spec:
    return Spec(
        obs={"x": Field((2,), "float32")},
        action=ActionSpec(n=9),
        extra={"echo": Field((), "float32")},
        chunk_length=length,
        step={"discount": Field((), "float32")} if own_discount else {},
        draw=draw,
    )


@dataclass
class Step:
    """One step as it was played. then: whether the same episode goes on."""

    obs: Array
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Array
    discount: float
    begins: bool


class Players:
    """E environments of one worker that play at random, and remember every step of every environment."""

    def __init__(self, spec: Spec, envs: int, worker: int, seed: int, incarnation: int = 1, ends: float = 0.15) -> None:
        """ends: the chance of a step to be an episode's last."""
        self.ends = ends
        self.rng = np.random.default_rng(seed)
        self.envs, self.spec = envs, spec
        self.count = 0
        obs = self._observe()
        self.chunks = ChunkBuilder(spec, obs, worker, incarnation)
        self.obs = obs["x"]
        self.ended = np.zeros(envs, bool)
        self.begins = np.ones(envs, bool)
        self.played: list[list[Step]] = [[] for _ in range(envs)]
        self.places: dict[tuple[int, int, int], int] = {}  # (env, seq, row) -> index in `played`
        self.seq = 0

    def _observe(self) -> Arrays:
        self.count += 1
        return {"x": np.stack([np.full(self.envs, self.count), np.arange(self.envs)], 1).astype(np.float32)}

    def round(self) -> Arrays:
        row = 0
        while not self.chunks.full:
            action = self.rng.integers(0, 9, self.envs)
            discount = self.rng.random(self.envs).astype(np.float32)
            reward = self.rng.normal(size=self.envs).astype(np.float32)
            over = self.rng.random(self.envs) < self.ends
            terminated = over & (self.rng.random(self.envs) < 0.5)
            obs = self._observe()
            self.chunks.step(
                Prediction(action, {"echo": action.astype(np.float32)}, Version(1, 0)),
                reward, terminated, over & ~terminated, obs,
                {"discount": discount},
            )  # fmt: skip
            for e in range(self.envs):
                if not self.ended[e]:
                    self.places[e, self.seq, row] = len(self.played[e])
                    self.played[e].append(
                        Step(
                            self.obs[e], int(action[e]), float(reward[e]), bool(terminated[e]),
                            bool(over[e] & ~terminated[e]), obs["x"][e], float(discount[e]), bool(self.begins[e]),
                        )
                    )  # fmt: skip
            self.begins, self.ended = self.ended, over & ~self.ended
            self.obs = obs["x"]
            row += 1
        self.seq += 1
        return chunk_to_arrays(self.chunks.take())

    def row(self, env: int, at: int) -> dict[str, Any] | None:
        """The row that begins at step `at` of this environment; None if its steps have not all been played."""
        draw, steps = self.spec.draw, self.played[env]
        assert draw
        reward, factor, now = 0.0, 1.0, at
        for n in range(draw.n_step):
            now = at + n
            if now >= len(steps):
                return None
            reward += factor * steps[now].reward
            factor *= steps[now].discount if self.spec.step else draw.gamma
            if steps[now].terminated or steps[now].truncated:
                break
        back = at
        seen = [steps[at].obs]
        for _ in range(draw.look_back):
            back -= not steps[back].begins
            seen.insert(0, steps[back].obs)
        after = [*seen[1:], steps[at].obs][: draw.look_back]
        history = [one.obs for one in steps[: now + 1]]
        begin = max(n for n in range(now + 1) if steps[n].begins)
        episode = [*history[begin:], steps[now].next_obs]
        after = [episode[max(0, len(episode) - 1 - k)] for k in range(draw.look_back, 0, -1)] + [steps[now].next_obs]
        return {
            "obs.x": np.array(seen) if draw.look_back else seen[0],
            "next_obs.x": np.array(after) if draw.look_back else after[-1],
            "action": steps[at].action,
            "reward": reward,
            "discount": 0.0 if steps[now].terminated else factor,
            "extra.echo": float(steps[at].action),
        }


CASES = [
    (Draw(), 1, False),
    (Draw(1, 0.9), 5, False),
    (Draw(3, 0.9), 1, False),
    (Draw(3, 0.9), 4, True),
    (Draw(7, 0.5), 3, False),
    (Draw(1, 0.99, look_back=3), 4, False),
    (Draw(4, 0.97, look_back=6), 4, True),
    (Draw(2, 0.97, look_back=2), 1, False),
]


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("draw", "length", "own_discount"), CASES)
def test_rows_are_those_of_a_literal_replay(draw: Draw, length: int, own_discount: bool, prioritized: bool) -> None:
    """Two workers play while the memory fills up and evicts; each drawn row is what its episode says, and each step
    that can be drawn is."""
    spec = spec_of(draw, length, own_discount)
    capacity = 40 * length
    memory = ReplayMemory(spec, capacity, prioritized, 0.6, seed=0)
    workers = [Players(spec, 3, worker, seed=worker) for worker in range(2)]
    for turn in range(24):
        player = workers[turn % 2]
        memory.add(player.round())
        if memory.size == 0:
            continue
        items, info = memory.sample(16)
        assert (info.probability > 0).all()
        for b in range(16):
            who = workers[int(items["worker"][b])]
            env = int(items["env"][b])
            number = int(info.key[b]) - 1
            row = number % length
            at = who.places[env, int(items["seq"][b]), row]
            expected = who.row(env, at)
            assert expected is not None
            for name, value in expected.items():
                assert np.abs(items[name][b] - value).max() < 1e-4, name
    drawn = Counter(memory.sample(4000)[1].key.tolist())
    assert len(drawn) == memory.size == int(memory._ready.sum())
    assert memory.size == can_be_drawn(memory, workers, draw, length)


def can_be_drawn(memory: ReplayMemory, workers: list[Players], draw: Draw, length: int) -> int:
    """Steps that are stored with all their later steps and all that they look back at: a count step by step."""
    stored: dict[tuple[int, int], set[int]] = defaultdict(set)
    live = np.flatnonzero(memory._key)
    for place in live:
        worker, env, seq = (int(memory._rows[name][place]) for name in ("worker", "env", "seq"))
        for row in range(length):
            at = workers[worker].places.get((env, seq, row))
            if at is not None:
                stored[worker, env].add(at)
    total = 0
    for (worker, env), steps in stored.items():
        played = workers[worker].played[env]
        for at in steps:
            good, now = True, at
            for _ in range(draw.n_step - 1):
                if played[now].terminated or played[now].truncated:
                    break
                now += 1
                good &= now in steps
                if not good:
                    break
            back = at
            for _ in range(draw.look_back):
                if played[back].begins:
                    break
                back -= 1
                good &= back in steps
            total += good
    return total


def test_the_warm_up_lasts_until_there_is_a_row() -> None:
    """Rows of n steps, warm-ups of any length, the smallest memory that is accepted, and workers that start again:
    somebody can always go on. Training begins as soon as the warm-up is over and a row is there, and keeps the ratio
    from then on.
    """
    draw, prolonged, enough = random.Random(3), 0, 0
    for case in range(120):
        rows = Draw(draw.choice([1, 2, 5, 17]), 0.9, look_back=draw.choice([0, 0, 1, 4]))
        spec = spec_of(rows, draw.choice([1, 2, 5]))
        workers, envs, batch = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 20)
        ratio, ends = draw.choice([0.3, 1.0, 3.0, 40.0]), draw.choice([0.0, 0.0, 0.02, 0.3])
        plan = plan_of(on_policy=False, capacity=1, workers=workers, envs_per_worker=envs)
        with pytest.raises(ConfigError) as refused:
            check_rows(plan, spec)
        capacity = int(str(refused.value).rpartition(" ")[2]) * draw.choice([1, 1, 3])
        check_rows(dataclasses.replace(plan, capacity=capacity), spec)
        one_round = workers * envs * spec.chunk_length
        needed = -(-rows.n_step // spec.chunk_length) * one_round  # for a row, where no episode ends
        warm_up = max(1, draw.choice([1, needed - one_round, needed, draw.randint(1, 2 * needed)]))
        limiter = Limiter(False, capacity, warm_up, batch, ratio, one_round)
        buffer = ReplayBuffer(spec, ReplayMemory(spec, capacity, False, 1.0, case), limiter, None)
        players = [Players(spec, envs, worker, case + worker, ends=ends) for worker in range(workers)]
        incarnations, waiting = [1] * workers, [player.round() for player in players]
        begun_at, prolongs = 0, False
        while limiter.sampled < 2 * batch:
            moved = False
            for worker in draw.sample(range(workers), draw.randint(1, workers)):
                if buffer.add(waiting[worker]) == NO_ROOM:
                    continue
                moved = True
                prolongs |= not begun_at and buffer.counters["inserted"] >= warm_up and buffer.size == 0
                if draw.random() < 0.02:
                    incarnations[worker] += 1
                    players[worker] = Players(spec, envs, worker, draw.randint(0, 9999), incarnations[worker], ends)
                waiting[worker] = players[worker].round()
            came = buffer.counters["inserted"]
            if buffer.draw(batch, Version(1, 0)) is not None:
                assert came >= warm_up
                begun_at = begun_at or came
            else:
                assert begun_at or came < warm_up or buffer.size == 0
                assert moved, f"it stands still: {vars(limiter)}"
            assert limiter.sampled <= max(0, came - max(begun_at, warm_up) + one_round) * ratio + batch
        prolonged, enough = prolonged + prolongs, enough + (not prolongs)
    assert min(prolonged, enough) > 15


def test_without_bootstrapping_at_a_time_limit_this_fails() -> None:
    """A time limit is no end of the world: the value of what would have come counts; a terminal state has none."""
    memory = ReplayMemory(spec_of(Draw(1, 0.5), 1), 8, False, 1.0, 0)
    for seq, (terminated, truncated) in enumerate([(False, True), (True, False)]):
        chunk = {name: np.zeros((1, *one.shape), one.dtype) for name, one in spec_of(Draw(), 1).sample_fields.items()}
        chunk["terminated"][:], chunk["truncated"][:], chunk["valid"][:] = terminated, truncated, True
        chunk["env"][:], chunk["reward"][:] = seq, 1.0
        memory.add(chunk)
    items, _ = memory.sample(50)
    assert set(zip(items["env"].tolist(), items["discount"].tolist(), strict=True)) == {(0, 0.5), (1, 0.0)}


def test_an_episode_that_was_thrown_away_is_no_bridge() -> None:
    """The chunk after it begins anew, although the one before it did not end."""
    spec = spec_of(Draw(2, 0.5), 1)
    memory = ReplayMemory(spec, 8, False, 1.0, 0)
    for seq, first in enumerate([True, True, False]):
        chunk = {name: np.zeros((1, *one.shape), one.dtype) for name, one in spec.sample_fields.items()}
        chunk["valid"][:], chunk["seq"][:], chunk["first"][:, 0] = True, seq, first
        memory.add(chunk)
    assert memory.size == 1
    assert set(memory.sample(20)[0]["seq"].tolist()) == {1}


def test_a_round_of_many_chunks_goes_in_by_parts_and_keeps_the_ratio() -> None:
    """Larger than the memory: what is drawn meanwhile was played, and no more goes in than the ratio lets."""
    spec = spec_of(Draw(3, 0.9), 4)
    capacity, warm_up, batch, ratio, ahead = 240, 50, 16, 0.5, 24
    limiter = Limiter(False, capacity, warm_up, batch, ratio, ahead)
    buffer, player = (
        ReplayBuffer(spec, ReplayMemory(spec, capacity, False, 1.0, 0), limiter, None),
        Players(spec, 2, 0, 1),
    )
    for _ in range(3):
        parts = [{name: array.copy() for name, array in player.round().items()} for _ in range(100)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        while buffer.add(joined) == NO_ROOM:
            drawn = buffer.draw(batch, Version(1, 0))
            assert drawn is not None, "it stands still"
            for row in range(batch):
                env, seq = int(drawn[0]["env"][row]), int(drawn[0]["seq"][row])
                step = (int(drawn[1].key[row]) - 1) % spec.chunk_length
                expected = player.row(env, player.places[env, seq, step])
                assert expected is not None
                assert float(drawn[0]["reward"][row]) == pytest.approx(expected["reward"], abs=1e-4)
            came, given = buffer.counters["inserted"], buffer.counters["sampled"]
            assert came <= warm_up + (given + batch) / ratio + ahead
            assert given <= (came - warm_up) * ratio + batch
    assert buffer.counters["inserted"] == sum(map(len, player.played))


def test_a_step_takes_few_bytes() -> None:
    """Of HalfCheetah and of Pong, as `conf/` plays them; a step is stored once, and so is a frame."""
    cheetah = ActionSpec(low=(-1.0,) * 6, high=(1.0,) * 6)
    assert Spec({"state": Field((17,), "float32")}, cheetah, {}, 20, draw=Draw()).row_bytes <= 130
    pong = Draw(3, look_back=3)
    assert Spec({"state": Field((84, 84, 1), "uint8")}, ActionSpec(n=6), {}, 20, draw=pong).row_bytes <= 7600


def test_no_row_of_n_steps_has_one_that_was_thrown_away() -> None:
    """An environment that fails leaves a chunk of which no row is valid; so do resets by hand, in the middle of one."""
    spec = spec_of(Draw(3, 0.5), 4)
    for lost in ([(1, 0), (1, 1), (1, 2), (1, 3)], [(1, 1)], [(0, 3), (2, 0)]):
        memory = ReplayMemory(spec, 64, True, 1.0, 0)
        for seq in range(3):
            chunk = {name: np.zeros((1, *one.shape), one.dtype) for name, one in spec.sample_fields.items()}
            chunk["seq"][:] = seq
            chunk["action"][0] = seq * 4 + np.arange(4)
            chunk["valid"][0] = [(seq, row) not in lost for row in range(4)]
            chunk["reward"][0] = np.where(chunk["valid"][0], 1.0, 1000.0)
            memory.add(chunk)
        gone = {seq * 4 + row for seq, row in lost}
        whole = {at for at in range(10) if not gone & {at, at + 1, at + 2}}
        rows, _ = memory.sample(200)
        assert set(rows["action"].tolist()) == whole
        assert set(rows["reward"].tolist()) == {1.75}
        assert memory.size == len(whole)


def drawn_at(ratio: float) -> Plan:
    """One worker of three environments; each row is drawn as often as the ratio says."""
    app = AppConfig(
        algorithm_on_policy_or_off_policy="off-policy", aisrv_count=1, aisrv_connect_to_kaiwu_env_count=3,
        replay_buffer_capacity=600, warm_up_steps=90, train_batch_size=16, production_consume_ratio=ratio,
    )  # fmt: skip
    return make_plan(decide(app, Machine(cores=2, gpus=0, has_reverb=False)).app)


def test_steps_that_no_batch_has_told_of_outlive_a_resume(tmp_path: Path) -> None:
    spec = spec_of(Draw(), 4)
    plan = drawn_at(8.0)
    told = 0
    player = Players(spec, 3, 0, 7)
    for rounds in (4, 10):
        buffer = make_replay_buffer(plan, spec, "", 0, tmp_path)
        for _ in range(rounds):
            buffer.add(player.round())
            while (drawn := buffer.draw(16, Version(1, 0))) is not None:
                told += drawn[1].new_env_steps
        assert told + buffer.new_env_steps == sum(map(len, player.played))
        assert (told == 0) == (rounds == 4)
        buffer.close()


def test_a_resume_with_another_ratio_owes_nothing_for_the_time_before(tmp_path: Path) -> None:
    """Of the rows that come from then on, and at most a round and a draw more, each is drawn as often as it says."""
    spec = spec_of(Draw(), 4)
    player = Players(spec, 3, 0, 7)
    for ratio in (8.0, 1.0, 8.0):
        buffer = make_replay_buffer(drawn_at(ratio), spec, "", 0, tmp_path)
        missing = max(0, 90 - buffer.size)
        for _ in range(30):
            buffer.add(player.round())
            while buffer.draw(16, Version(1, 0)):
                pass
        counted = buffer.counters
        assert abs(counted["sampled"] - (counted["inserted"] - missing) * ratio) <= 16 + 12 * ratio
        buffer.close()


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("chunk_length", [1, 20])
def test_an_operation_does_not_look_at_all_that_is_stored(chunk_length: int, prioritized: bool) -> None:
    """A memory of twenty times the steps needs no more room for an operation; the time is for no test to judge."""
    peaks = []
    for capacity in (2_000, 40_000):
        spec = spec_of(Draw(3, 0.9, look_back=1), chunk_length)
        memory, player = ReplayMemory(spec, capacity, prioritized, 0.6, 0), Players(spec, 4, 0, 1)
        chunk = player.round()
        memory.add({name: np.repeat(array, capacity // (4 * chunk_length), 0) for name, array in chunk.items()})
        for first in (True, False):
            if not first:  # the first time it compiles, which takes longer while memory is traced
                tracemalloc.start()
            memory.add(player.round())
            _, info = memory.sample(64)
            memory.update_priorities(info.key, np.ones(64))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_new_rows_get_the_greatest_priority_so_far() -> None:
    spec = spec_of(Draw(), 1)
    memory = ReplayMemory(spec, 100, True, 1.0, 0)
    player = Players(spec, 4, 0, 0)
    memory.add(player.round())
    _, info = memory.sample(100)
    memory.update_priorities(info.key, np.full(100, 3.0))
    memory.update_priorities(info.key[:1], np.ones(1))
    memory.update_priorities(np.array([10**9], np.uint64), np.array([1e9]))  # gone, or never there: passed over
    for _ in range(4):
        memory.add(player.round())
    _, info = memory.sample(4000)
    shares = Counter(np.round(info.probability / info.probability.min()).astype(int).tolist())
    assert set(shares) == {1, 3}


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_memory_in_files_goes_on_as_if_it_had_never_ended(tmp_path: Path, prioritized: bool) -> None:
    spec = spec_of(Draw(3, 0.9, look_back=1), 4)

    def make(folder: Path | None) -> ReplayMemory:
        return ReplayMemory(spec, 200, prioritized, 0.6, 0, ArrayFiles(folder))

    def play(memory: ReplayMemory, player: Players, rounds: int) -> list[Arrays]:
        batches = []
        for _ in range(rounds):
            memory.add(player.round())
            items, info = memory.sample(16)
            memory.update_priorities(info.key, np.abs(items["reward"]).astype(np.float64) + 0.1)
            batches.append(items)
        return batches

    whole = play(make(None), Players(spec, 3, 0, 7), 40)
    player = Players(spec, 3, 0, 7)
    first = make(tmp_path)
    before = play(first, player, 20)
    ArrayFiles(tmp_path).keep(first.state())
    second = make(tmp_path)
    second.restore(ArrayFiles(tmp_path).take())
    assert ArrayFiles(tmp_path).take() == {}  # a crash from here on must not bring it back
    second._newest = first._newest  # the same environments play on, which no real run can do
    for one, other in zip(whole, [*before, *play(second, player, 20)], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_memory_whose_process_was_killed_in_the_middle_is_sound(tmp_path: Path) -> None:
    """Places without a key, and links to what is not there: nothing of it is drawn."""
    spec = spec_of(Draw(3, 0.9), 2)
    memory, player = ReplayMemory(spec, 60, True, 0.6, 0, ArrayFiles(tmp_path)), Players(spec, 3, 0, 1)
    for _ in range(15):
        memory.add(player.round())
    lost = (memory._last_key - 1) % len(memory._key)
    memory._key[lost] = 0
    again = ReplayMemory(spec, 60, True, 0.6, 0, ArrayFiles(tmp_path))
    for _ in range(3):
        items, info = again.sample(50)
        for b in range(50):
            row = (int(info.key[b]) - 1) % 2
            at = player.places[int(items["env"][b]), int(items["seq"][b]), row]
            expected = player.row(int(items["env"][b]), at)
            assert expected is not None
            assert expected["reward"] == pytest.approx(float(items["reward"][b]), abs=1e-4)
        again.add(player.round())


def test_ratings_of_rows_that_a_uniform_session_has_replaced_are_forgotten(tmp_path: Path) -> None:
    spec, player = spec_of(Draw(), 4), Players(spec_of(Draw(), 4), 2, 0, 1)
    for prioritized, rounds in ((True, 2), (False, 2), (True, 0)):
        memory = ReplayMemory(spec, 16, prioritized, 0.6, 0, ArrayFiles(tmp_path))
        for _ in range(rounds):
            memory.add(player.round())
        if prioritized:
            info = memory.sample(1000)[1]
            assert len(np.unique(info.probability)) == 1
            memory.update_priorities(info.key, np.where(info.key == info.key[0], 100.0, 0.001))


def test_a_memory_of_other_shapes_is_refused(tmp_path: Path) -> None:
    ReplayMemory(spec_of(Draw(), 2), 60, False, 0.6, 0, ArrayFiles(tmp_path))
    with pytest.raises(ConfigError, match=r"replay_buffer_capacity .* or move .* away"):
        ReplayMemory(spec_of(Draw(), 2), 80, False, 0.6, 0, ArrayFiles(tmp_path))
    (tmp_path / "key.npy").write_bytes(b"not an array")
    with pytest.raises(ConfigError, match="is no array"):
        ReplayMemory(spec_of(Draw(), 2), 60, False, 0.6, 0, ArrayFiles(tmp_path))


class TestSumTree:
    @pytest.mark.parametrize("leaves", [1, 2, 3, 7, 64, 1000])
    def test_against_a_cumulative_sum(self, leaves: int) -> None:
        rng = np.random.default_rng(leaves)
        tree, weight = SumTree(leaves), np.zeros(leaves)
        for _ in range(20):
            leaf = rng.integers(0, leaves, 5)
            new = rng.random(5) * (rng.random(5) < 0.7)
            tree.set(leaf, new)
            for one, value in zip(leaf, new, strict=True):
                weight[one] = value
            assert tree.total == pytest.approx(weight.sum())
            np.testing.assert_array_equal(tree.weight(np.arange(leaves)), weight)
            if weight.sum() > 0:
                u = rng.random(50)
                expected = np.searchsorted(np.cumsum(weight), u * weight.sum(), side="right")
                np.testing.assert_array_equal(tree.draw(u), expected)
        tree.clear()
        assert tree.total == 0

    def test_never_a_leaf_of_weight_zero(self) -> None:
        tree = SumTree(8)
        tree.set(np.array([1, 5]), np.array([0.1, 0.2]))
        u = np.array([0.0, np.nextafter(1.0, 0.0), 1.0, 1 / 3])
        assert set(tree.draw(u).tolist()) <= {1, 5}
