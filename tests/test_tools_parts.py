"""tools/bench_parts.py and tools/limits.py: everything they print is there and makes sense. Nothing about speed."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading

import pytest

from realm.config.plan import Machine
from realm.errors import ConfigError
from realm.launch.rundir import RunFile
from realm.watch.tensorboard import TensorBoard
from realm.wire.control import CONTROL_MAX_BYTES
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
    assert [one["part"] for one in lines] == ["roundtrip"] * 3 + ["push"] + ["model"] * 3
    assert all("raw ZeroMQ" in one["bound"] for one in lines if one["what"].startswith(("worker", "push", "publish")))


def test_a_role_that_does_not_start_is_an_error_with_its_log(make_bench, monkeypatch):
    bench = make_bench("default")
    with pytest.raises(ConfigError, match=r"the nobody did not get ready: [\s\S]*realm\.roles\.nobody"):
        bench.stage.start("nobody", bench.plan)


def test_only_what_comes_after_the_preparation_counts(monkeypatch):
    clock = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(bench_parts.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(bench_parts.time, "process_time", lambda: clock["cpu"])

    def work(wall, cpu):
        clock["wall"] += wall
        clock["cpu"] += cpu

    assert bench_parts.timed(bench_parts.after(lambda: work(5.0, 7.0), lambda: work(1.0, 0.5)), 7.0) == (
        [1.0, 1.0],
        0.5,
    )
    assert bench_parts.timed(lambda: work(2.0, 3.0), 0.0) == ([2.0], 3.0)


def test_the_learners_parts_are_timed_as_in_an_update(make_bench, monkeypatch):
    """Policy and critic side by side where there are two threads, and on the values and advantages of the same rows."""
    import torch

    bench = make_bench("default")
    bench.plan = dataclasses.replace(bench.plan, learner_threads=2)
    critics = {}
    lines = list(bench_parts.learner_lines(bench))
    critic = bench.agent.model.critic

    def seen(obs):
        critics[doing[0]] = threading.current_thread().name.startswith("critic")
        return critic(obs)

    monkeypatch.setattr(bench.agent.model, "critic", seen)
    monkeypatch.setattr(bench.agent.player.model(), "critic", seen)
    before, doing = torch.get_num_threads(), [""]
    try:
        for line in lines:
            torch.set_num_threads(line.threads)
            for name, call in ((line.what, line.call), (line.what + ", bound", line.bound_call)):
                doing[0] = name
                with line.inside():
                    call()
    finally:
        torch.set_num_threads(before)
    names = [one.what for one in lines]
    assert [name.split()[0] for name in names] == ["collate", "values,", "V-trace", "cut", "2", "update"]
    assert critics == {name + end: True for name in (names[1], *names[4:]) for end in ("", ", bound")}


# ---- a run ----


def setting_of(*words):
    return limits.read_setting(CONFIG, [*bench_parts.QUICK, *words])


def two_looks(plan, **rates):
    """What was seen 10 s apart, when these were counted a second. Names: role__total."""
    first = {"learner/updates": 3.0, "learner/env_steps_trained": 300.0}
    last = {"learner/updates": 43.0, "learner/env_steps_trained": 4300.0}
    for name, rate in rates.items():
        name = name.replace("__", "/")
        first[name] = first.get(name, 1000.0)
        last[name] = first[name] + 10 * rate
    return bench_parts.Seen(50.0, first), bench_parts.Seen(60.0, last)


def write_curve(run, tag, points):
    board = TensorBoard(run / "log" / "tensorboard")
    for step, value in points:
        board.write({tag: value}, step)
    board.close()


def test_meters_are_of_what_happened_between_two_updates(tmp_path):
    setting = setting_of("predict_local_or_remote=local", "aisrv_count=2")
    seen = two_looks(
        setting.plan, aisrv__env_steps=500.0, aisrv__predict_wait_s=0.5, learner__busy_s=0.7, learner__wait_s=0.1,
        learner__publish_s=0.02, learner__save_s=0.03, learner__cpu_s=1.2, aisrv__cpu_s=0.6, supervisor__cpu_s=0.05,
    )  # fmt: skip
    write_curve(tmp_path, "learner/policy_lag_updates", [(300, 90.0), (1000, 1.0), (4300, 2.0), (4400, 90.0)])
    found = bench_parts.meters_of(tmp_path, setting, *seen)
    assert found["env steps/s"] == pytest.approx(500)
    assert found["updates/s"] == pytest.approx(4)
    assert found["learner: is idle"] == pytest.approx(0.25)  # publishing and checkpoints are work
    assert found["aisrv: waits for the learner's version, loads it"] == pytest.approx(0.25)  # of each worker
    assert not [name for name in found if name.startswith("actor")]
    assert "aisrv: waits for predictions" not in found
    assert found["cores used"] == pytest.approx(1.85)  # with the supervisor
    assert found["policy lag, updates"] == pytest.approx(1.5)
    assert found["policy lag, gradient steps"] == pytest.approx(1.5 * setting.hyper.epochs * setting.minibatches)


def test_meters_of_a_run_with_an_actor(tmp_path):
    setting = setting_of("predict_local_or_remote=remote")
    seen = two_looks(
        setting.plan, actor__actions=60.0, actor__forwards=10.0, actor__busy_s=0.2, actor__batch_rows_to_8=9.0,
        aisrv__predict_wait_s=0.5,
    )  # fmt: skip
    write_curve(tmp_path, "learner/ess", [(1000, 0.9)])
    found = bench_parts.meters_of(tmp_path, setting, *seen)
    assert found["actor: is idle"] == pytest.approx(0.8)
    assert found["actor: rows of a forward"] == pytest.approx(6)
    assert found["actor: forwards of at most 8 rows"] == pytest.approx(90)
    assert found["aisrv: waits for predictions"] == pytest.approx(0.5)
    assert "policy lag, updates" not in found  # the run did not say


SUPERVISOR = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while not sum(os.times()[:2]):  # the kernel counts a process's CPU time in hundredths of a second, as psutil tells it
    pass
pathlib.Path(sys.argv[1]).rename(sys.argv[2])
time.sleep(60)
"""


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    """A run whose learner has made one more update at each look, and two workers 10 env steps each."""
    monkeypatch.setattr(bench_parts, "LOOK_S", 0.01)
    RunFile("a run", 1, 0.0, state="running").write(tmp_path)
    server = bench_parts.Server(bench_parts.Codec("a run", "", "supervisor", 1, CONTROL_MAX_BYTES), "127.0.0.1")
    content = json.loads((tmp_path / "run.json").read_text()) | {"control": server.address}
    (tmp_path / "run.json").unlink()
    (tmp_path / "draft").write_text(json.dumps(content))
    ended = threading.Event()

    def answer():
        looks = 0
        while not ended.is_set():
            bench_parts.wait_any([server], 10)
            while (received := server.receive()) is not None:
                peer, message = received
                totals = {"updates": looks, "env_steps_trained": 20 * looks}
                roles = {
                    "learner-0": totals,
                    "aisrv-0": {"env_steps": 10 * looks},
                    "aisrv-1": {"env_steps": 10 * looks},
                }
                meta = {"roles": {name: {"totals": one} for name, one in roles.items()}}
                server.send(peer, bench_parts.Message("status", message.seq, meta))
                looks += 1

    thread = threading.Thread(target=answer)
    thread.start()
    yield [sys.executable, "-c", SUPERVISOR, str(tmp_path / "draft"), str(tmp_path / "run.json")]
    ended.set()
    thread.join()
    server.close()


