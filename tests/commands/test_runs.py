"""Runs by name: `realm runs`, `realm compare`, and names where a command takes a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from realm.commands import main as cli
from realm.commands.locate import chosen_model, run_folder
from realm.commands.plot import draw
from realm.commands.runs import differences
from realm.errors import ConfigError
from realm.launch.rundir import find_runs
from realm.watch.tensorboard import TensorBoard, read_curves
from tests.saved import checkpoint


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two runs that have ended, and one that was killed."""
    for number, (name, state) in enumerate((("first", "stopped"), ("second", "failed"), ("third", "running"))):
        folder = tmp_path / name
        checkpoint(folder / "ckpt", 1, 7, 7000 + number)
        run = {"run_id": "x", "pid": 1, "created": 1.0, "started": 1e9 + number, "state": state}
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "config.toml").write_text(f'[app]\nrun_name = "{name}"\nseed = {number}\n[diy]\nhidden = 64\n')
        tensorboard = TensorBoard(folder / "log" / "tensorboard")
        for step in (100, 200, 300):
            tensorboard.write({"episode/return": float(step * (number + 1)), "other": 1.0}, step)
        tensorboard.close()
    best = tmp_path / "first" / "best_ckpt" / "model.ckpt-1-5"
    best.mkdir(parents=True)
    best.with_name(f"{best.name}.json").write_text(json.dumps({"statistic": "r", "score": 123.45, "env_steps": 5000}))
    return tmp_path


def test_every_run_is_listed(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "--log-dir", str(log_dir)]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert max(map(len, rows)) <= 80
    assert heading.split() == ["run", "state", "env", "steps", "updates", "best", "size", "started"]
    assert [row.split()[:4] for row in rows] == [
        ["first", "stopped", "7,000", "7"], ["second", "failed", "7,001", "7"], ["third", "killed", "7,002", "7"],
    ]  # fmt: skip
    assert "return 123.5" in rows[0]
    assert "MB  2001-09-0" in rows[0]
    assert cli.main(["runs", "--log-dir", str(log_dir / "first")]) == 0
    assert "no run is there yet" in capsys.readouterr().out


def test_what_a_prune_left_half_deleted_is_no_run(log_dir: Path) -> None:
    (log_dir / "third").rename(log_dir / ".removing-third")
    assert [path.name for path, _ in find_runs(log_dir)] == ["first", "second"]


def test_a_model_named_from_inside_its_run(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log_dir / "first" / "ckpt")
    for model in (".", "model.ckpt-1-7"):
        assert chosen_model(model, "latest", (), str(log_dir))[0].app.seed == 0
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError, match=r"is not a run|no such run"):
        chosen_model(".", "latest", (), str(log_dir))


def test_no_curves_without_a_folder(tmp_path: Path) -> None:
    assert read_curves(tmp_path / "none") == {}


def test_a_run_has_a_name_and_a_path(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_folder("first", str(log_dir)) == run_folder(str(log_dir / "first"), None) == log_dir / "first"
    assert run_folder("", str(log_dir)) == log_dir / "third"  # the newest
    with pytest.raises(ConfigError, match=r"secnod: there is no such run, .*did you mean 'second'"):
        run_folder("secnod", str(log_dir))
    for model in ("first", str(log_dir / "first"), "first/ckpt/model.ckpt-1-7"):
        config, folder, number = chosen_model(model, "latest", (), str(log_dir))
        assert (config.app.seed, number) == (0, "latest")
        assert folder in (log_dir / "first" / "ckpt", log_dir / "first" / "ckpt" / "model.ckpt-1-7")
    assert chosen_model("first", "best", (), str(log_dir))[1] == log_dir / "first" / "best_ckpt"
    monkeypatch.chdir(log_dir)
    (log_dir / "folder").mkdir()
    (log_dir / "elsewhere" / "first").mkdir(parents=True)  # a package of the run's name, as `realm init` writes it
    monkeypatch.chdir(log_dir / "elsewhere")
    Path("config.toml").write_text("title = 'of something else'\n")
    assert chosen_model("first", "latest", (), str(log_dir))[1] == log_dir / "first" / "ckpt"
    with pytest.raises(ConfigError, match=r"second: none of its models was evaluated, .*leave --id best out"):
        chosen_model("second", "best", (), str(log_dir))
    monkeypatch.chdir(log_dir)
    with pytest.raises(ConfigError, match=r"^folder: there is no such run, neither here nor in "):
        chosen_model("folder", "latest", (), str(log_dir))
    (log_dir / "folder" / "inner").mkdir()
    with pytest.raises(ConfigError, match="is not a run or inside one"):
        chosen_model("folder/inner", "latest", (), str(log_dir))


def test_what_differs(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = log_dir / "curves.png"
    assert cli.main(["compare", "first", "third", "--log-dir", str(log_dir), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()[-4:-2]] == [["first", "third"], ["seed", "0", "2"]]
    assert out.read_bytes().startswith(b"\x89PNG")
    for same in ("first", str(log_dir / "first")):
        assert cli.main(["compare", "first", same, "--log-dir", str(log_dir)]) == 2
    capsys.readouterr()
    newest = find_runs(log_dir)[-1][0].name
    for names in ([], ["first"]):  # the newest two, and this one with the newest
        assert cli.main(["compare", *names, "--log-dir", str(log_dir)]) == 0
        assert f"\n{newest} " in capsys.readouterr().out
    assert cli.main(["plot", "--log-dir", str(log_dir), "--out", str(out)]) == 0
    settings = [{"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "x" * 90}]
    assert differences(["one", "other"], settings, 80) == [
        "b", "  one   2", "  other 3", "c", "  one   not set", f"  other {'x' * 90}",
    ]  # fmt: skip
    assert differences(["one", "other"], settings[:1] * 2, 80) == []


def test_a_legend_names_each_run_as_its_folder_is_called(log_dir: Path, tmp_path: Path) -> None:
    import matplotlib

    groups = {name: [log_dir / "first"] for name in ("_first", "five$ or ten$_", "first")}
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters, not outlines
        draw(groups, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    for name in groups:
        assert f"{name}: training</text>" in text


def test_curves_are_read_without_what_a_resumed_run_has_dropped(tmp_path: Path) -> None:
    first, second = TensorBoard(tmp_path), TensorBoard(tmp_path)
    for step in (1, 2, 3):
        first.write({"x": float(step)}, step)
    first.write({"late": 1.0}, 3)
    first.close()
    second.begin(2)
    second.write({"x": 20.0}, 2)
    second.close()
    assert read_curves(tmp_path) == {"x": ([1, 2, 2], [1.0, 2.0, 20.0])}
