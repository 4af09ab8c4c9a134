"""Draws a curve of runs from their TensorBoard files: a line per run, against env steps (left) and minutes (right).

python tools/study/plot_curve.py train/my_run
python tools/study/plot_curve.py train/a train/b --tag evaluation/score --smooth 1 --mark 1350 --out curve.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.errors import ConfigError
from tools import common


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Running mean over the last `width` values."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - width, 0)
    return (sums[end] - sums[begin]) / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tag", default="episode/score")
    parser.add_argument("--out", type=Path, default=Path("curve.png"))
    parser.add_argument("--mark", type=float, action="append", default=[], help="draw a horizontal line at this value")
    parser.add_argument("--smooth", type=int, default=5, help="running mean over that many values")
    args = parser.parse_args()
    common.check_out(args.out)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for run in args.runs:
        curves = common.read_curves(run)
        if args.tag not in curves:
            raise ConfigError(f"{run} has no curve {args.tag!r}, only: {', '.join(sorted(curves)) or 'none'}")
        curve = curves[args.tag]
        for axes, x in ((left, curve.env_steps / 1e6), (right, curve.minutes)):
            line = axes.plot(x, smooth(curve.value, args.smooth), label=run.name)[0]
            axes.plot(x, curve.value, color=line.get_color(), alpha=0.15, linewidth=0.8)
        print(f"{run}: {len(curve.value)} values to {curve.env_steps[-1]:,.0f} env steps, last {curve.value[-1]:.4g}")
    for axes, label in ((left, "million env steps"), (right, "minutes")):
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        for value in args.mark:
            axes.axhline(value, color="black", linestyle="--", linewidth=0.8)
            axes.annotate(f"{value:g}", (0, value), xytext=(3, 3), textcoords="offset points", fontsize=8)
    left.set_ylabel(args.tag)
    left.legend()
    figure.savefig(args.out, dpi=120)
    print(args.out)


if __name__ == "__main__":
    common.command_line(main)
