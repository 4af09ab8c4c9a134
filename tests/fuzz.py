"""Broken input at every door of a run, in one process: messages at each port, configurations, maps, checkpoints and
run files.

Each door answers with its own error and goes on; any other exception, a second of CPU time for one case, or 100 MB is a
failure, which names door, seed and case. `tests/system/test_fuzz.py` plays a few hundred cases, tools/soak.sh 100,000.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import torch
from loguru import logger

from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config
from realm.config.plan import Machine, Plan, decide, make_plan
from realm.contract import Spec, Version, chunk_fields
from realm.data.buffer import make_replay_buffer
from realm.env import map as maps
from realm.env.map import MapError
from realm.errors import CheckpointError, Stopped, UserError
from realm.launch.child import ChildArgs
from realm.launch.host import AGENT, HostReport, this_host
from realm.launch.hosts import Host, Hosts
from realm.launch.rundir import RunFile, boot_id, find_runs, living_pids, start_of
from realm.launch.start import Prepared
from realm.launch.supervisor import Supervisor
from realm.learn import checkpoint
from realm.policy.local_policy import reply_fields, request_fields
from realm.roles import actor, model_pool
from realm.roles.buffer import Keeper
from realm.user import load_definition, load_hyper
from realm.watch.meters import Meters
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.curve_keys import CurveKeys, load_keys, make_keys
from realm.wire.line import Frame, Layout, Line, connect
from realm.wire.sockets import Server, Traffic, Waker
from tests.broken import JUNK, mutate
from tests.cluster import ROOT

ALGO = "tests.counting"
CPU_S = 1.0  # for one case; a busy machine does not count
WALL_S = 60.0
MEMORY_MB = 100.0
WARM_UP = 50  # cases until kernels are compiled and caches are full
MANY = 1 << 20  # bytes of a data message, far above the counting user's


class Failed(Exception):
    """A door did what it must not do."""


class Cases:
    """Counts the cases of one door and watches time and memory. `more` ends the case before and begins the next."""

    def __init__(self, door: str, number: int, seed: int, show: Callable[[int], None] = lambda done: None) -> None:
        self.draw = random.Random(f"{door} {seed}")
        self.done = -1  # cases that are over
        self.refused = 0
        self.slowest_s = 0.0
        self._number, self._show = number, show
        self._cpu, self._wall, self._peak = time.process_time(), time.monotonic(), 0.0
        self._begin = time.monotonic()

    def more(self) -> bool:
        cpu, wall = time.process_time() - self._cpu, time.monotonic() - self._wall
        self.done += 1
        if self.done > WARM_UP:
            self.slowest_s = max(self.slowest_s, cpu)
            if cpu > CPU_S or wall > WALL_S:
                raise Failed(f"took {cpu:.1f} s of CPU time, {wall:.1f} s in all")
            if self.grown_mb() > MEMORY_MB:
                raise Failed(f"memory has grown by {self.grown_mb():.0f} MB")
        else:
            self._peak = peak_mb()
        self._show(self.done)
        self._cpu, self._wall = time.process_time(), time.monotonic()
        return self.done < self._number

    def grown_mb(self) -> float:
        """The peak's growth since the door is warm."""
        return peak_mb() - self._peak

    def seconds(self) -> float:
        return time.monotonic() - self._begin


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


class Row(NamedTuple):
    """What became of the cases of a door."""

    door: str
    cases: int
    refused: int
    slowest_s: float
    grown_mb: float
    seconds: float


