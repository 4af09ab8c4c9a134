"""realm/launch/hooks.py: what a `callbacks.py` may do to a run, and what it may not. The whole runs are at the end."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from realm.contract import Evaluation, Progress, Version, film_best, stop_at_score
from realm.errors import UserCodeError
from realm.launch import hooks
from realm.launch.hooks import Hooks
from realm.launch.signals import Wishes
from realm.user import load_callbacks
from tests.cluster import ROOT, Run


def progress(env_steps: int = 0, score: float | None = None, **metrics: float) -> Progress:
    version = Version(1, env_steps)
    found = None if score is None else Evaluation(version, env_steps, "r", score, score, version, {"r": score})
    return Progress(Path("/runs/one"), env_steps, version, metrics, found)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the `callbacks.py` of the package `hooked` in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hooked").mkdir()
    (tmp_path / "hooked" / "__init__.py").touch()

    yield lambda text: (tmp_path / "hooked" / "callbacks.py").write_text(text) and None
    for name in ("hooked", "hooked.callbacks"):
        sys.modules.pop(name, None)


def test_stop_at_score() -> None:
    stop = stop_at_score(475)
    assert [stop(progress(score=score)) for score in (None, 474.9)] == [None, None]
    assert stop(progress(score=480.5)) == "evaluation/return = 480.5 has reached 475"
    stop = stop_at_score(-100, "episode/return")
    assert [stop(progress(score=480.5)), stop(progress(**{"episode/return": -101.0}))] == [None, None]
    assert stop(progress(**{"episode/return": -99.0})) == "episode/return = -99 has reached -100"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def on_evaluate(progress): pass", r"callbacks\.py: nothing calls on_evaluate; .* mean 'on_evaluation'"),
        ("def on_end(): pass", r"callbacks\.py: on_end cannot be called: .*expected on_end\(progress\)"),
        ("on_end = 3", "on_end cannot be called"),
        ("x = 1\n1 / 0", r"callbacks\.py:2: ZeroDivisionError: .* \(while importing it\)"),
    ],
)
def test_a_wrong_file_is_a_sentence_before_the_run(package: Callable[[str], None], text: str, error: str) -> None:
    package(text)
    with pytest.raises(UserCodeError, match=error):
        load_callbacks("hooked")


def test_a_package_without_hooks_has_no_thread(package: Callable[[str], None]) -> None:
    runs = Hooks("hooked")
    runs.tell("on_start", progress())
    runs.end("over", 60, Wishes())
    assert (runs._thread.is_alive(), runs.reason) == (False, "")


def test_the_calls_are_in_order_and_the_first_reason_counts(package: Callable[[str], None]) -> None:
    package(
        "calls = []\n"
        "def on_start(progress): calls.append(('start', progress.env_steps))\n"
        "def on_evaluation(progress):\n"
        "    calls.append(('evaluation', progress.env_steps))\n"
        "    return f'after\\n{progress.env_steps}' if progress.env_steps else ''\n"
        "def on_end(progress): calls.append((progress.reason, progress.env_steps, progress.metrics))\n"
    )
    runs = Hooks("hooked")
    for step, name in enumerate(("on_start", "on_evaluation", "on_evaluation", "on_update")):
        runs.tell(name, progress(step, kl=step))
    runs.end("max_seconds = 1 reached", 60, Wishes())
    assert sys.modules["hooked.callbacks"].calls == [
        ("start", 0), ("evaluation", 1), ("evaluation", 2), ("max_seconds = 1 reached", 3, {"kl": 3}),
    ]  # fmt: skip
    assert runs.reason == "on_evaluation: after 1"
    runs.tell("on_update", progress())  # after the end


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return True", "TypeError: returned bool; expected None, or the reason to stop as str"),
    ],
)
def test_one_that_fails_is_named_once_and_not_called_again(
    package: Callable[[str], None], logged: list[str], tmp_path: Path, body: str, said: str
) -> None:
    package(f"ends = []\ndef on_update(progress):\n    {body}\non_end = ends.append\n")
    runs = Hooks("hooked")
    for step in range(3):
        runs.tell("on_update", progress(step))
        time.sleep(0.05)
    runs.end("over", 60, Wishes())
    line = 2 if "return" in body else 3
    place = f"{tmp_path}/hooked/callbacks.py:{line}"
    assert logged == [f"ERROR {place}: {said} (on_update is not called any more; the run goes on)"]
    assert [one.reason for one in sys.modules["hooked.callbacks"].ends] == ["over"]
    assert runs.reason == ""


def test_a_slow_one_gets_the_newest_report_and_every_evaluation(
    package: Callable[[str], None], logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package(
        "import threading\ngoes_on, calls = threading.Event(), []\n"
        "def on_start(progress): goes_on.wait(60)\n"
        "def on_update(progress): calls.append(progress.env_steps)\non_evaluation = on_update\n"
    )
    runs = Hooks("hooked")
    started = time.monotonic()
    runs.tell("on_start", progress(0))
    while runs._waiting:  # until its thread has taken that
        time.sleep(0.01)
    for step in range(1, 2000):
        runs.tell("on_evaluation" if step % 500 == 1 else "on_update", progress(step))
    assert len(runs._waiting) == 5
    assert hooks._MOST_WAITING == 100
    runs.end("over", 0.2, Wishes())  # it is not waited for
    assert logged == ["WARNING callbacks.py: still runs 0 s after the end, so it is left alone"]
    assert time.monotonic() - started < 30
    module = sys.modules["hooked.callbacks"]
    module.goes_on.set()
    runs._thread.join(60)
    assert module.calls == [1, 501, 1001, 1501, 1999]


def test_somebody_who_wants_the_end_at_once_gets_it(package: Callable[[str], None]) -> None:
    package("import time\ndef on_end(progress): time.sleep(60)")
    runs, wishes = Hooks("hooked"), Wishes()
    runs.tell("on_start", progress())
    wishes.at_once = True
    started = time.monotonic()
    runs.end("over", 60, wishes)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("page", ["docs/your-own.md", "docs/zh/your-own.md"])
def test_the_recipes_of_the_page(package: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """That for Weights & Biases with a stand-in: it is not installed here."""
    blocks = [block.partition("```")[0] for block in (ROOT / page).read_text().split("```python\n")[1:]]
    simple, logs = [block for block in blocks if "stop_at_score" in block]
    calls = Mock()
    monkeypatch.setitem(sys.modules, "wandb", calls)
    for text in (simple, logs):
        package(text)
        runs = Hooks("hooked")
        runs.tell("on_start", progress())
        runs.tell("on_update", progress(10, kl=0.5))
        runs.tell("on_evaluation", progress(20, score=480.0))
        runs.end("over", 60, Wishes())
        assert runs.reason == "on_evaluation: evaluation/return = 480 has reached 475"
        sys.modules.pop("hooked.callbacks")
    assert {"project": "cartpole", "name": "one"}.items() <= calls.init.call_args.kwargs.items()
    assert [call.args[0] for call in calls.log.call_args_list] == [{"kl": 0.5, "env_steps": 10}, {"env_steps": 20}]
    calls.finish.assert_called_once_with()


def test_mlflow(package: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in, too."""
    calls = Mock()
    monkeypatch.setitem(sys.modules, "mlflow", calls)
    package("from realm.contract import mlflow_logger\non_start, on_update, on_evaluation, on_end = mlflow_logger()\n")
    runs = Hooks("hooked")
    runs.tell("on_start", progress())
    runs.tell("on_update", progress(10, kl=0.5))
    runs.end("over", 60, Wishes())
    calls.start_run.assert_called_once_with(run_name="one")
    calls.log_metrics.assert_called_once_with({"kl": 0.5}, step=10)
    calls.end_run.assert_called_once_with()


