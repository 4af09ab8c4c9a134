"""realm/wire/: the verbs, each verb as a call and over sockets, against the loops of the real roles in threads."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import zmq
from loguru import logger

from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.config.plan import Plan
from realm.contract import NO_VERSION, ActionSpec, Arrays, Field, PredictContext, SampleInfo, Spec, Version
from realm.data.buffer import INVALID, OLD_EPOCH, STALE, Limiter, ReplayBuffer
from realm.data.native import NativeStorage
from realm.errors import ContractError, RunError, Stopped
from realm.learn.checkpoint import load_bytes, to_bytes
from realm.policy.gate import VersionGate
from realm.policy.local_policy import LocalPolicy, reply_fields, request_fields
from realm.roles import WAITS, actor, buffer, model_pool
from realm.roles.buffer import Keeper
from realm.roles.job import Job
from realm.watch.meters import Meters
from realm.watch.progress import Stillness
from realm.wire import models as model_verbs
from realm.wire import sockets
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import Link
from realm.wire.line import Frame, Layout, Line, LineLost, Lines, connect
from realm.wire.models import ModelReader, ModelWriter
from realm.wire.predict import RemotePolicy
from realm.wire.samples import BatchReader, ItemSender
from realm.wire.sockets import Client, Server, Traffic
from tests.backends import BACKENDS

SPEC = Spec(
    obs={"x": Field((4,), "float32"), "legal": Field((3,), "bool")},
    action=ActionSpec(n=3),
    extra={"value": Field((), "float32"), "seen": Field((4,), "float32")},
    chunk_length=2,
)
PLAN = Plan(
    workers=2, envs_per_worker=2, evaluator=False, predict_local=False, backend="native", on_policy=True,
    sampler="Fifo", remover="Fifo", capacity=16, preload=4, warm_up_steps=0, batch=4, ratio=1.0,
    max_version_lag=None, publish_early=False, cores=1, learner_threads=1, device="cpu",
)  # fmt: skip

AGENT = """
    import numpy as np
    import torch

    class Agent:
        '''A linear policy: explore 0 takes the best legal action, 1 draws; gives back what it saw.'''

        def __init__(self, spec, config, device, seed):
            torch.manual_seed(seed)
            self.model = torch.nn.Linear(4, 4)

        def predict(self, obs, context):
            assert context.slot.shape == context.first.shape == context.explore.shape == obs["x"].shape[:1]
            with torch.no_grad():
                out = self.model(torch.as_tensor(np.array(obs["x"]))).numpy()
            logits = np.where(obs["legal"], out[:, :3], -1e9)
            noise = np.random.gumbel(size=logits.shape) * context.explore[:, None]
            return (logits + noise).argmax(1), {"value": out[:, 3], "seen": np.array(obs["x"])}

        def learn(self, batch, info): ...
        def save_model(self): return {}
        def load_model(self, state): ...
"""


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def patience(timeout_s: float = 60.0) -> Callable[[], None]:
    """A `tick` for what waits without an end: the test fails instead of hanging."""
    deadline = time.monotonic() + timeout_s

    def tick() -> None:
        assert time.monotonic() < deadline, "waited in vain"

    return tick


def test_a_wait_that_lasts_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of the table; one that ended in between begins again."""
    link, now, said = object.__new__(Link), [1000.0], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    link._waits, link._stillness = None, Stillness()
    sink = logger.add(said.append, format="{message}")
    tick = link.waiting(WAITS["batch"], lambda: None)
    try:
        for turn in range(300):
            now[0] += 1.0
            tick()
            if turn == 50:
                link.goes_on()
    finally:
        logger.remove(sink)
    assert said == ["for 60 s the learner waits for a batch, until workers have added what it and the warm-up lack\n"]


# --- roles in threads


class FakeLink:
    """What a role needs of its Link: an end, and a place for numbers."""

    def __init__(self) -> None:
        self.meters, self.env_steps = Meters(), 0
        self.over, self.is_ready = threading.Event(), threading.Event()

    def tick(self) -> None:
        if self.over.is_set():
            raise Stopped

    def ready(self, sockets: Any) -> None:
        self.is_ready.set()

    def commands(self) -> list[Message]:
        return []

    def waits(self, wait: object) -> None:
        assert wait in WAITS.values()

    def goes_on(self) -> None:
        pass


class Role:
    """One incarnation of a role's loop in a thread, with its own server."""

    def __init__(self, module: ModuleType, cluster: Cluster, incarnation: int, port: int) -> None:
        self.name = module.__name__.rpartition(".")[2]
        self.link = FakeLink()
        codec = cluster.codec(f"{self.name}-0", incarnation)
        self.server = Server(codec, "127.0.0.1", port)
        cluster.book[self.name] = self.server.address
        job = Job(
            self.name, 0, incarnation, 1, cluster.folder, cluster.config, cluster.plan, SPEC, cluster.book,
            cast(Link, self.link), self.server, codec,
        )  # fmt: skip
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(module, job), daemon=True)
        self._thread.start()
        until(lambda: self.link.is_ready.is_set() or self._errors)

    def _run(self, module: ModuleType, job: Job) -> None:
        try:
            module.run(job)
        except Stopped:
            pass
        except BaseException as error:
            self._errors.append(error)

    @property
    def totals(self) -> dict[str, float]:
        return self.link.meters.totals

    def stop(self) -> None:
        """End as a kill would for the others: the address is gone. Raises what the role raised."""
        self.link.over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.server.close()
        if self._errors:
            raise self._errors[0]


