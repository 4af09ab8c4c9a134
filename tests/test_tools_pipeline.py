"""tools/pipeline.py: its forecast follows from its parts."""

from __future__ import annotations

import json

import pytest

from realm.config import ConfigError
from tools import pipeline
from tools.pipeline import Parts, Shape

PARTS = Parts(([1, 4, 16], [1.0, 4.0, 10.0]), ([1, 16], [0.0, 0.0]), 2.0, 0.5, 3.0)


def test_sizes_between_are_interpolated_and_beyond_grow_in_proportion():
    assert [pipeline.at(PARTS.forward, n) for n in (1, 2, 4, 10, 16, 32)] == [1.0, 2.0, 4.0, 7.0, 10.0, 20.0]


def test_alternating_adds_and_overlapping_takes_the_longest():
    shape = Shape(workers=4, envs=4, chunk_length=8, cores=2, overlapping=False)
    one = pipeline.forecast(PARTS, shape)
    assert (one.play_s, one.travel_s, one.train_s, one.lag) == (8 * 2 * 4.0, 16 * 2.0, 128 * 0.5 + 3.0, 0.0)
    assert one.env_steps_per_s == pytest.approx(128 / (64 + 32 + 67))
    other = pipeline.forecast(PARTS, shape._replace(overlapping=True))
    assert (other.env_steps_per_s, other.lag) == (pytest.approx(128 / 67), 1.0)
    fast = pipeline.forecast(PARTS, shape._replace(overlapping=True, trains=64.0))
    assert fast.env_steps_per_s == pytest.approx(128 / 64)


def lines():
    named = [(f"predict, {n} rows", n, 0.1 * n) for n in (1, 2, 64)] + [
        ("env step, features, reward, 64 envs", 64, 0.064),
        ("env step, features, reward, 1 envs", 1, 0.01),
        ("push 64 chunks, native", 64, 6.4),
        ("sample 128 chunks, native", 128, 1.28),
        ("update of 24 gradient steps", 1000, 5.0),
        ("publish weights to the pool", 1, 0.25),
        ("verify and load weights", 1, 0.5),
    ]
    return [{"network": "default", "what": what, "amount": n, "seconds": [9.0, s, 0.0]} for what, n, s in named]


def test_parts_are_read_from_what_bench_parts_wrote():
    parts = pipeline.read_parts(lines(), "native")
    assert parts.forward[0] == [1, 2, 64]
    assert parts.step == ([1, 64], [0.01, 0.064])
    assert parts.travel == pytest.approx(2 * 0.1 + 0.01)
    assert (parts.update, parts.publish) == (pytest.approx(0.005), 0.75)
    with pytest.raises(ConfigError, match="push"):
        pipeline.read_parts(lines(), "reverb")
    with pytest.raises(ConfigError, match="verify and load weights"):
        pipeline.read_parts(lines()[:-1], "native")


def test_the_table_sets_forecast_and_measure_side_by_side(tmp_path, monkeypatch, capsys):
    (tmp_path / "parts.json").write_text(json.dumps({"lines": lines()}))
    rows = {"tuner": {"rounds": [{"env_steps_per_s": 100.0}, {"env_steps_per_s": 0.0}]}, "workers-4": {"rounds": []}}
    (tmp_path / "scale.json").write_text(json.dumps({"rows": rows}))
    words = ["pipeline.py", str(tmp_path / "parts.json"), "--measured", str(tmp_path / "scale.json")]
    monkeypatch.setattr("sys.argv", words)
    pipeline.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("as the tuner chooses")
    assert " 100 " in printed[1]
    assert sum("64 workers, a core each" in line for line in printed) == 4
