"""tools/soak: a finished part is not done again."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests import fuzz
from tests.counting import tally
from tools.soak import faults, hosts, soak
from tools.soak.victim import Outcome


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
        return Outcome("kill -9", 3, "0 rows", [1.0, 2.0, 9.0])

    monkeypatch.setattr(fuzz, "DOORS", {"models port": fuzz.models})
    monkeypatch.setitem(faults.FAULTS, "F1", (1.0, kill_worker))
    words = ("--only", "F1", "fuzz", "--cases", "80", "--seed", "5")
    with pytest.raises(SystemExit, match="some parts failed"):
        play(monkeypatch, tmp_path, *words)
    assert "**failed**: ValueError: no luck / at all" in (tmp_path / "report.md").read_text()
    parts, text = play(monkeypatch, tmp_path, *words)
    assert done == [5, 5]
    assert parts["F1"]["times"] == 3
    assert "| F1 | kill -9 | 3 | 0 rows | 2.0 (9.0) |" in text
    assert "| models port | 80 |" in text
    play(monkeypatch, tmp_path, *words)
    assert done == [5, 5]
    assert "done before" in capsys.readouterr().out
    play(monkeypatch, tmp_path, *words, "--again")
    assert done == [5, 5, 5]


def test_a_fault_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(soak.ConfigError, match="--only F99: unknown; must be of F1 F2"):
        play(monkeypatch, tmp_path, "--only", "F99")


def test_what_counts_as_flat():
    flat = [*range(0, 1000, 100), *[500] * 10]  # ten minutes of growth, and then none
    assert faults.slope(list(enumerate(flat))) == pytest.approx(0, abs=1e-6)
    assert faults.slope([(minute, 5.0 * minute) for minute in range(20)]) == pytest.approx(300)
    assert faults.slope([(minute / 2, 5.0 * minute) for minute in range(20, 40)]) == pytest.approx(600)
    for short in (range(15), range(10, 14), range(3), range(0)):  # the warm-up of a run is no slope
        assert faults.slope([(minute, 5.0 * minute) for minute in short]) is None


def test_the_memory_of_each_process_has_a_row():
    row = {"process": "learner-0", "first_mb": 380.4, "last_mb": 381.0, "mb_per_h": 2.41}
    made = {"injected": "x", "times": 0, "lost": "y", "recovery_s": [],
            "about": dict.fromkeys(("date", "machine", "commit", "command"), "")}  # fmt: skip
    assert "\n| learner-0 | 380 | 381 | +2.4 |\n" in soak.report({"memory": {**made, "memory": [row]}})
    assert "Memory" not in soak.report({"F26": {**made, "memory": []}})


def test_the_faults_of_hosts_have_a_table(tmp_path):
    def note(what, *rows):
        worker, incarnation, env, seq = np.array(rows).T
        tally.note(tmp_path, what, SimpleNamespace(worker=worker, incarnation=incarnation, env=env, seq=seq))

    note("played", (1, 1, 0, 0), (1, 1, 0, 1), (1, 1, 0, 2), (1, 2, 0, 0))
    note("trained", (1, 1, 0, 0), (1, 1, 0, 2), (1, 1, 0, 2))
    # of the first process one of three is missing, and a later one is there; the second one's may be under way
    assert tally.compare(tmp_path) == ({(1, 1): [3, 1, 1], (1, 2): [1, 1, 0]}, 1)
    row = hosts.Row("R1", "power", [0.1], [11.0, 12.0, 11.1], [80.0, 70.0, 75.0], [1.0, 0.0, 0.0])
    made = {"injected": "x", "times": 3, "lost": "y", "recovery_s": [],
            "about": dict.fromkeys(("date", "machine", "commit", "command"), "")}  # fmt: skip
    text = soak.report({"R1": {**made, "hosts": [dataclasses.asdict(row)]}})
    assert "\n| R1 | power | 3 | 0.1 (0.1) | 11.1 (12.0) | 75.0 (80.0) | 0.0 (1.0) |\n" in text


def test_recovery_is_a_median_and_the_greatest():
    assert soak.recovered([3.0, 1.0, 2.0]) == "2.0 (3.0)"
    assert soak.recovered([]) == "-"
