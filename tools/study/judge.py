"""Judges the default configuration: how soon its models are good, and how good the last one is.

    python tools/judge.py --seeds 1 2 3 --minutes 60 --out train/judge.json
    python tools/judge.py --out train/judge-local.json --set wrapper_type=local --also train/judge.json

For each seed: the rate of tools/plain_ppo.py for 30 s; a run from scratch (train/<name of --out>-<seed>) with a
checkpoint every few updates; then its models on all 715 layouts of nine treasures, best actions. The first one whose
mean regret is at most 32 points (and 5) is looked for so: models at evenly growing numbers of env steps are played,
from the first to the last, and between the first good one and the one before it every model in sequence. The last one
of all is played with drawn actions, too, and on all 8 192 sets of treasures. Regret is against the oracle's own play,
and beside it against its bound, which no play can beat. The first time the oracle plays for some minutes; for all sets
it would be most of an hour, so there the bound alone counts without `--executed-sets`.

Everything is in the JSON as soon as it is known. The same command goes on where it was stopped: a half-trained run is
resumed, a finished one is not trained again. Models are played again where realm/ or diy/ have changed meanwhile.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import load_config
from realm.config.toml import parse_value
from realm.errors import ConfigError
from realm.launch.rundir import read_run
from tools import runs

LIMITS = (32.0, 5.0)  # points of mean regret
PLAIN_S = 30.0
NEWEST = 50  # checkpoints that the run itself keeps: enough until this process has linked them
PLAIN_LINE = re.compile(r"^\s*(\d+) s\s+(\d+) steps\s+(\d+)/s")

Results = dict[str, Any]
"""{about, setup, seeds: {"1": {run, plain_steps_per_s, training, models: {name: figures}, reached, end}}}; figures have
the digest `code` of what made them"""


class Model(NamedTuple):
    path: Path
    env_steps: int
    minutes: float


class Work(Protocol):
    """What takes time."""

    code: str  # digest of what plays

    def plain_rate(self, seed: int) -> float: ...
    def train(self, seed: int) -> dict[str, Any]: ...
    def models(self, seed: int) -> list[Model]: ...
    def play(self, seed: int, model: Model, how: str) -> dict[str, Any]: ...


# ---- what is looked for ----


def spread(env_steps: Sequence[int], number: int) -> list[int]:
    """Indices of so many models at evenly growing env steps, with the first and the last."""
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


def judge_seed(
    entry: dict[str, Any], seed: int, work: Work, save: Callable[[], None], grid: int, executed_sets: bool
) -> None:
    """Fill `entry` with what it lacks."""
    if "plain_steps_per_s" not in entry:
        entry["plain_steps_per_s"] = work.plain_rate(seed)
        save()
    if "training" not in entry:
        entry["training"] = work.train(seed)
        save()
    models = work.models(seed)
    for kind in ("models", "end"):
        known = entry.setdefault(kind, {})
        for name in [name for name, found in known.items() if found.get("code") != work.code]:
            print(f"seed {seed}: {name} is played again, as the code has changed", flush=True)
            del known[name]
    played = entry["models"]
    begin, before = time.monotonic(), len(played)

    def regret(i: int) -> float:
        model = models[i]
        if model.path.name not in played:
            found = work.play(seed, model, "best")
            about = {"env_steps": model.env_steps, "minutes": model.minutes, "code": work.code}
            played[model.path.name] = {**about, **found}
            save()
            each = (time.monotonic() - begin) / (len(played) - before)
            left = max(0, len(at) - len(played)) * each / 60
            print(
                f"seed {seed}: {model.env_steps:,} env steps: mean regret {found['regret']:.2f} ({each:.0f} s a model, "
                f"{len(played)} played, about {left:.0f} min for the rest of the first {len(at)})",
                flush=True,
            )
        value: float = played[model.path.name]["regret"]
        return value

    at = spread([one.env_steps for one in models], grid)
    for i in at:
        regret(i)
    entry["reached"] = {}
    for limit in LIMITS:
        found = first_at_most(regret, at, limit)
        reached = None if found is None else {"env_steps": models[found].env_steps, "minutes": models[found].minutes}
        entry["reached"][f"{limit:g}"] = reached
    end, last = entry["end"], models[-1]
    for how in ("best", "drawn", "sets"):
        if how not in end or (how == "sets" and executed_sets and "regret" not in end[how]):
            print(f"seed {seed}: the last model, {how} ...", flush=True)
            end[how] = {"code": work.code, **work.play(seed, last, how)}
            save()
    save()


# ---- doing it ----


class Cluster:
    """Work on this machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.code = runs.sources()
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
            *(f"dump_model_freq={args.checkpoint_every}", f"modelpool_max_save_model_count={NEWEST}", *args.set),
            *(f"log_dir={run.parent}", f"run_name={run.name}", f"seed={seed}"),
        ]

    def plain_rate(self, seed: int) -> float:
        """Env steps a second that tools/plain_ppo.py prints after PLAIN_S."""
        print(f"seed {seed}: tools/plain_ppo.py, {PLAIN_S:g} s ...", flush=True)
        command = [sys.executable, "tools/plain_ppo.py", "--seconds", "100000", "--seed", str(seed)]
        process = subprocess.Popen(
            command + plain_options(self._args.set), cwd=runs.ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        try:
            rate = rate_after(process.stdout, PLAIN_S)
        finally:
            process.terminate()
            process.wait()
        if rate is None:
            sys.exit("error: tools/plain_ppo.py ended without a rate")
        return rate

    def train(self, seed: int) -> dict[str, Any]:
        """Train, or go on with, the run of a seed, until it has had its minutes."""
        args, run, overrides = self._args, self.run(seed), self._overrides(seed)

        def keep() -> None:
            runs.keep_models(run / "ckpt", run / "dense_ckpt")

        if not self._is_over(run):
            left = max(5.0, 60 * (args.minutes - self._minutes(run)))
            print(f"seed {seed}: {run}, {left / 60:.1f} min to train ...", flush=True)
            if run.exists():
                keep()
            command = runs.start_command(args.config, [*overrides, f"max_seconds={left}"])
            code = runs.run_process(command, every_second=keep)
            if code != 0 or not self._is_over(run):
                sys.exit(f"error: {run} has ended too early (exit code {code}); the same command goes on with it")
        keep()
        clock = runs.read_curves(run, [runs.CLOCK])[runs.CLOCK]
        return {
            "run": str(run), "env_steps": int(clock.env_steps[-1]), "minutes": self._minutes(run),
            "steps_per_s": runs.mean_rate(clock), "commit": runs.commit(),
        }  # fmt: skip

    def _minutes(self, run: Path) -> float:
        clock = runs.read_curves(run, [runs.CLOCK])[runs.CLOCK]
        return runs.minutes_at(clock, clock.env_steps[-1]) if len(clock.env_steps) else 0.0

    def _is_over(self, run: Path) -> bool:
        known = read_run(run)
        if known is None or known.state != "stopped":
            return False
        return known.cause.startswith(("max_seconds", "max_env_steps"))

    def models(self, seed: int) -> list[Model]:
        run = self.run(seed)
        clock = runs.read_curves(run, [runs.CLOCK])[runs.CLOCK]
        saved = runs.saved_models(run / "dense_ckpt")
        if not saved:
            raise ConfigError(f"{run / 'dense_ckpt'}: the models of this run are gone, so they cannot be played")
        return [Model(one.path, one.env_steps, runs.minutes_at(clock, one.env_steps)) for one in saved]

    def play(self, seed: int, model: Model, how: str) -> dict[str, Any]:
        """how: best or drawn actions on the layouts of nine treasures, or `sets`."""
        if self._examiner is None or self._examiner[0] != seed:
            self._examiner = (seed, runs.Examiner(self.run(seed)))
        examiner = self._examiner[1]
        if how == "sets":
            return examiner.sets(model.path, self._args.executed_sets)
        return examiner.nine(model.path, float(how == "drawn"))


def plain_options(overrides: Sequence[str]) -> list[str]:
    """What of `--set` of the cluster concerns tools/plain_ppo.py, in its own options."""
    words = []
    for one in overrides:
        key, _, value = one.partition("=")
        table, _, name = key.strip().rpartition(".")
        option = {"env": "--env", "diy": "--set"}.get(table)
        if option:
            words += [option, f"{name}={parse_value(value)!r}"]
    return words


def rate_after(lines: Iterable[str], seconds: float) -> float | None:
    """Read what tools/plain_ppo.py prints until that time; its env steps a second then."""
    for line in lines:
        match = PLAIN_LINE.match(line)
        if match and float(match[1]) >= seconds:
            return float(match[3])
    return None


# ---- what comes out ----


def table(results: Results) -> str:
    """Markdown: a line for each measure, a column for each seed that is judged."""
    seeds = [(seed, entry) for seed, entry in results["seeds"].items() if "sets" in entry.get("end", {})]
    lines = ["| |" + "".join(f" seed {seed} |" for seed, _ in seeds), "|---|" + "---:|" * len(seeds)]

    def add(name: str, cell: Callable[[dict[str, Any]], str]) -> None:
        lines.append(f"| {name} |" + "".join(f" {cell(entry)} |" for _, entry in seeds))

    def reached(limit: str, key: str, form: str) -> Callable[[dict[str, Any]], str]:
        return lambda entry: format(entry["reached"][limit][key], form) if entry["reached"].get(limit) else "not"

    for limit in (f"{one:g}" for one in LIMITS):
        add(f"mean regret at most {limit}: env steps", reached(limit, "env_steps", ","))
        add("... minutes", reached(limit, "minutes", ".1f"))
    for how, title in (("best", "best actions"), ("drawn", "drawn actions")):
        add(f"at the end, {title}: mean regret", lambda entry, how=how: f"{entry['end'][how]['regret']:.2f}")
        add("... worst regret", lambda entry, how=how: f"{entry['end'][how]['worst_regret']:.1f}")
        add("... out of time", lambda entry, how=how: f"{entry['end'][how]['time_outs']}")
        add("... treasures missed", lambda entry, how=how: f"{entry['end'][how]['missed']}")
        add("... steps above the oracle's, %", lambda entry, how=how: _number(entry["end"][how]["excess_percent"]))
        add("... mean regret against the bound", lambda entry, how=how: f"{entry['end'][how]['bound']['regret']:.2f}")
    if any("regret" in entry["end"]["sets"] for _, entry in seeds):
        add("all 8 192 sets: mean regret", lambda entry: _number(entry["end"]["sets"].get("regret"), 2))
    add("all 8 192 sets: mean regret against the bound", lambda entry: f"{entry['end']['sets']['bound']['regret']:.2f}")
    add("... nothing left behind, %", lambda entry: f"{100 * entry['end']['sets']['bound']['whole']:.2f}")
    add("env steps trained", lambda entry: f"{entry['training']['env_steps']:,}")
    add("minutes, with the start", lambda entry: f"{entry['training']['minutes']:.1f}")
    add("env steps/s", lambda entry: f"{entry['training']['steps_per_s']:,.0f}")
    add("tools/plain_ppo.py, env steps/s", lambda entry: f"{entry['plain_steps_per_s']:,.0f}")
    return "\n".join(lines)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def draw(curves: Sequence[tuple[str, Results]], out: Path) -> None:
    """Regret over env steps, a line for each seed; the first of `curves` with full lines, others dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for n, (name, results) in enumerate(curves):
        for k, (seed, entry) in enumerate(results["seeds"].items()):
            models = sorted(entry.get("models", {}).values(), key=lambda one: one["env_steps"])
            if not models:
                continue
            steps, regret = ([one[key] for one in models] for key in ("env_steps", "regret"))
            line, label = ("-", "--", ":", "-.")[n % 4], f"{name}, seed {seed}"
            axes.plot(np.array(steps) / 1e6, np.maximum(regret, 0.1), line, color=f"C{k}", label=label)
            for limit, reached in entry.get("reached", {}).items():
                if reached:
                    axes.plot(reached["env_steps"] / 1e6, float(limit), "o", color=f"C{k}")
    for limit in LIMITS:
        axes.axhline(limit, color="black", linestyle="--", linewidth=0.8)
        axes.annotate(f"{limit:g}", (0, limit), xytext=(3, 3), textcoords="offset points", fontsize=8)
    axes.set(yscale="log", xlabel="million env steps", ylabel="mean regret, points (715 layouts, best actions)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def open_results(out: Path, setup: dict[str, Any]) -> Results:
    """What is known from before, which must have been asked for in the same way."""
    if not out.exists():
        return {"about": runs.about(), "setup": setup, "seeds": {}}
    results: Results = runs.read_json(out, "seeds")
    if results["setup"] != setup:
        raise ConfigError(f"{out} was made with {results['setup']}, now {setup}; take another --out")
    return results


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, for each seed")
    parser.add_argument("--config", type=Path, default=runs.ROOT / "conf" / "configure_app.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the run, repeatable")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="UPDATES")
    parser.add_argument("--grid", type=int, default=24, help="models of each seed that are played in any case")
    parser.add_argument("--executed-sets", action="store_true", help="the oracle plays all sets, too: most of an hour")
    parser.add_argument("--out", type=Path, default=Path("train/judge.json"))
    parser.add_argument("--also", type=Path, nargs="+", default=[], metavar="JSON", help="draw these, too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    runs.end_in_order()
    args.config = args.config.absolute()
    setup = {
        "config": args.config.name, "set": args.set, "minutes": args.minutes, "checkpoint_every": args.checkpoint_every,
        "grid": args.grid,
    }  # fmt: skip
    also = [(path.stem, runs.read_json(path, "seeds")) for path in args.also]
    runs.check_out(args.out)
    results = open_results(args.out, setup)
    work = Cluster(args)
    picture = args.out.with_suffix(".png")
    for seed in args.seeds:
        work.check(seed)
    for seed in args.seeds:
        entry = results["seeds"].setdefault(str(seed), {})
        try:
            judge_seed(entry, seed, work, lambda: runs.write_json(args.out, results), args.grid, args.executed_sets)
        except KeyboardInterrupt:
            sys.exit("\nstopped; the same command goes on")
        draw([(args.out.stem, results), *also], picture)
        print(f"\n{table(results)}\n", flush=True)
    known = results["about"]
    print(f"{known['date']}, {known['machine']}, {known['commit']}: {known['command']}\n{args.out}\n{picture}")


if __name__ == "__main__":
    runs.command_line(main)
