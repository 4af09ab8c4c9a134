"""Each part of the cluster alone, beside a bound that it cannot beat here, and what a real run spends its time on.

    python tools/bench_parts.py --out train/parts.json
    python tools/bench_parts.py --network reference --only roundtrip push

For two networks: conf/configure_app.toml (numbers, two MLPs) and conf/reference.toml (an image, two conv trunks). All
parts and bounds take turns in rounds; a time is the median over the rounds of a round's median, with the least and the
greatest. What is a process in a run is a real role's process here, to which this one is supervisor, worker and learner.

`cluster` are runs (`--runs`), each for `--cluster-seconds` and twenty updates at least, without evaluator. Of each: who
waits for whom; what share of the cores each part takes, which is its CPU time alone, in this process, times how often
the run does it; and how much CPU time the run used for something else than environment, network and optimizer. At last,
what is wanted, beside what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import inspect
import itertools
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import to_toml
from realm.config.plan import Plan, this_machine
from realm.contract import Arrays, ModelTag, SampleInfo, Version, arrays_to_chunk, chunk_to_arrays
from realm.data.buffer import ACCEPTED, make_replay_buffer
from realm.data.gate import VersionGate
from realm.errors import ConfigError
from realm.launch.child import RUN_ID_VARIABLE
from realm.launch.environment import enter_learner_environment, role_environment
from realm.wire.codec import Codec, Message
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.models import ModelWriter, parse_model, tag_meta
from realm.wire.predict import RemotePolicy
from realm.wire.samples import BatchReader, ItemSender
from realm.wire.sockets import Client, Server, wait_any
from tools import limits, runs

NETWORKS = {"default": "configure_app.toml", "reference": "reference.toml"}
QUICK = ("aisrv_count=1", "aisrv_connect_to_kaiwu_env_count=4", "diy.chunk_length=8", "diy.minibatch_size=16")
ASKED = 32  # environments of a round trip
CROWD = 16  # workers that ask an actor at once
PATIENCE_S = 120.0
MAX_BYTES = 1 << 30
TIMES = ("seconds", "p99_seconds", "cpu_seconds", "bound_seconds")  # of a call, each a list with one of each round

Call = Callable[[], Any]
"""Does a part once. A `Took` that it returns is what counts, where it had to do something else, too."""


class Took(NamedTuple):
    """Of one call, or of one on average."""

    seconds: float
    cpu_s: float  # of this process, all threads


class Line(NamedTuple):
    """One part and its bound. amount: how many `unit`s a call is about; threads: of torch; inside: of what all calls of
    both are inside."""

    what: str
    amount: float
    unit: str
    call: Call
    bound: str
    bound_call: Call
    threads: int = 1
    inside: Callable[[], AbstractContextManager[None]] = nullcontext


# ---- what parts are measured with ----


class Stage:
    """Role processes that have nobody but this one, and a process that answers through a bare socket."""

    def __init__(self, setting: limits.Setting, folder: Path) -> None:
        self._setting, self._folder, self._run_id = setting, folder, secrets.token_hex(8)
        self._server = Server(Codec(self._run_id, "", "supervisor", 1, CONTROL_MAX_BYTES), "127.0.0.1")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._book: dict[str, str] = {}
        self._ready: set[str] = set()
        (folder / "log").mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(setting.config))

    def _spawn(self, command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE  # a role ends when its stdin is closed
        with open(log, "ab") as errors:
            process = subprocess.Popen(command, cwd=runs.ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=errors)
        self._processes.append(process)
        return process

    def start(self, role: str, plan: Plan) -> str:
        """Start a role and wait until it works; its address. Raises ConfigError if it does not."""
        self._plan = plan
        self._ready.discard(role)
        options = {
            "index": 0, "incarnation": 1, "run-dir": self._folder, "control": self._server.address, "port": 0,
            "schema": self._setting.spec.schema, "max-bytes": MAX_BYTES,
        }  # fmt: skip
        command = [sys.executable, "-m", "realm", "role", role, *(f"--{name}={one}" for name, one in options.items())]
        log, until = self._folder / "log" / f"{role}.log", time.monotonic() + PATIENCE_S
        process = self._spawn(command, role_environment(role, plan) | {RUN_ID_VARIABLE: self._run_id}, log)
        while role not in self._ready:
            wait_any([self._server], 100)
            self.tick()
            if process.poll() is not None or time.monotonic() > until:
                raise ConfigError(f"the {role} did not get ready: {log.read_text()[-2000:]}")
        return self._book[role]

    def tick(self) -> None:
        """Answer what roles tell their supervisor."""
        while (received := self._server.receive()) is not None:
            peer, message = received
            role = message.text("role")
            if message.kind == "bound":
                self._book[role] = message.text("address")
                orders = {"book": self._book, "spec": self._setting.spec.to_json(), "plan": self._plan.to_json()}
                self._server.send(peer, Message("run", message.seq, orders | {"epoch": 1}))
            elif message.kind != "next":  # that question stays open
                self._server.send(peer, Message("ok", message.seq))
                self._ready |= {role} if message.kind == "ready" else set()

    def client(self, sender: str, address: str) -> Client:
        """Connected when this returns: what is asked before is sent with the next `collect`, which may be late."""
        client = Client(self.codec(sender), address)
        until = time.monotonic() + PATIENCE_S
        while not client.fileno_socket().poll(50, zmq.POLLOUT) and time.monotonic() < until:
            self.tick()
        return client

    def codec(self, sender: str) -> Codec:
        return Codec(self._run_id, self._setting.spec.schema, sender, 1, MAX_BYTES)

    @cached_property
    def _echo(self) -> zmq.Socket[bytes]:
        source = "from __future__ import annotations\nimport zmq\n" + inspect.getsource(send_frames)
        command = [sys.executable, "-c", source + inspect.getsource(echo) + "echo()"]
        process = self._spawn(command, dict(os.environ), self._folder / "log" / "echo.log")
        assert process.stdout
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(process.stdout.readline().decode().strip())
        return socket

    def raw(self, question: Message, answer_bytes: int) -> tuple[str, Call]:
        """A bound: frames of this message's sizes there, and one of so many bytes back."""
        head, *bodies = self.codec("raw-0").encode(question)
        frames, socket = [str(answer_bytes).encode().ljust(len(head)), *bodies], self._echo

        def call() -> None:
            send_frames(socket, frames)
            socket.recv_multipart(copy=False)

        return f"raw ZeroMQ, {sum(map(len, frames)):,} bytes", call

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._server.close()


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    for position, frame in enumerate(frames):
        socket.send(frame, zmq.SNDMORE if position < len(frames) - 1 else 0, copy=len(frame) < 100_000)


