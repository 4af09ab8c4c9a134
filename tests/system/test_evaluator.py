"""Whole runs with an evaluator: each result stands under its own version, the best model is kept, and no fault of it
touches the training. The user is `tests/evaluated`: its score is minus the number of updates of the model that plays.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from realm.learn import checkpoint
from tests.cluster import PATIENCE_S, ROOT, Run
from tests.console import realm

pytestmark = pytest.mark.system
SETTINGS = (
    "algo=tests.evaluated", "buffer_backend=native", "restart_budget=3", "evaluated.learn_s=0.02", "eval_episodes=8",
    "max_version_lag=0", "evaluated.strict=true", "eval_cpu_share=1.0",
)  # fmt: skip


def evaluations(run):
    path = run.dir / "evaluations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def nice(run, role):
    return os.getpriority(os.PRIO_PROCESS, run.pid(role))


def best_names(run):
    return sorted(path.name for path in (run.dir / "best_ckpt").iterdir())


@pytest.mark.slow
def test_evaluations_of_a_run(tmp_path):
    with Run(tmp_path, *SETTINGS) as run:
        run.wait_running()
        run.wait_for(lambda: len(evaluations(run)) >= 3, "three evaluations")
        assert nice(run, "evaluator-0") == min(19, nice(run, "learner-0") + 10)
        run.kill("evaluator-0")
        count, update = len(evaluations(run)), run.checkpoints()[-1][1]
        run.wait_trained(update + 40)
        run.wait_for(lambda: len(evaluations(run)) >= count + 2, "evaluations go on after a kill")
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
        assert run.summary()["bypassed"] == {"actions": 0, "samples": 0, "checkpoints": 0}
        found = evaluations(run)
        first, versions = found[0]["version"], [one["version"] for one in found]
        assert versions == sorted(versions)
        assert len({tuple(one) for one in versions}) >= 4
        assert all(one["score"] == one["means"]["score"] == -one["version"][1] for one in found)
        # the first is the best: a newer one, or the evaluator that was started again, must not take its place
        assert all(one["best_version"] == first and one["best"] == -first[1] for one in found)
        name = f"model.ckpt-{first[0]}-{first[1]}"
        assert best_names(run) == [name, f"{name}.json"]
        best = checkpoint.find(run.dir / "best_ckpt", "latest")
        assert (list(best.version), best.env_steps) == (first, found[0]["env_steps"])
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))  # as the counting agent's
        checkpoint.load_bytes(model, best.weights)
        assert model[0].bias.item() == first[1]

        done = subprocess.run(
            [sys.executable, "-m", "realm", "eval", str(run.dir), "--id", "best", "--episodes", "3"],
            cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert name in done.stdout

        curves = EventAccumulator(str(run.dir / "log" / "tensorboard"), {"scalars": 0})
        curves.Reload()
        points = {one.step: one.value for one in curves.Scalars("evaluation/score")}
        assert points.items() <= {one["env_steps"]: one["score"] for one in found}.items()
        assert len(points) >= 4

    # a resume knows the best one; it ends in the middle of an evaluation
    with Run(tmp_path, *SETTINGS, "evaluated.step_s=0.02") as run:
        run.wait_for(lambda: evaluations(run)[-1]["version"][0] == 2, "an evaluation after the resume")
        assert evaluations(run)[-1]["best_version"] == first
        assert run.interrupt() == 0, run.text()
        assert best_names(run) == [name, f"{name}.json"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapper_type=local", "wrapper_type=remote"])
def test_every_so_many_steps(tmp_path, mode):
    """The untrained policy first, then a model of each stretch; each result has its model's score, and its spread."""
    steps = ("eval_every_steps=2000", "max_env_steps=9000", "eval_actions=both", "eval_cpu_share=0.05")
    with Run(tmp_path, *SETTINGS, mode, *steps) as run:
        assert run.finish() == 0, run.text()
    found = evaluations(run)
    assert found[0]["env_steps"] == 0
    assert found[-1]["version"] == list(run.checkpoints()[-1])  # the last model
    if mode == "wrapper_type=local":
        assert found[-1]["env_steps"] >= 9000
    stretches = [one["env_steps"] // 2000 for one in found[:-1]]
    assert len(set(stretches)) == len(stretches) >= 3
    for one in found:
        means = one["means"]
        assert one["score"] == means["score"] == means["score_median"] == -one["version"][1]
        assert means["score_sampled"] < 0  # with other actions
        assert means["score_deviation"] == 0
        assert means["score_sampled_least"] <= means["score_sampled_median"] <= means["score_sampled_greatest"]


@pytest.mark.slow
def test_a_run_in_one_process_goes_on_with_its_evaluations(tmp_path):
    """Not the last model after Ctrl+C; the next one where the next stretch begins; the last one at the limit."""
    steps = ("wrapper_type=local", "eval_every_steps=2000", "eval_episodes=5")

    def stretches(run):
        return [one["env_steps"] // 2000 for one in evaluations(run)]

    with Run(tmp_path, *SETTINGS, *steps) as run:
        run.wait_for(lambda: len(evaluations(run)) >= 3, "three evaluations")
        assert run.interrupt() == 0, run.text()
    first = stretches(run)
    assert first == list(range(len(first)))
    limit = f"max_env_steps={2000 * (len(first) + 2) + 500}"
    with Run(tmp_path, *SETTINGS, *steps, limit) as run:
        assert run.finish() == 0, run.text()
    assert stretches(run) == [*range(len(first) + 3), len(first) + 2]
    assert evaluations(run)[-1]["env_steps"] >= 2000 * (len(first) + 2) + 500


def test_an_evaluation_in_one_process_ends_with_a_signal(tmp_path):
    with Run(tmp_path, *SETTINGS, "wrapper_type=local", "eval_every_steps=2000", "evaluated.step_s=3") as run:
        run.wait_running()  # it begins with an evaluation of eleven steps at least
        assert run.interrupt() == 0, run.text()
    assert "the run has ended: SIGINT received" in run.output.read_text()
    assert evaluations(run) == []
    assert run.checkpoints() == [(1, 0)]


def test_a_signal_ends_the_evaluation_of_the_last_model(tmp_path):
    """Not waited for, as each step of it takes 3 s; and the run has ended well, since its model is saved."""
    steps = ("eval_every_steps=1000", "max_env_steps=2000", "evaluated.step_s=3")
    with Run(tmp_path, *SETTINGS, *steps) as run:
        run.wait_for(lambda: "evaluator-0 judges it" in run.output.read_text(), "the last evaluation")
        run.wait_for(lambda: run.file()["state"] == "judging", "`realm stop all` may signal")
        assert run.interrupt() == 0, run.text()
    assert run.processes() == []
    assert evaluations(run) == []
    assert run.checkpoints()[-1][1] > 0
    assert "max_env_steps = 2000 reached" in run.text()


def test_a_short_run_has_its_first_and_its_last_evaluation(tmp_path):
    """The limit comes while the untrained policy is judged; and no share of the CPU time is needed."""
    steps = ("eval_every_steps=100_000", "max_env_steps=500", "evaluated.step_s=0.1", "eval_cpu_share=0")
    with Run(tmp_path, *SETTINGS, *steps) as run:
        assert run.finish() == 0, run.text()
    assert [one["version"] for one in evaluations(run)] == [[1, 0], list(run.checkpoints()[-1])]
    assert run.summary()["bypassed"] == {"actions": 0, "samples": 0, "checkpoints": 0}


@pytest.mark.slow
def test_an_evaluator_that_is_killed_at_the_end_is_named(tmp_path):
    steps = ("eval_every_steps=1000", "max_env_steps=2000", "evaluated.step_s=3")
    with Run(tmp_path, *SETTINGS, *steps) as run:
        run.wait_for(lambda: "evaluator-0 judges it" in run.output.read_text(), "the last evaluation")
        os.kill(run.pid("evaluator-0"), signal.SIGKILL)
        assert run.finish() == 0, run.text()
    output = run.output.read_text()
    assert "evaluator-0 failed while stopping: killed by SIGKILL" in output
    assert output.count("the last model has not been judged") == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapper_type=local", "wrapper_type=remote"])
def test_sampled_actions_follow_the_schedule_of_training(tmp_path, mode):
    """Q-learning that explores no longer: its sampled actions are the greedy ones."""
    settings = (
        mode, "dqn.epsilon_steps=300", "dqn.epsilon_end=0.0", "eval_every_steps=500", "eval_actions=both",
        "eval_episodes=10", "max_env_steps=0", "warm_up_steps=300", "production_consume_ratio=8",
    )  # fmt: skip
    with Run(tmp_path, *settings, config="conf/classic.toml") as run:
        run.wait_for(lambda: len(evaluations(run)) >= 4, "four evaluations")
        assert run.interrupt() == 0, run.text()
    first, *later = evaluations(run)
    assert first["env_steps"] == 0
    assert first["means"]["r_sampled"] != first["means"]["r"]
    for one in later:
        means = one["means"]
        assert one["env_steps"] >= 500
        assert {name: means[f"r_sampled{name}"] for name in ("", "_median", "_deviation", "_least", "_greatest")} == {
            name: means[f"r{name}"] for name in ("", "_median", "_deviation", "_least", "_greatest")
        }


OF_THE_PROCESS = '''
import random
import gymnasium
import numpy as np

class Old(gymnasium.Env):
    """It draws from the process's own generators, which a reset seeds, and writes down what training gets."""
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            self.draws = None if 1_000_000 <= seed < 2_001_000 else open("draws.txt", "a")
        self.left = 20
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        drawn = random.random(), np.random.random()
        if self.draws:
            print(*drawn, sep="\\n", file=self.draws, flush=True)
        return np.float32([drawn[0]]), drawn[1], self.left == 0, False, {}

gymnasium.register("Old-v0", Old)
'''


@pytest.mark.slow
def test_an_evaluation_leaves_the_random_numbers_of_training_alone(tmp_path):
    (tmp_path / "old.py").write_text(OF_THE_PROCESS)
    (tmp_path / "old.toml").write_text('[app]\nalgo = "realm.zoo.ppo"\n[env]\nid = "old:Old-v0"\n')
    settings = ("wrapper_type=local", "aisrv_connect_to_kaiwu_env_count=1", "eval_every_steps=500", "run_name=old")
    code, _, err = realm("start", "--config", "old.toml", "--set", *settings, "max_env_steps=4000", cwd=tmp_path)
    assert code == 0, err
    assert len((tmp_path / "train/old/evaluations.jsonl").read_text().splitlines()) >= 3
    drawn = (tmp_path / "draws.txt").read_text().splitlines()
    assert len(set(drawn)) >= 2 * 4000
    assert len(drawn) - len(set(drawn)) <= 2 * 200  # the trial before the run has the same seed


def test_training_does_without_it(tmp_path):
    """The evaluator's environment reports no episodes: there is nothing to evaluate, which is said once."""
    with Run(tmp_path, *SETTINGS, "evaluated.reports=false") as run:
        run.wait_running()
        run.wait_for(lambda: run.file()["roles"]["evaluator-0"]["state"] == "ended", "the evaluator has given up")
        run.wait_trained(run.checkpoints()[-1][1] + 40)
        assert run.interrupt() == 0, run.text()
        output = run.output.read_text()
        assert output.count("training goes on without it") == 1
        assert "without info['episode']" in output
        assert evaluations(run) == []


@pytest.mark.slow
def test_training_does_without_one_that_is_killed_again_and_again(tmp_path):
    with Run(tmp_path, *SETTINGS, "restart_budget=1") as run:
        run.wait_running()
        run.kill("evaluator-0")
        os.kill(run.pid("evaluator-0"), signal.SIGKILL)
        run.wait_for(lambda: run.file()["roles"]["evaluator-0"]["state"] == "ended", "its restarts are used up")
        run.wait_trained(run.checkpoints()[-1][1] + 40)
        assert run.interrupt() == 0, run.text()
        output = run.output.read_text()
        assert output.count("training goes on without it") == 1
        assert "evaluator-0 failed 2 times" in output
        assert run.processes() == []
