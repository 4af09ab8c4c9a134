"""`realm doctor`: every check with a good and a bad machine, and the command with this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from realm.commands import doctor as checks
from realm.commands.doctor import Finding, lines, needed
from tests.cluster import ROOT
from tests.console import realm

HAVE = {"torch": ("2.13.0+cpu", []), "numpy": ("1.26.4", [])}


@pytest.mark.parametrize(
    ("finding", "state", "says"),
    [
        (checks.check_packages(HAVE, ["torch>=2.10"]), "ok", "all are there and fit each other"),
        (checks.check_packages(HAVE, ["torch>=2.14"]), "bad", "Realm needs torch>=2.14, which is 2.13.0+cpu"),
        (checks.check_packages(HAVE, ["zmq"]), "bad", "zmq, which is not installed; in a checkout remove .venv and"),
        (checks.check_packages(HAVE, ["zmq; python_version < '3'", "x ; extra == 'x'"]), "ok", "all are there"),
        (checks.check_packages({}, [*"abcde"]), "bad", "needs c, which is not installed and 2 more"),
        (
            checks.check_packages({"tf": ("2.15", ["Numpy<2"]), "numpy": ("2.4", [])}, ["TF>=2"]),
            "bad",
            "tf needs Numpy<2, which is 2.4; in a",
        ),
        (
            checks.check_packages({"tf": ("3", []), "onnx": ("1", ["ml_dtypes>=1"]), "ml-dtypes": ("0.3", [])}, ["tf"]),
            "warn",
            "onnx needs ml_",
        ),
        (
            checks.check_packages({"a": ("1", ["b<1; extra == 'x'", "c", "?"]), "b": ("2", [])}, ["a"]),
            "ok",
            "fit each other",
        ),
        (checks.check_reverb("ok"), "ok", "can be loaded"),
        (checks.check_reverb("libx is gone"), "warn", "libx is gone; set buffer_backend = native"),
        (checks.check_torch(0, json.dumps(["2.13.0+cpu"])), "ok", "there is no GPU"),
        (checks.check_torch(1, json.dumps(["2.13.0", "H100"])), "ok", "2.13.0 with H100"),
        (checks.check_torch(1, json.dumps(["2.13.0+cpu"])), "warn", "a build for the CPU; install torch for CUDA"),
        (checks.check_torch(0, "No module named 'torch'"), "bad", "No module named 'torch'"),
        (checks.check_cores(4, None), "ok", "4"),
        (checks.check_cores(4, 4.0), "ok", "4"),
        (checks.check_cores(16, 1.5), "warn", "16, but the container allows only 1.5 at once"),
    ],
)
def test_good_and_bad(finding: Finding, state: str, says: str) -> None:
    shown = " ".join(" ".join(lines(finding)).split())
    assert finding.state == state, shown
    assert says in shown
    assert max(len(line) for line in lines(finding)) <= 80
    if state != "ok":
        assert ";" in shown  # says what to do


def test_the_projects_own_list_is_read() -> None:
    assert "loguru>=0.7" in needed()


@pytest.mark.system
def test_the_command() -> None:
    code, out, err = realm("doctor")
    assert err == ""
    assert [line.split()[1] for line in out.splitlines() if line[0] != " "][:-1] == [
        "packages", "cores", "reverb", "torch",
    ]  # fmt: skip
    assert code == (not out.splitlines()[-1].startswith("0 bad"))
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 80


@pytest.mark.system
def test_a_package_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loguru.py").write_text("raise ModuleNotFoundError('gone', name='loguru')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "realm", "doctor"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"error: loguru is not installed in {sys.executable}; tools/setup.sh installs it\n"
