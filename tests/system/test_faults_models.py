"""Weights that become NaN, and disks that are full when a run ends: what is kept, what is said, and the exit code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from realm.contract import Evaluation, Version
from realm.data.array_files import ArrayFiles
from realm.errors import CheckpointError, ConfigError, DivergedError, RunError, UserCodeError
from realm.learn.best import BestModel
from realm.learn.checkpoint import find, load, load_newest, not_finite, not_finite_in, save
from tests.cluster import Run
from tests.learn.test_checkpoint import Agent, Pool, Yielding, batches, trainer

NATIVE = "buffer_backend=native"


def spoil(agent: Any) -> None:
    with torch.no_grad():
        next(iter(agent.model.parameters()))[0] = float("nan")


class Spoiling(Agent):
    """Its weights become NaN at the end of some updates, counted from 1."""

    def __init__(self, *nan_at: int) -> None:
        super().__init__(1)
        self.calls, self.nan_at = 0, nan_at

    def learn(self, batch: Any, info: Any) -> Any:
        result = super().learn(batch, info)
        self.calls += 1
        if self.calls in self.nan_at:
            spoil(self)
        return result


class SpoilingEarly(Yielding):
    """As Spoiling, before its weights go out or after it."""

    def __init__(self, nan_at: int, late: bool) -> None:
        super().__init__(1)
        self.calls, self.nan_at, self.late = 0, nan_at, late

    def learn(self, batch: Any, info: Any) -> Any:
        self.calls += 1
        Agent.learn(self, batch, info)
        if self.calls == self.nan_at and not self.late:
            spoil(self)
        yield
        result = Agent.learn(self, batch, info)
        if self.calls == self.nan_at:
            spoil(self)
        return result


def check_models(folder: Path, published: dict[Version, bytes]) -> None:
    for path in folder.iterdir():
        one = load(path)
        assert one.weights == published[one.version]
    for weights in published.values():
        assert not not_finite(safetensors.torch.load(weights))


def test_one_bad_update_goes_back_to_the_checkpoint_and_on(tmp_path: Path) -> None:
    one = trainer(tmp_path, 1, keep=100, agent=Spoiling(8))
    one.start(1)
    pool = Pool(one)
    pool.publish(one.version, one.env_steps)
    for count, batch in enumerate(batches(20), 1):
        one.update(*batch)
        pool.publish(one.version, one.env_steps)
        assert one.version == Version(1, count)
        assert one.env_steps == 6 * count
        if count == 8:
            assert pool.weights[Version(1, 8)] == pool.weights[Version(1, 5)]  # the newest that was saved
            assert one.agent.updates == 5  # with all the rest
    one.save_last()
    assert one._meters.totals["restored_updates"] == 1
    check_models(tmp_path, pool.weights)


@pytest.mark.parametrize("late", [False, True])
def test_weights_that_go_out_early(tmp_path: Path, late: bool) -> None:
    one = trainer(tmp_path, 1, keep=100, agent=SpoilingEarly(8, late))
    one.start(1)
    pool = Pool(one)
    pool.publish(one.version, one.env_steps)
    for batch in batches(12):
        one.update(*batch, publish=pool.publish)
        if one.version not in pool.weights:  # as `roles/learner.py` does
            pool.publish(one.version, one.env_steps)
    assert one.version == Version(1, 12 + late)  # weights that went out keep their number
    assert pool.weights[Version(1, 8 + late)] == pool.weights[Version(1, 5)]
    assert sorted(pool.weights) == [Version(1, update) for update in range(13 + late)]
    check_models(tmp_path, pool.weights)


def test_again_and_again_ends_the_run(tmp_path: Path) -> None:
    one = trainer(tmp_path, 1, agent=Spoiling(*range(3, 100)))
    one.start(1)
    given = iter(batches(10))
    with pytest.raises(DivergedError, match="choose a smaller learning rate"):
        [one.update(*batch) for batch in given]
    assert len(list(given)) == 10 - 6  # two good ones, three returns, and the last
    assert one._meters.totals["restored_updates"] == 3
    assert load_newest(tmp_path)[1] == []


@pytest.mark.parametrize(("good", "ends"), [(9, True), (10, False)])
def test_good_updates_in_between_make_up_for_it(tmp_path: Path, good: int, ends: bool) -> None:
    one = trainer(tmp_path, 1, agent=Spoiling(*range(1, 100, good + 1)))
    one.start(1)
    try:
        for batch in batches(60):
            one.update(*batch)
    except DivergedError:
        assert ends
    else:
        assert not ends


class SpoilingState(Agent):
    """What it saves besides its model becomes NaN with an update, counted from 1, where the model stays as it is."""

    def __init__(self, nan_at: int) -> None:
        super().__init__(1)
        self.nan_at, self.calls, self.target = nan_at, 0, torch.zeros(3)

    def learn(self, batch: Any, info: Any) -> Any:
        self.calls += 1
        if self.calls == self.nan_at:
            self.target[1] = float("nan")
        return super().learn(batch, info)

    def save_model(self) -> dict[str, Any]:
        return {**super().save_model(), "targets": [torch.ones(2), self.target.clone()]}

    def load_model(self, state: dict[str, Any]) -> None:
        super().load_model(state)
        self.target = state["targets"][1].clone()


def test_a_target_that_is_nan_is_never_saved(tmp_path: Path) -> None:
    """The model may be finite for a while: at the checkpoint after it the run goes back to the one before it."""
    one = trainer(tmp_path, 1, keep=100, agent=SpoilingState(7))
    one.start(1)
    for batch in batches(12):
        one.update(*batch)
    assert one._meters.totals["restored_updates"] == 1
    assert one.agent.updates == 5 + 2  # type: ignore[attr-defined]
    one.save_last()
    assert [bool(not_finite_in(load(path).state["agent"])) for path in tmp_path.iterdir()] == [False] * 4

    end = trainer(tmp_path / "end", 1, agent=SpoilingState(7))
    end.start(1)
    for batch in batches(8):
        end.update(*batch)
    with pytest.raises(RunError, match=r"\(targets\.1 is not finite\), so 18 env steps .*a smaller learning rate"):
        end.save_last()


def test_weights_that_are_nan_at_the_start_are_the_agents_fault(tmp_path: Path) -> None:
    agent = Agent(1)
    spoil(agent)
    with pytest.raises(UserCodeError, match=r"must be finite before the first update, but 0\.weight is not"):
        trainer(tmp_path, 1, agent=agent).start(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_checkpoint_with_nan_counts_as_damaged(tmp_path: Path, value: float) -> None:
    agent = Agent(1)
    good = save(tmp_path, agent, Version(1, 1), 0, "s", 9)
    with torch.no_grad():
        next(iter(agent.model.parameters()))[1, 1] = value
    save(tmp_path, agent, Version(1, 2), 0, "s", 9)
    newest, skipped = load_newest(tmp_path)
    assert newest is not None
    assert newest.path == good
    assert "0.weight is not finite" in skipped[0]
    with pytest.raises(CheckpointError, match="not finite"):
        find(tmp_path, 2)


def test_the_best_model_is_finite(tmp_path: Path) -> None:
    best, agent = BestModel(tmp_path / "best", {}), Agent(1)
    spoil(agent)
    result = Evaluation(Version(1, 3), 10, "score", 5.0, 0.0, Version(0, 0), {"score": np.float64(5.0)})  # type: ignore[dict-item]
    assert not best.offer(agent, result, "s", {})
    assert not (tmp_path / "best").exists()


# --- whole runs

FLOWS = {
    "one process": ["wrapper_type=local"],
    "at once": [NATIVE, "max_version_lag=0"],
    "early": [NATIVE, "max_version_lag=part"],
    "early, spoiled late": [NATIVE, "max_version_lag=part", "counting.nan_late=true"],
}


def check_saved(run: Run) -> None:
    paths = list(run.dir.glob("ckpt/model.ckpt-*"))
    assert paths
    for path in paths:
        load(path)  # raises for NaN


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_a_run_survives_one_bad_update(tmp_path: Path, flow: str) -> None:
    with Run(tmp_path, "max_env_steps=15000", "counting.nan_from=30", *FLOWS[flow]) as run:
        assert run.finish() == 0, run.text()
        text = run.text()
        assert run.output.read_text().count("made the weights NaN or infinite") == 1, text  # in the terminal, and once
        assert "training goes on as update 3" in text, text
        check_saved(run)
        assert run.processes() == []
        if flow != "one process":
            assert run.totals("learner")["restored_updates"] == 1


@pytest.mark.system
@pytest.mark.parametrize(
    "flow", [pytest.param("one process"), "at once", pytest.param("early", marks=pytest.mark.slow)]
)
def test_a_run_that_diverges_ends_with_3(tmp_path: Path, flow: str) -> None:
    settings = ["counting.nan_from=30", "counting.nan_times=1000", "restart_budget=5", *FLOWS[flow]]
    with Run(tmp_path, *settings) as run:
        assert run.finish() == 3, run.text()
        assert "choose a smaller learning rate" in run.output.read_text()
        assert run.file()["state"] == "failed"
        assert "choose a smaller learning rate" in run.file()["cause"]
        check_saved(run)
        assert run.processes() == []


# --- a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> None:
    """Write until the disk is full, but for `leave` bytes."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() - leave))


