"""Whole runs with the counting user: no row lost, doubled, reordered in a chunk, or trained on across a reset.

The agent's `learn` raises on the first wrong row (`tests/counting/algorithm/agent.py`) and the run then fails, so exit
code 0 says that every row of every batch was right. The accounts at the end must agree between the roles.
"""

import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.backends import NEEDS_REVERB
from tests.cluster import Run
from tests.console import finished

pytestmark = pytest.mark.system

FLOWS = {
    "strict": ["max_version_lag=0", "counting.strict=true"],
    "part": ["max_version_lag=part", "counting.strict=true", "counting.learn_s=0.01"],
    "part, but at the end": ["max_version_lag=part", "counting.strict=true", "counting.early=false"],
    "lag 1": ["max_version_lag=1", "train_batch_size=12"],
    "lag 2": ["max_version_lag=2", "train_batch_size=24"],
    "free": ["max_version_lag=free", "train_batch_size=20", "counting.remember=true"],
    "off-policy": [
        "algorithm_on_policy_or_off_policy=off-policy",
        "replay_buffer_capacity=200",
        "train_batch_size=16",
        "production_consume_ratio=2.0",
        "counting.once=false",
    ],
    "rows": [
        "algorithm_on_policy_or_off_policy=off-policy",
        "replay_buffer_capacity=3000",
        "warm_up_steps=1000",
        "train_batch_size=640",
        "production_consume_ratio=8.0",
        "counting.once=false",
        "counting.n_step=3",
        "counting.look_back=2",
    ],
}
FLOWS["rows, of which the first comes late"] = [
    *FLOWS["rows"],
    "counting.n_step=40",
    "counting.episode_length=300",
    "warm_up_steps=10",
]
OFF_POLICY = ("off-policy",)
REMEMBER = "counting.remember=true"  # a memory moves once a step, whoever dies and whatever is asked twice
ENOUGH = "max_env_steps=8000"


def check_accounts(run, samples_once, sent="items", of_one=1):
    """What one role sent is what the other got. sent: what the workers call a sample; of_one: samples of an item."""
    workers, buffer, learner = run.totals("aisrv"), run.totals("buffer"), run.totals("learner")
    actor = run.totals("actor")
    assert sum(n for name, n in actor.items() if name.startswith("batch_rows_to_")) == actor.get("forwards", 0)
    assert workers["predict_wait_s"] > 0
    assert workers["add_wait_s"] > 0
    assert learner["updates"] > 10
    assert learner["publish_s"] > 0
    assert learner["save_s"] > 0
    assert run.summary()["bypassed"] == {"actions": 0, "samples": 0, "checkpoints": 0}
    refused = buffer["refused_old_epoch"] + buffer["refused_stale"]
    # rounds that were under way when the run ended: at most two a worker
    assert 0 <= workers[sent] - buffer["inserted"] - refused <= 2 * 2 * 6 * of_one
    if samples_once:
        assert buffer["inserted"] == buffer["sampled"] + buffer["size"] + buffer["dropped_old_epoch"]
        assert 0 <= buffer["sampled"] - learner["items_trained"] <= 2 * 20  # handed out, not yet trained on
        assert buffer["evicted"] == 0
    assert buffer["duplicate"] == 0
    assert all(run.totals(role)["wire/bad_frames"] == 0 for role in ("buffer", "model_pool"))


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_local(tmp_path, flow):
    sets = [
        word for one in (f"log_dir={tmp_path}", "wrapper_type=local", ENOUGH, *FLOWS[flow]) for word in ("--set", one)
    ]
    done = finished("-m", "realm", "start", "--config", "tests/counting/counting.toml", *sets)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_rows_in_a_cluster(tmp_path):
    """A replay memory of chunks: the ratio of rows drawn to steps played is kept to an update or two."""
    with Run(tmp_path, "max_env_steps=30000", "publish_every=4", *FLOWS["rows"]) as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=False, sent="env_steps", of_one=8)
        updates, played = run.totals("learner")["updates"], run.totals("buffer")["inserted"]
        # the first one, and every fourth; the pool need not get one that a newer one has overtaken
        assert 10 <= run.totals("learner")["published"] <= 1 + updates // 4
        assert abs((played - 1000) * 8 / 640 - updates) <= 4
        assert played >= 30_000
    # whoever acts knows both
    curves = EventAccumulator(str(run.dir / "log" / "tensorboard"), {"scalars": 0})
    curves.Reload()
    told = {name: [one.value for one in curves.Scalars(f"aisrv/{name}")] for name in ("told_env_steps", "told_size")}
    assert max(told["told_env_steps"]) > 10_000
    assert 1000 < max(told["told_size"]) <= 3000