def play(door: str, folder: Path, number: int, seed: int, show: Callable[[int], None] = lambda done: None) -> Row:
    """Play the cases of one door. Raises Failed, naming the case."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = Cases(door, number, seed, show)
    try:
        DOORS[door](cases, folder)
    except Exception as error:  # of any kind: this is what the cases are for
        raise Failed(f"{door}, seed {seed}, case {cases.done}: {type(error).__name__}: {error}") from error
    if cases.done != number:
        raise Failed(f"{door}, seed {seed}: ended after {cases.done} cases")
    return Row(door, number, cases.refused, cases.slowest_s, max(0.0, cases.grown_mb()), cases.seconds())


# ---- messages ----

PLAIN = [one for one in JUNK if not isinstance(one, msgspec.Raw)]


def counting() -> tuple[Plan, Spec]:
    app = AppConfig(algo=ALGO, aisrv_count=2, aisrv_connect_to_kaiwu_env_count=4, buffer_backend="native")
    hyper, definition = load_hyper(ALGO, {}), load_definition(ALGO)
    plan = make_plan(decide(app, Machine(cores=2, gpus=0, has_reverb=False)).app)
    return plan, definition.spec(definition.make_envs(1, 0, hyper, {}), hyper)


def garbled(draw: random.Random, message: Message) -> Message:
    """A message that passes the codec, and whose content may break its contract."""
    meta, arrays = dict(message.meta), dict(message.arrays)
    for _ in range(draw.choice([0, 1, 1, 2, 4])):
        match draw.randrange(6):
            case 0 if meta:
                meta[draw.choice([*meta, "new"])] = draw.choice(PLAIN)
            case 1 if meta:
                del meta[draw.choice([*meta])]
            case 2 if arrays:
                name = draw.choice([*arrays, "new"])
                shape = [draw.choice([0, 1, 2, 4, 9]) for _ in range(draw.randrange(4))]
                arrays[name] = np.zeros(shape, draw.choice(["?", "i1", "i4", "i8", "u8", "f2", "f4", "f8"]))
            case 3 if arrays:
                del arrays[draw.choice([*arrays])]
            case 4 if arrays:
                name = draw.choice([*arrays])
                fill = draw.choice([-1, 0, 255, 2**62, 1e30, float("nan"), float("inf")])
                with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
                    arrays[name] = np.full_like(arrays[name], fill)
            case _:
                return with_content(message, meta, arrays, draw.choice([*KINDS, "", "x" * 300]))
    return with_content(message, meta, arrays, message.kind)


def with_content(message: Message, meta: dict[str, Any], arrays: dict[str, Any], kind: str) -> Message:
    return Message(kind, message.seq, meta, arrays, message.sender, message.incarnation)


KINDS = (
    "bound", "ready", "next", "report", "evaluated", "ended", "warning", "status", "stop_role", "save", "predict",
    "add", "sample", "publish", "offer", "latest", "stop",
)  # fmt: skip


def broken_frames(draw: random.Random, codec: Codec, good: Message) -> list[bytes]:
    """The frames of a message of any peer: often broken, sometimes only in what they say."""
    message = garbled(draw, good)
    sender = Codec(
        codec.run_id, codec.schema, draw.choice(["aisrv-0", "aisrv-1", "learner-0", ""]), draw.randrange(3), MANY
    )
    message = Message(message.kind, draw.choice([0, 1, draw.randrange(2**62)]), message.meta, message.arrays)
    try:
        frames = [bytes(one) for one in sender.encode(message, checksum=draw.random() < 0.5)]
        if draw.random() < 0.6:
            return frames
    except WireError:
        pass  # no peer of ours can send it
    return mutate(draw, [bytes(one) for one in sender.encode(good, checksum=draw.random() < 0.5)])[0]


def control(cases: Cases, folder: Path) -> None:
    """The supervisor's port: a real supervisor that has started nothing."""
    plan, spec = counting()
    (folder / "log").mkdir(exist_ok=True)
    app = AppConfig(algo=ALGO, aisrv_count=2, log_dir=str(folder))
    config = RunConfig(decide(app, Machine(cores=2, gpus=0, has_reverb=False)).app, {}, {}, {})
    supervisor = Supervisor(Prepared(config, plan, spec, folder, RunFile("run", 1, 0.0), None), own_network=False)
    for role in supervisor.roles:
        role.incarnation = 1
    who = {"role": "aisrv", "index": 0}
    report = {"env_steps": 5, "totals": {"updates": 1.0}, "means": {"episode/score": [4.0, 2.0]}, **who}
    judged = {
        "version": [1, 2], "env_steps": 9, "statistic": "score", "score": 1.0, "best": 2.0, "best_version": [1, 1],
        "means": {"score": 1.0}, **who,
    }  # fmt: skip
    good = [
        Message("bound", 1, {"address": "tcp://127.0.0.1:1", "pid": 5, **who}),
        *(Message(kind, 1, who) for kind in ("ready", "next", "status", "save")),
        Message("report", 1, report),
        Message("evaluated", 1, judged),
        Message("ended", 1, {"cause": "c", "trace": "t", **who}),
        Message("warning", 1, {"text": "t", **who}),
        Message("stop_role", 1, who),
    ]
    codec = Codec("run", "", "supervisor", 1, CONTROL_MAX_BYTES)
    while cases.more():
        try:
            supervisor._handle(b"peer", codec.decode(broken_frames(cases.draw, codec, cases.draw.choice(good))))
        except WireError:
            cases.refused += 1
        if cases.done % 20 == 0:
            supervisor.board.curves()
            supervisor.board.status("running", 100, 0, 0)
    supervisor._server.close()


