"""How fast training is: a cluster, one process, a plain loop and another framework, alternately in one run.

    tools/bench/puffer.sh                                       # once: installs PufferLib
    python tools/bench/train.py --out train/bench.json
    python tools/bench/train.py --rows plain tuner pufferlib --to-score 1150
    python tools/bench/train.py --config conf/reference.toml --rows plain local tuner
    python tools/bench/train.py --rows tuner hooks --rounds 5   # what hooks, a logger and log_info cost
    python tools/bench/train.py --rows tuner --row many='aisrv_count=16' --row few='aisrv_connect_to_kaiwu_env_count=4'
    python tools/bench/train.py --config conf/ppo/cartpole.toml --alone    # how much of all cores a package uses

Rows: plain (tools/bench/plain_ppo.py), graph (it acts by a CUDA graph), local (one process), tuner (the cluster that
the tuner chooses), hooks (the same with every hook), pufferlib.
`--row NAME='KEY=VALUE ...'` adds the tuner's cluster with these changes. All train the same environments with the
features, network, chunk length, minibatch and epochs of `--config`. Each round starts every row once, from scratch;
what counts begins after its first updates and lasts `--seconds`. Our rows are seen every two seconds: take 60 for the
published network, whose updates are long. The table has medians over the rounds; the JSON has everything, after each
row. A row that fails is tried again in the next round. PufferLib computes in float32, with a thread for each core.

s to score   with --to-score, a row goes on until the mean score of its last 200 episodes, looked at every two seconds,
             is that high. Seconds count from the start of the command; a round that does not get there is infinite
of the first of the first row in the same round: the median over the rounds, and the range
of alone     with --alone: of what all cores would do if environments, predictions and updates took no more time than
             they take alone, in one thread
cores        CPU seconds a second: where cores are left, a row waits
lag          how many updates older than the learner's the weights were that acted
learner      the share of the time in which it trains; for the rest it waits, or in one process acts
MB           the peak of the sum of all processes' PSS, in which shared memory counts once
"""

from __future__ import annotations

import argparse
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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config, to_toml
from realm.config.plan import Machine, Plan, this_machine
from realm.contract import SampleInfo, Version, WorkflowContext
from realm.errors import ConfigError
from realm.policy.local_policy import LocalPolicy
from realm.user import hyper_of, load_agent, load_definition, load_workflow, make_envs
from realm.watch.board import RECENT_EPISODES, last_episodes
from realm.watch.meters import Meters
from tools import common

PEER = common.ROOT / ".cache" / "peers" / "pufferlib"  # its Python environment, made by tools/bench/puffer.sh
SCRIPTS = common.ROOT / "tools" / "bench"
LIBGOMP_SPINS = "300000"  # its default
# of the caller's variables, those about threads and allocators: rows have their own
NOT_INHERITED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_NUM_THREADS", "MALLOC_")
WARM_UPDATES = 3  # of a run that do not count: kernels, allocators and queues fill meanwhile
POLL_S = 0.2
SAMPLE_S = 1.0  # between two looks at CPU time
START_S = 240.0  # a run without its first updates is given up after this time and a few `--seconds`
LOOK_S = 2.0  # between two looks at a score: as often as a run writes its curves
MEMORY_S = 2.0  # between two looks at memory, which cost more than those at CPU time
STOP_S = 60.0  # an update of the reference's network takes some seconds, and is finished first

HOOKS = '''"""Every hook: each writes all curves, as a logger does, and looks at the score."""

import json

from realm.contract import stop_at_score

stop = stop_at_score(1e9)


def on_update(progress):
    with open(progress.run_dir / "hooks.jsonl", "a") as file:
        file.write(json.dumps({**progress.metrics, "env_steps": progress.env_steps}) + "\\n")
    return stop(progress)


on_start = on_evaluation = on_end = on_update
'''

Figures = dict[str, Any]
Results = dict[str, Any]
"""{about, setup, rows: {name: entry}}; entry: of `new_entry`"""

# ---- rows ----


