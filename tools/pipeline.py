"""What a run's speed should be, from the times of its parts, and what more workers or a GPU would bring.

    python tools/bench_parts.py --network default --only env forward push buffer learner model --out train/parts.json
    python tools/bench_train.py --rows tuner scale --out train/scale.json
    python tools/pipeline.py train/parts.json --measured train/scale.json

The model (docs/performance.md tells it in words): a round is T steps of every environment. Its play takes as long as T
forwards and steps of a worker's environments, once for each worker that shares a core; then its chunks travel through
the buffer; then the learner trains on them. In the alternating flow one comes after the other, in the overlapping flow
the longer of playing and training counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config import ConfigError, load_config
from realm.launch.plan import make_plan, this_machine
from realm.user import load_hyper
from tools import runs


class Parts(NamedTuple):
    """Seconds that parts take alone."""

    forward: tuple[list[int], list[float]]  # rows, and seconds of `Agent.predict`
    step: tuple[list[int], list[float]]  # environments, and seconds of a step with features and reward
    travel: float  # of a chunk from the worker to the learner
    update: float  # a sample in an update, all epochs
    publish: float  # weights from the learner into a worker


class Shape(NamedTuple):
    """What a run is made of."""

    workers: int
    envs: int  # of each worker
    chunk_length: int
    cores: int  # that workers share
    overlapping: bool
    trains: float = 1.0  # the learner is so many times as fast as where the parts were measured


class Forecast(NamedTuple):
    env_steps_per_s: float
    play_s: float  # of a round
    travel_s: float
    train_s: float
    lag: float  # updates


def read_parts(lines: Sequence[dict[str, Any]], backend: str) -> Parts:
    """From the lines that bench_parts wrote for one network. Raises ConfigError if one is missing."""

    def found(pattern: str) -> list[tuple[int, float, float]]:
        """The number in its name, if any, seconds of a call, and what a call is about."""
        each = [
            (int(match[1]) if match.re.groups else 1, statistics.median(one["seconds"]), float(one["amount"]))
            for one in lines
            if (match := re.fullmatch(pattern, one["what"]))
        ]
        if not each:
            raise ConfigError(f"the parts have no line {pattern!r}; tools/pipeline.py --help says how to measure them")
        return sorted(each)

    def one(pattern: str) -> float:
        """Seconds of a unit."""
        _, seconds, amount = found(pattern)[0]
        return seconds / amount

    forward, step = found(r"predict, (\d+) rows"), found(r"env step, features, reward, (\d+) envs")
    return Parts(
        ([n for n, _, _ in forward], [s for _, s, _ in forward]),
        ([n for n, _, _ in step], [s for _, s, _ in step]),
        # the way from buffer to learner is as long as that from worker to buffer
        2 * one(rf"push (\d+) chunks, {backend}") + one(rf"sample (\d+) chunks, {backend}"),
        one(r"update of (\d+) gradient steps"),
        one("publish weights to the pool") + one("verify and load weights"),
    )


def at(known: tuple[list[int], list[float]], n: int) -> float:
    """Seconds at a size between, or beyond, those that were measured: linear between neighbours."""
    sizes, seconds = known
    if n > sizes[-1]:
        return seconds[-1] * n / sizes[-1]
    return float(np.interp(n, sizes, seconds))


def forecast(parts: Parts, shape: Shape) -> Forecast:
    """Rates and lag of a run of this shape."""
    chunks = shape.workers * shape.envs
    rows = chunks * shape.chunk_length
    turns = math.ceil(shape.workers / shape.cores)
    play = shape.chunk_length * turns * (at(parts.forward, shape.envs) + at(parts.step, shape.envs))
    travel = chunks * parts.travel
    train = rows * parts.update / shape.trains + parts.publish
    if shape.overlapping:
        # the buffer's process does its work beside both; what is trained on was played during the update before
        seconds = max(play, train, travel)
        return Forecast(rows / seconds, play, travel, train, 1.0)
    return Forecast(rows / (play + travel + train), play, travel, train, 0.0)


def measured_rates(results: dict[str, Any]) -> dict[str, float]:
    """Row name -> median env steps/s of what bench_train wrote."""
    rates = {}
    for name, row in results["rows"].items():
        each = [one["env_steps_per_s"] for one in row["rounds"] if one.get("env_steps_per_s")]
        if each:
            rates[name] = statistics.median(each)
    return rates


def shapes(plan: Any, chunk_length: int) -> list[tuple[str, str, Shape]]:
    """(what it is, the row of bench_train that measures it, its shape)."""
    overlapping = plan.max_version_lag != 0
    cores = max(1, plan.cores - plan.learner_threads) if overlapping else plan.cores
    usual = Shape(plan.workers, plan.envs_per_worker, chunk_length, cores, overlapping)
    rows = [("as the tuner chooses", "tuner", usual)]
    rows += [(f"{n} workers", f"workers-{n}", usual._replace(workers=n)) for n in (1, 2, 4, 8, 16)]
    rows += [(f"{n} environments a worker", f"envs-{n}", usual._replace(envs=n)) for n in (1, 4, 16, 64, 256)]
    rows += [(f"chunks of {n}", f"chunk-{n}", usual._replace(chunk_length=n)) for n in (16, 32, 64, 128, 256)]
    large = usual._replace(overlapping=True)
    for workers in (4, 16, 64):
        rows.append(
            (f"{workers} workers, a core each, learner on the CPU", "", large._replace(workers=workers, cores=workers))
        )
    for trains in (10.0, 30.0, 100.0):
        one = large._replace(workers=64, cores=64, trains=trains)
        rows.append((f"64 workers, a core each, learner {trains:g} times as fast", "", one))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, help="what bench_parts wrote")
    parser.add_argument(
        "--measured", type=Path, default=None, help="what bench_train wrote of its rows tuner and scale"
    )
    parser.add_argument("--config", type=Path, default=runs.ROOT / "conf" / "configure_app.toml")
    args = parser.parse_args()
    lines = [one for one in runs.read_json(args.parts, "lines")["lines"] if one["network"] == "default"]
    rates = measured_rates(runs.read_json(args.measured, "rows")) if args.measured else {}
    config = load_config(args.config)
    machine = dataclasses.replace(this_machine(), has_reverb=any("reverb" in one["what"] for one in lines))
    plan = make_plan(config.app, machine)
    parts = read_parts(lines, plan.backend)
    hyper: Any = load_hyper(config.app.algo, config.hyper, config.places)
    print(f"{'':48}{'forecast':>10}{'measured':>10}{'ratio':>7}{'play s':>8}{'travel s':>9}{'train s':>8}{'lag':>5}")
    for says, row, shape in shapes(plan, hyper.chunk_length):
        made, rate = forecast(parts, shape), rates.get(row)
        seen = f"{rate:>10,.0f}{made.env_steps_per_s / rate:>7.2f}" if rate else f"{'':>17}"
        times = f"{made.play_s:>8.3f}{made.travel_s:>9.3f}{made.train_s:>8.3f}{made.lag:>5.0f}"
        print(f"{says:48}{made.env_steps_per_s:>10,.0f}{seen}{times}")


if __name__ == "__main__":
    runs.command_line(main)
