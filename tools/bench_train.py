"""How fast training is: the cluster, one process, a plain loop and other frameworks, alternately in one run.

    tools/bench_peers.sh                                        # once: installs the other frameworks
    python tools/bench_train.py --out train/bench_train.json
    python tools/bench_train.py --config conf/reference.toml --rows plain local tuner
    python tools/bench_train.py --rows plain tuner sb3 --to-score 1150
    python tools/bench_train.py --rows tuner slow               # combinations that one should not take
    python tools/bench_train.py --rows tuner scale              # more workers, environments, steps, neurons
    python tools/bench_train.py --list
    python tools/bench_train.py --table train/bench_train.json  # print the table of an earlier run again

Every row trains the same environments with the same features, network, chunk length, minibatch and epochs, those of
`--config`. In each round every row is started once, from scratch; what counts begins after its first updates and lasts
`--seconds`. The table has the median over the rounds; everything is in the JSON, after each row. A row that fails is
tried again in the next round. `--to-score` lets a row go on until the mean score of its last 200 episodes, looked at
every two seconds, is that high; its seconds count from the start of the command, and a round that did not come so far
counts as infinitely long. Peers compute in float32, as they come; the row plain-fp32 says what our bfloat16 is worth.
Before its first round a peer is started for some seconds with each number of threads, which also fills its cache of
kernels; it keeps the fastest.

Ratios are of two rows in the same round: the median over the rounds, and the range.

eta     share of the time that gradient steps, forward passes and environments need alone (tools/limits.py, measured
        at the start of the same round); of rows with the network and precision of --config
tau     env steps/s of a cluster over those of one process (the row `local`), if both train the same
cores   CPU seconds a second: where cores are left, a row waits, for others or for a learner with too few threads
memory  the peak of the sum of all processes' PSS, in which memory that is shared counts once; seen every two seconds
threads of each role: those that computed (2 % of the time or more), and after the stroke all that there are; of a peer:
        those that it was given, with what it did in its trials
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config, to_toml
from realm.config.plan import Machine, Plan, make_plan, this_machine
from realm.errors import ConfigError
from realm.launch.environment import role_environment
from realm.user import load_hyper
from realm.watch.board import RECENT_EPISODES, RecentMean
from tools import limits, runs

NO_EVALUATOR = "eval_cpu_share=0"
PEERS = runs.ROOT / ".cache" / "peers"  # an environment for each, made by tools/bench_peers.sh
ASKED_FOR = ("slow", "scale")  # groups of rows that only run where they are named
LIBGOMP_SPINS = "300000"  # its default
# of the caller's variables, what says how threads and allocators work: rows have their own
NOT_INHERITED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_NUM_THREADS", "MALLOC_")
WARM_UPDATES = 3  # of a run that do not count: kernels, allocators and queues fill meanwhile
POLL_S = 0.2
LOOK_S = 2.0  # between two looks at a score: as often as a run in one process writes its curves
SAMPLE_S = 1.0  # between two looks at CPU time
MEMORY_S = 2.0  # ... at memory, which costs more
BUSY = 0.02  # of a thread's time: above, it computes
START_S = 240.0  # a run without its first updates is given up after this time and a few `--seconds`
TRIAL_S = 8.0  # that count, of a peer with some number of threads
STOP_S = 60.0  # an update of the reference's network takes some seconds, and is finished first

Figures = dict[str, Any]
Results = dict[str, Any]
"""{about, setup, limits, rows: {name: entry}}; entry: of `new_entry`, and with `add_ratios` what it adds; limits: of
`middle_limits`, or None"""


# ---- what there is ----


class Row(NamedTuple):
    """One line of the table. kind: plain, local, cluster or peer; settings: what follows each --set.

    same: it has the network, the number of environments, the chunks and the precision of `--config`.
    """

    name: str
    group: str
    says: str
    kind: str
    settings: tuple[str, ...] = ()
    allocator: bool = False  # peers: with the variables of our learner
    same: bool = True


def tuner_settings(app: AppConfig, machine: Machine) -> tuple[str, ...]:
    """A cluster whose workers and place of prediction the tuner chooses, with as many environments as `app` has."""
    total = make_plan(app, machine).round_size
    free = dataclasses.replace(
        app, wrapper_type="remote", aisrv_count="auto", aisrv_connect_to_kaiwu_env_count="auto",
        predict_local_or_remote="auto", train_batch_size="auto", replay_buffer_capacity="auto",
    )  # fmt: skip
    chosen = make_plan(free, machine).workers
    workers = most_workers(total, chosen)
    return (
        "wrapper_type=remote",
        f"aisrv_count={'auto' if workers == chosen else workers}",
        f"aisrv_connect_to_kaiwu_env_count={total // workers}",
        "predict_local_or_remote=auto",
    )


def most_workers(total: int, most: int) -> int:
    """How many workers, `most` or fewer, can have equally many of `total` environments."""
    return max(n for n in range(1, most + 1) if total % n == 0)


def our_rows(total: int, tuner: tuple[str, ...]) -> list[Row]:
    """The plain loop, one process, and clusters. total: environments; tuner: of `tuner_settings`."""
    one = ("wrapper_type=local", f"aisrv_connect_to_kaiwu_env_count={total}")
    rows = [
        Row("plain", "yardstick", "plain loop", "plain"),
        Row("plain-fp32", "yardstick", "plain loop, float32", "plain", ("precision='fp32'",), same=False),
        Row("tuner", "default", "as the tuner chooses", "cluster", (*tuner, NO_EVALUATOR)),
        Row("tuner-evaluator", "default", "as the tuner chooses, with the evaluator", "cluster", tuner),
        Row("local", "yardstick", "one process", "local", one),
    ]
    for workers in (1, 2, 4):
        if workers > total:
            continue
        for where, place in (("central", "remote"), ("local", "local")):
            for backend in ("reverb", "native"):
                settings = (
                    "wrapper_type=remote",
                    NO_EVALUATOR,
                    *cluster(workers, total // workers),
                    f"predict_local_or_remote={place}",
                    f"buffer_backend={backend}",
                )
                name, s = f"cluster-{workers}-{where}-{backend}", "s" * (workers > 1)
                says = f"{workers} worker{s}, {where} prediction, {backend}"
                rows.append(Row(name, "cluster", says, "cluster", settings, same=total % workers == 0))
    return rows


def slow_rows(plan: Plan, tuner: tuple[str, ...]) -> list[Row]:
    """What one should not do, each a change of what the tuner chooses, which `plan` is of."""
    total = plan.round_size
    many, few = most_workers(total, 8 * plan.cores), most_workers(total, plan.cores)
    place = "remote" if plan.predict_local else "local"
    # as many workers as the tuner has, which would choose another number beside these changes
    base = (*tuner, *cluster(plan.workers, plan.envs_per_worker), NO_EVALUATOR)
    changes: list[tuple[str, str, tuple[str, ...]]] = [
        ("workers", f"{many} workers", cluster(many, total // many)),
        ("threads", f"{8 * plan.cores} threads to learn", (f"torch_num_threads={8 * plan.cores}",)),
        ("batch", "4 environments, so batches of 4 chunks", cluster(1, 4)),
        ("place", f"prediction {place}", (f"predict_local_or_remote={place}",)),
        ("place-many", f"prediction {place}, {many} workers",
         (f"predict_local_or_remote={place}", *cluster(many, total // many))),
        ("flow", "alternating flow, no lag", ("flow=alternating", "max_version_lag=0", *cluster(few, total // few))),
    ]  # fmt: skip
    return [
        Row(f"slow-{name}", "slow", says, "cluster", (*base, *settings), same=name != "batch")
        for name, says, settings in changes
    ]


def scale_rows(plan: Plan, tuner: tuple[str, ...], chunk_length: int, hidden: int | None) -> list[Row]:
    """The tuner's choice with one number smaller or larger.

    chunk_length, hidden: what the configuration has; hidden None where the network has no such number.
    """
    workers, envs = plan.workers, plan.envs_per_worker
    base = (*tuner, *cluster(workers, envs), NO_EVALUATOR)
    changes: list[tuple[str, str, int | None, tuple[int, ...], Callable[[int], tuple[str, ...]]]] = [
        ("workers", "{} workers", workers, (1, 2, 4, 8, 16), lambda n: cluster(n, envs)),
        ("envs", "{} environments a worker", envs, (1, 4, 16, 64, 256), lambda n: cluster(workers, n)),
        ("chunk", "chunks of {} steps", chunk_length, (16, 32, 64, 128, 256), lambda n: (f"diy.chunk_length={n}",)),
        ("hidden", "layers of {}", hidden, (64, 128, 256, 512, 1024), lambda n: (f"diy.hidden={n}",)),
    ]
    return [
        Row(f"{name}-{n}", "scale", say.format(n), "cluster", (*base, *settings(n)), same=False)
        for name, say, usual, numbers, settings in changes
        if usual is not None
        for n in numbers
        if n != usual
    ]


def cluster(workers: int, envs: int) -> tuple[str, ...]:
    return (f"aisrv_count={workers}", f"aisrv_connect_to_kaiwu_env_count={envs}")


def peer_rows() -> list[Row]:
    """Two for each script in tools/peers that says what it requires; its docstring is what the table says."""
    rows = []
    for script in sorted((runs.ROOT / "tools" / "peers").glob("*.py")):
        text = script.read_text()
        if not re.search("^# requires: ", text, re.MULTILINE):
            continue
        says = (ast.get_docstring(ast.parse(text)) or script.stem).splitlines()[0].rstrip(".")
        rows.append(Row(script.stem, "peer", says, "peer"))
        rows.append(Row(f"{script.stem}-malloc", "peer", "... with our allocator settings", "peer", (), True))
    return rows


def chosen_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """By name or by group; without names all but those of the groups ASKED_FOR."""
    known = {row.name for row in rows} | {row.group for row in rows}
    for name in names:
        if name not in known:
            raise ConfigError(f"--rows {name}: there is no such row; allowed is what --list shows, or a group of it")
    if names:
        return [row for row in rows if row.name in names or row.group in names]  # no group has the name of a row
    return [row for row in rows if row.group not in ASKED_FOR]


# ---- starting a row ----


class Start(NamedTuple):
    command: list[str]
    environment: dict[str, str]
    folder: Path = runs.ROOT  # to work in


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that would make one row faster or slower than another one."""
    return {name: value for name, value in environment.items() if not name.startswith(NOT_INHERITED)}


