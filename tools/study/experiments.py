"""Ablations: the default configuration with one change at a time, all with the same env steps, several seeds each.

    python tools/study/experiments.py --env-steps 3e6 --seeds 1 2
    python tools/study/experiments.py --only gae lag shared-trunk
    python tools/study/experiments.py --list

The changes are in tools/study/experiments.toml. Each run is the folder train/experiments/<name>-<seed>, in one process
where the change allows it and a cluster where it is about one. Then its last model plays all 715 layouts of nine
treasures. Results are in the JSON as soon as a run is finished; the same command goes on where it was stopped. At the
end: a table in Markdown, for docs/experiments.md. tools/study/plot_curve.py draws the runs' curves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import load_config
from realm.config.toml import read_toml
from realm.errors import ConfigError
from realm.user import hyper_of
from tools import common
from tools.study import runs

CHANGES = Path(__file__).with_suffix(".toml")
COMMON = ("wrapper_type=local", "eval_cpu_share=0", "dump_model_freq=50", "modelpool_max_save_model_count=2")
SCORE, LAG = "episode/score", "learner/policy_lag_updates"
LAST_SHARE = 0.1  # of a run: what its score at the end is the mean of

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


def all_changes() -> tuple[dict[str, str], list[Change]]:
    """Titles of the groups, and every change of experiments.toml."""
    groups = read_toml(CHANGES)[0]
    titles = {group: table.pop("title") for group, table in groups.items()}
    return titles, [
        Change(group, name, says, tuple(settings))
        for group, table in groups.items()
        for name, (says, *settings) in table.items()
    ]


def meaning(config: Path, overrides: Sequence[str]) -> tuple[Any, ...]:
    """What a run would be here: equal for two configurations that train alike. Raises ConfigError."""
    loaded = load_config(config, overrides)
    plan = common.plan_of(loaded.app)
    return plan, hyper_of(loaded), loaded.env, loaded.app.wrapper_type


def changes(config: Path, settings: Sequence[str]) -> list[Change]:
    """The default and every change from it; one that is the default's own is left out."""
    default = meaning(config, settings)
    return [DEFAULT, *(one for one in all_changes()[1] if meaning(config, [*settings, *one.settings]) != default)]


def chosen(every: Sequence[Change], only: Sequence[str]) -> list[Change]:
    """The default and what `only` asks for by group or by name; without it, all."""
    known = {word for one in every for word in (one.group, one.name)}
    if unknown := [word for word in only if word not in known]:
        raise ConfigError(f"--only: no group or change {' '.join(unknown)} here, there are {' '.join(sorted(known))}")
    return [one for one in every if not only or one is DEFAULT or one.group in only or one.name in only]


# ---- running them ----


def run_all(
    tasks: Sequence[Task], results: Results, runner: Callable[[Task], dict[str, Any]], save: Callable[[], None]
) -> list[str]:
    """Run what is not in the results yet; the names of those that failed, each with its error."""
    failed: list[str] = []
    todo, began = [task for task in tasks if task.name not in results["runs"]], time.monotonic()
    for done, task in enumerate(todo):
        left = f"about {(len(todo) - done) * (time.monotonic() - began) / done / 60:.0f}" if done else "unknown"
        print(f"run {done + 1} of {len(todo)}, {task.name}: {task.change.says}; {left} min left", flush=True)
        try:
            figures = runner(task)
        except RuntimeError as error:
            failed.append(f"{task.name}: {error}")
            continue
        one = task.change
        known = {"group": one.group, "name": one.name, "says": one.says, "change": list(one.settings)}
        results["runs"][task.name] = {**known, "seed": task.seed, **figures}
        save()
    return failed


class Runner:
    """Trains one task, and lets its model play."""

    def __init__(self, args: argparse.Namespace, settings: Sequence[str]) -> None:
        self._args, self._settings = args, settings
        self._folder: Path = args.out.parent.absolute()

    def _overrides(self, task: Task) -> list[str]:
        place = [f"log_dir={self._folder}", f"run_name={task.name}", f"seed={task.seed}"]
        return [*self._settings, *task.change.settings, *place, f"max_env_steps={int(self._args.env_steps)}"]

    def check(self, task: Task) -> None:
        """Refuse a folder of that name of another configuration."""
        runs.refuse_other_setting(self._folder / task.name, load_config(self._args.config, self._overrides(task)))

    def __call__(self, task: Task) -> dict[str, Any]:
        run = self._folder / task.name
        if code := common.run_process(common.start_command(self._args.config, self._overrides(task))):
            raise RuntimeError(f"exit code {code}, see {run}")
        examiner, model = runs.Examiner(run), runs.saved_models(run / "ckpt")[-1].path
        played = {"greedy": examiner.nine(model), "sampled": examiner.nine(model, 1.0)}
        return {**summary(run), **played, "commit": common.commit()}


def summary(run: Path) -> dict[str, Any]:
    """Of a run: its rate, its lag, and its score at the end."""
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
    }


# ---- the table ----

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
    titles = {"default": "default", **all_changes()[0]}
    lines = [f"| | change | {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * len(COLUMNS)]
    every = sorted(results["runs"].values(), key=lambda one: one["seed"])
    for group, title in titles.items():
        of_group = [one for one in every if one["group"] == group]
        for name in dict.fromkeys(one["name"] for one in of_group):
            seeds = [one for one in of_group if one["name"] == name]
            cells = [title, seeds[0]["says"]]
            for form, value in COLUMNS.values():
                cells.append(" / ".join(common.number(value(one), form) for one in seeds))
            lines.append("| " + " | ".join(cells) + " |")
    about, setup = results["about"], results["setup"]
    commits = ", ".join(sorted({one["commit"] for one in every}))
    return "\n".join(lines) + (
        f"\n\n`{about['command']}`, {about['date']}, {about['machine']}; {setup['env_steps']:,} env steps "
        f"each, commit {commits}."
    )


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=float, default=3e6, help="of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="groups or names of --list")
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, repeatable")
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


def main() -> None:
    args = arguments()
    common.end_in_order()
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
    try:
        failed = run_all(tasks, results, runner, lambda: common.write_json(args.out, results))
    except KeyboardInterrupt:
        sys.exit("\nstopped; the same command goes on")
    print(f"\n{table(results)}\n\n{args.out}")
    if failed:
        sys.exit("error: " + "\n".join(failed))


if __name__ == "__main__":
    common.command_line(main)
