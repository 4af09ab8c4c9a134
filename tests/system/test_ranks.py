"""Whole runs with several learners that train as one: no row lost or twice, whichever of them dies or hangs."""

import os
import shutil
import signal

import psutil
import pytest

from tests.cluster import ROOT, Run
from tests.console import finished
from tests.system.test_counting import FLOWS, check_accounts

pytestmark = pytest.mark.system
TWO = ["learner_count=2", "device=cpu"]


def pid_of(run, rank):
    first = run.pid("learner-0")
    if rank == 0:
        return first
    (other,) = [one.pid for one in psutil.Process(first).children() if "rank 1" in " ".join(one.cmdline())]
    return other


def strangers(run):
    """Addresses other than loopback on which a process of the run listens; reverb's is in a network of its own."""
    return {address for address, _ in run.listens() if address not in ("127.0.0.1", "::1")}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_killed_takes_all_along_and_all_come_back(tmp_path, rank):
    settings = *FLOWS["part"], "restart_budget=1", "max_env_steps=0"
    with Run(tmp_path, *TWO, *settings) as run:
        run.wait_trained(20)
        assert strangers(run) == set()
        before = pid_of(run, rank)
        os.kill(before, signal.SIGKILL)
        run.wait_trained(21, epoch=2)
        assert pid_of(run, rank) != before
        assert run.interrupt() == 0, run.text()
        assert len(run.checkpoints()) > 0
        assert run.file()["roles"]["learner-0"]["incarnation"] == 2
        text = run.output.read_text()
        assert "rank 1 of 2 learners ended with exit code -9; starting it again" in text or rank == 0, text
        assert run.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["strict", "part", "free"])
def test_every_row_of_every_batch_is_in_one_part(tmp_path, flow):
    with Run(tmp_path, *TWO, *FLOWS[flow], "max_env_steps=8000") as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=True)
        assert run.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_hangs_is_ended_with_the_others(tmp_path, rank):
    with Run(tmp_path, *TWO, *FLOWS["lag 1"], "restart_budget=1", "max_env_steps=0") as run:
        run.wait_trained(20)
        os.kill(pid_of(run, rank), signal.SIGSTOP)
        run.wait_trained(21, epoch=2)
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 0, run.text()
        assert "learner-0 ended: silent for" in run.output.read_text()
        assert run.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("late", ["true", "false"])
def test_weights_that_are_not_finite_send_all_back(tmp_path, late):
    nan = "counting.nan_from=30", f"counting.nan_late={late}", "counting.nan_times=2"
    with Run(tmp_path, *TWO, "max_version_lag=part", "counting.learn_s=0.01", *nan, "max_env_steps=8000") as run:
        assert run.finish() == 0, run.text()
        assert run.totals("learner")["restored_updates"] == 2
        assert run.processes() == []


@pytest.mark.slow
def test_a_signal_to_every_process_ends_the_run_in_order(tmp_path):
    with Run(tmp_path, *TWO, *FLOWS["part"]) as run:
        run.wait_trained(20)
        run.signal_all(signal.SIGTERM)
        assert run.finish() == 0, run.text()
        assert "failed while stopping" not in run.text()
        assert run.processes() == []


def started(folder, *settings):
    cluster = ("wrapper_type=remote", "aisrv_count=1", "device=cpu", "max_env_steps=2000", f"log_dir={folder}")
    config = ("--config", ROOT / "conf" / "cartpole.toml")
    done = finished("-m", "realm", "start", *config, "--set", *cluster, *settings, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def join", "def other", "Agent has no join(group), by which it trains as one of several learners"),
        ("self.ppo.join(group)", "pass", "the weights of the learners differ after update 1, since learn depends on"),
    ],
)
def test_an_agent_that_is_not_made_for_it_is_refused(tmp_path, old, new, sentence):
    package = tmp_path / "own"
    shutil.copytree(ROOT / "realm" / "zoo" / "cartpole", package)
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace("realm.zoo.cartpole", "own").replace(old, new))
    code, text = started(tmp_path, "algo=own", "learner_count=2")
    assert code == 2, text
    assert sentence in text, text


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_learners(tmp_path):
    for count, steps in ((2, 2000), (1, 3000), (4, 4000)):
        settings = "run_name=one", f"learner_count={count}", f"max_env_steps={steps}"
        code, text = started(tmp_path, *settings)
        assert code == 0, text
        assert f"max_env_steps = {steps} reached" in text
        assert count == 2 or "training goes on from" in text
