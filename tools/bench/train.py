"""How fast training is: a cluster, one process, a plain loop and other frameworks, alternately in one run.

    tools/bench/peers.sh                                        # once: installs the other frameworks
    python tools/bench/train.py --out train/bench.json
    python tools/bench/train.py --rows plain tuner pufferlib --to-score 1150
    python tools/bench/train.py --config conf/reference.toml --rows plain local tuner
    python tools/bench/train.py --rows tuner --row many='aisrv_count=16' --row few='aisrv_connect_to_kaiwu_env_count=4'
    python tools/bench/train.py --table train/bench.json        # print the table of an earlier run again

Rows: plain (tools/bench/plain_ppo.py), local (one process), tuner (the cluster that the tuner chooses), one for each
peer, and with `-malloc` the peer with our allocator settings. `--row NAME='KEY=VALUE ...'` adds the tuner's cluster
with these changes. All train the same environments with the features, network, chunk length, minibatch and epochs of
`--config`. Each round starts every row once, from scratch; what counts begins after its first updates and lasts
`--seconds`. Our rows are seen every two seconds: take 60 for the published network, whose updates are long. The table
has medians over the rounds; the JSON has everything, after each row. A row that fails is tried again in the next round.
Peers compute in float32: `--set diy.precision='"fp32"'` says what our bfloat16 is worth. Each peer is first tried with
every number of threads for some seconds, and keeps the fastest.

s to score   with --to-score, a row goes on until the mean score of its last 200 episodes, looked at every two seconds,
             is that high. Seconds count from the start of the command; a round that does not get there is infinite
ratios       of two rows in the same round: the median over the rounds, and the range
tau          env steps/s of a cluster over those of one process (the row `local`), if both train the same
cores        CPU seconds a second: where cores are left, a row waits
MB           the peak of the sum of all processes' PSS, in which shared memory counts once
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config, to_toml
from realm.config.plan import Machine, Plan, this_machine
from realm.errors import ConfigError
from realm.launch.environment import role_environment
from tools import common
from tools.bench import limits, report
from tools.bench.report import Results
from tools.bench.watch import Curves, Lines, Point, Processes, Source, reached

PEERS = common.ROOT / ".cache" / "peers"  # an environment for each, made by tools/bench/peers.sh
SCRIPTS = common.ROOT / "tools" / "bench"
LIBGOMP_SPINS = "300000"  # its default
# of the caller's variables, those about threads and allocators: rows have their own
NOT_INHERITED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_NUM_THREADS", "MALLOC_")
WARM_UPDATES = 3  # of a run that do not count: kernels, allocators and queues fill meanwhile
POLL_S = 0.2
SAMPLE_S = 1.0  # between two looks at CPU time
START_S = 240.0  # a run without its first updates is given up after this time and a few `--seconds`
TRIAL_S = 8.0  # that count, of a peer with some number of threads

Figures = dict[str, Any]
# ---- rows ----


class Row(NamedTuple):
    """One line of the table. kind: plain, local, cluster or peer; settings: what follows each --set.

    same: it has the network and the number of environments of `--config`.
    """

    name: str
    says: str
    kind: str
    settings: tuple[str, ...] = ()
    allocator: bool = False  # peers: with the variables of our learner
    same: bool = True


def tuner_settings(app: AppConfig, machine: Machine) -> tuple[str, ...]:
    """A cluster whose workers and place of prediction the tuner chooses, with as many environments as `app` has."""
    total = common.plan_of(app, machine).round_size
    auto = ("aisrv_count", "aisrv_connect_to_kaiwu_env_count", "predict_local_or_remote", "train_batch_size",
            "replay_buffer_capacity")  # fmt: skip
    free = dataclasses.replace(app, **dict.fromkeys(auto, "auto"), wrapper_type="remote")
    chosen = common.plan_of(free, machine).workers
    workers = max(n for n in range(1, chosen + 1) if total % n == 0)
    return (
        "wrapper_type=remote", f"aisrv_count={'auto' if workers == chosen else workers}",
        f"aisrv_connect_to_kaiwu_env_count={total // workers}", "predict_local_or_remote=auto", "eval_cpu_share=0",
    )  # fmt: skip


def all_rows(path: Path, overrides: Sequence[str], tuner: tuple[str, ...], extra: Sequence[str]) -> list[Row]:
    """Ours, those of --row (`extra`), and two for each peer. path, overrides: the configuration of all."""
    total = common.plan_of(load_config(path, overrides).app).round_size
    one = ("wrapper_type=local", f"aisrv_connect_to_kaiwu_env_count={total}")
    rows = [Row("plain", "plain loop", "plain"), Row("local", "one process", "local", one)]
    rows.append(Row("tuner", "cluster as the tuner chooses", "cluster", tuner))
    for text in extra:
        name, equals, words = text.partition("=")
        changes = tuple(words.split())
        if not (equals and changes and re.fullmatch(r"[\w.-]+", name)):
            raise ConfigError(f"--row {text}: must be NAME='KEY=VALUE ...'")
        plan = common.plan_of(load_config(path, [*overrides, *tuner, *changes]).app)
        same = plan.round_size == total and not any(one.startswith("diy.") for one in changes)
        rows.append(Row(name, " ".join(changes), "cluster", (*tuner, *changes), same=same))
    for script in sorted((SCRIPTS / "peers").glob("*.py")):
        text = script.read_text()
        if re.search("^# requires: ", text, re.MULTILINE):
            says = (ast.get_docstring(ast.parse(text)) or script.stem).splitlines()[0].rstrip(".")
            rows.append(Row(script.stem, says, "peer"))
            rows.append(Row(f"{script.stem}-malloc", f"{says}, our allocator settings", "peer", allocator=True))
    return rows


def chosen_rows(rows: Sequence[Row], names: Sequence[str], extra: Sequence[str]) -> list[Row]:
    """Those named, without names all but `-malloc`; those of --row in any case."""
    if unknown := [name for name in names if name not in {row.name for row in rows}]:
        raise ConfigError(f"--rows {unknown[0]}: there is no such row, only {', '.join(row.name for row in rows)}")
    added = {text.partition("=")[0] for text in extra}
    return [row for row in rows if row.name in added or (row.name in names if names else not row.allocator)]


# ---- starting a row ----


class Start(NamedTuple):
    command: list[str]
    environment: dict[str, str]
    folder: Path = common.ROOT  # to work in


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that would make one row faster or slower than another one."""
    return {name: value for name, value in environment.items() if not name.startswith(NOT_INHERITED)}


