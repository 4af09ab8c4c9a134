"""`realm doctor`: every check with a good and a bad machine, and the command with this one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from realm.commands import doctor as checks
from realm.commands.doctor import Finding, Torch, _lines, _locked, _needed
from realm.launch.rundir import boot_id, start_of
from tests.cluster import ROOT
from tests.console import realm

GIB = 1 << 30
HAVE = {"torch": "2.13.0+cpu", "numpy": "1.26.4"}
NEW, OLD = (3, 12, 1), (3, 11, 7)
RUNS = Path("train")


@pytest.mark.parametrize(
    ("finding", "state", "says"),
    [
        (checks.check_packages(["torch>=2.10"], ["numpy==1.26.4"], HAVE.get), "ok", "as in requirements.lock"),
        (checks.check_packages(["torch>=2.10"], [], HAVE.get), "ok", "there is no requirements.lock"),
        (checks.check_packages(["torch>=2.14"], [], HAVE.get), "bad", "torch is 2.13.0+cpu, not >=2.14"),
        (checks.check_packages(["zmq"], [], HAVE.get), "bad", "zmq is missing; in a checkout remove .venv and call"),
        (checks.check_packages(["zmq; python_version < '3'"], ["zmq ; extra == 'x'"], HAVE.get), "ok", "as in"),
        (checks.check_packages([], ["numpy==2.1", *"abcd"], HAVE.get), "warn", "b is missing and 2 more"),
        (checks.check_fit({"tf": ("2.15", ["numpy<2"]), "numpy": ("1.26.4", [])}, ["tf>=2"]), "ok", "fit each other"),
        (
            checks.check_fit({"tf": ("2.15", ["Numpy<2"]), "numpy": ("2.4", [])}, ["TF>=2"]),
            "bad",
            "tf needs Numpy<2, which",
        ),
        (
            checks.check_fit({"tf": ("2.15", ["protobuf<5"]), "protobuf": ("7.1", [])}, ["tf"]),
            "bad",
            "which is 7.1; in a",
        ),
        (
            checks.check_fit({"onnx": ("1.19", ["ml_dtypes>=1"]), "ml-dtypes": ("0.3", [])}, ["tf"]),
            "warn",
            "onnx needs ml_",
        ),
        (
            checks.check_fit({"a": ("1", ["b<1; extra == 'x'", "c", "?"]), "b": ("2", [])}, ["a"]),
            "ok",
            "fit each other",
        ),
        (checks.check_reverb(OLD, True, ""), "ok", "can be loaded"),
        (checks.check_reverb(NEW, True, "no"), "ok", "does not exist for this system"),
        (checks.check_reverb(OLD, True, "libx is gone"), "warn", "libx is gone; the native buffer serves"),
        (checks.check_namespace(True, True), "ok", "may make a network namespace"),
        (checks.check_namespace(False, False), "ok", "nothing needs one"),
        (checks.check_namespace(False, True), "warn", "reverb's port would be open"),
        (checks.check_gpu(0, Torch("", "2.13.0+cpu"), "auto"), "ok", "there is no GPU"),
        (checks.check_gpu(1, Torch("", "2.13.0", True, ("H100",)), "auto"), "ok", "2.13.0 with H100"),
        (checks.check_gpu(1, Torch("", "2.13.0+cpu"), "auto"), "warn", "a build for the CPU; install torch for CUDA"),
        (checks.check_gpu(0, Torch("", "2.13.0"), "cuda:1"), "bad", "and device is cuda:1; set device = auto"),
        (checks.check_gpu(0, Torch("No module named 'torch'"), "auto"), "bad", "No module named 'torch'"),
        (checks.check_cores(4, None), "ok", "4"),
        (checks.check_cores(4, 4.0), "ok", "4"),
        (checks.check_cores(16, 1.5), "warn", "16, but the container allows only 1.5 at once"),
        (checks.check_clock(0.001, ("old", -50.0)), "ok", "steady"),
        (checks.check_clock(-3600.0, None), "warn", "has just stepped by -3600.0 s"),
        (checks.check_clock(0.0, ("train/a/run.json", 7200.0)), "warn", "run.json is from 2.0 hours in the future"),
        (checks.check_files(20_000), "ok", "20,000"),
        (checks.check_files(1024), "warn", "only 1024; raise the hard limit"),
        (checks.check_files(100), "bad", "only 100"),
        (checks.check_shm(GIB, GIB), "ok", "1.0 GB of 1.0 GB"),
        (checks.check_shm(64 << 20, 10 << 20), "warn", "--shm-size"),
        (checks.check_shm(None, None), "warn", "is not there"),
        (checks.check_runs([], [], []), "ok", "none was left behind"),
        (checks.check_runs(["train/a (12)"], ["b"], []), "bad", "train/a (12); `realm stop all` ends them"),
        (checks.check_runs([], ["train/b"], []), "warn", "train/b"),
        (checks.check_runs([], [], ["train/start-1.log"]), "warn", "start-1.log; delete them"),
        (checks.check_rights(RUNS, 0o40755, 1000, 1000, True), "ok", "only you may write"),
        (checks.check_rights(RUNS, None, -1, 1000, True), "ok", "made by the first run"),
        (checks.check_rights(RUNS, 0o40777, 1000, 1000, True), "warn", "chmod go-w train"),
        (checks.check_rights(RUNS, 0o40755, 7, 1000, True), "warn", "belongs to another user"),
        (checks.check_rights(RUNS, 0o40555, 7, 1000, False), "bad", "cannot be written"),
    ],
)
def test_good_and_bad(finding: Finding, state: str, says: str) -> None:
    shown = " ".join(" ".join(_lines(finding)).split())
    assert finding.state == state, shown
    assert says in shown
    assert max(len(line) for line in _lines(finding)) <= 80
    if state != "ok":
        assert ";" in shown  # says what to do


def test_the_projects_own_lists_are_read() -> None:
    assert "loguru>=0.7" in _needed()
    assert any(line.startswith("torch==") for line in _locked())


@pytest.mark.system
def test_the_command(tmp_path: Path) -> None:
    """Of a folder with a killed run, a run without a supervisor, and a run of tomorrow."""
    nobody, mine = {"pid": 1, "created": 1.0}, {"pid": os.getpid(), "created": start_of(os.getpid())}
    for name, role in (("killed", nobody), ("orphan", mine)):
        (tmp_path / name).mkdir()
        content = {"run_id": "r", **nobody, "boot": boot_id(), "state": "running", "roles": {"aisrv-0": role}}
        (tmp_path / name / "run.json").write_text(json.dumps(content))
    tomorrow = time.time() + 86_400
    os.utime(tmp_path / "killed" / "run.json", (tomorrow, tomorrow))
    tmp_path.chmod(0o777)
    code, out, err = realm("doctor", "--log-dir", tmp_path, "--json")
    assert err == ""
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert set(found["versions"]) == {field.name for field in dataclasses.fields(Finding)}
    assert code == 1
    assert found["runs"]["what"] == f"processes without a supervisor: {tmp_path}/orphan ({os.getpid()})"
    assert found["clock"]["what"].endswith("killed/run.json is from 24.0 hours in the future")
    assert found["folder"]["do"] == f"chmod go-w {tmp_path}"
    assert found["torch"]["state"] != "bad", found["torch"]

    code, out, err = realm("doctor", "--log-dir", tmp_path / "new", "--config", tmp_path / "none.toml")
    assert err == ""
    assert code == (" bad," in out and not out.splitlines()[-1].startswith("0 bad"))
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 80
    assert not (tmp_path / "new").exists()


@pytest.mark.system
def test_a_package_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loguru.py").write_text("raise ModuleNotFoundError('gone', name='loguru')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "realm", "doctor"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"error: loguru is not installed in {sys.executable}; tools/setup.sh installs it\n"
