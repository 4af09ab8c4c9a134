"""tools/bench/train.py: its rows, what it reads from them, and a tiny run of two. Nothing is asserted of speed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from realm.config.load import load_config
from realm.config.plan import Machine, this_machine
from realm.errors import ConfigError
from realm.user import load_callbacks
from realm.watch.tensorboard import TensorBoard
from tools import common as tools_common
from tools.bench import train
from tools.bench.train import Point, Row

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "conf" / "smoke.toml"
TINY = ["diy.chunk_length=16", "diy.hidden=32", "diy.minibatch_size=64"]
FIGURES = {
    "round", "env_steps_per_s", "cpu_s_per_1000", "pss_mb", "seconds_to_score", "env_steps_to_score", "score",
    "env_steps", "updates", "window_s", "start_s", "died", "lag", "learner_busy",
}  # fmt: skip


def points(*rows):
    return [Point(*row) for row in rows]


# ---- rows ----


def test_rows_are_ours_those_asked_for_and_the_peers():
    path = ROOT / "conf" / "configure_app.toml"
    tuner = train.tuner_settings(load_config(path).app, this_machine())
    extra = ["many=aisrv_count=4 aisrv_connect_to_kaiwu_env_count=16", "wide=diy.hidden=512", "few=aisrv_count=7"]
    rows = train.all_rows(path, (), tuner, extra)
    ours = ["plain", "graph", "local", "tuner", "hooks", "pufferlib"]
    assert [row.name for row in rows] == [*ours, "many", "wide", "few"]
    for row in rows[2:]:
        load_config(path, row.settings)
    assert train.chosen_rows(rows, [], extra) == [row for row in rows if row.name not in ("graph", "hooks")]
    some = train.chosen_rows(rows, ["tuner", "pufferlib"], ["wide=x"])
    assert [row.name for row in some] == ["tuner", "pufferlib", "wide"]
    with pytest.raises(ConfigError, match="--rows d: there is no such row"):
        train.chosen_rows(rows, ["d"], [])
    for text in ("many", "=aisrv_count=2", "many="):
        with pytest.raises(ConfigError, match="must be NAME="):
            train.all_rows(path, (), tuner, [text])
    with pytest.raises(ConfigError, match="no_such_key"):
        train.all_rows(path, (), tuner, ["x=no_such_key=1"])


def test_the_tuners_row_is_the_tuners_with_as_many_environments():
    path = ROOT / "conf" / "reference.toml"  # two workers with 16 environments each
    app = load_config(path).app
    settings = train.tuner_settings(app, Machine(2, 0, True))
    assert {"aisrv_count=auto", "predict_local_or_remote=auto"} <= set(settings)
    for cores, workers, envs in ((2, 1, 32), (16, 4, 8), (12, 2, 16)):  # of 12 the tuner would have three workers
        machine = Machine(cores, 0, True)
        settings = train.tuner_settings(app, machine)
        plan = tools_common.plan_of(load_config(path, settings).app, machine)
        assert (plan.workers, plan.envs_per_worker) == (workers, envs)
    assert "aisrv_count=2" in settings


def test_a_peer_says_why_it_cannot_run(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "PEER", tmp_path)
    plan = tools_common.plan_of(load_config(SMOKE).app)
    with pytest.raises(ConfigError, match=r"is not installed: tools/bench/puffer.sh$"):
        train.start_of(Row("pufferlib", "", "peer"), SMOKE, plan, tmp_path / "run", 1)
    (tmp_path / "failed").write_text("no wheel for this Python\n")
    with pytest.raises(ConfigError, match="could not be installed: no wheel for this Python"):
        train.start_of(Row("pufferlib", "", "peer"), SMOKE, plan, tmp_path / "run", 1)


def test_a_peer_has_the_threads_it_is_given_and_no_row_those_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "PEER", tmp_path)
    (tmp_path / "installed").touch()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "7")
    plan = tools_common.plan_of(load_config(SMOKE).app)
    peer = train.start_of(Row("pufferlib", "", "peer"), SMOKE, plan, tmp_path / "run", 1, 3)
    assert peer.command[-2:] == ["--threads", "3"]
    assert peer.environment["OMP_NUM_THREADS"] == "3"
    for row in (Row("plain", "", "plain"), Row("local", "", "local"), Row("tuner", "", "cluster")):
        start = train.start_of(row, SMOKE, plan, tmp_path / "run", 1)
        assert start.environment["KEPT"] == "7"
        assert not [name for name, value in start.environment.items() if name != "KEPT" and value == "7"]


def test_the_row_of_hooks_has_the_agent_with_each_hook(tmp_path, monkeypatch):
    plan = tools_common.plan_of(load_config(SMOKE).app)
    start = train.start_of(Row("hooks", "", "hooks"), SMOKE, plan, tmp_path / "run", 1)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.move(start.folder / "diy", tmp_path / "hooked_agent")
    assert sorted(load_callbacks("hooked_agent")) == ["on_end", "on_evaluation", "on_start", "on_update"]


# ---- what is read ----


def test_the_window_begins_after_the_first_updates():
    seen = points((10.0, 100, 1, None), (11.0, 300, 3, None), (12.0, 400, 4, None), (14.0, 900, 9, None))
    first, last = train.window(seen)
    assert (first.time, last.time) == (11.0, 14.0)
    assert train.window(seen[:2]) is None


def test_the_score_is_of_enough_episodes():
    score = train.Score()
    assert score.take(None, 0) is None
    assert score.take(1000.0, 150) is None
    assert score.take(2000.0, 100) == 1500.0
    assert score.take(None, 0) == 1500.0
    seen = points((1, 10, 1, None), (2, 20, 2, 900.0), (4, 30, 3, 1200.0), (6, 40, 4, 1100.0), (8, 50, 5, 1300.0))
    at = train.reached(seen, 1150.0)
    assert at is not None
    assert (at.time, at.env_steps, at.score) == (pytest.approx(2 + 2 * 5 / 6), 28, 1150.0)  # the first time
    assert train.reached(seen, 900.0) == seen[1]
    assert train.reached(seen, 800.0) == seen[1]  # nothing is known of before
    assert train.reached(seen, 1350.0) is None
    assert train.reached(seen, None) is None
    often = points((2, 20, 2, 900.0), (2.5, 22, 2, 1170.0), (4, 30, 3, 1100.0), (6, 40, 4, 1200.0))
    at = train.reached(often, 1150.0)
    assert at is not None
    assert (at.time, at.env_steps) == (5, 35)  # who looks every two seconds has not seen 1170


def test_lines_are_read_as_they_come(tmp_path):
    log = tmp_path / "log"
    line = json.dumps({"time": 5.0, "env_steps": 64, "updates": 2, "episodes": 400, "score": 7.0})
    log.write_text(f"loading\n{line}\n{line[:10]}")
    lines = train.Lines(log)
    assert lines.poll() == points((5.0, 64, 2, 7.0))
    with open(log, "a") as file:
        file.write(f"{line[10:]}\n[1, 2]\nnull\n")
    assert lines.poll() == points((5.0, 64, 2, 7.0))
    assert lines.poll() == []


def test_curves_are_read(tmp_path):
    board = TensorBoard(tmp_path / "log" / "tensorboard")
    values = {"system/learner/version_update": 4.0, "episode/score": 30.0, "system/aisrv/episodes_per_s": 200.0}
    board.write({**values, "learner/policy_lag_updates": 0.5, "system/learner/busy_share": 0.75}, 512)
    board.close()
    (point,) = train.Curves(tmp_path).poll()
    assert point[1:] == (512, 4, None, 0.5, 0.75)
    assert abs(point.time - time.time()) < 60


def test_the_episodes_of_a_curve_are_its_rate_times_the_time_since_the_event_before(tmp_path, monkeypatch):
    (tmp_path / "log" / "tensorboard").mkdir(parents=True)
    values = {"system/learner/version_update": 4.0, "system/aisrv/episodes_per_s": 12.0}
    events = [
        tools_common.Event(0, at, 512, {**values, "episode/score": score})
        for at, score in ((10.0, 30.0), (20.0, 60.0), (40.0, 90.0))
    ]
    monkeypatch.setattr(tools_common, "read_events", lambda run: events)
    seen = train.Curves(tmp_path).poll()
    assert [point.time for point in seen] == [10.0, 20.0, 40.0]
    # since when the first one counts is not known; then 120 episodes, which are too few, and 240, which are enough
    assert [point.score for point in seen] == [None, None, 90.0]


def test_the_last_words_of_a_log_are_its_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback:\n  File 'x', line 3, in Error\nValueError: no such thing\nbye\n")
    assert train.last_words(log) == "ValueError: no such thing"
    log.write_text("")
    assert train.last_words(log) == "it said nothing"


def test_processes_count_children_and_what_has_ended():
    busy = "import time\nwhile time.process_time() < 0.4: pass\ntime.sleep(20)"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {busy!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code])
    seen = train.Processes(process.pid)
    begin = time.monotonic()
    while time.monotonic() - begin < 30 and (len(seen.history) < 3 or seen.history[-1][1] < 0.3):
        seen.sample()
        time.sleep(0.1)
    before = seen.history[-1][1]
    seen.end()
    process.wait()
    assert before >= 0.3  # the child's
    assert seen.history[-1][1] >= before
    assert seen.cpu_at(seen.history[0][0] - 1) == seen.history[0][1]
    assert seen.cpu_at(time.time()) == seen.history[-1][1]
    assert seen.pss_mb > 0
    assert not seen.alive()


# ---- what comes out ----


def entry(rates, seconds=None, failures=()):
    """rates: round -> env steps/s"""
    row = train.new_entry(Row("", "says", "plain"))
    for number, rate in rates.items():
        found = dict.fromkeys(FIGURES, 1.0) | {"died": "", "seconds_to_score": None}
        row["rounds"].append(found | {"round": number, "env_steps_per_s": rate})
    for one, value in zip(row["rounds"], seconds or (), strict=False):
        one["seconds_to_score"] = value
    row["failures"] = [{"round": number, "why": "it broke | twice\nover"} for number in failures]
    return row


def test_a_round_that_did_not_reach_the_score_is_infinitely_long():
    rates = {1: 1.0, 2: 1.0, 3: 1.0}
    assert train.seconds_to_score(entry(rates, seconds=(30.0, 10.0, 20.0))) == "20 (3 of 3 rounds)"
    assert train.seconds_to_score(entry(rates, seconds=(30.0, None, 20.0))) == "30 (2 of 3 rounds)"
    assert train.seconds_to_score(entry(rates, seconds=(30.0, None, None))) == "not reached (1 of 3 rounds)"
    failed = entry({1: 1.0}, seconds=(30.0,), failures=(2, 3))
    assert train.seconds_to_score(failed) == "not reached (1 of 3 rounds)"


def test_ratios_are_of_rows_in_the_same_round():
    rows = {
        "plain": entry({1: 100.0, 2: 200.0, 3: 400.0}, seconds=(40.0, 60.0, 50.0)),
        "tuner": entry({1: 50.0, 2: 200.0, 3: 300.0}),
        "pufferlib": entry({2: 30.0}, failures=(1,)),
        "broken": entry({}, failures=(1, 2)),
    }
    results = {"rows": rows, "setup": {"to_score": 1150.0}, "alone": {"env_steps_per_s": 250.0}}
    lines = train.table(results).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 200 | 100 - 400 | 1.00 (1.00 - 1.00) |" in lines[2]
    assert "| 50 (3 of 3 rounds) |" in lines[2]
    assert "| 1.00 (1.00 - 1.00) | 0.80 |" in lines[2]  # of the parts alone
    assert "| 0.75 (0.50 - 1.00) |" in lines[3]  # of the medians it would be 1.0
    assert "failed in round 1: it broke / twice over" in lines[4]
    assert "| 0.15 (0.15 - 0.15) |" in lines[4]
    assert "round 1: it broke / twice over; round 2: it broke" in lines[5]


# ---- a run ----


class Told:
    """A source of points that are known."""

    def __init__(self, *seen):
        self.seen = list(seen)

    def poll(self):
        seen, self.seen = self.seen, []
        return seen


def test_a_row_that_dies_while_its_score_is_waited_for_keeps_its_speed(tmp_path):
    start = train.Start([sys.executable, "-c", "raise ValueError('lost it')"], dict(os.environ), tmp_path)
    seen = points((1.0, 0, 1, None), (2.0, 100, 3, 7.0), (5.0, 400, 4, 7.0))

    def measure(seconds):
        wanted = train.Wanted(seconds, 1150.0, 60.0)
        return train.measure(start, tmp_path / "log", Told(*seen), wanted, lambda text: None)

    found = measure(3.0)
    assert found["env_steps_per_s"] == 100.0
    assert found["seconds_to_score"] is None
    assert found["died"].endswith("exit code 1: ValueError: lost it")
    with pytest.raises(RuntimeError, match="exit code 1: ValueError: lost it"):
        measure(4.0)


def bench(tmp_path, rows, rounds):
    args = SimpleNamespace(
        out=tmp_path / "bench.json", rounds=rounds, seconds=2.0, to_score=None, score_minutes=0.0,
        config=SMOKE, set=TINY,
    )  # fmt: skip
    results = {"setup": {"to_score": None}, "rows": {row.name: train.new_entry(row) for row in rows}}
    train.run_rows(rows, args, load_config(SMOKE, TINY), results)
    return results, args.out


def test_any_error_of_a_row_leaves_the_others_and_is_tried_again(tmp_path, monkeypatch, capsys):
    rows = [Row("plain", "", "plain"), Row("local", "", "local")]
    calls = []

    def measure(start, log, reader, wanted, show):
        calls.append(log.stem)
        log.touch()
        if log.stem == "plain-1":
            raise OSError("no more sockets")
        return {**dict.fromkeys(FIGURES - {"round"}, 1.0), "died": ""}

    monkeypatch.setattr(train, "measure", measure)
    results, _ = bench(tmp_path, rows, rounds=2)
    assert calls == ["plain-1", "local-1", "local-2", "plain-2"]
    plain = results["rows"]["plain"]
    assert plain["failures"] == [{"round": 1, "why": "OSError: no more sockets"}]
    assert [one["round"] for one in plain["rounds"]] == [2]
    assert len(results["rows"]["local"]["rounds"]) == 2
    assert "round 1 of 2, plain: failed: OSError: no more sockets" in capsys.readouterr().out


@pytest.mark.system
@pytest.mark.slow
def test_a_tiny_run_of_two_rows_and_one_that_fails(tmp_path, capsys):
    one = ("wrapper_type=remote", "aisrv_count=1", "predict_local_or_remote=local", "buffer_backend=native")
    rows = [Row("plain", "plain loop", "plain"), Row("cluster", "one worker", "cluster", (*one, "eval_cpu_share=0"))]
    rows.append(Row("broken", "is wrong", "cluster", ("no_such_field=1",)))
    results, out = bench(tmp_path, rows, rounds=1)

    kept = json.loads(out.read_text())["rows"]
    for name in ("plain", "cluster"):
        entry = results["rows"][name]
        assert entry["failures"] == []
        (found,) = entry["rounds"]
        assert set(found) == FIGURES
        assert kept[name]["rounds"] == json.loads(json.dumps(entry["rounds"]))
        assert found["updates"] > train.WARM_UPDATES
        assert min(found["env_steps_per_s"], found["cpu_s_per_1000"], found["pss_mb"]) > 0
        assert found["window_s"] >= 2.0
    broken = results["rows"]["broken"]
    assert "no_such_field" in broken["failures"][0]["why"]
    assert not broken["rounds"]
    text = train.table(results)
    assert len(text.splitlines()) == 2 + 3
    assert "no_such_field" in text
    assert "round 1 of 1, plain" in capsys.readouterr().out
    assert not [path for path in (tmp_path / "bench-runs").iterdir() if path.is_dir()]


def test_a_wrong_row_is_one_sentence(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "bench" / "train.py"), "--rows", "nothing"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --rows nothing: there is no such row")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("file", ["cartpole.toml", "ppo/pendulum.toml"])
def test_the_parts_alone_are_what_a_training_does(file):
    config = tools_common.effective(load_config(ROOT / "conf" / file))
    before = torch.get_num_threads()
    parts = train.alone(config, updates=2)
    torch.set_num_threads(before)
    each = [parts[name] for name in ("environments", "predictions", "updates")]
    assert min(each) > 0
    assert parts["env_steps_per_s"] == pytest.approx(this_machine().cores / sum(each))


def test_rows_of_a_replay_memory_are_no_part_alone():
    config = tools_common.effective(load_config(ROOT / "conf" / "pendulum.toml"))
    with pytest.raises(ConfigError, match="td3 learns from a replay memory"):
        train.alone(config)


def test_rows_with_the_network_of_diy_are_not_beside_another_package(tmp_path, monkeypatch):
    path = str(ROOT / "conf" / "ppo" / "cartpole.toml")
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--config", path, "--rows", "local", "plain", "--out", str(tmp_path / "a.json")]
    )
    with pytest.raises(ConfigError, match="--rows plain: it has the network of diy, but algo is 'realm"):
        train.main()


def test_a_second_sigterm_does_not_come_in_the_middle_of_ending():
    """As `timeout` sends it, if a whole process group has had one already."""
    script = """
import time
from tools import common
common.end_in_order()
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("ending", flush=True)
    time.sleep(0.5)
    print("ended")
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for said in ("begun", "ending"):
            assert process.stdout.readline().strip() == said
            process.terminate()
        assert process.stdout.read().strip() == "ended"
    assert process.returncode == 0