def start_of(row: Row, config: Path, plan: Plan, run: Path, seed: int, temporary: str = "", threads: int = 1) -> Start:
    """How to start it. config: the file that all rows train by; run: a folder that is not there yet.

    For peers, temporary: a folder with a short name, since sockets are made in it; threads: of torch.

    Raises ConfigError if it cannot be started here.
    """
    environment = inherited(os.environ) | {"PYTHONUNBUFFERED": "1"}
    if row.kind != "peer":
        environment.setdefault("NUMBA_CACHE_DIR", str(common.ROOT / ".cache" / "numba"))
    same = ["--config", str(config), "--num-envs", str(plan.round_size), "--seed", str(seed)]
    if row.kind == "plain":
        plain = [sys.executable, str(SCRIPTS / "plain_ppo.py"), "--json", "--seconds", "1e9"]
        return Start([*plain, *same], environment)
    if row.kind == "peer":
        name = row.name.removesuffix("-malloc")
        home = PEERS / name
        if (home / "failed").exists():
            raise ConfigError(f"could not be installed: {(home / 'failed').read_text().strip()[-300:]}")
        if not (home / "installed").exists():
            raise ConfigError(f"is not installed: tools/bench/peers.sh {name}")
        # its own cache of kernels: its numba may be another one
        environment |= {"PYTHONPATH": str(common.ROOT), "NUMBA_CACHE_DIR": str(home / "numba"), "TMPDIR": temporary}
        # threads wait as they do without us: importing realm, as our environments do, makes them sleep at once
        environment |= {"GOMP_SPINCOUNT": LIBGOMP_SPINS, "OMP_NUM_THREADS": str(threads)}
        if row.allocator:
            ours = role_environment("learner", plan)
            environment |= {name: value for name, value in ours.items() if name.startswith("MALLOC_")}
        command = [str(home / "bin" / "python"), "-m", f"tools.bench.peers.{name}", *same, "--threads", str(threads)]
        return Start(command, environment, run)  # some write where they are
    place = [f"log_dir={run.parent}", f"run_name={run.name}", f"seed={seed}", "max_seconds=0", "max_env_steps=0"]
    return Start(common.start_command(config, [*row.settings, *place]), environment)


# ---- measuring it ----


class Wanted(NamedTuple):
    """When a row has run for long enough."""

    seconds: float
    score: float | None = None
    score_seconds: float = 0.0  # after which the score is not waited for any longer