def agent(cases: Cases, folder: Path) -> None:
    """The same port for the agents of hosts: two have come, and roles run there."""
    (folder / "log").mkdir(exist_ok=True)
    app: Any = SimpleNamespace(hosts=2, bind_host="127.0.0.1", base_port=0, algo=ALGO)
    hosts, info = Hosts(app, make_curve(folder), True), this_host(ALGO)
    hosts.begin(RunConfig(AppConfig(algo=ALGO), {}, {}, {}), folder)
    log = ("aisrv-0", "one")
    reports = HostReport(), HostReport([("aisrv", 0, 1, 1)], log, ["w"]), HostReport(log=log), HostReport(left="c")
    good = [Message("hello", 1, dataclasses.asdict(info))]
    good += [Message("report", 1, dataclasses.asdict(report)) for report in reports]
    codec = Codec("run", "", AGENT, 1, CONTROL_MAX_BYTES)
    while cases.more():
        if cases.done % 20 == 0:
            hosts.turn(cases.done)
            hosts.living.setdefault(1, Host(info, 1, (b"peer", 1), cases.done))
            hosts.place(1, ChildArgs("aisrv", 0, 1, folder, "", "", 0, "", 1))
        try:
            hosts.take(b"peer", codec.decode(broken_frames(cases.draw, codec, cases.draw.choice(good))))
        except WireError:
            cases.refused += 1
    hosts.server.close()


def make_curve(folder: Path) -> CurveKeys:
    make_keys(folder / "keys")
    return cast(CurveKeys, load_keys(str(folder / "keys")))


class Fed:
    """Stands for a role's server and its link: every turn of the role's loop gets the next broken message."""

    serve = Server.serve

    def __init__(self, cases: Cases, codec: Codec, good: list[Message]) -> None:
        self.traffic, self.meters, self.codec = Traffic(), Meters(), codec
        self._cases, self._good = cases, good
        self._frames: list[bytes] | None = None
        self._awake = Waker()  # so that the loop never sleeps
        self._awake.wake()

    def tick(self) -> None:
        if not self._cases.more():
            raise Stopped
        self._frames = broken_frames(self._cases.draw, self.codec, self._cases.draw.choice(self._good))

    def receive(self) -> tuple[bytes, Message] | None:
        frames, self._frames = self._frames, None
        if frames is None:
            return None
        try:
            return b"peer", self.codec.decode(frames)
        except WireError as error:
            self.reject(b"peer", error)
            return None

    def reject(self, peer: bytes, error: ValueError) -> None:
        self._cases.refused += 1

    def send(self, peer: bytes, message: Message, checksum: bool = False) -> None:
        self.codec.encode(message, checksum)

    def expect(self, most_bytes: int) -> None: ...

    def ready(self, sockets: Any) -> None: ...

    def waits(self, wait: object) -> None: ...

    def goes_on(self) -> None: ...

    def fileno_socket(self) -> Any:
        return self._awake.fileno_socket()

    def fileno(self) -> int:
        """Always has something to read."""
        there, here = os.pipe()
        os.write(here, b".")
        return there


