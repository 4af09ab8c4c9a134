"""The algorithms on gymnasium's environments, several seeds each, against the figures of others.

    python tools/study/control.py --only td3-pendulum sac-pendulum
    python tools/study/control.py --jobs 2              # all: HalfCheetah and Hopper take hours each, on a core each
    python tools/study/control.py --jobs 0              # starts nothing: only the page, from the runs that are there
    python tools/study/control.py --studies tools/study/pong.toml --jobs 2 --seeds 1 --only norm_img std_only

The runs of TD3, SAC and DQN are in tools/study/control.toml, those of PPO in ppo.toml and pong.toml, Mario's in
mario.toml; pong_quick.toml tries each of Pong's ideas in half an hour. Each is the folder
train/control/<name>-<seed>, or train/ppo/...; one that is not finished goes on from its checkpoint and its replay
memory, and one that another process trains is left to it. At the end it writes docs/control.md or docs/ppo.md and the
picture, and says what is missing. Sections of the page that have a heading of their own are kept. The curves are in a
JSON file next to the page, too: a run that has ended on another machine is not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.config.toml import read_toml
from realm.errors import ConfigError
from realm.launch.rundir import living_pids, read_run
from tools import common
from tools.study import runs

STUDIES = Path(__file__).with_suffix(".toml")
LAST = 10  # evaluations that the final figure is the mean of


class Study(NamedTuple):
    """An algorithm on an environment: a table of control.toml, which says what each key is."""

    name: str
    says: str
    config: str
    measure: str = "last"
    at_least: float = float("nan")
    within: int = 0
    set: Sequence[str] = ()
    seeds: int = 3  # at most
    known: str = ""
    minutes: float = float("inf")
    statistic: str = ""
    beside: str = ""


class Point(NamedTuple):
    """One evaluation: env steps, minutes of training before it, the mean return of its episodes."""

    env_steps: int
    minutes: float
    score: float


class Curve(NamedTuple):
    """What a run has shown so far. ended: it has made its env steps, or its package has ended it."""

    points: list[Point]
    ended: bool


class Task(NamedTuple):
    study: Study
    seed: int
    folder: Path  # of the run

    def overrides(self) -> list[str]:
        place = [f"log_dir={self.folder.parent}", f"run_name={self.folder.name}", f"seed={self.seed}"]
        return [*self.study.set, *place]

    def config(self) -> RunConfig:
        return load_config(common.ROOT / "conf" / self.study.config, self.overrides())

    def command(self) -> list[str]:
        return common.start_command(common.ROOT / "conf" / self.study.config, self.overrides())


def all_studies(path: Path = STUDIES) -> tuple[list[Study], str]:
    """Those of a file, and what an evaluation of them is."""
    page = (tables := read_toml(path)[0]).pop("page", {})
    if not (evaluation := page.pop("evaluation", "")):
        raise ConfigError(f"{path}: [page] evaluation is missing; it must say what an evaluation is")
    over = tuple(page.pop("set", ()))
    studies = [Study(name, **{**page, **one, "set": (*over, *one.get("set", ()))}) for name, one in tables.items()]
    for one in studies:
        if one.beside not in tables and (one.beside or np.isnan(one.at_least)):
            raise ConfigError(f"{path}: [{one.name}] beside is {one.beside!r}; without at_least it must be another run")
    return studies, evaluation


def chosen(every: Sequence[Study], only: Sequence[str]) -> list[Study]:
    """Those that `only` names; without it, all."""
    known = {one.name for one in every}
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"--only: there is no {' '.join(unknown)}, there are {' '.join(sorted(known))}")
    return [one for one in every if not only or one.name in only]


# ---- what a run has reached ----


def read_curves(path: Path) -> dict[str, Curve]:
    """Run -> its curve, from control.json."""
    saved = json.loads(path.read_text()) if path.exists() else {}
    return {name: Curve([Point(*one) for one in run["points"]], run["ended"]) for name, run in saved.items()}


def write_curves(path: Path, curves: Mapping[str, Curve]) -> None:
    """A line for each run."""
    lines = []
    for name, curve in curves.items():
        points = [(one.env_steps, round(one.minutes, 2), round(one.score, 2)) for one in curve.points]
        lines.append(f"{json.dumps(name)}: {json.dumps({'ended': curve.ended, 'points': points})}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def curve_of(task: Task, known: Mapping[str, Curve]) -> Curve:
    """Of the run's folder; where there is none, the known one."""
    if not task.folder.exists():
        return known.get(task.folder.name, Curve([], False))
    run = read_run(task.folder)
    ended = run is not None and run.cause.startswith(("max_env_steps", "on_evaluation"))
    return Curve(points(task.folder, task.config().app.eval_every_steps, task.study.statistic), ended)