def window(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """What counts: from the end of the first updates to the last one, each when it was seen first."""
    warm = {one.env_steps: one for one in reversed(points) if one.updates >= WARM_UPDATES}
    return (warm[min(warm)], warm[max(warm)]) if len(warm) > 1 else None


def measure(
    start: Start, log: Path, source: Callable[[], Source], wanted: Wanted, show: Callable[[str], None]
) -> Figures:
    """Run it for long enough and say what was seen. Raises RuntimeError if it came to nothing.

    If it ends by itself while its score is waited for, what was measured before stays, and `died` says why.
    """
    began, points = time.time(), list[Point]()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            start.command, cwd=start.folder, env=start.environment, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    seen, reader = Processes(process.pid), source()
    try:
        died = _watch(process, seen, reader, points, wanted, began, log, show)
    finally:
        reader.close()
        seen.end()
        process.wait()
    measured = window(points)
    assert measured
    first, last = measured
    steps, at_score = last.env_steps - first.env_steps, reached(points, wanted.score)
    return {
        "env_steps_per_s": steps / (last.time - first.time),
        "cpu_s_per_1000": 1000 * (seen.cpu_at(last.time) - seen.cpu_at(first.time)) / steps,
        "pss_mb": seen.pss_mb,
        "seconds_to_score": at_score.time - began if at_score else None,
        "env_steps_to_score": at_score.env_steps if at_score else None,
        "score": points[-1].score, "env_steps": last.env_steps, "updates": last.updates,
        "window_s": last.time - first.time, "start_s": points[0].time - began, "died": died,
    }  # fmt: skip


def _watch(
    process: subprocess.Popen[bytes], seen: Processes, reader: Source, points: list[Point], wanted: Wanted,
    began: float, log: Path, show: Callable[[str], None],
) -> str:  # fmt: skip
    """Look on until it has run for long enough; fills `points`. Returns why it ended by itself, "" if it did not."""
    sampled = 0.0
    while True:
        ended = process.poll() is not None
        now = time.time()
        if now - sampled >= SAMPLE_S:
            sampled = now
            seen.sample()
        points += reader.poll()
        measured = window(points)
        took = measured[1].time - measured[0].time if measured else 0.0
        if ended:
            died = f"ended by itself with exit code {process.returncode}: {last_words(log)}"
            if took < wanted.seconds:
                raise RuntimeError(died)
            return died
        waits_for_score = wanted.score is not None and not reached(points, wanted.score)
        if took >= wanted.seconds and not (waits_for_score and now - began < wanted.score_seconds):
            return ""
        if now - began > START_S + 3 * wanted.seconds and took < wanted.seconds:
            if measured:
                return ""  # slow: what there is
            raise RuntimeError(f"fewer than {WARM_UPDATES + 1} updates in {now - began:.0f} s: {last_words(log)}")
        rate = (measured[1].env_steps - measured[0].env_steps) / took if measured and took else 0.0
        show(f"{rate:,.0f}/s" + (f", score {points[-1].score:.0f}" if points and points[-1].score is not None else ""))
        time.sleep(POLL_S)


def last_words(log: Path) -> str:
    """Of a log: its last line with an error, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|Error|exception", line) and not line.startswith("File")]
    return ((errors or lines or ["it said nothing"])[-1])[:300]


def new_entry(row: Row) -> dict[str, Any]:
    """What results hold of a row. rounds: Figures of `measure`, with the number of the round; failures: [{round, why}];
    of a peer, trials: threads -> env steps/s, and threads: the fastest of them, "" before."""
    known = {"kind": row.kind, "says": row.says, "settings": list(row.settings), "same": row.same}
    return {**known, "rounds": [], "failures": [], "trials": {}, "threads": ""}


class Bench:
    """Runs rows in rounds and keeps the results."""

    def __init__(self, rows: Sequence[Row], args: argparse.Namespace, config: RunConfig, results: Results) -> None:
        self._rows, self._args, self._results = rows, args, results
        self._plan = common.plan_of(config.app)
        self._folder: Path = args.out.parent.absolute() / f"{args.out.stem}-runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config = self._folder / "config.toml"
        self._config.write_text(to_toml(config))
        self._wanted = Wanted(args.seconds, args.to_score, args.score_minutes * 60)
        self._began, self._done = time.monotonic(), 0
        self._progress = common.Progress()

    def run(self) -> None:
        """All rounds; every second one in the other order."""
        for number in range(1, self._args.rounds + 1):
            for row in self._rows if number % 2 else self._rows[::-1]:
                self._progress.say(self._line(row, number, self._one(row, number, self._results["rows"][row.name])))
                common.write_json(self._args.out, self._results)
                self._done += 1

    def _one(self, row: Row, number: int, entry: dict[str, Any]) -> str:
        """Run a row once; returns what to say of it."""
        log = self._folder / f"{row.name}-{number}.log"
        try:
            if row.kind == "peer" and not entry["threads"]:
                entry["trials"] = self._try_threads(row, number, log)
                entry["threads"] = max(entry["trials"], key=entry["trials"].__getitem__)
            figures = self._measure(row, number, log, int(entry["threads"] or 0), self._wanted)
        except Exception as error:  # whatever it is, the other rows go on
            why = str(error) if isinstance(error, RuntimeError | ConfigError) else f"{type(error).__name__}: {error}"
            entry["failures"].append({"round": number, "why": why})
            return f"failed: {why}" + (f" ({log})" if log.exists() else "")
        entry["rounds"].append({"round": number, **figures})
        text = f"{figures['env_steps_per_s']:,.0f} env steps/s"
        if figures["died"]:
            return f"{text}, but it did not come to its score: it {figures['died']} ({log})"
        log.unlink()
        return text

    def _try_threads(self, row: Row, number: int, log: Path) -> dict[str, float]:
        """Number of threads -> env steps/s, of those with which it works. Raises what the last one did if none does."""
        rates: dict[str, float] = {}
        counts = limits.numbers_of_threads(self._plan.cores)
        for threads in counts:
            wanted = Wanted(min(TRIAL_S, self._wanted.seconds))
            try:
                rates[str(threads)] = self._measure(row, number, log, threads, wanted)["env_steps_per_s"]
            except RuntimeError as error:
                self._progress.say(self._line(row, number, f"failed with {threads} threads: {error}"))
                if threads == counts[-1] and not rates:
                    raise
        return rates

    def _measure(self, row: Row, number: int, log: Path, threads: int, wanted: Wanted) -> Figures:
        """threads: of a peer. Leaves a log, which stays where it fails."""
        run = log.with_suffix("")
        shutil.rmtree(run, ignore_errors=True)  # of a measurement that was interrupted

        def source() -> Source:
            return Lines(log) if row.kind in ("plain", "peer") else Curves(run)

        with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as temporary:
            try:
                start = start_of(row, self._config, self._plan, run, number, temporary, threads)
                start.folder.mkdir(exist_ok=True)
                show = self._progress.show
                return measure(start, log, source, wanted, lambda text: show(self._line(row, number, text)))
            finally:
                shutil.rmtree(run, ignore_errors=True)

    def _line(self, row: Row, number: int, text: str) -> str:
        todo = self._args.rounds * len(self._rows) - self._done
        left = f"about {todo * (time.monotonic() - self._began) / self._done / 60:.0f}" if self._done else "unknown"
        return f"round {number} of {self._args.rounds}, {row.name}: {text}; {left} min left"


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every row, repeatable")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="default: all but those of -malloc")
    parser.add_argument("--row", action="append", default=[], metavar="NAME='KEY=VALUE ...'",
                        help="one more row: the tuner's cluster with these changes, repeatable")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="that count, of each row and round")
    parser.add_argument("--to-score", type=float, metavar="POINTS", nargs="?", const=1150.0,
                        help="go on until the mean score of the training episodes is this high (1150)")  # fmt: skip
    parser.add_argument("--score-minutes", type=float, default=20.0, help="after these it is not waited for any longer")
    parser.add_argument("--out", type=Path, default=Path("train/bench.json"), help="where to write the figures")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print table and ratios of this JSON again, and end")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds must be 1 or more, --seconds above 0")
    return args


def main() -> None:
    args = arguments()
    if args.table:
        print(report.told(common.read_json(args.table, "rows")))
        return
    common.end_in_order()
    config = load_config(args.config, args.set)
    if config.app.algo != "diy":
        raise ConfigError(f"{args.config}: algo is {config.app.algo!r}; it must be diy, whose network all rows have")
    tuner = tuner_settings(config.app, this_machine())
    rows = chosen_rows(all_rows(args.config, args.set, tuner, args.row), args.rows, args.row)
    common.check_out(args.out)
    plan = common.plan_of(load_config(args.config, [*args.set, *tuner]).app)
    setup = {
        "config": args.config.name, "set": args.set, "rounds": args.rounds, "seconds": args.seconds,
        "num_envs": plan.round_size, "to_score": args.to_score,
    }  # fmt: skip
    results = {"about": common.about(), "setup": setup, "rows": {}}
    results["rows"] = {row.name: new_entry(row) for row in rows}
    stopped = False
    try:
        Bench(rows, args, config, results).run()
    except KeyboardInterrupt:
        stopped = True
    text = report.told(results)
    common.write_json(args.out, results)
    print(f"\n{text}\n{args.out}")
    if stopped:
        sys.exit("stopped: the table has what was measured before")


if __name__ == "__main__":
    common.command_line(main)
