"""Where the machine code of kernels is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNEL = """
from numbers_of_it import STEP
from realm.jit import jit

@jit
def stepped(x):
    return x + STEP

print(stepped(1))
"""


def said(folder: Path, cache: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder / "kernel.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.slow
def test_a_constant_of_another_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "numbers_of_it.py").write_text("STEP = 1\n")
    cache = tmp_path / "cache"
    assert said(tmp_path, cache) == "2\n"
    kept = set(cache.rglob("*.nbc"))
    assert kept
    assert said(tmp_path, cache) == "2\n"
    assert set(cache.rglob("*.nbc")) == kept  # the same code again
    (tmp_path / "numbers_of_it.py").write_text("STEP = 5\n")
    assert said(tmp_path, cache) == "6\n"
