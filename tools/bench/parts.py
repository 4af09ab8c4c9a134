"""Each part of a training alone, next to the same work without Realm: the network alone, or a copy of the bytes.

    python tools/bench/parts.py --network default --rounds 3 --seconds 0.4
    python tools/bench/parts.py --network reference --only buffer --out train/parts.json
    python tools/bench/parts.py --network pong --only learner --cpu

For two networks: conf/configure_app.toml (numbers, two MLPs) and conf/reference.toml (an image, two conv trunks). With
ale-py also for conf/ppo/pong.toml (four frames, one conv trunk). Parts and bounds alternate in rounds, so a neighbour
on the machine disturbs both. A time is the median over the rounds of a round's median, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.algorithms.normalise import seen_by
from realm.algorithms.windows import with_frames
from realm.config.load import load_config
from realm.config.plan import this_machine
from realm.contract import Arrays, PredictContext, SampleInfo, Version, arrays_to_chunk
from realm.data.buffer import ACCEPTED, make_replay_buffer
from realm.errors import ConfigError
from realm.launch.environment import enter_learner_environment
from realm.user import calling, load_agent, load_definition, load_hyper
from tools import common

CONF = common.ROOT / "conf"
NETWORKS = {"default": common.CONFIG, "reference": CONF / "reference.toml", "pong": CONF / "ppo" / "pong.toml"}
PASS_ROWS = 4096  # of a forward without gradients

Call = Callable[[], Any]
Times = dict[str, dict[int, float]]  # name -> round -> seconds


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
    """One network, and what several parts need. items: a batch as it comes over the wire, name -> [B, ...]."""

    def __init__(self, network: str, overrides: Sequence[str] = ()) -> None:
        path = NETWORKS[network]
        config = common.effective(load_config(path, overrides))
        algo = config.app.algo
        if algo not in ("diy", "realm.zoo.ppo"):
            raise ConfigError(f"{path}: algo is {algo!r}; it must be diy or realm.zoo.ppo, whose networks are measured")
        self.env, self.plan = config.env, common.plan_of(config.app)
        self.hyper, self.definition = load_hyper(algo, config.hyper, config.places), load_definition(algo)
        with calling(config, "make_envs"):
            self.spec = self.definition.spec(self.envs(1), self.hyper)
        self.agent = load_agent(algo)(self.spec, self.hyper, self.plan.device, 0)
        self.backends = ["native"] + (["reverb"] if this_machine().has_reverb else [])
        self.numbers = itertools.count(1)  # of rounds and versions
        batch, t = self.plan.batch, self.spec.chunk_length
        self.items = {name: np.zeros((batch, *one.shape), one.dtype) for name, one in self.spec.sample_fields.items()}
        seen = self.observations(batch * (t + 1))
        for name, rows in seen.items():
            self.items[f"obs.{name}"] = rows.reshape(batch, t + 1, *rows.shape[1:])
        every = np.ones((batch * (t + 1), self.spec.action.n), np.bool_)  # where there is no mask
        legal = seen.get("legal", every).reshape(batch, t + 1, -1)[:, :-1]
        self.items["action"][:] = legal.argmax(-1)
        self.items["extra.log_prob"][:] = -np.log(legal.sum(-1))
        self.items["valid"][:] = True
        self.items["version"][..., 0] = 1

    def envs(self, count: int) -> Any:
        return self.definition.make_envs(count, 0, self.hyper, self.env)

    def observations(self, rows: int) -> Arrays:
        """Of random actions: name -> [rows, ...]."""
        envs = self.envs(min(rows, 64))
        step = make_env_step(envs, self.spec.action.n)
        seen = [step()[0] for _ in range(-(-rows // envs.num_envs))]
        return {name: np.concatenate([one[name] for one in seen])[:rows] for name in seen[0]}


def make_env_step(envs: Any, actions: int) -> Callable[[], tuple[Any, ...]]:
    """Make a call that steps all environments with random legal actions."""
    obs, _ = envs.reset()
    noise = itertools.cycle(np.random.default_rng(0).random((97, envs.num_envs, actions), np.float32))
    every = np.ones((envs.num_envs, actions), np.bool_)  # where there is no mask

    def step() -> tuple[Any, ...]:
        nonlocal obs
        result: tuple[Any, ...] = envs.step(((next(noise) + 0.01) * obs.get("legal", every)).argmax(-1))
        obs = result[0]
        return result

    return step


def copying(arrays: Arrays, times: int = 1) -> tuple[str, Call]:
    """The bound of what moves these bytes."""
    pairs = [(np.array(array), np.empty_like(array)) for array in arrays.values()]

    def call() -> None:
        for source, target in pairs * times:
            np.copyto(target, source)

    return f"{times} x copy of {sum(source.nbytes for source, _ in pairs):,} bytes", call


def acting_model(agent: Any) -> Any:
    """The network as it predicts; diy's has weights in its precision."""
    return agent.player.model() if hasattr(agent, "player") else agent.model


