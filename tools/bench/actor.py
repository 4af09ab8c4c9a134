"""What the way to the shared actor costs: real workers' ends ask a real actor as fast as they can.

    python tools/bench/actor.py --out train/actor.json
    python tools/bench/actor.py --network reference --workers 1 4 --envs 32

A row is a number of workers, each a process that asks about its environments again and again and does nothing else.
Beside them: the forward alone, and the same bytes over a bare socket. CPU time is what counts on a machine that others
use: `actor us` and `worker us` are CPU microseconds of both processes for a question, `forward us` is what the forward
of the mean batch takes of that. `a core answers` is how many questions a second one core of the actor could answer if
the forward took nothing. `at once`: one process asks N questions at one moment, and waits for all answers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.contract import Arrays, Spec, Version
from realm.data.gate import VersionGate
from realm.errors import ConfigError
from realm.launch.environment import enter_learner_environment
from realm.wire.codec import Codec
from realm.wire.line import Frame, Layout, Line, connect
from realm.wire.models import ModelWriter
from realm.wire.predict import RemotePolicy, reply_fields, request_fields
from realm.wire.sockets import Client, wait_any
from tools import common
from tools.bench import limits
from tools.bench.parts import NETWORKS
from tools.bench.stage import Stage

WARM_UP = 50  # questions
OTHERS = 1000  # the first number of a caller that is no worker


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


# ---- a worker ----


def ask_for(codec: Codec, address: str, worker: int, spec: Spec, obs: Arrays, talk: Connection) -> None:
    """A process: says when it is ready, then asks for as many seconds as it is told; answers how long each took."""
    rows = len(next(iter(obs.values())))
    first = np.zeros(rows, np.bool_)
    client = Client(codec, address)
    policy = RemotePolicy(client, spec, worker, rows, VersionGate(None, 1, 1), lambda: None, lambda seconds: None)
    for _ in range(WARM_UP):
        policy.predict(obs, first)
    talk.send(None)
    while (seconds := talk.recv()) is not None:
        took: list[float] = []
        cpu, begin = time.process_time(), time.perf_counter()
        while (start := time.perf_counter()) - begin < seconds:
            policy.predict(obs, first)
            took.append(time.perf_counter() - start)
        talk.send((took, time.process_time() - cpu))


class Workers:
    """N processes that ask together."""

    def __init__(self, bench: Bench, count: int, envs: int) -> None:
        self._bench, self._talks, self._processes = bench, list[Connection](), list[Any]()
        obs = limits.observations(bench.setting, envs)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([ask_for.__module__])
        for worker in range(count):
            mine, its = context.Pipe()
            codec = bench.stage.codec(f"aisrv-{worker}")
            arguments = (codec, bench.address, worker, bench.setting.spec, obs, its)
            process = context.Process(target=ask_for, args=arguments, daemon=True)
            process.start()
            self._talks.append(mine)
            self._processes.append(process)
        self.hear()

    def hear(self) -> list[Any]:
        """What each has to say."""
        heard = []
        for talk in self._talks:
            while not talk.poll(0.05):
                self._bench.stage.tick()
            heard.append(talk.recv())
        return heard

    def ask(self, seconds: float) -> tuple[list[float], float]:
        """Seconds of each question of all of them, and their CPU seconds."""
        for talk in self._talks:
            talk.send(seconds)
        heard = self.hear()
        return [one for took, _ in heard for one in took], sum(cpu for _, cpu in heard)

    def close(self) -> None:
        for talk in self._talks:
            talk.send(None)
        for process in self._processes:
            process.join()


# ---- what is measured ----


class Bench:
    """A real actor and model pool, and an agent of this process for the forward alone."""

    def __init__(self, network: str, folder: Path, overrides: Sequence[str]) -> None:
        from realm.learn.checkpoint import to_bytes

        settings = ["report_interval_s=0.2", "predict_local_or_remote=remote", *overrides]
        self.setting = limits.read_setting(NETWORKS[network], settings)
        self.agent = self.setting.agent()
        self.stage = Stage(self.setting, folder / network)
        learner = self.stage.client("learner-0", self.stage.start("model_pool"))
        writer = ModelWriter(learner)
        writer.publish(Version(1, 0), 0, to_bytes(self.agent.model))
        while learner.unanswered:
            wait_any([learner], 50)
            writer.tick()
        self.address = self.stage.start("actor")
        self.pid = self.stage.pid("actor")

    def reported(self) -> dict[str, float]:
        """The actor's totals as of now."""
        self.stage.totals.pop("actor", None)
        while "actor" not in self.stage.totals:
            time.sleep(0.01)
            self.stage.tick()
        return self.stage.totals["actor"]

    def forward(self, rows: int, seconds: float) -> tuple[float, float]:
        """Seconds, and CPU seconds, of a forward over this many rows alone, on one thread."""
        call = limits.make_predict(self.agent, limits.observations(self.setting, rows))
        return timed(call, seconds)

    def together(self, workers: Workers, envs: int, seconds: float) -> dict[str, float]:
        """The figures of workers that ask as fast as they can, each about this many environments."""
        before, cpu = self.reported(), cpu_s(self.pid)
        took, worker_s = workers.ask(seconds)
        actor_s, after = cpu_s(self.pid) - cpu, self.reported()
        rows = (after["actions"] - before["actions"]) / (after["forwards"] - before["forwards"])
        questions = len(took)
        _, forward_s = self.forward(round(rows), seconds / 4)
        return {
            "questions_s": questions / seconds, "p50_us": 1e6 * statistics.median(took),
            "p99_us": 1e6 * float(np.quantile(took, 0.99)), "actor_us": 1e6 * actor_s / questions,
            "forward_us": 1e6 * forward_s * envs / rows, "worker_us": 1e6 * worker_s / questions,
            "rows_a_forward": rows,
        }  # fmt: skip