@pytest.mark.parametrize(
    ("flow", "backend"),
    [
        ("strict", "native"),
        pytest.param("lag 2", "native", marks=pytest.mark.slow),
        pytest.param("part, but at the end", "native", marks=pytest.mark.slow),
        pytest.param("lag 1", "reverb", marks=[NEEDS_REVERB, pytest.mark.slow]),
        pytest.param("strict", "reverb", marks=[NEEDS_REVERB, pytest.mark.slow]),
        *(
            pytest.param(flow, backend, marks=[pytest.mark.slow, *([NEEDS_REVERB] if backend == "reverb" else [])])
            for flow in ("part", "free", "off-policy")
            for backend in ("native", "reverb")
        ),
    ],
)
def test_cluster(tmp_path, flow, backend):
    with Run(tmp_path, f"buffer_backend={backend}", ENOUGH, *FLOWS[flow]) as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=flow not in OFF_POLICY)
        assert run.processes() == []
        if flow == "off-policy":
            updates, inserted = run.totals("learner")["updates"], run.totals("buffer")["inserted"]
            # the ratio is kept: an update of 16 after 8 new samples, from 100 samples on
            assert abs((inserted - 100) * 2 / 16 - updates) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["part", "free"])
def test_local_prediction(tmp_path, flow):
    with Run(tmp_path, "predict_local_or_remote=local", "buffer_backend=native", ENOUGH, *FLOWS[flow]) as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=True)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["part", "free"])
def test_learner_killed(tmp_path, flow):
    """Chunks of the former epoch are refused and counted; training resumes from the last checkpoint."""
    with Run(tmp_path, "restart_budget=3", "buffer_backend=native", "counting.learn_s=0.02", *FLOWS[flow]) as run:
        run.wait_running()
        run.wait_trained(40)
        run.kill("learner-0")
        run.wait_trained(60, epoch=2)
        assert run.interrupt() == 0, run.text()
        buffer = run.totals("buffer")
        if flow == "free":  # workers went on playing with the old weights; strict ones had nothing under way
            assert buffer["refused_old_epoch"] + buffer["dropped_old_epoch"] > 0
        goes_on = re.search(r"training goes on from .* \(update [\d,]+, ([\d,]+) env steps\)", run.output.read_text())
        assert goes_on
    # what the lost learner had trained after its checkpoint is not on tensorboard's axis
    curves = EventAccumulator(str(run.dir / "log" / "tensorboard"), {"scalars": 0})
    curves.Reload()
    steps = [point.step for point in curves.Scalars("system/learner/version_update")]
    assert steps == sorted(steps)
    resumed_at = int(goes_on[1].replace(",", ""))
    assert all(point.step >= resumed_at for point in curves.Scalars("system/learner/version_epoch") if point.value == 2)
    assert all(point.step <= resumed_at for point in curves.Scalars("system/learner/version_epoch") if point.value == 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapper_type=local", "wrapper_type=remote"])
def test_a_resumed_run_has_its_replay_memory(tmp_path, mode):
    """It trains from its first rows on, without the warm-up of 1 000 steps."""
    for limit in (3000, 3500):
        with Run(tmp_path, mode, *FLOWS["rows"], "save_replay=true", f"max_env_steps={limit}") as run:
            assert run.finish() == 0, run.text()
        assert (run.dir / "replay" / "state.json").is_file()
    assert run.file()["epoch"] == 2
    version = run.checkpoints()[-1]
    assert version[0] == 2
    # 640 rows of each 80 steps: the second run made its updates for the 500 steps that it had
    assert version[1] > (3000 - 1000) / 80 + 400 / 80


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapper_type=local", "wrapper_type=remote"])
def test_a_warm_up_counts_as_it_is_played(tmp_path, mode):
    """A run that goes on without its memory warms up again; a limit in the middle of that is refused."""
    versions = []
    for limit, code in ((10_000, 0), (15_000, 2), (30_000, 0)):
        with Run(tmp_path, mode, *FLOWS["rows"], "warm_up_steps=7_500", f"max_env_steps={limit}") as run:
            assert run.finish() == code, run.text()
        versions.append(run.checkpoints()[-1])
    assert "max_env_steps is 15000, but training goes on from" in run.output.read_text()
    assert versions[1] == versions[0]
    # 640 rows of each 80 steps, after each of the two warm-ups; a cluster plays a while longer
    assert abs(versions[2][1] - (10_000 - 7_500) / 80 - (30_000 - 10_000 - 7_500) / 80) <= (
        10 if "local" in mode else 200
    )
    ended_at = int(re.findall(r"^ +env steps +([\d,]+)", run.output.read_text(), re.MULTILINE)[-1].replace(",", ""))
    # the workers of a cluster play on until they hear of it, for seconds on a busy machine
    assert 30_000 <= ended_at < (30_100 if "local" in mode else 85_000)


@pytest.mark.slow
def test_a_run_in_one_process_goes_on_where_it_was_killed(tmp_path):
    """With the rows that it had, and no warm-up; those that it had played after its last checkpoint are drawn, too."""
    settings = ("wrapper_type=local", *FLOWS["rows"], "save_replay=true", "dump_model_freq=5")
    with Run(tmp_path, *settings, "max_env_steps=0") as run:
        run.wait_trained(40)
    killed = run.checkpoints()[-1]
    played = 1000 + killed[1] * 80
    assert killed[0] == 1
    with Run(tmp_path, *settings, f"max_env_steps={played + 8000}") as run:
        assert run.finish() == 0, run.text()
    epoch, update = run.checkpoints()[-1]
    assert epoch == 2
    assert abs(update - killed[1] - 100) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["production_consume_ratio=2.0", "learner_train_by_while_true=true"])