def echo() -> None:
    """Answer every message with as many bytes as its first frame says. A program of its own, that is up at once."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:*")
    print(socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        peer, head, *_ = socket.recv_multipart(copy=False)
        send_frames(socket, [peer.bytes, bytes(int(head.bytes))])


class Bench:
    """One network, and what several parts need."""

    def __init__(self, network: str, folder: Path, overrides: Sequence[str] = ()) -> None:
        self.network, self.folder, self.overrides = network, folder / network, overrides
        self.config = runs.ROOT / "conf" / NETWORKS[network]
        self.setting = limits.read_setting(self.config, overrides)
        self.plan, self.spec, self.hyper = self.setting.plan, self.setting.spec, self.setting.hyper
        self.end = ExitStack()  # what must be ended when the parts were measured
        self.stage = Stage(self.setting, self.folder)
        self.end.callback(self.stage.close)
        self.backends = ["native"] + (["reverb"] if this_machine().has_reverb else [])
        self._numbers = itertools.count(1)

    @cached_property
    def agent(self) -> Any:
        """Its optimizers have begun: checkpoints hold their state. `items` are of an older policy, as in a cluster."""
        agent = self.setting.agent()
        agent.updates = 1
        limits.make_learner_steps(agent, limits.observations(self.setting, 16))()
        return agent

    @cached_property
    def items(self) -> Arrays:
        """A batch as it comes over the wire: item name -> [B, ...], read-only. Observations are of random play."""
        batch, t = self.plan.batch, self.spec.chunk_length
        items = {name: np.zeros((batch, *one.shape), one.dtype) for name, one in self.spec.sample_fields.items()}
        for name, rows in limits.observations(self.setting, batch * (t + 1)).items():
            items[f"obs.{name}"] = rows.reshape(batch, t + 1, *rows.shape[1:])
        legal = items["obs.legal"][:, :-1]
        items["action"][:] = limits.draw(legal, np.random.default_rng(0).random(legal.shape, np.float32))
        items["extra.log_prob"][:] = -np.log(legal.sum(-1))
        items["valid"][:] = True
        items["version"][..., 0] = 1
        for array in items.values():
            array.setflags(write=False)
        return items

    def round(self) -> Arrays:
        """The next round of a worker: item name -> [E, ...]."""
        envs = self.plan.envs_per_worker
        return {name: array[:envs] for name, array in self.items.items()} | {"seq": np.full(envs, self.number())}

    def number(self) -> int:
        """Of a round or a version: greater than all before."""
        return next(self._numbers)

    def flowing(self, backend: str) -> Plan:
        """A plan whose buffer takes rounds of any age and has room for four batches."""
        batch = self.plan.batch
        return dataclasses.replace(self.plan, backend=backend, max_version_lag=None, capacity=4 * batch, preload=batch)


def copying(arrays: Arrays) -> tuple[str, Call]:
    """The bound of what moves these bytes."""
    pairs = [(np.array(array), np.empty_like(array)) for array in arrays.values()]

    def call() -> None:
        for source, target in pairs:
            np.copyto(target, source)

    return f"copy of {sum(source.nbytes for source, _ in pairs):,} bytes", call


def after(prepare: Call, call: Call) -> Call:
    """Only `call` counts."""

    def both() -> Took:
        prepare()
        begin, cpu = time.perf_counter(), time.process_time()
        call()
        return Took(time.perf_counter() - begin, time.process_time() - cpu)

    return both


# ---- the parts ----


def env_lines(bench: Bench) -> Iterator[Line]:
    count = bench.plan.envs_per_worker
    bare, whole = bench.setting.envs(count, 0), bench.setting.envs(count, 1)
    step, both = limits.make_env_step(bare.game, "action_mask"), limits.make_env_step(whole)
    obs = copying(whole._observe())
    yield Line(f"env step, {count} envs", count, "env steps", step, *copying(bare.game._buffer))
    yield Line(f"features, {count} envs", count, "env steps", whole._observe, *obs)
    yield Line(f"env step, features, reward, {count} envs", count, "env steps", both, *obs)
    one = bench.setting.envs(1, 2)  # what a step costs however many there are, for tools/pipeline.py
    step = limits.make_env_step(one)
    yield Line("env step, features, reward, 1 envs", 1, "env steps", step, *copying(one._observe()))


def asked(bench: Bench) -> tuple[Arrays, Message]:
    """Observations of ASKED environments, and a worker's question about them."""
    obs = limits.observations(bench.setting, ASKED)
    arrays = {"slot": np.arange(ASKED), "first": np.zeros(ASKED, np.bool_), "explore": np.ones(ASKED, np.float32)}
    arrays |= {f"obs.{name}": array for name, array in obs.items()}
    return obs, Message("predict", 1, {"worker": 0, "min_version": [1, 0]}, arrays)


