"""Draws curves of runs from their TensorBoard files: tools/plot_curve.py RUN... [--tag episode/score] [--out curve.png]

One line a run, against env steps (left) and against minutes (right). A mark draws a horizontal line.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def read(run: Path, tag: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(env steps, minutes since the run's start, value) of one curve of a run."""
    # as in realm/monitor.py: without this, tensorboard imports TensorFlow where that is installed
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "log" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    if tag not in events.Tags()["scalars"]:
        names = ", ".join(sorted(events.Tags()["scalars"])) or "none"
        sys.exit(f"error: {run} has no curve {tag!r}; it has: {names}")
    scalars = events.Scalars(tag)
    minutes = (np.array([one.wall_time for one in scalars]) - events.FirstEventTimestamp()) / 60
    return np.array([one.step for one in scalars]), minutes, np.array([one.value for one in scalars])


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Running mean over the last `width` values."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    begin = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    end = np.arange(1, len(values) + 1)
    return (sums[end] - sums[begin]) / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tag", default="episode/score")
    parser.add_argument("--out", type=Path, default=Path("curve.png"))
    parser.add_argument("--mark", type=float, action="append", default=[], help="draw a line at this value")
    parser.add_argument("--smooth", type=int, default=5, help="running mean over so many values")
    arguments = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for run in arguments.runs:
        steps, minutes, values = read(run, arguments.tag)
        for axes, x in ((left, steps / 1e6), (right, minutes)):
            line = axes.plot(x, smooth(values, arguments.smooth), label=run.name)[0]
            axes.plot(x, values, color=line.get_color(), alpha=0.15, linewidth=0.8)
    for axes, label in ((left, "million env steps"), (right, "minutes")):
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        for value in arguments.mark:
            axes.axhline(value, color="black", linestyle="--", linewidth=0.8)
            axes.annotate(f"{value:g}", (0, value), xytext=(3, 3), textcoords="offset points", fontsize=8)
    left.set_ylabel(arguments.tag)
    left.legend()
    figure.savefig(arguments.out, dpi=120)
    print(arguments.out)


if __name__ == "__main__":
    main()
