"""tools/pipeline.py: its forecast follows from its parts."""

from __future__ import annotations

import json
import math

import pytest

from realm.config.plan import Machine
from realm.errors import ConfigError
from tools import pipeline
from tools.pipeline import Parts, Shape

PARTS = Parts(
    forward=([1, 4, 16], [1.0, 4.0, 10.0]),
    step=([1, 16], [0.0, 0.0]),
    trip=2.0,
    asker_cpu=1.0,
    answer=1.0,
    travel=0.25,
    buffer=0.125,
    travel_cpu=0.5,
    update=0.5,
    threads=2,
    publish=3.0,
)
SHAPE = Shape(workers=4, envs=4, chunk_length=8, cores=2, threads=2, lag=0)
MACHINE = Machine(cores=2, gpus=0, has_reverb=False)
CONFIG = pipeline.runs.ROOT / "conf" / "configure_app.toml"


def test_sizes_between_are_interpolated_and_beyond_grow_in_proportion():
    assert [pipeline.at(PARTS.forward, n) for n in (1, 2, 4, 10, 16, 32)] == [1.0, 2.0, 4.0, 7.0, 10.0, 20.0]


def test_without_lag_one_comes_after_the_other():
    one = pipeline.forecast(PARTS, SHAPE)
    assert (one.play_s, one.travel_s, one.train_s, one.lag) == (8 * 4.0, 128 * 0.25, 128 * 0.5 + 3.0, 0.0)
    assert one.env_steps_per_s == pytest.approx(128 / (2 * 32 + 32 + 67))  # two workers on each core
    local = pipeline.forecast(PARTS, pipeline.alone(SHAPE))
    assert (local.play_s, local.travel_s) == (8 * 10.0, 0.0)  # 16 environments in one forward, no buffer between
    assert local.env_steps_per_s == pytest.approx(128 / (80 + 67))


def test_with_lag_what_takes_longest_counts():
    def bounds(**changes):
        made = pipeline.forecast(PARTS, SHAPE._replace(lag=1, **changes))
        assert made.env_steps_per_s == pytest.approx(128 / max(made.bounds.values()))
        return made.bounds

    # CPU time: 4 workers play 32 s, chunks travel for 64 s, two threads learn for 67 s
    assert bounds() == {"play": 32, "train": 67, "buffer": 16, "cores": (128 + 64 + 134) / 2, "each other": 163 / 2}
    assert bounds(cores=8)["cores"] == 326 / 8
    assert bounds(cores=8)["each other"] == (32 + 32 + 67) / 2
    assert pipeline.forecast(PARTS, SHAPE._replace(lag=math.inf)).bounds["each other"] == 0


def test_weights_that_go_out_early_lack_as_much_as_play_and_travel_take():
    made = pipeline.forecast(PARTS, SHAPE._replace(early=True, cores=8))
    assert made.bounds["each other"] == 32 + 32  # and they fit beside the 67 s of training
    assert made.env_steps_per_s == pytest.approx(128 / 67)
    assert made.lag == pytest.approx(64 / 67)
    slow = pipeline.forecast(PARTS._replace(travel=0.5), SHAPE._replace(early=True, cores=8))
    assert slow.env_steps_per_s == pytest.approx(128 / (32 + 64))
    assert slow.lag == 1.0
    assert not pipeline.alone(SHAPE._replace(early=True)).early


def test_a_learner_has_the_threads_of_its_own_run_and_no_more_than_there_are_cores():
    def train(**changes):
        return pipeline.forecast(PARTS, SHAPE._replace(lag=1, **changes)).train_s

    assert [train(threads=n, cores=8) for n in (1, 2, 4, 16)] == [131.0, 67.0, 35.0, 19.0]
    assert train(threads=16, cores=2) == 67.0
    assert train(gpu=10.0) == pytest.approx(6.4 + 3.0)
    assert pipeline.forecast(PARTS, SHAPE._replace(lag=1, gpu=10.0)).cpu_s == pytest.approx(128 + 64 + 9.4)