def codec_lines(bench: Bench) -> Iterator[Line]:
    codec, envs = bench.stage.codec("aisrv-0"), bench.plan.envs_per_worker

    def line(what: str, message: Message, checksum: bool) -> Line:
        return Line(
            f"encode, decode {what}", 1, "messages", lambda: codec.decode(codec.encode(message, checksum)),
            *copying(message.arrays),
        )  # fmt: skip

    yield line(f"a question of {ASKED} envs", asked(bench)[1], False)
    yield line(f"{envs} chunks, with crc32", Message("add", 1, {}, bench.round()), True)


def make_publish(bench: Bench) -> Call:
    """Publishes the model to a pool of its own; back when the pool has it."""
    from realm.learn.checkpoint import to_bytes

    client = bench.stage.client("learner-0", bench.stage.start("model_pool", bench.plan))
    writer = ModelWriter(client)

    def publish() -> None:
        writer.publish(Version(1, bench.number()), 0, to_bytes(bench.agent.model))
        while client.unanswered:
            wait_any([client], 50)
            writer.tick()

    return publish


def roundtrip_lines(bench: Bench) -> Iterator[Line]:
    """The actor gets one model from a pool, and nobody trains."""
    stage = bench.stage
    make_publish(bench)()
    actor = stage.start("actor", bench.plan)
    client = stage.client("aisrv-0", actor)
    policy = RemotePolicy(client, bench.spec, 0, ASKED, VersionGate(None, 1, 1), stage.tick, lambda seconds: None)
    obs, question = asked(bench)
    first = np.zeros(ASKED, np.bool_)
    prediction = policy.predict(obs, first)
    raw = stage.raw(question, 400 + sum(one.nbytes for one in (prediction.action, *prediction.extra.values())))
    yield Line(f"worker, actor, worker, {ASKED} envs", ASKED, "rows", lambda: policy.predict(obs, first), *raw)
    forward = forward_line(bench, f"the forward in it, {ASKED} rows", obs)
    # each after a raw round trip: like the actor's, on a core that has slept until a message came
    yield forward._replace(call=after(raw[1], forward.call))

    askers = [stage.client(f"aisrv-{1 + number}", actor) for number in range(CROWD)]

    def ask_all() -> None:
        stage.tick()
        for number, asker in enumerate(askers):
            asker.ask("predict", question.meta | {"worker": 1 + number}, question.arrays)
        for asker in askers:
            while asker.collect() is None:
                wait_any([asker], 50)

    rows = CROWD * ASKED
    forward_of_all = limits.make_predict(
        bench.agent, {name: np.concatenate(CROWD * [one]) for name, one in obs.items()}
    )
    yield Line(
        f"{CROWD} workers at once, {ASKED} envs each",
        rows,
        "rows",
        ask_all,
        f"a forward of {rows} rows",
        forward_of_all,
    )


def forward_line(bench: Bench, what: str, obs: Arrays) -> Line:
    import torch

    agent, rows = bench.agent, len(obs["legal"])
    seen = {name: torch.from_numpy(array).to(agent.device) for name, array in obs.items()}
    asked_critic = agent.config.value_source == "actor"

    @torch.inference_mode()
    def network() -> Any:
        model = agent.player.model()
        return (model(seen)[0] if asked_critic else model.actor(seen)).cpu()

    return Line(what, rows, "rows", limits.make_predict(agent, obs), "network alone", network)


def forward_lines(bench: Bench) -> Iterator[Line]:
    obs = limits.observations(bench.setting, 1024)
    for rows in (1 << power for power in range(11)):
        yield forward_line(bench, f"predict, {rows} rows", {name: one[:rows] for name, one in obs.items()})


