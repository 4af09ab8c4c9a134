"""Two clusters in turns of some seconds, of which one is stopped (SIGSTOP) while the other trains.

    python tools/bench/turns.py --a predict_local_or_remote=local --b predict_local_or_remote=remote

For differences of a few per cent on a machine whose speed changes from minute to minute: rounds of whole runs, as
tools/bench/train.py makes them, are too far apart for that. Prints the env steps/s of both in each turn, the median of
b / a, and the CPU microseconds of each role for an env step: they say more where other programs use the cores.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.errors import ConfigError, RunError
from tools import common

_START_S, _SETTLE_S = 240.0, 1.0
_FIRST_EVENTS = 4  # of the curves, which are written every two seconds: kernels and queues are warm then


class Turn(NamedTuple):
    """begin, end: seconds since 1970; cpu: role -> CPU seconds meanwhile."""

    begin: float
    end: float
    cpu: dict[str, float]


class Cluster:
    """A run that trains only in its turns."""

    def __init__(self, config: Path, settings: list[str], folder: Path) -> None:
        self.run, self.turns = folder / "run", list[Turn]()
        folder.mkdir()
        place = [f"log_dir={folder}", "run_name=run", "eval_cpu_share=0"]
        with open(folder / "log", "w") as log:
            self._process = subprocess.Popen(
                common.start_command(config, [*settings, *place]), stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + _START_S
        while not self.run.exists() or len(self.points()) < _FIRST_EVENTS:
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise RunError(f"the run with {settings} did not start: {(folder / 'log').read_text()[-1000:]}")
            time.sleep(0.5)
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGINT)
            self._process.wait(120)

    def take_turn(self, seconds: float) -> None:
        self._signal(signal.SIGCONT)
        time.sleep(_SETTLE_S)
        before, begin = self._cpu(), time.time()
        time.sleep(seconds)
        after, end = self._cpu(), time.time()
        self._signal(signal.SIGSTOP)
        self.turns.append(Turn(begin, end, {role: cpu - before.get(role, 0.0) for role, cpu in after.items()}))

    def points(self) -> list[tuple[float, int]]:
        """Time and env steps of each event of its curves."""
        return [(event.time, event.env_steps) for event in common.read_events(self.run) if event.values]

    def speeds(self) -> list[float]:
        """Env steps/s of each turn, between its first and its last event; 0 where it has no two."""
        events, speeds = self.points(), list[float]()
        for turn in self.turns:
            inside = [event for event in events if turn.begin <= event[0] <= turn.end]
            (t0, n0), (t1, n1) = inside[:1] + inside[-1:] if len(inside) > 1 else [(0.0, 0), (1.0, 0)]
            speeds.append((n1 - n0) / (t1 - t0) if n1 > n0 else 0.0)
        return speeds

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._tree():
            process.send_signal(number)

    def _cpu(self) -> dict[str, float]:
        """Role -> CPU seconds so far; what has no role is the supervisor's."""
        cpu: dict[str, float] = {}
        for process in self._tree():
            words = " ".join(process.cmdline()).split()
            role = words[1].partition("-")[0] if words[:1] == ["realm"] else "supervisor"
            times = process.cpu_times()
            cpu[role] = cpu.get(role, 0.0) + times.user + times.system
        return cpu


def compare(a: Cluster, b: Cluster, turns: int, seconds: float) -> dict[str, Any]:
    """Let both take their turns, and say what was seen."""
    progress = common.Progress()
    for number in range(turns):
        progress.show(f"turn {number + 1} of {turns}; {2 * (turns - number) * (seconds + _SETTLE_S) / 60:.0f} min left")
        for cluster in (a, b) if number % 2 == 0 else (b, a):
            cluster.take_turn(seconds)
    progress.clear()
    speeds = {"a": a.speeds(), "b": b.speeds()}
    ratios = sorted(y / x for x, y in zip(speeds["a"], speeds["b"], strict=True) if x > 0 and y > 0)
    if not ratios:
        raise RunError("no turn had two updates; choose a greater --seconds")
    costs = {}
    for name, cluster in (("a", a), ("b", b)):
        pairs = [(turn, v) for turn, v in zip(cluster.turns, speeds[name], strict=True) if v > 0]
        roles = sorted({role for turn, _ in pairs for role in turn.cpu})
        costs[name] = {
            role: statistics.median(1e6 * turn.cpu.get(role, 0.0) / (turn.end - turn.begin) / v for turn, v in pairs)
            for role in roles
        }
    return {"steps_per_s": speeds, "ratios": ratios, "ratio": statistics.median(ratios), "cpu_us_a_step": costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", nargs="+", required=True, metavar="KEY=VALUE", help="settings of the first cluster")
    parser.add_argument("--b", nargs="+", required=True, metavar="KEY=VALUE", help="settings of the second")
    parser.add_argument("--config", type=Path, default=common.ROOT / "conf" / "configure_app.toml")
    parser.add_argument("--turns", type=int, default=20, help="of each")
    parser.add_argument("--seconds", type=float, default=7.0, help="of a turn; three updates at least")
    parser.add_argument("--out", type=Path, default=Path("train/turns.json"), help="where to write the figures")
    args = parser.parse_args()
    if args.turns < 1 or args.seconds <= 0:
        raise ConfigError("--turns must be 1 or more, --seconds above 0")
    common.check_out(args.out)
    common.end_in_order()
    with tempfile.TemporaryDirectory(prefix="realm-turns-") as folder:
        clusters: list[Cluster] = []
        try:
            for name, settings in (("a", args.a), ("b", args.b)):
                clusters.append(Cluster(args.config, settings, Path(folder) / name))
            seen = compare(*clusters, args.turns, args.seconds)
        finally:
            for cluster in clusters:
                cluster.close()
    ratios, costs = seen["ratios"], seen["cpu_us_a_step"]
    print(f"b / a  {seen['ratio']:.3f}, from {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs of turns")
    for name, settings in (("a", args.a), ("b", args.b)):
        parts = ", ".join(f"{role} {value:.1f}" for role, value in costs[name].items())
        print(f"{name}  {' '.join(settings)}\n   CPU us a step: {sum(costs[name].values()):.1f} ({parts})")
    common.write_json(args.out, {"about": common.about(), "a": args.a, "b": args.b, **seen})


if __name__ == "__main__":
    common.command_line(main)
