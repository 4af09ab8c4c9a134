"""Judges the default configuration: how soon its models are good, and how good the last one is.

    python tools/study/judge.py --seeds 1 2 3 --minutes 60 --out train/judge.json
    python tools/study/judge.py --out train/judge-local.json --set wrapper_type=local

Each seed has a run from scratch (train/<name of --out>-<seed>) with a checkpoint every few updates. Its models play all
715 layouts of nine treasures with greedy actions, to find the first one whose mean regret is at most 32 points (and 5):
models at evenly growing numbers of env steps play, and between the first good one and the one before it every model.
The last model plays with sampled actions, too, and all 8 192 sets of treasures. Regret is against the oracle's own
play, and against its bound, which nobody can beat. The first time, the oracle plays for some minutes.

Everything is in the JSON as soon as it is known. The same command goes on where it was stopped: a half-trained run is
resumed, a finished one is not trained again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import load_config
from realm.errors import ConfigError
from realm.launch.rundir import read_run
from tools import common
from tools.study import runs

LIMITS = (32.0, 5.0)  # points of mean regret
KEPT = 10_000  # checkpoints: all

Results = dict[str, Any]
"""{about, setup, seeds: {"1": {training, models: {name: figures}, reached, end}}}"""


class Model(NamedTuple):
    path: Path
    env_steps: int
    minutes: float


# ---- the search ----


def spread(env_steps: Sequence[int], number: int) -> list[int]:
    """Indices of `number` models at evenly growing env steps, with the first and the last."""
    last = len(env_steps) - 1
    if last < 1 or number >= len(env_steps):
        return list(range(len(env_steps)))
    wanted = np.geomspace(env_steps[1], env_steps[last], max(2, number - 1))
    nearest = np.abs(np.asarray(env_steps)[None, :] - wanted[:, None]).argmin(1)
    return sorted({0, *map(int, nearest), last})


def first_at_most(regret: Callable[[int], float], grid: Sequence[int], limit: float) -> int | None:
    """The first model of the grid with at most that regret, or the first good one after the grid's model before it."""
    before = -1
    for i in grid:
        if regret(i) <= limit:
            return next(k for k in range(before + 1, i + 1) if regret(k) <= limit)
        before = i
    return None


def judge_seed(entry: dict[str, Any], seed: int, work: Any, save: Callable[[], None], grid: int) -> None:
    """Fill `entry` with what it lacks. work: a `Cluster`."""
    if "training" not in entry:
        entry["training"] = work.train(seed)
        save()
    models = work.models(seed)
    played, end = (entry.setdefault(kind, {}) for kind in ("models", "end"))
    begin, before = time.monotonic(), len(played)

    def regret(i: int) -> float:
        model = models[i]
        if model.path.name not in played:
            figures = work.play(seed, model, "greedy")
            played[model.path.name] = {"env_steps": model.env_steps, "minutes": model.minutes, **figures}
            save()
            each = (time.monotonic() - begin) / (len(played) - before)
            left = max(0, len(at) - len(played)) * each / 60
            print(
                f"seed {seed}: {model.env_steps:,} env steps: mean regret {figures['regret']:.2f} "
                f"({len(played)} played, about {left:.0f} min for the rest of the first {len(at)})",
                flush=True,
            )
        value: float = played[model.path.name]["regret"]
        return value

    at = spread([one.env_steps for one in models], grid)
    for i in at:
        regret(i)
    entry["reached"] = {}
    for limit in LIMITS:
        k = first_at_most(regret, at, limit)
        reached = None if k is None else {"env_steps": models[k].env_steps, "minutes": models[k].minutes}
        entry["reached"][f"{limit:g}"] = reached
    for how in ("greedy", "sampled", "sets"):
        if how not in end:
            print(f"seed {seed}: the last model, {how} ...", flush=True)
            end[how] = work.play(seed, models[-1], how)
            save()
    save()