class Row(NamedTuple):
    """One line of the table. kind: plain, local, cluster, hooks or peer; settings: what follows each --set."""

    name: str
    says: str
    kind: str
    settings: tuple[str, ...] = ()


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
    """Ours, the peer, and those of --row (`extra`). path, overrides: the configuration of all."""
    total = common.plan_of(load_config(path, overrides).app).round_size
    one = ("wrapper_type=local", f"aisrv_connect_to_kaiwu_env_count={total}")
    rows = [
        Row("plain", "plain loop", "plain"),
        Row("graph", "the same, a CUDA graph acts", "plain", ("--cuda-graph",)),
    ]
    rows.append(Row("local", "one process", "local", one))
    rows.append(Row("tuner", "cluster as the tuner chooses", "cluster", tuner))
    rows.append(Row("hooks", "the same with every hook", "hooks", (*tuner, 'log_info=["sold"]')))
    rows.append(Row("pufferlib", "PufferLib: PuffeRL; action masks", "peer"))
    for text in extra:
        name, equals, words = text.partition("=")
        changes = tuple(words.split())
        if not (equals and changes and re.fullmatch(r"[\w.-]+", name)):
            raise ConfigError(f"--row {text}: must be NAME='KEY=VALUE ...'")
        load_config(path, [*overrides, *tuner, *changes])
        rows.append(Row(name, " ".join(changes), "cluster", (*tuner, *changes)))
    return rows


def chosen_rows(rows: Sequence[Row], names: Sequence[str], extra: Sequence[str]) -> list[Row]:
    """Those named, without names all but graph and hooks; those of --row in any case."""
    if unknown := [name for name in names if name not in {row.name for row in rows}]:
        raise ConfigError(f"--rows {unknown[0]}: there is no such row, only {', '.join(row.name for row in rows)}")
    added = {text.partition("=")[0] for text in extra}
    wanted = names or [row.name for row in rows if row.name not in ("graph", "hooks")]
    return [row for row in rows if row.name in added or row.name in wanted]


# ---- starting a row ----


class Start(NamedTuple):
    command: list[str]
    environment: dict[str, str]
    folder: Path = common.ROOT  # to work in


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that would make one row faster or slower than another one."""
    return {name: value for name, value in environment.items() if not name.startswith(NOT_INHERITED)}


def start_of(row: Row, config: Path, plan: Plan, run: Path, seed: int, threads: int = 1) -> Start:
    """How to start it. config: the file that all rows train by; run: a folder that is not there yet; threads: of torch
    in the peer. Raises ConfigError if it cannot be started here."""
    environment = inherited(os.environ) | {"PYTHONUNBUFFERED": "1"}
    if row.kind != "peer":
        environment.setdefault("NUMBA_CACHE_DIR", str(common.ROOT / ".cache" / "numba"))
    same = ["--config", str(config), "--num-envs", str(plan.round_size), "--seed", str(seed)]
    if row.kind == "plain":
        plain = [sys.executable, str(SCRIPTS / "plain_ppo.py"), "--seconds", "1e9"]
        return Start([*plain, *same, *row.settings], environment)
    if row.kind == "peer":
        if (PEER / "failed").exists():
            raise ConfigError(f"could not be installed: {(PEER / 'failed').read_text().strip()[-300:]}")
        if not (PEER / "installed").exists():
            raise ConfigError("PufferLib is not installed: tools/bench/puffer.sh")
        # its own cache of kernels: its numba may be another one
        environment |= {"PYTHONPATH": str(common.ROOT), "NUMBA_CACHE_DIR": str(PEER / "numba")}
        # threads wait as they do without us: importing realm, as our environments do, makes them sleep at once
        environment |= {"GOMP_SPINCOUNT": LIBGOMP_SPINS, "OMP_NUM_THREADS": str(threads)}
        command = [str(PEER / "bin" / "python"), "-m", "tools.bench.peers.puffer", *same, "--threads", str(threads)]
        return Start(command, environment, run)  # it writes where it is
    place = [f"log_dir={run.parent}", f"run_name={run.name}", f"seed={seed}", "max_seconds=0", "max_env_steps=0"]
    command = common.start_command(config, [*row.settings, *place])
    if row.kind != "hooks":
        return Start(command, environment)
    code = run.with_name(f"{run.name}-code")  # `diy` is looked up where the command stands
    shutil.copytree(common.ROOT / "diy", code / "diy", dirs_exist_ok=True)
    (code / "diy" / "callbacks.py").write_text(HOOKS)
    return Start(command, environment | {"PYTHONPATH": str(common.ROOT)}, code)


# ---- what is read from it ----


class Point(NamedTuple):
    """What was known of a run when an update was done."""

    time: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # mean of the last RECENT_EPISODES episodes
    lag: float | None = None
    busy: float | None = None  # share of the time in which the learner trains


def reached(points: Sequence[Point], score: float | None) -> Point | None:
    """When the score was reached first: on the line between the two points around it.

    Points that follow another much sooner than LOOK_S are passed over, since ours have no others, and who looks at a
    noisy mean after each update finds it high sooner.
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
            share = (score - before.score) / (one.score - before.score)
            time_, env_steps = (a + share * (b - a) for a, b in zip(before[:2], one[:2], strict=True))
            return one._replace(time=time_, env_steps=round(env_steps), score=score)
        before = one
    return None