def test_travel_grows_with_the_chunks():
    long, short = (pipeline.forecast(PARTS, SHAPE._replace(chunk_length=n)).travel_s for n in (64, 8))
    assert long == 8 * short


def test_lag_is_of_what_was_played_before_the_newest_version():
    assert pipeline.forecast(PARTS, SHAPE._replace(lag=1, cores=64)).lag == 1.0  # the learner never waits
    slow = PARTS._replace(forward=([1], [100.0]))
    made = pipeline.forecast(slow, SHAPE._replace(lag=1, cores=64))
    assert made.lag == pytest.approx(67 / (8 * 400))


def test_one_worker_at_the_actor_waits_for_its_own_forward_alone():
    one = pipeline.served(PARTS, SHAPE._replace(workers=1))
    assert one == pytest.approx((1 / (2.0 + 4.0), 1.0, 1.0 + 4.0))
    made = pipeline.forecast(PARTS, SHAPE._replace(workers=1, remote=True, cores=64))
    assert made.play_s == pytest.approx(8 * 6.0)
    assert made.rows == 4
    assert made.questions_per_s == pytest.approx(made.env_steps_per_s / 4)


def test_many_workers_meet_at_the_actor():
    quick = PARTS._replace(
        trip=0.0, answer=0.0, forward=([1, 1000], [1.0, 1.0]), step=([1, 16], [0.5, 0.5])
    )  # any rows take 1 s
    many = pipeline.served(quick, SHAPE._replace(workers=30))
    # all come back while one forward runs: half a second, half a forward, and a forward
    assert many.questions_per_s == pytest.approx(30 / (0.5 + 1.0 * (1 + 29 / 60)), rel=1e-3)
    assert many.batch == pytest.approx(many.questions_per_s * 1.0, rel=1e-3)
    # work of the actor for each question bounds how many it can answer
    crowd = pipeline.served(quick._replace(trip=1.0, answer=0.5), SHAPE._replace(workers=1000))
    assert crowd.questions_per_s <= 2.0


def lines():
    named = [(f"predict, {n} rows", n, 0.01 * n) for n in (1, 2, 64)] + [
        ("env step, features, reward, 64 envs", 64, 0.064),
        ("env step, features, reward, 1 envs", 1, 0.01),
        ("worker, actor, worker, 32 envs", 32, 0.5),
        ("the forward in it, 32 rows", 32, 0.4),
        ("16 workers at once, 32 envs each", 512, 5.12 + 0.8),
        ("push 64 chunks, native", 64, 6.4),
        ("add 64 chunks, native", 64, 0.64),
        ("sample 128 chunks, native", 128, 1.28),
        ("update of 24 gradient steps", 1000, 5.0),
        ("publish weights to the pool", 1, 0.25),
        ("verify and load weights", 1, 0.5),
    ]
    return [
        {
            "network": "default",
            "what": what,
            "amount": n,
            "threads": 2,
            "seconds": [9.0, s, 0.0],
            "cpu_seconds": [s / 2],
        }
        for what, n, s in named
    ]


def test_parts_are_read_from_what_bench_parts_wrote():
    parts = pipeline.read_parts(lines(), "native", 10)
    assert parts.forward[0] == [1, 2, 64]
    assert parts.step == ([1, 64], [0.01, 0.064])
    assert (parts.trip, parts.asker_cpu, parts.answer) == pytest.approx((0.1, 0.25, 0.8 / 16))
    assert parts.travel == pytest.approx((2 * 0.1 + 0.01) / 10)  # of an env step, chunks have ten
    assert parts.buffer == pytest.approx((0.1 - 0.05 + 0.01) / 10)
    assert parts.travel_cpu == pytest.approx((2 * 0.05 + 0.005 + 0.005) / 10)
    assert (parts.update, parts.threads, parts.publish) == (pytest.approx(0.005), 2, 0.75)
    with pytest.raises(ConfigError, match="push"):
        pipeline.read_parts(lines(), "reverb", 10)
    with pytest.raises(ConfigError, match="verify and load weights"):
        pipeline.read_parts(lines()[:-1], "native", 10)