def test_a_run_is_watched_until_time_and_updates_are_enough(supervisor, tmp_path):
    first, last = bench_parts.watch(supervisor, tmp_path, tmp_path / "log.txt", 0.0)
    assert first.updates == bench_parts.WARM_UPDATES
    assert last.updates - first.updates == bench_parts.UPDATES
    assert last.totals["aisrv/env_steps"] == 20 * last.updates
    assert last.totals["supervisor/cpu_s"] > 0
    assert last.time > first.time


def test_a_run_that_takes_long_is_ended(supervisor, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_parts, "MOST_S", 2.0)
    first, last = bench_parts.watch(supervisor, tmp_path, tmp_path / "log.txt", 1e9)
    assert last.time - first.time < 30


def test_a_run_that_fails_is_an_error_with_its_log(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no map')"]
    with pytest.raises(ConfigError, match="a run with exit code 1, 0 updates of it seen: no map"):
        bench_parts.watch(command, tmp_path, tmp_path / "log.txt", 1.0)


NAMES = (
    "env step, features, reward, 4 envs", "predict, 4 rows", "values, advantages of 4 chunks",
    "2 gradient steps of 16 rows", "push 4 chunks, native", "push 4 chunks, reverb", "predict, 64 rows",
)  # fmt: skip


def made_lines(cpu_s):
    """Lines whose calls are about two units and take so many CPU seconds."""
    return [{"what": what, "amount": 2, "unit": "", "cpu_seconds": [cpu_s], "part": ""} for what in NAMES]


def test_a_parts_share_is_what_it_takes_alone_times_how_often_it_is_done():
    setting = setting_of("predict_local_or_remote=local", "buffer_backend=native")
    seen = two_looks(setting.plan, aisrv__env_steps=500.0, aisrv__actions=600.0, aisrv__items=50.0)
    found = {one["what"]: one for one in bench_parts.shares(setting, *seen, made_lines(0.001))}
    assert set(found) == {*NAMES} - {"push 4 chunks, reverb", "predict, 64 rows"}  # which this run does not do
    epochs = setting.hyper.epochs
    rates = dict(zip(NAMES, (500.0, 600.0, 400.0, 400.0 * epochs, 50.0), strict=False))
    for what, per_s in rates.items():
        assert found[what]["per_s"] == pytest.approx(per_s)
        assert found[what]["share"] == pytest.approx(per_s * 0.0005 / setting.plan.cores)
    assert [what for what in NAMES if what in found and found[what]["needed"]] == list(NAMES[: bench_parts.NEEDED])
    printed = bench_parts.run_table({"meters": {"a meter": 1.5}, "shares": list(found.values())})
    assert printed.count("needed") == bench_parts.NEEDED
    assert printed.splitlines()[-1].split() == ["a", "meter", "1.500"]


def test_cpu_time_for_other_things_is_what_the_parts_alone_do_not_explain(make_bench, tmp_path, monkeypatch):
    bench = make_bench("default")
    seen = two_looks(bench.plan, aisrv__env_steps=500.0, aisrv__actions=600.0, aisrv__cpu_s=1.0, learner__cpu_s=3.0)
    monkeypatch.setattr(bench_parts, "watch", lambda command, run, log, seconds: seen)
    needed = (500 + 600 + 400 * (1 + bench.hyper.epochs)) * 0.0005
    found = bench_parts.cluster(bench, "native", 1.0, made_lines(0.001))
    assert found["meters"][bench_parts.OUTSIDE] == pytest.approx(100 * (1 - needed / 4.0))
    found = bench_parts.cluster(bench, "native", 1.0, made_lines(0.001)[1:])  # the environment was not measured
    assert bench_parts.OUTSIDE not in found["meters"]


def test_verdicts_are_of_what_was_measured():
    def line(what, part, seconds, bound, amount=1):
        times = {"seconds": [seconds], "bound_seconds": [bound], "p99_seconds": [seconds]}
        return {"what": what, "part": part, "amount": amount, **times}

    lines = [
        line("worker, actor, worker, 32 envs", "roundtrip", 0.0021, 0.0004),
        line("the forward in it, 32 rows", "roundtrip", 0.0010, 0.0009),
        line("add 4 chunks, native", "buffer", 0.04, 0.01, 4),
        line("sample 8 chunks, reverb", "buffer", 0.04, 0.01, 8),
    ]
    meters = {"chunks trained/s": 15.0, "learner: waits for a batch": 0.04, bench_parts.OUTSIDE: 15.0}
    old = {"policy lag, updates": 1.9, "policy lag, gradient steps": 31.0}
    found = {name: {"meters": dict(meters)} for name in ("native", "reverb")} | {"free": {"meters": meters | old}}
    said = [one.split()[0] for one in bench_parts.verdicts(lines, found)]
    # 1.0 + 2 x 0.4 + 0.1 ms are allowed; 100 and 200 chunks a second are 6.7 and 13.3 times 15; of each run the CPU
    # time and the wait, of the last one the lag
    assert said == ["FAILS", "FAILS", "FAILS", "holds", "holds", "holds", "holds", "holds", "holds", "FAILS"]
    assert bench_parts.verdicts([], {}) == []


# ---- limits ----


def test_limits_measure_all_three_on_so_many_processes_and_threads():
    found = limits.measure(CONFIG, bench_parts.QUICK, 0.03, cores=1, rows=6)
    for what in limits.UNITS:
        assert math.isfinite(found[f"s_{what}"])
        assert found[f"s_{what}"] > 0
        assert found["best"][what] == {"processes": 1, "threads": 1}
    assert found["amount"] == {"train": 16, "infer": 6, "env": 4, "learn": 16 * limits.LEARNER_STEPS}
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
    """On the same rows, both ways to take steps lead to the same weights, and the agent's with two threads as well. But
    for the length of gradients, which the agent bounds for each network, so here it has no bound."""
    import torch

    setting = limits.read_setting(CONFIG, [*bench_parts.QUICK, "diy.precision=fp32", "diy.max_grad_norm=1e9"])
    obs = limits.observations(setting, 16)
    agents = [setting.agent() for _ in range(3)]
    torch.manual_seed(0)
    steps = [limits.make_gradient_step(agents[0], setting.hyper, obs)]
    for agent in agents[1:]:
        torch.manual_seed(0)
        steps.append(limits.make_learner_steps(agent, obs))
    for _ in range(limits.LEARNER_STEPS):
        steps[0]()
    steps[1]()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with agents[2]._two_threads():
            steps[2]()
    finally:
        torch.set_num_threads(threads)
    for mine, *others in zip(*(agent.model.parameters() for agent in agents), strict=True):
        for other in others:
            torch.testing.assert_close(mine, other)
