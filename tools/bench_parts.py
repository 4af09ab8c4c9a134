"""Each part of the cluster alone, beside a bound that it cannot beat here, and what a real run spends its time on.

    python tools/bench_parts.py --out train/parts.json
    python tools/bench_parts.py --network reference --only roundtrip push

For two networks: conf/configure_app.toml (numbers, two MLPs) and conf/reference.toml (an image, two conv trunks). All
parts and bounds take turns in rounds; a time is the median over the rounds of a round's median, with the least and the
greatest. What is a process in a run is a real role's process here, to which this one is supervisor, worker and learner.
`cluster` is a run of `--cluster-seconds`: its meters say who waits for whom.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import inspect
import itertools
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.buffer import ACCEPTED
from realm.config import ConfigError, to_toml
from realm.contract import Arrays, ModelTag, SampleInfo, Version, arrays_to_chunk, chunk_to_arrays
from realm.control import CONTROL_MAX_BYTES
from realm.launch.child import RUN_ID_VARIABLE
from realm.launch.environment import enter_learner_environment, role_environment
from realm.launch.plan import this_machine
from realm.plan import Plan, make_replay_buffer
from realm.verbs import BatchReader, ItemSender, ModelWriter, RemotePolicy, VersionGate, parse_model, tag_meta
from realm.wire import Client, Codec, Message, Server, wait_any
from tools import limits, runs

NETWORKS = {"default": "configure_app.toml", "reference": "reference.toml"}
QUICK = ("aisrv_count=1", "aisrv_connect_to_kaiwu_env_count=4", "diy.chunk_length=8", "diy.minibatch_size=16")
ASKED = 32  # environments of a round trip
PATIENCE_S = 120.0
MAX_BYTES = 1 << 30
TIMES = ("seconds", "p99_seconds", "cpu_seconds", "bound_seconds")  # of a call, each a list with one of each round

Call = Callable[[], Any]
"""Does a part once. A float that it returns is the seconds that count, where it had to do something else, too."""


class Line(NamedTuple):
    """One part and its bound. amount: how many `unit`s a call is about; threads: of torch."""

    what: str
    amount: float
    unit: str
    call: Call
    bound: str
    bound_call: Call
    threads: int = 1


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
        """Its optimizer has begun: checkpoints hold its state."""
        agent = self.setting.agent()
        limits.make_gradient_step(agent, self.hyper, limits.observations(self.setting, 16))()
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

    def both() -> float:
        prepare()
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

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
    from realm.checkpoint import to_bytes

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
    client = stage.client("aisrv-0", stage.start("actor", bench.plan))
    policy = RemotePolicy(client, bench.spec, 0, ASKED, VersionGate(None, 1, 1), stage.tick, lambda seconds: None)
    obs, question = asked(bench)
    first = np.zeros(ASKED, np.bool_)
    prediction = policy.predict(obs, first)
    raw = stage.raw(question, 400 + sum(one.nbytes for one in (prediction.action, *prediction.extra.values())))
    yield Line(f"worker, actor, worker, {ASKED} envs", ASKED, "rows", lambda: policy.predict(obs, first), *raw)
    yield forward_line(bench, f"the forward in it, {ASKED} rows", obs)


def forward_line(bench: Bench, what: str, obs: Arrays) -> Line:
    import torch

    agent, rows = bench.agent, len(obs["legal"])
    seen = {name: torch.from_numpy(array).to(agent.device) for name, array in obs.items()}
    network = torch.inference_mode()(lambda: agent.model(seen)[1].cpu())
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
    info = SampleInfo(np.zeros(batch, np.uint64), np.ones(batch), np.ones(batch))
    rows = agent._rows(chunk, agent._now())
    parts = torch.randperm(steps).to(agent.device).tensor_split(bench.setting.minibatches)
    minibatch, size, count = rows.at(parts[0]), len(parts[0]), hyper.epochs * len(parts)
    reward, *ends = (agent._tensor(one) for one in (chunk.reward, chunk.terminated, chunk.truncated, chunk.valid))
    value = torch.zeros(batch, bench.spec.chunk_length + 1)

    def network() -> None:
        logits, values = agent.model(minibatch.obs)
        (logits.sum() + values.sum()).backward()

    said = f"forward, backward of {size} rows"
    gathered = copying({name: array[:, :-1] for name, array in chunk.obs.items()})
    read = copying({"r": chunk.reward, "v": value.numpy(), **{str(k): one.cpu().numpy() for k, one in enumerate(ends)}})
    for what, amount, unit, call, bound in (
        (f"collate {batch} chunks", steps, "samples",
         lambda: [agent._tensor(one) for one in chunk_to_arrays(arrays_to_chunk(items)).values()], copying(items)),
        (f"cut {len(parts)} minibatches", steps, "samples", lambda: [rows.at(part) for part in parts], gathered),
        (f"GAE of {batch} chunks", steps, "samples",
         lambda: returns.gae(reward, value.to(agent.device), *ends, 0.99, hyper.lam), read),
        (f"gradient step, {size} rows", size, "samples",
         lambda: agent._gradient_step(minibatch, hyper.entropy_start), (said, network)),
        (f"update of {count} gradient steps", steps, "samples",
         lambda: agent.learn(chunk, info), (f"{count} x {said}", lambda: [network() for _ in range(count)])),
    ):  # fmt: skip
        yield Line(what, amount, unit, call, *bound, bench.plan.learner_threads)


def model_lines(bench: Bench) -> Iterator[Line]:
    from realm import checkpoint

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
    begin, cpu = time.perf_counter(), time.process_time()
    while not took or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        own = call()
        if cuda.is_initialized():
            cuda.synchronize()
        took.append(own if isinstance(own, float) else time.perf_counter() - start)
    return took, (time.process_time() - cpu) / len(took)


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


# ---- a run ----

PLACES = ("local", "remote")  # in the workers, at the actor
ROLES = ("aisrv", "actor", "buffer", "learner", "model_pool", "evaluator")
METERS = {  # what it is called here, and its tag in TensorBoard
    "env steps/s": "rate/env_steps_per_s",
    "learner: trains": "share/learner/busy",
    "learner: waits for a batch": "share/learner/wait",
    "learner: an update, s": "learner/update_s",
    "actor: answers": "share/actor/busy",
    "actor: rows of a forward": "actor/batch_rows",
    "predictions/s": "rate/aisrv/actions_per_s",
    "actor: a forward, median ms": "actor/forward_median_ms",
    "actor: weights from published to used, ms": "actor/publish_to_use_ms",
    "aisrv: wait for predictions, cores": "share/aisrv/predict_wait",
    "aisrv: wait for room in the buffer, cores": "share/aisrv/add_wait",
    "aisrv: a prediction, median ms": "aisrv/predict_median_ms",
    "aisrv: a prediction, p99 ms": "aisrv/predict_p99_ms",
    "buffer: a round waits for room, ms": "buffer/producer_wait_ms",
    "buffer: a question for a batch waits, ms": "buffer/consumer_wait_ms",
    "policy lag, updates": "learner/policy_lag_updates",
    "policy lag, greatest, updates": "learner/policy_lag_updates_max",
    "policy lag, s": "learner/policy_lag_s",
    "effective sample size": "learner/ess",
    "clip fraction": "learner/clip_fraction",
    "samples trained/s": "rate/learner/env_steps_trained_per_s",
    **{f"cores used: {role}": f"share/{role}/cpu" for role in ROLES},
}
SIZES = "batch_rows_to_"  # totals of the actor, where it counts forwards by size: those of at most so many rows


def cluster(bench: Bench, place: str, seconds: float, lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Start a run with predictions in this place, wait for its end, and read its meters. lines: of this network's
    parts."""
    place_word = f"predict_local_or_remote={place}"
    words = [*bench.overrides, place_word, f"log_dir={bench.folder}", f"run_name={place}", f"max_seconds={seconds:g}"]
    log = bench.folder / "log" / f"{place}.log"
    if code := runs.run_process(runs.start_command(bench.config, words), log):
        raise ConfigError(f"the run ended with exit code {code}: {log.read_text()[-2000:]}")
    return meters_of(bench.folder / place, bench, lines)