def measured(**rows):
    """What bench_train wrote, of rows name -> (kind, settings, env steps/s)."""
    return {
        "setup": {"set": ["diy.chunk_length=64"], "cores": [0, 1, 2], "config": "configure_app.toml"},
        "rows": {
            name: {
                "kind": kind,
                "says": name,
                "settings": settings,
                "rounds": [{"env_steps_per_s": one} for one in rates],
            }
            for name, (kind, settings, rates) in rows.items()
        },
    }


def test_each_measured_row_has_its_own_plan():
    remote = ["predict_local_or_remote=remote", "aisrv_count=2", "max_version_lag=free", "torch_num_threads=1"]
    results = measured(
        plain=("plain", [], [90.0]),
        tuner=("cluster", [], [100.0, 0.0, 200.0]),
        remote=("cluster", remote, [50.0]),
        chunk=("cluster", ["diy.chunk_length=16", "max_version_lag=0"], [60.0]),
        local=("local", ["wrapper_type=local"], [70.0]),
        wide=("cluster", ["diy.hidden=512"], [80.0]),  # another network
        fp32=("plain", ["precision='fp32'"], [80.0]),
        sb3=("peer", [], [10.0]),
        broken=("cluster", [], []),
    )
    rows = {one.says.split(":")[0]: one for one in pipeline.measured_rows(results, CONFIG, MACHINE)}
    usual = Shape(1, 128, 64, 3, 2, 1)
    assert {name: one.shape for name, one in rows.items()} == {
        "plain": usual._replace(threads=3, lag=0, cluster=False),
        "tuner": usual,
        "remote": usual._replace(workers=2, envs=64, threads=1, lag=math.inf, remote=True),
        "chunk": usual._replace(workers=3, envs=42, chunk_length=16, threads=3, lag=0),
        "local": usual._replace(threads=3, lag=0, cluster=False),
    }
    assert rows["tuner"].measured == 150.0


def test_larger_machines_have_the_tuners_plan():
    rows = {one.says: one.shape for one in pipeline.larger_rows(CONFIG, MACHINE)}
    assert rows["4 cores: as the tuner chooses"] == Shape(1, 128, 128, 4, 3, 1)
    on_gpu = rows["66 cores: 64 workers, actor and learner on a GPU x 30"]
    assert (on_gpu.workers, on_gpu.remote, on_gpu.gpu) == (64, True, 30.0)
    assert not rows["66 cores: 64 workers that predict, learner on a GPU x 30"].remote


def test_the_table_sets_forecast_and_measure_side_by_side(tmp_path, monkeypatch, capsys):
    setup = {"default": {"chunk_length": 128, "plan": {"backend": "native"}}}
    (tmp_path / "parts.json").write_text(json.dumps({"lines": lines(), "setup": setup}))
    results = measured(tuner=("cluster", [], [100.0]), local=("local", ["wrapper_type=local"], [70.0]))
    (tmp_path / "scale.json").write_text(json.dumps(results))
    words = ["pipeline.py", str(tmp_path / "parts.json"), "--measured", str(tmp_path / "scale.json")]
    monkeypatch.setattr("sys.argv", words)
    pipeline.main()
    header, *printed = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["forecast", "measured", "ratio", "tau"]
    tuner, local = (line.split() for line in printed[:2])
    assert (tuner[0], local[0]) == ("tuner:", "local:")
    forecast, rate, ratio, tau = (float(cell.replace(",", "")) for cell in tuner[2:6])
    assert (rate, ratio) == (100.0, pytest.approx(forecast / 100, abs=0.006))
    assert tau == pytest.approx(forecast / float(local[2].replace(",", "")), abs=0.05)  # of whole steps
    assert sum("64 workers" in line for line in printed) == 6
    monkeypatch.setattr("sys.argv", [*words, "--network", "reference"])
    with pytest.raises(ConfigError, match="no parts of the network reference"):
        pipeline.main()
