"""Ablations: the default configuration with one change at a time, all with the same env steps, several seeds each.

    python tools/experiments.py --env-steps 3e6 --seeds 1 2
    python tools/experiments.py --only gae lag shared-trunk
    python tools/experiments.py --list

Each run is the folder train/experiments/<name>-<seed>. Runs go side by side, one on each core of `--cores`, in one
process where the change allows it and as a cluster where it is about one. Then the last model plays all 715 layouts of
nine treasures. Results stand in the JSON as soon as a run is finished; the same command goes on where it was stopped.
At the end: a table in Markdown and a picture with a panel for each group, for docs/experiments.md.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import RunConfig, load_config
from realm.config.plan import Machine, make_plan
from realm.errors import ConfigError
from realm.user import load_hyper
from tools import runs

COMMON = ("wrapper_type=local", "eval_cpu_share=0", "dump_model_freq=50", "modelpool_max_save_model_count=2")
CURVES = {"score": "episode/score", "length": "episode/length", "lag": "learner/policy_lag_updates"}
POINTS = 200  # of a curve in the JSON
LAST_SHARE = 0.1  # of a run: what its score at the end is the mean of
LIVE_LINE = re.compile(r"env steps ([\d,]+) \| steps/s ([\d,]+)")

Results = dict[str, Any]
"""{about, setup, runs: {"lam-0-1": {group, name, seed, change, ...}}}"""


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
    """Run what is not in the results yet, a lane for each core; the names of those that failed, each with its error.

    watch: is called about once a second, in the caller's thread.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        if task.name not in results["runs"]:
            waiting.put(task)
    failed: list[str] = []
    lock = threading.Lock()

    def lane(core: int) -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                found = runner(task, core)
            except KeyboardInterrupt:
                return
            except Exception as error:
                failed.append(f"{task.name}: {error}")
                continue
            with lock:
                one = task.change
                known = {"group": one.group, "name": one.name, "says": one.says, "change": list(one.settings)}
                results["runs"][task.name] = {**known, "seed": task.seed, **found}
                save()

    lanes = [threading.Thread(target=lane, args=(core,)) for core in cores]
    for one in lanes:
        one.start()
    for one in lanes:
        while one.is_alive():
            one.join(1.0)
            watch()
    return failed


class Runner:
    """Trains and plays one task, in processes on one core."""

    def __init__(self, args: argparse.Namespace, common: Sequence[str]) -> None:
        self._args, self._common = args, common
        self.folder: Path = args.out.parent.absolute()
        self.stop = threading.Event()
        self.active: dict[str, tuple[int, float]] = {}  # name -> (env steps, env steps/s) of those that run now

    def overrides(self, task: Task) -> list[str]:
        place = [f"log_dir={self.folder}", f"run_name={task.name}", f"seed={task.seed}"]
        return [*self._common, *task.change.settings, *place, f"max_env_steps={int(self._args.env_steps)}"]

    def check(self, task: Task) -> None:
        """Refuse a folder of that name of another configuration."""
        runs.refuse_other_setting(self.folder / task.name, load_config(self._args.config, self.overrides(task)))

    def __call__(self, task: Task, core: int) -> dict[str, Any]:
        run, log = self.folder / task.name, self.folder / f"{task.name}.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.active[task.name] = (0, 0.0)

        def look() -> None:
            self.active[task.name] = progress(log) or self.active[task.name]

        try:
            code = runs.run_process(
                runs.start_command(self._args.config, self.overrides(task)), log, core, self.stop, look
            )
            if code != 0:
                raise RuntimeError(f"exit code {code}, see {log}")
            self.active[task.name] = (int(self._args.env_steps), 0.0)  # it is played now
            with tempfile.TemporaryDirectory() as scratch:
                answer = Path(scratch) / "answer"
                command = [sys.executable, str(runs.ROOT / "tools" / "runs.py"), str(run), "--explore", "0", "1"]
                if runs.run_process(command, answer, core, self.stop) != 0:
                    raise RuntimeError(f"its model could not be played: {answer.read_text()[-500:]}")
                played = json.loads(answer.read_text().splitlines()[-1])["explore"]
        finally:
            self.active.pop(task.name, None)
        return {**summary(run), "best": played["0"], "drawn": played["1"], "commit": runs.commit()}


def progress(log: Path) -> tuple[int, float] | None:
    """Env steps and env steps/s of the last live line in a log."""
    if not log.exists():
        return None
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        found = LIVE_LINE.findall(file.read().decode(errors="replace"))
    return (int(found[-1][0].replace(",", "")), float(found[-1][1].replace(",", ""))) if found else None


