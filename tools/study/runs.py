"""What tools/judge.py and tools/experiments.py share: runs as processes, their curves, and what their models are worth.

`tools/runs.py RUN [--explore 0 1]` plays the newest model of a run on every layout of nine treasures and prints one
line of JSON, which tools/experiments.py reads.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import RunConfig, load_config, to_toml
from realm.env.map import MapError
from realm.env.options import OptionError
from realm.env.oracle import CACHE
from realm.errors import CheckpointError, ConfigError, UserCodeError
from realm.launch.rundir import read_run
from realm.user import load_hyper
from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.sockets import Client

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("realm/**/*.py", "diy/**/*.py", "realm/env/maps/**/*.*")  # what figures of a model depend on
TREASURES = 9
CLOCK = "rate/env_steps_per_s"  # a curve that every run writes every two seconds
KEPT_ENV = ("map", "start", "end", "max_step")
NUM_ENVS = 512
EVALUATION_SEED = 0  # nothing is drawn from it but actions

# ---- what a user got wrong ----

USER_ERRORS = (ConfigError, MapError, OptionError, CheckpointError, UserCodeError, OSError)


def command_line(run: Callable[[], None]) -> None:
    """Run a tool; what a user got wrong ends it as one sentence and exit code 2, and Ctrl+C with exit code 1."""
    try:
        run()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def end_in_order() -> None:
    """From now on SIGTERM is what Ctrl+C is; a second one, as `timeout` and a killed process group send, is ignored, so
    that it does not come in the middle of ending what was started."""

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def check_judged(config: RunConfig) -> None:
    """Refuse a configuration whose models cannot be judged, before one is trained."""
    from realm.env import report

    load_hyper(config.app.algo, config.hyper, config.places)
    env = judged_env(config.env)
    report.resolve_map(env)
    report.all_layouts(env)


def check_out(out: Path) -> None:
    """Refuse a file that cannot be written; its folder is made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: cannot be written; allowed is a file")


# ---- files ----


def read_json(path: Path, key: str) -> dict[str, Any]:
    """Results of a tool, which have this key."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict) or key not in content:
        raise ConfigError(f"{path}: holds no results of this tool")
    return content


def write_json(path: Path, content: Any) -> None:
    """In one go, so that a run that is stopped leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(content, indent=1))
    draft.replace(path)


def about() -> dict[str, Any]:
    """Where and when: for the JSON and below the table."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found[1] if found else ""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {model}",
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": commit(),
    }


def commit() -> str:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"


def sources() -> str:
    """A digest of all code and maps that a model's figures depend on."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


# ---- processes ----


def start_command(config: Path, overrides: Iterable[str]) -> list[str]:
    words = [sys.executable, "-m", "realm", "start", "--config", str(config)]
    return words + [word for one in overrides for word in ("--set", one)]


def run_process(
    command: Sequence[str],
    log: Path | None = None,
    core: int | None = None,
    stop: threading.Event | None = None,
    every_second: Callable[[], None] = lambda: None,
) -> int:
    """Run to the end and return the exit code. Ctrl+C here, or `stop`, ends it in order and raises KeyboardInterrupt.

    log: gets its output (appended) in place of the terminal. core: it and all its children run there alone.
    """
    environment = {"NUMBA_CACHE_DIR": str(ROOT / ".cache" / "numba"), **os.environ}
    if core is not None:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        if shutil.which("taskset"):
            command = ["taskset", "-c", str(core), *command]
    with open(log, "ab") if log else nullcontext() as output:
        # a session of its own: Ctrl+C reaches it once, from here, since a second one kills a run
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            while not (stop and stop.is_set()):
                try:
                    return process.wait(1.0)
                except subprocess.TimeoutExpired:
                    every_second()
            raise KeyboardInterrupt
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


