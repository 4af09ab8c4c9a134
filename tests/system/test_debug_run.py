"""`train_test.py`, `realm eval` and TensorBoard on what they leave behind."""

import json
import shutil

import pytest

from tests.cluster import ROOT
from tests.console import finished, realm

pytestmark = pytest.mark.system


def test_debug_run_then_eval_then_tensorboard(tmp_path):
    done = finished("train_test.py", "--set", f"log_dir={tmp_path}", "--set", "run_name=debug")
    assert done.returncode == 0, done.stderr
    assert "ok: " in done.stdout

    code, _, err = realm("eval", tmp_path / "debug", "--episodes", "3", "--stochastic",
                         "--json", tmp_path / "eval.json", cwd=tmp_path)  # fmt: skip
    assert code == 0, err
    content = json.loads((tmp_path / "eval.json").read_text())
    assert len(content["episodes"]["score"]) == 3
    assert content["env_steps"] >= 10_000

    curves = finished(
        "-m", "tensorboard.main", "--inspect", "--logdir", str(tmp_path / "debug" / "log" / "tensorboard")
    )
    assert curves.returncode == 0, curves.stderr
    for tag in (
        "learner/policy_loss",
        "learner/explained_variance",
        "learner/policy_lag_updates",
        "system/buffer/size",
    ):
        assert tag in curves.stdout


def test_debug_run_fails_if_nothing_was_trained(tmp_path):
    settings = [f"log_dir={tmp_path}", "max_env_steps=0", "max_seconds=0.01", "aisrv_connect_to_kaiwu_env_count=1",
                "train_batch_size=1000", "max_version_lag=free"]  # fmt: skip
    done = finished("train_test.py", *(part for one in settings for part in ("--set", one)))
    assert done.returncode == 1, done.stdout
    assert "FAILED: no update happened" in done.stderr


@pytest.mark.slow
def test_debug_run_fails_if_the_agent_restores_wrongly(tmp_path):
    """A package whose agent forgets a weight when it saves: the debug run must notice."""
    package = tmp_path / "forgetful"
    shutil.copytree(ROOT / "tests" / "counting", package)
    agent = package / "algorithm" / "agent.py"
    text = agent.read_text()
    assert "self.env_steps = state" in text
    agent.write_text(text.replace("self.env_steps = state", "self.model[0].bias.data += 1.0; _ = state"))
    done = finished(ROOT / "train_test.py", "--config", ROOT / "conf" / "smoke.toml", "--set", "algo=forgetful",
                    "--set", "log_dir=runs", "--set", "max_env_steps=2000", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "differ from the saved ones" in done.stderr


@pytest.mark.slow
def test_eval_counts_each_environment_equally(tmp_path):
    """Counting episodes last 11 to 15 steps, by environment: playing until N are over would favour the short ones."""
    trained = finished("train_test.py", "--config", "tests/counting/counting.toml", "--set", f"log_dir={tmp_path}",
                       "--set", "run_name=count", "--set", "max_env_steps=3000")  # fmt: skip
    assert "no update" not in trained.stderr
    evaluated = finished("-m", "realm", "eval", str(tmp_path / "count"), "--episodes", "500",
                         "--json", str(tmp_path / "eval.json"))  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    scores = json.loads((tmp_path / "eval.json").read_text())["episodes"]["score"]
    assert len(scores) == 500
    # 256 environments, lengths 11..15 in turn: each plays 1 or 2 episodes
    expected = [11 + env % 5 for env in range(256)] + [11 + env % 5 for env in range(244)]
    assert sorted(scores) == sorted(map(float, expected))


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_eval_of_nothing_is_one_sentence(tmp_path, what):
    (tmp_path / "empty").mkdir()
    done = finished("-m", "realm", "eval", str(tmp_path / what))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
