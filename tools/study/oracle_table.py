"""What is possible on a map, and how near the oracle's own play comes to its bound.

    python tools/study/oracle_table.py
    python tools/study/oracle_table.py --maps default 1 2 --layouts 100 --out train/oracle.json
    python tools/study/oracle_table.py --maps default --sets

Bounds all 8 192 sets of treasures of each map (`default`, a path, or the seed of a generated map), plays layouts of
nine treasures, or all sets, in the real environment, and prints a table. What was played is kept in `--cache`: the same
command goes on where it was stopped; a change of the oracle starts again by itself.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.env import map as maps
from realm.env import oracle as oracles
from tools import common

CHOSEN = 9


def play_map(name: str, layouts: int | None, cache: Path, tries: int, width: int) -> dict[str, Any]:
    """One map's figures; all sets if `layouts` is None."""
    begin = time.process_time()
    oracle = oracles.make_oracle(maps.generate(int(name)) if name.isdigit() else maps.resolve(name), cache=cache)
    score, take = oracles.bounds(oracle)
    bounds_cpu_s = time.process_time() - begin
    sets = np.arange(len(oracle.steps))
    if layouts is not None:
        every = [oracles.set_index(oracle, ids) for ids in itertools.combinations(oracle.treasures, CHOSEN)]
        # spread over all of them
        sets = np.array(every)[np.linspace(0, len(every) - 1, min(layouts, len(every))).round().astype(int)]
    show = common.counting(name, len(sets))
    played = oracles.play_sets(oracle, sets, cache, report=lambda done, of: show(done, done), tries=tries, width=width)
    return {
        "bounds_cpu_s": bounds_cpu_s,
        "bound_steps_of_all_sets": oracle.steps.tolist(),
        "treasures": [oracles.set_ids(oracle, int(one)) for one in sets],
        "bound_steps": oracle.steps[take[sets]].tolist(),
        "bound_score": score[sets].tolist(),
        "bound_taken": [int(one).bit_count() for one in take[sets]],
        **{field: array.tolist() for field, array in played._asdict().items() if field != "treasures"},
        "taken": played.treasures.tolist(),
    }


def row(name: str, figures: dict[str, Any]) -> str:
    """One map's line of the table."""
    ratio = np.array(figures["steps"]) / np.array(figures["bound_steps"])
    full = np.array(figures["taken"]) == np.array(figures["bound_taken"])
    ratio[~full] = np.nan  # fewer steps, but fewer treasures
    mean = {field: np.mean(figures[field]) for field in ("bound_steps", "steps", "bound_score", "score", "cpu_s")}
    worst = ",".join(map(str, figures["treasures"][int(np.nanargmax(ratio))]))
    return (
        f"{name:>10} {figures['bounds_cpu_s']:8.0f} {len(ratio):7} {mean['bound_steps']:7.1f} {mean['steps']:7.1f} "
        f"{full.mean():6.1%} {np.nanmean(ratio):6.4f} {np.nanmax(ratio):6.4f} "
        f"{mean['bound_score']:7.2f} {mean['score']:7.2f} "
        f"{np.mean(np.array(figures['buffs']) > 0):4.0%} {mean['cpu_s']:5.2f}  {worst}"
    )


def main() -> None:
    """The file: {map: {bounds_cpu_s, bound_steps_of_all_sets, and lists with an entry for each layout}}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", nargs="+", default=["default", "1", "2", "3", "4", "5"])
    parser.add_argument("--layouts", type=int, default=715, help="play that many of each map")
    parser.add_argument("--sets", action="store_true", help="play all sets of treasures instead of layouts of nine")
    parser.add_argument("--tries", type=int, default=8, help="orders of the treasures for which a play is searched")
    parser.add_argument("--width", type=int, default=200, help="states of that search")
    parser.add_argument("--out", type=Path, default=Path("train/oracle.json"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/oracle"))
    args = parser.parse_args()
    common.check_out(args.out)
    table: dict[str, Any] = {}
    for name in args.maps:
        table[name] = play_map(name, None if args.sets else args.layouts, args.cache, args.tries, args.width)
        common.write_json(args.out, table)
    print("       map bounds,s layouts   bound   steps   full   mean  worst   bound   score buff cpu,s  worst")
    for name in args.maps:
        print(row(name, table[name]))


if __name__ == "__main__":
    common.command_line(main)