class Watched:
    """A cluster whose supervisor is asked for its status again and again, from when it runs."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._client: Client | None = None

    def status(self) -> Message | None:
        """What it has answered since the last call, if anything; the next question is under way then."""
        if self._client is None:
            known = read_run(self._run)
            if known is None or known.state != "running":
                return None
            self._client = Client(Codec(known.run_id, "", "bench", 1, CONTROL_MAX_BYTES), known.control)
            self._client.ask("status", {})
        answer = self._client.collect()
        if answer is not None:
            self._client.ask("status", {})
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def refuse_other_setting(run: Path, config: RunConfig) -> None:
    """Refuse a run's folder of another configuration, its limits apart: its curve would be of both."""
    if not (run / "config.toml").exists():
        return
    then, now = (_without_limits(one) for one in (load_config(run / "config.toml"), config))
    if then != now:
        lines = [to_toml(one).splitlines() for one in (then, now)]
        differ = [f"{a[:80]!r}, now {b[:80]!r}" for a, b in zip(*lines, strict=False) if a != b] or ["other keys"]
        raise ConfigError(
            f"{run} was made with another configuration ({differ[0]}); move it away or take another --out"
        )


def _without_limits(config: RunConfig) -> RunConfig:
    return replace(config, app=replace(config.app, max_seconds=0.0, max_env_steps=0, run_name=""))


# ---- curves ----


class Curve(NamedTuple):
    env_steps: np.ndarray
    minutes: np.ndarray  # of training: pauses between the starts of a run do not count
    value: np.ndarray


def read_curves(run: Path, tags: Sequence[str]) -> dict[str, Curve]:
    """Tag -> curve, empty where the run has none."""
    # as in realm/monitor.py: without this, tensorboard imports TensorFlow where that is installed
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[tuple[float, float, float]]] = {tag: [] for tag in tags}
    before, reached = 0.0, 0
    for path in sorted((run / "log" / "tensorboard").glob("events.out.tfevents.*")):  # each start of the run has one
        begin, minutes = None, 0.0
        for event in LegacyEventFileLoader(str(path)).Load():
            begin = event.wall_time if begin is None else begin
            minutes = (event.wall_time - begin) / 60
            if event.step == 0 and reached:
                continue  # a run that goes on says 0 until its learner has reported
            reached = max(reached, event.step)
            for value in event.summary.value:
                if value.tag in found:
                    found[value.tag].append((event.step, before + minutes, value.simple_value))
        before += minutes
    return {tag: Curve(*np.array(rows, float).reshape(-1, 3).T) for tag, rows in found.items()}


def minutes_at(clock: Curve, env_steps: float) -> float:
    """When the run had trained on so many steps for good: after a crash it makes some again. Each start of the run
    counts, some seconds without a step."""
    if not len(clock.minutes):
        return 0.0
    last_time = np.minimum.accumulate(clock.env_steps[::-1])[::-1]
    steps, first = np.unique(last_time, return_index=True)
    return float(np.interp(env_steps, steps, clock.minutes[first]))


def mean_rate(clock: Curve) -> float:
    """Env steps a second from the first update to the last."""
    moving = clock.env_steps[clock.env_steps > 0]
    if not len(moving) or moving[-1] == moving[0]:
        return 0.0
    seconds = 60 * (minutes_at(clock, moving[-1]) - minutes_at(clock, moving[0]))
    return float((moving[-1] - moving[0]) / max(seconds, 1e-9))


# ---- models ----


class Saved(NamedTuple):
    """A checkpoint that is there."""

    path: Path
    env_steps: int


def saved_models(folder: Path) -> list[Saved]:
    """Those of a folder, oldest first; what a start of the run has saved again is left out."""
    found = []
    for path in folder.glob("model.ckpt-*-*/manifest.json"):
        manifest = json.loads(path.read_text())
        found.append((tuple(manifest["version"]), Saved(path.parent, int(manifest["env_steps"]))))
    return list({one.env_steps: one for _, one in sorted(found, reverse=True)}.values())[::-1]


def keep_models(source: Path, target: Path) -> None:
    """Link every checkpoint of `source` into `target`, where the run does not remove it. Costs no room while both are
    there."""
    target.mkdir(parents=True, exist_ok=True)
    for folder in source.glob("model.ckpt-*-*"):
        if (target / folder.name).exists():
            continue
        draft = target / f".writing-{folder.name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            for file in folder.iterdir():
                os.link(file, draft / file.name)
            if (draft / "manifest.json").exists():
                draft.rename(target / folder.name)
        except FileNotFoundError:  # the run has removed it just now
            pass
        shutil.rmtree(draft, ignore_errors=True)


# ---- what a model is worth ----


