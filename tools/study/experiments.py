"""Ablations: the default configuration with one change at a time, all with the same env steps, several seeds each.

    python tools/study/experiments.py --env-steps 3e6 --seeds 1 2
    python tools/study/experiments.py --only gae lag shared-trunk
    python tools/study/experiments.py --list

Each run is the folder train/experiments/<name>-<seed>. Runs go side by side, one on each core of `--cores`, in one
process where the change allows it and as a cluster where it is about one. Then the last model plays all 715 layouts of
nine treasures. Results are in the JSON as soon as a run is finished; the same command goes on where it was stopped. At
the end: a table in Markdown and a picture with a panel for each group, for docs/experiments.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.config.plan import Machine, make_plan
from realm.errors import ConfigError
from realm.user import load_hyper
from tools import common
from tools.study import runs

COMMON = ("wrapper_type=local", "eval_cpu_share=0", "dump_model_freq=50", "modelpool_max_save_model_count=2")
SCORE, LAG = "episode/score", "learner/policy_lag_updates"
POINTS = 200  # of a curve in the JSON
LAST_SHARE = 0.1  # of a run: what its score at the end is the mean of
LIVE_LINE = re.compile(r"env steps ([\d,]+) \| steps/s ([\d,]+)")

Results = dict[str, Any]
"""{about, setup, runs: {"lam-0-1": {group, name, says, seed, change, ...}}}"""


class Change(NamedTuple):
    """One change of the default."""

    group: str
    name: str  # of the run's folder
    says: str
    settings: tuple[str, ...]  # key=value


class Task(NamedTuple):
    change: Change
    seed: int

    @property
    def name(self) -> str:
        return f"{self.change.name}-{self.seed}"


DEFAULT = Change("default", "default", "as it is", ())
GROUPS = {
    "gae": "returns (GAE)",
    "normalise": "advantage normalisation",
    "scale": "reward scale",
    "value": "values in GAE",
    "lag": "policy lag (cluster)",
    "reuse": "passes over a batch",
    "sampler": "sampler",
    "objective": "objective",
    "network": "network and shaping",
    "precision": "precision",
}

NORMALISE = ("none", "std", "mean_std")
ONE_CORE = Machine(cores=1, gpus=0, has_reverb=True)


def all_changes(reward_scale: float, batch: int) -> list[Change]:
    """Every change. reward_scale: the default's; batch: samples of one update, one round."""

    def lag(updates: int) -> tuple[str, ...]:
        """Workers begin so many updates ahead, and the buffer has the room for it."""
        room, ahead = (updates + 3) * batch, (updates + 1) * batch
        return ("wrapper_type=remote", f"replay_buffer_capacity={room}", f"preload_ratio={room / ahead:.6g}")

    def uniform(batches: int) -> tuple[str, ...]:
        """Drawn from so many batches; the first update is made of the first batch, as everywhere."""
        way = ("algorithm_on_policy_or_off_policy=off-policy", "reverb_sampler=Uniform")
        return (*way, f"replay_buffer_capacity={batches * batch}", f"preload_ratio={batches}")

    four, gae = ("max_version_lag=4", *lag(4)), 'diy.advantage="gae"'
    return [
        Change("gae", "gae", "GAE, not V-trace", (gae,)),
        Change("gae", "lam-0", "lambda 0: one step, then the critic", ("diy.lam=0.0",)),
        Change("gae", "lam-1", "lambda 1: all rewards to the chunk's end", ("diy.lam=1.0",)),
        *(Change("normalise", f"normalise-{how}", how, (f'diy.normalise_advantage="{how}"',)) for how in NORMALISE),
        Change("scale", "scale-0.1", "x 0.1", (f"diy.reward_scale={reward_scale * 0.1:.6g}",)),
        Change("scale", "scale-10", "x 10", (f"diy.reward_scale={reward_scale * 10:.6g}",)),
        Change("value", "value-actor", "of the actor, GAE", (gae, 'diy.value_source="actor"')),
        Change("lag", "lag-0", "0, strict", ("wrapper_type=remote", "max_version_lag=0")),
        Change("lag", "lag-1", "1", ("max_version_lag=1", *lag(1))),
        Change("lag", "lag-4", "4, V-trace", four),
        Change("lag", "lag-4-gae", "4, plain clip, GAE", (*four, gae)),
        Change("lag", "lag-4-decoupled", "4, decoupled, GAE", (*four, gae, "diy.decoupled=true")),
        Change("lag", "lag-free", "free, V-trace", ("max_version_lag=free", *lag(4))),
        *(Change("reuse", f"epochs-{n}", f"{n}", (f"diy.epochs={n}",)) for n in (1, 3, 10)),
        Change("sampler", "uniform-2", "Uniform from 2 batches", uniform(2)),
        Change("sampler", "uniform-32", "Uniform from 32 batches", uniform(32)),
        Change("objective", "clip-0.1", "clip 0.1", ("diy.clip=0.1",)),
        Change("objective", "clip-0.4", "clip 0.4", ("diy.clip=0.4",)),
        Change("objective", "value-clip", "value clip 0.2", ("diy.value_clip=0.2",)),
        Change("objective", "no-entropy", "no entropy bonus", ("diy.entropy_start=0.0", "diy.entropy_end=0.0")),
        Change("network", "hidden-128", "hidden 128", ("diy.hidden=128",)),
        Change("network", "hidden-256", "hidden 256", ("diy.hidden=256",)),
        Change("network", "hidden-512", "hidden 512", ("diy.hidden=512",)),
        Change("network", "shared-trunk", "one trunk for policy and critic", ("diy.shared_trunk=true",)),
        Change("network", "flash-share-0", "tours on foot in the reward", ("diy.flash_share=0.0",)),
        Change("network", "flash-share-1", "tours with a flash in the reward", ("diy.flash_share=1.0",)),
        Change("network", "no-shaping", "no reward for the way", ("diy.way_points=0.0",)),
        Change("precision", "fp32", "float32", ('diy.precision="fp32"',)),
    ]