class Pool:
    """Stands for the model pool, which sends a model once."""

    def __init__(self, weights: bytes) -> None:
        tag = {
            "version": [1, 1],
            "env_steps": 1,
            "memory_size": 0,
        }
        self._models = [Message("model", 1, tag, {"weights": np.frombuffer(weights, np.uint8)})]

    def ask(self, kind: str, meta: dict[str, Any]) -> int:
        return 1

    def collect(self) -> Message | None:
        return self._models.pop() if self._models else None


@dataclasses.dataclass
class FedJob:
    """What the loops of actor and model pool need of a Job."""

    fed: Fed
    config: Any
    plan: Plan
    spec: Spec
    weights: bytes = b""
    seed: int = 0
    index: int = 0

    @property
    def link(self) -> Fed:
        return self.fed

    def bound(self) -> Fed:
        return self.fed

    def client(self, role: str) -> Any:
        pool = Pool(self.weights)
        pool.fileno_socket, pool.fileno = self.fed.fileno_socket, self.fed.fileno  # type: ignore[attr-defined]
        return pool


def config_of(folder: Path) -> Any:
    path = folder / "config.toml"
    path.write_text(f'[app]\nalgo = "{ALGO}"\n[counting]\n')
    return load_config(path)


def data_codec(spec: Spec) -> Codec:
    return Codec("run", spec.schema, "server", 1, MANY)


class FedLines(Fed):
    """As Fed; whoever is told where its line is goes there and sends broken frames."""

    def __init__(self, cases: Cases, codec: Codec, spec: Spec) -> None:
        super().__init__(cases, codec, [Message("line", 1, {"worker": worker}) for worker in range(3)])
        self._lines: list[Line] = []
        self._spec, self._seen = spec, self.traffic.totals()["refused_peers"]
        self._frame = Frame(Layout(request_fields(spec)), 4)

    def send(self, peer: bytes, message: Message, checksum: bool = False) -> None:
        super().send(peer, message, checksum)
        draw = self._cases.draw
        if draw.random() < 0.2:
            message = Message(
                message.kind, message.seq, {**message.meta, "key": draw.randbytes(draw.randrange(20)).hex()}
            )
        line = connect(message, Layout(reply_fields(self._spec)), MANY, Traffic())
        for _ in range(draw.randrange(4)):
            self._frame.address(draw.randrange(2**62), Version(1, draw.randrange(3)))
            good = bytes(self._frame.bytes)
            with contextlib.suppress(OSError):
                line._socket.sendall(good if draw.random() < 0.4 else broken_bytes(draw, good))
        self._lines = [*self._lines[-5:], line]
        if draw.random() < 0.3:
            draw.choice(self._lines).close()


def predict(cases: Cases, folder: Path) -> None:
    """The actor's port and its lines, behind its real loop and the counting agent."""
    plan, spec = counting()
    weights = checkpoint.to_bytes(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)))
    fed = FedLines(cases, data_codec(spec), spec)
    with contextlib.suppress(Stopped):
        actor.run(FedJob(fed, config_of(folder), plan, spec, weights))  # type: ignore[arg-type]
    cases.refused += fed.traffic.refused_peers


def models(cases: Cases, folder: Path) -> None:
    """The model pool's port, behind its real loop."""
    plan, spec = counting()
    weights = b"w" * 500
    tag = {
        "version": [1, 1],
        "env_steps": 1,
        "memory_size": 0,
    }
    good = [
        Message("publish", 1, tag, {"weights": np.frombuffer(weights, np.uint8)}),
        Message("offer", 1, {"version": [1, 1]}),
        Message("latest", 1, {"have": [0, 0]}),
    ]
    with contextlib.suppress(Stopped):
        model_pool.run(FedJob(Fed(cases, data_codec(spec), good), config_of(folder), plan, spec))  # type: ignore[arg-type]


