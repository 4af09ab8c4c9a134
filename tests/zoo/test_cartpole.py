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


def trained(folder: Path, env_steps: int) -> Path:
    code, _, err = realm(
        "start", "--config", "conf/cartpole.toml", "--set", f"log_dir={folder}", "--set", "run_name=one",
        "--set", f"max_env_steps={env_steps}", "--set", "seed=1",
    )  # fmt: skip
    assert code == 0, err
    return folder / "one"


def test_a_few_updates_are_a_run(tmp_path: Path) -> None:
    saved = [int(one.name.rpartition("-")[2]) for one in (trained(tmp_path, 1000) / "ckpt").iterdir()]
    assert max(saved) >= 4  # 8 environments of 32 steps: 256 rows at most in an update
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
