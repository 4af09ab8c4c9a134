"""tools/bench_parts.py and tools/limits.py: everything they print is there and makes sense. Nothing about speed."""

from __future__ import annotations

import json
import math
import sys

import pytest

from realm.config import ConfigError
from realm.launch.plan import Machine
from realm.monitor import TensorBoard
from tools import bench_parts, limits

CONFIG = bench_parts.runs.ROOT / "conf" / "configure_app.toml"


@pytest.fixture
def make_bench(tmp_path):
    made = []

    def make(network):
        made.append(bench_parts.Bench(network, tmp_path, bench_parts.QUICK))
        return made[-1]

    yield make
    for bench in made:
        bench.end.close()


def check(lines, rounds):
    for one in lines:
        assert one["amount"] > 0, one
        for name in bench_parts.TIMES:
            assert len(one[name]) == rounds, one
            low = 0.0 if name == "cpu_seconds" else 1e-9
            assert all(math.isfinite(value) and value >= low for value in one[name]), one


# ---- parts ----


@pytest.mark.parametrize("network", bench_parts.NETWORKS)
def test_parts_of_one_process_have_times_and_bounds(make_bench, network):
    parts = ("env", "codec", "learner") if network == "reference" else ("env", "codec", "forward", "learner")
    bench = make_bench(network)
    bench.backends = ["native"]
    lines = bench_parts.measure(bench, [*parts, "buffer"], 2, 0.0)
    check(lines, 2)
    assert {one["part"] for one in lines} == {*parts, "buffer"}
    assert len({one["what"] for one in lines}) == len(lines)
    table = bench_parts.table(lines)
    assert len(table.splitlines()) == len(lines) + 1
    assert all(one["what"] in table and one["bound"] in table for one in lines)


def test_parts_that_are_processes_are_asked_over_real_sockets(make_bench):
    bench = make_bench("default")
    bench.backends = ["native"]
    lines = bench_parts.measure(bench, ["roundtrip", "push", "model"], 1, 0.0)
    check(lines, 1)
    assert [one["part"] for one in lines] == ["roundtrip"] * 2 + ["push"] + ["model"] * 3
    assert all("raw ZeroMQ" in one["bound"] for one in lines if one["what"].startswith(("worker", "push", "publish")))


def test_a_role_that_does_not_start_is_an_error_with_its_log(make_bench, monkeypatch):
    bench = make_bench("default")
    with pytest.raises(ConfigError, match=r"the nobody did not get ready: [\s\S]*realm\.roles\.nobody"):
        bench.stage.start("nobody", bench.plan)


def test_only_what_comes_after_the_preparation_counts():
    done = []
    took, _ = bench_parts.timed(bench_parts.after(lambda: done.append("prepared"), lambda: done.append("called")), 0.0)
    assert done == ["prepared", "called"]
    assert len(took) == 1


# ---- a run ----


def write_run(run, values, steps, totals):
    board = TensorBoard(run / "log" / "tensorboard")
    board.write(dict.fromkeys(values, 99.0), 0)  # before the first update: not a part of training
    for number, step in enumerate(steps):
        board.write({tag: value + number for tag, value in values.items()}, step)
    board.close()
    (run / "summary.json").write_text(json.dumps({"processes": {"actor-0.1": totals}}))


def test_meters_are_means_without_the_first_two_and_the_last(make_bench, tmp_path):
    values = {"share/learner/busy": 0.1, "share/actor/busy": 0.2, "share/learner/cpu": 1.0, "share/evaluator/cpu": 5.0}
    write_run(tmp_path, values, (10, 20, 30, 40, 50), {"batch_rows_to_64": 7, "forwards": 9})
    found = bench_parts.meters_of(tmp_path, make_bench("default"), [])
    assert found["learner: trains"] == pytest.approx(2.6)
    assert found["learner: is idle"] == pytest.approx(-1.6)
    assert found["actor: answers"] == pytest.approx(2.7)
    assert found["actor: forwards of at most 64 rows"] == 7
    assert found["cores used: all but the evaluator"] == pytest.approx(3.5)
    assert "aisrv: a prediction, median ms" not in found  # the run did not say
    assert "... not for env, network, optimizer" not in found  # the parts were not measured


def test_cores_for_other_things_are_what_the_parts_alone_do_not_explain(make_bench, tmp_path):
    bench = make_bench("default")
    tags = ("rate/env_steps_per_s", "rate/aisrv/actions_per_s", "rate/learner/env_steps_trained_per_s")
    write_run(tmp_path, dict.fromkeys(tags, 1000.0) | {"share/learner/cpu": 4.0, "actor/batch_rows": 50.0}, (10,), {})
    names = ("env step, features, reward, 4 envs", "predict, 64 rows", "gradient step, 16 rows")
    lines = [{"what": what, "amount": 2, "cpu_seconds": [0.001]} for what in names]
    needed = (2 + bench.hyper.epochs) * 1000 * 0.001 / 2
    found = bench_parts.meters_of(tmp_path, bench, lines)
    assert found["... not for env, network, optimizer"] == pytest.approx(4.0 - needed)