def samples(cases: Cases, folder: Path) -> None:
    """The buffer's port: its keeper with the native storage."""
    plan, spec = counting()
    codec = data_codec(spec)
    items = {name: np.zeros((4, *field.shape), field.dtype) for name, field in chunk_fields(spec).items()}
    good = []
    for seq in range(1, 9):
        items = {name: array.copy() for name, array in items.items()}
        items["seq"][:], items["env"][:], items["version"][:] = seq, np.arange(4), (1, 0)
        good.append(Message("add", seq, {}, items))
    good += [Message("sample", n, {"count": plan.batch, "version": [1, n]}) for n in range(4)]
    priorities = {"key": np.arange(4, dtype=np.uint64), "priority": np.ones(4)}
    good.append(Message("sample", 9, {"count": plan.batch, "version": [1, 5]}, priorities))
    while cases.more():
        if cases.done % 500 == 0:  # a version from far away makes all that follows too old
            keeper = Keeper(make_replay_buffer(plan, spec, "x", 0), Meters(), 8)
        try:
            message = codec.decode(broken_frames(cases.draw, codec, cases.draw.choice(good)))
        except WireError:
            cases.refused += 1
            continue
        before = keeper.invalid
        for _, answer in keeper.handle(b"peer", message):
            codec.encode(answer, checksum=True)
        cases.refused += keeper.invalid - before


# ---- files ----


def one_line(error: Exception) -> None:
    """Raise Failed unless the error is one sentence for a user."""
    if "\n" in str(error) or len(str(error)) > 5000:
        raise Failed(f"not one line: {str(error)[:500]!r}")


def broken_bytes(draw: random.Random, good: bytes) -> bytes:
    """A file that was damaged, or that somebody else made."""
    data = bytearray(good)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(data)) if data else 0
        match draw.randrange(6):
            case 0 if data:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + draw.choice([1, 4, 100])]
            case 3:
                data[at:at] = draw.randbytes(draw.choice([1, 4, 100]))
            case 4:
                data[at:at] = draw.choice(WORDS)
            case _:
                end = at + draw.choice([1, 20, 500])
                data[at:at] = data[at:end]  # something comes twice
    return bytes(data)


WORDS = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"#", b'"', b"'''", b"=", b"[", b"]", b"{", b"}", b"[[x]]", b",",
    b":", b"-", b"nan", b"inf", b"1e400", b"-1", b"0", b"9" * 400, b"null", b"true", b"../..", b"__import__('os')",
    b"!!python/object/apply:os.system", b"&a", b"*a", b"<<: *a", b"2024-01-01", b"[" * 2000, b"{" * 2000,
    "ü\u202e".encode(),
]  # fmt: skip


def configuration(cases: Cases, folder: Path) -> None:
    """Files of conf/ and of tests/counting, and words of the command line."""
    good = [path.read_bytes() for path in (*sorted((ROOT / "conf").glob("*.toml")),)]
    keys = [field.name for field in dataclasses.fields(AppConfig)]
    path, machine = folder / "broken.toml", Machine(cores=2, gpus=0, has_reverb=False)
    while cases.more():
        draw, overrides = cases.draw, []
        path.write_bytes(broken_bytes(draw, draw.choice(good)) if draw.random() < 0.7 else draw.choice(good))
        for _ in range(draw.randrange(3)):
            value = draw.choice([*map(str, PLAIN), *(word.decode(errors="replace") for word in WORDS)])
            overrides.append(draw.choice([draw.choice(keys), f"env.{draw.choice(keys)}", "", "a.b.c"]) + "=" + value)
        try:
            config = load_config(path, overrides)
            if config.app.algo == "diy":
                load_hyper("diy", config.hyper, config.places)
            make_plan(decide(config.app, machine).app)
        except UserError as error:
            cases.refused += 1
            one_line(error)