def start_of(row: Row, config: Path, plan: Plan, run: Path, seed: int, temporary: str = "", threads: int = 1) -> Start:
    """How to start it. config: the file that all rows train by; run: a folder that is not there yet.

    For peers, temporary: a folder with a short name, since sockets are made in it; threads: of torch.

    Raises ConfigError if it cannot be started here.
    """
    learner = role_environment("learner", plan)
    allocator = {name: value for name, value in learner.items() if name.startswith("MALLOC_")}
    environment = inherited(os.environ) | {"PYTHONUNBUFFERED": "1"}
    if row.kind != "peer":
        environment.setdefault("NUMBA_CACHE_DIR", str(runs.ROOT / ".cache" / "numba"))
    same = ["--config", str(config), "--num-envs", str(plan.round_size), "--seed", str(seed)]
    if row.kind == "plain":
        words = [word for one in row.settings for word in ("--set", one)]
        plain = [sys.executable, str(runs.ROOT / "tools" / "plain_ppo.py"), "--json", "--seconds", "1e9"]
        return Start([*plain, *same, *words], environment)
    if row.kind == "peer":
        name = row.name.removesuffix("-malloc")
        python = PEERS / name / "bin" / "python"
        if (PEERS / name / "failed").exists():
            raise ConfigError(f"could not be installed: {(PEERS / name / 'failed').read_text().strip()[-300:]}")
        if not (PEERS / name / "installed").exists():
            raise ConfigError(f"is not installed: tools/bench_peers.sh {name}")
        # its own cache of kernels: its numba may be another one
        environment |= {"PYTHONPATH": str(runs.ROOT), "NUMBA_CACHE_DIR": str(PEERS / name / "numba")}
        environment |= allocator if row.allocator else {}
        # threads wait as they do without us: importing realm, as our environments do, makes them sleep at once
        environment |= {"GOMP_SPINCOUNT": LIBGOMP_SPINS, "OMP_NUM_THREADS": str(threads), "TMPDIR": temporary}
        same += ["--threads", str(threads)]
        return Start([str(python), "-m", f"tools.peers.{name}", *same], environment, run)  # some write where they are
    place = [f"log_dir={run.parent}", f"run_name={run.name}", f"seed={seed}", "max_seconds=0", "max_env_steps=0"]
    return Start(runs.start_command(config, [*row.settings, *place]), environment)


