"""What a run's speed should be, from the times of its parts, and what more cores, more workers or a GPU would bring.

    python tools/bench_parts.py --network default --only env forward roundtrip push buffer learner model \\
        --out train/parts.json
    python tools/bench_train.py --rows plain local tuner cluster scale --out train/scale.json
    python tools/pipeline.py train/parts.json --measured train/scale.json

The model (docs/performance.md tells it in words): a round is T steps of every environment, which are then trained on.
Its play takes as long as T forwards and steps of a worker's environments; its chunks travel through the buffer; the
learner trains on them. With a lag of L updates L + 1 rounds are under way at once. So a round takes the longest of: its
play, its training, the buffer's work with it, all three one after the other over L + 1, and the CPU time of all over
the number of cores. Where weights go out before an update is over, play and travel go on beside it, and the lag is the
part of it that they take. With predictions at the actor a forward has the questions that came while it was at the one
before.

It knows no neighbours on the machine, no memory that is too slow for all cores, and takes a learner of twice as many
threads to be twice as fast, which it is from one to two (policy and critic), and not quite beyond.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import load_config
from realm.config.plan import Machine, make_plan, this_machine
from realm.errors import ConfigError
from realm.user import load_hyper
from tools import runs
from tools.bench_parts import ASKED, CROWD, NETWORKS

GPU_FORWARD_S = 2e-4  # however few the rows: starting the kernels takes this long


class Parts(NamedTuple):
    """Seconds that parts take alone."""

    forward: tuple[list[int], list[float]]  # rows, and seconds of `Agent.predict`
    step: tuple[list[int], list[float]]  # environments, and seconds of a step with features and reward
    trip: float  # of a question to the actor and back, if nobody else asks, without the forward
    asker_cpu: float  # ... CPU time in the worker
    answer: float  # ... what the actor has to do for it, if many ask, without the forward
    travel: float  # of an env step from the worker to the learner
    buffer: float  # ... for which the buffer's process has to do with it
    travel_cpu: float  # ... CPU time in worker, buffer and learner together
    update: float  # a sample in an update, all epochs
    threads: int  # that the update had
    publish: float  # weights from the learner into a worker

    @property
    def way(self) -> float:
        """Of a question to the actor and back, without what the actor does."""
        return max(0.0, self.trip - self.answer)


class Shape(NamedTuple):
    """What a run is made of."""

    workers: int
    envs: int  # of each worker
    chunk_length: int
    cores: int  # for everybody
    threads: int  # of the learner
    lag: float  # updates, that a worker may be ahead of the learner; 0: each waits for the other, inf: nobody waits
    early: bool = False  # with lag 0: nobody waits, since weights go out before an update is over
    cluster: bool = True  # or one process
    remote: bool = False  # predictions at the actor
    gpu: float = 0.0  # learner and actor have one, which is so many times as fast as the learner of the parts; 0: none


class Forecast(NamedTuple):
    env_steps_per_s: float
    play_s: float  # of a round, for whom it takes longest
    travel_s: float
    train_s: float
    cpu_s: float  # of a round, all processes
    bounds: dict[str, float]  # s of a round, by what makes it take so long; the greatest counts
    lag: float  # updates, on average; NaN where more than one is allowed
    questions_per_s: float  # that arrive at the actor
    rows: float  # of a forward


def read_parts(lines: Sequence[dict[str, Any]], backend: str, chunk_length: int) -> Parts:
    """From the lines that bench_parts wrote for one network. Raises ConfigError if one is missing."""

    def found(pattern: str, time: str = "seconds") -> list[tuple[int, float, float]]:
        """The number in its name, if any, seconds of a call, and what a call is about."""
        each = [
            (int(match[1]) if match.re.groups else 1, statistics.median(one[time]), float(one["amount"]))
            for one in lines
            if (match := re.fullmatch(pattern, one["what"]))
        ]
        if not each:
            raise ConfigError(f"the parts have no line {pattern!r}; tools/pipeline.py --help says how to measure them")
        return sorted(each)

    def one(pattern: str, time: str = "seconds") -> float:
        """Seconds of a unit."""
        _, seconds, amount = found(pattern, time)[0]
        return seconds / amount

    forward, step = found(r"predict, (\d+) rows"), found(r"env step, features, reward, (\d+) envs")
    push, add, sample = (rf"{what} (\d+) chunks, {backend}" for what in ("push", "add", "sample"))
    update = r"update of (\d+) gradient steps"
    # the way from buffer to learner is as long as that from worker to buffer; a push takes the worker's CPU time and
    # then the buffer's
    travel, buffer = 2 * one(push) + one(sample), max(0.0, one(push) - one(push, "cpu_seconds")) + one(sample)
    travel_cpu = sum(one(part, "cpu_seconds") for part in (push, push, add, sample))
    trip, in_it = f"worker, actor, worker, {ASKED} envs", f"the forward in it, {ASKED} rows"
    forwards = ([n for n, _, _ in forward], [s for _, s, _ in forward])
    crowd = ASKED * one(f"{CROWD} workers at once, {ASKED} envs each") - at(forwards, CROWD * ASKED) / CROWD
    return Parts(
        forwards,
        ([n for n, _, _ in step], [s for _, s, _ in step]),
        max(0.0, ASKED * (one(trip) - one(in_it))),
        ASKED * one(trip, "cpu_seconds"),
        max(0.0, crowd),
        travel / chunk_length,
        buffer / chunk_length,
        travel_cpu / chunk_length,
        one(update),
        next(int(line["threads"]) for line in lines if re.fullmatch(update, line["what"])),
        one("publish weights to the pool") + one("verify and load weights"),
    )


def at(known: tuple[list[int], list[float]], n: float) -> float:
    """Seconds at a size between, or beyond, those that were measured: linear between neighbours."""
    sizes, seconds = known
    if n > sizes[-1]:
        return seconds[-1] * n / sizes[-1]
    return float(np.interp(n, sizes, seconds))


def forward_s(parts: Parts, rows: float, gpu: float) -> float:
    return max(GPU_FORWARD_S, at(parts.forward, rows) / gpu) if gpu else at(parts.forward, rows)


class Served(NamedTuple):
    """What the actor does in a steady state."""

    questions_per_s: float
    batch: float  # questions of a forward
    wait_s: float  # of a question, with its forward


def served(parts: Parts, shape: Shape) -> Served:
    """Every worker thinks (a step, and the way there and back), asks, and waits until the forward that runs is over,
    half of it on average, and then for its own, which has all questions that came meanwhile."""
    think, others = at(parts.step, shape.envs) + parts.way, (shape.workers - 1) / shape.workers
    batch, busy, now = 1.0, 0.0, Served(0.0, 1.0, 0.0)
    for _ in range(200):  # a fixed point, half-way to which each turn goes
        answer = forward_s(parts, batch * shape.envs, shape.gpu) + batch * parts.answer
        wait = answer * (1 + busy * others / 2)
        now = Served(shape.workers / (think + wait), batch, wait)
        batch = min(shape.workers, max(1.0, (batch + now.questions_per_s * answer) / 2))
        busy = min(1.0, now.questions_per_s * answer / batch)
    return now


def forecast(parts: Parts, shape: Shape) -> Forecast:
    """Rates and lag of a run of this shape."""
    rows = shape.workers * shape.envs * shape.chunk_length
    step, actor = at(parts.step, shape.envs), Served(0.0, 1.0, forward_s(parts, shape.envs, 0.0))
    cpu = shape.workers * (step + actor.wait_s)  # of a step of everybody
    if shape.remote:
        actor = served(parts, shape)
        forward = forward_s(parts, actor.batch * shape.envs, shape.gpu)
        cpu = shape.workers * (step + parts.asker_cpu + parts.answer + forward / actor.batch)
        step += parts.way
    play, play_cpu = shape.chunk_length * (step + actor.wait_s), shape.chunk_length * cpu
    travel, buffer, travel_cpu = (
        rows * one if shape.cluster else 0.0 for one in (parts.travel, parts.buffer, parts.travel_cpu)
    )
    threads = 1 if shape.gpu else min(shape.threads, shape.cores)
    train = rows * parts.update * (1 / shape.gpu if shape.gpu else parts.threads / threads) + parts.publish
    cpu_s = play_cpu + travel_cpu + threads * train
    arrives = max(play, play_cpu / shape.cores) + travel  # after its weights are there
    bounds = {
        "play": play, "train": train, "buffer": buffer, "cores": cpu_s / shape.cores,
        "each other": arrives if shape.early else (arrives + train) / (shape.lag + 1),
    }  # fmt: skip
    seconds = max(bounds.values())
    if shape.early:
        lag = min(1.0, arrives / seconds)
    else:
        # rows that are played while the learner is still at the round before are of the version before
        lag = shape.lag * min(1.0, train / seconds) if shape.lag <= 1 else math.nan
    asked = actor.questions_per_s * play / seconds  # of the time that is play
    return Forecast(rows / seconds, play, travel, train, cpu_s, bounds, lag, asked, actor.batch * shape.envs)


# ---- which runs ----


class Row(NamedTuple):
    says: str
    shape: Shape
    measured: float | None = None  # env steps/s


def shape_of(path: Path, settings: Sequence[str], machine: Machine, gpu: float = 0.0) -> tuple[Shape, Any]:
    """Of a run with these settings, and its hyper-parameters."""
    config = load_config(path, settings)
    hyper: Any = load_hyper(config.app.algo, config.hyper, config.places)
    plan, cluster = make_plan(config.app, machine), config.app.wrapper_type == "remote"
    shape = Shape(
        plan.workers, plan.envs_per_worker, hyper.chunk_length, plan.cores, plan.learner_threads,
        lag=0.0 if not cluster else math.inf if plan.max_version_lag is None else plan.max_version_lag,
        early=cluster and plan.publish_early, cluster=cluster, remote=not plan.predict_local, gpu=gpu,
    )  # fmt: skip
    return shape, hyper


def alone(shape: Shape) -> Shape:
    """One process with as many environments, on as many cores."""
    envs = shape.workers * shape.envs
    return shape._replace(workers=1, envs=envs, threads=shape.cores, lag=0.0, early=False, cluster=False, remote=False)


def measured_rows(results: dict[str, Any], path: Path, machine: Machine) -> Iterator[Row]:
    """Those of bench_train that have the network of the parts, each with its own plan."""
    setup = results["setup"]
    machine = dataclasses.replace(machine, cores=len(setup["cores"]))
    whole, usual = shape_of(path, setup["set"], machine)
    for name, row in results["rows"].items():
        each = [one["env_steps_per_s"] for one in row["rounds"] if one.get("env_steps_per_s")]
        if not each:
            continue
        says, rate = f"{name}: {row['says']}", statistics.median(each)
        if row["kind"] == "plain" and not row["settings"]:
            yield Row(says, alone(whole), rate)
        elif row["kind"] in ("cluster", "local"):
            shape, hyper = shape_of(path, [*setup["set"], *row["settings"]], machine)
            if dataclasses.replace(hyper, chunk_length=usual.chunk_length) == usual:
                yield Row(says, shape, rate)


def usual_rows(path: Path, machine: Machine) -> Iterator[Row]:
    """Some of what bench_train measures, where it was not."""
    changes: list[tuple[str, tuple[str, ...]]] = [
        ("as the tuner chooses", ()),
        ("one process", ("wrapper_type=local",)),
    ]
    changes += [("predictions at the actor", ("predict_local_or_remote=remote",))]
    changes += [(f"{n} workers", (f"aisrv_count={n}",)) for n in (1, 2, 4, 8, 16)]
    changes += [(f"{n} environments a worker", (f"aisrv_connect_to_kaiwu_env_count={n}",)) for n in (1, 4, 16, 64, 256)]
    changes += [(f"chunks of {n}", (f"diy.chunk_length={n}",)) for n in (16, 32, 64, 128, 256)]
    for says, settings in changes:
        yield Row(says, shape_of(path, settings, machine)[0])


def larger_rows(path: Path, machine: Machine) -> Iterator[Row]:
    """On machines that were not at hand: the tuner's choice, and many workers."""
    auto = ("aisrv_count=auto", "aisrv_connect_to_kaiwu_env_count=auto")

    def row(says: str, settings: Sequence[str], cores: int, gpu: float = 0.0) -> Row:
        there = dataclasses.replace(machine, cores=cores, gpus=1 if gpu else 0)
        return Row(f"{cores} cores: {says}", shape_of(path, [*auto, *settings], there, gpu)[0])

    for cores in (4, 8, 16, 64):
        yield row("as the tuner chooses", (), cores)
        yield row("predictions at the actor", ("predict_local_or_remote=remote",), cores)
    many = ("aisrv_count=64",)
    for gpu in (10.0, 30.0, 100.0):
        yield row(f"64 workers, actor and learner on a GPU x {gpu:g}", many, 66, gpu)
    for gpu in (10.0, 30.0, 100.0):
        words = (*many, "predict_local_or_remote=local")
        yield row(f"64 workers that predict, learner on a GPU x {gpu:g}", words, 66, gpu)


