"""Several runs by one command (`realm start --seeds`, `realm sweep`), and `realm resume` and `realm plot`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from realm.commands import main as cli
from realm.commands import series as seeds_module
from realm.commands.living import stop_all
from realm.commands.plot import band, groups_of
from realm.commands.series import has_ended, read_space, seed_table, text_of
from realm.commands.spawn import ask_series_to_stop, start_run
from realm.commands.train import configuration_of
from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.launch.rundir import RunFile, boot_id, read_run, start_of
from realm.learn.results import is_judged, newest_model
from tests.console import end, realm, start
from tests.saved import checkpoint

Between = namedtuple("Between", "low high")
CARTPOLE = ("--config", "conf/cartpole.toml")


def a_run(folder: Path, env_steps: int, cause: str, score: float | None = None, state: str = "stopped") -> Path:
    checkpoint(folder / "ckpt", 1, 7, env_steps)
    run = {"run_id": "x", "pid": 1, "created": 1.0, "state": state, "cause": cause, "statistic": "return"}
    (folder / "run.json").write_text(json.dumps({**run, "score": score}))
    (folder / "config.toml").write_text(f'[app]\nalgo = "diy"\nrun_name = "{folder.name}"\nmax_env_steps = 1000\n')
    return folder


# --- seeds


def test_a_run_has_ended_at_its_limit_only(tmp_path: Path) -> None:
    app = AppConfig(max_env_steps=1000)
    limit = a_run(tmp_path / "limit", 1010, "max_env_steps = 1000 reached")
    assert has_ended(limit, app)
    assert not has_ended(limit, AppConfig(max_env_steps=2000))  # raised since
    assert not has_ended(a_run(tmp_path / "stopped", 500, "SIGINT received"), app)
    assert not has_ended(a_run(tmp_path / "failed", 500, "learner-0 failed", state="failed"), app)
    assert not has_ended(tmp_path / "none", app)
    evaluated = AppConfig(max_env_steps=1000, eval_every_steps=100)
    for env_steps, update, ended in ((900, 7, False), (1010, 6, False), (1010, 7, True)):  # the last model counts
        line = {"env_steps": env_steps, "version": [2, update]}
        (limit / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
        assert has_ended(limit, evaluated) == is_judged(limit) == ended
    (limit / "evaluations.jsonl").write_text('{"env_steps": 1010, "version": 7}\n')  # forged
    assert not is_judged(limit)
    timed = a_run(tmp_path / "time", 500, "max_seconds = 60 reached")
    assert has_ended(timed, AppConfig(max_seconds=60))
    assert not has_ended(timed, AppConfig(max_seconds=600))
    assert has_ended(a_run(tmp_path / "own", 500, "all workflows have ended"), app)
    assert has_ended(a_run(tmp_path / "hook", 500, "on_evaluation: evaluation/return = 480 has reached 475"), app)


def test_the_table_of_seeds(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / f"a-seed{n}", 1000 * n, "", score) for n, score in ((1, 10.0), (2, 20.0))]
    assert [line.split() for line in seed_table([*folders, tmp_path / "a-seed3"])[1:]] == [
        ["return", "of", "the", "last", "training", "episodes:"], ["env", "steps", "final"],
        ["a-seed1", "1,000", "10.0"], ["a-seed2", "2,000", "20.0"], ["a-seed3", "-", "-"],
        ["mean", "15.0"], ["least", "10.0"], ["greatest", "20.0"],
    ]  # fmt: skip
    for folder, last in zip(folders, (30.0, 40.0), strict=True):
        every = ((1, 1.0), (2, last))
        lines = ({"statistic": "score", "best": 50.0 + score, "score": score, "version": [1, n]} for n, score in every)
        (folder / "evaluations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    said = "\n".join(seed_table(folders))
    assert "score of evaluations:" in said
    assert re.search(r"mean +85\.0 +35\.0\n", said)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("start --seeds 1 2", "--seeds: needs a name for its runs: --set run_name=NAME"),
        ("start --seeds 1 --set run_name=a max_env_steps=0", "must come to an end: set max_env_steps or max_seconds"),
        ("start --seeds 1 1 --set run_name=a max_seconds=1", "--seeds 1 1: each seed must be given once"),
        ("start --seeds 1 --fresh", "leave out --fresh, --detach, --by-hand"),
        ("start --seeds 1 --by-hand", "leave out --fresh, --detach, --by-hand"),
        ("start --detach --by-hand", "--detach: --by-hand prints a line for the other machines"),
        ("start --detach --set run_name=a run_mode=eval", '--detach: run_mode = "eval" prints its report, which needs'),
        ("resume nowhere", "nowhere: there is no such run"),
        ("plot nowhere", "nowhere: there is no such run"),
        ("plot x --out curves.gif", "--out curves.gif: the name must end in .png or .svg or .pdf"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words.split(), *(CARTPOLE if "start" in words else ())]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("had", "sentence"),
    [
        ('algo = "realm.zoo.cartpole"\n[cartpole]\nlr_start = 0.01', "key 'cartpole.lr_start' is 0.002, but"),
        ('algo = "realm.zoo.cartpole"\n[env]\nmax_episode_steps = 9', "key 'env.max_episode_steps' is not set, but"),
        ('algo = "realm.zoo.ppo"', "key 'algo' is \"realm.zoo.cartpole\", but"),
    ],
)
def test_a_run_with_other_settings_is_not_one_of_a_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], had: str, sentence: str
) -> None:
    """Also where the command says nothing of the key."""
    folder = a_run(tmp_path / "s-seed1", 1010, "max_env_steps = 1000 reached")
    (folder / "config.toml").write_text(f"[app]\n{had}\n")
    words = [
        "start",
        *CARTPOLE,
        "--set",
        f"log_dir={tmp_path}",
        "run_name=s",
        "max_env_steps=1000",
        "eval_every_steps=0",
    ]
    assert cli.main([*words, "eval_every_steps=0", "--seeds", "1"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.slow
def test_seeds_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    setting = ("--set", f"log_dir={tmp_path}", "run_name=cart", "max_env_steps=12000", "dump_model_freq=1")
    words = ("-m", "realm", "start", *CARTPOLE, *setting, "--seeds", "3", "4")
    process = start(*words)
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("cart-seed3/ckpt/model.ckpt-1-2*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert (code, "stopped; the same command goes on" in err) == (130, True), err
    assert not (tmp_path / "cart-seed4").exists()
    code, out, err = end(start(*words))
    assert code == 0, err
    assert "training goes on from" in err
    assert re.search(r"\nmean +[\d.]+\nleast ", out)
    assert '"max_env_steps = 12000 reached"' in (tmp_path / "cart-seed4" / "run.json").read_text()
    code, out, _ = end(start(*words))
    assert out.count("has come to its end") == 2
    code, out, err = end(start(*words, "--set", "cartpole.hidden=128"))
    assert (code, "cart-seed3 has come to its end with 64; choose another run_name" in err) == (2, True), err
    code, out, err = realm("resume", tmp_path / "cart-seed3", "--set", "max_env_steps=13000")
    assert code == 0, err
    assert "changed since its last start: max_env_steps: 12000 -> 13000" in err
    assert err.count("changed since") == 1
    code, _, err = realm("plot", "cart", "--log-dir", tmp_path, "--out", tmp_path / "curves.png")
    assert code == 0, err
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


# --- resume


@pytest.mark.system
@pytest.mark.slow
def test_a_run_that_began_with_a_preload_goes_on_without_it(tmp_path: Path) -> None:
    """And keeps its score where a session ends before any episode does."""
    first, second = tmp_path / "first", tmp_path / "second"

    def train(name: str, limit: int, *settings: str) -> RunFile:
        own = ("--set", f"log_dir={tmp_path}", f"run_name={name}", f"max_env_steps={limit}", *settings)
        code, _, err = realm("start", *CARTPOLE, *own)
        assert code == 0, err
        run = read_run(tmp_path / name)
        assert run is not None
        return run

    train("first", 3000)
    run = train("second", 3000, "preload_model=true", f"preload_model_dir={first / 'ckpt'}", "preload_model_id=0")
    assert f"the weights of {first / 'ckpt' / 'model.ckpt-1-0'}, without its optimizer" in run.beginning[1]
    assert run.score is not None
    shutil.rmtree(first)
    code, _, err = realm("resume", second, "--set", f"max_env_steps={newest_steps(second) + 1}")
    assert code == 0, err
    assert "training goes on from" in err
    resumed = read_run(second)
    assert resumed is not None
    assert (resumed.statistic, resumed.score is not None) == (run.statistic, True)


def newest_steps(run_dir: Path) -> int:
    newest = newest_model(run_dir)
    assert newest is not None
    return newest.env_steps


def test_a_resumed_run_keeps_its_settings_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path / "one", 500, "")
    app = configuration_of(folder, ["max_env_steps=2000"]).app
    assert (app.run_name, app.log_dir, app.max_env_steps) == ("one", str(tmp_path), 2000)
    monkeypatch.chdir(folder)
    assert configuration_of(Path(), []).app.run_name == "one"
    with pytest.raises(
        ConfigError, match=r"has made 500 env steps, and its max_env_steps is 400; go on past it: .*800"
    ):
        configuration_of(folder, ["max_env_steps=400"])
    with pytest.raises(ConfigError, match="the run stays where it is; leave run_name out"):
        configuration_of(folder, ["run_name=two"])


def test_no_code_of_a_run_is_imported_by_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path / "sent", 500, "")
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text(f"open({str(tmp_path / 'came')!r}, 'w')")
    (folder / "config.toml").write_text('[app]\nalgo = "evil"\n')
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="so no code is taken from there"):
        configuration_of(Path(), [])
    assert cli.main(["resume", str(folder)]) == 2
    assert not (tmp_path / "came").exists()


# --- plot


def test_runs_of_several_seeds_are_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {name: a_run(tmp_path / name, 1, "") for name in ("a-seed1", "a-seed2", "b", "c-seed1")}
    log_dir = str(tmp_path)
    assert groups_of(["a", "b"], log_dir) == {"b": [paths["b"]], "a, 2 seeds": [paths["a-seed1"], paths["a-seed2"]]}
    assert groups_of([str(tmp_path / "a"), "a-seed1"], log_dir) == {"a, 2 seeds": [paths["a-seed1"], paths["a-seed2"]]}
    paths["a"] = a_run(tmp_path / "a", 1, "")
    assert list(groups_of(["a"], log_dir).values()) == [[paths["a"]], [paths["a-seed1"], paths["a-seed2"]]]
    other = a_run(tmp_path / "other" / "b", 1, "")
    monkeypatch.chdir(tmp_path.parent)
    assert len(groups_of(["b", f"{tmp_path.name}/b"], log_dir)) == 1
    assert groups_of(["b", str(other)], log_dir) == {str(paths["b"]): [paths["b"]], str(other): [other]}
    seed = a_run(tmp_path / "other" / "a-seed3", 1, "")
    assert list(groups_of(["a-seed1", str(seed)], log_dir).values()) == [[paths["a-seed1"]], [seed]]
    assert groups_of(["c-seed1", "a-seed2"], log_dir) == {"c-seed1": [paths["c-seed1"]], "a-seed2": [paths["a-seed2"]]}


def test_a_band_lies_where_all_curves_are() -> None:
    steps, mean, least, greatest = band([([0, 10, 20], [0.0, 10.0, 20.0]), ([5, 15], [7.0, 17.0])])
    assert steps.tolist() == [5, 10, 15]
    assert np.allclose(mean, [6, 11, 16])
    assert np.allclose(least, [5, 10, 15])
    assert np.allclose(greatest, [7, 12, 17])


# --- sweep


def test_a_space_of_values(tmp_path: Path) -> None:
    kinds = pytest.importorskip("optuna").distributions
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[sweep]\n"diy.lr_start" = { low = 1e-5, high = 1e-3, log = true }\n'
        "diy.hidden = [64, 128]\nseed = { low = 1, high = 5, step = 2 }\n"
    )
    above = tmp_path / "above.toml"
    above.write_text('base = "sweep.toml"\n')
    assert read_space(str(above), None) == read_space("conf/cartpole.toml", file)
    space = read_space("conf/cartpole.toml", file)
    assert {key: values.place for key, values in space.items()} == {
        "diy.lr_start": f"{file}:2", "diy.hidden": f"{file}:3", "seed": f"{file}:4",
    }  # fmt: skip
    assert [values.among for values in space.values()] == [
        kinds.FloatDistribution(1e-5, 1e-3, log=True),
        kinds.CategoricalDistribution(("64", "128")),
        kinds.IntDistribution(1, 5, step=2),
    ]
    assert [values.ends for values in space.values()] == [("1e-05", "0.001"), ("64", "128"), ("1", "5")]

    def text(chosen: Any, high: float = 1e-3) -> str:
        return text_of(SimpleNamespace(params={"lr": chosen}, distributions={"lr": Between(1e-5, high)}), "lr")

    assert text(0.00012345678) == "0.0001235"
    assert text(1e-3 * 0.99999) == "0.001"
    assert text(0.00812, high=1e-2) == "0.00812"
    assert text(3) == "3"
    assert text("64") == "64"
    assert text_of(SimpleNamespace(params={}), "seed") == "-"


def test_a_run_that_was_killed_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([-9, 0])
    monkeypatch.setattr(seeds_module, "start_run", lambda *_: next(codes))
    words = ["start", *CARTPOLE, "--set", f"log_dir={tmp_path}", "run_name=cart", "--seeds", "3", "4"]
    assert cli.main(words) == 128 + 9


def test_a_run_that_somebody_stopped_stops_its_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm.commands.spawn.start_realm", lambda *_, **__: subprocess.Popen(["true"]))
    for cause in ("SIGTERM received", "SIGTERM received by learner-0", "max_env_steps = 9 reached"):
        folder = a_run(tmp_path / f"{len(cause)}", 9, cause)
        with pytest.raises(KeyboardInterrupt) if "SIGTERM" in cause else nullcontext():
            assert start_run("conf/cartpole.toml", [], folder) == 0


def test_stop_all_asks_no_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for one run, another may be asked to stop by somebody else."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    files = [RunFile("x", one.pid, start_of(one.pid), boot_id(), started=at) for at, one in enumerate(processes, 1)]
    folders = [tmp_path / "one", tmp_path / "two"]

    def wait(run: RunFile) -> None:
        if run.pid == processes[0].pid:
            files[1].state = "stopping"
            files[1].write(folders[1])
            processes[0].wait()
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                processes[1].wait(0.3)
            processes[1].kill()
            processes[1].wait()

    for folder, file in zip(folders, files, strict=True):
        folder.mkdir()
        file.write(folder)
    monkeypatch.setattr("realm.commands.living._wait_for_supervisor", wait)
    assert stop_all(tmp_path) == 0
    assert [one.returncode for one in processes] == [-signal.SIGTERM, -signal.SIGKILL]


@pytest.mark.parametrize("seen", [True, False], ids=["its run is there", "its run only starts"])
def test_stop_all_ends_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    """A run that `stop` knows of gets one signal, from there: a second one would end it at once."""
    run, folder = subprocess.Popen(["sleep", "60"]), tmp_path / "one"
    passed_on = list[int]()

    def send_signal(number: int) -> None:
        passed_on.append(number)
        os.kill(run.pid, number)

    def stop() -> None:
        ask_series_to_stop(tmp_path)
        if seen:
            os.kill(run.pid, signal.SIGTERM)

    monkeypatch.setattr(run, "send_signal", send_signal)
    monkeypatch.setattr("realm.commands.spawn.start_realm", lambda *_, **__: run)
    if seen:
        file = a_run(folder, 9, "", state="judging") / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "pid": run.pid}))
    Timer(0.3, stop).start()
    with pytest.raises(KeyboardInterrupt):
        start_run("conf/cartpole.toml", [], folder)
    assert passed_on == ([] if seen else [signal.SIGTERM])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "it must name keys with their values"),
        ("lr = 3", "got 3; must be a list of values, or { low = ..., high = ... }"),
        ("lr = { low = 3 }", "low and high must be numbers"),
        ("lr = { low = 3, high = 2 }", "low <= high"),
        ("lr = { low = 3, hihg = 4 }", "'hihg' is unknown; must be low, high, log or step (did you mean 'high'?)"),
        ("lr = { low = 0, high = 2, log = true }", "low >= 1` must hold for `log=True`"),
        ("lr = { low = 0.1, high = 0.2, step = 0.0 }", "step > 0"),
        ("lr = { low = 1, high = 2, step = 'x' }", "not supported"),
    ],
)
def test_a_wrong_space_is_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    pytest.importorskip("optuna")
    file = tmp_path / "sweep.toml"
    file.write_text(f"[sweep]\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        read_space("conf/cartpole.toml", file)
    assert str(caught.value).startswith(f"{file}:")


@pytest.mark.system
@pytest.mark.slow
def test_a_sweep_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    file = tmp_path / "space.toml"
    file.write_text('[sweep]\n"cartpole.lr_start" = { low = 1e-4, high = 1e-2, log = true }\n')
    setting = ("--set", f"log_dir={tmp_path}", "run_name=cart", "max_env_steps=3000")
    words = ("sweep", *CARTPOLE, *setting, "--space", file)
    code, out, err = realm(*words, "--trials", "1")
    assert code == 0, err
    assert re.search(r"\ncart-trial0 +[\d.]+ +0\.00\d+\n", out)
    with (tmp_path / "cart.sweep.jsonl").open("a") as journal:
        journal.write('{"op_code":6,"worker_id":')  # where a full disk has torn a line
    code, out, err = realm(*words, "--trials", "2")
    assert code == 0, err
    assert "cart-trial0, trial 1" not in out
    assert re.search(r"start --config conf/cartpole.toml --set .* cartpole.lr_start=0.00\d+ run_name=cart-best\n", out)
    assert all(json.loads(line) for line in (tmp_path / "cart.sweep.jsonl").read_text().splitlines())
    code, _, err = realm(*words, "--set", "cartpole.hidden=32", "--trials", "2")
    assert (code, "cart-trial0 has come to its end with 64; choose another run_name" in err) == (2, True), err
    code, _, err = realm(*words, "--set", "cartpole.gamma=0.9", "--trials", "2")
    assert (code, err.startswith("error: --set cartpole.gamma=0.9: key 'cartpole.gamma'")) == (2, True), err
    file.write_text('[sweep]\n"cartpole.lr_start" = [1e-3, 1e-4]\n')
    assert "was begun with other kinds of values" in realm(*words, "--trials", "3")[2]
    (tmp_path / "cart.sweep.jsonl").write_text('{"op_code": 4')
    assert "is not the journal of a sweep" in realm(*words, "--trials", "3")[2]
    assert not [path for path in os.listdir(tmp_path) if path.startswith("cart-trial2")]
