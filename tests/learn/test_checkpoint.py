"""learn/checkpoint.py, saving.py, trainer.py: exact resuming, and every way in which a disk or kill spoils it."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from realm.contract import ORIGIN_FIELDS, ActionSpec, Array, Arrays, Field, Learned, SampleInfo, Spec, Version
from realm.errors import CheckpointError, ContractError, UserCodeError
from realm.learn import checkpoint
from realm.learn.checkpoint import acting, find, load, load_bytes, load_newest, restore, save, to_bytes
from realm.learn.trainer import Trainer, _checked
from realm.roles.learner import check_yields
from realm.watch.meters import Meters

ROOT = Path(__file__).parents[2]
SPEC = Spec(
    obs={"x": Field((4,), "float32")},
    action=ActionSpec(n=2),
    extra={},
    chunk_length=1,
    sample={**ORIGIN_FIELDS, "x": Field((4,), "float32")},
)


class Agent:
    """Uses everything that a resume must bring back: Adam's moments, dropout, Python's and NumPy's random numbers, a
    counter."""

    def __init__(self, seed: int, width: int = 8) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.updates = 0
        self.priorities: Any = None

    def learn(self, batch: Arrays, info: SampleInfo) -> tuple[dict[str, float], Any]:
        loss = (self.model(torch.as_tensor(batch["x"])) - random.random() * np.random.random()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.updates += 1
        return {"loss": loss.item()}, self.priorities

    def save_model(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_model(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def batches(count: int) -> list[tuple[Arrays, SampleInfo]]:
    draw = np.random.default_rng(0)
    info = SampleInfo(np.arange(6, dtype=np.uint64), np.ones(6), np.ones(6, np.int64), new_env_steps=6)
    origin = {name: np.zeros((6, *one.shape), one.dtype) for name, one in ORIGIN_FIELDS.items()}
    return [({**origin, "x": draw.normal(size=(6, 4)).astype(np.float32)}, info) for _ in range(count)]


def trainer(folder: Path, seed: int, keep: int = 3, agent: Any = None) -> Trainer:
    return Trainer(agent or Agent(seed), SPEC, folder, dump_freq=5, keep=keep, meters=Meters())


# --- resuming


def test_a_resumed_run_is_the_same_run_to_the_bit(tmp_path: Path) -> None:
    stream = batches(20)
    whole = trainer(tmp_path / "a", 7)
    whole.start(1)
    for one in stream:
        whole.update(*one)
    rng = torch.get_rng_state(), random.getstate(), np.random.random(5).tolist()

    first = trainer(tmp_path / "b", 7)
    first.start(1)
    for one in stream[:10]:
        first.update(*one)
    second = trainer(tmp_path / "b", 1234)
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    second.start(2)
    assert second.version == Version(2, 10)
    assert second.env_steps == first.env_steps == 60
    for one in stream[10:]:
        second.update(*one)

    assert second.version == Version(2, 20)
    assert second.env_steps == whole.env_steps
    assert second.agent.updates == whole.agent.updates == 20  # type: ignore[attr-defined]
    for one, other in zip(whole.agent.model.parameters(), second.agent.model.parameters(), strict=True):
        assert torch.equal(one, other)
    moments = [one.agent.optimizer.state_dict()["state"] for one in (whole, second)]  # type: ignore[attr-defined]
    assert moments[0].keys() == moments[1].keys() != set()
    for index in moments[0]:
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(moments[0][index][name], moments[1][index][name])
    assert torch.equal(torch.get_rng_state(), rng[0])
    assert random.getstate() == rng[1]
    assert np.random.random(5).tolist() == rng[2]


def test_without_the_optimizer_it_would_not_be(tmp_path: Path) -> None:
    """The test above can fail: the moments matter in this little model."""
    stream, agents = batches(20), [Agent(7), Agent(7)]
    for one in stream[:10]:
        agents[0].learn(*one)
    agents[1].model.load_state_dict(agents[0].model.state_dict())
    for agent in agents:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        agent.learn(*stream[10])
    assert not torch.equal(agents[0].model[0].weight, agents[1].model[0].weight)


def test_each_start_begins_its_epoch_and_saves_at_once(tmp_path: Path) -> None:
    for epoch in (1, 2, 5):
        one = trainer(tmp_path, epoch)
        one.start(epoch)
        assert one.version == Version(epoch, 0)
        assert load_newest(tmp_path)[0].version == Version(epoch, 0)  # type: ignore[union-attr]
        assert one.next_version == Version(epoch, 1)


def test_a_state_that_could_not_be_resumed_is_known_at_the_start(tmp_path: Path) -> None:
    agent = Agent(1)
    agent.save_model = lambda: {"path": tmp_path}  # type: ignore[method-assign, assignment]
    with pytest.raises(CheckpointError, match="something else than tensors and plain data"):
        trainer(tmp_path, 1, agent=agent).start(1)


def test_a_folder_of_spoiled_checkpoints_is_not_begun_anew(tmp_path: Path) -> None:
    trainer(tmp_path, 1).start(1)
    (tmp_path / "model.ckpt-1-0" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of its 1 checkpoints can be used .*manifest.json"):
        trainer(tmp_path, 1).start(2)


def test_a_start_names_the_checkpoint_that_it_skips(tmp_path: Path, logged: list[str]) -> None:
    one = trainer(tmp_path, 1)
    one.start(1)
    for batch in batches(5):
        one.update(*batch)
    spoiled = tmp_path / "model.ckpt-1-5" / "model.safetensors"
    spoiled.write_bytes(spoiled.read_bytes()[:-1])
    again = trainer(tmp_path, 1)
    again.start(2)
    assert again.version == Version(2, 0)
    warnings = [line for line in logged if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert f"checkpoint skipped: {spoiled}: its sha256 differs from the manifest" in warnings[0]


def test_a_state_that_another_version_of_the_agent_saved_is_one_sentence(tmp_path: Path) -> None:
    class Older(Agent):
        def save_model(self) -> dict[str, Any]:
            return {"adam": self.optimizer.state_dict()}

    trainer(tmp_path, 7, agent=Older(7)).start(1)
    with pytest.raises(CheckpointError, match=r"cannot load the saved state .*KeyError: 'optimizer'.* preload_model"):
        trainer(tmp_path, 7).start(2)


def test_checkpoints_of_other_shapes_are_refused(tmp_path: Path) -> None:
    trainer(tmp_path, 1).start(1)
    other = Spec(SPEC.obs, SPEC.action, SPEC.extra, 2, SPEC.sample)
    with pytest.raises(CheckpointError, match=f"other shapes .schema {SPEC.schema}, now {other.schema}"):
        Trainer(Agent(1), other, tmp_path, 5, 3, Meters()).start(1)
    wider = Agent(1, width=9)
    with pytest.raises(CheckpointError, match=r"these weights do not fit the model: .*size mismatch"):
        trainer(tmp_path, 1, agent=wider).start(1)


def test_preloading_takes_the_weights_and_nothing_else(tmp_path: Path) -> None:
    donor = trainer(tmp_path / "donor", 1)
    donor.start(1)
    for batch in batches(5):
        donor.update(*batch)
    heir = trainer(tmp_path / "heir", 2)
    heir.start(1, find(tmp_path / "donor", 5))
    assert heir.version == Version(1, 0)
    assert heir.env_steps == heir.agent.updates == 0  # type: ignore[attr-defined]
    assert torch.equal(heir.agent.model[0].weight, donor.agent.model[0].weight)
    assert load(find(tmp_path / "heir", "latest").path).weights == to_bytes(donor.agent.model)
    # what the folder itself holds goes before what is preloaded
    again = trainer(tmp_path / "heir", 3)
    again.start(2, find(tmp_path / "donor", 0))
    assert torch.equal(again.agent.model[0].weight, donor.agent.model[0].weight)


def test_find(tmp_path: Path) -> None:
    one = trainer(tmp_path, 1)
    with pytest.raises(CheckpointError, match=f"{tmp_path}: has no valid checkpoint"):
        find(tmp_path, "latest")
    one.start(1)
    for batch in batches(5):
        one.update(*batch)
    assert find(tmp_path, "latest").version == Version(1, 5)
    assert find(tmp_path, 0).version == Version(1, 0)
    assert find(tmp_path / "model.ckpt-1-0", "latest").version == Version(1, 0)
    with pytest.raises(CheckpointError, match="has no checkpoint of update 3; it must be one of: 5, 0"):
        find(tmp_path, 3)


@pytest.mark.parametrize(
    ("priorities", "what"),
    [
        (np.ones(5), r"\[6\]"),
        (np.ones((6, 1)), r"\[6\]"),
        (np.array([1, 2, 3, np.nan, 5, 6]), "finite"),
        (np.array([1, 2, 3, np.inf, 5, 6]), "finite"),
        (np.array([1, 2, 3, -1e-9, 5, 6]), "finite"),
        (["a"] * 6, "float64"),
        (torch.ones(6, requires_grad=True), "float64"),
    ],
)
def test_priorities_that_no_buffer_can_use(tmp_path: Path, priorities: Any, what: str) -> None:
    one = trainer(tmp_path, 1)
    one.start(1)
    one.agent.priorities = priorities  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match=f"priorities that learn returned.*{what}"):
        one.update(*batches(1)[0])


def test_priorities_pass_as_floats(tmp_path: Path) -> None:
    one = trainer(tmp_path, 1)
    one.start(1)
    assert one.update(*batches(1)[0]) is None
    one.agent.priorities = [1, 2, 3, 0, 5, 6]  # type: ignore[attr-defined]
    got: Array | None = one.update(*batches(1)[0])
    assert got is not None
    assert got.dtype == np.float64
    assert got.tolist() == [1, 2, 3, 0, 5, 6]


# --- weights that go out before an update is over


class Yielding(Agent):
    """Lets its weights go out, `times` times, between two gradient steps."""

    times = 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.told: list[tuple[Version, int, bool]] = []

    def learn(self, batch: Arrays, info: SampleInfo) -> Generator[None, None, Learned]:  # type: ignore[override]
        assert self.model.training
        self.told.append((info.version, info.env_steps, info.stale))
        super().learn(batch, info)
        for _ in range(self.times):
            yield
        return super().learn(batch, info)


class Pool:
    """Where weights are published."""

    def __init__(self, of: Trainer) -> None:
        self._of = of
        self.weights: dict[Version, bytes] = {}
        self.env_steps: dict[Version, int] = {}

    def publish(self, version: Version, env_steps: int) -> None:
        assert version not in self.weights
        self.weights[version], self.env_steps[version] = self._of.weights(), env_steps


def test_a_checkpoint_holds_the_weights_that_went_out_under_its_name(tmp_path: Path) -> None:
    """Also those that are saved for the user, and after a resume; and each names its env steps."""
    pools = {}
    for epoch in (1, 2):
        one = trainer(tmp_path / "ckpt", 1, keep=100, agent=Yielding(1))
        one.start(epoch)
        pools[epoch] = pool = Pool(one)
        pool.publish(one.version, one.env_steps)
        for update, batch in enumerate(batches(12)):
            one.update(*batch, publish=pool.publish)
            if update in (3, 9):
                one.save_for_user(tmp_path / "user", 0)
        last = one.save_last()
        assert load(last).version == one.version
        assert one.version not in pool.weights  # nobody played with these
        assert load(last).weights == to_bytes(one.agent.model) != pool.weights[Version(epoch, one.version.update - 1)]
    assert one.version == Version(2, 13 + 12 + 1)
    both = []
    for path in [*(tmp_path / "ckpt").iterdir(), *(tmp_path / "user").iterdir()]:
        saved = load(path)
        pool = pools[saved.version.epoch]
        if saved.version in pool.weights:
            both.append((path.parent.name, *saved.version))
            assert saved.weights == pool.weights[saved.version]
            assert saved.env_steps == pool.env_steps[saved.version]
    assert sorted(both) == [
        *(("ckpt", 1, update) for update in (0, 5, 10)), *(("ckpt", 2, update) for update in (13, 15, 20, 25)),
        *(("user", 1, update) for update in (5, 11)), *(("user", 2, update) for update in (18, 24)),
    ]  # fmt: skip


def test_what_is_saved_for_the_user_is_saved_at_once_where_weights_go_out_at_the_end(tmp_path: Path) -> None:
    for agent in (Agent(1), Yielding(1)):
        one = trainer(tmp_path / f"{type(agent).__name__}", 1, agent=agent)
        one.start(1)
        for batch in batches(3):
            one.update(*batch)
        one.save_for_user(tmp_path / "user", 0)
        assert load(tmp_path / "user" / "model.ckpt-1-3").weights == one.weights()
        assert one.save_last().name == "model.ckpt-1-3"


def test_an_agent_may_save_for_the_user_itself(tmp_path: Path) -> None:
    saved = []
    one = trainer(tmp_path / "ckpt", 1)
    one.agent.save_for_user = lambda: saved.append(one.version)  # type: ignore[attr-defined]
    one.start(1)
    one.update(*batches(1)[0])
    one.save_for_user(tmp_path / "user", 0)
    assert saved == [one.version]
    assert not (tmp_path / "user").exists()


def test_what_is_asked_for_in_the_last_update_is_saved_with_the_last_checkpoint(tmp_path: Path) -> None:
    one = trainer(tmp_path / "ckpt", 1, agent=Yielding(1))
    one.start(1)
    one.update(*batches(1)[0], publish=Pool(one).publish)
    one.save_for_user(tmp_path / "user", 0)
    assert not (tmp_path / "user").exists()
    one.save_last()
    assert load(tmp_path / "user" / "model.ckpt-1-2").weights == one.weights()


def test_the_lag_of_weights_that_went_out_early_is_a_difference_of_versions(tmp_path: Path) -> None:
    one = trainer(tmp_path, 1, agent=Yielding(1))
    pool = Pool(one)
    one.start(1)
    for update, (items, info) in enumerate(batches(4)):
        acted = [1, max(0, update - 1)] if update == 3 else [1, update]
        one.update({**items, "version": np.full_like(items["version"], acted)}, info, publish=pool.publish)
        assert (one.version, one.env_steps) == (Version(1, update + 1), (update + 1) * 6)
        assert pool.env_steps[one.version] == one.env_steps
        assert pool.weights[one.version] != one.weights()  # these lack a gradient step
    _, means = one._meters.snapshot()
    assert means["policy_lag_updates"] == means["policy_lag_updates_max"] == [1, 4]
    assert means["policy_lag_s"][0] > 0


def test_learn_is_told_of_what_it_learns(tmp_path: Path) -> None:
    """Its version, the env steps, and whether other weights chose some of the actions: older ones, or those that went
    out in the middle of the update before; and the model acts in evaluation mode, and learns in training mode."""
    one = trainer(tmp_path, 1, agent=Yielding(1))
    one.start(1)
    one.agent.model.eval()
    pool, stream = Pool(one), batches(6)
    for update, (items, info) in enumerate(stream):
        acted = np.broadcast_to([1, update], items["version"].shape).copy()
        if update == 4:
            acted.reshape(-1, 2)[0] = 1, 3
        early = pool.publish if update == 1 else None
        one.update({**items, "version": acted}, info, publish=early)
        assert not one.agent.model.training
    assert one.agent.told == [  # type: ignore[attr-defined]
        (Version(1, update), 6 * (update + 1), update in (2, 4)) for update in range(6)
    ]
    assert list(pool.weights) == [Version(1, 2)]
    assert one.version == Version(1, 6)
    other = trainer(tmp_path, 1, agent=Yielding(1))
    other.start(2)  # from 1.5; weights of 1.6 and 2.6 have the same number of updates, and may be others
    other.update({**items, "version": np.broadcast_to([1, 5], acted.shape)}, info)
    assert other.agent.told == [(Version(2, 5), 36, True)]  # type: ignore[attr-defined]


def test_an_update_is_the_same_whether_weights_go_out_in_it_or_not(tmp_path: Path) -> None:
    ends = []
    for early in (False, True):
        one = trainer(tmp_path / str(early), 1, agent=Yielding(1))
        one.start(1)
        for batch in batches(6):
            one.update(*batch, publish=Pool(one).publish if early else None)
        ends.append((one.weights(), one.version, one.env_steps))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("agent", [Agent(1), Yielding(1)], ids=["a function", "a generator that never yields"])
def test_weights_go_out_at_the_end_of_a_learn_that_does_not_yield(tmp_path: Path, agent: Agent) -> None:
    agent.times = 0  # type: ignore[attr-defined]
    one = trainer(tmp_path, 1, agent=agent)
    one.start(1)
    pool = Pool(one)
    one.update(*batches(1)[0], publish=pool.publish)
    assert one.version == Version(1, 1)
    assert pool.weights == {}  # then it is for the learner to publish
    one.save_last()
    assert one.version == Version(1, 1)


@pytest.mark.parametrize("early", [False, True])
def test_a_second_yield_is_one_sentence(tmp_path: Path, early: bool) -> None:
    one = trainer(tmp_path, 1, agent=Yielding(1))
    one.agent.times = 2  # type: ignore[attr-defined]
    one.start(1)
    with pytest.raises(ContractError, match=r"^learn yielded twice in one update; it must yield once at most.*[^.]$"):
        one.update(*batches(1)[0], publish=Pool(one).publish if early else None)


def test_both_forms_of_learn_are_brought_to_their_end(tmp_path: Path) -> None:
    for agent, updates in ((Agent(1), 1), (Yielding(1), 2)):
        one = trainer(tmp_path / type(agent).__name__, 1, agent=agent)
        one.start(1)
        one.update(*batches(1)[0])
        assert agent.updates == updates
        assert "loss" in one._meters.snapshot()[1]


def test_part_of_an_update_needs_a_learn_that_yields() -> None:
    check_yields(Yielding(1))  # type: ignore[arg-type]
    with pytest.raises(
        UserCodeError, match=r"^.*/tests/learn/test_checkpoint\.py: max_version_lag is \"part\", but .*[^.]$"
    ) as it:
        check_yields(Agent(1))
    assert "yield once in learn, or set max_version_lag to a number" in str(it.value)


# --- what a disk does


def two_checkpoints(folder: Path) -> tuple[Path, Path]:
    agent = Agent(1)
    older = save(folder, agent, Version(1, 1), 10, "s", keep=5)
    agent.learn(*batches(1)[0])
    return older, save(folder, agent, Version(1, 2), 20, "s", keep=5)


def falls_back(folder: Path, older: Path, named: Path) -> None:
    found, skipped = load_newest(folder)
    assert found is not None
    assert found.path == older
    assert found.env_steps == 10
    assert len(skipped) == 1
    assert str(named) in skipped[0]
    assert "\n" not in skipped[0]


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
@pytest.mark.parametrize(
    "damage", ["0 %", "1 %", "50 %", "99.9 %", "one byte", "zero tail", "longer", "gone", "a folder"]
)
def test_damage_is_found_out_and_the_previous_one_used(tmp_path: Path, name: str, damage: str) -> None:
    older, newer = two_checkpoints(tmp_path)
    file = newer / name
    body = file.read_bytes()
    match damage:
        case "one byte":
            file.write_bytes(body[:-1])
        case "zero tail":
            file.write_bytes(body[:-40] + bytes(40))
        case "longer":
            file.write_bytes(body + b"\x00")
        case "gone":
            file.unlink()
        case "a folder":
            file.unlink()
            file.mkdir()
        case share:
            file.write_bytes(body[: int(len(body) * float(share.split()[0]) / 100)])
    falls_back(tmp_path, older, file)


def test_a_hundred_flipped_bits(tmp_path: Path) -> None:
    older, newer = two_checkpoints(tmp_path)
    draw = random.Random(0)
    for n in range(102):
        file = newer / ("model.safetensors", "state.pt", "manifest.json")[n % 3]
        body = file.read_bytes()
        spoiled = bytearray(body)
        spoiled[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        file.write_bytes(spoiled)
        falls_back(tmp_path, older, file)
        file.write_bytes(body)
    assert load_newest(tmp_path)[0].path == newer  # type: ignore[union-attr]


def test_every_byte_of_a_manifest(tmp_path: Path) -> None:
    _, newer = two_checkpoints(tmp_path)
    file = newer / "manifest.json"
    body = file.read_bytes()
    for place in range(len(body)):
        file.write_bytes(body[:place] + bytes([body[place] ^ 1 << place % 8]) + body[place + 1 :])
        with pytest.raises(CheckpointError, match="manifest"):
            load(newer)


@pytest.mark.parametrize("text", ["[]", "null", "5", '"x"', "{}", '{"digest": 1}', "[" * 100_000, "\ud800"])
def test_what_is_no_manifest(tmp_path: Path, text: str) -> None:
    older, newer = two_checkpoints(tmp_path)
    (newer / "manifest.json").write_text(text, errors="surrogatepass")
    falls_back(tmp_path, older, newer / "manifest.json")


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent") == (None, [])
    (tmp_path / "model.ckpt-1-2-old").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    assert load_newest(tmp_path) == (None, [])


def test_pruning_keeps_the_newest_k(tmp_path: Path) -> None:
    agent = Agent(1)
    for version in (Version(1, 8), Version(1, 9), Version(1, 10), Version(2, 3), Version(2, 4)):
        path = save(tmp_path, agent, version, 0, "s", keep=3)
        assert load(path).version == version
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.ckpt-1-10", "model.ckpt-2-3", "model.ckpt-2-4"]
    save(tmp_path, agent, Version(1, 11), 0, "s", keep=2)  # what was just written stays in any case
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.ckpt-1-11", "model.ckpt-2-3", "model.ckpt-2-4"]


def test_the_same_version_again(tmp_path: Path) -> None:
    agent = Agent(1)
    save(tmp_path, agent, Version(1, 1), 1, "s", keep=3)
    save(tmp_path, agent, Version(1, 1), 2, "s", keep=3)
    assert load_newest(tmp_path)[0].env_steps == 2  # type: ignore[union-attr]
    assert [one.name for one in tmp_path.iterdir()] == ["model.ckpt-1-1"]


def test_a_full_disk_is_a_warning_a_minute(tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer(tmp_path, 1)
    one.start(1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for batch in batches(12):
            one.update(*batch)  # saves at 5 and 10
        assert [path.name for path in tmp_path.iterdir()] == ["model.ckpt-1-0"]  # and no draft takes up room
        warnings = [line for line in logged if line.startswith("WARNING")]
        assert len(warnings) == 1
        assert "update 5 could not be written, training goes on: [Errno 28] No space left on device" in warnings[0]
    for batch in batches(3):
        one.update(*batch)
    assert load_newest(tmp_path)[0].version == Version(1, 15)  # type: ignore[union-attr]


def test_files_of_the_agent_that_cannot_be_written_spoil_no_checkpoint(tmp_path: Path, logged: list[str]) -> None:
    one = trainer(tmp_path, 1)
    one.agent.saved = Mock(side_effect=OSError("no room"))
    one.start(1)
    one.save_last()
    assert [path.name for path in tmp_path.iterdir()] == ["model.ckpt-1-0"]
    assert logged[-1].startswith("WARNING")
    assert logged[-1].endswith("model.ckpt-1-0: is written, but the agent's own files next to it are not: no room")


def test_an_agent_hears_of_each_checkpoint_and_once_of_the_last(tmp_path: Path) -> None:
    """Also where the last one has been written before, as at a stop right after a checkpoint that was due."""
    one, told = trainer(tmp_path, 2), list[str]()
    one.agent.saved = lambda path: told.append(path.name)
    one.agent.saved_last = lambda path: told.append(f"last {path.name}")
    one.start(1)
    for batch in batches(6):
        one.update(*batch)
    one.save_last()
    assert told == ["model.ckpt-1-0", "model.ckpt-1-5", "model.ckpt-1-6", "last model.ckpt-1-6"]
    again = trainer(tmp_path, 2)
    again.agent.saved_last = lambda path: told.append(f"last {path.name}")
    again.start(2)
    again.save_last()
    assert told[4:] == ["last model.ckpt-2-6"]


# --- what a kill does

SAVER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from realm.errors import CheckpointError
from realm.learn.checkpoint import load, load_newest, save
from realm.contract import Version
from tests.learn.test_checkpoint import Agent

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
agent, draw = Agent(1, width=4000), random.Random(0)
begin = time.monotonic()
save(folder, agent, Version(1, 0), 0, "s", keep=2)
longest = min(1.0, max(0.06, 4 * (time.monotonic() - begin)))  # on a busy machine a save takes long
for _ in range(kills):
    newest = load_newest(folder)[0]
    child = os.fork()
    if child == 0:
        for update in range(newest.version.update + 1, 10**6):
            save(folder, agent, Version(1, update), update, "s", keep=2)
    time.sleep(draw.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    after, skipped = load_newest(folder)
    finals = sorted(folder.glob("model.ckpt-*"))
    for one in finals:
        load(one)
    drafts = [one.name.split("-")[0] for one in folder.glob(".*")]
    print(json.dumps([newest.version.update, after.version.update, skipped, len(finals), drafts]))
"""