# ---- the parts ----


def env_lines(bench: Bench) -> Iterator[Line]:
    """A step of a worker's environments: rules, features and reward."""
    n = bench.plan.envs_per_worker
    step = make_env_step(bench.envs(n), bench.spec.action.n)
    yield Line(f"env step, features, reward, {n} envs", n, "env steps", step, *copying(step()[0]))


def forward_lines(bench: Bench) -> Iterator[Line]:
    """`Agent.predict` of 1 to 1024 rows, one thread as in an actor, next to its networks alone."""
    import torch

    agent, ppo, many = bench.agent, bench.agent.ppo, bench.observations(1024)

    def line(rows: int) -> Line:
        obs = {name: array[:rows] for name, array in many.items()}
        state = {name: np.zeros((rows, *field.shape), field.dtype) for name, field in bench.spec.state.items()}
        context = PredictContext(np.arange(rows), np.zeros(rows, np.bool_), np.ones(rows, np.float32), state=state)
        seen = {name: torch.from_numpy(array).to(ppo.device) for name, array in with_frames(obs, context)[0].items()}
        seen = seen_by(ppo.network, ppo.settings, seen)

        @torch.inference_mode()
        def network() -> Any:
            model = acting_model(agent)
            return (model(seen)[0] if ppo.settings.value_source == "actor" else model.actor(seen)).cpu()

        call = lambda: agent.predict(obs, context)  # noqa: E731
        return Line(f"predict, {rows} rows", rows, "rows", call, "network alone", network)

    yield from map(line, (1, 4, 16, 64, 256, 1024))


def buffer_lines(bench: Bench) -> Iterator[Line]:
    """`ReplayBuffer.add` of a batch, round by round, and `.draw` of it, as the buffer's process calls them."""
    batch, envs = bench.plan.batch, bench.plan.envs_per_worker
    # rounds of any age, and room for four batches
    plan = dataclasses.replace(bench.plan, max_version_lag=None, capacity=4 * batch, preload=batch)
    rounds = {name: array[:envs] for name, array in bench.items.items()}
    for backend in bench.backends:
        buffer = make_replay_buffer(dataclasses.replace(plan, backend=backend), bench.spec, secrets.token_hex(8), 0)

        def add_and_draw(buffer: Any = buffer) -> None:
            while buffer.size < batch:
                assert buffer.add(rounds | {"seq": np.full(envs, next(bench.numbers))}) == ACCEPTED
            assert buffer.draw(batch, Version(1, next(bench.numbers))) is not None

        name = f"add and draw {batch} chunks, {backend}"
        yield Line(name, batch, "chunks", add_and_draw, *copying(bench.items, times=2))


