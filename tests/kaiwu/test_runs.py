"""Whole runs of projects written for KaiwuDRL, with an agent that counts and checks what reaches it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from tests.cluster import Run
from tests.console import finished

from realm.learn.results import newest_in

PROJECTS = Path(__file__).parent
pytestmark = [pytest.mark.system, pytest.mark.slow]


def realm(tmp_path: Path, project: str, *overrides: str, test: bool = False) -> subprocess.CompletedProcess[str]:
    command = ["train_test.py"] if test else ["-m", "realm", "start"]
    command += ["--config", str(PROJECTS / project / "conf" / "configure_app.toml")]
    for override in (f"log_dir={tmp_path}", "run_name=run", *overrides):
        command += ["--set", override]
    return finished(*command)


def pack(runs: Path, *words: str) -> Path:
    """The submission of the run "run"."""
    out = runs / "submission.zip"
    done = finished("-m", "realm", "pack", "run", "--log-dir", runs, "--out", out, *words)
    assert done.returncode == 0, done.stderr
    return out


def listed(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("where", ["local", "remote"])
def test_what_reaches_learn_is_what_the_workflow_gave(tmp_path: Path, where: str) -> None:
    """Also where another package attaches a codec later: worker and learner alike do not use that one, although the
    agent imports its package when the definition is there already."""
    project = shutil.copytree(PROJECTS / "counting", tmp_path / "theirs")
    definition = (project / "diy" / "feature" / "definition.py").read_text()
    other = project / "other" / "feature" / "definition.py"
    other.parent.mkdir(parents=True)
    other.write_text(definition.replace(".astype(np.float32)", ".astype(np.float32)[::-1]"))
    agent = project / "diy" / "algorithm" / "agent.py"
    agent.write_text("from other.feature.definition import values_of as _\n" + agent.read_text())
    before = listed(project)
    done = realm(tmp_path, str(project), f"predict_local_or_remote={where}")
    assert done.returncode == 0, done.stderr
    assert "all workflows have ended" in done.stderr
    assert "some_key_of_the_framework" in done.stderr
    log = tmp_path / "run" / "user_log"
    assert json.loads((log / "learnt.json").read_text())["type"] == "learner"
    assert [int(path.read_text()) for path in log.glob("gave-*")] == [300, 300]
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "log").glob("*.log"))
    assert not re.search(r" ERROR |refused_invalid': [1-9]|unmatched': [1-9]", logs)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary is not None
    models = sorted(path.name for path in (tmp_path / "run" / "models" / "back_to_the_realm_diy").iterdir())
    assert "model.ckpt-0.pkl" in models
    last = newest_in(tmp_path / "run" / "ckpt").version.update
    assert all(re.fullmatch(rf"model\.ckpt-(\d*0|{last})\.pkl", name) for name in models)
    assert f"model.ckpt-{last}.pkl" in models, "one when the run ends, due or not"
    packed = pack(tmp_path, "--id", "0")
    with zipfile.ZipFile(packed) as archive:
        assert {"ckpt/model.ckpt-0.pkl", "diy/config.py", "conf/configure_app.toml"} <= set(archive.namelist())
        text = archive.read("conf/configure_app.toml").decode()
    assert text.count("eval_model_dir") == text.count("eval_model_id") == 1
    assert listed(project) == before


def test_one_process_trains_on_the_very_list(tmp_path: Path) -> None:
    done = realm(tmp_path, "counting", "dump_model_freq=1000", test=True)
    assert done.returncode == 0, done.stderr
    learnt = json.loads((tmp_path / "run" / "user_log" / "learnt.json").read_text())
    assert learnt["calls"] == 60
    assert learnt["type"] == "learner"
    users = list((tmp_path / "run" / "user_models" / "back_to_the_realm_diy").iterdir())
    assert {path.name for path in users} == {f"model.ckpt-{n}.pkl" for n in (*range(7, 61, 7), 60)}
    models = tmp_path / "run" / "models" / "back_to_the_realm_diy"
    assert {path.name for path in models.iterdir()} == {"model.ckpt-0.pkl", "model.ckpt-60.pkl"}
    # as after a kill: there is only the checkpoint, and their save_model makes the files of it
    for folder in ("models", "user_models"):
        shutil.rmtree(tmp_path / "run" / folder)
    with zipfile.ZipFile(pack(tmp_path)) as archive:
        archive.extract("ckpt/model.ckpt-60.pkl", tmp_path)
        assert "eval_model_id = 60\n" in archive.read("conf/configure_app.toml").decode()
    model = torch.load(tmp_path / "ckpt" / "model.ckpt-60.pkl")
    assert int(model["learnt"]) == 60


CLUSTER, PROCESS = False, True
WRONG = [
    (
        CLUSTER,
        "agent.py",
        'torch.save(self.model.state_dict(), f"{path}/model',
        'torch.save(self.model.state_dict(), f"{path}/mod',
        "save_model wrote no file with model.ckpt-0",
    ),
    (
        CLUSTER,
        "agent.py",
        "return [ActData(action=n % 8",
        "return [] and [ActData(action=n % 8",
        "returned 0 things",
    ),
    (
        CLUSTER,
        "definition.py",
        "sample.values, sample.small",
        "sample.values * np.nan, sample.small",
        "gave NaN or infinity",
    ),
    (
        CLUSTER,
        "definition.py",
        "return np.hstack([sample.origin",
        "return np.hstack([sample.values[:1], sample.origin",
        r"\b58\b",
    ),
    (
        CLUSTER,
        "train_workflow.py",
        "        samples = []",
        "        import not_there_at_all",
        "No module named 'not_there_at_all'",
    ),
    (
        PROCESS,
        "train_workflow.py",
        '"end": 1, "treasure_random": 1, "treasure_num": 5',
        '"end": 2, "treasure_num": 5',
        "env.reset: end is 2",
    ),
    (
        PROCESS,
        "train_workflow.py",
        "env.step(action_process(act))",
        "env.step(16)",
        r"train_workflow.py:\d+: env.step: action is 16",
    ),
    (CLUSTER, "agent.py", "torch.save(self.model.state_dict()", "torch.save(self.model", "weights_only"),
    (
        CLUSTER,
        "definition.py",
        "raw_obs.feature.norm_pos.z]",
        "raw_obs.feature.norm_pos.z] * (1 if env_info.frame_state.frame_no < 200 else 2)",
        "ObsData.feature has changed its shape from .2. to .4.",
    ),
]


@pytest.mark.parametrize(("test", "name", "old", "new", "sentence"), WRONG)
def test_wrong_code_ends_the_run_with_one_sentence(
    tmp_path: Path, test: bool, name: str, old: str, new: str, sentence: str
) -> None:
    project = shutil.copytree(PROJECTS / "counting", tmp_path / "theirs")
    file = next(project.rglob(name))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    where = ["predict_local_or_remote=remote"] if "shape" in sentence else []
    done = realm(tmp_path, str(project), "buffer_backend=native", *where, test=test)
    assert done.returncode == 2, done.stderr
    assert re.search(sentence, done.stderr), done.stderr


def test_killed_roles_come_back_and_a_stopped_run_goes_on_with_its_optimizer(tmp_path: Path) -> None:
    config = str(PROJECTS / "counting" / "conf" / "configure_app.toml")
    learnt = tmp_path / "runs" / "one" / "user_log" / "learnt.json"
    remote = "predict_local_or_remote=remote"
    with Run(tmp_path, remote, config=config, variables={"ROUNDS": "1000000"}) as run:
        run.wait_trained(20)
        for role in ("aisrv-1", "actor-0", "learner-0"):
            run.kill(role)
            run.pid(role)
        run.wait_trained(run.checkpoints()[-1][1] + 20, epoch=2)
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
    before = json.loads(learnt.read_text())["calls"]
    with Run(tmp_path, remote, config=config) as run:
        assert run.finish() == 0, run.text()
        assert "training goes on from" in run.text()
    assert json.loads(learnt.read_text())["calls"] > before