# ---- watching it ----


class Point(NamedTuple):
    """What was known of a run when an update was done."""

    time: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # mean of the last RECENT_EPISODES episodes


class Score:
    """Mean over the last RECENT_EPISODES episodes, as the live line has it: of each row the same, however often it
    says something."""

    def __init__(self) -> None:
        self._recent = RecentMean()

    def take(self, mean: float | None, count: float) -> float | None:
        """So many more episodes had this mean; returns the recent one, None before there are enough."""
        if mean is not None and count > 0:
            self._recent.take(mean, count)
        return self._recent.mean() if self._recent.taken >= RECENT_EPISODES else None


class Source(Protocol):
    def poll(self) -> list[Point]:
        """Points that are new."""
        ...

    def close(self) -> None: ...


class Lines:
    """The lines of JSON that tools/plain_ppo.py and peers write into their log."""

    def __init__(self, log: Path) -> None:
        self._file = open(log, "rb")  # noqa: SIM115 - closed by `close`
        self._rest = b""
        self._score = Score()

    def poll(self) -> list[Point]:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        points = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a log has other lines, too
                one = json.loads(line)
                score = self._score.take(one["score"], one["episodes"])
                points.append(Point(one["time"], one["env_steps"], one["updates"], score))
        return points

    def close(self) -> None:
        self._file.close()


