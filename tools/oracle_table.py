"""What is possible on a map and how near the oracle's own play comes: all layouts of nine out of thirteen treasures.

`python tools/oracle_table.py [--maps default 1 2 3 4 5] [--layouts 715] [--out train/oracle.json]` bounds all 8 192
sets of treasures of each map (`default`, a path, or the seed of a generated map), plays the best plan of every layout
in the real environment, prints a table and writes the figures. Layouts that the file has already are not played again,
so a run can be stopped and gone on with; a change of the oracle needs a new file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from realm.env import map as maps
from realm.env import oracle as oracles

CHOSEN = 9
SAVE_EVERY = 20


def load_map(name: str) -> maps.Map:
    """`default`, a path, or the seed of a generated map."""
    return maps.generate(int(name)) if name.isdigit() else maps.resolve(name)


def play_map(name: str, known: dict[str, Any], layouts: int, save: Any) -> None:
    """Fill `known` (see `main`) with one map's figures."""
    begin = time.process_time()
    oracle = oracles.make_oracle(load_map(name))
    oracles.bounds(oracle)
    known["sets"], known["bounds_cpu_s"] = len(oracle.steps), round(time.process_time() - begin, 1)
    known["steps_of_sets"] = oracle.steps.tolist()
    played: dict[str, Any] = known.setdefault("layouts", {})
    every = list(itertools.combinations(oracle.treasures, CHOSEN))
    # a part is spread over all of them
    some = [every[i] for i in np.linspace(0, len(every) - 1, min(layouts, len(every))).round().astype(int)]
    for n, treasures in enumerate(some):
        key = ",".join(map(str, treasures))
        if key not in played:
            begin = time.process_time()
            found = oracles.solve(oracle, treasures)
            played[key] = {
                "bound_steps": found.bound.steps,
                "steps": found.run.steps,
                "bound_score": round(found.bound.score, 1),
                "score": round(found.run.score, 1),
                "taken": found.run.taken,
                "cpu_s": round(time.process_time() - begin, 2),
            }
            if n % SAVE_EVERY == 0:
                save()
                print(f"{name}: {n + 1} of {len(some)} layouts", flush=True)
    save()


def row(name: str, known: dict[str, Any]) -> str:
    """One map's line of the table."""
    played = known["layouts"]
    ratio = {key: one["steps"] / one["bound_steps"] for key, one in played.items()}
    worst = max(ratio, key=lambda key: ratio[key])
    mean = {
        field: np.mean([one[field] for one in played.values()])
        for field in ("bound_steps", "steps", "bound_score", "score", "cpu_s")
    }
    buffs = np.mean([0 in one["taken"] for one in played.values()])
    return (
        f"{name:>10} {known['bounds_cpu_s']:9.0f} {len(played):8} {mean['bound_steps']:8.1f} {mean['steps']:8.1f} "
        f"{np.mean(list(ratio.values())):7.4f} {ratio[worst]:7.4f} {mean['bound_score']:9.2f} {mean['score']:9.2f} "
        f"{buffs:6.0%} {mean['cpu_s']:6.1f}   {worst}"
    )


def main() -> None:
    """The file: {map: {sets, bounds_cpu_s, steps_of_sets, layouts: {"3,4,..": {bound_steps, steps, ..}}}}."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--maps", nargs="+", default=["default", "1", "2", "3", "4", "5"])
    parser.add_argument("--layouts", type=int, default=715, help="play only so many of each map")
    parser.add_argument("--out", type=Path, default=Path("train/oracle.json"))
    args = parser.parse_args()
    figures: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        draft = args.out.with_suffix(".tmp")
        draft.write_text(json.dumps(figures))
        draft.replace(args.out)

    for name in args.maps:
        play_map(name, figures.setdefault(name, {}), args.layouts, save)
    print("       map bounds,s  layouts    bound    steps    mean   worst     bound     score   buff  cpu,s   worst")
    for name in args.maps:
        print(row(name, figures[name]))


if __name__ == "__main__":
    main()