def test_a_round_larger_than_the_buffer_goes_in_by_parts(tmp_path, flow):
    settings = ("aisrv_connect_to_kaiwu_env_count=50", "replay_buffer_capacity=20", flow, "max_env_steps=20000")
    with Run(tmp_path, "wrapper_type=local", *FLOWS["off-policy"], *settings) as run:
        assert run.finish() == 0, run.text()


@pytest.mark.slow
def test_roles_killed_with_a_replay_memory(tmp_path):
    """Prioritised, and kept in files: a buffer that is killed goes on with its rows."""
    ranked = ("reverb_sampler=Prioritized", "counting.ranks=true", "save_replay=true", REMEMBER)
    with Run(tmp_path, "restart_budget=3", "counting.learn_s=0.02", *FLOWS["rows"], *ranked) as run:
        run.wait_running()
        run.wait_trained(20)
        for role, epoch in (("aisrv-0", 1), ("actor-0", 1), ("model_pool-0", 1), ("buffer-0", 1), ("learner-0", 2)):
            run.kill(role)
            before = run.checkpoints()[-1][1]
            run.wait_trained(before + 60, epoch)
        assert run.interrupt() == 0, run.text()


@pytest.mark.parametrize(
    ("flow", "backend"),
    [
        ("strict", "native"),
        pytest.param("free", "native", marks=pytest.mark.slow),
        pytest.param("off-policy", "reverb", marks=[NEEDS_REVERB, pytest.mark.slow]),
    ],
)
def test_role_killed(tmp_path, flow, backend):
    """Any role may die at any moment: the others wait, the run goes on, and every row is still right."""
    settings = ("restart_budget=3", f"buffer_backend={backend}", "counting.learn_s=0.02", REMEMBER)
    with Run(tmp_path, *settings, *FLOWS[flow]) as run:
        run.wait_running()
        run.wait_trained(20)
        for role in ("aisrv-0", "actor-0", "model_pool-0", "buffer-0"):
            run.kill(role)
            before = run.checkpoints()[-1][1]
            run.wait_trained(before + 60)
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
