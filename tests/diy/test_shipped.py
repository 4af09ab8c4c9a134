"""The model that comes with Realm: how it gets there, when it plays, and that the one that is there is good."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch

from realm.commands import locate as chosen
from realm.commands import main as cli
from realm.commands.main import main
from realm.config.load import load_config, to_toml
from realm.contract import Version
from realm.errors import CheckpointError
from realm.learn import checkpoint
from realm.user import load_agent, load_definition, load_hyper

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "diy" / "shipped"


def make_run(folder: Path, *settings: str, schema: str = "") -> Path:
    """A run of the realm's agent that has one checkpoint, untrained."""
    config = load_config(ROOT / "conf" / "configure_app.toml", ["env.max_step=40", *settings])
    hyper = load_hyper("diy", config.hyper)
    definition = load_definition("diy")
    envs = definition.make_envs(1, 0, hyper, config.env)
    spec = definition.spec(envs, hyper)
    envs.close()
    agent = load_agent("diy")(spec, hyper, "cpu", 0)
    folder.mkdir()
    checkpoint.save(folder / "ckpt", agent, Version(1, 3), 100, schema or spec.schema, keep=1)
    (folder / "config.toml").write_text(to_toml(config))
    return folder


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/study/ship.py, with an evaluation that takes no time."""
    place = importlib.util.spec_from_file_location("ship", ROOT / "tools" / "study" / "ship.py")
    assert place
    assert place.loader
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)

    def evaluate(arguments: list[str]) -> int:
        given = cli._parser().parse_args(arguments)
        assert given.all or (given.stochastic and given.episodes == 30)
        Path(arguments[-1]).write_text(json.dumps({"checkpoint": arguments[1]}))
        return 0

    monkeypatch.setattr(module, "realm", evaluate)
    return module


def test_a_model_is_shipped_and_plays(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, shipped, none = make_run(tmp_path / "run", "diy.hidden=16"), tmp_path / "diy-shipped", str(tmp_path / "none")
    monkeypatch.setattr(chosen, "shipped_model", lambda: shipped)
    # before: nothing to play
    assert main(["play", "--log-dir", none]) == 2
    assert "no run is there yet; train one" in capsys.readouterr().err
    assert main(["record", "shipped"]) == 2
    assert "no model was shipped" in capsys.readouterr().err

    for _ in range(2):  # the second replaces the first
        tool.ship(run, "latest", shipped)
        assert sorted(one.name for one in shipped.iterdir()) == ["ckpt", "config.toml", "eval.json"]
    capsys.readouterr()
    assert checkpoint.find(shipped / "ckpt", 3).weights == checkpoint.find(run / "ckpt", 3).weights
    hyper = load_config(shipped / "config.toml").hyper
    assert (hyper["hidden"], "lr_start" in hyper) == (16, True)  # what is a default today stays

    assert main(["play", "--log-dir", none, "--treasures", "3,7"]) == 0
    out, err = capsys.readouterr()
    what, who = err.splitlines()
    assert what == f"{none}: no run is there yet, so this is the shipped model, {shipped}"
    assert f"the package diy plays ({SHIPPED.parent})" in who
    assert out.splitlines()[0].startswith("step 40/40, score 0.0, treasures 0/2")
    assert out.splitlines()[-1].startswith("ran out of time in 40 steps")
    assert len(out.splitlines()) == 34
    assert main(["play", "shipped", "--treasures", "3,7"]) == 0
    again, err = capsys.readouterr()
    assert (again, len(err.splitlines())) == (out, 1)
    assert "the package diy plays" in err
    for arguments, text in {
        "play shipped --id 3": "--id 3: there is only one shipped model",
        f"play --id best --log-dir {none}": "no run is there yet; train one",
        "play train/x --id lates": "--id lates: must be a number of updates, latest or best",
        "play shipped --speed 0": "--speed 0: must be a number above 0",
        "play shipped --seed -1": "--seed -1",
        "play --oracle shipped": "--oracle: it plays without a model",
    }.items():
        assert main(arguments.split()) == 2
        out, err = capsys.readouterr()
        assert (out, err.startswith("error: "), len(err.splitlines())) == ("", True, 1)
        assert text in err


def test_a_model_of_another_package_is_shipped_in_half_the_bytes(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, shipped = make_run(tmp_path / "run", "diy.hidden=16"), tmp_path / "shipped"
    tool.ship(run, "latest", shipped, of_diy=False)
    assert json.loads((shipped / "eval.json").read_text())["checkpoint"] == str(shipped / "ckpt")
    half, whole = (safetensors.torch.load(checkpoint.find(one / "ckpt", 3).weights) for one in (shipped, run))
    assert half.keys() == whole.keys()
    for name, x in whole.items():
        torch.testing.assert_close(half[name].to(x.dtype), x, rtol=1e-3, atol=1e-4)
    assert any(x.dtype == torch.float16 for x in half.values())
    monkeypatch.setattr(tool.common, "ROOT", tmp_path)
    tool.ship(run, "latest", shipped, of_diy=False)  # in the checkout: its file holds no path of this machine
    assert json.loads((shipped / "eval.json").read_text())["checkpoint"] == "shipped/ckpt"
    (tmp_path / "models").mkdir()
    with pytest.raises(ValueError, match="holds no shipped model; name another folder"):
        tool.ship(run, "latest", tmp_path / "models", of_diy=False)


def test_what_does_not_fit_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_run(tmp_path / "old", schema="another")
    with pytest.raises(CheckpointError, match=r"other shapes \(schema another"):
        tool.ship(old, "latest", tmp_path / "shipped")
    with pytest.raises(ValueError, match="not of diy on the default map"):
        tool.ship(make_run(tmp_path / "map", f"env.map={SHIPPED.parents[1] / 'realm/env/maps/default'}"), "latest",
                  tmp_path / "shipped")  # fmt: skip
    fine = make_run(tmp_path / "fine", "diy.hidden=16")
    with pytest.raises(ValueError, match="--id lates: must be a number of updates"):
        tool.ship(fine, "lates", tmp_path / "shipped")
    monkeypatch.setattr(tool, "realm", lambda arguments: 2)  # it has said why
    with pytest.raises(SystemExit):
        tool.ship(fine, "latest", tmp_path / "shipped")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fine", "map", "old"]
    monkeypatch.setattr(chosen, "shipped_model", lambda: old)  # shipped long ago
    capsys.readouterr()
    for command in ("play", "record", "eval"):
        assert main([command, "shipped"]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), err
        assert "was trained with other shapes (schema another" in err


def test_it_is_looked_for_beside_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen.shipped_model() == SHIPPED
    shutil.copytree(ROOT / "diy", tmp_path / "diy", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)  # which is where the agent of `algo = "diy"` comes from, too
    assert chosen.shipped_model() == tmp_path / "diy" / "shipped"


def test_the_shipped_model_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    if not SHIPPED.is_dir():
        pytest.skip("no model is shipped: make one with tools/study/ship.py")
    assert sum(one.stat().st_size for one in SHIPPED.rglob("*") if one.is_file()) < 4e6
    table = json.loads((SHIPPED / "eval.json").read_text())["table"]
    assert table[0]["episodes"] == 715
    assert main(["play", "shipped", "--random", "9"]) == 0
    assert "reached the end in " in capsys.readouterr().out