class Status:
    """What a cluster's supervisor answers; env steps change there when the learner reports, right after an update."""

    def __init__(self, run: Path) -> None:
        self._watched = runs.Watched(run)
        self._env_steps = 0

    def poll(self) -> list[Point]:
        answer = self._watched.status()
        if answer is None:
            return []
        totals = answer.mapping("roles")["learner-0"]["totals"]
        env_steps, updates = int(totals.get("env_steps_trained", 0)), int(totals.get("updates", 0))
        if env_steps == self._env_steps:
            return []
        self._env_steps = env_steps
        line = answer.mapping("line")
        enough = int(line["episodes"].replace(",", "")) >= RECENT_EPISODES
        score = float(line["mean score"]) if enough and line["mean score"] != "-" else None
        return [Point(time.time(), env_steps, updates, score)]

    def close(self) -> None:
        self._watched.close()


class Curves:
    """The curves of a run in one process, which are written right after an update, every two seconds."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen = 0
        self._looked = 0.0
        self._before: float | None = None  # when the event before was written
        self._score = Score()

    def poll(self) -> list[Point]:
        if time.monotonic() - self._looked < LOOK_S or not (self._run / "log" / "tensorboard").exists():
            return []
        self._looked = time.monotonic()
        found = event_values(self._run / "log" / "tensorboard")
        new, self._seen = found[self._seen :], len(found)
        points = []
        for at, env_steps, values in new:
            # the rate is since the event before; since when that of the first one is, is not known
            episodes = values.get("rate/aisrv/episodes_per_s", 0.0) * (at - (self._before or at))
            self._before = at
            score = self._score.take(values.get("episode/score"), episodes)
            points.append(Point(at, env_steps, int(values.get("learner/version_update", 0)), score))
        return points

    def close(self) -> None: ...


def event_values(folder: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Of TensorBoard's files: time, step and values of each event that has any."""
    # as in realm/monitor.py: without this, tensorboard imports TensorFlow where that is installed
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            values = {value.tag: value.simple_value for value in event.summary.value}
            if values:
                found.append((event.wall_time, int(event.step), values))
    return found


class Processes:
    """A process with all that it started: CPU time, memory, threads."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known = {self._root: "main"}  # -> role
        self._cpu: dict[psutil.Process, float] = {}  # stays when a process ends
        self.history: list[tuple[float, float]] = []  # time, CPU seconds of all so far
        self.pss_mb = self.rss_mb = 0.0  # peaks
        self._memory_at = 0.0

    def sample(self) -> None:
        now = time.time()
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self._root.children(recursive=True):
                if process not in self._known:
                    with contextlib.suppress(psutil.Error):
                        self._known[process] = role_of(process.cmdline(), process.name())
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                self._cpu[process] = used.user + used.system
        self.history.append((now, sum(self._cpu.values())))
        if now - self._memory_at >= MEMORY_S:
            self._memory_at = now
            self.pss_mb = max(self.pss_mb, sum(pss_mb(one.pid) for one in self.alive()))
            self.rss_mb = max(self.rss_mb, sum(rss_mb(one) for one in self.alive()))

    def alive(self) -> list[psutil.Process]:
        return [one for one in self._known if one.is_running()]

    def cpu_at(self, when: float) -> float:
        """CPU seconds used until then, between two looks in proportion."""
        before = [one for one in self.history if one[0] <= when] or self.history[:1]
        after = [one for one in self.history if one[0] > when] or self.history[-1:]
        (t0, c0), (t1, c1) = before[-1], after[0]
        return c0 + (c1 - c0) * (when - t0) / (t1 - t0) if t1 > t0 else c0

    def cpu_of_roles(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for process, seconds in self._cpu.items():
            found[self._known[process]] += seconds
        return dict(found)

    def threads(self) -> dict[tuple[psutil.Process, int], float]:
        """(process, thread) -> CPU seconds."""
        found = {}
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                found.update({(process, one.id): one.user_time + one.system_time for one in process.threads()})
        return found

    def threads_of_roles(
        self, before: Mapping[tuple[psutil.Process, int], float], seconds: float
    ) -> dict[str, list[list[int]]]:
        """Role -> [threads that computed since, all threads] of each of its processes."""
        counts: dict[psutil.Process, list[int]] = defaultdict(lambda: [0, 0])
        for key, used in self.threads().items():
            counts[key[0]][0] += used - before.get(key, used) >= BUSY * seconds
            counts[key[0]][1] += 1
        found: dict[str, list[list[int]]] = defaultdict(list)
        for process, count in counts.items():
            found[self._known[process]].append(count)
        return dict(found)

    def end(self) -> None:
        """End the first process, in order, and then whatever is left."""
        self.sample()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root.terminate()
        psutil.wait_procs([self._root], STOP_S)
        left = self.alive()
        psutil.wait_procs(left, 5)  # they end by themselves when the first one is gone
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)


def role_of(words: Sequence[str], name: str) -> str:
    """Which of our roles a command line is of, or the nursery that roles come from; else the process's name."""
    if tuple(words[2:4]) == ("realm", "nursery"):
        return "nursery"
    for before, word, role in zip(words, words[1:], words[2:], strict=False):
        if (before, word) == ("realm", "role"):
            return role
    return name.split("::")[0]


