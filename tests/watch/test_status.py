"""What a run shows: realm/watch/status.py in terminals of any width, and what is said at its end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from realm.commands.ending import called, ending, resuming
from realm.commands.living import _lines_of, attach, look
from realm.errors import ConfigError, RunError
from realm.launch.rundir import RunFile
from realm.learn.results import best_model, newest_model
from realm.watch.display import heading
from realm.watch.status import HostStatus, Scored, Status, clock, in_rows, lines, one_line, table, wrapped
from realm.wire.codec import WireError
from tests.saved import checkpoint

STATUS = Status(
    "running", 131_072_000, 1_000_000_000, 46_123.4, 1_326, 5_678_901, "score", 1150.04, 200,
    Scored("score", 1367.21, 1, 1_326), Scored("score", 1401.0, 2, 1_290), 0.5, 1_048_576, 2_097_152, 360_000.0, 3599.0,
)  # fmt: skip
NUMBERS = (
    "131,072,000 of 1,000,000,000", "46,123 env steps/s", "1,326", "5,678,901", "100:00:00", "0:59:59", "0.50 updates",
    "1,048,576 of 2,097,152", "1150.0, mean of the last 200 episodes", "1367.2, model of update 1,326",
    "1401.0, model of update 1,290 in epoch 2",
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_too_long_and_no_number_is_cut(width: int) -> None:
    shown = [*heading("train/20261124-012818: running", "Ctrl+C ends the run", width), *lines(STATUS, width)]
    assert max(map(len, shown)) <= width
    assert all(number in "\n".join(shown) for number in NUMBERS)
    assert len(shown) <= (9 if width >= 80 else 13)


def test_a_line_of_a_log_has_them_too() -> None:
    assert all(number in one_line(STATUS) for number in NUMBERS)


def test_a_warm_up_is_shown_while_it_lasts() -> None:
    warm_up = dataclasses.replace(STATUS, warm_up_left=16_800)
    for width in (60, 80, 120):
        assert "warm-up 16,800 env steps to go" in re.sub(" +", " ", "\n".join(lines(warm_up, width)))
        assert max(map(len, lines(warm_up, width))) <= width
    assert "warm-up" not in one_line(STATUS)
    samples = dataclasses.replace(STATUS, warm_up_samples_left=512)
    assert "warm-up 512 samples to go" in re.sub(" +", " ", "\n".join(lines(samples, 80)))
    assert "buffer" not in "\n".join(lines(dataclasses.replace(STATUS, buffer_capacity=0), 80))


def test_a_run_that_cannot_be_asked_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFile("id", os.getpid(), 0.0, control="tcp://127.0.0.1:1")
    for error in (
        ConfigError("no keys"),
        RunError("refused"),
        WireError("what is this"),
        msgspec.ValidationError("old"),
    ):
        monkeypatch.setattr("realm.commands.living.ask", Mock(side_effect=error))
        seen = look(tmp_path, run)
        assert (seen.status, seen.trouble) == (None, f"its supervisor cannot be asked: {error}")
        assert str(error) in _lines_of(seen, 80)[1]
        monkeypatch.setattr("realm.launch.rundir.RunFile.lives", lambda self: True)
        monkeypatch.setattr("realm.commands.living.read_run", lambda path, skipped=None: run)
        with pytest.raises(RunError, match=str(error)):
            attach(tmp_path)


def test_words_go_on_below_themselves() -> None:
    assert in_rows([("a", "one two"), ("best", "one two three 1,234,567")], 24) == [
        "  a    one two",
        "  best one two three",
        "       1,234,567",
    ]
    assert table([("a", "b"), ("long", "1")], frozenset({1})) == ["a     b", "long  1"]


def test_a_log_line_goes_on_below_its_message() -> None:
    said = wrapped("13:20:12 INFO    chosen: flow = overlapping: 2 cores, workers play\n  File x", 40)
    assert said == (
        "13:20:12 INFO    chosen: flow =\n                 overlapping: 2 cores,\n"
        "                 workers play\n  File x\n"
    )


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 59.9, 60, 3661, 100 * 3600)] == [
        "0:00:00", "0:00:59", "0:01:00", "1:01:01", "100:00:00",
    ]  # fmt: skip


def test_what_is_said_at_the_end(tmp_path: Path) -> None:
    run_dir = tmp_path / "one"
    said = "\n".join(ending(run_dir, STATUS, 1, 80))
    assert re.search(r"what happened:\n  .* logs .*/one$", said)  # without a model there is nothing else to do
    checkpoint(run_dir / "ckpt", 1, 9, 900)
    newest = checkpoint(run_dir / "ckpt", 1, 12, 1200)
    (run_dir / "ckpt" / "model.ckpt-2-1").mkdir()  # without a manifest it is none
    best = checkpoint(run_dir / "best_ckpt", 1, 10, 1000)
    body = {"statistic": "r", "score": 98.76, "env_steps": 1000}
    best.with_name("model.ckpt-1-10.json").write_text(json.dumps(body))
    found, good = newest_model(run_dir), best_model(run_dir)
    assert found is not None
    assert good is not None
    assert (found.path, found.version.update, found.env_steps) == (newest, 12, 1200)
    assert good.scored == Scored("r", 98.76, 1, 10)
    *said, _, how, _, further = ending(run_dir, STATUS, 0, 500)
    assert f"return 98.8, update 10: {best}" in "\n".join(said)
    assert how.endswith(f" eval {run_dir} --id best")
    assert further.endswith(f" resume {run_dir}")
    for score, identity in ((1151.0, " --id best"), (1149.0, "")):  # training scores 1150
        best.with_name("model.ckpt-1-10.json").write_text(json.dumps(body | {"statistic": "score", "score": score}))
        said = ending(run_dir, STATUS, 0, 500)
        assert said[-3].endswith(f" eval {run_dir}{identity}")
        assert any("best model" in line for line in said) == bool(identity)
    line = {"env_steps": 1200, "version": [1, 12]}  # the newest was judged, so nothing is further
    (run_dir / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    said = ending(run_dir, STATUS, 0, 500)
    assert said[-3].endswith(f" eval {run_dir} --id best")
    assert not any("training is further" in line for line in said)
    (run_dir / "evaluations.jsonl").unlink()
    assert resuming(run_dir, 1000, 1000).endswith(f" resume {run_dir} --set max_env_steps=2000")
    assert resuming(run_dir, 2001, 1000).endswith(" max_env_steps=4000")  # the limit was lowered
    (run_dir / "config.toml").write_text('[app]\nalgo = "realm.zoo.ppo"\n[ppo]\ntotal_env_steps = 1000\n')
    assert resuming(run_dir, 1000, 1000).endswith(" --set max_env_steps=2000 ppo.total_env_steps=2000")
    assert resuming(run_dir, 900, 1000).endswith(f" resume {run_dir}")
    (run_dir / "config.toml").write_text('[app]\nalgo = "realm.zoo.td3"\n[td3]\nlr_steps = 1000\n')
    assert resuming(run_dir, 1000, 1000).endswith(" --set max_env_steps=2000 td3.lr_steps=2000")


def test_what_is_printed_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout whose .venv has the command or not, and is activated or not."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "argv", ["realm/__main__.py"])
    assert called() == ".venv/bin/python -m realm"
    (folder / "realm").touch(0o755)
    assert called() == ".venv/bin/realm"
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert called() == "realm"


def test_hosts_have_a_line_each() -> None:
    hosts = [HostStatus("beta", 4, 1.25, 0.5, 0.4), HostStatus("gamma", 2, 0.0, 0.0, 8.6)]
    shown = lines(dataclasses.replace(STATUS, hosts=hosts, homeless=3), 100)
    text = " ".join(" ".join(shown).split())
    assert "host beta 4 workers, 1.25 MB/s up, 0.50 down so far, heard 0 s ago" in text
    assert "host gamma 2 workers, 0.00 MB/s up, 0.00 down so far, heard 9 s ago" in text
    assert "3 workers, which wait for one" in text
    assert "host" not in "\n".join(lines(STATUS, 100))
