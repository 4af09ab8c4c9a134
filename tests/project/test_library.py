"""The code on docs/library.md runs as it stands there, each block in a process of its own; those for stable-baselines3
and sb3-contrib where these are installed, as they are in CI. `test_gymnasium.py` has the face that they use."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "library.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_runs(number: int, tmp_path: Path) -> None:
    block = BLOCKS[number]
    for library in ("stable_baselines3", "sb3_contrib"):
        if f"from {library}" in block and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_game_is_there_after_a_look_whether_gymnasium_is() -> None:
    look = "import realm, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium"
    code = f"{look}; assert gymnasium.spec('Realm-v0'); import sys; assert len(sys.meta_path) < 10"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_the_page_has_its_parts() -> None:
    assert [sum(name in block for block in BLOCKS) for name in ("MaskablePPO(", "\nPPO(", "make_vec(")] == [1, 1, 1]