class Score:
    """Mean over the last RECENT_EPISODES episodes, the same for every row however often it reports."""

    def __init__(self) -> None:
        self._recent = last_episodes()

    def take(self, mean: float | None, count: float) -> float | None:
        """`count` more episodes had this mean. Returns the recent mean, None before there are enough."""
        if mean is not None and count > 0:
            self._recent.extend([mean] * round(min(count, RECENT_EPISODES)))
        return statistics.fmean(self._recent) if len(self._recent) == RECENT_EPISODES else None


class Lines:
    """The lines of JSON that tools/bench/plain_ppo.py and puffer.py write into their log."""

    def __init__(self, log: Path) -> None:
        self._log, self._seen, self._score = log, 0, Score()

    def poll(self) -> list[Point]:
        """Return points that are new."""
        *lines, _ = self._log.read_bytes().split(b"\n")
        new, self._seen = lines[self._seen :], len(lines)
        points = []
        for line in new:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a log has other lines, too
                one = json.loads(line)
                score = self._score.take(one["score"], one["episodes"])
                points.append(Point(one["time"], one["env_steps"], one["updates"], score))
        return points


class Curves:
    """The curves of a run, which are written every two seconds."""

    def __init__(self, run: Path) -> None:
        self._run, self._seen, self._looked = run, 0, 0.0
        self._before: float | None = None  # when the event before was written
        self._score = Score()

    def poll(self) -> list[Point]:
        if time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked = time.monotonic()
        events = [one for one in common.read_events(self._run) if one.values]
        new, self._seen = events[self._seen :], len(events)
        points = []
        for _, at, env_steps, values in new:
            # the rate is since the event before; since when that of the first one is, is not known
            episodes = values.get("system/aisrv/episodes_per_s", 0.0) * (at - (self._before or at))
            self._before = at
            score = self._score.take(values.get("episode/score"), episodes)
            told = (values.get(name) for name in ("learner/policy_lag_updates", "system/learner/busy_share"))
            points.append(Point(at, env_steps, int(values.get("system/learner/version_update", 0)), score, *told))
        return points


