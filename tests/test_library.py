"""The code on docs/library.md runs as it stands there, each block in a process of its own.

Blocks for stable-baselines3 and sb3-contrib, which the project does not bring, are run where they are installed by
`python tests/test_library.py`; `test_env_gymnasium.py` has the face that they use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "library.md").read_text(), re.MULTILINE | re.DOTALL)
OTHERS = [block for block in BLOCKS if "stable_baselines3" in block]


def run(block: str, folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", block], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout, end="")


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if block not in OTHERS])
def test_the_page_runs(block: str, tmp_path: Path) -> None:
    run(block, tmp_path)


def test_the_page_shows_what_it_says() -> None:
    assert (len(BLOCKS), len(OTHERS)) == (5, 2)


if __name__ == "__main__":
    for number, block in enumerate(BLOCKS, 1):
        run(block, ROOT)
        print(f"block {number} of {len(BLOCKS)} runs")
