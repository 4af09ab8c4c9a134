"""Each part of a cluster alone, next to a bound that it cannot beat on this machine.

    python tools/bench/parts.py --out train/parts.json
    python tools/bench/parts.py --network reference --only roundtrip buffer

For two networks: conf/configure_app.toml (numbers, two MLPs) and conf/reference.toml (an image, two conv trunks).
Parts and bounds alternate in rounds, so a neighbour on the machine disturbs both. A time is the median over the rounds
of a round's median, with the least and the greatest. Actor and model pool are real processes; this one is their
supervisor, worker and learner.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.plan import this_machine
from realm.contract import Arrays, SampleInfo, Version, arrays_to_chunk
from realm.data.buffer import ACCEPTED, make_replay_buffer
from realm.env.realm_env import RealmVectorEnv
from realm.errors import ConfigError
from realm.launch.environment import enter_learner_environment
from realm.learn.trainer import complete
from realm.policy.gate import VersionGate
from realm.wire.codec import Message
from realm.wire.models import ModelWriter
from realm.wire.predict import RemotePolicy
from realm.wire.sockets import wait_any
from tools import common
from tools.bench import limits
from tools.bench.stage import Stage

NETWORKS = {"default": common.CONFIG, "reference": common.ROOT / "conf" / "reference.toml"}
ASKED = 32  # environments of a round trip
PASS_ROWS = 4096  # of a forward without gradients
TIMES = ("seconds", "p99_seconds", "cpu_seconds", "bound_seconds")  # of a call, each a list with an entry per round

Call = Callable[[], Any]


class Line(NamedTuple):
    """One part and its bound. amount: units of a call; threads: of torch."""

    name: str
    amount: float
    unit: str
    call: Call
    bound: str
    bound_call: Call
    threads: int = 1


# ---- what parts are measured with ----


class Bench:
    """One network, and what several parts need."""

    def __init__(self, network: str, folder: Path, overrides: Sequence[str] = ()) -> None:
        self.network = network
        self.setting = limits.read_setting(NETWORKS[network], overrides)
        self.plan, self.spec = self.setting.plan, self.setting.spec
        self.end = ExitStack()  # what must be ended when the parts were measured
        self.stage = Stage(self.setting, folder / network)
        self.end.callback(self.stage.close)
        self.backends = ["native"] + (["reverb"] if this_machine().has_reverb else [])
        self._numbers = itertools.count(1)

    @cached_property
    def agent(self) -> Any:
        return self.setting.agent()

    @cached_property
    def items(self) -> Arrays:
        """A batch as it comes over the wire: item name -> [B, ...], read-only. Actions are random."""
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


def copying(arrays: Arrays) -> tuple[str, Call]:
    """The bound of what moves these bytes."""
    pairs = [(np.array(array), np.empty_like(array)) for array in arrays.values()]

    def call() -> None:
        for source, target in pairs:
            np.copyto(target, source)

    return f"copy of {sum(source.nbytes for source, _ in pairs):,} bytes", call


# ---- the parts ----


def env_lines(bench: Bench) -> Iterator[Line]:
    """A step of a worker's environments: the rules, and everything."""
    n = bench.plan.envs_per_worker
    bare, whole = bench.setting.envs(n, 0), bench.setting.envs(n, 1)
    rules, both = make_rules_step(bare.game), limits.make_env_step(whole)
    yield Line(f"env step, {n} envs", n, "env steps", rules, *copying(bare.game.state._asdict()))
    yield Line(f"env step, features, reward, {n} envs", n, "env steps", both, *copying(both()[0]))


def make_rules_step(game: RealmVectorEnv) -> Callable[[], tuple[Any, ...]]:
    """Make a call that steps the bare game with random actions."""
    actions = np.random.default_rng(0).integers(0, 16, (97, game.num_envs))
    turns = itertools.cycle(actions)
    game.reset(seed=0)
    return lambda: game.step(next(turns))


def codec_lines(bench: Bench) -> Iterator[Line]:
    """Encode and decode a round of chunks with its crc32."""
    codec, envs, message = (
        bench.stage.codec("aisrv-0"),
        bench.plan.envs_per_worker,
        Message("add", 1, {}, bench.round()),
    )
    yield Line(
        f"encode, decode {envs} chunks, with crc32", 1, "messages", lambda: codec.decode(codec.encode(message, True)),
        *copying(message.arrays),
    )  # fmt: skip