class Processes:
    """A process with all that it started: CPU time and memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known = {self._root}
        self._cpu: dict[psutil.Process, float] = {}  # stays when a process ends
        self.history: list[tuple[float, float]] = []  # time, CPU seconds of all until then
        self.pss_mb = 0.0  # peak; memory that is shared counts once
        self._memory_at = 0.0

    def sample(self) -> None:
        now = time.time()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._known |= set(self._root.children(recursive=True))
        look_at_memory, pss = now - self._memory_at >= MEMORY_S, 0
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                self._cpu[process] = sum(process.cpu_times()[:2])
                pss += process.memory_full_info().pss if look_at_memory else 0
        self.history.append((now, sum(self._cpu.values())))
        if look_at_memory:
            self._memory_at, self.pss_mb = now, max(self.pss_mb, pss / 2**20)

    def alive(self) -> list[psutil.Process]:
        return [one for one in self._known if one.is_running()]

    def cpu_at(self, when: float) -> float:
        """CPU seconds used until then, between two looks in proportion."""
        return float(np.interp(when, *zip(*self.history, strict=True)))

    def end(self) -> None:
        """End the first process, in order, and then whatever is left."""
        self.sample()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root.terminate()
        psutil.wait_procs([self._root], STOP_S)
        _, left = psutil.wait_procs(self.alive(), 5)  # they end by themselves when the first one is gone
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)


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


def measure(start: Start, log: Path, reader: Lines | Curves, wanted: Wanted, show: common.Say) -> Figures:
    """Run it for long enough and say what was seen. Raises RuntimeError if it came to nothing.

    If it ends by itself while its score is waited for, what was measured before stays, and `died` says why.
    """
    began, points = time.time(), list[Point]()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            start.command, cwd=start.folder, env=start.environment, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    seen = Processes(process.pid)
    try:
        died = _watch(process, seen, reader, points, wanted, began, log, show)
    finally:
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
        "lag": mean(one.lag for one in points if first.time < one.time <= last.time),
        "learner_busy": mean(one.busy for one in points if first.time < one.time <= last.time),
    }  # fmt: skip


def mean(values: Iterable[float | None]) -> float | None:
    """Of what is known."""
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known else None


def alone(config: RunConfig, updates: int = 4) -> Figures:
    """CPU seconds of an env step in one thread: of the environments, the predictions and the updates, of which the
    first is left out; and the env steps that all cores would do in a second."""
    import torch

    torch.set_num_threads(1)
    hyper, algo, num_envs = hyper_of(config), config.app.algo, common.plan_of(config.app).envs_per_worker
    envs, took = make_envs(config, num_envs, 1), dict.fromkeys(("environments", "predictions", "updates"), 0.0)
    spec = load_definition(algo).spec(envs, hyper)
    if spec.draw:
        raise ConfigError(f"--alone: {algo} learns from a replay memory, which is no part alone; leave --alone out")
    agent = load_agent(algo)(spec, hyper, "cpu", 1)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any) -> Any:
            begin = time.process_time()
            result = call(*args)
            took[name] += time.process_time() - begin
            return result

        return taken

    agent.predict, envs.step = timed("predictions", agent.predict), timed("environments", envs.step)
    learn = timed("updates", lambda chunk, info: [*agent.learn(chunk, info)])
    policy = LocalPolicy(agent, spec, num_envs, lambda: (Version(1, 0), 0, 0))
    chunks = load_workflow(algo)(envs, policy, WorkflowContext(spec, hyper, 1, 0, 1, Meters()))
    many = np.ones(num_envs)
    for number, chunk in zip(range(updates), chunks, strict=False):
        learn(chunk, SampleInfo(many.astype(np.uint64), many, many.astype(np.int64)))
        if number == 0:
            took |= dict.fromkeys(took, 0.0)
    envs.close()
    each = {name: seconds / ((updates - 1) * num_envs * spec.chunk_length) for name, seconds in took.items()}
    return {**each, "env_steps_per_s": this_machine().cores / sum(each.values())}


def _watch(
    process: subprocess.Popen[bytes], seen: Processes, reader: Lines | Curves, points: list[Point], wanted: Wanted,
    began: float, log: Path, show: common.Say,
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
    """What results hold of a row. rounds: Figures of `measure` with the number of the round; failures: {round, why}."""
    return {"kind": row.kind, "says": row.says, "settings": list(row.settings), "rounds": [], "failures": []}


def run_rows(rows: Sequence[Row], args: argparse.Namespace, config: RunConfig, results: Results) -> None:
    """Run all rounds. The results are in the file after each row; a log stays where a row fails."""
    plan, wanted = common.plan_of(config.app), Wanted(args.seconds, args.to_score, args.score_minutes * 60)
    folder = args.out.parent.absolute() / f"{args.out.stem}-runs"
    folder.mkdir(parents=True, exist_ok=True)
    of_all = folder / "config.toml"
    of_all.write_text(to_toml(config))

    def once(row: Row, number: int, show: common.Say) -> None:
        entry, log = results["rows"][row.name], folder / f"{row.name}-{number}.log"
        run = log.with_suffix("")
        shutil.rmtree(run, ignore_errors=True)  # of a measurement that was interrupted
        try:
            start = start_of(row, of_all, plan, run, number, plan.cores)
            start.folder.mkdir(exist_ok=True)
            figures = measure(start, log, Lines(log) if row.kind in ("plain", "peer") else Curves(run), wanted, show)
        except Exception as error:  # whatever it is, the other rows go on
            why = str(error) if isinstance(error, RuntimeError | ConfigError) else f"{type(error).__name__}: {error}"
            entry["failures"].append({"round": number, "why": why})
            came = f"failed: {why}" + (f" ({log})" if log.exists() else "")
        else:
            entry["rounds"].append({"round": number, **figures})
            came = f"{figures['env_steps_per_s']:,.0f} env steps/s"
            if figures["died"]:
                came += f", but it did not come to its score: it {figures['died']} ({log})"
            else:
                log.unlink()
        finally:
            shutil.rmtree(run, ignore_errors=True)
        common.Progress().say(f"round {number} of {args.rounds}, {row.name}: {came}")
        common.write_json(args.out, results)

    common.in_rounds({row.name: partial(once, row) for row in rows}, args.rounds)


# ---- the table ----


def seconds_to_score(entry: dict[str, Any]) -> str:
    """312 (3 of 3 rounds): the median over all rounds; one that did not reach the score is infinitely long."""
    seconds = [one["seconds_to_score"] or math.inf for one in entry["rounds"]] + [math.inf] * len(entry["failures"])
    middle = statistics.median(seconds) if seconds else math.inf
    reached_in = sum(math.isfinite(one) for one in seconds)
    return f"{f'{middle:,.0f}' if math.isfinite(middle) else 'not reached'} ({reached_in} of {len(seconds)} rounds)"


def table(results: Results) -> str:
    """Markdown: a line for each row."""
    heads = ("env steps/s", "range", "of the first", "of alone", "CPU s per 1000", "cores", "MB", "lag", "learner",
             "s to score")  # fmt: skip
    rows, bound = results["rows"], results.get("alone", {}).get("env_steps_per_s")
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    rates = {name: {one["round"]: one["env_steps_per_s"] for one in entry["rounds"]} for name, entry in rows.items()}
    first = next(iter(rates.values()))
    for name, entry in rows.items():
        why = "; ".join(f"round {one['round']}: {one['why']}" for one in entry["failures"])
        why = " ".join(why.replace("|", "/").split())
        if not entry["rounds"]:
            lines.append(f"| {name}: {entry['says']} | {why or 'not run'} |" + " |" * (len(heads) - 1))
            continue
        known = common.spread(rates[name].values())
        ratio = common.beside(rates[name], first)
        cpu, cores, memory = (
            statistics.median(values)
            for values in zip(*((one["cpu_s_per_1000"], one["cpu_s_per_1000"] * one["env_steps_per_s"] / 1000,
                                 one["pss_mb"]) for one in entry["rounds"]), strict=True)
        )  # fmt: skip
        lag, busy = (mean(one[what] for one in entry["rounds"]) for what in ("lag", "learner_busy"))
        cells = [
            f"{name}: {entry['says']}" + (f" (failed in {why})" if why else ""),
            f"{known.median:,.0f}", f"{known.least:,.0f} - {known.greatest:,.0f}",
            "{:.2f} ({:.2f} - {:.2f})".format(*ratio) if ratio else "-",
            f"{known.median / bound:.2f}" if bound else "-",
            f"{cpu:.3f}", f"{cores:.1f}", f"{memory:,.0f}",
            "-" if lag is None else f"{lag:.2f}", "-" if busy is None else f"{busy:.0%}",
            seconds_to_score(entry) if results["setup"]["to_score"] else "-",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- the command ----


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every row, repeatable")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="default: all")
    parser.add_argument("--row", action="append", default=[], metavar="NAME='KEY=VALUE ...'",
                        help="one more row: the tuner's cluster with these changes, repeatable")  # fmt: skip
    parser.add_argument("--alone", action="store_true", help="also measure environments, predictions, updates alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="that count, of each row and round")
    parser.add_argument("--to-score", type=float, metavar="POINTS", nargs="?", const=1150.0,
                        help="go on until the mean score of the training episodes is this high (1150)")  # fmt: skip
    parser.add_argument("--score-minutes", type=float, default=20.0, help="after these it is not waited for any longer")
    parser.add_argument("--out", type=Path, default=Path("train/bench.json"), help="where to write the figures")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds must be 1 or more, --seconds above 0")
    return args


def main() -> None:
    args = arguments()
    common.end_in_order()
    config = load_config(args.config, args.set)
    tuner = tuner_settings(config.app, this_machine())
    rows = chosen_rows(all_rows(args.config, args.set, tuner, args.row), args.rows, args.row)
    if (algo := config.app.algo) != "diy":
        other = [row.name for row in rows if row.kind not in ("local", "cluster")]
        if args.rows and other:
            raise ConfigError(f"--rows {other[0]}: it has the network of diy, but algo is {algo!r}; leave it out")
        rows = [row for row in rows if row.name not in other]
    common.check_out(args.out)
    plan = common.plan_of(load_config(args.config, [*args.set, *tuner]).app)
    setup = {
        "config": args.config.name, "set": args.set, "rounds": args.rounds, "seconds": args.seconds,
        "num_envs": plan.round_size, "to_score": args.to_score,
    }  # fmt: skip
    results = {"about": common.about(), "setup": setup, "rows": {}}
    if args.alone:
        results["alone"] = each = alone(common.effective(config))
        print(f"alone, all cores: {each['env_steps_per_s']:,.0f} env steps/s; of each "
              + ", ".join(f"{name} {1e6 * each[name]:,.0f} us" for name in list(each)[:3]))  # fmt: skip
    results["rows"] = {row.name: new_entry(row) for row in rows}
    stopped = False
    try:
        run_rows(rows, args, config, results)
    except KeyboardInterrupt:
        stopped = True
    print(f"\n{table(results)}\n\n{common.made_by(results['about'])}")
    print(args.out)
    if stopped:
        sys.exit("stopped: the table has what was measured before")


if __name__ == "__main__":
    common.command_line(main)