class Cluster:
    """Starts, ends and restarts roles at their addresses; makes clients for the test's own side."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, PLAN
        self.config = RunConfig(AppConfig(algo="toy_verbs"), {}, {}, {})
        self.book: dict[str, str] = {}
        self.roles: dict[str, Role] = {}
        self.clients: list[Client] = []

    def codec(self, sender: str, incarnation: int = 1) -> Codec:
        return Codec("run-1", SPEC.schema, sender, incarnation, 1 << 22)

    def start(self, module: ModuleType) -> Role:
        role = Role(module, self, 1, 0)
        self.roles[role.name] = role
        return role

    def restart(self, module: ModuleType, incarnation: int = 2) -> Role:
        """Start the next incarnation where the last one was."""
        name = module.__name__.rpartition(".")[2]
        port, started = int(self.book[name].rpartition(":")[2]), list[Role]()

        def bound() -> bool:
            try:
                started.append(Role(module, self, incarnation, port))
            except OSError:
                return False  # ZeroMQ closes the old one in the background
            return True

        until(bound)
        self.roles[name] = started[0]
        return started[0]

    def client(self, role: str, sender: str, incarnation: int = 1) -> Client:
        one = Client(self.codec(sender, incarnation), self.book[role])
        self.clients.append(one)
        until(lambda: one.fileno_socket().poll(0, zmq.POLLOUT))  # connected: before that, nothing can be sent
        return one

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for role in self.roles.values():
            role.stop()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    package = tmp_path / "toy_verbs"
    (package / "algorithm").mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""), ("algorithm/__init__.py", ""), ("algorithm/agent.py", textwrap.dedent(AGENT)),
        ("config.py", "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Config:\n    x: int = 1\n"),
    ):  # fmt: skip
        (package / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(model_verbs, "OFFER_EVERY_S", 0.1)
    one = Cluster(tmp_path)
    yield one
    one.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_verbs"]:
        del sys.modules[name]


def make_agent(seed: int) -> Any:
    from toy_verbs.algorithm.agent import Agent  # type: ignore[import-not-found]

    return Agent(SPEC, None, "cpu", seed)


# --- predict


class Models:
    """The learner's side of the pool: publishes the weights of agents, one seed a version."""

    def __init__(self, cluster: Cluster) -> None:
        self.writer = ModelWriter(cluster.client("model_pool", "learner-0"))
        self.agents: dict[Version, Any] = {}
        self._patience = patience()
        self._one_at_a_time = threading.Lock()  # the threads of several workers tick; a client bears one at a time

    def tick(self) -> None:
        self._patience()
        with self._one_at_a_time:
            self.writer.tick()

    def publish(self, version: Version) -> None:
        self.agents[version] = make_agent(100 * version.epoch + version.update)
        weights = to_bytes(self.agents[version].model)
        with self._one_at_a_time:
            self.writer.publish(version, 10 * version.update, weights, 7 * version.update)

    def check(self, prediction: Any, obs: Arrays) -> None:
        """The answer is what the agent of the version that it names says to these very observations."""
        context = PredictContext(np.arange(len(obs["x"])), np.zeros(len(obs["x"]), bool), np.zeros(len(obs["x"])))
        action, extra = self.agents[prediction.version].predict(obs, context)
        assert (prediction.action == action).all()
        update = prediction.version.update
        assert (prediction.env_steps, prediction.memory_size) == (10 * update, 7 * update)
        assert (prediction.extra["seen"] == obs["x"]).all()
        assert prediction.extra["value"] == pytest.approx(extra["value"], abs=1e-5)


@pytest.fixture
def models(cluster: Cluster) -> Models:
    cluster.start(model_pool)
    return Models(cluster)


MakePolicy = Callable[..., Any]


@pytest.fixture(params=["local", "remote"])
def make_policy(request: pytest.FixtureRequest, cluster: Cluster, models: Models) -> MakePolicy:
    """make_policy(worker, gate, tick) -> Policy, as realm/roles/aisrv.py makes both."""
    if request.param == "remote":
        cluster.start(actor)

    def make(worker: int = 0, gate: VersionGate | None = None, tick: Callable[[], None] = lambda: None) -> Any:
        gate = gate or VersionGate(None, 4, 4)

        def ticked() -> None:
            models.tick()
            tick()

        if request.param == "remote":
            client = cluster.client("actor", f"aisrv-{worker}")
            return RemotePolicy(client, SPEC, worker, 2, gate, ticked, lambda seconds: None)
        agent = make_agent(999)
        reader = ModelReader(
            cluster.client("model_pool", f"aisrv-{worker}"), lambda weights: load_bytes(agent.model, weights)
        )

        def refresh() -> tuple[Version, int, int]:
            version = reader.wait(gate.minimum, ticked)
            gate.see(version)
            return version, reader.env_steps, reader.memory_size

        return LocalPolicy(agent, SPEC, 2, refresh)

    return make


def observe(draw: np.random.Generator) -> Arrays:
    legal = draw.random((2, 3)) < 0.5
    legal[:, 0] = True
    return {"x": draw.normal(size=(2, 4)).astype(np.float32), "legal": legal}


FIRST = np.zeros(2, np.bool_)


class TestPolicy:
    """What every policy must do."""

    def test_the_best_action_of_the_newest_weights(self, make_policy: MakePolicy, models: Models) -> None:
        draw, policy = np.random.default_rng(0), make_policy()
        models.publish(Version(1, 0))
        for _ in range(20):
            obs = observe(draw)
            models.check(policy.predict(obs, FIRST, explore=0.0), obs)
        assert policy.actions == 40

    def test_exploring_draws_legal_actions(self, make_policy: MakePolicy, models: Models) -> None:
        policy = make_policy()
        models.publish(Version(1, 0))
        obs = observe(np.random.default_rng(0))
        obs["legal"][:] = [[True, False, True], [True, True, True]]
        seen = [set[int](), set[int]()]
        for _ in range(200):
            for env, action in enumerate(policy.predict(obs, FIRST, explore=1.0).action):
                seen[env].add(int(action))
        assert seen == [{0, 2}, {0, 1, 2}]

    def test_versions_rise_as_they_are_published(self, make_policy: MakePolicy, models: Models) -> None:
        draw, policy, last = np.random.default_rng(0), make_policy(), NO_VERSION
        for version in (Version(1, 0), Version(1, 1), Version(1, 2), Version(2, 0)):
            models.publish(version)

            def arrived(version: Version = version) -> bool:
                nonlocal last
                models.tick()
                obs = observe(draw)
                prediction = policy.predict(obs, FIRST, explore=0.0)
                models.check(prediction, obs)
                assert prediction.version >= last
                last = prediction.version
                return last == version

            until(arrived)

    def test_a_strict_worker_waits_for_the_next_version(self, make_policy: MakePolicy, models: Models) -> None:
        gate = VersionGate(0, batch=4, round_size=4)
        ticks = []

        def tick() -> None:
            ticks.append(1)
            if gate.minimum() == Version(1, 1) and len(ticks) == 4:  # whoever does not wait has answered long ago
                models.publish(Version(1, 1))

        policy = make_policy(gate=gate, tick=tick)
        models.publish(Version(1, 0))
        obs = observe(np.random.default_rng(0))
        versions = []
        for _ in range(2):
            versions += [policy.predict(obs, FIRST).version for _ in range(3)]
            gate.begin_round()
            ticks.clear()
        assert versions == [Version(1, 0)] * 3 + [Version(1, 1)] * 3

    def test_a_refund_changes_what_is_waited_for(self, make_policy: MakePolicy, models: Models) -> None:
        """The buffer's word comes while the worker waits for a version that will never be needed."""
        gate = VersionGate(1, batch=4, round_size=4)

        def tick() -> None:
            if gate.minimum() == Version(1, 1):
                gate.refund(Version(1, 0))

        policy = make_policy(gate=gate, tick=tick)
        models.publish(Version(1, 0))
        for _ in range(3):  # one more than the lag allows, but one of them is paid back
            assert policy.predict(observe(np.random.default_rng(0)), FIRST).version == Version(1, 0)
            gate.begin_round()

    def test_giving_up(self, make_policy: MakePolicy) -> None:
        def tick() -> None:
            raise Stopped

        with pytest.raises(Stopped):
            make_policy(tick=tick).predict(observe(np.random.default_rng(0)), FIRST)

    def test_workers_get_their_own_answers(self, make_policy: MakePolicy, models: Models) -> None:
        models.publish(Version(1, 0))
        errors: list[BaseException] = []
        policies = [make_policy(worker) for worker in range(3)]

        def work(worker: int) -> None:
            draw = np.random.default_rng(worker)
            try:
                for _ in range(100):
                    obs = observe(draw)
                    models.check(policies[worker].predict(obs, FIRST, explore=0.0), obs)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert [policy.actions for policy in policies] == [200, 200, 200]