@pytest.mark.system
@pytest.mark.slow
def test_killed_while_saving(tmp_path: Path) -> None:
    """Fifty kills at random instants: what bears a final name is whole, and the train step never goes back."""
    script = tmp_path / "saver.py"
    script.write_text(SAVER)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "ckpt"), "50"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == 50
    for before, after, skipped, finals, drafts in rounds:
        assert after >= before
        assert skipped == []
        assert finals >= 1  # killed between the new one's coming and the old one's going leaves one more
        assert len(drafts) <= 2
    assert rounds[-1][1] > 5
    assert sum(".writing" in one[4] for one in rounds) >= 5  # the kills did hit saves
    save(tmp_path / "ckpt", Agent(1), Version(2, 0), 0, "s", keep=2)
    assert len(list((tmp_path / "ckpt").iterdir())) == 2  # what killed ones left is cleared away


# --- what an enemy does


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", ["torch", "pickle", "a list", "a tensor", "text", "nothing", "lacks"])
def test_a_hostile_state_is_refused_and_nothing_is_run(tmp_path: Path, kind: str) -> None:
    older, newer = two_checkpoints(tmp_path / "ckpt")
    file, evil = newer / "state.pt", Evil(tmp_path / "evil")
    match kind:
        case "torch":
            torch.save({"agent": evil, "torch_rng": 1, "python_rng": 2}, file)
        case "pickle":
            file.write_bytes(pickle.dumps(evil))
        case "a list":
            torch.save([1, 2], file)
        case "a tensor":
            torch.save(torch.zeros(3), file)
        case "text":
            file.write_bytes(b"import os; os.mkdir('evil')")
        case "nothing":
            file.write_bytes(b"")
        case "lacks":
            torch.save({"agent": {}, "torch_rng": 1}, file)
    manifest = json.loads((newer / "manifest.json").read_text())
    del manifest["digest"]  # an enemy can count, too: the manifest fits
    manifest["sha256"]["state.pt"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest["digest"] = checkpoint._digest(manifest)
    (newer / "manifest.json").write_text(json.dumps(manifest))
    expected = (
        "lacks python_rng" if kind == "lacks" else "something else than tensors and plain data, so it was not loaded"
    )
    with pytest.raises(CheckpointError, match=expected) as caught:
        load(newer)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    assert not evil.path.exists()
    falls_back(tmp_path / "ckpt", older, file)
    if kind in ("torch", "pickle"):  # and it would have been run by whoever is less careful
        with suppress(RuntimeError):  # torch finds afterwards that the bare pickle is none of its own
            torch.load(file, weights_only=False)
        assert evil.path.exists()


# --- weights as bytes


def test_weights_of_another_model_are_refused() -> None:
    model = torch.nn.Linear(3, 2)
    for other in (torch.nn.Linear(4, 2), torch.nn.Linear(3, 2, bias=False), torch.nn.Sequential(torch.nn.Linear(3, 2))):
        with pytest.raises(CheckpointError, match="these weights do not fit the model: ") as caught:
            load_bytes(model, to_bytes(other))
        assert "\n" not in str(caught.value)
    good = to_bytes(model)
    for bad in (b"", b"x", good[:-1], good[:7], b"\xff" * 100, good + b"x"):
        with pytest.raises(CheckpointError):
            load_bytes(model, bad)


def test_weights_go_through_bytes_unchanged() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            self.one = torch.nn.Linear(4, 4)
            self.other = torch.nn.Linear(4, 4)
            self.other.weight = self.one.weight
            self.register_buffer("count", torch.tensor(7))

    torch.manual_seed(0)
    one, other = Tied(), Tied()
    load_bytes(other, to_bytes(one))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_restore_of_a_copied_folder(tmp_path: Path) -> None:
    """A checkpoint knows nothing of where it lies."""
    _, newer = two_checkpoints(tmp_path / "ckpt")
    copied = tmp_path / "elsewhere"
    shutil.copytree(newer, copied)
    agent = Agent(5)
    restore(agent, load(copied))  # type: ignore[arg-type]
    assert agent.updates == 1


# --- models of which only a part acts


class Half(Agent):
    acting = ("1.",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))  # the second half acts


