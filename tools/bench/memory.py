"""What a full replay memory of a million steps takes: to add, to draw 256 rows, to give them priorities; bytes a step.

    python tools/bench/memory.py --out train/memory.json

The steps have HalfCheetah's shape: 17 observations and 6 actions, float32. *Items* are rows of 216 bytes that a package
has made itself (`realm/data/native.py`); *chunks* are 20 steps each, and rows are cut out of them
(`realm/data/memory.py`). Medians of `--calls` calls; priorities are given to the rows of the draw before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.chunk import ChunkBuilder
from realm.contract import ActionSpec, Arrays, Draw, Field, Prediction, Spec, Version, chunk_to_arrays
from realm.data.memory import ReplayMemory
from realm.data.native import NativeStorage
from realm.errors import ConfigError
from tools import common

ROWS, LENGTH, OBS, ACTIONS = 256, 20, 17, 6
AT_ONCE = 1000  # items or environments, to fill a memory quickly


class Line(NamedTuple):
    """Microseconds of each call, and bytes of a step. priorities: None without them."""

    name: str
    add_us: float
    draw_us: float
    priorities_us: float | None
    bytes_a_step: float


def median_us(call: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def timed(name: str, storage: Any, one: Arrays, steps: int, prioritized: bool, calls: int) -> Line:
    def add_next() -> None:
        one["seq"] = one["seq"] + 1
        storage.add(one)

    add, draw = median_us(add_next, calls), median_us(lambda: storage.sample(ROWS), calls)
    priorities = None
    if prioritized:
        key, values = storage.sample(ROWS)[1].key, np.random.default_rng(0).random(ROWS)
        priorities = median_us(lambda: storage.update_priorities(key, values), calls)
    kept = [*storage._rows.values(), *vars(storage).values(), *(vars(storage._tree).values() if storage._tree else ())]
    return Line(name, add, draw, priorities, sum(one.nbytes for one in kept if isinstance(one, np.ndarray)) / steps)


def of_items(steps: int, prioritized: bool, calls: int) -> Line:
    shape = (50,)  # with the four integers of its origin 216 bytes
    origin = {name: Field((), "int32") for name in ("worker", "incarnation", "env", "seq")}
    fields = {"row": Field(shape, "float32"), **origin}
    sampler = "Prioritized" if prioritized else "Uniform"
    storage = NativeStorage(fields, steps, sampler, "Fifo", False, 0.6, 0)
    items = {name: np.ones((AT_ONCE, *field.shape), field.dtype) for name, field in fields.items()}
    for _ in range(steps // AT_ONCE):
        storage.add(items)
    one = {name: array[:1] for name, array in items.items()}
    return timed(f"items, {sampler.lower()}", storage, one, steps, prioritized, calls)


def of_chunks(steps: int, prioritized: bool, n_step: int, calls: int) -> Line:
    action = ActionSpec(low=(-1.0,) * ACTIONS, high=(1.0,) * ACTIONS)
    spec = Spec({"state": Field((OBS,), "float32")}, action, {}, LENGTH, draw=Draw(n_step))
    storage = ReplayMemory(spec, steps, prioritized, 0.6, 0)
    for worker, (envs, rounds) in enumerate(((AT_ONCE, steps // AT_ONCE // LENGTH), (1, 1))):  # the last one is timed
        obs = {"state": np.zeros((envs, OBS), np.float32)}
        builder = ChunkBuilder(spec, obs, worker)
        predicted = Prediction(np.zeros((envs, ACTIONS), np.float32), {}, Version(1, 0))
        nothing, never = np.zeros(envs, np.float32), np.zeros(envs, np.bool_)
        for _ in range(rounds):
            while not builder.full:
                builder.step(predicted, nothing, never, never, obs, {})
            chunks = chunk_to_arrays(builder.take())
            storage.add(chunks)
    name = f"chunks, {'prioritized' if prioritized else 'uniform'}{f', {n_step}-step rows' if n_step > 1 else ''}"
    return timed(name, storage, chunks, steps, prioritized, calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="that the memory holds")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if args.calls < 1 or args.steps < AT_ONCE * LENGTH or args.steps % (AT_ONCE * LENGTH):
        raise ConfigError(f"--calls must be at least 1, --steps a multiple of {AT_ONCE * LENGTH:,}")
    if args.out:
        common.check_out(args.out)
    lines = [of_items(args.steps, prioritized, args.calls) for prioritized in (False, True)]
    for prioritized, n_step in ((False, 1), (True, 1), (False, 3)):
        lines.append(of_chunks(args.steps, prioritized, n_step, args.calls))
    print(f"{'microseconds':28}{'add one':>10}{'draw ' + str(ROWS):>10}{'priorities':>12}{'bytes a step':>14}")
    for line in lines:
        priorities = common.number(line.priorities_us, ".0f")
        print(f"{line.name:28}{line.add_us:10.1f}{line.draw_us:10.0f}{priorities:>12}{line.bytes_a_step:14.0f}")
    if args.out:
        common.write_json(
            args.out, {"about": common.about(), "steps": args.steps, "lines": [x._asdict() for x in lines]}
        )


if __name__ == "__main__":
    common.command_line(main)