def learner_lines(bench: Bench) -> Iterator[Line]:
    """A whole update, next to the passes and the gradient steps of both networks alone."""
    import torch

    ppo, threads = bench.agent.ppo, bench.plan.learner_threads
    batch, samples = bench.plan.batch, bench.plan.batch * bench.spec.chunk_length
    minibatches = max(1, round(samples / int(bench.hyper.minibatch_size)))  # of one pass, as the agent cuts it
    count, size = bench.hyper.epochs * minibatches, samples // minibatches
    # of an older policy, as in a cluster
    info = SampleInfo(np.zeros(batch, np.uint64), np.ones(batch), np.ones(batch), stale=True)
    chunk = arrays_to_chunk(bench.items)
    rows = ppo.cut(ppo.estimate(chunk, ppo.settings.schedule(0), stale=True))
    order = torch.arange(samples, device=ppo.device)
    many = [rows.at(part).obs for part in torch.split(order, PASS_ROWS)]
    few = rows.at(order[:size]).obs
    parameters = list(ppo.network.parameters())

    def alone(name: str) -> None:
        """name: "critic" or "actor", or "forward" of both at once."""
        with torch.no_grad():
            for obs in many:
                getattr(acting_model(bench.agent), name)(obs)  # weights in the network's precision
        for _ in range(count):
            outputs = getattr(ppo.network, name)(few)
            total = sum(x.sum() for x in (outputs if isinstance(outputs, tuple) else (outputs,)))
            torch.autograd.grad(total, parameters, allow_unused=True)

    def both() -> None:
        """Side by side, as the learner does it, where they share no weights."""
        if ppo.settings.shared_trunk:
            alone("forward")
            return
        if threads == 1:
            alone("critic")
            alone("actor")
            return
        torch.set_num_threads(threads - threads // 2)
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads // 2,)) as pool:
            critic = pool.submit(alone, "critic")
            alone("actor")
            critic.result()

    yield Line(
        f"update of {count} gradient steps of {size} rows", samples, "samples",
        lambda: list(bench.agent.learn(chunk, info)), "networks alone", both, threads,
    )  # fmt: skip


def copy_lines(bench: Bench) -> Iterator[Line]:
    """A batch to the device of the learner."""
    from torch import from_numpy

    device, batch = bench.agent.ppo.device, bench.plan.batch
    call = lambda: [from_numpy(array).to(device) for array in bench.items.values()]  # noqa: E731
    yield Line(f"{batch} chunks to {device}", batch, "chunks", call, *copying(bench.items))


PARTS = {
    "copies": copy_lines,
    "env": env_lines,
    "forward": forward_lines,
    "buffer": buffer_lines,
    "learner": learner_lines,
}


# ---- measuring ----


def timed(call: Call, threads: int, seconds: float, clock: Call, *_: Any) -> float:
    """Median seconds of a call by `clock`, again and again for about `seconds`."""
    from torch import cuda, set_num_threads

    set_num_threads(threads)
    took: list[float] = []
    begin = time.perf_counter()
    while not took or time.perf_counter() - begin < seconds:
        start = clock()
        call()
        if cuda.is_initialized():
            cuda.synchronize()
        took.append(clock() - start)
    return statistics.median(took)


def measure(lines: Sequence[Line], rounds: int, seconds: float, clock: Call = time.perf_counter) -> Times:
    """Seconds of each line, and of its bound, named `<name>, bound`; each is measured for `seconds`."""
    rows: dict[str, Call] = {}
    for line in lines:
        for name, call in ((line.name, line.call), (f"{line.name}, bound", line.bound_call)):
            timed(call, line.threads, 0.0, clock)  # to warm up
            rows[name] = partial(timed, call, line.threads, seconds, clock)
    return common.in_rounds(rows, rounds)


def table(lines: Sequence[Line], times: Times) -> str:
    """Microseconds of a call and of its bound, and how many times that is."""
    heads = ("median us", "least", "greatest", "a second", "", "bound us")
    text = [f"{'':42}" + "".join(f"{head:>12}" for head in heads)]
    for line in lines:
        told, bound = (common.spread(times[name].values()) for name in (line.name, f"{line.name}, bound"))
        cells = "".join(f"{1e6 * seconds:>12,.1f}" for seconds in told)
        rate = f"{line.amount / told.median:>12,.0f} {line.unit:<11}"
        ratio = f"{1e6 * bound.median:>12,.1f} x {told.median / bound.median:<9,.2f}{line.bound}"
        text.append(f"{line.name:42}{cells}{rate}{ratio}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["default", "reference"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both, repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each part, and of each bound, in a round")
    parser.add_argument("--out", type=Path, help="write the seconds of every round there, as JSON")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads, where other work is on the cores")
    args = parser.parse_args()
    if args.rounds < 1:
        raise ConfigError(f"--rounds {args.rounds}: must be at least 1")
    # threads that do not spin and memory that is not given back, as in learner and actor
    enter_learner_environment(common.plan_of(common.effective(load_config(NETWORKS["default"], args.set)).app))
    clock = time.process_time if args.cpu else time.perf_counter
    results: dict[str, Any] = {"about": common.about()}
    for network in args.network:
        bench = Bench(network, args.set)
        lines = [line for part in args.only for line in PARTS[part](bench)]
        results[network] = measure(lines, args.rounds, args.seconds, clock)
        print(f"{network}: {NETWORKS[network].name}\n{table(lines, results[network])}\n")
        if args.out:
            common.write_json(args.out, results)


if __name__ == "__main__":
    common.command_line(main)