def forward_lines(bench: Bench) -> Iterator[Line]:
    """`Agent.predict` of 1 to 1024 rows, one thread as in an actor, next to its networks alone."""
    import torch

    agent, many = bench.agent, limits.observations(bench.setting, 1024)
    both = agent.ppo.settings.value_source == "actor"

    def line(rows: int) -> Line:
        obs = {name: array[:rows] for name, array in many.items()}
        seen = {name: torch.from_numpy(array).to(agent.device) for name, array in obs.items()}

        @torch.inference_mode()
        def network() -> Any:
            model = agent.player.model()
            return (model(seen)[0] if both else model.actor(seen)).cpu()

        return Line(f"predict, {rows} rows", rows, "rows", limits.make_predict(agent, obs), "network alone", network)

    yield from map(line, (1, 4, 16, 64, 256, 1024))


def roundtrip_lines(bench: Bench) -> Iterator[Line]:
    """Worker to actor and back; the actor gets one model from a pool, and nobody trains."""
    from realm.learn.checkpoint import to_bytes

    stage = bench.stage
    learner = stage.client("learner-0", stage.start("model_pool"))
    writer = ModelWriter(learner)
    writer.publish(Version(1, bench.number()), 0, to_bytes(bench.agent.model))
    while learner.unanswered:
        wait_any([learner], 50)
        writer.tick()
    client = stage.client("aisrv-0", stage.start("actor"))
    policy = RemotePolicy(client, bench.spec, 0, ASKED, VersionGate(None, 1, 1), stage.tick, lambda seconds: None)
    obs, first = limits.observations(bench.setting, ASKED), np.zeros(ASKED, np.bool_)
    yield Line(
        f"worker, actor, worker, {ASKED} envs", ASKED, "rows", lambda: policy.predict(obs, first),
        f"predict, {ASKED} rows", limits.make_predict(bench.agent, obs),
    )  # fmt: skip


def buffer_lines(bench: Bench) -> Iterator[Line]:
    """`ReplayBuffer.add` of a batch, round by round, and `.draw` of it, as the buffer's process calls them."""
    batch = bench.plan.batch
    # rounds of any age, and room for four batches
    plan = dataclasses.replace(bench.plan, max_version_lag=None, capacity=4 * batch, preload=batch)

    def line(backend: str) -> Line:
        buffer = make_replay_buffer(dataclasses.replace(plan, backend=backend), bench.spec, secrets.token_hex(8), 0)
        bench.end.callback(buffer.storage.close)

        def add_and_draw() -> None:
            while buffer.size < batch:
                assert buffer.add(bench.round()) == ACCEPTED
            assert buffer.draw(batch, Version(1, bench.number())) is not None

        bound, copy = copying(bench.items)

        def twice() -> None:
            copy()
            copy()

        return Line(f"add and draw {batch} chunks, {backend}", batch, "chunks", add_and_draw, f"2 x {bound}", twice)

    yield from map(line, bench.backends)