def meaning(config: Path, overrides: Sequence[str]) -> tuple[Any, ...]:
    """What a run on one core would be: equal for two configurations that train alike. Raises ConfigError."""
    loaded: RunConfig = load_config(config, overrides)
    plan = dataclasses.replace(make_plan(loaded.app, ONE_CORE), why=())
    return plan, load_hyper(loaded.app.algo, loaded.hyper, loaded.places), loaded.env, loaded.app.wrapper_type


def changes(config: Path, common: Sequence[str]) -> list[Change]:
    """The default and every change from it; one that is the default's own is left out."""
    plan, hyper, _, _ = default = meaning(config, common)
    every = all_changes(hyper.reward_scale, plan.round_size)
    return [DEFAULT, *(one for one in every if meaning(config, [*common, *one.settings]) != default)]


# ---- running them ----


def run_all(
    tasks: Iterable[Task],
    results: Results,
    runner: Callable[[Task, int], dict[str, Any]],
    cores: Sequence[int],
    save: Callable[[], None],
    watch: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run what is not in the results yet, a thread for each core; the names of those that failed, each with its error.

    watch: is called about once a second, in the caller's thread.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        if task.name not in results["runs"]:
            waiting.put(task)
    failed: list[str] = []
    lock = threading.Lock()

    def work(core: int) -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                figures = runner(task, core)
            except KeyboardInterrupt:
                return
            except Exception as error:
                failed.append(f"{task.name}: {error}")
                continue
            with lock:
                one = task.change
                known = {"group": one.group, "name": one.name, "says": one.says, "change": list(one.settings)}
                results["runs"][task.name] = {**known, "seed": task.seed, **figures}
                save()

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for one in threads:
        one.start()
    for one in threads:
        while one.is_alive():
            one.join(1.0)
            watch()
    return failed


class Runner:
    """Trains and plays one task, in processes on one core."""

    def __init__(self, args: argparse.Namespace, common_settings: Sequence[str]) -> None:
        self._args, self._common = args, common_settings
        self.folder: Path = args.out.parent.absolute()
        self.stop = threading.Event()
        self.active: dict[str, Path] = {}  # name -> log of those that run now

    def overrides(self, task: Task) -> list[str]:
        place = [f"log_dir={self.folder}", f"run_name={task.name}", f"seed={task.seed}"]
        return [*self._common, *task.change.settings, *place, f"max_env_steps={int(self._args.env_steps)}"]

    def check(self, task: Task) -> None:
        """Refuse a folder of that name of another configuration."""
        runs.refuse_other_setting(self.folder / task.name, load_config(self._args.config, self.overrides(task)))

    def __call__(self, task: Task, core: int) -> dict[str, Any]:
        run, log = self.folder / task.name, self.folder / f"{task.name}.log"
        self.active[task.name] = log
        try:
            command = common.start_command(self._args.config, self.overrides(task))
            if code := common.run_process(command, log, core, self.stop):
                raise RuntimeError(f"exit code {code}, see {log}")
            with tempfile.TemporaryDirectory() as scratch:
                answer = Path(scratch) / "answer"
                command = [sys.executable, str(Path(runs.__file__)), str(run), "--explore", "0", "1"]
                if common.run_process(command, answer, core, self.stop) != 0:
                    raise RuntimeError(f"its model could not be played: {answer.read_text()[-500:]}")
                played = json.loads(answer.read_text().splitlines()[-1])["explore"]
        finally:
            self.active.pop(task.name, None)
        return {**summary(run), "greedy": played["0"], "sampled": played["1"], "commit": common.commit()}

    def line(self, done: int, of: int, began: float) -> str:
        """How far it is. done: of the tasks that this command has started, as `of`."""
        steps = {name: progress(log) for name, log in sorted(self.active.items())}
        share = done + sum(made for made, _ in steps.values()) / self._args.env_steps
        minutes = (time.monotonic() - began) / 60
        left = f"about {(of - share) * minutes / share:.0f} min left" if share else "time left unknown yet"
        running = ", ".join(f"{name} {made / 1e6:.2f} M ({rate:,.0f}/s)" for name, (made, rate) in steps.items())
        return f"{done} of {of} runs done; {running}; {left}"


def progress(log: Path) -> tuple[int, float]:
    """Env steps and env steps/s of the last live line in a log; 0 before there is one."""
    if not log.exists():
        return 0, 0.0
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = LIVE_LINE.findall(file.read().decode(errors="replace"))
    return (int(lines[-1][0].replace(",", "")), float(lines[-1][1].replace(",", ""))) if lines else (0, 0.0)


def summary(run: Path) -> dict[str, Any]:
    """The score's curve of a run, thinned out, and its mean at the end; rate and lag."""
    curves = common.read_curves(run)
    clock, score, lag = (curves.get(tag, common.NO_CURVE) for tag in (common.CLOCK, SCORE, LAG))
    steps = float(clock.env_steps[-1])
    end = score.value[score.env_steps >= (1 - LAST_SHARE) * steps]
    return {
        "env_steps": int(steps),
        "minutes": common.minutes_at(clock, steps),
        "steps_per_s": common.mean_rate(clock),
        "mean_lag": float(lag.value.mean()) if len(lag.value) else None,
        "last_score": float(end.mean()) if len(end) else None,
        "curve": thin(score.env_steps, score.value, POINTS),
    }


def thin(x: np.ndarray, y: np.ndarray, number: int) -> list[list[float]]:
    """Means of at most `number` pieces with equally many points: [x, y] of each."""
    pieces = np.array_split(np.arange(len(x)), max(1, min(number, len(x))))
    return [[round(float(x[i].mean()), 4), round(float(y[i].mean()), 4)] for i in pieces if len(i)]


# ---- table and picture ----

COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "regret": (".1f", lambda one: one["greedy"]["regret"]),
    "sampled": (".1f", lambda one: one["sampled"]["regret"]),
    "worst": (".0f", lambda one: one["greedy"]["worst_regret"]),
    "out of time": ("d", lambda one: one["greedy"]["time_outs"]),
    "missed": ("d", lambda one: one["greedy"]["missed"]),
    "steps above %": (".1f", lambda one: one["greedy"]["excess_percent"]),
    "last score": (".0f", lambda one: one["last_score"]),
    "lag": (".2f", lambda one: one["mean_lag"]),
    "steps/s": (",.0f", lambda one: one["steps_per_s"]),
}


