"""The wheel: one top-level package, with all that `realm start` needs in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_installed_wheel_is_complete(tmp_path: Path) -> None:
    source, wheels, site, empty = (tmp_path / name for name in ("source", "wheels", "site", "empty"))
    for folder in ("realm", "diy", "conf"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source)
    subprocess.run([sys.executable, *build], check=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    assert wheel.name.startswith("realm_rl-")
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"realm"}
    for folder, inside in (("realm", "realm"), ("diy", "realm/builtin/diy"), ("conf", "realm/builtin/conf")):
        files = [file for file in (source / folder).rglob("*") if file.is_file()]
        assert {f"{inside}/{file.relative_to(source / folder)}" for file in files} <= names
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = (sys.executable, "-m", "realm", "config", "diy.lr_start")
    done = subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"values of {site}/realm/builtin/conf/configure_app.toml")
    assert list(empty.iterdir()) == []