def summary(run: Path) -> dict[str, Any]:
    """Curves of a run, thinned out, and what is left of them at its end."""
    curves = runs.read_curves(run, [runs.CLOCK, *CURVES.values()])
    clock = curves[runs.CLOCK]
    steps = float(clock.env_steps[-1])
    kept, last = {}, {}
    for name, tag in CURVES.items():
        curve = curves[tag]
        kept[name] = thin(curve.env_steps, curve.value, POINTS)
        end = curve.value[curve.env_steps >= (1 - LAST_SHARE) * steps]
        last[name] = float(end.mean()) if len(end) else None
    lag = curves[CURVES["lag"]].value
    return {
        "env_steps": int(steps),
        "minutes": runs.minutes_at(clock, steps),
        "steps_per_s": runs.mean_rate(clock),
        "mean_lag": float(lag.mean()) if len(lag) else None,
        "last": last,
        "curves": kept,
    }


def thin(x: np.ndarray, y: np.ndarray, number: int) -> list[list[float]]:
    """Means of at most so many parts with equally many points: [x, y] of each."""
    parts = np.array_split(np.arange(len(x)), max(1, min(number, len(x))))
    return [[round(float(x[i].mean()), 4), round(float(y[i].mean()), 4)] for i in parts if len(i)]


# ---- what is shown meanwhile ----


class Watch:
    """A line with progress, rate and remaining time."""

    def __init__(self, runner: Runner, tasks: Sequence[Task], results: Results, env_steps: float) -> None:
        self._runner, self._tasks, self._results, self._env_steps = runner, tasks, results, env_steps
        self._began = self._shown = time.monotonic()
        self._before = sum(one.name in results["runs"] for one in tasks)

    def __call__(self) -> None:
        now, tty = time.monotonic(), sys.stdout.isatty()
        if now - self._shown < (1 if tty else 30):
            return
        self._shown = now
        line = self.line(now - self._began)
        print(f"\r\x1b[K{line}" if tty else line, end="" if tty else "\n", flush=True)

    def line(self, seconds: float) -> str:
        active = dict(self._runner.active)
        done = sum(one.name in self._results["runs"] for one in self._tasks)
        steps = (done - self._before) * self._env_steps + sum(steps for steps, _ in active.values())
        left = (len(self._tasks) - self._before) * self._env_steps - steps
        remaining = f"about {clock(left * seconds / steps)} left" if steps else "time left unknown yet"
        running = ", ".join(f"{name} {n / 1e6:.2f} M ({rate:,.0f}/s)" for name, (n, rate) in sorted(active.items()))
        return f"{done} of {len(self._tasks)} runs done; {running}; {remaining}"


def clock(seconds: float) -> str:
    """h:mm."""
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d} h"


# ---- what comes out ----


def table(results: Results) -> str:
    """Markdown: a line for each change; the seeds' values with a stroke between them."""
    lines = [
        "| | change | regret | drawn | worst | out of time | missed | steps above % | last score | lag | steps/s |",
        "|---|---|" + "---:|" * 9,
    ]
    every = list(results["runs"].values())
    for group in ["default", *GROUPS]:
        of_group = [one for one in every if one["group"] == group]
        for name in dict.fromkeys(one["name"] for one in of_group):
            seeds = sorted((one for one in of_group if one["name"] == name), key=lambda one: one["seed"])
            cells = [GROUPS.get(group, group), seeds[0]["says"]]
            for form, value in COLUMNS:
                cells.append(" / ".join("-" if value(one) is None else format(value(one), form) for one in seeds))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


COLUMNS: Sequence[tuple[str, Callable[[dict[str, Any]], Any]]] = (
    (".1f", lambda one: one["best"]["regret"]),
    (".1f", lambda one: one["drawn"]["regret"]),
    (".0f", lambda one: one["best"]["worst_regret"]),
    ("d", lambda one: one["best"]["time_outs"]),
    ("d", lambda one: one["best"]["missed"]),
    (".1f", lambda one: one["best"]["excess_percent"]),
    (".0f", lambda one: one["last"]["score"]),
    (".2f", lambda one: one["mean_lag"]),
    (",.0f", lambda one: one["steps_per_s"]),
)