def learner_lines(bench: Bench) -> Iterator[Line]:
    """A whole update, next to the passes and the gradient steps of both networks alone."""
    import torch

    agent, batch, setting = bench.agent, bench.plan.batch, bench.setting
    samples, count = batch * bench.spec.chunk_length, setting.hyper.epochs * setting.minibatches
    # of an older policy, as in a cluster
    info = SampleInfo(np.zeros(batch, np.uint64), np.ones(batch), np.ones(batch), stale=True)
    chunk = arrays_to_chunk(bench.items)
    rows = {
        name: torch.from_numpy(array[:, :-1].reshape(samples, *array.shape[2:])) for name, array in chunk.obs.items()
    }
    passes = [{name: x[at : at + PASS_ROWS].to(agent.device) for name, x in rows.items()}
              for at in range(0, samples, PASS_ROWS)]  # fmt: skip
    minibatch = {name: x[: setting.minibatch].to(agent.device) for name, x in rows.items()}

    parameters = list(agent.model.parameters())

    def alone(name: str) -> None:
        with torch.no_grad():
            ready = getattr(agent.player.model(), name)  # weights in the network's precision
            for part in passes:
                ready(part)
        net = getattr(agent.model, name)
        for _ in range(count):
            torch.autograd.grad(net(minibatch).sum(), parameters, allow_unused=True)

    def both() -> None:
        threads = torch.get_num_threads()
        if threads == 1:
            alone("critic")
            alone("actor")
            return
        torch.set_num_threads(threads - threads // 2)
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads // 2,)) as beside:
            critic = beside.submit(alone, "critic")
            alone("actor")
            critic.result()
        torch.set_num_threads(threads)

    yield Line(
        f"update of {count} gradient steps of {setting.minibatch} rows", samples, "samples",
        lambda: complete(agent.learn(chunk, info)), "networks alone", both, bench.plan.learner_threads,
    )  # fmt: skip


PARTS = {
    "env": env_lines, "codec": codec_lines, "forward": forward_lines, "roundtrip": roundtrip_lines,
    "buffer": buffer_lines, "learner": learner_lines,
}  # fmt: skip


# ---- measuring ----


def timed(call: Call, seconds: float) -> tuple[list[float], float]:
    """Seconds of each call, again and again for about `seconds`; and CPU seconds of one, on average."""
    from torch import cuda

    took: list[float] = []
    begin, cpu = time.perf_counter(), time.process_time()
    while not took or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        if cuda.is_initialized():
            cuda.synchronize()
        took.append(time.perf_counter() - start)
    return took, (time.process_time() - cpu) / len(took)


def measure(bench: Bench, parts: Sequence[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """All lines of these parts: each of them, and its bound, for `seconds` in each round, alternately."""
    import torch

    lines = [(part, line) for part in parts for line in PARTS[part](bench)]
    figures: list[dict[str, Any]] = [
        {"network": bench.network, "part": part, "name": line.name, "amount": line.amount, "unit": line.unit,
         "threads": line.threads, "bound": line.bound, **{name: [] for name in TIMES}}
        for part, line in lines
    ]  # fmt: skip
    progress = common.Progress()
    for number in range(rounds + 1):
        for (_, line), one in zip(lines, figures, strict=True):
            progress.show(f"{bench.network}, round {number} of {rounds}: {line.name}")
            torch.set_num_threads(line.threads)
            took, cpu = timed(line.call, seconds if number else 0.0)  # round 0 is to warm up
            bound, _ = timed(line.bound_call, seconds if number else 0.0)
            values = (statistics.median(took), float(np.quantile(took, 0.99)), cpu, statistics.median(bound))
            for name, value in zip(TIMES, values, strict=True):
                one[name] += [value] if number else []
    progress.clear()
    return figures


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Microseconds of a call, with the CPU time of this process alone, and of its bound; how many times that is."""
    names = ("median us", "least", "greatest", "p99", "cpu", "a second", "", "bound us")
    text = [f"{'':42}" + "".join(f"{name:>12}" for name in names)]
    for one in lines:
        times, bound = one["seconds"], statistics.median(one["bound_seconds"])
        median, p99, cpu = (statistics.median(one[name]) for name in TIMES[:3])
        cells = "".join(f"{1e6 * cell:>12,.1f}" for cell in (median, min(times), max(times), p99, cpu))
        rate = f"{one['amount'] / median:>12,.0f} {one['unit']:<11}"
        text.append(f"{one['name']:42}{cells}{rate}{1e6 * bound:>12,.1f} x {median / bound:<9,.2f}{one['bound']}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both, repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each part, and of each bound, in a round")
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if args.rounds < 1:
        raise ConfigError(f"--rounds {args.rounds}: must be at least 1")
    if args.out:
        common.check_out(args.out)
    # threads that do not spin and memory that is not given back, as in learner and actor
    enter_learner_environment(limits.read_setting(NETWORKS["default"], args.set).plan)
    common.end_in_order()  # role processes are ended on the way
    figures: dict[str, Any] = {"about": common.about(), "rounds": args.rounds, "seconds": args.seconds, "lines": []}
    with tempfile.TemporaryDirectory(prefix="realm-parts-") as folder:
        for network in args.network:
            bench = Bench(network, Path(folder), args.set)
            try:
                lines = measure(bench, args.only, args.rounds, args.seconds)
            finally:
                bench.end.close()
            figures["lines"] += lines
            print(f"{network}: {NETWORKS[network].name}\n{table(lines)}\n", flush=True)
    if args.out:
        common.write_json(args.out, figures)


if __name__ == "__main__":
    common.command_line(main)
