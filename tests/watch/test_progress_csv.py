"""realm/watch/progress_csv.py: a table that any reader of CSV takes at any moment."""

from __future__ import annotations

import csv
import errno
from pathlib import Path
from typing import Any

import pytest

from realm.watch import progress_csv
from realm.watch.progress_csv import ProgressCsv


def rows(path: Path) -> list[dict[str, str]]:
    """Without the time of the wall clock. Each row has a cell for each column."""
    with open(path, newline="") as file:
        found = list(csv.DictReader(file, strict=True))
    assert all(None not in row and None not in row.values() and float(row.pop("wall_time")) > 1e9 for row in found)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.csv"


def test_rows_can_be_read_at_once_and_new_curves_are_new_columns(path: Path) -> None:
    table = ProgressCsv(path)
    table.begin(0)
    table.write({"episode/score": 1 / 3}, 12_345_678)
    assert rows(path) == [{"env_steps": "12345678", "episode/score": "0.3333333"}]
    table.write({'a "b", c\nd': float("nan"), "episode/score": 1e9}, 12_345_679)
    table.write({}, 12_345_680)
    odd = 'a "b", c\\nd'
    assert rows(path) == [
        {"env_steps": "12345678", "episode/score": "0.3333333", odd: ""},
        {"env_steps": "12345679", "episode/score": "1e+09", odd: "nan"},
        {"env_steps": "12345680", "episode/score": "", odd: ""},
    ]
    assert list(path.parent.iterdir()) == [path]
    table.close()


def test_a_resume_goes_on_without_what_was_lost(path: Path) -> None:
    table = ProgressCsv(path)
    for step in (0, 100, 200, 300):
        table.write({"x": 1.0}, step)
    with open(path, "a") as file:
        file.write("400,17")  # killed here
    table = ProgressCsv(path)
    table.begin(200)  # the newest checkpoint
    table.write({"y": 2.0}, 250)
    table.write({"x": 3.0, "y": 2.0}, 240)  # an evaluation may be of an older model
    table.begin(240)  # another learner
    table.write({"x": 4.0}, 245)
    table.close()
    found = [(row["env_steps"], row["x"], row["y"]) for row in rows(path)]
    assert found == [("0", "1", ""), ("100", "1", ""), ("200", "1", ""), ("240", "3", "2"), ("245", "4", "")]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe\0,,\n", b"env_steps", b"env_steps,wall_time\n9,1e10,5\nx,1e10\n" + b"9" * 5000]
)
def test_a_damaged_file_costs_its_bad_lines(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    table = ProgressCsv(path)
    table.begin(0)
    table.write({"x": 1.0}, 1)
    table.close()
    (row,) = rows(path)
    assert (row["env_steps"], row["x"]) == ("1", "1")


def test_a_full_disk_is_one_warning_a_minute(path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    table = ProgressCsv(path)
    table.write({"x": 1.0}, 1)
    with monkeypatch.context() as disk:
        disk.setattr(progress_csv.os, "replace", full)
        for step in range(2, 50):
            table.write({"x": 2.0, "new": 0.0}, step)
    assert len(logged) == 1
    assert "No space left on device" in logged[0]
    assert list(path.parent.iterdir()) == [path]  # no draft takes the space that is left
    monkeypatch.setattr(table, "_retry_at", 0.0)
    table.write({"x": 3.0}, 50)
    assert [row["env_steps"] for row in rows(path)] == ["1", "50"]
    table.close()


def test_columns_without_end_cost_no_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_csv, "_MOST_COLUMNS", 10)
    table = ProgressCsv(path)
    for step in range(20):
        table.write({f"x{step}": 1.0}, step)
    table.close()
    assert (len(rows(path)), len(rows(path)[0])) == (20, 9)