def map_files(cases: Cases, folder: Path) -> None:
    """The two files of a map."""
    maps.save(maps.default(), folder)
    good = {name: (folder / name).read_bytes() for name in (maps.FLAGS_FILE, maps.POINTS_FILE)}
    while cases.more():
        name = cases.draw.choice([maps.FLAGS_FILE, maps.POINTS_FILE, maps.POINTS_FILE])
        (folder / name).write_bytes(broken_bytes(cases.draw, good[name]))
        try:
            maps.load(folder)
        except MapError as error:
            cases.refused += 1
            one_line(error)
        (folder / name).write_bytes(good[name])


class Learner:
    """An agent as small as a checkpoint needs it."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 2)
        self.adam = torch.optim.Adam(self.model.parameters())
        self.model(torch.ones(1, 3)).sum().backward()
        self.adam.step()

    def save_model(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "updates": 3}

    def load_model(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        int(state["updates"])


def checkpoints(cases: Cases, folder: Path) -> None:
    """The three files of a checkpoint. In half of the cases the sums are made to fit what was broken."""
    agent: Any = Learner()
    path = checkpoint.save(folder, agent, checkpoint.Version(1, 3), 10, "schema", 1)
    good = {one.name: one.read_bytes() for one in path.iterdir()}
    assert isinstance(checkpoint.load(path), checkpoint.Checkpoint)
    while cases.more():
        name = cases.draw.choice([*good])
        data = broken_bytes(cases.draw, good[name])
        (path / name).write_bytes(data)
        if name != "manifest.json" and cases.draw.random() < 0.5:
            manifest = json.loads(good["manifest.json"])
            manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
            del manifest["digest"]
            manifest["digest"] = checkpoint._digest(manifest)
            (path / "manifest.json").write_text(json.dumps(manifest))
        try:
            checkpoint.restore(agent, checkpoint.load(path))
        except CheckpointError as error:
            cases.refused += 1
            one_line(error)
        for name, data in good.items():
            (path / name).write_bytes(data)
    shutil.rmtree(path)


def run_files(cases: Cases, folder: Path) -> None:
    """run.json, as stop and status look for it."""
    own = os.getpid()
    roles = {"aisrv-0": {"pid": own, "created": start_of(own), "incarnation": 1, "address": "", "state": "ready"}}
    (folder / "run").mkdir(exist_ok=True)
    RunFile("id", own, start_of(own), boot_id(), time.time(), "tcp://127.0.0.1:9", roles=roles).write(folder / "run")
    path = folder / "run" / "run.json"
    good = path.read_bytes()
    content, junk = json.loads(good), [one for one in PLAIN if one != b"x"]
    while cases.more():
        draw = cases.draw
        if draw.random() < 0.5:
            path.write_bytes(broken_bytes(draw, good))
        else:
            changed = json.loads(good)
            target = draw.choice([changed, changed["roles"], changed["roles"]["aisrv-0"]])
            target[draw.choice([*content, "pid", "created", "aisrv-0"])] = draw.choice(junk)
            path.write_text(json.dumps(changed))
        runs = find_runs(folder)
        cases.refused += not runs
        for _, run in runs:
            assert set(living_pids(run)) <= {own}


DOORS: dict[str, Callable[[Cases, Path], None]] = {
    "control port": control,
    "agents": agent,
    "predict port": predict,
    "samples port": samples,
    "models port": models,
    "configuration": configuration,
    "map files": map_files,
    "checkpoints": checkpoints,
    "run.json": run_files,
}


def play_all(folder: Path, number: int, seed: int, show: Callable[[int], None]) -> list[Row]:
    """Play `number` cases, as many at each door. show: gets how many are over."""
    logger.disable("realm")
    share = -(-number // len(DOORS))
    try:
        return [
            play(door, folder / door.replace(" ", "_"), share, seed, lambda done, k=k: show(k * share + done))  # type: ignore[misc]
            for k, door in enumerate(DOORS)
        ]
    finally:
        logger.enable("realm")
