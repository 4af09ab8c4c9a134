"""realm/watch/: sums that add up over processes, and a TensorBoard writer that outlives a full disk."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loguru import logger

from realm.config.load import load_config
from realm.watch import tensorboard
from realm.watch.board import Board
from realm.watch.curves import Curves
from realm.watch.descriptions import description
from realm.watch.meters import Meters
from realm.watch.tensorboard import TensorBoard
from tests.cluster import PATIENCE_S

ROOT = Path(__file__).parents[2]


# --- meters


def test_totals_stay_and_means_start_anew() -> None:
    meters = Meters()
    meters.count("rounds")
    meters.count("items", 5)
    meters.put("loss", 1.0)
    meters.put("loss", 3.0)
    meters.put("kl", 0.5)
    assert meters.snapshot() == ({"rounds": 1, "items": 5}, {"loss": [4.0, 2], "kl": [0.5, 1]})
    meters.count("rounds", 2)
    meters.put("kl", 2.0)
    totals, means = meters.snapshot()
    assert totals == {"rounds": 3, "items": 5}
    assert means == {"kl": [2.0, 1]}
    totals["rounds"] = 99  # a snapshot is a copy
    assert meters.snapshot() == ({"rounds": 3, "items": 5}, {})


def test_no_observation_falls_into_the_middle_of_a_snapshot() -> None:
    """The buffer observes in its keeper's thread and reports from its loop: a count of 0 was a bad report."""
    meters, each = Meters(), 100_000
    reported: list[tuple[float, ...]] = []
    threads = [threading.Thread(target=lambda: [meters.put("x", 1.0) for _ in range(each)]) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            reported += map(tuple, meters.snapshot()[1].values())  # a copy: as it is when it is sent
        reported += map(tuple, meters.snapshot()[1].values())
    finally:
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert all(amount == count > 0 for amount, count in reported)
    assert sum(count for _, count in reported) == 3 * each


def test_whatever_is_a_number_can_be_reported() -> None:
    meters = Meters()
    values: list[Any] = [np.float32(1), np.int64(2), torch.tensor(3.0), torch.tensor([4]), True, np.array(5.5)]
    for n, value in enumerate(values):
        meters.put(f"value-{n}", value)
    _, means = json.loads(json.dumps(meters.snapshot()))
    assert [means[f"value-{n}"] for n in range(6)] == [[1, 1], [2, 1], [3, 1], [4, 1], [1, 1], [5.5, 1]]


def test_quantiles_of_durations() -> None:
    meters = Meters()
    for n in range(101):
        meters.timing("predict", n / 1000)
    _, means = meters.snapshot()
    assert means == {"predict_median_ms": [pytest.approx(50), 1], "predict_p99_ms": [pytest.approx(99), 1]}
    assert meters.snapshot()[1] == {}
    for n in range(100_000):
        meters.timing("predict", n)
    assert len(meters._timings["predict"]) <= 5000  # a second of a fast worker must not fill the memory
    meters.timing("other", 1.0)
    assert meters.snapshot()[1]["other_p99_ms"] == [1000.0, 1]


def test_episodes_of_gymnasiums_info() -> None:
    meters = Meters()
    for info in ({}, {"_episode": np.array([False, False]), "episode": {"score": np.array([9.0, 9.0])}}):
        meters.episodes(info)
    assert meters.snapshot() == ({}, {})
    meters.episodes(
        {
            "_episode": np.array([True, False, True]),
            "episode": {"score": np.array([10.0, 99.0, 30.0]), "steps": np.array([5, 99, 6])},
        }
    )
    totals, means = meters.snapshot()
    assert totals == {"episodes": 2}
    assert means == {"episode/score": [40.0, 2], "episode/steps": [11.0, 2]}
    json.dumps(means)


# --- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What tensorboard itself reads: tag -> (step, value), over all files of the folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), purge_orphaned_data=True)
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_can_be_read_at_once(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.write({"learner/loss": 0.5, "episode/score": 100.0}, 1000)
    board.write({"learner/loss": 0.25, "nan": float("nan")}, 2000)
    read = scalars(tmp_path)  # before it is closed
    assert read["learner/loss"] == [(1000, 0.5), (2000, 0.25)]
    assert read["episode/score"] == [(1000, 100.0)]
    assert [step for step, _ in read["nan"]] == [2000]
    board.close()
    board.close()


def test_a_board_without_a_word_leaves_no_file(tmp_path: Path) -> None:
    TensorBoard(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_warning_a_minute_and_never_an_end(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    board = TensorBoard(tmp_path)
    board.write({"x": 1.0}, 1)
    threads = threading.active_count()
    with monkeypatch.context() as disk:
        disk.setattr(RecordWriter, "write", full)
        disk.setattr(RecordWriter, "flush", full)
        for step in range(2, 50):
            board.write({"x": 2.0}, step)
        warnings = [line for line in logged if "cannot write TensorBoard's files" in line]
        assert len(logged) == len(warnings) == 1
        assert "No space left on device" in warnings[0]
        # a minute later it tries anew, with a new file
        for step in range(50, 60):
            monkeypatch.setattr(board, "_retry_at", 0.0)
            board.write({"x": 2.0}, step)
        assert sum("cannot write TensorBoard's files" in line for line in logged) == 11
    board.write({"x": 3.0}, 60)
    assert threading.active_count() <= threads  # no writer's thread was left behind
    monkeypatch.setattr(board, "_retry_at", 0.0)
    board.write({"x": 4.0}, 61)
    board.close()
    assert scalars(tmp_path)["x"] == [(1, 1.0), (61, 4.0)]
    assert tensorboard._RETRY_AFTER_S == 60


def test_the_axis_goes_on_where_a_lost_learner_is_resumed(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.begin(0)
    for step in range(0, 1000, 100):
        board.write({"x": 1.0}, step)
    board.begin(500)  # the newest checkpoint
    for step in (500, 580, 660):
        board.write({"x": 2.0, "new": 0.0}, step)
    board.close()
    line = [(step, 1.0) for step in range(0, 501, 100)] + [(500, 2.0), (580, 2.0), (660, 2.0)]
    assert scalars(tmp_path)["x"] == line
    again = TensorBoard(tmp_path)  # another session, which ended without a checkpoint after 580
    again.begin(580)
    again.write({"x": 3.0}, 600)
    again.close()
    assert scalars(tmp_path)["x"] == [*line[:-1], (600, 3.0)]
    assert scalars(tmp_path)["new"] == [(500, 0.0), (580, 0.0)]


def test_files_are_read_in_their_order_even_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours, step in ((9, 0), (8, 50), (8, 75)):
        monkeypatch.setattr(tensorboard.time, "time", lambda hours=hours: 1e9 + 3600 * hours)
        board = TensorBoard(tmp_path)
        board.begin(step)
        board.write({"x": float(step)}, step)
        board.write({"x": float(step)}, step + 40)
        board.close()
    assert scalars(tmp_path)["x"] == [(0, 0.0), (40, 0.0), (50, 50.0), (75, 75.0), (115, 75.0)]


def test_a_session_that_a_full_disk_swallowed_is_told_of_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    board = TensorBoard(tmp_path)
    board.begin(0)
    for step in (0, 50, 100):
        board.write({"x": 1.0}, step)
    board.begin(50)
    with monkeypatch.context() as disk:
        disk.setattr(RecordWriter, "flush", full)
        board.write({"x": 2.0}, 60)
    monkeypatch.setattr(board, "_retry_at", 0.0)
    board.write({"x": 2.0}, 70)
    board.close()
    assert [point for point in scalars(tmp_path)["x"] if point[0] > 50 and point[1] == 1.0] == []


def test_a_folder_that_goes_away(tmp_path: Path, logged: list[str]) -> None:
    folder = tmp_path / "tensorboard"
    folder.write_text("in the way")
    board = TensorBoard(folder)
    board.write({"x": 1.0}, 1)
    assert sum("cannot write TensorBoard's files" in line for line in logged) == 1
    board.close()


def test_the_configuration_is_a_page_and_hyper_parameters(tmp_path: Path) -> None:
    """Of a run that is resumed with another setting: as the plugins of tensorboard read it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    (tmp_path / "config.toml").write_text('[app]\nseed = 3\nmax_version_lag = "part"\n[diy]\nhidden = [64, 32]\n')
    config = load_config(tmp_path / "config.toml")
    for env_steps in (0, 500):
        curves, board = Curves(tmp_path, config), Board()
        curves.begin(board, env_steps)
        curves.begin(board, env_steps + 100)  # a learner that was started again has the same settings
        curves.close()
    events = EventAccumulator(str(tmp_path / "log" / "tensorboard"))
    events.Reload()
    pages = events.Tensors("config")
    assert [page.step for page in pages] == [0, 500]
    assert b"seed = 3\n" in pages[1].tensor_proto.string_val[0]
    assert events.SummaryMetadata("config").plugin_data.plugin_name == "text"
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    assert (values["seed"].number_value, values["save_replay"].bool_value) == (3.0, False)
    assert (values["max_version_lag"].string_value, values["diy.hidden"].string_value) == ("part", "[64, 32]")
    assert "log_dir" not in values


@pytest.mark.system
def test_writing_loads_no_tensorflow(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from realm.watch.tensorboard import TensorBoard
from tests.cluster import PATIENCE_S
board = TensorBoard(Path({str(tmp_path)!r}))
board.write({{"x": 1.0}}, 1)
board.describe("", {{"seed": 1}}, 1)
board.close()
print("loaded", sorted({{"tensorflow", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "loaded []\n", done.stderr
    assert scalars(tmp_path) == {"x": [(1, 1.0)]}


@pytest.mark.parametrize("value", [10**400, "high", None, 1j, [1, 2], np.zeros(2), object()])
def test_a_metric_that_is_no_number_is_left_out_and_named_with_the_users_line(value):
    said, meters = [], Meters()
    number = logger.add(said.append, format="{message}")
    try:
        for _ in range(2):
            meters.put("score", value)
            meters.put("loss", value, "agent.py:7")
            meters.put("kl", 0.5, "agent.py:7")
    finally:
        logger.remove(number)
    assert meters.snapshot()[1] == {"kl": [1.0, 2.0]}
    by_monitor, by_learn = said
    kind = type(value).__name__
    assert re.match(rf".*test_tensorboard\.py:\d+: the metric 'score' is of {kind} and left out: ", by_monitor)
    assert by_learn.startswith(f"agent.py:7: the metric 'loss' is of {kind} and left out: ")


def test_the_first_page_and_what_each_curve_says_of_itself(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    writer = TensorBoard(tmp_path)
    writer.describe("", {}, 0)
    values = {"episode/return": 1.0, "evaluation/score_median": 2.0, "learner/own": 3.0, "aisrv/sold": 4.0}
    for step in (1, 2):
        writer.write(values, step)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    told = {tag: events.SummaryMetadata(tag).summary_description for tag in values}
    assert told == {
        "episode/return": "sum of the rewards of an episode of training, mean",
        "evaluation/score_median": "the environment's own score of an episode of the evaluations, median",
        "learner/own": "'own', as the agent reports it; mean since the last point",
        "aisrv/sold": "'sold', as the workflow reports it; mean since the last point",
    }
    assert [point.value for point in events.Scalars("learner/own")] == [3.0, 3.0]
    (layout,) = events.Tensors("custom_scalars__config__")
    first = Layout.FromString(layout.tensor_proto.string_val[0]).category[0].chart[0].multiline.tag[0]
    assert re.match(first, "evaluation/return")
    assert not re.match(first, "evaluation/return_median")
    assert (
        description("system/buffer/cpu_share")
        == "buffer/cpu_share: share of a core, all processes of the role together"
    )


@pytest.mark.system
@pytest.mark.slow
def test_the_command_shows_runs_by_their_names(tmp_path: Path) -> None:
    """TensorBoard itself takes seconds to start."""
    for name in ("one", "two"):
        writer = TensorBoard(tmp_path / name / "log" / "tensorboard")
        writer.write({"episode/return": 1.0}, 1)
        writer.close()
        (tmp_path / name / "config.toml").touch()
    command = [sys.executable, "-m", "realm", "tensorboard", "one", "two", "--port", "0", "--log-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().partition("#")[0]
            runs: list[str] = []
            until = time.monotonic() + PATIENCE_S
            while len(runs) < 2 and time.monotonic() < until:
                with urllib.request.urlopen(f"{url}data/runs", timeout=PATIENCE_S) as answer:
                    runs = json.load(answer)
                time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert sorted(runs) == ["one", "two"]
    assert errors == "interrupted\n"
