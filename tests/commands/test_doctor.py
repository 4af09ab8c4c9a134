"""`realm doctor`: every check with a good and a bad machine, and the command with this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from realm.commands import doctor as checks
from realm.commands.doctor import Finding, lines, locked, needed
from realm.launch.rundir import boot_id, start_of
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
        (checks.check_ray("2.60.0", None, False), "ok", "2.60.0; none runs here"),
        (
            checks.check_ray("2.60.1", {"RAY_worker_niceness": "0"}, False),
            "ok",
            "2.60.1 runs here and asks for a token",
        ),
        (
            checks.check_ray("2.60.0", {}, False),
            "warn",
            "niceness 15, so other programs come first; start it with RAY_",
        ),
        (checks.check_ray("2.60.0", {}, True), "warn", "asks nobody for a token"),
        (checks.check_ray("2.61.0", {}, True), "warn", "2.61.0, and `realm start` is tested with 2.60"),
        (checks.check_cores(4, None), "ok", "4"),
        (checks.check_cores(4, 4.0), "ok", "4"),
        (checks.check_cores(16, 1.5), "warn", "16, but the container allows only 1.5 at once"),
        (
            checks.check_packages(HAVE, ["torch"], ["numpy==2.1", "x==1"]),
            "warn",
            "lock needs numpy==2.1, which is 1.26.4",
        ),
        (checks.check_packages({"tf": ("2", ["a<2"]), "a": ("2", [])}, [], ["tf==2"]), "bad", "tf needs a<2"),
        (checks.check_shm(1 << 30), "ok", "1.0 GB"),
        (checks.check_shm(10 << 20), "warn", "--shm-size"),
        (checks.check_runs([], [], []), "ok", "none was left behind"),
        (checks.check_runs(["train/a (12)"], ["b"], []), "bad", "train/a (12); `realm stop all` ends them"),
        (checks.check_runs([], ["train/b"], []), "warn", "train/b"),
        (checks.check_runs([], [], ["train/start-1.log"]), "warn", "start-1.log; delete them"),
    ],
)
def test_good_and_bad(finding: Finding, state: str, says: str) -> None:
    shown = " ".join(" ".join(lines(finding)).split())
    assert finding.state == state, shown
    assert says in shown
    assert max(len(line) for line in lines(finding)) <= 80
    if state != "ok":
        assert ";" in shown  # says what to do


def test_the_projects_own_lists_are_read() -> None:
    assert "loguru>=0.7" in needed()
    assert any(line.startswith("torch==") for line in locked())


@pytest.mark.system
def test_the_command(tmp_path: Path) -> None:
    """Where there is a killed run, and one without a supervisor."""
    nobody, mine = {"pid": 1, "created": 1.0}, {"pid": os.getpid(), "created": start_of(os.getpid())}
    for name, role in (("killed", nobody), ("orphan", mine)):
        (tmp_path / "train" / name).mkdir(parents=True)
        content = {"run_id": "r", **nobody, "boot": boot_id(), "state": "running", "roles": {"aisrv-0": role}}
        (tmp_path / "train" / name / "run.json").write_text(json.dumps(content))
    code, out, err = realm("doctor", cwd=tmp_path)
    assert (code, err) == (1, "")
    text = " ".join(out.split())
    assert f"bad runs processes without a supervisor: train/orphan ({os.getpid()}); `realm stop all` ends them" in text
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.system
def test_a_package_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loguru.py").write_text("raise ModuleNotFoundError('gone', name='loguru')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "realm", "doctor"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"error: loguru is not installed in {sys.executable}; tools/setup.sh installs it\n"


def test_a_raylet_that_was_killed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may have asked for its exit code yet."""
    names = ("raylet", {}), ("raylet", None), ("python", {"A": "1"}), ("raylet", {"RAY_worker_niceness": "0"})
    processes = [SimpleNamespace(info={"name": name, "environ": variables}) for name, variables in names]
    monkeypatch.setattr(checks.psutil, "process_iter", lambda keys: processes)
    assert checks._raylet() == {"RAY_worker_niceness": "0"}
    del processes[-1]
    assert checks._raylet() is None
