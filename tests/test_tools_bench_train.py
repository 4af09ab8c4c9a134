"""tools/bench_train.py: its rows, what it reads from them, and a tiny run of two. Nothing is asserted of speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from realm.config import ConfigError, load_config
from realm.launch.plan import Machine, make_plan, slow_choices, this_machine
from realm.monitor import TensorBoard
from tools import bench_train, plain_ppo
from tools.bench_train import Point, Row

ROOT = Path(__file__).parents[1]
SMOKE = ROOT / "conf" / "smoke.toml"
TINY = ["diy.chunk_length=16", "diy.hidden=32", "diy.minibatch_size=64"]
FIGURES = {
    "round", "env_steps_per_s", "cpu_s_per_1000", "pss_mb", "rss_mb", "seconds_to_score", "env_steps_to_score", "score",
    "env_steps", "updates", "window_s", "start_s", "cpu_s_of_roles", "threads",
}  # fmt: skip


def points(*rows):
    return [Point(*row) for row in rows]


# ---- rows ----


def test_every_row_is_a_start_that_the_configuration_allows():
    for conf in ("configure_app.toml", "reference.toml", "local.toml"):
        path = ROOT / "conf" / conf
        plan = make_plan(load_config(path).app, this_machine())
        rows = [*bench_train.our_rows(plan.round_size), *bench_train.slow_rows(plan)]
        rows += bench_train.scale_rows(plan, 256, 128)
        assert len({row.name for row in rows}) == len(rows)
        assert not {row.name for row in rows} & {row.group for row in rows}
        ours = [row for row in rows if row.kind in ("local", "cluster") and "reverb" not in row.name]
        for row in ours:
            app = load_config(path, row.settings).app
            made = make_plan(app, this_machine())
            assert (app.wrapper_type == "local") == (row.kind == "local")
            if row.name == "local" or row.group == "cluster":
                assert made.round_size == plan.round_size, row.name


@pytest.mark.parametrize("cores", [2, 16])
def test_a_start_warns_of_every_slow_row_and_not_of_the_tuners_choice(cores):
    path = ROOT / "conf" / "configure_app.toml"
    machine = Machine(cores=cores, gpus=0, has_reverb=True)
    app = load_config(path).app
    plan = make_plan(app, machine)
    assert slow_choices(app, plan) == []
    for row in bench_train.slow_rows(plan):
        changed = load_config(path, row.settings).app
        assert slow_choices(changed, make_plan(changed, machine)), row.name


def test_rows_are_chosen_by_name_and_by_group():
    rows = [Row("a", "x", "", "plain"), Row("b", "x", "", "plain"), Row("c", "slow", "", "plain")]
    assert [row.name for row in bench_train.chosen_rows(rows, [])] == ["a", "b"]
    assert [row.name for row in bench_train.chosen_rows(rows, ["slow", "b"])] == ["b", "c"]
    with pytest.raises(ConfigError, match="d: there is no such row"):
        bench_train.chosen_rows(rows, ["d"])


def test_every_peer_has_two_rows_and_says_why_it_cannot_run(tmp_path, monkeypatch):
    rows = bench_train.peer_rows()
    assert {row.name for row in rows} >= {"sb3", "sb3-malloc", "tianshou", "torchrl", "rllib", "sample_factory"}
    assert all(row.says for row in rows)
    monkeypatch.setattr(bench_train, "PEERS", tmp_path)
    plan = make_plan(load_config(SMOKE).app, this_machine())
    with pytest.raises(ConfigError, match=r"is not installed: tools/bench_peers.sh sb3$"):
        bench_train.start_of(Row("sb3-malloc", "peer", "", "peer"), SMOKE, plan, tmp_path / "run", 1)
    (tmp_path / "sb3").mkdir()
    (tmp_path / "sb3" / "failed").write_text("no wheel for this Python\n")
    with pytest.raises(ConfigError, match="could not be installed: no wheel for this Python"):
        bench_train.start_of(Row("sb3", "peer", "", "peer"), SMOKE, plan, tmp_path / "run", 1)


def test_only_one_of_a_peers_rows_has_the_allocator_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_train, "PEERS", tmp_path)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    (tmp_path / "sb3").mkdir()
    (tmp_path / "sb3" / "installed").touch()
    plan = make_plan(load_config(SMOKE).app, this_machine())
    with_, without = (
        bench_train.start_of(Row(name, "peer", "", "peer", (), allocator), SMOKE, plan, tmp_path / "run", 1)
        for name, allocator in (("sb3-malloc", True), ("sb3", False))
    )
    assert with_.command == without.command
    assert int(with_.environment["MALLOC_TOP_PAD_"]) > 1
    assert not [name for name in without.environment if name.startswith("MALLOC_")]
    assert without.environment["GOMP_SPINCOUNT"] == with_.environment["GOMP_SPINCOUNT"] == "300000"


# ---- what is read ----


def test_the_window_begins_after_the_first_updates():
    seen = points((10.0, 100, 1, None), (11.0, 300, 3, None), (12.0, 400, 4, None), (14.0, 900, 9, None))
    first, last = bench_train.window(seen)
    assert (first.time, last.time) == (11.0, 14.0)
    assert bench_train.window(seen[:2]) is None


def test_the_score_is_of_enough_episodes():
    smooth = bench_train.Smooth()
    assert smooth.take(None, 0) is None
    assert smooth.take(1000.0, 150) is None
    assert smooth.take(2000.0, 100) == 1500.0
    assert smooth.take(None, 0) == 1500.0
    seen = points((1, 1, 1, None), (2, 2, 2, 900.0), (3, 3, 3, 1200.0), (4, 4, 4, 1100.0))
    assert bench_train.reached(seen, 1150.0) == seen[2]
    assert bench_train.reached(seen, 1250.0) is None
    assert bench_train.reached(seen, None) is None


def test_lines_are_read_as_they_come(tmp_path):
    log = tmp_path / "log"
    line = json.dumps({"time": 5.0, "env_steps": 64, "updates": 2, "episodes": 400, "score": 7.0})
    log.write_text(f"loading\n{line}\n{line[:10]}")
    lines = bench_train.Lines(log)
    assert lines.poll() == points((5.0, 64, 2, 7.0))
    with open(log, "a") as file:
        file.write(f"{line[10:]}\n[1, 2]\nnull\n")
    assert lines.poll() == points((5.0, 64, 2, 7.0))
    assert lines.poll() == []
    lines.close()


def test_curves_are_read(tmp_path):
    board = TensorBoard(tmp_path / "log" / "tensorboard")
    values = {"learner/version_update": 4.0, "episode/score": 30.0, "rate/aisrv/episodes_per_s": 200.0}
    board.write(values, 512)
    board.close()
    (point,) = bench_train.Curves(tmp_path).poll()
    assert point[1:] == (512, 4, 30.0)
    assert abs(point.time - time.time()) < 60


def test_the_last_words_of_a_log_are_its_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback:\n  File 'x', line 3, in Error\nValueError: no such thing\nbye\n")
    assert bench_train.last_words(log) == "ValueError: no such thing"
    log.write_text("")
    assert bench_train.last_words(log) == "it said nothing"


def test_processes_count_children_and_what_has_ended():
    busy = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(1)"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {busy!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code])
    seen = bench_train.Processes(process.pid)
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
    assert min(seen.pss_mb, seen.rss_mb) > 0
    assert not seen.alive()


def test_roles_are_told_by_their_command_lines():
    assert bench_train.role_of(["python", "-m", "realm", "role", "learner", "--index", "0"], "python") == "learner"
    assert bench_train.role_of(["ray::Runner.sample"], "ray::Runner.sample") == "ray"


def test_plain_ppo_keeps_the_fastest_number_of_threads():
    assert plain_ppo.candidates("auto", 1) == [1]
    assert plain_ppo.candidates("auto", 6) == [1, 2, 4, 6]
    assert plain_ppo.candidates("3", 8) == [3]
    threads = plain_ppo.Threads([1, 2])
    for play_s, learn_s in ((9, 9), (1, 5), (1, 5), (0, 0), (3, 2), (4, 2)):  # the first of each is not counted
        assert not threads.chosen
        threads.took(play_s, learn_s)
    assert threads.chosen
    assert threads.best == {"play": 1, "learn": 2}
    assert plain_ppo.Threads([4]).chosen


# ---- a run ----


@pytest.mark.system
def test_a_tiny_run_of_two_rows_and_one_that_fails(tmp_path, capsys):
    args = SimpleNamespace(
        out=tmp_path / "bench.json", rounds=1, seconds=2.0, to_score=None, score_minutes=0.0, config=SMOKE, set=TINY
    )
    config = load_config(SMOKE, TINY)
    rows = [row for row in bench_train.our_rows(8) if row.name in ("plain", "cluster-1-local-native")]
    rows.append(Row("broken", "yardstick", "is wrong", "plain", ("no_such_field=1",)))
    results = {"about": {}, "setup": {"to_score": None}, "limits": None, "rows": {}}
    for row in rows:
        known = {"group": row.group, "kind": row.kind, "says": row.says, "settings": list(row.settings)}
        results["rows"][row.name] = {**known, "rounds": [], "failed": ""}
    bench_train.Bench(rows, args, config, results).run()
    bench_train.add_ratios(results)

    kept = json.loads(args.out.read_text())["rows"]
    for name in ("plain", "cluster-1-local-native"):
        entry = results["rows"][name]
        assert entry["failed"] == ""
        (found,) = entry["rounds"]
        assert set(found) == FIGURES
        assert kept[name]["rounds"] == json.loads(json.dumps(entry["rounds"]))
        assert found["updates"] > bench_train.WARM_UPDATES
        assert min(found["env_steps_per_s"], found["cpu_s_per_1000"], found["pss_mb"]) > 0
        assert found["window_s"] >= 2.0
    cluster = results["rows"]["cluster-1-local-native"]
    assert set(cluster["rounds"][0]["threads"]) == {"main", "learner", "aisrv", "buffer", "model_pool"}
    assert cluster["tau"] is None  # the row `local` was not run
    broken = results["rows"]["broken"]
    assert "no_such_field" in broken["failed"]
    assert not broken["rounds"]
    text = bench_train.table(results)
    assert len(text.splitlines()) == 2 + 3
    assert "no_such_field" in text
    assert "round 1 of 1, plain" in capsys.readouterr().out
    assert not [path for path in (tmp_path / "bench-runs").iterdir() if path.is_dir()]


def test_a_wrong_row_is_one_sentence(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "bench_train.py"), "--rows", "nothing"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --rows nothing: there is no such row")
    assert len(ended.stderr.splitlines()) == 1