def points(run: Path, every: int, statistic: str = "") -> list[Point]:
    """The evaluations of a run, one for each `every` env steps. Those that a restart took back are left out."""
    path = run / "evaluations.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    begins: dict[int, int] = {}  # epoch -> the stretch of its first evaluation
    for line in lines:
        begins.setdefault(line["version"][0], line["env_steps"] // every)
    good: dict[int, Point] = {}
    minutes, began, now = 0.0, 0.0, 0
    for line in lines:
        (epoch, _), steps, time_s = line["version"], line["env_steps"], line.get("time", 0.0)
        if epoch != now:  # a new session of the run
            minutes, began, now = max((one.minutes for one in good.values()), default=0.0), time_s, epoch
        if all(steps // every < begin for later, begin in begins.items() if later > epoch):
            score = line["means"][statistic] if statistic else line["score"]
            good.setdefault(steps // every, Point(steps, minutes + (time_s - began) / 60, score))
    return list(good.values())


class Result(NamedTuple):
    """What became of a run. figure: None if it is not known yet."""

    task: Task
    points: list[Point]
    share: float  # of its env steps that are done
    figure: float | None
    passed: bool | None

    @property
    def cell(self) -> str:
        """The figure for the table."""
        if self.figure is None:
            best = f", best so far {max(one.score for one in self.points):,.0f}" if self.points else ""
            return f"*{self.share:.0%} done{best}*"
        if self.task.study.measure == "last":
            return f"{self.figure:,.0f} ({min(one.score for one in self.points[-LAST:]):,.0f})"
        minutes = next((one.minutes for one in self.points if one.env_steps == self.figure), 0.0)
        return f"{self.figure:,.0f} ({minutes:.1f} min)" if np.isfinite(self.figure) else "never"


def result(task: Task, curve: Curve) -> Result:
    study, app, found = task.study, task.config().app, curve.points
    share = found[-1].env_steps / app.max_env_steps if found else 0.0
    # the last evaluation is one interval before the end
    last = bool(found) and found[-1].env_steps >= app.max_env_steps - 2 * app.eval_every_steps
    stopped = bool(found) and study.measure == "first" and found[-1].score >= study.at_least
    done = curve.ended and (last or stopped)
    figure = passed = None
    if study.measure == "first":
        reached = next((one for one in found if one.score >= study.at_least), None)
        if reached or done:
            figure = float(reached.env_steps) if reached else np.inf
            passed = reached is not None and reached.env_steps <= study.within and reached.minutes <= study.minutes
    elif done:
        figure = statistics.fmean(one.score for one in found[-LAST:])
        passed = figure >= study.at_least
    return Result(task, found, 1.0 if done else share, figure, passed)


def _is_running(task: Task) -> bool:
    run = read_run(task.folder)
    return run is not None and bool(living_pids(run))


# ---- the page ----

HEAD = """# {title}

{algorithms} (`realm/zoo/`), in one process with one thread each where nothing else is said.
An evaluation is {evaluation}. *others*: what others report.
*last* is the mean of the last ten evaluations of a run, with the worst of them in brackets. *first* is the env steps,
and the minutes, until an evaluation reached the mark; later ones may be lower. Where another run is the mark, its curve
is grey, and its figure is the mean of its last ten evaluations until the same env steps.

"""
FOOT = """

In italics: unfinished runs, with which `tools/study/control.py` goes on. Studies that have not begun: {waiting}.
Hyper-parameters: `conf/` and `tools/study/{studies}`. Written by `tools/study/control.py` ({date}, {machine}).
Other work ran on the same cores, so minutes are upper bounds.
"""


def page(results: Sequence[Result], machine: dict[str, Any], studies: Path, evaluation: str, out: Path) -> str:
    names = list(dict.fromkeys(one.task.study.says.partition(",")[0] for one in results))
    algorithms = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    title = names[0] if names == [studies.stem.upper()] else studies.stem.replace("_", " ").capitalize()
    lines = [f"![The evaluations of all runs against env steps]({out.with_suffix('.png').name})\n"]
    lines += ["| what | mark | each seed | mean | others | reached |", "|---|---|---|---:|---|---|"]
    waiting = 0  # studies of which no run has an evaluation
    for study in dict.fromkeys(one.task.study for one in results):
        seeds = [one for one in results if one.task.study is study]
        if not any(one.points for one in seeds):
            waiting += 1
            continue
        figures = [one.figure for one in seeds if one.figure is not None and np.isfinite(one.figure)]
        mark = mark_beside(study, seeds, results) if np.isnan(study.at_least) else f"at least {study.at_least:,g}"
        mark += f" within {study.within:,}" if study.within else ""
        mark += f" and {study.minutes:g} min" if np.isfinite(study.minutes) else ""
        mean = f"{statistics.fmean(figures):,.0f}" if len(figures) == len(seeds) else "-"
        lines.append(
            f"| {study.says} | {study.measure}: {mark} | {' / '.join(one.cell for one in seeds)} | {mean} "
            f"| {study.known or '-'} | {verdict(study, seeds)} |"
        )
    lines = lines if len(lines) > 3 else ["No run has an evaluation yet."]
    foot = FOOT.format(waiting=waiting, studies=studies.name, **machine)
    return HEAD.format(title=title, algorithms=algorithms, evaluation=evaluation) + "\n".join(lines) + foot


def by_hand(out: Path) -> str:
    """The sections of the page that was there: these are not written here."""
    text = out.read_text() if out.exists() else ""
    return text[text.index("\n## ") :] if "\n## " in text else ""


def base_of(seeds: Sequence[Result], results: Sequence[Result]) -> tuple[list[Result], float]:
    """The runs that these of one study are laid beside, and the env steps until which they are."""
    task = seeds[0].task
    until = max(one.points[-1].env_steps for one in seeds if one.points) + task.config().app.eval_every_steps / 2
    return [one for one in results if one.task.study.name == task.study.beside and one.points], until


def mark_beside(study: Study, seeds: Sequence[Result], results: Sequence[Result]) -> str:
    """What the study that this one is laid beside has shown in its last evaluations until the same env steps."""
    (base, until), every = base_of(seeds, results), seeds[0].task.config().app.eval_every_steps
    runs = [one.points for one in base if one.points[-1].env_steps + every > until]
    far = [[one.score for one in points if one.env_steps < until] for points in runs]
    known = f" has {statistics.fmean(statistics.fmean(one[-LAST:]) for one in far):,.0f}" if far else ""
    return f"`{study.beside}`{known}"


def verdict(study: Study, seeds: Sequence[Result]) -> str:
    """Of a study: a mean is judged where the mark is one of a mean, else each seed."""
    if np.isnan(study.at_least):
        return "-"
    known = [one for one in seeds if one.figure is not None]
    if len(known) < len(seeds):
        return "not known yet"
    if study.measure == "last":
        return "yes" if statistics.fmean(one.figure or 0.0 for one in known) >= study.at_least else "no"
    passed = sum(bool(one.passed) for one in known)
    return "yes" if passed == len(known) else f"{passed} of {len(known)}"


def draw(results: Sequence[Result], out: Path) -> None:
    """A picture with a plot for each study that has curves, and a line for each run."""
    from matplotlib.figure import Figure  # late: only pictures need them
    from PIL import Image

    studies = list(dict.fromkeys(one.task.study for one in results if one.points))
    columns = min(3, max(1, len(studies)) if len(studies) != 4 else 2)
    rows = max(1, -(-len(studies) // columns))
    figure = Figure((4.4 * columns, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(studies) :]:
        axis.remove()
    for study, axis in zip(studies, axes.flat, strict=False):
        own = [one for one in results if one.task.study == study and one.points]
        base, until = base_of(own, results)
        for one in (*base, *own):
            curve = np.array([(point.env_steps, point.score) for point in one.points if point.env_steps < until])
            axis.plot(curve[:, 0] / 1000, curve[:, 1], color="C7" if one in base else "C0", linewidth=1.1)
        axis.axhline(study.at_least, color="black", linestyle="--", linewidth=0.9)
        axis.set_title(textwrap.fill(study.says, 44), fontsize=12)
        axis.set_xlabel("thousand env steps", fontsize=11)
        axis.tick_params(labelsize=11)
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)
    Image.open(out).convert("RGB").quantize(64).save(out, optimize=True)  # a third of the bytes


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=Path, default=STUDIES, metavar="FILE", help="the runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names of these")
    parser.add_argument("--seeds", type=int, nargs="+", choices=(1, 2, 3), default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, choices=range(33), metavar="N", default=1, help="at once; 0 starts none")
    parser.add_argument("--folder", type=Path, help="where the runs are (default: train/<name of --studies>)")
    parser.add_argument("--out", type=Path, help="the page (default: docs/<name of --studies>.md)")
    args = parser.parse_args()
    args.folder = args.folder or Path("train") / args.studies.stem
    args.out = args.out or common.ROOT / "docs" / f"{args.studies.stem}.md"
    return args


def main() -> None:
    args = arguments()
    common.end_in_order()
    common.check_out(args.out)
    every, evaluation = all_studies(args.studies)
    folder, saved = args.folder.absolute(), args.out.with_suffix(".json")
    known = read_curves(saved)
    tasks = [
        Task(one, seed, folder / f"{one.name}-{seed}") for seed in args.seeds for one in every if seed <= one.seeds
    ]
    failed: list[str] = []
    if args.jobs:
        wanted = chosen(every, args.only)
        todo = [
            one
            for one in tasks
            if one.study in wanted and not _is_running(one) and result(one, curve_of(one, known)).share < 1
        ]
        for task in todo:
            runs.refuse_other_setting(task.folder, task.config())
        print(f"{len(todo)} runs: {' '.join(one.folder.name for one in todo)}", flush=True)
        try:
            codes = common.run_processes([one.command() for one in todo], args.jobs)
        except KeyboardInterrupt:
            sys.exit("\nstopped; the same command goes on")
        failed = [f"{one.folder} (exit code {code})" for one, code in zip(todo, codes, strict=True) if code]
    known |= {one.folder.name: curve_of(one, known) for one in tasks}
    write_curves(saved, {name: one for name, one in known.items() if one.points})
    results = [result(one, known[one.folder.name]) for one in tasks]
    args.out.write_text(page(results, common.about(), args.studies, evaluation, args.out) + by_hand(args.out))
    if any(one.points for one in results):
        draw(results, args.out.with_suffix(".png"))
    for one in results:
        if one.figure is None or one.share < 1:
            running = ", it runs now" if _is_running(one.task) else ""
            print(f"missing: {one.task.folder.name}, {one.share:.0%} done{running}")
    print(args.out)
    if failed:
        sys.exit(f"error: these ended before their time: {', '.join(failed)}")


if __name__ == "__main__":
    common.command_line(main)