def judged_env(env: Mapping[str, Any]) -> dict[str, Any]:
    """The table [env] of a run made one for judging: its map, start and end, nine treasures."""
    kept = {key: env[key] for key in KEPT_ENV if key in env}
    if isinstance(kept.get("map"), list):
        raise ConfigError(
            f"[env] has {len(kept['map'])} maps, models are judged on one: tools/unseen_maps.py plays more"
        )
    return {**kept, "treasure_random": 1, "treasure_num": TREASURES}


def figures(layouts: Sequence[Any], played: Any, limits: Any) -> dict[str, Any]:
    """What became of some layouts, in numbers. `limits`: what the oracle reaches in them."""
    from realm.env import report

    row = report.rows(layouts, played, limits)[-1]
    ids = layouts[row.worst].treasure_id or ()
    return {
        "regret": row.regret,
        "worst_regret": row.worst_regret,
        "worst_layout": list(ids),
        "time_outs": int((~played.reached_end).sum()),
        "missed": int(played.missed.sum()),
        "whole": float((played.reached_end & (played.missed == 0)).mean()),  # share in which nothing was left
        "excess_percent": row.excess,
        "score": row.score,
        "episodes": row.episodes,
    }


class Examiner:
    """Plays the models of one run on all layouts of nine treasures, and on all sets."""

    def __init__(self, run: Path) -> None:
        from realm.env import report

        self.config = load_config(run / "config.toml")
        self._env = judged_env(self.config.env)
        self._map = report.resolve_map(self._env)
        self._nine = report.all_layouts(self._env)
        self._executed: Any = None
        self._envs: Any = None
        self._agent: Any = None

    def nine(self, model: Path, explore: float = 0.0) -> dict[str, Any]:
        """Figures of the layouts of nine treasures against the oracle's own play; `bound` has those against its
        bound."""
        from realm.env import report

        if self._executed is None:
            self._executed = report.executed_limits(self._map, self._nine, CACHE, told("the oracle's play", 715))
        played = self._play(model, self._nine, explore)
        bound = figures(self._nine, played, report.bound_limits(self._map, self._nine, CACHE))
        return {**figures(self._nine, played, self._executed), "bound": bound}

    def sets(self, model: Path, executed: bool = False) -> dict[str, Any]:
        """Figures of all sets of treasures, as of `nine`; only `bound` unless `executed`."""
        from realm.env import report

        layouts = report.all_sets(self._env)
        played = self._play(model, layouts, 0.0)
        found = {"bound": figures(layouts, played, report.bound_limits(self._map, layouts, CACHE))}
        if not executed:
            return found
        limits = report.executed_limits(self._map, layouts, CACHE, told("the oracle's play", len(layouts)))
        return {**figures(layouts, played, limits), **found}

    def _play(self, model: Path, layouts: Sequence[Any], explore: float) -> Any:
        from realm.env import report
        from realm.learn.checkpoint import load, load_bytes
        from realm.learn.evaluate import evaluate_layouts, load_player

        checkpoint = load(model)
        if self._agent is None:
            self._envs, self._agent = load_player(self.config, checkpoint, self._env, NUM_ENVS, EVALUATION_SEED)
        load_bytes(self._agent.model, checkpoint.weights)
        options = [report.as_option(one) for one in layouts]
        return evaluate_layouts(self._envs, self._agent.predict, options, explore, EVALUATION_SEED)


def told(what: str, of: int) -> Callable[[int, int], None]:
    """A `show` that says on stderr how far something is, every half minute."""
    begin = last = time.monotonic()

    def show(done: int, new: int) -> None:
        nonlocal last
        if (now := time.monotonic()) > last + 30:
            last = now
            left = (of - done) * (now - begin) / max(1, new) / 60
            print(f"{what}: {done:,} of {of:,}, about {left:.0f} min left", file=sys.stderr, flush=True)

    return show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--explore", type=float, nargs="+", default=[0.0], help="0: best actions, 1: drawn ones")
    args = parser.parse_args()
    saved = saved_models(args.run / "ckpt")
    if not saved:
        raise ConfigError(f"{args.run}: has no checkpoint, so there is nothing to play")
    examiner = Examiner(args.run)
    found = {f"{explore:g}": examiner.nine(saved[-1].path, explore) for explore in args.explore}
    print(json.dumps({"env_steps": saved[-1].env_steps, "explore": found}))


if __name__ == "__main__":
    command_line(main)
