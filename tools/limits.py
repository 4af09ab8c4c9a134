"""What this machine can do at most of the three things that training cannot do without, and how near a run is to it.

    python tools/limits.py --config conf/configure_app.toml --seconds 6 --out train/limits.json

S_train   samples/s of gradient steps: diy's loss, minibatch size and precision; one process with some OpenMP threads
S_infer   rows/s of `Agent.predict`, of one process with some threads or several with one
S_env     env steps/s, with observation and reward, of several processes

Each alone in a tight loop, and the best number of threads or processes up to all cores. With them,

    eta = SPS x (epochs / S_train + 1 / S_infer + 1 / S_env)

is the share of its time that a run needed for these three, were everything else free and each done in this way. S_train
is frozen: it stays the same yardstick while the agent gets faster. So it is no bound. A learner that uses the cores
better than OpenMP's threads do, as diy's with policy and critic side by side, can bring eta above 1. What such gradient
steps alone reach stands beside it, in no eta: S_learn. `measure` and `eta` are for tools/bench_train.py, the calls
that are timed for tools/bench_parts.py, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realm.config.load import RunConfig, load_config
from realm.config.plan import Plan, make_plan, this_machine
from realm.contract import Array, Arrays, PredictContext, Spec
from realm.errors import ConfigError
from realm.launch.environment import role_environment
from realm.user import calling, load_agent, load_definition, load_hyper
from tools import runs

UNITS = {"train": "samples/s", "infer": "rows/s", "env": "env steps/s", "learn": "samples/s"}
ROUNDS = 3
LEARNER_STEPS = 8  # in a call: the critic's and the policy's do not wait for each other before the last is made
FEW_CORES = 8  # up to here every number of threads is tried, then powers of two

# ---- what is timed ----


@dataclass(frozen=True)
class Setting:
    """A configuration with every `auto` decided. hyper: diy's Config."""

    config: RunConfig
    hyper: Any
    plan: Plan
    spec: Spec

    @property
    def minibatches(self) -> int:
        """Gradient steps of one pass over a batch, as the agent cuts it."""
        return max(1, round(self.plan.batch * self.spec.chunk_length / int(self.hyper.minibatch_size)))

    @property
    def minibatch(self) -> int:
        """Rows of a gradient step."""
        return self.plan.batch * self.spec.chunk_length // self.minibatches

    def envs(self, count: int, seed: int = 0) -> Any:
        return load_definition("diy").make_envs(count, seed, self.hyper, self.config.env)

    def agent(self) -> Any:
        return load_agent("diy")(self.spec, self.hyper, self.plan.device, 0)


def read_setting(path: str | Path, overrides: Sequence[str], cores: int | None = None) -> Setting:
    """cores: as if the machine had so many; None: those that this process may use."""
    config, machine = load_config(path, overrides), this_machine()
    if config.app.algo != "diy":
        raise ConfigError(f"algo is {config.app.algo!r}, but this tool knows the loss of diy alone; allowed is diy")
    if cores is not None and not 1 <= cores <= machine.cores:
        raise ConfigError(f"cores is {cores}; allowed is 1 to {machine.cores}, those that this process may use")
    hyper, definition = load_hyper("diy", config.hyper, config.places), load_definition("diy")
    plan = make_plan(config.app, dataclasses.replace(machine, cores=cores or machine.cores))
    with calling(config, "make_envs"):
        envs = definition.make_envs(1, 0, hyper, config.env)
    return Setting(config, hyper, plan, definition.spec(envs, hyper))


def draw(legal: Array, noise: Array) -> Array:
    """A random legal action of each row. legal: bool [n, A]; noise: f32 [n, A], 0 to 1."""
    action: Array = ((noise + 0.01) * legal).argmax(-1)
    return action


def make_env_step(envs: Any, legal: str = "legal") -> Callable[[], tuple[Any, ...]]:
    """Steps all environments with random actions, of those that the observation calls legal."""
    obs, _ = envs.reset()
    noise = np.random.default_rng(0).random((97, *obs[legal].shape), np.float32)
    turn = 0

    def step() -> tuple[Any, ...]:
        nonlocal obs, turn
        result: tuple[Any, ...] = envs.step(draw(obs[legal], noise[turn % len(noise)]))
        obs, turn = result[0], turn + 1
        return result

    return step