def meters_of(run: Path, bench: Bench, lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means of a run's meters over its reports while it trained, without the first two and the last.

    With the parts env, forward and learner in `lines`, also how many cores were used for something else than these.
    """
    found: dict[str, float] = {}
    curves = runs.read_curves(run, list(METERS.values()))
    for name, tag in METERS.items():
        values = curves[tag].value[curves[tag].env_steps > 0]
        if len(values):
            found[name] = float(np.mean(values[2:-1] if len(values) > 3 else values))
    used = {role: found.get(f"cores used: {role}", 0.0) for role in ROLES}
    found["learner: is idle"] = 1.0 - found.get("learner: trains", 0.0)
    found["actor: is idle"] = 1.0 - found.get("actor: answers", 0.0)
    found["aisrv: is idle, of one"] = 1.0 - used["aisrv"] / bench.plan.workers
    processes = runs.read_json(run / "summary.json", "processes")["processes"]
    actor = processes.get("actor-0.1", {})  # none where workers predict themselves
    for name in sorted((name for name in actor if name.startswith(SIZES)), key=lambda name: (len(name), name)):
        found[f"actor: forwards of at most {name.removeprefix(SIZES)} rows"] = actor[name]

    def alone(what: str) -> float:
        """CPU seconds of one unit alone; NaN if that was not measured."""
        each = [statistics.median(one["cpu_seconds"]) / one["amount"] for one in lines if one["what"].startswith(what)]
        return each[0] if each else float("nan")

    rows = 1 << min(10, round(np.log2(found.get("actor: rows of a forward", float(bench.plan.envs_per_worker)))))
    needed = (
        alone("env step, features") * found.get("env steps/s", 0.0)
        + alone(f"predict, {rows} rows") * found.get("predictions/s", 0.0)
        + alone("gradient step") * bench.hyper.epochs * found.get("samples trained/s", 0.0)
    )
    found["cores used: all but the evaluator"] = sum(used.values()) - used["evaluator"]
    if np.isfinite(needed):
        found["... not for env, network, optimizer"] = found["cores used: all but the evaluator"] - needed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "cluster"], default=[*PARTS, "cluster"])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each part, and of each bound, in a round")
    parser.add_argument("--cluster-seconds", type=float, default=30.0)
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
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, frame: sys.exit("stopped"))  # role processes are ended on the way
    seconds, run_seconds = (0.01, 6.0) if args.quick else (args.seconds, args.cluster_seconds)
    found: dict[str, Any] = {"about": runs.about(), "rounds": args.rounds, "seconds": seconds, "lines": [], "runs": {}}
    (runs.ROOT / "train").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bench-parts-", dir=runs.ROOT / "train") as folder:
        for network in args.network:
            bench = Bench(network, Path(folder), overrides)
            try:
                lines = measure(bench, [part for part in args.only if part != "cluster"], args.rounds, seconds)
            finally:
                bench.end.close()
            found["lines"] += lines
            print(f"\n{network}: {bench.config.name}\n{table(lines)}", flush=True)
            for place in PLACES if "cluster" in args.only else ():
                found["runs"][f"{network}, {place}"] = meters = cluster(bench, place, run_seconds, lines)
                print(f"\npredictions: {place}")
                print("\n".join(f"{name:42}{value:>12,.3f}" for name, value in meters.items()), flush=True)
    if args.out:
        runs.write_json(args.out, found)


if __name__ == "__main__":
    runs.command_line(main)