def test_a_missing_logger_is_a_sentence_before_the_run(package: Callable[[str], None]) -> None:
    package("from realm.contract import wandb_logger\n\nlogs = wandb_logger()\n")
    with pytest.raises(UserCodeError, match=r"callbacks\.py:3: .*wandb is not installed; call `.*pip install .*wandb`"):
        load_callbacks("hooked")


def test_a_film_of_the_best_model_or_of_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock(side_effect=[Mock(returncode=2, stderr=b"error: none is the best\n"), Mock(returncode=0)])
    monkeypatch.setattr("realm.contract.callbacks.subprocess.run", calls)
    assert film_best("a.mp4")(progress()) is None
    words = [call.args[0] for call in calls.call_args_list]
    assert [one[-1] for one in words] == ["best", "latest"]
    assert words[0][1:-2] == ["-m", "realm", "record", "/runs/one", "--out", "/runs/one/a.mp4"]
    calls.side_effect = [Mock(returncode=2, stderr=b"so and\nerror: it renders nothing\n")] * 2
    with pytest.raises(RuntimeError, match=r"^error: it renders nothing$"):
        film_best()(progress())


# --- whole runs

RECORDED = """
import json
import time

from realm.contract import stop_at_score

stop = stop_at_score(-1e9)


def record(name, progress):
    with open(progress.run_dir / "calls.jsonl", "a") as file:
        metrics = {name: progress.metrics[name] for name in progress.metrics if not name.startswith("system/")}
        file.write(json.dumps([name, progress.env_steps, progress.version, metrics, progress.reason]) + "\\n")


def on_start(progress):
    record("start", progress)


def on_update(progress):
    record("update", progress)


def on_evaluation(progress):
    record("evaluation", progress)
    return stop(progress) if progress.env_steps >= 4000 else None


def on_end(progress):
    record("end", progress)
"""
FAILS_AND_SLEEPS = """
import time


def on_start(progress):
    raise KeyError("no such project")


def on_update(progress):
    (progress.run_dir / "sleeps").touch()
    time.sleep(30)
"""
MODES = ["wrapper_type=local", "wrapper_type=remote"]