def table(results: Results) -> str:
    """Markdown: a line for each change; the seeds' values with a stroke between them."""
    lines = [f"| | change | {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * len(COLUMNS)]
    every = sorted(results["runs"].values(), key=lambda one: one["seed"])
    for group in ["default", *GROUPS]:
        of_group = [one for one in every if one["group"] == group]
        for name in dict.fromkeys(one["name"] for one in of_group):
            seeds = [one for one in of_group if one["name"] == name]
            cells = [GROUPS.get(group, group), seeds[0]["says"]]
            for form, value in COLUMNS.values():
                cells.append(" / ".join(common.number(value(one), form) for one in seeds))
            lines.append("| " + " | ".join(cells) + " |")
    about, setup = results["about"], results["setup"]
    commits = ", ".join(sorted({one["commit"] for one in every}))
    return "\n".join(lines) + (
        f"\n\n`{about['command']}`, {about['date']}, {about['machine']}; each run on one core, {setup['env_steps']:,} env "
        f"steps, commit {commits}."
    )


def draw(results: Results, out: Path) -> None:
    """A panel for each group: thin lines for the seeds of each change, the default in grey."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    every = sorted(results["runs"].values(), key=lambda one: (one["seed"], one["name"]))
    groups = [group for group in GROUPS if any(one["group"] == group for one in every)]
    if not groups:
        return
    width = min(3, len(groups))
    height = -(-len(groups) // width)
    size = (4.2 * width, 3.1 * height)
    figure, panels = plt.subplots(
        height, width, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(groups) :]:
        panel.axis("off")
    for group, panel in zip(groups, panels.flat, strict=False):
        names = ["default", *dict.fromkeys(one["name"] for one in every if one["group"] == group)]
        colors = dict(zip(names, ["0.6", *(f"C{k}" for k in range(len(names)))], strict=False))
        said: set[str] = set()
        for one in (one for one in every if one["name"] in names):
            x, y = np.array(one["curve"]).reshape(-1, 2).T
            label = None if one["name"] in said else "default" if one["name"] == "default" else one["says"]
            said.add(one["name"])
            panel.plot(x / 1e6, y, color=colors[one["name"]], linewidth=1.0, label=label)
        panel.set_title(GROUPS[group], fontsize=10)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    for panel in panels[-1]:
        panel.set_xlabel("million env steps")
    for panel in panels[:, 0]:
        panel.set_ylabel("training score")
    figure.savefig(out, dpi=110)
    plt.close(figure)


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=float, default=3e6, help="of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=list(GROUPS), metavar="GROUP",
                        help=f"with the default; groups ({', '.join(GROUPS)}) or names of --list")  # fmt: skip
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, repeatable")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0))[:2], metavar="CORE")
    parser.add_argument("--out", type=Path, default=Path("train/experiments/experiments.json"))
    parser.add_argument("--list", action="store_true", help="say what would run, and end")
    return parser.parse_args()


def open_results(out: Path, setup: dict[str, Any], tasks: Sequence[Task]) -> Results:
    """Read the results to go on with; refuse those that were asked for in another way."""
    results: Results = common.open_results(out, setup, "runs")
    for task in tasks:
        known, now = results["runs"].get(task.name), list(task.change.settings)
        if known and known["change"] != now:
            raise ConfigError(f"{out}: {task.name} was made with {known['change']}, now {now}; take another --out")
    return results


def chosen(every: Sequence[Change], only: Sequence[str]) -> list[Change]:
    """The default and what `only` asks for by group or by name."""
    known = {word for one in every for word in (one.group, one.name)} | set(GROUPS)
    if unknown := [word for word in only if word not in known]:
        raise ConfigError(f"--only: no group or change {' '.join(unknown)} here, there are {' '.join(sorted(known))}")
    return [one for one in every if one is DEFAULT or one.group in only or one.name in only]


def main() -> None:
    args = arguments()
    args.config = args.config.absolute()
    settings = [*COMMON, *args.set]
    some = chosen(changes(args.config, settings), args.only)
    tasks = [Task(one, seed) for seed in args.seeds for one in some]
    if args.list:
        for one in some:
            print(f"{one.group:10} {one.name:18} {' '.join(one.settings)}")
        print(f"{len(tasks)} runs")
        return
    setup = {"config": args.config.name, "set": args.set, "env_steps": int(args.env_steps)}
    common.check_out(args.out)
    runs.check_judged(load_config(args.config, settings))
    results = open_results(args.out, setup, tasks)
    runner = Runner(args, settings)
    for task in tasks:
        runner.check(task)

    def interrupt(number: int, frame: Any) -> None:
        if not runner.stop.is_set():
            print("\nstopping the runs in order; the same command goes on with them", flush=True)
        runner.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    shown, began, before = common.Progress(), time.monotonic(), len(results["runs"])
    todo = sum(task.name not in results["runs"] for task in tasks)

    def watch() -> None:
        shown.show(runner.line(len(results["runs"]) - before, todo, began))

    failed = run_all(tasks, results, runner, args.cores, lambda: common.write_json(args.out, results), watch)
    picture = args.out.with_suffix(".png")
    draw(results, picture)
    shown.say(f"\n{table(results)}\n\n{args.out}\n{picture}")
    if failed:
        sys.exit("error: " + "\n".join(failed))
    if runner.stop.is_set():
        sys.exit(1)


if __name__ == "__main__":
    common.command_line(main)
