"""How well a model plays maps it has never seen: generated ones, any start, any end, nine treasures.

    python tools/study/unseen_maps.py train/my_run --id best --json unseen.json

MODEL is what `realm eval` takes: a run, its ckpt folder, one checkpoint, `shipped`, or nothing for the newest run. On
each map it plays layouts of random pairs of start and end, and prints a line. "all %": the end was reached with every
treasure. "excess %": how many more steps that took than the oracle's bound, which nobody can beat; a pair's bounds take
two minutes once and are kept in .cache/oracle. --no-oracle leaves them out, --executed takes its own play instead.

"Never seen" means: neither trained on ([env]) nor used to choose the best model ([eval_env]). The agent does know the
map: its small features are made from the whole of it, and with `tours` they hold a planner's best order of treasures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.commands.files import check_file
from realm.commands.models import ID_HELP, LOG_DIR_HELP, MODEL_HELP, chosen_model
from realm.config.load import RunConfig
from realm.contract import Array
from realm.env import map as maps
from realm.env import report
from realm.env.map import Map
from realm.env.options import DEFAULTS, IDS, Episode
from realm.env.oracle import CACHE
from realm.errors import ConfigError
from realm.learn.checkpoint import Checkpoint, find
from realm.learn.evaluate import Outcome, evaluate_layouts, load_player
from realm.user import hyper_of
from tools import common

FIRST_SEED = 1001
WANTED_ALL, WANTED_EXCESS = 95.0, 25.0  # per cent: at least, at most
COLUMNS = ("episodes", "end %", "all %", "missed", "steps", "excess %", "worst %")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parsed(arguments)
    try:
        check_file("--json", args.json)
        config, folder, number = chosen_model(args.model, args.id, args.set, args.log_dir)
        checkpoint = find(folder, number)
        names = [f"{maps.GENERATED}{seed}" for seed in range(args.first, args.first + args.maps)]
        for table, what in (("env", "was trained on"), ("eval_env", "was chosen on")):
            if seen := set(names) & maps_of(getattr(config, table)):
                raise ConfigError(f"--first {args.first}: the model {what} {', '.join(sorted(seen))}")
        play_all(args, config, checkpoint, names)
    except common.USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def maps_of(env: Mapping[str, Any]) -> set[str]:
    """The maps of a table [env] or [eval_env]."""
    names = env.get("map", [])
    return {names} if isinstance(names, str) else set(names)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="", help=MODEL_HELP)
    parser.add_argument("--id", default="latest", help=ID_HELP)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help=f"seed of the first map (default {FIRST_SEED})")
    parser.add_argument("--maps", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--pairs", type=int, default=2, help="of start and end on each map (default 2)")
    parser.add_argument("--layouts", type=int, default=25, help="of treasures for each pair (default 25)")
    parser.add_argument("--treasures", type=int, default=9, help="in each layout (default 9)")
    parser.add_argument("--stochastic", action="store_true", help="sampled actions, not greedy ones")
    oracle = parser.add_mutually_exclusive_group()
    oracle.add_argument("--no-oracle", action="store_true", help="no excess")
    oracle.add_argument("--executed", action="store_true", help="against the oracle's own play instead of its bound")
    parser.add_argument("--json", type=Path, help="write maps, total and every episode there, after each map")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable")
    parser.add_argument("--log-dir", help=LOG_DIR_HELP)
    args = parser.parse_args(arguments)
    for name, low, high in (("maps", 1, 10**6), ("pairs", 1, 210), ("layouts", 1, 10**6), ("treasures", 0, 13)):
        if not low <= getattr(args, name) <= high:
            parser.error(f"--{name} {getattr(args, name)}: allowed is a number from {low} to {high}")
    if args.first < 0:
        parser.error(f"--first {args.first}: allowed is a number from 0")
    return args


def knowledge(config: RunConfig) -> str:
    """What the agent is told of maps, if it is the one in diy."""
    hyper = hyper_of(config)
    if getattr(hyper, "features", "") != "small":
        return ""
    if getattr(hyper, "tours", False):
        return "features: the map's exact walking distances, and tours: a planner's best order of treasures on foot"
    return "features: the map's exact walking distances; no tours, so orders are the model's own"


def play_all(args: argparse.Namespace, config: RunConfig, checkpoint: Checkpoint, names: list[str]) -> None:
    """Play map after map; print and keep what came out."""
    title = (
        f"{checkpoint.path} ({checkpoint.env_steps:,} env steps), {'sampled' if args.stochastic else 'greedy'} actions"
    )
    header = f"{'map':>15} " + " ".join(f"{one:>9}" for one in COLUMNS)
    print(f"{title}\n{knowledge(config)}".rstrip(), header, sep="\n", flush=True)
    lines: list[dict[str, Any]] = []
    episodes: dict[str, list[Any]] = {}
    for name in names:
        found = play_map(args, config, checkpoint, name)
        for key, values in found.items():
            episodes.setdefault(key, []).extend(values)
        lines.append({"map": name, **summary(found)})
        print(line(lines[-1]), flush=True)
        total = {"map": "total", **summary(episodes)}
        if args.json:
            content = {"checkpoint": str(checkpoint.path), "env_steps": checkpoint.env_steps, "asked": vars(args)}
            content |= {"maps": lines, "total": total, "episodes": episodes}
            common.write_json(args.json, content)
    print(line(total))
    verdicts = [("all %", f">= {WANTED_ALL:g}", total["all %"] >= WANTED_ALL)]
    if total["excess %"] is not None:
        verdicts.append(("excess %", f"<= {WANTED_EXCESS:g}", total["excess %"] <= WANTED_EXCESS))
    print("wanted:", ", ".join(f"{what} {limit}: {'yes' if ok else 'NO'}" for what, limit, ok in verdicts))


def play_map(args: argparse.Namespace, config: RunConfig, checkpoint: Checkpoint, name: str) -> dict[str, list[Any]]:
    """Play all layouts of a map at once. Column name -> a value for each episode."""
    map_, max_step = maps.resolve(name), int(config.env.get("max_step", DEFAULTS["max_step"]))
    layouts = draw_layouts(map_, args.pairs, args.layouts, args.treasures, max_step)
    envs, _, predict, *_ = load_player(config, checkpoint, {"map": name, "max_step": max_step}, len(layouts), seed=0)
    try:
        options = [report.as_option(one) for one in layouts]
        played = evaluate_layouts(envs, predict, options, explore=float(args.stochastic))
    finally:
        envs.close()
    return {
        "map": [name] * len(layouts),
        "start": [one.start for one in layouts],
        "end": [one.end for one in layouts],
        "treasure_id": [list(one.treasure_id or ()) for one in layouts],
        "reached_end": played.reached_end.tolist(),
        "missed": played.missed.tolist(),
        "steps": played.steps.tolist(),
        "excess_percent": [None if np.isnan(one) else float(one) for one in excess(args, map_, layouts, played)],
    }


def draw_layouts(map_: Map, pairs: int, number: int, treasures: int, max_step: int) -> list[Episode]:
    """For each of some different pairs of start and end so many layouts. The same for a map each time."""
    rng = np.random.default_rng(int(map_.name.rpartition("-")[2]))
    every = [(start, end) for start in IDS for end in IDS if start != end]
    layouts = []
    for k in rng.permutation(len(every))[:pairs]:
        start, end = every[k]
        free = [i for i in IDS if i not in (start, end)]
        for _ in range(number):
            ids = tuple(sorted(rng.choice(free, treasures, replace=False).tolist()))
            layouts.append(Episode(start, end, max_step, treasures, ids))
    return layouts


def excess(args: argparse.Namespace, map_: Map, layouts: list[Episode], played: Outcome) -> Array:
    """Per cent, f64 [K]; nan where something was left, by the agent or by the oracle, or where none was asked."""
    if args.no_oracle:
        return np.full(len(layouts), np.nan)
    limits, progress = [], common.Progress()
    for k in range(0, len(layouts), args.layouts):
        of_pair = layouts[k : k + args.layouts]
        progress.show(f"{map_.name}: the oracle from {of_pair[0].start} to {of_pair[0].end} ...")
        ask = report.executed_limits if args.executed else report.bound_limits
        limits.append(ask(map_, of_pair, CACHE))
    progress.clear()
    score, steps = (np.concatenate([getattr(one, name) for one in limits]) for name in ("score", "steps"))
    return report.excess(played, report.Limits(score, steps))


def summary(episodes: dict[str, list[Any]]) -> dict[str, Any]:
    """The columns of a line."""
    end, missed = np.array(episodes["reached_end"], np.bool_), np.array(episodes["missed"])
    more = [one for one in episodes["excess_percent"] if one is not None]
    return {
        "episodes": len(end),
        "end %": float(100 * end.mean()),
        "all %": float(100 * (end & (missed == 0)).mean()),
        "missed": float(missed.mean()),
        "steps": float(np.mean(episodes["steps"])),
        "excess %": float(np.mean(more)) if more else None,
        "worst %": float(np.max(more)) if more else None,
    }


def line(values: dict[str, Any]) -> str:
    cells = ["-" if values[one] is None else f"{values[one]:.{0 if one == 'episodes' else 1}f}" for one in COLUMNS]
    return f"{values['map']:>15} " + " ".join(f"{one:>9}" for one in cells)


if __name__ == "__main__":
    sys.exit(main())