def hooked(tmp_path: Path, callbacks: str, *settings: str) -> Run:
    """A run of `tests/evaluated`, whose evaluations score minus the updates of their model, with these callbacks."""
    if not (tmp_path / "hooked").exists():
        shutil.copytree(ROOT / "tests" / "evaluated", tmp_path / "hooked")
        (tmp_path / "hooked" / "callbacks.py").write_text(callbacks)
    always = ("algo=hooked", "buffer_backend=native", "hooked.learn_s=0.02", "max_version_lag=0")
    return Run(tmp_path, *always, *settings, config=str(ROOT / "tests/counting/counting.toml"), cwd=tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.slow)])
def test_a_hook_stops_the_run_in_order(tmp_path: Path, mode: str) -> None:
    with hooked(tmp_path, RECORDED, mode, "eval_every_steps=1000", "eval_episodes=4") as run:
        assert run.finish() == 0, run.text()
        assert run.processes() == []
    calls = [json.loads(line) for line in (run.dir / "calls.jsonl").read_text().splitlines()]
    names = [name for name, *_ in calls]
    assert (names[0], names[-1], names.count("start"), names.count("end")) == ("start", "end", 1, 1)
    assert {"update", "evaluation"} <= set(names)
    judged = [call for call in calls if call[0] == "evaluation"]
    assert len(judged) >= 3
    assert all(metrics["evaluation/score"] == -version[1] for _, _, version, metrics, _ in judged)
    updates = [call for call in calls if call[0] == "update"]
    assert updates[-1][2] == list(run.checkpoints()[-1])  # the last model is saved, and the newest report is of it
    assert any(call[3].get("learner/checked_rows", 0) > 0 for call in updates)
    known = [call for call in calls if call[0] == "update" and "aisrv/so_far_score" in call[3]][-1]
    assert 0 < known[3]["aisrv/so_far_env_steps"] <= known[1]  # what the workflow's context says of the run
    assert min(call[3]["evaluation/score"] for call in judged) <= known[3]["aisrv/so_far_score"] < 0
    stopped = next(call for call in judged if call[1] >= 4000)
    cause = f"on_evaluation: evaluation/score = {-stopped[2][1]} has reached -1e+09"
    assert calls[-1][-1] == cause
    assert (run.file()["state"], run.file()["cause"]) == ("stopped", cause)
    assert f"the run has ended: {cause}" in run.output.read_text()
    if mode == "wrapper_type=remote":
        assert run.summary()["cause"] == cause


@pytest.mark.system
@pytest.mark.parametrize("mode", [pytest.param(MODES[0], marks=pytest.mark.slow), MODES[1]])
def test_a_hook_that_fails_and_one_that_sleeps_cost_no_training(tmp_path: Path, mode: str) -> None:
    with hooked(tmp_path, FAILS_AND_SLEEPS, mode, "stop_timeout_s=2") as run:
        run.wait_for(lambda: (run.dir / "sleeps").exists(), "a hook sleeps")
        before = run.checkpoints()[-1][1]
        run.wait_trained(before + 40)
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
    text = run.output.read_text()
    failed = f"{tmp_path}/hooked/callbacks.py:6: KeyError: 'no such project' (on_start is not called any more; "
    assert text.count(failed) == 1
    assert "callbacks.py: still runs 2 s after the end" in text
    assert "silent" not in text
    assert "stood still" not in text
    assert run.file()["state"] == "stopped"


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("mode", MODES)
def test_progress_csv_after_a_kill_and_a_resume(tmp_path: Path, mode: str) -> None:
    """It is read while the run lives, too. What the killed session trained after its last checkpoint is dropped."""

    def rows() -> list[dict[str, str]]:
        with open(run.dir / "progress.csv", newline="") as file:
            found = list(csv.DictReader(file, strict=True))
        assert all(None not in row and None not in row.values() for row in found)  # cells are as many as columns
        return found

    def trained() -> list[int]:
        return [int(row["env_steps"]) for row in rows() if row["learner/checked_rows"]]

    with hooked(tmp_path, "", mode, "dump_model_freq=200", "eval_every_steps=1000", "eval_episodes=4") as run:
        run.wait_for(lambda: len(trained()) >= 4, "four reports")
        run.process.kill()
        run.process.wait()
        _, living = psutil.wait_procs(run.processes(), 60)
        assert living == []
    killed = trained()
    with open(run.dir / "progress.csv", "a") as file:
        file.write("99999999,1")
    saved = max(int(json.loads((path / "manifest.json").read_text())["env_steps"])
                for path in run.dir.glob("ckpt/model.ckpt-*"))  # fmt: skip
    with hooked(tmp_path, "", mode, f"max_env_steps={killed[-1] + 3000}") as run:
        assert run.finish() == 0, run.text()
    kept = [step for step in killed if step <= saved]
    assert trained()[: len(kept)] == kept
    assert trained() == sorted(trained())
    assert killed[-1] + 3000 <= trained()[-1] < 99999999
    assert any(row["evaluation/score"] for row in rows())
    assert {"env_steps", "wall_time", "episode/score", "system/env_steps_per_s"} <= rows()[0].keys()
