"""Every script of tools/ starts where nothing but the virtual environment helps it to find the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
SCRIPTS = sorted(
    str(path.relative_to(TOOLS))
    for room in ("bench", "study", "soak")
    for path in (TOOLS / room).glob("*.py")
    if "\nif __name__ ==" in path.read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_says_how_it_is_used(name: str, tmp_path: Path) -> None:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(TOOLS / name), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert list(tmp_path.iterdir()) == []
