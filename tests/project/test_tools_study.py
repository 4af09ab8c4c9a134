"""tools/common.py and tools/study: what they look for, keep and go on with. Nothing is trained."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from realm.config.load import load_config, to_toml
from realm.errors import ConfigError
from realm.watch.tensorboard import TensorBoard
from tests.saved import checkpoint
from tools import common
from tools.study import control, judge, runs

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "conf" / "configure_app.toml"
ROUND = 64  # environments that the default has on one core
NUMBERS = {
    "regret": 7.0, "worst_regret": 9.0, "missed": 1, "whole": 0.5,
}  # fmt: skip
FIGURES = {**NUMBERS, "bound": {**NUMBERS, "regret": 8.5}}


# ---- runs ----


def test_saved_models_are_ordered_by_version_and_a_start_adds_none(tmp_path):
    for epoch, update, env_steps in ((1, 0, 0), (1, 10, 100), (2, 10, 100), (2, 100, 1000), (2, 20, 200)):
        checkpoint(tmp_path, epoch, update, env_steps)
    found = runs.saved_models(tmp_path)
    assert [one.env_steps for one in found] == [0, 100, 200, 1000]
    assert found[1].path.name == "model.ckpt-1-10"


def test_minutes_leave_out_pauses_and_count_what_was_made_twice(tmp_path, monkeypatch):
    folder, now = tmp_path / "log" / "tensorboard", time.time()
    sessions = [((0, 100, 200), (0, 60, 120)), ((0, 100, 200, 300), (0, 0, 60, 120))]  # a crash cost a hundred steps
    for steps, seconds in sessions:  # each begins with the real time, as the pause between them would
        board = TensorBoard(folder)
        for step, second in zip(steps, seconds, strict=True):
            fake = SimpleNamespace(time=lambda second=second: now + second, monotonic=time.monotonic)
            monkeypatch.setattr("realm.watch.tensorboard.time", fake)
            board.write({common.CLOCK: 1.0}, step)
        board.close()
    clock = common.Curve(*(np.array(x, float) for x in ([0, 100, 200, 100, 200, 300], [0, 1, 2, 2, 3, 4], [1] * 6)))
    assert common.minutes_at(clock, 200) == 3.0
    assert common.minutes_at(clock, 300) == 4.0
    assert common.minutes_at(clock, 50) == 0.5
    waits_to_stop = common.Curve(*(np.append(x, last) for x, last in zip(clock, (300, 9, 1), strict=True)))
    assert common.minutes_at(waits_to_stop, 300) == 4.0
    read = common.read_curves(tmp_path)
    assert read[common.CLOCK].env_steps.tolist() == [0, 100, 200, 100, 200, 300]
    assert read[common.CLOCK].minutes == pytest.approx([0, 1, 2, 2, 3, 4], abs=0.1)
    assert set(read) == {common.CLOCK}


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    def config(*overrides):
        return load_config(CONFIG, overrides)

    runs.refuse_other_setting(tmp_path, config())
    (tmp_path / "config.toml").write_text(to_toml(common.effective(config("run_name=a", "max_seconds=3"))))
    runs.refuse_other_setting(tmp_path, config("run_name=a", "max_seconds=7", "max_env_steps=9"))
    with pytest.raises(ConfigError, match=r"max_version_lag was .* and is 4"):
        runs.refuse_other_setting(tmp_path, config("run_name=a", "max_version_lag=4"))
    made = (tmp_path / "config.toml").read_text()
    older, came_since = re.subn(r"(?m)^adam_eps.*\n", "", made)
    assert came_since == 1
    (tmp_path / "config.toml").write_text(re.sub(r"its (\d+) keys", lambda n: f"its {int(n[1]) - 1} keys", older))
    runs.refuse_other_setting(tmp_path, config("run_name=a"))


def test_a_process_is_ended_where_something_goes_wrong():
    assert common.run_process([sys.executable, "-c", "raise SystemExit(3)"]) == 3

    threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,)).start()  # as Ctrl+C
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        common.run_process([sys.executable, "-c", "import time; time.sleep(600)"])
    assert time.monotonic() - begin < 60


def test_judging_takes_nine_treasures_whatever_the_training_had():
    env = {
        "start": 4,
        "end": 1,
        "map": "x",
        "treasure_num": 3,
        "treasure_random": 0,
        "treasure_id": [1],
        "layouts": [[5]],
    }
    assert runs.judged_env(env) == {"start": 4, "end": 1, "map": "x", "treasure_random": 1, "treasure_num": 9}


MANY = 'env.map=["generated:1","generated:2"]'


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--out {tmp}/empty.json", "empty.json: holds no results of this script"),
        ("--out {tmp}/new.json --config no/such.toml", "no/such.toml"),
        ("--out {tmp}", "cannot be written; it must be a file"),
        ("--out {tmp}/new.json --set {many}", "[env] has 2 maps, models are judged on one"),
        ("--out {tmp}/new.json --set env.map=nowhere", "nowhere"),
        ("--out {tmp}/new.json --set env.start=99", "start is 99"),
        ("--out {tmp}/new.json --set diy.lam=7.0", "diy.lam"),
    ],
)
def test_what_a_user_got_wrong_is_said_before_any_work(arguments, sentence, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty.json").write_text("{}")
    words = [word.format(tmp=tmp_path, many=MANY) for word in arguments.split()]
    monkeypatch.setattr(sys, "argv", ["tools/study/judge.py", *words])
    monkeypatch.setattr(common, "run_process", None)
    with pytest.raises(SystemExit) as ended:
        common.command_line(judge.main)
    said = capsys.readouterr().err
    assert (ended.value.code, said.startswith("error: "), len(said.splitlines())) == (2, True, 1), said
    assert sentence in said


# ---- judge ----


def test_the_grid_has_both_ends_and_grows():
    steps = list(range(0, 2_000_000, 10_000))
    grid = judge.spread(steps, 12)
    assert grid[0] == 0
    assert grid[-1] == len(steps) - 1
    assert len(grid) <= 12
    assert (np.diff(np.diff(grid)) >= -1).all()
    assert judge.spread(steps[:3], 12) == [0, 1, 2]
    assert judge.spread([0], 12) == [0]


def test_the_first_good_model_is_found_between_those_of_the_grid():
    regret = [90, 80, 70, 60, 31, 40, 30, 20, 10, 4]
    asked = []

    def play(i):
        asked.append(i)
        return regret[i]

    assert judge.first_at_most(play, [0, 3, 6, 9], 32) == 4
    assert sorted(set(asked)) == [0, 3, 4, 6]
    assert judge.first_at_most(play, [0, 3, 6, 9], 5) == 9
    assert judge.first_at_most(play, [0, 3, 6, 9], 1) is None


class FakeWork:
    """Six models; the fourth of them and all after it are good. `calls` says what was done."""

    def __init__(self, fail_at=None):
        self.calls, self._fail_at = [], fail_at

    def _note(self, *what):
        if what == self._fail_at:
            raise KeyboardInterrupt
        self.calls.append(what)

    def train(self, seed):
        self._note("train", seed)
        return {"env_steps": 5, "minutes": 2.0}

    def models(self, seed):
        return [judge.Model(Path(f"model.ckpt-1-{i}"), 100 * i, i / 10) for i in range(6)]

    def play(self, seed, model, how):
        self._note("play", seed, model.env_steps, how)
        if how == "sets":
            return {"bound": FIGURES["bound"]}
        return {**FIGURES, "regret": 100.0 if model.env_steps < 300 else 7.0}


def test_a_judgement_goes_on_where_it_was_stopped(tmp_path):
    out = tmp_path / "judge.json"
    setup = {"minutes": 60}
    first, second, third = FakeWork(fail_at=("play", 1, 500, "greedy")), FakeWork(), FakeWork()
    for work in (first, second, third):
        results = common.open_results(out, setup, "seeds")
        entry = results["seeds"].setdefault("1", {})
        try:
            judge.judge_seed(entry, 1, work, lambda r=results: common.write_json(out, r), grid=3)
        except KeyboardInterrupt:
            assert work is first
    assert first.calls[0] == ("train", 1)
    assert all(kind == "play" for kind, *_ in second.calls)
    assert not set(first.calls) & set(second.calls)
    assert third.calls == []
    found = json.loads(out.read_text())["seeds"]["1"]
    assert found["reached"] == {"32": {"env_steps": 300, "minutes": 0.3}, "5": None}
    assert set(found["end"]) == {"greedy", "sampled", "sets"}
    text = judge.table(results)
    assert "| mean regret at most 32: env steps | 300 |" in text
    assert "| mean regret at most 5: env steps | not |" in text
    assert "| ... mean regret against the bound | 8.50 |" in text
    assert "| all 8 192 sets: mean regret against the bound | 8.50 |" in text
    assert "| all 8 192 sets: mean regret |" not in text
    judge.draw(results, tmp_path / "judge.png")
    assert (tmp_path / "judge.png").stat().st_size > 1000
    with pytest.raises(ConfigError, match="take another --out"):
        common.open_results(out, {"minutes": 30}, "seeds")


def test_a_models_layouts_are_played(tmp_path):
    (tmp_path / "config.toml").write_text((common.ROOT / "diy/shipped/config.toml").read_text())
    examiner = runs.Examiner(tmp_path)
    (model,) = (common.ROOT / "diy/shipped/ckpt").glob("model.ckpt-*")
    played = examiner._play(model, examiner._nine[:3], 0.0)
    assert played.reached_end.all()
    assert played.missed.sum() == 0


# ---- control.py ----


def evaluations(run, lines):
    run.mkdir(exist_ok=True)
    rows = [
        {"version": [epoch, 0], "env_steps": steps, "score": score, "time": time[0] if time else 0.0}
        for epoch, steps, score, *time in lines
    ]
    (run / "evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"torn')


def test_evaluations_that_a_restart_took_back_do_not_count(tmp_path):
    evaluations(tmp_path, [(1, 0, 1.0), (1, 1000, 2.0), (1, 2000, 9.0), (1, 3000, 9.0), (2, 2010, 3.0), (2, 3020, 4.0)])
    assert [(one.env_steps, one.score) for one in control.points(tmp_path, 1000)] == [
        (0, 1.0),
        (1000, 2.0),
        (2010, 3.0),
        (3020, 4.0),
    ]


def test_the_page_says_what_each_seed_reached_and_what_is_missing(tmp_path):
    first = control.Study(
        "a", "A, E-v1", "pendulum.toml", "first", -160, 8000, ("eval_every_steps=1000",), known="-152", minutes=2.5
    )
    last = control.Study("b", "B, E-v1", "pendulum.toml", "last", 10, set=("eval_every_steps=1000",))
    tasks = [control.Task(study, seed, tmp_path / f"{study.name}-{seed}") for study in (first, last) for seed in (1, 2)]
    late = control.Task(first, 3, tmp_path / "a-3")
    evaluations(late.folder, [(1, 0, -900.0, 0.0), (1, 7000, -150.0, 180.0)])
    evaluations(tasks[0].folder, [(1, 1000, -900.0), (1, 7000, -150.0), (1, 8000, -200.0)])
    evaluations(tasks[1].folder, [(1, 9000, -150.0)])
    evaluations(tasks[2].folder, [(1, 1000 * n, float(n)) for n in range(20)])
    run = {"run_id": "x", "pid": 1, "created": 0.0, "boot": "", "cause": "max_env_steps = 20000 reached"}
    (tasks[2].folder / "run.json").write_text(json.dumps(run))
    curves = {task.folder.name: control.curve_of(task, {}) for task in (*tasks, late)}
    control.write_curves(tmp_path / "page.json", curves)
    assert control.read_curves(tmp_path / "page.json") == curves
    shutil.rmtree(tasks[2].folder)  # as on another machine
    assert control.curve_of(tasks[2], curves).ended
    assert control.curve_of(tasks[2], {}) == control.Curve([], False)
    none = control.Task(last._replace(name="c", says="C, E-v1"), 1, tmp_path / "c-1")
    curves["c-1"] = control.Curve([], False)
    text = control.page(
        [control.result(task, curves[task.folder.name]) for task in (*tasks, late, none)],
        common.about(),
        Path("ppo.toml"),
        "the mean return",
        Path("page.md"),
    )
    assert (
        "within 8,000 and 2.5 min | 7,000 (0.0 min) / 9,000 (0.0 min) / 7,000 (3.0 min) | 7,667 | -152 | 1 of 3 |"
        in text
    )
    assert "| last: at least 10 | 14 (10) / *0% done* | - | - | not known yet |" in text
    assert "C, E-v1" not in text
    assert "have not begun: 1." in text
    assert "An evaluation is the mean return." in text
    assert control.by_hand(tmp_path / "none.md") == ""
    (tmp_path / "page.md").write_text(text + "\n## Speed\n\nfast\n")
    assert control.by_hand(tmp_path / "page.md") == "\n## Speed\n\nfast\n"


def test_a_study_beside_another_has_its_mark_and_its_curve(tmp_path, monkeypatch):
    set_ = ("eval_every_steps=1000", "max_env_steps=20000")
    base = control.Study("b", "B, E-v1", "pendulum.toml", at_least=10, set=set_)
    own = control.Study("c", "C, E-v1", "pendulum.toml", set=set_, beside="b")
    first = own._replace(name="d", says="D, E-v1", measure="first", at_least=9)

    def of(study, seed, scores, begin=0):
        task = control.Task(study, seed, tmp_path / f"{study.name}-{seed}")
        points = [control.Point(1000 * n + begin, 0.0, score) for n, score in enumerate(scores)]
        return control.result(task, control.Curve(points, True))

    results = [of(base, 1, map(float, range(40)), 7), of(base, 2, map(float, range(5)))]
    results += [of(own, seed, [2.0 * n for n in range(20)]) for seed in (1, 2)] + [of(first, 1, [3.0] * 20)]
    text = control.page(results, common.about(), Path("x.toml"), "it", Path("page.md"))
    assert "| last: `b` has 14 | 29 (20) / 29 (20) | 29 | - | - |" in text, (
        "10 to 19 thousand, of the seed that got there"
    )
    assert "| first: at least 9 | never | - | - | 0 of 1 |" in text
    alone = control.page(results[2:4], common.about(), Path("x.toml"), "it", Path("page.md"))
    assert "| last: `b` | 29 (20) / 29 (20) | 29 | - | - |" in alone
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda one, *to, **how: drawn.append(one.axes) or save(one, *to, **how))
    control.draw(results, tmp_path / "page.png")
    assert Image.open(tmp_path / "page.png").mode == "P", "a palette, which takes a third of the bytes"
    ends = {axis.get_title(): [line.get_xdata()[-1] for line in axis.lines] for axis in drawn[0]}
    assert ends["C, E-v1"][:4] == [19.007, 4.0, 19.0, 19.0], "both bases until the end of its own"


def test_keys_of_the_page_are_those_of_every_run(tmp_path):
    file = tmp_path / "x.toml"
    of_all = "evaluation = 'it'\nbeside = 'a'\nset = ['seed=1', 'max_env_steps=9']"
    file.write_text(
        f"[page]\n{of_all}\n[a]\nsays = 'A'\nconfig = 'pendulum.toml'\n"
        "[b]\nsays = 'B'\nconfig = 'pendulum.toml'\nset = ['max_env_steps=7']\n"
        "[c]\nsays = 'C'\nconfig = 'pendulum.toml'\nbeside = 'b'\n"
    )
    studies, evaluation = control.all_studies(file)
    assert evaluation == "it"
    assert [one.beside for one in studies] == ["a", "a", "b"]
    apps = [control.Task(one, 3, tmp_path / "x-3").config().app for one in studies]
    assert [app.max_env_steps for app in apps] == [9, 7, 9]
    assert [app.seed for app in apps] == [3, 3, 3], "the seed is the run's"


@pytest.mark.parametrize("keys", ["beside = 'simpel'", ""])
def test_a_base_that_is_not_there_is_one_sentence(tmp_path, keys):
    file = tmp_path / "x.toml"
    file.write_text(f"[page]\nevaluation = 'it'\n[a]\nsays = 'A'\nconfig = 'pendulum.toml'\n{keys}\n")
    with pytest.raises(ConfigError, match=r"\[a\] beside is .*; without at_least it must be another run"):
        control.all_studies(file)