def pss_mb(pid: int) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:  # it has just ended
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def rss_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:
        return 0.0


# ---- measuring it ----


class Wanted(NamedTuple):
    """When a row has run for long enough."""

    seconds: float
    score: float | None = None
    score_seconds: float = 0.0  # after which the score is not waited for any longer


def window(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """What counts: from the end of the first updates to the last one."""
    warm = [one for one in points if one.updates >= WARM_UPDATES]
    return (warm[0], warm[-1]) if len(warm) > 1 else None


def reached(points: Sequence[Point], score: float | None) -> Point | None:
    """When the score was reached first: on the line between the two points around it.

    Points that come much sooner than LOOK_S after another are passed over, since a run in one process has no others,
    and who looks at a noisy mean after each update finds it high sooner.
    """
    if score is None:
        return None
    before: Point | None = None
    for one in points:
        if one.score is None or (before is not None and one.time - before.time < 0.9 * LOOK_S):
            continue
        if one.score >= score:
            if before is None or before.score is None:
                return one
            part = (score - before.score) / (one.score - before.score)
            time_, env_steps = (a + part * (b - a) for a, b in zip(before[:2], one[:2], strict=True))
            return one._replace(time=time_, env_steps=round(env_steps), score=score)
        before = one
    return None


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
    seen, reader, sampled = Processes(process.pid), source(), 0.0
    threads: dict[tuple[psutil.Process, int], float] = {}
    threads_at = 0.0
    of_roles: dict[str, list[list[int]]] = {}
    died = ""
    try:
        while True:
            ended = process.poll() is not None
            now = time.time()
            if now - sampled >= SAMPLE_S:
                sampled = now
                seen.sample()
            points += reader.poll()
            part = window(points)
            if part and not threads:
                threads, threads_at = seen.threads(), now
            took = part[1].time - part[0].time if part else 0.0
            if took >= wanted.seconds and not of_roles:
                of_roles = seen.threads_of_roles(threads, now - threads_at)
            if ended:
                died = f"ended by itself with exit code {process.returncode}: {last_words(log)}"
                if took < wanted.seconds:
                    raise RuntimeError(died)
                break
            open_score = wanted.score is not None and not reached(points, wanted.score)
            if took >= wanted.seconds and not (open_score and now - began < wanted.score_seconds):
                break
            if now - began > START_S + 3 * wanted.seconds and took < wanted.seconds:
                if part:
                    break  # slow: what there is
                raise RuntimeError(f"fewer than {WARM_UPDATES + 1} updates in {now - began:.0f} s: {last_words(log)}")
            rate = (part[1].env_steps - part[0].env_steps) / took if part and took else 0.0
            score = "" if not points or points[-1].score is None else f", score {points[-1].score:.0f}"
            show(f"{rate:,.0f}/s{score}")
            time.sleep(POLL_S)
        assert part
        of_roles = of_roles or seen.threads_of_roles(threads, time.time() - threads_at)
    finally:
        reader.close()
        seen.end()
        process.wait()
    first, last = part
    steps = last.env_steps - first.env_steps
    found = reached(points, wanted.score)
    return {
        "env_steps_per_s": steps / (last.time - first.time),
        "cpu_s_per_1000": 1000 * (seen.cpu_at(last.time) - seen.cpu_at(first.time)) / steps,
        "pss_mb": seen.pss_mb, "rss_mb": seen.rss_mb,
        "seconds_to_score": found.time - began if found else None,
        "env_steps_to_score": found.env_steps if found else None,
        "score": points[-1].score, "env_steps": last.env_steps, "updates": last.updates,
        "window_s": last.time - first.time, "start_s": points[0].time - began,
        "cpu_s_of_roles": seen.cpu_of_roles(), "threads": of_roles, "died": died,
    }  # fmt: skip


def last_words(log: Path) -> str:
    """Of a log: its last line with an error, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|Error|exception", line) and not line.startswith("File")]
    return ((errors or lines or ["it said nothing"])[-1])[:300]


def new_entry(row: Row) -> dict[str, Any]:
    """What results hold of a row. rounds: Figures of `measure`, with the number of the round; failures: [{round, why}];
    of a peer, trials: threads -> env steps/s, and threads: the fastest of them, "" before."""
    known = {"group": row.group, "kind": row.kind, "says": row.says, "settings": list(row.settings), "same": row.same}
    return {**known, "rounds": [], "failures": [], "trials": {}, "threads": ""}


class Bench:
    """Runs rows in rounds and keeps the results."""

    def __init__(
        self,
        rows: Sequence[Row],
        args: argparse.Namespace,
        config: RunConfig,
        tuner: Sequence[str],
        results: Results,
    ) -> None:
        """tuner: of `tuner_settings`, with which the limits are measured."""
        self._rows, self._args, self._tuner, self._results = rows, args, tuner, results
        self._plan = make_plan(config.app, this_machine())
        self._folder: Path = args.out.parent.absolute() / f"{args.out.stem}-runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config = self._folder / "config.toml"
        self._config.write_text(to_toml(config))
        self._wanted = Wanted(args.seconds, args.to_score, args.score_minutes * 60)
        self._began = time.monotonic()
        self._done = 0
        self._shown = 0.0
        self._tty = sys.stdout.isatty()

    def run(self) -> None:
        """All rounds; every second one in the other order."""
        for number in range(1, self._args.rounds + 1):
            self._measure_limits(number)
            for row in self._rows if number % 2 else self._rows[::-1]:
                entry = self._results["rows"][row.name]
                self._one(row, number, entry)
                runs.write_json(self._args.out, self._results)
                self._done += 1

    def _measure_limits(self, number: int) -> None:
        if not self._args.limit_seconds:
            return
        print(f"round {number}: what the machine can do of each part alone (tools/limits.py) ...", flush=True)
        args, plan = self._args, self._plan
        found = limits.measure(args.config, [*args.set, *self._tuner], args.limit_seconds, plan.cores)
        before = self._results["limits"]
        self._results["limits"] = middle_limits([*(before["rounds"] if before else []), {"round": number, **found}])

    def _one(self, row: Row, number: int, entry: dict[str, Any]) -> None:
        log = self._log(row, number)
        try:
            if row.kind == "peer" and not entry["threads"]:
                entry["trials"] = self._try_threads(row, number)
                entry["threads"] = max(entry["trials"], key=entry["trials"].__getitem__)
            found = self._measure(row, number, int(entry["threads"] or 0), self._wanted)
        except Exception as error:  # whatever it is, the other rows go on
            why = str(error) if isinstance(error, RuntimeError | ConfigError) else f"{type(error).__name__}: {error}"
            entry["failures"].append({"round": number, "why": why})
            self._say(row, number, f"failed: {why}" + (f" ({log})" if log.exists() else ""))
            return
        entry["rounds"].append({"round": number, **found})
        text = f"{found['env_steps_per_s']:,.0f} env steps/s"
        if found["died"]:
            text += f", but it did not come to its score: it {found['died']} ({log})"
        else:
            log.unlink()
        self._say(row, number, text)

    def _try_threads(self, row: Row, number: int) -> dict[str, float]:
        """Number of threads -> env steps/s, of those with which it works. Raises what the last one did if none does."""
        found: dict[str, float] = {}
        counts = limits.numbers_of_threads(self._plan.cores)
        for threads in counts:
            wanted = Wanted(min(TRIAL_S, self._wanted.seconds))
            try:
                found[str(threads)] = self._measure(row, number, threads, wanted)["env_steps_per_s"]
            except RuntimeError as error:
                self._say(row, number, f"failed with {threads} threads: {error}")
                if threads == counts[-1] and not found:
                    raise
        told = ", ".join(f"{threads}: {rate:,.0f}" for threads, rate in found.items())
        self._say(row, number, f"env steps/s by threads: {told}")
        return found

    def _measure(self, row: Row, number: int, threads: int, wanted: Wanted) -> Figures:
        """threads: of a peer. Leaves a log, which stays where it fails."""
        log = self._log(row, number)
        run = log.with_suffix("")
        shutil.rmtree(run, ignore_errors=True)  # of a measurement that was interrupted

        def source() -> Source:
            if row.kind in ("plain", "peer"):
                return Lines(log)
            return Curves(run) if row.kind == "local" else Status(run)

        with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as temporary:
            try:
                start = start_of(row, self._config, self._plan, run, number, temporary, threads)
                start.folder.mkdir(exist_ok=True)
                return measure(start, log, source, wanted, lambda text: self._show(row, number, text))
            finally:
                shutil.rmtree(run, ignore_errors=True)

    def _log(self, row: Row, number: int) -> Path:
        return self._folder / f"{row.name}-{number}.log"

    def _left(self) -> str:
        spent, todo = time.monotonic() - self._began, self._args.rounds * len(self._rows) - self._done
        if not self._done:
            return "time left unknown yet"
        return f"about {todo * spent / self._done / 60:.0f} min left"

    def _show(self, row: Row, number: int, text: str) -> None:
        now = time.monotonic()
        if now - self._shown >= (1 if self._tty else 30):
            self._shown = now
            line = f"round {number} of {self._args.rounds}, {row.name}: {text}; {self._left()}"
            print(f"\r\x1b[K{line}" if self._tty else line, end="" if self._tty else "\n", flush=True)

    def _say(self, row: Row, number: int, text: str) -> None:
        clear = "\r\x1b[K" if self._tty else ""
        print(f"{clear}round {number} of {self._args.rounds}, {row.name}: {text}; {self._left()}", flush=True)


# ---- what comes out ----


def median(entry: Mapping[str, Any], key: str) -> float | None:
    found = [one[key] for one in entry["rounds"] if one[key] is not None]
    return statistics.median(found) if found else None


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values), "rounds": len(values)}


def middle_limits(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the measurements of tools/limits.py in several rounds: the median of each limit, and all in `rounds`."""
    middle = {name: statistics.median(one[name] for one in rounds) for name in ("s_train", "s_infer", "s_env")}
    return {"epochs": rounds[0]["epochs"], **middle, "rounds": list(rounds)}


def to_score(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds to the score: the median over all rounds, None if infinite, as a round that did not reach it is; how
    many rounds reached it, and of how many."""
    seconds = [one["seconds_to_score"] for one in entry["rounds"]] + [None] * len(entry["failures"])
    reached_in = [one for one in seconds if one is not None]
    middle = statistics.median([math.inf if one is None else one for one in seconds]) if seconds else math.inf
    return {"median": middle if math.isfinite(middle) else None, "reached": len(reached_in), "of": len(seconds)}


def add_ratios(results: Results) -> None:
    """Into each row: `ratios`, each of the same rounds of two rows, and `to_score`."""
    rows, of_machine = results["rows"], results["limits"]
    rates = {name: {one["round"]: one["env_steps_per_s"] for one in entry["rounds"]} for name, entry in rows.items()}
    alone = {one["round"]: one for one in of_machine["rounds"]} if of_machine else {}

    def over(name: str, base: str) -> dict[str, float] | None:
        mine, others = rates[name], rates.get(base, {})
        return spread([mine[number] / others[number] for number in mine if number in others])

    for name, entry in rows.items():
        eta = None
        if of_machine and entry["same"] and entry["kind"] != "peer":
            epochs = of_machine["epochs"]
            eta = spread([limits.eta(rate, epochs, alone[number]) for number, rate in rates[name].items()])
        entry["ratios"] = {
            "eta": eta,
            "tau": over(name, "local") if entry["same"] and entry["kind"] == "cluster" else None,
            "of_plain": over(name, "plain"),
            "of_default": over(name, "tuner"),
        }
        entry["to_score"] = to_score(entry)


def table(results: Results) -> str:
    """Markdown: a line for each row. results: with `add_ratios`."""
    lines = [
        "| | env steps/s | range | of the default | of the plain loop | CPU s per 1000 | cores in use | peak MB (PSS) "
        "| s to score | eta | tau | threads |",
        "|---|" + "---:|" * 10 + "---|",
    ]
    for name, entry in results["rows"].items():
        why = "; ".join(f"round {one['round']}: {one['why']}" for one in entry["failures"])
        why = " ".join(why.replace("|", "/").split())
        if not entry["rounds"]:
            lines.append(f"| {name}: {entry['says']} | {why or 'not run'} |" + " |" * 10)
            continue
        rates = [one["env_steps_per_s"] for one in entry["rounds"]]
        cores = [one["cpu_s_per_1000"] * one["env_steps_per_s"] / 1000 for one in entry["rounds"]]
        ratios = entry["ratios"]
        cells = [
            f"{name}: {entry['says']}" + (f" (failed in {why})" if why else ""),
            cell(statistics.median(rates), ",.0f"),
            f"{min(rates):,.0f} - {max(rates):,.0f}" if len(rates) > 1 else "-",
            ratio_cell(ratios["of_default"]),
            ratio_cell(ratios["of_plain"]),
            cell(median(entry, "cpu_s_per_1000"), ".3f"),
            cell(statistics.median(cores), ".1f"),
            cell(median(entry, "pss_mb"), ",.0f"),
            score_cell(entry["to_score"]) if results["setup"]["to_score"] else "-",
            ratio_cell(ratios["eta"]),
            ratio_cell(ratios["tau"]),
            trials_cell(entry) if entry["kind"] == "peer" else threads_cell(entry["rounds"][-1]["threads"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_cell(ratio: Mapping[str, float] | None) -> str:
    """0.94 (0.91 - 0.97)"""
    if ratio is None:
        return "-"
    text = f"{ratio['median']:.2f}"
    return f"{text} ({ratio['least']:.2f} - {ratio['greatest']:.2f})" if ratio["rounds"] > 1 else text


def score_cell(found: Mapping[str, Any]) -> str:
    """312 (3 of 3 rounds)"""
    return f"{cell(found['median'], ',.0f', 'not reached')} ({found['reached']} of {found['of']} rounds)"


def trials_cell(entry: Mapping[str, Any]) -> str:
    """2 (1: 8,120/s, 2: 9,013/s)"""
    return f"{entry['threads']} ({', '.join(f'{count}: {rate:,.0f}/s' for count, rate in entry['trials'].items())})"


def cell(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def threads_cell(roles: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """learner 2/13, aisrv 1/9 1/9"""
    return ", ".join(f"{role} " + " ".join(f"{busy}/{all_}" for busy, all_ in each) for role, each in roles.items())


def caption(results: Results) -> str:
    about, setup, of_machine = results["about"], results["setup"], results["limits"]
    text = (
        f"`{about['command']}`, {about['date']}, {about['machine']}, commit {about['commit']}; medians of "
        f"{setup['rounds']} rounds of {setup['seconds']:g} s, {setup['num_envs']} environments."
    )
    if of_machine:
        text += " Alone: " + ", ".join(f"{name} {of_machine[name]:,.0f}/s" for name in ("s_train", "s_infer", "s_env"))
    return text


def told(results: Results) -> str:
    """Table and caption, with the ratios worked out; these are in the results then."""
    add_ratios(results)
    return f"{table(results)}\n\n{caption(results)}"


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=runs.ROOT / "conf" / "configure_app.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every row, repeatable")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="these rows or groups, see --list")
    parser.add_argument("--list", action="store_true", help="say what would run, and end")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="that count, of each row and round")
    parser.add_argument("--to-score", type=float, metavar="POINTS", nargs="?", const=1150.0,
                        help="go on until the mean score of the training episodes is this high (1150)")  # fmt: skip
    parser.add_argument("--score-minutes", type=float, default=20.0, help="after these it is not waited for any longer")
    parser.add_argument("--cores", type=int, nargs="+", metavar="CORE", help="use these cores alone")
    parser.add_argument(
        "--limit-seconds", type=float, default=2.0, help="a round for each way to measure eta's limits; 0: none"
    )
    parser.add_argument("--out", type=Path, default=Path("train/bench_train.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="print table and ratios of this JSON again, and end")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds has to be 1 or more, --seconds above 0")
    return args


def main() -> None:
    args = arguments()
    if args.table:
        results = runs.read_json(args.table, "rows")
        known = results.get("limits") is None or "rounds" in results["limits"]
        if not known or not all("failures" in entry for entry in results["rows"].values()):
            raise ConfigError(
                f"{args.table}: an older tools/bench_train.py wrote it, which kept less than the table needs"
            )
        print(told(results))
        return
    runs.end_in_order()
    for name in set(os.environ) - set(inherited(os.environ)):
        del os.environ[name]  # the limits are measured without them, too
    if args.cores:
        try:
            os.sched_setaffinity(0, args.cores)
        except OSError as error:
            raise ConfigError(f"--cores {' '.join(map(str, args.cores))}: {error.strerror}") from error
    config = load_config(args.config, args.set)
    if config.app.algo != "diy":
        raise ConfigError(f"{args.config}: algo is {config.app.algo!r}; allowed is diy, whose network all rows have")
    hyper = load_hyper(config.app.algo, config.hyper, config.places)
    machine = this_machine()
    tuner = tuner_settings(config.app, machine)
    plan = make_plan(load_config(args.config, [*args.set, *tuner]).app, machine)
    scale = scale_rows(plan, tuner, hyper.chunk_length, hyper.hidden if hyper.features == "small" else None)
    rows = [*our_rows(plan.round_size, tuner), *peer_rows(), *slow_rows(plan, tuner), *scale]
    rows = chosen_rows(rows, args.rows)
    if args.list:
        for row in rows:
            print(f"{row.group:8} {row.name:26} {row.says:52} {' '.join(row.settings)}")
        return
    runs.check_out(args.out)
    setup = {
        "config": args.config.name, "set": args.set, "rounds": args.rounds, "seconds": args.seconds,
        "num_envs": plan.round_size, "to_score": args.to_score, "cores": sorted(os.sched_getaffinity(0)),
        "minibatch": hyper.minibatch_size, "epochs": hyper.epochs, "chunk_length": hyper.chunk_length,
        "tuner": list(plan.why),
    }  # fmt: skip
    results = {"about": runs.about(), "setup": setup, "limits": None, "rows": {}}
    results["rows"] = {row.name: new_entry(row) for row in rows}
    bench = Bench(rows, args, config, tuner, results)
    stopped = False
    try:
        bench.run()
    except KeyboardInterrupt:
        stopped = True
    text = told(results)
    runs.write_json(args.out, results)
    print(f"\n{text}\n{args.out}")
    if stopped:
        sys.exit("stopped: the table has what was measured before")


if __name__ == "__main__":
    runs.command_line(main)