def push_lines(bench: Bench) -> Iterator[Line]:
    """From `ItemSender.add` to the buffer's word; the learner's draws come between."""
    stage, batch, envs = bench.stage, bench.plan.batch, bench.plan.envs_per_worker

    def line(backend: str) -> Line:
        address, inside = stage.start("buffer", bench.flowing(backend)), 0
        worker = stage.client("aisrv-0", address)
        sender = ItemSender(worker, 1, VersionGate(None, 1, 1), stage.tick)
        reader = BatchReader(stage.client("learner-0", address), batch, stage.tick)

        def push() -> None:
            nonlocal inside
            sender.add(bench.round())
            while worker.unanswered:
                wait_any([worker], 50)
                sender.poll()
            inside += envs

        def make_room() -> None:
            nonlocal inside
            stage.tick()
            while inside + envs > 4 * batch:
                reader.request(Version(1, bench.number()))
                reader.receive()
                inside -= batch

        reader.request(Version(1, bench.number()))  # opens the buffer's door
        while inside < batch:
            push()
        reader.receive()
        inside -= batch
        raw = stage.raw(Message("add", 1, {}, bench.round()), 250)
        return Line(f"push {envs} chunks, {backend}", envs, "chunks", after(make_room, push), *raw)

    yield from map(line, bench.backends)


def buffer_lines(bench: Bench) -> Iterator[Line]:
    """`ReplayBuffer.add` and `.draw`, as the buffer's process calls them."""
    batch, envs = bench.plan.batch, bench.plan.envs_per_worker

    def lines(backend: str) -> Iterator[Line]:
        buffer = make_replay_buffer(bench.flowing(backend), bench.spec, secrets.token_hex(8), 0)
        bench.end.callback(buffer.storage.close)

        def add() -> None:
            assert buffer.add(bench.round()) == ACCEPTED

        def draw() -> None:
            assert buffer.draw(batch, Version(1, bench.number())) is not None

        def make_room() -> None:
            while buffer.size + envs > 4 * batch:
                draw()

        def fill() -> None:
            while buffer.size < batch:
                add()

        one_round, whole = copying(bench.round()), copying(bench.items)
        yield Line(f"add {envs} chunks, {backend}", envs, "chunks", after(make_room, add), *one_round)
        yield Line(f"sample {batch} chunks, {backend}", batch, "chunks", after(fill, draw), *whole)

    for backend in bench.backends:
        yield from lines(backend)


def learner_lines(bench: Bench) -> Iterator[Line]:
    import torch

    from realm import returns

    agent, hyper, items, batch = bench.agent, bench.hyper, bench.items, bench.plan.batch
    chunk, steps = arrays_to_chunk(items), batch * bench.spec.chunk_length
    converted = arrays_to_chunk({name: np.array(array) for name, array in items.items()})  # needs no copy any more
    info, now = SampleInfo(np.zeros(batch, np.uint64), np.ones(batch), np.ones(batch)), agent._now()
    rows = agent._rows(chunk, now, older=True)
    parts = torch.randperm(steps).to(agent.device).tensor_split(bench.setting.minibatches)
    minibatch, size, count = rows.at(parts[0]), len(parts[0]), hyper.epochs * len(parts)
    obs = {name: agent._tensor(array) for name, array in converted.obs.items()}
    reward, *ends = (agent._tensor(one) for one in (chunk.reward, chunk.terminated, chunk.truncated, chunk.valid))
    value, log_ratio = torch.zeros(batch, bench.spec.chunk_length + 1, device=agent.device), torch.zeros_like(reward)
    vtrace = hyper.advantage == "vtrace"
    estimate = "V-trace" if vtrace else "GAE"

    def advantages() -> None:
        if vtrace:
            returns.vtrace(reward, value, log_ratio, *ends, now.gamma, hyper.lam)
        else:
            returns.gae(reward, value, *ends, now.gamma, hyper.lam)

    def passes() -> None:
        """The networks of `_rows` alone, with weights that are in their precision already."""
        model = agent.player.model()
        agent._side_by_side(
            lambda: agent._forward(obs, model.actor) if vtrace or hyper.decoupled else None,
            lambda: agent._forward(obs, model.critic) if hyper.value_source == "learner" else None,
        )

    def networks(steps: int) -> None:
        """Forward and backward of both networks, so many times each."""

        def alone(net: Any, optimizer: Any) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                net(minibatch.obs).sum().backward()

        model, (of_policy, *_, of_critic) = agent.model, agent.optimizers
        agent._side_by_side(lambda: alone(model.actor, of_policy), lambda: alone(model.critic, of_critic))

    def update() -> None:
        with agent._two_threads():
            passes()
            networks(count)

    both = f"forward, backward of {size} rows"
    gathered = copying({name: array[:, :-1] for name, array in chunk.obs.items()})
    read = copying(
        {"r": chunk.reward, "v": value.cpu().numpy(), **{str(n): e.cpu().numpy() for n, e in enumerate(ends)}}
    )
    for what, amount, call, bound in (
        (f"collate {batch} chunks", steps,
         lambda: [agent._tensor(one) for one in chunk_to_arrays(arrays_to_chunk(items)).values()], copying(items)),
        (f"values, advantages of {batch} chunks", steps, lambda: agent._rows(converted, now, older=True),
         ("networks alone", passes)),
        (f"{estimate} of {batch} chunks", steps, advantages, read),
        (f"cut {len(parts)} minibatches", steps, lambda: [rows.at(part) for part in parts], gathered),
        (f"{len(parts)} gradient steps of {size} rows", steps,
         lambda: agent._gradient_steps(len(parts) * [minibatch], now),
         (f"{len(parts)} x {both}", lambda: networks(len(parts)))),
    ):  # fmt: skip
        yield Line(what, amount, "samples", call, *bound, bench.plan.learner_threads, agent._two_threads)
    yield Line(
        f"update of {count} gradient steps", steps, "samples", lambda: agent.learn(chunk, info),
        f"networks alone, {count} x {both}", update, bench.plan.learner_threads,
    )  # fmt: skip


