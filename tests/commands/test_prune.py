"""`realm runs --prune`: what goes, what always stays, and that nothing goes without a yes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from realm.commands.runs import why_they_stay
from realm.launch.rundir import boot_id, find_runs, start_of
from tests.console import realm

DAY = 86_400.0


def gone(folder: Path, keep: int) -> list[str]:
    runs = find_runs(folder)
    return [path.name for (path, _), reason in zip(runs, why_they_stay(runs, keep), strict=True) if not reason]


def test_what_goes_and_what_always_stays(tmp_path: Path) -> None:
    for age, name in enumerate("edcba"):
        make(tmp_path, name, age)
    assert [gone(tmp_path, keep) for keep in (0, 2, 9)] == [["a", "b", "c", "d"], ["a", "b", "c"], []]
    (tmp_path / "e" / "best_ckpt" / "model.ckpt-1-0").mkdir(parents=True)  # an untrained one is none
    (tmp_path / "b" / "best_ckpt" / "model.ckpt-1-2").mkdir(parents=True)
    assert gone(tmp_path, 0) == ["a", "c", "d", "e"]
    (tmp_path / "c" / "user_ckpt" / "model.ckpt-1-2").mkdir(parents=True)
    assert gone(tmp_path, 0) == ["a", "d", "e"]
    make(tmp_path, "alive", 50, pid=os.getpid())
    assert gone(tmp_path, 1) == ["a", "d"]


def make(folder: Path, name: str, age_days: float = 0.0, pid: int = 0) -> Path:
    path = folder / name
    (path / "ckpt" / "model.ckpt-1-2").mkdir(parents=True)
    (path / "ckpt" / "model.ckpt-1-2" / "weights").write_bytes(bytes(100_000))
    when = time.time() - age_days * DAY
    content = {"run_id": "r", "pid": pid or 1, "created": start_of(pid) if pid else 0.0, "boot": boot_id()}
    (path / "run.json").write_text(json.dumps({**content, "started": when, "state": "stopped"}))
    os.utime(path / "run.json", (when, when))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.system
def test_the_command(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for age, name in ((9.0, "old"), (8.0, "older-start"), (7.0, "newest")):
        make(runs, name, age)
    make(runs, "alive", 50.0, pid=os.getpid())
    (runs / "link").symlink_to(make(elsewhere, "mine", 60.0), target_is_directory=True)
    (runs / "old" / "log").symlink_to(make(elsewhere, "logs"), target_is_directory=True)
    (runs / "notes").mkdir()
    make(runs, ".removing-old", 10.0)  # of a prune that was interrupted
    before = names(runs)

    code, out, err = realm("runs", "--log-dir", runs)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["run", "link", "alive", "old", "older-start", "newest"]

    prune = ("runs", "--log-dir", runs, "--prune", "--keep", "1")
    code, out, err = realm(*prune)
    assert (code, err) == (0, "")
    assert "nothing was deleted; with --yes, 2 of 5 runs go" in out
    assert "stays: it is a link to another place" in out
    assert names(runs) == before

    with (runs / "older-start" / ".lock").open("wb") as lock:  # a start that has not written its run.json yet
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = realm(*prune, "--yes")
        assert (code, err) == (0, "")
        assert "older-start: stays, a run has just started in it" in out
    assert names(runs) == ["alive", "link", "newest", "notes", "older-start"]
    assert names(elsewhere) == ["logs", "mine"]
    assert names(elsewhere / "logs") == ["ckpt", "run.json"]


@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prune"], "--prune needs --keep N"),
        (["--prune", "--keep", "-1"], "must be a number from 0 on"),
        (["--keep", "3"], "--keep and --yes need --prune"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    code, out, err = realm("runs", "--log-dir", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