def test_a_last_checkpoint_that_does_not_fit(small: Path) -> None:
    one = trainer(small / "ckpt", 1)
    one.start(1)
    given = batches(7)
    for batch in given:
        one.update(*batch)
    fill(small)
    with pytest.raises(RunError, match=r"small/ckpt: the last checkpoint, .*No space left .* 12 env steps"):
        one.save_last()
    (small / "filler").unlink()
    one.save_last()
    assert load_newest(small / "ckpt")[0].env_steps == 42  # type: ignore[union-attr]


def test_a_replay_memory_that_does_not_fit_is_refused_before_it_is_used(small: Path) -> None:
    """Its files are mapped into memory: with holes in them, a full disk would kill the process that writes."""
    ArrayFiles(small / "replay").array("reward", (1000,), np.float64)
    fill(small)
    ArrayFiles(small / "replay").array("reward", (1000,), np.float64)[:] = 1.0
    with pytest.raises(ConfigError, match=r"small/replay/obs.npy: 2 MB for it cannot be had \(No space left on device"):
        ArrayFiles(small / "replay").array("obs", (200_000,), np.float64)
    assert [path.name for path in (small / "replay").iterdir()] == ["reward.npy"]


def updates(run: Run) -> float:
    """How many the curves show; KeyError before they have one."""
    curves = EventAccumulator(str(run.dir / "log" / "tensorboard"), {"scalars": 0})
    curves.Reload()
    return float(curves.Scalars("system/learner/version_update")[-1].value)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("flow", ["one process", "at once"])
@pytest.mark.parametrize("leave", [0, 4096 * 3])
def test_a_disk_that_is_full_when_a_run_stops(small: Path, tmp_path: Path, flow: str, leave: int) -> None:
    """leave: room for run.json, but not for a checkpoint."""
    settings = ["counting.learn_s=0.01", "dump_model_freq=100000", f"log_dir={small}/runs", *FLOWS[flow]]
    with Run(tmp_path, *settings) as run:
        run.dir = small / "runs" / "one"
        run.wait_running()
        run.wait_for(lambda: run.checkpoints(), "the first checkpoint")
        run.wait_for(lambda: updates(run) >= 5, "some updates that are not saved")
        fill(small, leave)
        assert run.interrupt() == 1, run.text()
        text = run.output.read_text()
        assert "Traceback" not in text, text
        assert "env steps of training since the newest good checkpoint are lost" in text, text
        assert f"{run.dir}/ckpt" in text
        if leave:
            assert run.file()["state"] == "failed"
            assert f"{run.dir}/ckpt: the last checkpoint" in run.file()["cause"]
        assert run.processes() == []
