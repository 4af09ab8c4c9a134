"""tools/soak: every fault is named, its tests exist, and a finished part is not done again. Nothing is started."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from tests import fuzz
from tools.soak import hour, report, soak, table
from tools.soak.victim import FaultFailed

TESTS = Path(__file__).parent


def functions(file):
    return {one.name for one in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(one, ast.FunctionDef)}


def test_every_fault_has_a_test_that_exists_or_is_injected():
    assert list(table.FAULTS) == [f"F{number}" for number in range(1, len(table.FAULTS) + 1)]
    for name, fault in table.FAULTS.items():
        assert fault.inject or fault.tests or "with F19" in fault.title, name
        for one in fault.tests:
            file, _, function = one.partition("::")
            assert not function or function in functions(file), one


def play(monkeypatch, tmp_path, *words):
    files = ("--out", tmp_path / "soak.json", "--folder", tmp_path / "runs", "--report", tmp_path / "report.md")
    monkeypatch.setattr(sys, "argv", ["soak.py", *map(str, files), *words])
    soak.main()
    return json.loads((tmp_path / "soak.json").read_text())["parts"], (tmp_path / "report.md").read_text()


def test_a_part_is_done_once_and_reported(tmp_path, monkeypatch, capsys):
    done = []

    def kill_worker(ground):
        ground.show("now")
        done.append(ground.seed)
        if len(done) == 1:
            raise ValueError("no luck | at all")
        return table.Outcome("kill -9", 3, "0 rows", [1.0, 2.0, 9.0])

    monkeypatch.setattr(fuzz, "DOORS", {"models port": fuzz.models})
    monkeypatch.setitem(table.FAULTS, "F1", table.Fault("killed", (kill_worker,), ("test_wire.py",)))
    words = ("--only", "F1", "fuzz", "--no-tests", "--cases", "80", "--seed", "5")
    with pytest.raises(SystemExit, match="some parts failed"):
        play(monkeypatch, tmp_path, *words)
    assert "**failed**: ValueError: no luck / at all" in (tmp_path / "report.md").read_text()
    parts, text = play(monkeypatch, tmp_path, *words)
    assert done == [5, 5]
    assert parts["F1 kill_worker"]["times"] == 3
    assert "| F1 | kill -9 | 3 | 0 rows | 2.0 (9.0) |" in text
    assert "| models port | 80 |" in text
    play(monkeypatch, tmp_path, *words)
    assert done == [5, 5]
    assert "done before" in capsys.readouterr().out
    play(monkeypatch, tmp_path, *words, "--again")
    assert done == [5, 5, 5]


def test_a_fault_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(soak.ConfigError, match="--only F99: unknown; must be F1 to F"):
        play(monkeypatch, tmp_path, "--only", "F99")


def looks(*pss):
    return [hour.Look(float(minute), mb, 100, 10, 0.0) for minute, mb in enumerate(pss)]


def test_what_counts_as_flat_and_as_noise():
    flat = [*range(0, 1000, 100), *[500] * 10]  # ten minutes of growth, and then none
    assert hour.slope(list(enumerate(flat))) == pytest.approx(0, abs=1e-6)
    assert hour.slope([(minute, 5.0 * minute) for minute in range(20)]) == pytest.approx(300)
    assert hour.slope([(minute / 2, 5.0 * minute) for minute in range(20, 40)]) == pytest.approx(600)
    for short in (range(15), range(10, 14), range(3), range(0)):  # the warm-up of a run is no slope
        assert hour.slope([(minute, 5.0 * minute) for minute in short]) is None
    few, growing, scores = (
        looks(*range(12)),
        looks(*range(100, 200, 5)),
        {"faulty": (100.0, 1.0), "clean": (101.0, 1.0)},
    )
    text = hour.judged(scores, 0.0, few, few)
    assert "score 100.0" in text
    assert "an hour" not in text
    assert "an hour pss_mb +0.0, handles" in hour.judged(scores, 0.0, looks(*flat), few)
    assert hour.judged({**scores, "faulty": (80.0, 1.0)}, 20.0, few, few)  # it still climbs
    with pytest.raises(FaultFailed, match="'pss_mb'"):
        hour.judged(scores, 0.0, growing, growing)
    with pytest.raises(FaultFailed, match="a score of 80"):
        hour.judged({**scores, "faulty": (80.0, 1.0)}, 5.0, few, few)


def test_the_memory_of_each_process_has_a_row():
    row = {"process": "learner-0", "first_mb": 380.4, "last_mb": 381.0, "mb_per_h": 2.41}
    lines = report.memory({"memory": {"memory": [row]}, "F1 kill_worker": {}})
    assert lines[-2] == "| learner-0 | 380 | 381 | +2.4 |"
    assert report.memory({"F26 random_faults": {"memory": []}}) == []


def test_recovery_is_a_median_and_the_greatest():
    assert report.recovered([3.0, 1.0, 2.0]) == "2.0 (3.0)"
    assert report.recovered([]) == "-"