def table(parts: Parts, rows: Sequence[Row]) -> str:
    """A line for each row. tau: its forecast over that of one process on the same cores."""
    names = ("forecast", "measured", "ratio", "tau", "play s", "travel s", "train s", "CPU s", "lag", "asks/s", "rows")
    text = [f"{'':58}" + "".join(f"{name:>10}" for name in names) + "  bound by"]
    for says, shape, rate in rows:
        made = forecast(parts, shape)
        bound = max(made.bounds, key=made.bounds.__getitem__)
        tau = "" if shape.gpu or not shape.cluster else (
            f"{made.env_steps_per_s / forecast(parts, alone(shape)).env_steps_per_s:.2f}"
        )  # fmt: skip
        cells = [
            f"{made.env_steps_per_s:,.0f}", f"{rate:,.0f}" if rate else "",
            f"{made.env_steps_per_s / rate:.2f}" if rate else "", tau,
            *(f"{one:.3f}" for one in (made.play_s, made.travel_s, made.train_s, made.cpu_s)), f"{made.lag:.2f}",
            f"{made.questions_per_s:,.0f}" if shape.remote else "", f"{made.rows:,.0f}",
        ]  # fmt: skip
        text.append(f"{says:58}" + "".join(f"{cell:>10}" for cell in cells) + f"  {bound}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, help="what bench_parts wrote")
    parser.add_argument("--measured", type=Path, default=None, help="what bench_train wrote of some of its rows")
    parser.add_argument("--network", choices=NETWORKS, default="default")
    args = parser.parse_args()
    found = runs.read_json(args.parts, "setup")
    if args.network not in found["setup"]:
        raise ConfigError(f"{args.parts}: has no parts of the network {args.network}")
    path = runs.ROOT / "conf" / NETWORKS[args.network]
    lines = [one for one in found["lines"] if one["network"] == args.network]
    machine = dataclasses.replace(this_machine(), gpus=0, has_reverb=any("reverb" in one["what"] for one in lines))
    results = runs.read_json(args.measured, "rows") if args.measured else None
    if results and results["setup"]["config"] != path.name:
        raise ConfigError(f"{args.measured}: was measured with {results['setup']['config']}, not {path.name}")
    setup = found["setup"][args.network]
    parts = read_parts(lines, setup["plan"]["backend"], setup["chunk_length"])
    rows = list(measured_rows(results, path, machine) if results else usual_rows(path, machine))
    print(table(parts, [*rows, *larger_rows(path, machine)]))


if __name__ == "__main__":
    runs.command_line(main)