def test_only_the_part_that_acts_goes_out() -> None:
    one, other = Half(1), Half(2)
    weights = to_bytes(one.model, acting(one))
    assert len(weights) < len(to_bytes(one.model)) - 16
    before = other.model[0].weight.clone()
    assert load_bytes(other.model, weights, acting(other)) == ["0.weight", "0.bias"]
    assert torch.equal(other.model[1].weight, one.model[1].weight)
    assert torch.equal(other.model[0].weight, before)
    with pytest.raises(CheckpointError, match=r"do not fit the model: they lack 0.weight and 1 more"):
        load_bytes(other.model, weights)
    with pytest.raises(CheckpointError, match=r"do not fit the model: it has no 0.bias and 1 more"):
        load_bytes(torch.nn.Linear(2, 3), to_bytes(one.model, ("0.",)))
    one.acting = ("actor",)
    with pytest.raises(UserCodeError, match=r"Agent.acting is \('actor',\), but no weight .* the first is 0.weight"):
        acting(one)


def test_a_preload_says_what_it_did_not_load(tmp_path: Path, logged: list[str]) -> None:
    donor, heir = Half(1), Half(2)
    save(tmp_path / "best", donor, Version(1, 3), 9, SPEC.schema, 1, acting(donor))
    one = trainer(tmp_path / "run", 0, agent=heir)
    one.start(1, find(tmp_path / "best", "latest"))
    assert torch.equal(heir.model[1].weight, donor.model[1].weight)
    assert not torch.equal(heir.model[0].weight, donor.model[0].weight)
    assert any("it has no 0.weight, 0.bias: 2 weights stay as they were made" in line for line in logged)
    assert one.weights() == to_bytes(heir.model, ("1.",))


@pytest.mark.parametrize("broken", [(3, [-1] * 625, None), (3, [1], None), "text", None])
def test_random_numbers_that_cannot_be_restored(tmp_path: Path, broken: Any) -> None:
    one = Agent(1)
    found = load(save(tmp_path, one, Version(1, 0), 0, "s", 1))
    with pytest.raises(CheckpointError, match=r"state.pt: its random numbers cannot be restored"):
        restore(one, dataclasses.replace(found, state={**found.state, "python_rng": broken}))


@pytest.mark.parametrize("given", [None, {"loss": 1.0}, (1.0, None), ({}, None, 3), 3.0])
def test_learn_that_returns_something_else_is_named_with_its_line(given: Any) -> None:
    with pytest.raises(UserCodeError, match=r"^agent\.py:7: Agent\.learn returned \w+; it must be \(metrics, prior"):
        _checked(given, "agent.py:7")