def model_lines(bench: Bench) -> Iterator[Line]:
    from realm.learn import checkpoint

    folder, model = bench.folder / "ckpt", bench.agent.model

    def dump() -> Path:
        return checkpoint.save(folder, bench.agent, Version(1, bench.number()), 0, bench.spec.schema, keep=2)

    content = bytes(sum(file.stat().st_size for file in dump().iterdir()))

    def write() -> None:
        with open(bench.folder / "raw", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    weights = checkpoint.to_bytes(model)
    tag = ModelTag(Version(1, 1), 0, hashlib.sha256(weights).hexdigest(), 0)
    message = Message("model", 1, tag_meta(tag), {"weights": np.frombuffer(weights, np.uint8)})

    def load() -> None:
        parse_model(message)
        checkpoint.load_bytes(model, message.array("weights").tobytes())

    publish = make_publish(bench)
    yield Line("dump a checkpoint", 1, "checkpoints", dump, f"write and sync {len(content):,} bytes", write)
    yield Line("publish weights to the pool", 1, "models", publish, *bench.stage.raw(message, 250))
    yield Line("verify and load weights", 1, "models", load, *copying(message.arrays))


PARTS = {
    "env": env_lines, "codec": codec_lines, "roundtrip": roundtrip_lines, "forward": forward_lines, "push": push_lines,
    "buffer": buffer_lines, "learner": learner_lines, "model": model_lines,
}  # fmt: skip


# ---- measuring ----


def timed(call: Call, seconds: float) -> tuple[list[float], float]:
    """Seconds of each call, one after the other for about so long; and CPU seconds of one, on average."""
    from torch import cuda

    took: list[float] = []
    own_cpu: list[float] = []
    begin, cpu = time.perf_counter(), time.process_time()
    while not took or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        own = call()
        if cuda.is_initialized():
            cuda.synchronize()
        if isinstance(own, Took):
            took.append(own.seconds)
            own_cpu.append(own.cpu_s)
        else:
            took.append(time.perf_counter() - start)
    return took, statistics.fmean(own_cpu) if own_cpu else (time.process_time() - cpu) / len(took)


def measure(bench: Bench, parts: Sequence[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """All lines of these parts: each of them, and its bound, for `seconds` in each round, in turns."""
    import torch

    lines = [(part, line) for part in parts for line in PARTS[part](bench)]
    found: list[dict[str, Any]] = [
        {"network": bench.network, "part": part, "what": line.what, "amount": line.amount, "unit": line.unit,
         "threads": line.threads, "bound": line.bound, **{name: [] for name in TIMES}}
        for part, line in lines
    ]  # fmt: skip
    for number in range(rounds + 1):
        for (_, line), one in zip(lines, found, strict=True):
            torch.set_num_threads(line.threads)
            with line.inside():
                took, cpu = timed(line.call, seconds if number else 0.0)  # round 0 is to warm up
                bound, _ = timed(line.bound_call, seconds if number else 0.0)
            values = (statistics.median(took), float(np.quantile(took, 0.99)), cpu, statistics.median(bound))
            for name, value in zip(TIMES, values, strict=True):
                one[name] += [value] if number else []
    return found


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Microseconds of a call, with the CPU time of this process alone, and of its bound; how many times that is."""
    names = ("median us", "least", "greatest", "p99", "cpu", "a second", "", "bound us")
    text = [f"{'':42}" + "".join(f"{name:>12}" for name in names)]
    for one in lines:
        times, bound = one["seconds"], statistics.median(one["bound_seconds"])
        median, p99, cpu = (statistics.median(one[name]) for name in TIMES[:3])
        cells = "".join(f"{1e6 * cell:>12,.1f}" for cell in (median, min(times), max(times), p99, cpu))
        rate = f"{one['amount'] / median:>12,.0f} {one['unit']:<11}"
        text.append(f"{one['what']:42}{cells}{rate}{1e6 * bound:>12,.1f} x {median / bound:<9,.2f}{one['bound']}")
    return "\n".join(text)


# ---- runs ----

RUNS = {  # a run's name, and its settings
    "native": ("predict_local_or_remote=local", "buffer_backend=native"),
    "reverb": ("predict_local_or_remote=local", "buffer_backend=reverb"),
    "actor": ("predict_local_or_remote=remote",),
    "free": ("max_version_lag=free",),  # nobody waits for a version: how old does what is trained on become?
}
ROLES = ("aisrv", "actor", "buffer", "learner", "model_pool", "supervisor")
TOTALS = {  # what it is called here, and what of a role's totals counts it; a second
    "env steps/s": "aisrv/env_steps",
    "samples trained/s": "learner/env_steps_trained",
    "chunks trained/s": "learner/items_trained",
    "updates/s": "learner/updates",
    "predictions/s": "aisrv/actions",
    "learner: trains": "learner/busy_s",
    "learner: publishes": "learner/publish_s",
    "learner: writes checkpoints": "learner/save_s",
    "learner: waits for a batch": "learner/wait_s",
    "actor: answers": "actor/busy_s",
}
MEANS = {  # ... and the tag in TensorBoard
    "learner: an update, s": "learner/update_s",
    "actor: a forward, median ms": "actor/forward_median_ms",
    "actor: weights from published to used, ms": "actor/publish_to_use_ms",
    "aisrv: a prediction, median ms": "aisrv/predict_median_ms",
    "aisrv: a prediction, p99 ms": "aisrv/predict_p99_ms",
    "buffer: a round waits for room, ms": "buffer/producer_wait_ms",
    "buffer: a question for a batch waits, ms": "buffer/consumer_wait_ms",
    "policy lag, updates": "learner/policy_lag_updates",
    "policy lag, greatest, updates": "learner/policy_lag_updates_max",
    "policy lag, s": "learner/policy_lag_s",
    "effective sample size": "learner/ess",
    "clip fraction": "learner/clip_fraction",
}
SIZES = "actor/batch_rows_to_"  # totals of the actor, where it counts forwards by size: those of at most so many rows
OUTSIDE = "CPU not for env, network, optimizer, %"
WARM_UPDATES = 3  # that do not count: kernels, allocators and queues fill meanwhile
UPDATES = 20  # that count, at least
LOOK_S = 0.5  # between two looks at a run
MOST_S = 600.0  # a run ends then in any case
STOP_S = 120.0  # an update of the reference's network takes some seconds, and is finished first


class Seen(NamedTuple):
    """What a run had counted when an update was done: name -> total of all of a role's processes."""

    time: float  # monotonic, s
    totals: dict[str, float]

    @property
    def updates(self) -> float:
        return self.totals["learner/updates"]


def watch(command: Sequence[str], run: Path, log: Path, seconds: float) -> tuple[Seen, Seen]:
    """Start a run, look on for so long and UPDATES at least, and end it. Returns what was seen first and last."""
    # without what this process took from a learner's environment: each role has its own
    environment = {name: one for name, one in os.environ.items() if not name.startswith(("MALLOC_", "GOMP_"))}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, cwd=runs.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    supervisor, watched, began = psutil.Process(process.pid), runs.Watched(run), time.monotonic()
    seen: list[Seen] = []
    try:
        while process.poll() is None and not _enough(seen, seconds) and time.monotonic() - began < MOST_S:
            time.sleep(LOOK_S)
            if (answer := watched.status()) is not None:
                totals: dict[str, float] = defaultdict(float)
                for label, role in answer.mapping("roles").items():
                    for name, value in role["totals"].items():
                        totals[f"{label.rpartition('-')[0]}/{name}"] += value
                totals["supervisor/cpu_s"] = sum(supervisor.cpu_times()[:2])
                if totals["learner/updates"] >= (seen[-1].updates + 1 if seen else WARM_UPDATES):
                    seen.append(Seen(time.monotonic(), dict(totals)))
    finally:
        watched.close()
        process.terminate()
        try:
            code = process.wait(STOP_S)
        finally:
            process.kill()  # its roles end with it
    if code or len(seen) < 2:
        raise ConfigError(f"a run with exit code {code}, {len(seen)} updates of it seen: {log.read_text()[-2000:]}")
    return seen[0], seen[-1]


def _enough(seen: Sequence[Seen], seconds: float) -> bool:
    return bool(seen) and seen[-1].time - seen[0].time >= seconds and seen[-1].updates - seen[0].updates >= UPDATES


def cluster(bench: Bench, name: str, seconds: float, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One of RUNS: {meters: name -> number, shares: of `shares`}. lines: of this network's parts."""
    words = [*bench.overrides, *RUNS[name], "eval_cpu_share=0", "max_seconds=0", "max_env_steps=0"]
    setting = limits.read_setting(bench.config, words)
    place = [f"log_dir={bench.folder}", f"run_name={name}"]
    run, log = bench.folder / name, bench.folder / "log" / f"{name}.log"
    first, last = watch(runs.start_command(bench.config, [*words, *place]), run, log, seconds)
    meters = meters_of(run, setting, first, last)
    parts = shares(setting, first, last, lines)
    needed = [one["cores"] for one in parts if one["needed"]]
    if len(needed) == NEEDED:
        meters[OUTSIDE] = 100 * (1 - sum(needed) / meters["cores used"])
    return {"meters": meters, "shares": parts}


def per_second(first: Seen, last: Seen, name: str) -> float:
    return (last.totals.get(name, 0.0) - first.totals.get(name, 0.0)) / (last.time - first.time)


def meters_of(run: Path, setting: limits.Setting, first: Seen, last: Seen) -> dict[str, float]:
    """What happened between these two updates, a second; of what the run says as means, the mean of these."""
    plan = setting.plan
    found = {name: per_second(first, last, total) for name, total in TOTALS.items()}
    found["learner: is idle"] = 1.0 - sum(
        found[f"learner: {does}"] for does in ("trains", "publishes", "writes checkpoints")
    )
    waits = {name: per_second(first, last, f"aisrv/{name}_s") / plan.workers for name in ("predict_wait", "add_wait")}
    found["aisrv: waits for room in the buffer"] = waits["add_wait"]
    if plan.predict_local:
        found["aisrv: waits for the learner's version, loads it"] = waits["predict_wait"]
        del found["actor: answers"]
    else:
        found["aisrv: waits for predictions"] = waits["predict_wait"]
        found["actor: is idle"] = 1.0 - found["actor: answers"]
        found["actor: rows of a forward"] = rows_of_forward(plan, first, last)
        names = sorted((name for name in last.totals if name.startswith(SIZES)), key=lambda name: (len(name), name))
        for name in names:
            count = last.totals[name] - first.totals.get(name, 0.0)
            found[f"actor: forwards of at most {name.removeprefix(SIZES)} rows"] = count
    used = {role: per_second(first, last, f"{role}/cpu_s") for role in ROLES}
    found |= {f"cores used: {role}": cores for role, cores in used.items() if cores}
    found["cores used"] = sum(used.values())
    steps = [one.totals["learner/env_steps_trained"] for one in (first, last)]
    for name, curve in zip(MEANS, runs.read_curves(run, list(MEANS.values())).values(), strict=True):
        values = curve.value[(curve.env_steps > steps[0]) & (curve.env_steps <= steps[1])]
        if len(values):
            found[name] = float(np.mean(values))
    if "policy lag, updates" in found:
        gradient_steps = setting.hyper.epochs * setting.minibatches
        found["policy lag, gradient steps"] = found["policy lag, updates"] * gradient_steps
    return found


def rows_of_forward(plan: Plan, first: Seen, last: Seen) -> float:
    """On average."""
    if plan.predict_local:
        return plan.envs_per_worker
    return per_second(first, last, "actor/actions") / max(per_second(first, last, "actor/forwards"), 1e-9)


NEEDED = 4  # of the parts in `shares`: environment, network (twice), optimizer


def shares(setting: limits.Setting, first: Seen, last: Seen, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each part takes of the cores in a run, of those that were measured: {what, unit, per_s: how many of the unit
    the run does; cpu_s: of one alone, in the process of the part's caller; cores; share: of all cores; needed: whether
    it is environment, network or optimizer}."""
    plan, hyper = setting.plan, setting.hyper
    envs, batch, minibatch = plan.envs_per_worker, plan.batch, setting.minibatch
    rows = 1 << min(10, round(np.log2(max(1.0, rows_of_forward(plan, first, last)))))
    samples, reads = "learner/env_steps_trained", "aisrv" if plan.predict_local else "actor"
    parts: list[tuple[str, str, float, bool]] = [  # a part, what counts it, how often it is done for each, needed
        (f"env step, features, reward, {envs} envs", "aisrv/env_steps", 1, True),
        (f"predict, {rows} rows", "aisrv/actions", 1, True),
        (f"encode, decode {envs} chunks, with crc32", "aisrv/rounds", 1, False),
        (f"push {envs} chunks, {plan.backend}", "aisrv/items", 1, False),
        (f"add {envs} chunks, {plan.backend}", "buffer/inserted", 1, False),
        (f"sample {batch} chunks, {plan.backend}", "buffer/sampled", 1, False),
        (f"collate {batch} chunks", samples, 1, False),
        (f"values, advantages of {batch} chunks", samples, 1, True),
        (f"cut {setting.minibatches} minibatches", samples, hyper.epochs, False),
        (f"{setting.minibatches} gradient steps of {minibatch} rows", samples, hyper.epochs, True),
        ("dump a checkpoint", "learner/checkpoints", 1, False),
        ("publish weights to the pool", "learner/published", 1, False),
        ("verify and load weights", f"{reads}/models_loaded", 1, False),
    ]
    if not plan.predict_local:
        parts.append((f"encode, decode a question of {ASKED} envs", "aisrv/actions", 1 / ASKED, False))
        parts.append((f"worker, actor, worker, {ASKED} envs", "aisrv/actions", 1, False))
    known = {one["what"]: one for one in lines}
    found = []
    for what, total, times, needed in parts:
        if line := known.get(what):
            per_s, cpu_s = (
                times * per_second(first, last, total),
                statistics.median(line["cpu_seconds"]) / line["amount"],
            )
            cores = per_s * cpu_s
            found.append(
                {"what": what, "unit": line["unit"], "per_s": per_s, "cpu_s": cpu_s, "cores": cores,
                 "share": cores / plan.cores, "needed": needed}
            )  # fmt: skip
    return found


def run_table(run: Mapping[str, Any]) -> str:
    """Of one run: its parts, then its meters."""
    text = [f"{'':50}{'a second':>14} {'':11}{'cpu us each':>12}{'of the cores':>14}"]
    for one in run["shares"]:
        cells = f"{one['per_s']:>14,.1f} {one['unit']:11}{1e6 * one['cpu_s']:>12,.2f}{100 * one['share']:>12.2f} %"
        text.append(f"{one['what']:50}{cells}{'   needed' if one['needed'] else ''}")
    return "\n".join([*text, *(f"{name:50}{value:>14,.3f}" for name, value in run["meters"].items())])


# ---- what is wanted ----


def verdicts(lines: Sequence[dict[str, Any]], found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each number that is asked for, as far as it was measured. lines, found: parts and runs of a
    network."""
    said = []

    def say(what: str, value: float, least: float = -np.inf, most: float = np.inf) -> None:
        wanted = f"at most {most:,.4g}" if most < np.inf else f"at least {least:,.4g}"
        said.append(f"{'holds' if least <= value <= most else 'FAILS':7}{what}: {value:,.4g}, {wanted} wanted")

    line = {one["what"]: one for one in lines}
    seconds = {what: statistics.median(one["seconds"]) for what, one in line.items()}
    trip = f"worker, actor, worker, {ASKED} envs"
    if trip in line:
        forward, raw = seconds[f"the forward in it, {ASKED} rows"], statistics.median(line[trip]["bound_seconds"])
        p99 = 1e3 * statistics.median(line[trip]["p99_seconds"])
        say(f"{trip}, median ms (p99 {p99:.3f})", 1e3 * seconds[trip], most=1e3 * (2 * raw + forward) + 0.1)
    for name, run in found.items():
        meters = run["meters"]
        if name in ("native", "reverb"):
            for what, one in line.items():
                if one["part"] == "buffer" and what.endswith(f", {name}"):
                    times = one["amount"] / seconds[what] / meters["chunks trained/s"]
                    say(f"{what}, times what the learner takes", times, least=10)
            if OUTSIDE in meters:
                say(f"{name}: {OUTSIDE}", meters[OUTSIDE], most=10 if name == "native" else 20)
        say(f"{name}: learner waits for samples, %", 100 * meters["learner: waits for a batch"], most=5)
        if "policy lag, updates" in meters:
            say(f"{name}: policy lag, updates", meters["policy lag, updates"], most=2)
            say(f"{name}: policy lag, gradient steps", meters["policy lag, gradient steps"], most=30)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "cluster"], default=[*PARTS, "cluster"])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each part, and of each bound, in a round")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="of the part cluster")
    parser.add_argument("--cluster-seconds", type=float, default=30.0, help="of each run, at least, once it trains")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and times: to see that everything works")
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if args.rounds < 1 or args.cluster_seconds <= 0:
        raise ConfigError("--rounds must be at least 1 and --cluster-seconds above 0")
    if args.out:
        runs.check_out(args.out)
    overrides = QUICK if args.quick else ()
    # threads that do not spin and memory that is not given back, as in learner and actor
    enter_learner_environment(limits.read_setting(runs.ROOT / "conf" / NETWORKS["default"], overrides).plan)
    runs.end_in_order()  # role processes are ended on the way
    seconds, run_seconds = (0.01, 6.0) if args.quick else (args.seconds, args.cluster_seconds)
    found: dict[str, Any] = {
        "about": runs.about(), "rounds": args.rounds, "seconds": seconds, "setup": {}, "lines": [], "runs": {},
        "verdicts": {},
    }  # fmt: skip
    (runs.ROOT / "train").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bench-parts-", dir=runs.ROOT / "train") as folder:
        for network in args.network:
            bench = Bench(network, Path(folder), overrides)
            try:
                lines = measure(bench, [part for part in args.only if part != "cluster"], args.rounds, seconds)
            finally:
                bench.end.close()
            found["lines"] += lines
            found["setup"][network] = {"chunk_length": bench.spec.chunk_length, "plan": bench.plan.to_json()}
            print(f"\n{network}: {bench.config.name}\n{table(lines)}", flush=True)
            names = [name for name in args.runs if name in bench.backends or name not in ("native", "reverb")]
            found["runs"][network] = {}
            for name in names if "cluster" in args.only else ():
                found["runs"][network][name] = run = cluster(bench, name, run_seconds, lines)
                print(f"\n{network}, run {name}: {' '.join(RUNS[name])}\n{run_table(run)}", flush=True)
            found["verdicts"][network] = said = verdicts(lines, found["runs"][network])
            print("\n".join(["", *said]), flush=True)
    if args.out:
        runs.write_json(args.out, found)


if __name__ == "__main__":
    runs.command_line(main)