def timed(call: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Seconds of a call, the median, and its CPU seconds, the mean."""
    call()
    took: list[float] = []
    begin, cpu = time.perf_counter(), time.process_time()
    while not took or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took), (time.process_time() - cpu) / len(took)


class AtOnce:
    """N questions that are asked at one moment by one process over N lines."""

    def __init__(self, bench: Bench, count: int, envs: int) -> None:
        spec = bench.setting.spec
        obs = limits.observations(bench.setting, envs)
        arrays: Arrays = {"first": np.zeros(envs, np.bool_), "explore": np.ones(envs, np.float32)}
        arrays |= {f"obs.{name}": array for name, array in obs.items()}
        self._lines, self._frames = list[Line](), list[Frame]()
        for worker in range(OTHERS, OTHERS + count):
            client = bench.stage.client(f"aisrv-{worker}", bench.address)
            invitation = client.wait(client.ask("line", {"worker": worker}), bench.stage.tick)
            self._lines.append(connect(invitation, Layout(reply_fields(spec)), 1 << 30, client.traffic))
            frame = Frame(Layout(request_fields(spec)), envs)
            frame.put(arrays, "a question")
            frame.address(1, Version(1, 0))
            self._frames.append(frame)
            client.close()

    def __call__(self) -> None:
        for line, frame in zip(self._lines, self._frames, strict=True):
            line.send(frame)
        for line in self._lines:
            while line.receive() is None:
                pass

    def close(self) -> None:
        for line in self._lines:
            line.close()


class Raw:
    """A process that gives a few bytes back for many: what the kernel takes for a question and its answer."""

    def __init__(self, size: int, answer: int) -> None:
        self._here, there = socket.socketpair()
        self._question, self._answer = bytes(size), bytearray(answer)
        self._process = multiprocessing.get_context("fork").Process(target=give_back, args=(there, size, answer))
        self._process.start()
        there.close()

    def __call__(self) -> None:
        self._here.sendall(self._question)
        self._here.recv_into(self._answer, len(self._answer), socket.MSG_WAITALL)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def give_back(there: socket.socket, size: int, answer: int) -> None:
    question, reply = bytearray(size), bytes(answer)
    while there.recv_into(question, size, socket.MSG_WAITALL):
        there.sendall(reply)


# ---- the table ----


HEADS = {
    "workers": "workers", "envs": "envs", "bytes": "bytes", "questions_s": "questions/s", "p50_us": "p50 us",
    "p99_us": "p99 us", "actor_us": "actor us", "forward_us": "forward us", "worker_us": "worker us",
    "rows_a_forward": "rows", "a_core_s": "a core answers", "raw_us": "raw us", "alone_us": "N forward us",
    "at_once_us": "at once us", "at_once": "at once / forward",
}  # fmt: skip


def measure(bench: Bench, count: int, envs: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of `count` workers with `envs` environments each: medians over the rounds, and their lists."""
    spec, progress = bench.setting.spec, common.Progress()
    question, answer = (Frame(Layout(of(spec)), envs) for of in (request_fields, reply_fields))
    raw, once = Raw(len(question.bytes), len(answer.bytes)), AtOnce(bench, count, envs)
    workers = Workers(bench, count, envs)
    figures: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        progress.show(f"{count} workers of {envs} environments, round {number} of {rounds}")
        one = bench.together(workers, envs, seconds)
        one["a_core_s"] = 1e6 / max(1.0, one["actor_us"] - one["forward_us"])
        one["raw_us"] = 1e6 * timed(raw, seconds / 4)[0]
        one["at_once_us"] = 1e6 * timed(once, seconds / 4)[0]
        one["alone_us"] = 1e6 * bench.forward(count * envs, seconds / 4)[0]
        one["at_once"] = one["at_once_us"] / one["alone_us"]
        for name, value in one.items():
            figures.setdefault(name, []).append(value)
    for part in (raw, once, workers):
        part.close()
    progress.clear()
    fixed = {"workers": count, "envs": envs, "bytes": len(question.bytes)}
    return fixed | {name: statistics.median(values) for name, values in figures.items()} | {"rounds": figures}


def told(line: dict[str, Any]) -> str:
    cells = [f"{line[name]:,.2f}" if name == "at_once" else f"{line[name]:,.0f}" for name in HEADS]
    return "".join(f"{cell:>{len(head) + 3}}" for cell, head in zip(cells, HEADS.values(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="default")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--envs", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="that the workers ask, in each round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of realm start, repeatable")
    parser.add_argument("--out", type=Path, default=Path("train/actor.json"), help="where to write the figures")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0 or min(*args.workers, *args.envs) < 1:
        raise ConfigError("--rounds, --workers and --envs must be 1 or more, --seconds above 0")
    common.check_out(args.out)
    # threads that do not spin and memory that is not given back, as in an actor
    enter_learner_environment(limits.read_setting(NETWORKS[args.network], args.set).plan)
    common.end_in_order()  # role processes are ended on the way
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="realm-actor-") as folder:
        bench = Bench(args.network, Path(folder), args.set)
        print("".join(f"{head:>{len(head) + 3}}" for head in HEADS.values()))
        lines = []
        try:
            for envs in args.envs:
                for count in args.workers:
                    lines.append(measure(bench, count, envs, args.rounds, args.seconds))
                    print(told(lines[-1]), flush=True)
        finally:
            bench.stage.close()
    common.write_json(args.out, {"about": common.about(), "network": args.network, "lines": lines})


if __name__ == "__main__":
    common.command_line(main)