# ---- limits ----


def test_limits_measure_all_three_on_so_many_processes_and_threads():
    found = limits.measure(CONFIG, bench_parts.QUICK, 0.03, cores=1, rows=6)
    for what in limits.UNITS:
        assert math.isfinite(found[f"s_{what}"])
        assert found[f"s_{what}"] > 0
        assert found["best"][what] == {"processes": 1, "threads": 1}
    assert found["amount"] == {"train": 16, "infer": 6, "env": 4, "learn": 16}
    assert [(one["what"], len(one["per_s"]), len(one["cpu"])) for one in found["rates"]] == [
        (what, limits.ROUNDS, limits.ROUNDS) for what in limits.UNITS
    ]
    assert limits.table(found).count("best") == 4
    assert json.loads(json.dumps(found)) == found


def test_limits_are_the_best_of_threads_and_processes_together(tmp_path, monkeypatch):
    """Two cores, and children that make up how fast they were: together they are as fast as their sum."""
    child, python = tmp_path / "child", sys.executable
    rate = "{'train': [100, 150], 'infer': [100, 110], 'env': [100, 999], 'learn': [999, 170]}[what][threads - 1]"
    lines = ("import json, sys", "for line in sys.stdin:", "    what, threads, seconds = json.loads(line)",
             f"    print(json.dumps([{rate}, 1.0, 0.5 * threads]), flush=True)")  # fmt: skip
    child.write_text("\n".join((f"#!{python} -S", *lines)) + "\n")
    child.chmod(0o755)
    monkeypatch.setattr(limits.sys, "executable", str(child))
    monkeypatch.setattr(limits, "this_machine", lambda: Machine(cores=2, gpus=0, has_reverb=False))
    found = limits.measure(CONFIG, bench_parts.QUICK, 1.0)
    assert [found[f"s_{what}"] for what in limits.UNITS] == [150, 200, 200, 170]
    assert found["best"] == {
        "train": {"processes": 1, "threads": 2},
        "infer": {"processes": 2, "threads": 1},
        "env": {"processes": 2, "threads": 1},
        "learn": {"processes": 1, "threads": 2},
    }
    assert {(one["what"], one["processes"], one["threads"]): one["cpu"][0] for one in found["rates"]} == {
        ("train", 1, 1): 0.5, ("train", 1, 2): 1.0, ("infer", 1, 1): 0.5, ("infer", 1, 2): 1.0, ("infer", 2, 1): 1.0,
        ("env", 1, 1): 0.5, ("env", 2, 1): 1.0, ("learn", 1, 2): 1.0,
    }  # fmt: skip
    child.write_text(f"#!{python} -S\n")
    with pytest.raises(ConfigError, match="a process ended with exit code 0"):
        limits.measure(CONFIG, bench_parts.QUICK, 1.0)


def test_eta_is_one_when_a_run_does_nothing_else():
    known = {"s_train": 30_000.0, "s_infer": 50_000.0, "s_env": 200_000.0, "s_learn": 1.0}
    alone = 1 / (3 / 30_000 + 1 / 50_000 + 1 / 200_000)
    assert limits.eta(alone, 3, known) == pytest.approx(1.0)
    assert limits.eta(alone / 4, 3, known) == pytest.approx(0.25)


def test_limits_refuse_what_they_cannot_measure():
    with pytest.raises(ConfigError, match="algo is 'cart'"):
        limits.read_setting(CONFIG, ["algo=cart"])
    with pytest.raises(ConfigError, match="cores is 0; allowed is 1 to"):
        limits.read_setting(CONFIG, [], cores=0)
    with pytest.raises(ConfigError, match="treasure_num"):
        limits.read_setting(CONFIG, ["env.treasure_num=99"])
    for seconds, rows in ((0.0, None), (1.0, 0)):
        with pytest.raises(ConfigError, match="allowed are seconds above 0 and at least 1 row"):
            limits.measure(CONFIG, [], seconds, rows=rows)


def test_the_limits_step_is_diys_own_loss():
    """On the same rows, both steps of Adam lead to the same weights, and the agent's with two threads as well."""
    import torch

    setting = limits.read_setting(CONFIG, [*bench_parts.QUICK, "diy.precision=fp32"])
    obs = limits.observations(setting, 16)
    agents = [setting.agent() for _ in range(3)]
    steps = []
    for agent, make in zip(agents, [limits.make_gradient_step, *2 * [limits.make_learner_step]], strict=True):
        torch.manual_seed(0)
        steps.append(make(agent, setting.hyper, obs))
    for step in steps[:2]:
        for _ in range(3):
            step()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with agents[2]._two_threads():
            assert agents[2].critics_thread is not None
            for _ in range(3):
                steps[2]()
    finally:
        torch.set_num_threads(threads)
    for mine, *others in zip(*(agent.model.parameters() for agent in agents), strict=True):
        for other in others:
            torch.testing.assert_close(mine, other)
