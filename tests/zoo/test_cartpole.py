"""CartPole on the library's PPO: the whole run in one process, as a user starts it."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.console import realm

pytestmark = pytest.mark.system


def trained(folder: Path, env_steps: int, *settings: str) -> Path:
    code, _, err = realm(
        "start", "--config", "conf/cartpole.toml", "--set", f"log_dir={folder}", "run_name=one",
        f"max_env_steps={env_steps}", "seed=1", *settings,
    )  # fmt: skip
    assert code == 0, err
    return folder / "one"


def test_a_few_updates_are_a_run(tmp_path: Path) -> None:
    normal = "cartpole.normalise_obs=true", "cartpole.normalise_returns=true"
    saved = [int(one.name.rpartition("-")[2]) for one in (trained(tmp_path, 1000, *normal) / "ckpt").iterdir()]
    assert max(saved) >= 4  # 8 environments of 32 steps: 256 rows at most in an update
    only = "run_mode=eval", "eval_actions=both", "eval_episodes=2", "run_name=one", f"log_dir={tmp_path}"
    code, out, err = realm("start", "--config", "conf/cartpole.toml", "--set", *normal, *only)
    assert code == 0, err
    assert re.findall("2 episodes, (.*) actions", out) == ["greedy", "sampled"]
    if find_spec("pygame"):  # CI has it; gymnasium draws no pole without
        code, out, err = realm("play", tmp_path / "one")
        assert (code, err) == (0, "")
        assert re.fullmatch(r"(\d+) steps, return \1\.0", out.splitlines()[-1])


@pytest.mark.slow
def test_it_learns_to_balance_the_pole(tmp_path: Path) -> None:
    run, results = trained(tmp_path, 12_000), tmp_path / "eval.json"
    code, _, err = realm("eval", run, "--episodes", "100", "--json", results)
    assert code == 0, err
    returns = json.loads(results.read_text())["episodes"]["r"]
    assert len(returns) == 100
    assert np.mean(returns) >= 300
