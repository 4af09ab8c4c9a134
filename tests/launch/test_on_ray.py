"""`launch/on_ray.py` without Ray: what is shipped, and what is told. `tests/system/test_ray.py` has runs with it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm.errors import ConfigError
from realm.launch import on_ray
from realm.launch.on_ray import OnRay, pack


def test_runs_keys_and_what_is_hidden_stay_here(tmp_path: Path) -> None:
    shipped = ["diy/config.py", "conf/own.toml", "train.py"]
    stay = [
        ".env",
        ".git/HEAD",
        "diy/__pycache__/config.pyc",
        "train/one/run.json",
        "train/one/ckpt/a/model.safetensors",
    ]
    stay += [
        "keys/secret.key",
        "keys/public.key",
        "keys/allowed/beta.key",
        "venv/pyvenv.cfg",
        "venv/lib/a.py",
        "own.key",
    ]
    for name in (*shipped, *stay):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).write_text(name)
    pack(tmp_path / "all", tmp_path / "all.zip")
    assert sorted(zipfile.ZipFile(tmp_path / "all.zip").namelist()) == sorted(shipped)


def test_a_large_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all" / "data").mkdir(parents=True)
    (tmp_path / "all" / "own.py").touch()
    with open(tmp_path / "all" / "data" / "film", "wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(ConfigError, match="all: has more than 100 MiB, most of it in data"):
        pack(tmp_path / "all", tmp_path / "all.zip")


def test_an_agent_that_was_cut_off_joins_again_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, said = [0, 0, 2], ["joining the run", "error: no keys"]
    monkeypatch.setattr(on_ray, "_AGAIN_S", 0.0)
    monkeypatch.setattr(
        on_ray.subprocess, "Popen", lambda *_, **__: SimpleNamespace(stdout=said, wait=lambda: codes.pop(0))
    )
    assert on_ray.Agent().work("line", "keys")[1:] == (2, "no keys")
    assert codes == []


@pytest.mark.system
@pytest.mark.slow
def test_a_driver_that_ends_is_started_again_and_says_the_same_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    monkeypatch.syspath_prepend(tmp_path)
    app: Any = SimpleNamespace(hosts=1, log_dir="train", keys_dir="keys")
    one, told = OnRay("line", app), list[tuple[str, str]]()
    for now in (0.0, 60.0):
        told += one.turn(now)
        driver = one._driver
        assert driver is not None
        driver.join(60)
        told += one.turn(now)
        assert one._driver is None
    one.end()
    ((level, text),) = told
    assert level == "ERROR"
    assert text.startswith("No module named 'ray'; Ray starts the agents: ")