def observations(setting: Setting, rows: int) -> Arrays:
    """Of random play: name -> [rows, ...]."""
    envs = setting.envs(min(rows, 64))
    step = make_env_step(envs)
    seen = [step()[0] for _ in range(-(-rows // envs.num_envs))]
    return {name: np.concatenate([one[name] for one in seen])[:rows] for name in seen[0]}


def make_predict(agent: Any, obs: Arrays) -> Callable[[], Any]:
    """`Agent.predict` of these rows, drawn from the policy."""
    rows = len(obs["legal"])
    context = PredictContext(np.arange(rows), np.zeros(rows, np.bool_), np.ones(rows, np.float32))
    return lambda: agent.predict(obs, context)


def make_gradient_step(agent: Any, hyper: Any, obs: Arrays) -> Callable[[], None]:
    """A gradient step on these rows with made-up advantages: diy's loss, clipping of gradients and Adam, no more."""
    import torch

    from realm import returns

    seen = {name: torch.from_numpy(array).to(agent.device) for name, array in obs.items()}
    legal, parameters = seen["legal"], list(agent.model.parameters())
    adam = torch.optim.Adam(parameters, hyper.lr_start, eps=hyper.adam_eps, fused=agent.device.type in ("cpu", "cuda"))
    action = torch.multinomial(legal.float(), 1)
    advantage, target = (torch.randn(len(legal), device=agent.device) for _ in range(2))
    with torch.no_grad():
        old = returns.masked_log_softmax(agent.model(seen)[0], legal).gather(-1, action).squeeze(-1)

    def step() -> None:
        logits, value = agent.model(seen)
        log_probs = returns.masked_log_softmax(logits, legal)
        log_ratio = log_probs.gather(-1, action).squeeze(-1) - old
        loss = returns.clipped_policy_loss(log_ratio, advantage, hyper.clip).mean()
        loss = loss + hyper.vf_coef * returns.value_loss(value, target).mean()
        loss = loss - hyper.entropy_start * returns.entropy(log_probs).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, hyper.max_grad_norm)
        adam.step()

    return step


def make_learner_steps(agent: Any, obs: Arrays) -> Callable[[], None]:
    """LEARNER_STEPS gradient steps on these rows as the agent makes them; inside its `_two_threads`, policy and critic
    at once."""
    import torch

    from diy.algorithm.agent import Rows
    from realm import returns

    seen = {name: torch.from_numpy(array).to(agent.device) for name, array in obs.items()}
    action = torch.multinomial(seen["legal"].float(), 1).squeeze(-1)
    advantage, target = (torch.randn(len(action), device=agent.device) for _ in range(2))
    with torch.no_grad():
        logits, value = agent.model(seen)
        old = returns.masked_log_softmax(logits, seen["legal"]).gather(-1, action[:, None]).squeeze(-1)
    index = torch.arange(len(action), device=agent.device)
    rows = Rows(seen, index, action, old, old, value, advantage, target)
    now = agent._now()
    return lambda: agent._gradient_steps(LEARNER_STEPS * [rows], now)


# ---- on all cores ----


def child(path: str, overrides: Sequence[str], cores: int, rows: int) -> None:
    """Answer each line `[what, threads, seconds]` on stdin with `[how many, wall seconds, CPU seconds]`."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:cores])
    import torch

    setting = read_setting(path, overrides, cores)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], AbstractContextManager[None]]]] = {}
    amount = amounts(setting, rows)

    def make(what: str) -> tuple[Callable[[], Any], Callable[[], AbstractContextManager[None]]]:
        """What is timed, and what all of its calls are inside."""
        if what == "env":
            return make_env_step(setting.envs(amount[what], os.getpid())), nullcontext
        agent, obs = setting.agent(), observations(setting, rows if what == "infer" else setting.minibatch)
        if what == "infer":
            return make_predict(agent, obs), nullcontext
        if what == "learn":
            return make_learner_steps(agent, obs), agent._two_threads
        return make_gradient_step(agent, setting.hyper, obs), nullcontext

    for line in sys.stdin:
        what, threads, seconds = json.loads(line)
        torch.set_num_threads(threads)
        calls[what] = calls.get(what) or make(what)
        call, inside = calls[what]
        with inside():
            done, begin, cpu = 0, time.perf_counter(), time.process_time()
            while done == 0 or time.perf_counter() - begin < seconds:
                call()
                done += amount[what]
            if setting.plan.device.startswith("cuda"):
                torch.cuda.synchronize()
            took = [time.perf_counter() - begin, time.process_time() - cpu]
        print(json.dumps([done, *took]), flush=True)


def amounts(setting: Setting, rows: int) -> dict[str, int]:
    """What a call of each is about. rows: of a forward pass."""
    minibatch = setting.minibatch
    envs = setting.plan.envs_per_worker
    return {"train": minibatch, "infer": rows, "env": envs, "learn": LEARNER_STEPS * minibatch}


def numbers_of_threads(cores: int) -> list[int]:
    """Those that are tried."""
    return [n for n in range(1, cores + 1) if cores <= FEW_CORES or n == cores or n & (n - 1) == 0]


def measure(
    config_path: str | Path, overrides: Sequence[str], seconds: float, cores: int | None = None, rows: int | None = None
) -> dict[str, Any]:
    """Measure all three: `seconds` for each number of processes and threads, in three rounds in which all take turns.

    cores: the first so many of those that this process may use; None: all of them. rows: of a forward pass, such as a
    run's meter `actor/batch_rows`; None: what a forward of the plan has: where workers predict themselves, the
    environments of one, else those of all workers at once, the most that can meet at the actor.
    Returns s_train, s_infer, s_env and s_learn; `best`: processes and threads of each; what they were measured with;
    all rates.
    `cpu`, CPU seconds a second, is less than processes x threads where others had the cores, or threads wait.
    """
    if seconds <= 0 or (rows is not None and rows < 1):
        raise ConfigError(f"seconds is {seconds:g}, rows is {rows}; allowed are seconds above 0 and at least 1 row")
    setting = read_setting(config_path, overrides, cores)
    plan = setting.plan
    cores = plan.cores
    if rows is None:
        together = min(plan.round_size, setting.config.app.predict_batch_size)
        rows = plan.envs_per_worker if plan.predict_local else together
    counts = numbers_of_threads(cores)
    one, many = ([(1, n) for n in counts], [(n, 1) for n in counts]) if plan.device == "cpu" else ([(1, 1)], [(1, 1)])
    ways = {"train": one, "infer": list(dict.fromkeys([*one, many[-1]])), "env": [(n, 1) for n in counts]}
    ways["learn"] = one[-1:]  # that of all cores: with one thread it is what S_train measures
    rates: dict[tuple[str, int, int], list[tuple[float, float]]]
    rates = {(what, *way): [] for what, several in ways.items() for way in several}

    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--config", str(Path(config_path).absolute())]
    command += ["--cores", str(cores), "--rows", str(rows), *(word for x in overrides for word in ("--set", x))]
    # the learner's variables: about threads that wait, and memory that is given back
    environment = role_environment("learner", dataclasses.replace(plan, learner_threads=cores))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, cwd=runs.ROOT, env=environment, **pipes) for _ in range(cores)]
    try:
        for share in [0.0] + ROUNDS * [seconds / ROUNDS]:  # the first: things are made, kernels compiled
            for (what, processes, threads), found in rates.items():
                rate = _together(children[:processes], [what, threads, share])
                found += [rate] if share else []
    finally:
        for process in children:
            process.kill()
            process.communicate()

    per_s = {way: statistics.median(rate for rate, _ in found) for way, found in rates.items()}
    best = {what: max((way for way in rates if way[0] == what), key=per_s.__getitem__) for what in UNITS}
    return {
        **{f"s_{what}": per_s[way] for what, way in best.items()},
        "best": {what: {"processes": way[1], "threads": way[2]} for what, way in best.items()},
        "amount": amounts(setting, rows),
        "cores": cores, "device": plan.device, "epochs": setting.hyper.epochs, "seconds": seconds,
        "rates": [
            {"what": way[0], "processes": way[1], "threads": way[2], "per_s": [r for r, _ in found],
             "cpu": [cpu for _, cpu in found]}
            for way, found in rates.items()
        ],
    }  # fmt: skip


def _together(children: Sequence[subprocess.Popen[str]], order: list[Any]) -> tuple[float, float]:
    """Let these processes do the same at once; how much a second they did in all, and their CPU seconds a second."""
    for one in children:
        assert one.stdin
        with suppress(BrokenPipeError):  # it has ended, which is said below
            one.stdin.write(json.dumps(order) + "\n")
            one.stdin.flush()
    rate = cpu = 0.0
    for one in children:
        assert one.stdout
        line = one.stdout.readline()
        if not line:
            raise ConfigError(f"{order[0]} cannot be measured: a process ended with exit code {one.wait()}, see above")
        done, wall_s, cpu_s = json.loads(line)
        rate, cpu = rate + done / wall_s, cpu + cpu_s / wall_s
    return rate, cpu


def eta(sps: float, epochs: float, limits: Mapping[str, Any]) -> float:
    """Of a run with `sps` env steps a second, each trained on `epochs` times; limits: of `measure`."""
    return float(sps * (epochs / limits["s_train"] + 1 / limits["s_infer"] + 1 / limits["s_env"]))


def table(limits: Mapping[str, Any]) -> str:
    """A line for each number of processes and threads: the median and the range over the rounds."""
    lines = []
    for one in limits["rates"]:
        what, rates = one["what"], one["per_s"]
        best = limits["best"][what] == {"processes": one["processes"], "threads": one["threads"]}
        lines.append(
            f"S_{what:<6}{one['processes']:>3} processes x {one['threads']:>2} threads{limits['amount'][what]:>6} rows"
            f"{statistics.median(rates):>13,.0f} {UNITS[what]:<12}{min(rates):>11,.0f} to {max(rates):<11,.0f} "
            f"cpu {statistics.median(one['cpu']):.2f}{'   best' if best else ''}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=runs.ROOT / "conf" / "configure_app.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of realm start, repeatable")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of processes and threads")
    parser.add_argument("--cores", type=int, default=None, help="default: all that this process may use")
    parser.add_argument("--rows", type=int, default=None, help="of a forward pass; default: as many as the plan's have")
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.config, args.set, args.cores, args.rows)
        return
    if args.out:
        runs.check_out(args.out)
    limits = measure(args.config, args.set, args.seconds, args.cores, args.rows)
    print(table(limits))
    if args.out:
        runs.write_json(args.out, {"about": runs.about(), "limits": limits})


if __name__ == "__main__":
    runs.command_line(main)