def caption(results: Results) -> str:
    """Where the table comes from."""
    about, setup = results["about"], results["setup"]
    commits = sorted({one["commit"] for one in results["runs"].values()})
    return (
        f"`{about['command']}`, {about['date']}, {about['machine']}; each run on one core, {setup['env_steps']:,} env "
        f"steps, commit {', '.join(commits)}."
    )


def draw(results: Results, out: Path, curve: str = "score") -> None:
    """A panel for each group: thin lines for the seeds of each change, the default in grey."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    every = list(results["runs"].values())
    groups = [group for group in GROUPS if any(one["group"] == group for one in every)]
    if not groups:
        return
    columns = min(3, len(groups))
    height = -(-len(groups) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(4.2 * columns, 3.1 * height), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel in panels.flat[len(groups) :]:
        panel.axis("off")
    for group, panel in zip(groups, panels.flat, strict=False):
        names = list(dict.fromkeys(one["name"] for one in every if one["group"] == group))
        for one in sorted(every, key=lambda one: one["seed"]):
            if one["group"] not in ("default", group):
                continue
            x, y = np.array(one["curves"][curve]).reshape(-1, 2).T
            grey = one["group"] == "default"
            color = "0.6" if grey else f"C{names.index(one['name'])}"
            first = not any(line.get_label() == one["says"] for line in panel.lines)
            label = ("default" if grey else one["says"]) if first else None
            if grey and any(line.get_label() == "default" for line in panel.lines):
                label = None
            panel.plot(x / 1e6, y, color=color, linewidth=1.0, label=label, zorder=1 if grey else 2)
        panel.set_title(GROUPS[group], fontsize=10)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    for panel in panels[-1]:
        panel.set_xlabel("million env steps")
    for panel in panels[:, 0]:
        panel.set_ylabel({"score": "training score", "length": "episode length"}.get(curve, curve))
    figure.savefig(out, dpi=110)
    plt.close(figure)


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=float, default=3e6, help="of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=list(GROUPS), metavar="GROUP",
                        help=f"with the default; groups ({', '.join(GROUPS)}) or names of --list")  # fmt: skip
    parser.add_argument("--config", type=Path, default=runs.ROOT / "conf" / "configure_app.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, repeatable")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0))[:2], metavar="CORE")
    parser.add_argument("--out", type=Path, default=Path("train/experiments/experiments.json"))
    parser.add_argument("--curve", choices=("score", "length"), default="score", help="what to draw")
    parser.add_argument("--list", action="store_true", help="say what would run, and end")
    return parser.parse_args()


def open_results(out: Path, setup: dict[str, Any], tasks: Sequence[Task]) -> Results:
    """What is known from before, which must have been asked for in the same way."""
    if not out.exists():
        return {"about": runs.about(), "setup": setup, "runs": {}}
    results: Results = runs.read_json(out, "runs")
    if results["setup"] != setup:
        raise ConfigError(f"{out} was made with {results['setup']}, now {setup}; take another --out")
    for task in tasks:
        known = results["runs"].get(task.name)
        if known and known["change"] != list(task.change.settings):
            raise ConfigError(
                f"{out}: {task.name} was made with {known['change']}, now {task.change.settings}; take another --out"
            )
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
    common = [*COMMON, *args.set]
    some = chosen(changes(args.config, common), args.only)
    tasks = [Task(one, seed) for seed in args.seeds for one in some]
    if args.list:
        for one in some:
            print(f"{one.group:10} {one.name:18} {' '.join(one.settings)}")
        print(f"{len(tasks)} runs")
        return
    setup = {"config": args.config.name, "set": args.set, "env_steps": int(args.env_steps)}
    runs.check_out(args.out)
    runs.check_judged(load_config(args.config, common))
    results = open_results(args.out, setup, tasks)
    runner = Runner(args, common)
    for task in tasks:
        runner.check(task)

    def interrupt(number: int, frame: Any) -> None:
        if not runner.stop.is_set():
            print("\nstopping the runs in order; the same command goes on with them", flush=True)
        runner.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    watch = Watch(runner, tasks, results, args.env_steps)
    failed = run_all(tasks, results, runner, args.cores, lambda: runs.write_json(args.out, results), watch)
    picture = args.out.with_suffix(".png")
    draw(results, picture, args.curve)
    print(f"\n\n{table(results)}\n\n{caption(results)}\n\n{args.out}\n{picture}")
    if failed:
        sys.exit("error: " + "\n".join(failed))
    if runner.stop.is_set():
        sys.exit(1)


if __name__ == "__main__":
    runs.command_line(main)