@pytest.fixture
def remote(cluster: Cluster, models: Models) -> Callable[..., RemotePolicy]:
    cluster.start(actor)

    def make(tick: Callable[[], None] = lambda: None, **numbers: Any) -> RemotePolicy:
        def ticked() -> None:
            models.tick()
            tick()

        gate = VersionGate(None, 4, 4)
        client = cluster.client("actor", "aisrv-0")
        return RemotePolicy(client, SPEC, 0, 2, gate, ticked, numbers.get("timing", lambda seconds: None))

    return make


def test_an_actor_that_comes_back_answers(
    cluster: Cluster, models: Models, remote: Callable[..., RemotePolicy]
) -> None:
    began = []

    def tick() -> None:
        began.append(1)
        if len(began) == 5:
            cluster.restart(actor)

    delays: list[float] = []
    policy = remote(tick, timing=delays.append)
    models.publish(Version(1, 0))
    obs = observe(np.random.default_rng(0))
    policy.predict(obs, FIRST)
    cluster.roles["actor"].stop()
    began.clear()
    models.check(policy.predict(obs, FIRST, explore=0.0), obs)
    assert len(began) >= 5
    assert len(delays) == 2
    until(lambda: cluster.roles["actor"].totals["models_loaded"] == 1)


def test_a_line_that_cannot_be_reached_is_one_sentence(
    remote: Callable[..., RemotePolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from another network namespace, where the actor's name means nothing."""
    monkeypatch.setattr(Lines, "invite", lambda self, caller: {"address": "realm-nobody", "key": "00"})
    with pytest.raises(RunError, match=r"realm-nobody cannot be reached: .*; worker and actor must be on one"):
        remote().predict(observe(np.random.default_rng(0)), FIRST)


def test_requests_that_break_the_contract(
    cluster: Cluster, models: Models, remote: Callable[..., RemotePolicy]
) -> None:
    policy = remote()
    models.publish(Version(1, 0))
    good = observe(np.random.default_rng(0))
    policy.predict(good, FIRST)
    for obs, text in (
        (
            {**good, "x": good["x"].astype(np.float64)},
            r"arguments of predict: obs.x must be float32\[2, 4\], got float64",
        ),
        ({**good, "x": good["x"][:1]}, r"arguments of predict: obs.x must be float32\[2, 4\], got float32\[1, 4\]"),
        ({"x": good["x"]}, r"arguments of predict: missing \['obs.legal'\]"),
    ):
        with pytest.raises(ContractError, match=text):
            policy.predict(obs, FIRST)

    server = cluster.roles["actor"].server
    stranger, sent = cluster.client("actor", "aisrv-3"), 0
    for meta in ({}, {"worker": "3"}, {"worker": -1}, {"worker": 2**40}):
        stranger.forget(stranger.ask("line", meta))
        sent += 1
    until(lambda: sum(server.traffic.bad_frames.values()) == sent)

    question = Frame(Layout(request_fields(SPEC)), 2)
    arrays = {"first": FIRST, "explore": np.zeros(2, np.float32), **{f"obs.{name}": good[name] for name in good}}
    question.put(arrays, "")
    question.address(7, NO_VERSION)
    whole = bytes(question.bytes)
    line = open_line(stranger)
    line.send(question)
    until(lambda: line.receive() is not None)
    none, many = (whole[:4] + rows.to_bytes(4, "little") + whole[8:] for rows in (0, 2**31))
    for bad in (b"GET / HTTP/1.1" + whole, none, many, whole + whole[::-1]):
        line = open_line(stranger)
        line._socket.sendall(bad)
        sent += 1
        until(lambda: lost(line))  # noqa: B023
        until(lambda: sum(server.traffic.bad_frames.values()) == sent)  # noqa: B023
    models.check(policy.predict(good, FIRST, explore=0.0), good)


def open_line(client: Client, worker: int = 3) -> Line:
    return connect(
        client.wait(client.ask("line", {"worker": worker}), patience()), Layout(reply_fields(SPEC)), 1 << 22, Traffic()
    )


def lost(line: Line) -> bool:
    try:
        line.receive()
    except LineLost:
        return True
    return False


def test_many_small_requests_share_a_forward_pass(
    cluster: Cluster, models: Models, remote: Callable[..., RemotePolicy]
) -> None:
    """Requests that wait are one batch; larger ones than the limit are batches of their own."""
    models.publish(Version(1, 0))
    remote().predict(observe(np.random.default_rng(0)), FIRST)
    role = cluster.roles["actor"]
    clients = [cluster.client("actor", f"aisrv-{worker}") for worker in range(20)]
    before = role.totals["forwards"], role.totals["actions"]
    question = Frame(Layout(request_fields(SPEC)), 100)
    question.arrays["obs.legal"][:] = True
    question.address(1, Version(1, 1))
    lines = [open_line(client, worker) for worker, client in enumerate(clients)]
    parked = role.server.traffic.messages_in + 20
    for line in lines:
        line.send(question)
    until(lambda: role.server.traffic.messages_in >= parked)
    models.publish(Version(1, 1))  # all of them were parked until now
    for line in lines:
        answer = None
        while answer is None:
            models.tick()
            answer = line.receive()
        assert answer[0] == (100, 1, Version(1, 1), 10, 7)
    until(lambda: role.totals["actions"] - before[1] >= 2000)
    forwards, actions = role.totals["forwards"] - before[0], role.totals["actions"] - before[1]
    assert actions / forwards <= 1024
    assert forwards < 20


# --- add and sample


def played(seq: int, worker: int = 0, incarnation: int = 1, version: Any = (1, 0), count: int = 2) -> Arrays:
    made = {name: np.zeros((count, *one.shape), one.dtype) for name, one in SPEC.sample_fields.items()}
    made["worker"][:], made["incarnation"][:], made["seq"][:] = worker, incarnation, seq
    made["env"][:] = np.arange(count)
    made["version"][:] = version
    made["reward"][:] = seq
    return made


def where_from(items: Arrays) -> list[tuple[int, int, int]]:
    return [tuple(map(int, one)) for one in zip(items["worker"], items["seq"], items["env"], strict=True)]  # type: ignore[misc]


FREE = VersionGate(None, 4, 4)


@pytest.fixture(params=BACKENDS)
def door(request: pytest.FixtureRequest, cluster: Cluster) -> Callable[..., Role]:
    def start(**numbers: Any) -> Role:
        cluster.plan = dataclasses.replace(PLAN, backend=request.param, **numbers)
        return cluster.start(buffer)

    return start


def test_every_item_exactly_once_through_the_door(cluster: Cluster, door: Callable[..., Role]) -> None:
    role, rounds = door(), 60
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        sender = ItemSender(cluster.client("buffer", f"aisrv-{worker}"), FREE, patience())
        try:
            for seq in range(rounds):
                sender.add(played(seq, worker))
            until(lambda: (sender.poll(), sum(sender.answers.values()) == rounds)[1])
            assert sender.answers["accepted"] == rounds
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(3)]
    for thread in threads:
        thread.start()
    reader = BatchReader(cluster.client("buffer", "learner-0"), 4, patience())
    got: list[tuple[int, int, int]] = []
    reader.request(Version(1, 0))
    for update in range(3 * rounds * 2 // 4):
        items, info = reader.receive()
        reader.request(Version(1, update + 1))
        assert (info.times_sampled == 1).all()
        assert (items["reward"][:, 0] == items["seq"]).all()
        got += where_from(items)
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert len(got) == len(set(got)) == 3 * rounds * 2
    for worker in range(3):
        own = [one for one in got if one[0] == worker]
        assert own == sorted(own)
    until(lambda: role.totals["sampled"] == 3 * rounds * 2)
    assert (role.totals["inserted"], role.totals["size"], role.totals["evicted"]) == (3 * rounds * 2, 0, 0)


def test_producers_wait_for_room(cluster: Cluster, door: Callable[..., Role]) -> None:
    role, over, sent = door(), threading.Event(), list[int]()

    def tick() -> None:
        if over.is_set():
            raise Stopped

    def work() -> None:
        sender = ItemSender(cluster.client("buffer", "aisrv-0"), FREE, tick)
        with suppress(Stopped):
            for seq in range(100):
                sender.add(played(seq))
                sent.append(seq)

    reader = BatchReader(cluster.client("buffer", "learner-0"), 4, patience())
    reader.request(Version(1, 0))
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for update in range(5):
        reader.receive()  # so much was drawn, 16 lie in the buffer, and one round waits at the door
        drawn = 4 * (update + 1)
        until(lambda drawn=drawn: len(sent) == (drawn + 16 + 2) // 2)  # type: ignore[misc]
        until(lambda drawn=drawn: role.totals["inserted"] == drawn + 16)  # type: ignore[misc]
        reader.request(Version(1, update + 1))
    over.set()
    thread.join(30)
    assert not thread.is_alive()


def test_priorities_arrive(cluster: Cluster, door: Callable[..., Role]) -> None:
    role = door(on_policy=False, sampler="Prioritized", preload=4, ratio=1000.0)
    sender = ItemSender(cluster.client("buffer", "aisrv-0"), FREE, patience())
    reader = BatchReader(cluster.client("buffer", "learner-0"), 4, patience())
    reader.request(Version(1, 0))
    for seq in range(3):
        sender.add(played(seq))
    items, info = reader.receive()
    assert info.probability in (pytest.approx(np.full(4, 1 / 4)), pytest.approx(np.full(4, 1 / 6)))
    wanted = where_from(items)[0]
    priorities = np.where([one == wanted for one in where_from(items)], 1e15, 0.0)
    reader.set_priorities(info, priorities)
    keys = {wanted: info.key[0]}

    def converged() -> bool:
        reader.request(Version(1, 0))
        items, info = reader.receive()
        reader.set_priorities(info, np.where(info.key == keys[wanted], 1e15, 0.0))
        return set(where_from(items)) == {wanted} and info.probability == pytest.approx(np.ones(4), abs=1e-6)

    until(converged)
    assert role.totals["refused_invalid"] == 0


def losing(client: Client, losses: int) -> Callable[[], int]:
    """Make a client lose its next answers, as a cut connection would; the function says how many are yet to lose."""
    receive, left = client._receive, [losses]

    def lossy() -> Any:
        frames = receive()
        if frames is not None and left[0] > 0:
            left[0] -= 1
            return receive()
        return frames

    client._receive = lossy  # type: ignore[method-assign]
    return lambda: left[0]


def test_lost_answers_are_repeated_and_nothing_comes_twice(
    cluster: Cluster, door: Callable[..., Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RESEND_AFTER_S", 0.2)
    role = door()
    producer, consumer = cluster.client("buffer", "aisrv-0"), cluster.client("buffer", "learner-0")
    sender, reader = ItemSender(producer, FREE, patience()), BatchReader(consumer, 4, patience())
    lost = losing(producer, 2), losing(consumer, 2)
    reader.request(Version(1, 0))
    got: list[tuple[int, int, int]] = []
    for update in range(5):
        for seq in (2 * update, 2 * update + 1):
            sender.add(played(seq))
        items, _ = reader.receive()
        reader.request(Version(1, update + 1))
        got += where_from(items)
    assert got == [(0, seq, env) for seq in range(10) for env in range(2)]
    until(lambda: (sender.poll(), sum(sender.answers.values()) == 10)[1])
    assert [one() for one in lost] == [0, 0]
    assert sender.answers.keys() == {"accepted", "duplicate"}  # one was told three times, and heard the third
    until(lambda: role.totals["sampled"] == 20)
    assert role.totals["inserted"] == 20
    assert role.totals["duplicate"] >= 4
    assert producer.traffic.resent >= 2
    assert consumer.traffic.resent >= 2


def test_a_round_that_breaks_the_contract_names_its_sender(cluster: Cluster, door: Callable[..., Role]) -> None:
    role = door()
    reader = BatchReader(cluster.client("buffer", "learner-0"), 4, patience())
    reader.request(Version(1, 0))
    for worker, (change, text) in enumerate(
        [
            ({"reward": np.full((2, 2), np.nan, np.float32)}, "reward holds NaN or infinity"),
            ({"reward": np.zeros((2, 3), np.float32)}, r"reward must be float32\[2, 2\], got float32\[2, 3\]"),
            ({"reward": np.zeros((2, 2))}, r"reward must be float32\[2, 2\], got float64\[2, 2\]"),
            ({"worker": np.zeros((), np.int64)}, "a round must have at least one item"),
            ({"worker": np.zeros((2, 2), np.int64)}, "a round must have at least one item"),
        ]
    ):
        sender = ItemSender(cluster.client("buffer", f"aisrv-{worker}"), FREE, patience())
        sender.add({**played(0, worker), **change})
        with pytest.raises(WireError, match=f"the buffer refused a round: aisrv-{worker}: .*{text}"):
            until(lambda sender=sender: sender.poll())  # type: ignore[misc]
    nameless = played(0)
    del nameless["worker"]
    sender = ItemSender(cluster.client("buffer", "aisrv-9"), FREE, patience())
    sender.add(nameless)
    with pytest.raises(WireError, match="aisrv-9: a round must have at least one item"):
        until(lambda: sender.poll())
    until(lambda: role.totals["refused_invalid"] == 6)
    honest = ItemSender(cluster.client("buffer", "aisrv-0", 2), FREE, patience())
    for seq in range(2):
        honest.add(played(seq, incarnation=2))
    assert where_from(reader.receive()[0]) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]


def test_questions_that_make_no_sense_do_not_end_the_buffer(cluster: Cluster, door: Callable[..., Role]) -> None:
    role = door()
    client, good = cluster.client("buffer", "learner-0"), {"count": 4, "version": [1, 0]}
    client.ask("sample", good)
    key, priority = np.zeros(3, np.uint64), np.zeros(3)
    bad: list[tuple[str, dict[str, Any], Arrays]] = [
        ("predict", {}, {}), ("sample", {}, {}), ("sample", {"count": "4", "version": [1, 0]}, {}),
        ("sample", {"count": 4, "version": [1]}, {}), ("sample", good, {"key": key}),
        ("sample", good, {"key": key, "priority": priority[:2]}), ("sample", good, {"key": priority, "priority": key}),
        ("sample", good, {"key": key[0], "priority": priority[0]}), ("sample", good, {"k": key, "priority": priority}),
        ("add", {}, {}),
    ]  # fmt: skip
    for kind, meta, arrays in bad:
        answer = client.wait(
            client.ask(kind, meta, {name: np.asarray(one) for name, one in arrays.items()}), patience()
        )
        assert answer.text("status") == INVALID, (kind, meta)
        assert answer.text("reason")
    until(lambda: role.totals["refused_invalid"] == len(bad))
    reader = BatchReader(cluster.client("buffer", "learner-0", 2), 4, patience())
    reader.set_priorities(SampleInfo(key, priority, key), np.zeros(2))
    reader.request(Version(1, 0))
    with pytest.raises(WireError, match=r"the buffer refused a request for a batch: priorities: .*\[3\]"):
        reader.receive()


def test_a_buffer_that_comes_back_empty(cluster: Cluster, door: Callable[..., Role]) -> None:
    door(max_version_lag=0)
    gate = VersionGate(0, batch=4, round_size=4)
    sender = ItemSender(cluster.client("buffer", "aisrv-0"), gate, patience())
    consumer = cluster.client("buffer", "learner-0")
    reader = BatchReader(consumer, 4, patience())
    reader.request(Version(1, 5))
    gate.see(Version(1, 5))
    sender.add(played(0, version=(1, 5)))
    gate.begin_round()
    until(lambda: (sender.poll(), sender.answers["accepted"] == 1)[1])
    assert gate.minimum() == Version(1, 6)  # strict: its share of this batch is played
    cluster.roles["buffer"].stop()
    cluster.restart(buffer)
    # a round that is under way now is refused where it would be stale, though the new buffer never saw this learner
    sender.add(played(1, version=(1, 4)))
    until(lambda: (sender.poll(), consumer.collect(), sender.answers["stale"] == 1)[2])  # both ask again
    assert gate.minimum() == Version(1, 5)  # what was lost is to be played again
    for seq in (2, 3):
        gate.see(Version(1, 5))
        sender.add(played(seq, version=(1, 5)))
        gate.begin_round()
    assert where_from(reader.receive()[0]) == [(0, seq, env) for seq in (2, 3) for env in range(2)]


def keeper(capacity: int, lag: int | None = None, batch: int = 4, most_held: int = 64) -> Keeper:
    storage = NativeStorage(SPEC.sample_fields, capacity, "Fifo", "Fifo", True, 1.0, 0)
    return Keeper(
        ReplayBuffer(SPEC, storage, Limiter(True, capacity, batch, batch, 1.0, capacity), lag), Meters(), most_held
    )


def sample(version: Version, seq: int = 1, incarnation: int = 1, count: int = 4) -> Message:
    return Message("sample", seq, {"count": count, "version": list(version)}, {}, "learner-0", incarnation)


def add(items: Arrays, seq: int, sender: str = "aisrv-0") -> Message:
    return Message("add", seq, {}, items, sender, 1)


def test_a_round_larger_than_the_buffer_goes_in_while_the_learner_draws() -> None:
    """Nobody asks again in the middle of it: each part that goes in may be what the learner waits for."""
    one, answers = keeper(8), []
    big = played(0, count=30)
    big["env"][:] = np.arange(30)
    answers += one.handle(b"l", sample(Version(1, 0)))
    answers += one.handle(b"a", add(big, 1))
    for update in range(1, 8):
        answers += one.handle(b"l", sample(Version(1, update), seq=1 + update))
    batches = [answer.arrays["item.env"] for peer, answer in answers if peer == b"l"]
    assert np.concatenate(batches[:7]).tolist() == list(range(28))
    assert [answer.meta["status"] for peer, answer in answers if peer == b"a"] == ["accepted"]


def test_a_small_round_does_not_overtake_a_large_one() -> None:
    """It would find room where the large one has none, and then the large one would be called a duplicate."""
    one = keeper(8)

    def statuses(peer: bytes, message: Message) -> list[Any]:
        return [(answer.seq, answer.meta.get("status")) for _, answer in one.handle(peer, message)]

    assert statuses(b"l", sample(Version(1, 0))) == []
    assert statuses(b"a", add(played(0, count=4), 1)) == [(1, "accepted"), (1, None)]  # and the batch
    assert statuses(b"a", add(played(1, count=6), 2)) == [(2, "accepted")]
    assert statuses(b"a", add(played(2, count=4), 3)) == []
    assert statuses(b"a", add(played(3, count=2), 4)) == []
    assert statuses(b"l", sample(Version(1, 1), seq=2)) == [(2, None), (3, "accepted"), (4, "accepted")]
    assert one.buffer.totals()["duplicate"] == 0
    assert one.buffer.size == 8


def test_a_peer_cannot_make_the_keeper_hold_more_and_more_rounds() -> None:
    one = keeper(4, most_held=2)
    assert one.handle(b"a", add(played(0), 1)) == []  # nobody has asked for a batch
    assert one.handle(b"a", add(played(1), 2)) == []
    assert one.handle(b"a", add(played(1), 2)) == []  # again, since an answer may be lost
    ((_, refused),) = one.handle(b"a", add(played(2), 3))
    assert refused.meta == {"status": "invalid", "reason": "aisrv-0 sends more rounds than may wait for an answer"}
    assert one.invalid == 1


def test_rounds_wait_while_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is drawn; rounds wait, are no standstill, and go in when the word is not repeated."""
    one = keeper(8)
    one.handle(b"l", sample(Version(1, 0)))
    one.handle(b"a", add(played(0, count=4), 1))
    one.handle(b"a", add(played(1, count=4), 2))
    one.hold()
    assert one.holds()
    assert one.handle(b"a", add(played(2, count=4), 3)) == []
    assert [answer.kind for _, answer in one.handle(b"l", sample(Version(1, 1), seq=2))] == ["batch"]
    assert one.turn() == []
    now = time.monotonic()
    assert one.standstill(now + 59) == ""
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    assert not one.holds()
    assert [(answer.seq, answer.meta["status"]) for _, answer in one.turn()] == [(3, "accepted")]


def test_the_question_of_a_dead_learner_gets_nothing() -> None:
    one = keeper(16)
    assert one.handle(b"l1", sample(Version(1, 9))) == []
    assert one.handle(b"l2", sample(Version(2, 5), incarnation=2)) == []
    assert one.handle(b"l1", sample(Version(1, 9))) == []  # the last words of the old one, resent
    answers = one.handle(b"a", add(played(0, version=(2, 5), count=4), 1))
    assert [(peer, answer.kind) for peer, answer in answers] == [(b"a", "added")]
    answers = one.handle(b"l2", sample(Version(2, 5), incarnation=2))
    assert [(peer, answer.kind) for peer, answer in answers] == [(b"l2", "batch")]


def test_before_the_learners_question_nothing_is_taken() -> None:
    one = keeper(16, lag=0)
    assert one.handle(b"a", add(played(0, version=(1, 7), count=4), 1)) == []
    assert one.handle(b"b", add(played(0, worker=1, version=(1, 8), count=4), 1, "aisrv-1")) == []
    answers = one.handle(b"l", sample(Version(1, 8)))
    assert {(peer, answer.meta.get("status")) for peer, answer in answers} == {
        (b"a", "stale"), (b"b", "accepted"), (b"l", None),
    }  # fmt: skip


def test_what_a_killed_buffer_handed_out_does_not_come_again() -> None:
    """A round that was trained on, but not answered: the learner names it to the new buffer, and only to that."""
    client = Asked()
    reader = BatchReader(cast(Client, client), 4, lambda: None, on_policy=True)
    old = keeper(16)
    for seq in (1, 2):
        old.handle(b"a", add(played(seq, incarnation=2, count=4), seq))
        old.handle(b"b", add(played(seq + 4, worker=1, count=4), seq, "aisrv-1"))
    for update in range(3):
        reader.request(Version(1, update))
        [client.answer] = [one for _, one in old.handle(b"l", client.question) if one.kind == "batch"]
        reader.receive()
    reader.request(Version(1, 3))
    assert client.question.meta["had"] == {"0": [2, 2], "1": [1, 5]}

    def statuses(one: Keeper, *origins: tuple[int, int, int]) -> list[str]:
        answers = []
        for number, (worker, incarnation, seq) in enumerate(origins):
            items = played(seq, worker=worker, incarnation=incarnation, count=4)
            answers += one.handle(b"w", add(items, number, f"aisrv-{worker}"))
        return [answer.meta["status"] for _, answer in answers if answer.kind == "added"]

    new, living = keeper(40), keeper(40)
    again = [(0, 2, 1), (0, 2, 2), (1, 1, 5), (1, 1, 6), (0, 2, 3), (0, 3, 0), (5, 1, 0)]
    new.handle(b"l", client.question)
    assert statuses(new, *again) == [*["duplicate"] * 3, *["accepted"] * 4]
    living.handle(b"l", sample(Version(1, 3)))
    living.handle(b"l", client.question)  # it may be in the middle of such a round
    assert statuses(living, *again) == ["accepted"] * 7
    for had in ({"a": [1, 1]}, {"0": [1]}, {"0": 3}, {"0": [1, "x"]}, {"-1": [1, 1]}, [1]):
        [(_, answer)] = keeper(16).handle(b"l", Message("sample", 1, {"count": 4, "version": [1, 0], "had": had}))
        assert answer.kind == "invalid"
        assert "had" in answer.text("reason")


class Asked:
    """A client whose question and answer the test carries to and fro."""

    answer: Message
    asked = 0

    def ask(self, kind: str, meta: dict[str, Any], arrays: Arrays) -> int:
        self.asked += 1
        self.question = Message(kind, self.asked, copy.deepcopy(meta), arrays, "learner-0", 1)
        return self.asked

    def wait(self, seq: int, check: Callable[[], None]) -> Message:
        return self.answer


# --- latest


def test_a_reader_gets_the_newest_and_no_backlog(cluster: Cluster, models: Models) -> None:
    loaded: list[bytes] = []
    for update in range(10):
        models.publish(Version(1, update))
    pool = cluster.roles["model_pool"]
    until(lambda: (models.tick(), pool.totals["version_update"] == 9)[1])
    reader = ModelReader(cluster.client("model_pool", "actor-0"), loaded.append)
    assert reader.wait(lambda: NO_VERSION, models.tick) == Version(1, 9)
    assert loaded == [to_bytes(models.agents[Version(1, 9)].model)]
    assert not reader.poll()
    for update in range(10, 200):
        models.publish(Version(1, update))
        reader.poll()
    assert reader.wait(lambda: Version(1, 199), models.tick) == Version(1, 199)
    assert loaded[-1] == to_bytes(models.agents[Version(1, 199)].model)
    assert reader.loaded == len(loaded)
    until(lambda: (models.tick(), pool.totals["served"] >= len(loaded))[1])  # it counts after it has sent
    models.publish(Version(2, 50))  # a learner that went back to its checkpoint: newer all the same
    assert reader.wait(lambda: Version(1, 200), models.tick) == Version(2, 50)
    until(lambda: (models.tick(), "publish_to_use_ms" in pool.link.meters._sums)[1])
    told = pool.link.meters.snapshot()[1]["publish_to_use_ms"]  # by the pool's clock alone
    assert 1 <= told[1] <= len(loaded)
    assert 0 <= told[0] < 30_000


def test_a_reader_waits_past_models_that_are_too_old(cluster: Cluster, models: Models) -> None:
    reader = ModelReader(cluster.client("model_pool", "actor-0"), lambda weights: None)
    seen = []

    def tick() -> None:
        models.tick()
        if not models.agents or reader.version == max(models.agents):  # one after the other, each when it is awaited
            seen.append(reader.version)
            models.publish(Version(1, len(seen)))

    assert reader.wait(lambda: Version(1, 4), tick) == Version(1, 4)
    assert seen == [NO_VERSION, Version(1, 1), Version(1, 2), Version(1, 3)]


def test_readers_wait_at_the_pool(cluster: Cluster, models: Models) -> None:
    readers = [ModelReader(cluster.client("model_pool", f"aisrv-{n}"), lambda weights: None) for n in range(4)]
    assert not any(reader.poll() for reader in readers)
    models.publish(Version(1, 0))
    for reader in readers:
        reader.wait(lambda: Version(1, 0), models.tick)
    assert [reader.loaded for reader in readers] == [1] * 4
    assert all(one.unanswered == 1 for one in cluster.clients if one.codec.sender.startswith("aisrv"))


def test_the_first_model_is_kept_for_who_comes_late(cluster: Cluster, models: Models) -> None:
    client = cluster.client("model_pool", "evaluator-0")
    question = client.ask("first", {})
    for update in range(20):
        models.publish(Version(1, update))
        models.tick()
    until(lambda: (models.tick(), cluster.roles["model_pool"].totals["version_update"] == 19)[1])
    early, late = client.wait(question, models.tick), client.wait(client.ask("first", {}), models.tick)
    for message in (early, late):
        assert message.array("weights").tobytes() == to_bytes(models.agents[Version(1, 0)].model)
    latest = client.wait(client.ask("latest", {"have": [1, 0]}), models.tick)
    assert latest.version() == Version(1, 19)


def test_a_pool_that_comes_back_empty_gets_the_model_again(cluster: Cluster, models: Models) -> None:
    models.publish(Version(1, 3))
    until(lambda: (models.tick(), cluster.roles["model_pool"].totals["published"])[1])
    cluster.roles["model_pool"].stop()
    pool = cluster.restart(model_pool)
    reader = ModelReader(cluster.client("model_pool", "actor-0"), lambda weights: None)
    assert reader.wait(lambda: NO_VERSION, models.tick) == Version(1, 3)
    assert pool.totals["published"] == 1


def test_a_model_published_while_the_pool_is_away(cluster: Cluster, models: Models) -> None:
    models.publish(Version(1, 0))
    reader = ModelReader(cluster.client("model_pool", "actor-0"), lambda weights: None)
    reader.wait(lambda: NO_VERSION, models.tick)
    cluster.roles["model_pool"].stop()
    for update in range(1, 30):
        models.publish(Version(1, update))
        models.tick()
    pool = cluster.restart(model_pool)
    assert reader.wait(lambda: Version(1, 1), models.tick) == Version(1, 29)
    assert pool.totals["published"] < 10  # the newest, not all that were missed
    assert reader.loaded == 2


def test_damaged_weights_are_never_served(cluster: Cluster, models: Models) -> None:
    pool = cluster.roles["model_pool"]
    client, weights = cluster.client("model_pool", "learner-7"), np.arange(8, dtype=np.uint8)
    meta = {"version": [1, 5], "env_steps": 0, "memory_size": 0}
    for bad, arrays in (
        ({**meta, "version": [1, "5"]}, {"weights": weights}), (meta, {}), ({}, {"weights": weights}),
        ({"version": [1, 5]}, {"weights": weights}),
    ):  # fmt: skip
        client.forget(client.ask("publish", bad, arrays))
    client.forget(client.ask("latest", {}))
    client.forget(client.ask("offer", {"version": "new"}))
    client.forget(client.ask("predict", {}))
    models.publish(Version(1, 4))
    reader = ModelReader(cluster.client("model_pool", "actor-0"), lambda weights: None)
    assert reader.wait(lambda: NO_VERSION, models.tick) == Version(1, 4)
    until(lambda: sum(pool.server.traffic.bad_frames.values()) == 7)


# --- the gate


def test_credits_of_a_strict_worker() -> None:
    gate = VersionGate(0, batch=8, round_size=8)
    assert gate.minimum() == NO_VERSION
    gate.see(Version(1, 4))
    assert gate.minimum() == NO_VERSION  # within a round nothing is asked for
    gate.begin_round()
    assert gate.minimum() == Version(1, 5)
    gate.see(Version(1, 5))
    gate.see(Version(1, 6))  # newer weights came in the middle of the round
    gate.begin_round()
    assert gate.minimum() == NO_VERSION
    gate.see(Version(1, 6))
    gate.begin_round()
    assert gate.minimum() == Version(1, 7)
    gate.refund(Version(1, 6))  # that round does not count
    assert gate.minimum() == Version(1, 6)
    gate.refund(Version(1, 7))
    assert gate.minimum() == Version(1, 7)
    gate.see(Version(2, 3))  # an epoch of its own
    gate.begin_round()
    assert gate.minimum() == Version(2, 4)
    gate.refill()
    assert gate.minimum() == NO_VERSION


def test_a_lost_buffer_takes_its_refusals_with_it() -> None:
    """Two strict workers: the batch of version 6, lost with the buffer, needs the one that was told to wait for 7."""
    gate = VersionGate(0, batch=8, round_size=8)
    gate.see(Version(1, 5))
    gate.begin_round()
    gate.refund(Version(1, 7))
    assert gate.minimum() == Version(1, 7)
    gate.refill()
    assert gate.minimum() == NO_VERSION


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_worker_alone_runs_ahead_by_the_lag(lag: int, rounds: int) -> None:
    """Against a literal count: at version v, (v + lag + 1) batches may have been begun by all workers together."""
    if lag == 0 and rounds > 1:
        return
    gate, played_rounds = VersionGate(lag, batch=6 * rounds, round_size=6), 0
    for update in range(20):
        while gate.minimum() <= Version(1, update):
            gate.see(Version(1, update))
            gate.begin_round()
            played_rounds += 1
        assert played_rounds == (update + lag + 1) * rounds
        assert gate.minimum() == Version(1, update + 1)


def test_without_a_lag_nothing_is_counted() -> None:
    gate = VersionGate(None, batch=4, round_size=12)
    for update in range(100):
        assert gate.minimum() == NO_VERSION
        gate.see(Version(1, update // 10))
        gate.begin_round()


class SimulatedWorker:
    """Gate and unanswered rounds of one worker, one row a step; T = 2."""

    def __init__(self, run: Simulation, index: int, incarnation: int) -> None:
        self.run, self.index, self.incarnation = run, index, incarnation
        self.gate = VersionGate(run.lag, run.batch, run.round_size)
        self.rows: list[Version] = []
        self.seq = 0
        self.unanswered: dict[int, Arrays] = {}

    def can(self) -> bool:
        if len(self.rows) == 2:
            return len(self.unanswered) < self.run.unacked
        return self.run.served != NO_VERSION and self.run.served >= self.gate.minimum()

    def step(self) -> None:
        if len(self.rows) < 2:
            self.rows.append(self.run.served)
            self.gate.see(self.run.served)
            if len(self.rows) == 2:
                self.gate.begin_round()
            return
        one = played(self.seq, self.index, self.incarnation, self.rows, self.run.envs)
        self.unanswered[self.seq] = one
        self.rows, self.seq = [], self.seq + 1
        self.send(self.seq - 1)

    def send(self, seq: int) -> None:
        message = Message("add", seq, {}, self.unanswered[seq], f"aisrv-{self.index}", self.incarnation)
        self.run.deliver(message, self.answered)

    def answered(self, answer: Message) -> None:
        if self.unanswered.pop(answer.seq, None) is not None:
            status = answer.text("status")
            self.run.statuses[status] += 1
            assert status != INVALID, answer.meta
            if status in (STALE, OLD_EPOCH):
                self.gate.refund(answer.version("wanted"))


class Simulation:
    """N workers, an actor, the real keeper and a learner; whoever can do something may be next.

    Faults: a worker, the learner (back to a checkpoint, a new epoch) or the buffer (all is lost) starts anew, and
    answers get lost on their way.
    """

    def __init__(self, seed: int, workers: int, envs: int, rounds: int, lag: int, unacked: int, early: bool) -> None:
        """early: weights may go out while they are still trained."""
        self.draw = random.Random(seed)
        self.envs, self.lag, self.unacked, self.early = envs, lag, unacked, early
        self.round_size = workers * envs
        self.batch = rounds * self.round_size
        self.statuses: Counter[str] = Counter()
        self.loss = 0.0
        self.version = self.asked = Version(1, 0)
        self.served = NO_VERSION
        self.checkpoint = self.updates = 0
        self.training = False
        self.question = self.learner = 1
        self.listeners: dict[bytes, Callable[[Message], None]] = {}
        self.keeper = self.new_keeper()
        self.workers = [SimulatedWorker(self, index, 1) for index in range(workers)]
        self.ask()

    def new_keeper(self) -> Keeper:
        return keeper(max(2 * self.batch, self.batch + 2 * self.round_size), self.lag, self.batch)

    def deliver(self, message: Message, listener: Callable[[Message], None]) -> None:
        own = f"{message.sender}/{message.incarnation}".encode()
        self.listeners[own] = listener
        for peer, answer in self.keeper.handle(own, message):
            if self.draw.random() >= self.loss:
                self.listeners[peer](answer)

    def ask(self) -> None:
        learner = self.learner
        message = sample(self.asked, self.question, learner, self.batch)
        self.deliver(message, lambda answer: self.got(answer, learner))

    def got(self, answer: Message, learner: int) -> None:
        if learner != self.learner or answer.seq != self.question or self.training:
            return
        version = answer.arrays["item.version"]
        lags = self.asked.update - version[..., 1]
        assert self.asked == self.version
        assert (version[..., 0] == self.version.epoch).all()
        assert 0 <= lags.min() <= lags.max() <= self.lag
        self.training = True

    def train(self) -> None:
        self.question, self.training, self.updates = self.question + 1, False, self.updates + 1
        self.version = self.asked = self.next
        if self.draw.random() < 0.2:
            self.checkpoint = self.version.update
        self.ask()

    @property
    def next(self) -> Version:
        return Version(self.version.epoch, self.version.update + 1)

    def serve(self) -> None:
        self.served = self.version

    def serve_early(self) -> None:
        self.served = self.next

    def resend(self) -> None:
        """What a client does with questions that got no answer."""
        if not self.training:
            self.ask()
        for worker in self.workers:
            for seq in list(worker.unanswered):
                if seq in worker.unanswered:
                    worker.send(seq)

    def fail(self) -> None:
        match self.draw.choice(["worker", "worker", "learner", "buffer"]):
            case "worker":
                index = self.draw.randrange(len(self.workers))
                self.workers[index] = SimulatedWorker(self, index, self.workers[index].incarnation + 1)
            case "learner":
                self.learner, self.question, self.training = self.learner + 1, 1, False
                self.version = self.asked = Version(self.version.epoch + 1, self.checkpoint)
                if self.draw.random() < 0.5:
                    self.ask()  # or its first question is lost
            case "buffer":
                self.keeper = self.new_keeper()
                for worker in self.workers:
                    worker.gate.refill()

    def go(self, steps: int, faults: float) -> None:
        self.loss = faults
        for _ in range(steps):
            chance = self.draw.random()
            if chance < faults:
                self.fail()
                continue
            able = [worker.step for worker in self.workers if worker.can()]
            able += [self.train] * self.training + [self.serve] * (self.served < self.version)
            able += [self.serve_early] * (self.early and self.training and self.served < self.next)
            if chance > 0.97 or not able:
                able = [self.resend]
            self.draw.choice(able)()


@pytest.mark.parametrize("faults", [0.0, 0.2])
def test_the_flow_never_stalls_and_never_breaks_the_lag(faults: float) -> None:
    """Again and again some faults, and then some time to get over them."""
    statuses: Counter[str] = Counter()
    for seed in range(20):
        draw = random.Random(seed)
        workers, envs = draw.randint(1, 3), draw.randint(1, 2)
        strict = seed % 2 == 0
        rounds, lag, unacked = (1, 0, 1) if strict else (draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 2))
        run = Simulation(seed, workers, envs, rounds, lag, unacked, early=seed % 4 == 0)
        for _ in range(12):
            run.go(50, faults)
            before = run.updates
            run.go(150, 0.0)
            assert run.updates > before, f"seed {seed} stalls: {run.keeper.buffer.totals()}, {vars(run)}"
        statuses.update(run.statuses)
        if strict and not faults:
            assert set(run.statuses) <= {"accepted", "duplicate"}  # nothing is played in vain
    if not faults:  # but a worker that falls behind the others by more than the lag
        assert statuses["stale"] < 0.03 * statuses["accepted"] > 100, statuses
        assert statuses["old_epoch"] == 0
    else:
        assert min(statuses[name] for name in ("accepted", "duplicate", "stale", "old_epoch")) > 20, statuses