class Cluster:
    """Trains and plays on this machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._examiner: tuple[int, runs.Examiner] | None = None

    def run(self, seed: int) -> Path:
        out: Path = self._args.out
        return out.parent.absolute() / f"{out.stem}-{seed}"

    def check(self, seed: int) -> None:
        """Refuse what cannot be done, before anything is."""
        config = load_config(self._args.config, self._overrides(seed))
        runs.check_judged(config)
        runs.refuse_other_setting(self.run(seed), config)

    def _overrides(self, seed: int) -> list[str]:
        args, run = self._args, self.run(seed)
        return [
            *(f"dump_model_freq={args.checkpoint_every}", f"modelpool_max_save_model_count={KEPT}", *args.set),
            *(f"log_dir={run.parent}", f"run_name={run.name}", f"seed={seed}"),
        ]

    def train(self, seed: int) -> dict[str, Any]:
        """Train, or go on with, the run of a seed, until it has had its minutes."""
        args, run, overrides = self._args, self.run(seed), self._overrides(seed)
        if not self._is_over(run):
            left = max(5.0, 60 * (args.minutes - self._trained(run)["minutes"]))
            print(f"seed {seed}: {run}, {left / 60:.1f} min to train ...", flush=True)
            command = common.start_command(args.config, [*overrides, f"max_seconds={left}"])
            code = common.run_process(command)
            if code != 0 or not self._is_over(run):
                raise ConfigError(f"{run} has ended too early (exit code {code}); the same command goes on with it")
        return {"run": str(run), **self._trained(run), "commit": common.commit()}

    def _trained(self, run: Path) -> dict[str, Any]:
        clock = self._clock(run)
        env_steps = int(clock.env_steps[-1]) if len(clock.env_steps) else 0
        return {"env_steps": env_steps, "minutes": common.minutes_at(clock, env_steps)}

    def _clock(self, run: Path) -> common.Curve:
        return common.read_curves(run).get(common.CLOCK, common.NO_CURVE)

    def _is_over(self, run: Path) -> bool:
        known = read_run(run)
        if known is None or known.state != "stopped":
            return False
        return known.cause.startswith(("max_seconds", "max_env_steps"))

    def models(self, seed: int) -> list[Model]:
        run = self.run(seed)
        clock, saved = self._clock(run), runs.saved_models(run / "ckpt")
        if not saved:
            raise ConfigError(f"{run / 'ckpt'}: the models of this run are gone, so they cannot play")
        return [Model(one.path, one.env_steps, common.minutes_at(clock, one.env_steps)) for one in saved]

    def play(self, seed: int, model: Model, how: str) -> dict[str, Any]:
        """how: greedy or sampled actions on the layouts of nine treasures, or `sets`."""
        if self._examiner is None or self._examiner[0] != seed:
            self._examiner = (seed, runs.Examiner(self.run(seed)))
        examiner = self._examiner[1]
        return examiner.sets(model.path) if how == "sets" else examiner.nine(model.path, float(how == "sampled"))


# ---- table and picture ----


def table(results: Results) -> str:
    """Markdown: a line for each measure, a column for each seed that is judged."""
    seeds = {seed: entry for seed, entry in results["seeds"].items() if "sets" in entry.get("end", {})}
    lines = ["| |" + "".join(f" seed {seed} |" for seed in seeds), "|---|" + "---:|" * len(seeds)]

    def add(name: str, value: Callable[[dict[str, Any]], Any], form: str, none: str = "-") -> None:
        cells = (common.number(value(entry), form, none) for entry in seeds.values())
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))

    for limit in (f"{one:g}" for one in LIMITS):
        for key, name, form in (
            ("env_steps", f"mean regret at most {limit}: env steps", ","),
            ("minutes", "... minutes", ".1f"),
        ):
            add(name, lambda entry, at=limit, key=key: (entry["reached"].get(at) or {}).get(key), form, "not")
    for how in ("greedy", "sampled"):
        for key, name, form in (
            ("regret", f"at the end, {how} actions: mean regret", ".2f"),
            ("worst_regret", "... worst regret", ".1f"),
            ("missed", "... treasures missed", ""),
        ):
            add(name, lambda entry, how=how, key=key: entry["end"][how][key], form)
        add("... mean regret against the bound", lambda entry, how=how: entry["end"][how]["bound"]["regret"], ".2f")
    add("all 8 192 sets: mean regret against the bound", lambda entry: entry["end"]["sets"]["bound"]["regret"], ".2f")
    add("... nothing left behind, %", lambda entry: 100 * entry["end"]["sets"]["bound"]["whole"], ".2f")
    add("env steps trained", lambda entry: entry["training"]["env_steps"], ",")
    add("minutes, with the start", lambda entry: entry["training"]["minutes"], ".1f")
    return "\n".join(lines)


def draw(results: Results, out: Path) -> None:
    """Regret over env steps, a line for each seed."""
    from matplotlib.figure import Figure  # late: only pictures need it

    figure = Figure((8, 4.5), layout="constrained")
    axes = figure.subplots()
    for seed, entry in results["seeds"].items():
        if models := sorted(entry.get("models", {}).values(), key=lambda one: one["env_steps"]):
            steps, regret = (np.array([one[key] for one in models]) for key in ("env_steps", "regret"))
            axes.plot(steps / 1e6, np.maximum(regret, 0.1), label=f"seed {seed}")
    for limit in LIMITS:
        axes.axhline(limit, color="black", linestyle="--", linewidth=0.8)
        axes.annotate(f"{limit:g}", (0, limit), xytext=(3, 3), textcoords="offset points", fontsize=8)
    axes.set(yscale="log", xlabel="million env steps", ylabel="mean regret, points (715 layouts, greedy actions)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(out, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, for each seed")
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the run, repeatable")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="UPDATES")
    parser.add_argument("--grid", type=int, default=24, help="models of each seed that play in any case")
    parser.add_argument("--out", type=Path, default=Path("train/judge.json"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    common.end_in_order()
    args.config = args.config.absolute()
    setup = {
        "config": args.config.name, "set": args.set, "minutes": args.minutes, "checkpoint_every": args.checkpoint_every,
        "grid": args.grid,
    }  # fmt: skip
    common.check_out(args.out)
    results = common.open_results(args.out, setup, "seeds")
    work, picture = Cluster(args), args.out.with_suffix(".png")
    for seed in args.seeds:
        work.check(seed)
    for seed in args.seeds:
        entry = results["seeds"].setdefault(str(seed), {})
        try:
            judge_seed(entry, seed, work, lambda: common.write_json(args.out, results), args.grid)
        except KeyboardInterrupt:
            sys.exit("\nstopped; the same command goes on")
        draw(results, picture)
        print(f"\n{table(results)}\n", flush=True)
    known = results["about"]
    print(f"{known['date']}, {known['machine']}, {known['commit']}: {known['command']}\n{args.out}\n{picture}")


if __name__ == "__main__":
    common.command_line(main)
