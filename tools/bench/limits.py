"""The most that this machine can do of the three things that training needs, and how near a run is to it.

    python tools/bench/limits.py --seconds 6 --out train/limits.json
    python tools/bench/limits.py --config conf/reference.toml

S_train   samples/s of gradient steps: diy's loss, minibatch size and precision; one process with some OpenMP threads
S_infer   rows/s of `Agent.predict`; one process with some threads, or a process on each core
S_env     env steps/s, with observation and reward; several processes

Each runs alone in a tight loop, and the best number of threads or processes counts. With them,

    eta = SPS x (epochs / S_train + 1 / S_infer + 1 / S_env)

is the share of its time that a run needs for these three, if everything else is free. S_train is a frozen yardstick, no
bound: a learner that uses the cores better than OpenMP does can bring eta above 1.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.config.plan import Plan, make_plan, this_machine
from realm.contract import Array, Arrays, PredictContext, Spec
from realm.errors import ConfigError
from realm.launch.environment import role_environment
from realm.user import calling, load_agent, load_definition, load_hyper
from tools import common

UNITS = {"train": "samples/s", "infer": "rows/s", "env": "env steps/s"}
ROUNDS = 3
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

    @property
    def forward_rows(self) -> int:
        """Rows of a forward: a worker's environments where it predicts, else the most that can meet at the actor."""
        if self.plan.predict_local:
            return self.plan.envs_per_worker
        return min(self.plan.round_size, self.config.app.predict_batch_size)

    def envs(self, count: int, seed: int = 0) -> Any:
        return load_definition("diy").make_envs(count, seed, self.hyper, self.config.env)

    def agent(self) -> Any:
        return load_agent("diy")(self.spec, self.hyper, self.plan.device, 0)


def read_setting(path: str | Path, overrides: Sequence[str]) -> Setting:
    config = load_config(path, overrides)
    if config.app.algo != "diy":
        raise ConfigError(f"{path}: algo is {config.app.algo!r}; it must be diy, whose loss and network are measured")
    hyper, definition = load_hyper("diy", config.hyper, config.places), load_definition("diy")
    with calling(config, "make_envs"):
        envs = definition.make_envs(1, 0, hyper, config.env)
    return Setting(config, hyper, make_plan(config.app, this_machine()), definition.spec(envs, hyper))


def draw(legal: Array, noise: Array) -> Array:
    """Sample a legal action of each row. legal: bool [n, A]; noise: f32 [n, A], 0 to 1."""
    action: Array = ((noise + 0.01) * legal).argmax(-1)
    return action


def make_env_step(envs: Any, legal: str = "legal") -> Callable[[], tuple[Any, ...]]:
    """Make a call that steps all environments with random legal actions. legal: name of the mask in the observation."""
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
    """Collect observations of random actions: name -> [rows, ...]."""
    envs = setting.envs(min(rows, 64))
    step = make_env_step(envs)
    seen = [step()[0] for _ in range(-(-rows // envs.num_envs))]
    return {name: np.concatenate([one[name] for one in seen])[:rows] for name in seen[0]}


def make_predict(agent: Any, obs: Arrays) -> Callable[[], Any]:
    """Make a call of `Agent.predict` with these rows, actions sampled."""
    rows = len(obs["legal"])
    context = PredictContext(np.arange(rows), np.zeros(rows, np.bool_), np.ones(rows, np.float32))
    return lambda: agent.predict(obs, context)


def make_gradient_step(agent: Any, hyper: Any, obs: Arrays) -> Callable[[], None]:
    """Make a gradient step on these rows with made-up advantages: diy's loss, clipped gradients and Adam, no more."""
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


# ---- on all cores ----


def child(path: str, overrides: Sequence[str]) -> None:
    """Answer each line `[what, threads, seconds]` on stdin with `[count, wall seconds, CPU seconds]`."""
    import torch

    setting = read_setting(path, overrides)
    calls: dict[str, Callable[[], Any]] = {}
    amount = amounts(setting)

    def make(what: str) -> Callable[[], Any]:
        if what == "env":
            return make_env_step(setting.envs(amount[what], os.getpid()))
        agent, obs = setting.agent(), observations(setting, amount[what])
        return make_predict(agent, obs) if what == "infer" else make_gradient_step(agent, setting.hyper, obs)

    for line in sys.stdin:
        what, threads, seconds = json.loads(line)
        torch.set_num_threads(threads)
        call = calls[what] = calls.get(what) or make(what)
        done, begin, cpu = 0, time.perf_counter(), time.process_time()
        while done == 0 or time.perf_counter() - begin < seconds:
            call()
            done += amount[what]
        if setting.plan.device.startswith("cuda"):
            torch.cuda.synchronize()
        print(json.dumps([done, time.perf_counter() - begin, time.process_time() - cpu]), flush=True)


def amounts(setting: Setting) -> dict[str, int]:
    """How many units a call of each is about."""
    return {"train": setting.minibatch, "infer": setting.forward_rows, "env": setting.plan.envs_per_worker}


def numbers_of_threads(cores: int) -> list[int]:
    """Those that are tried."""
    return [n for n in range(1, cores + 1) if cores <= FEW_CORES or n == cores or n & (n - 1) == 0]


def measure(config: str | Path, overrides: Sequence[str], seconds: float) -> dict[str, Any]:
    """Measure all three on all cores that this process may use, `seconds` for each number of processes and threads, in
    three rounds in which they alternate.

    Returns s_train, s_infer, s_env; `best`: processes and threads of each; all rates, with `cpu`, CPU seconds a second:
    less than processes x threads where others had the cores, or threads wait.
    """
    if seconds <= 0:
        raise ConfigError(f"seconds is {seconds:g}; it must be above 0")
    setting = read_setting(config, overrides)
    plan = setting.plan
    counts = numbers_of_threads(plan.cores)
    one, many = ([(1, n) for n in counts], [(n, 1) for n in counts]) if plan.device == "cpu" else ([(1, 1)], [(1, 1)])
    ways = {"train": one, "infer": list(dict.fromkeys([*one, many[-1]])), "env": [(n, 1) for n in counts]}
    rates: dict[tuple[str, int, int], list[tuple[float, float]]]
    rates = {(what, *way): [] for what, several in ways.items() for way in several}

    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--config", str(Path(config).absolute())]
    command += [word for one in overrides for word in ("--set", one)]
    # the learner's variables: about threads that wait, and memory that is given back
    environment = role_environment("learner", dataclasses.replace(plan, learner_threads=plan.cores))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, cwd=common.ROOT, env=environment, **pipes) for _ in range(plan.cores)]
    progress = common.Progress()
    try:
        for share in [0.0] + ROUNDS * [seconds / ROUNDS]:  # the first: things are made, kernels compiled
            for (what, processes, threads), measured in rates.items():
                progress.show(f"S_{what}, {processes} processes x {threads} threads, round {len(measured) + 1}")
                rate = _together(children[:processes], [what, threads, share])
                measured += [rate] if share else []
    finally:
        progress.clear()
        for process in children:
            process.kill()
            process.communicate()

    per_s = {way: statistics.median(rate for rate, _ in measured) for way, measured in rates.items()}
    best = {what: max((way for way in rates if way[0] == what), key=per_s.__getitem__) for what in UNITS}
    return {
        **{f"s_{what}": per_s[way] for what, way in best.items()},
        "best": {what: {"processes": way[1], "threads": way[2]} for what, way in best.items()},
        "amount": amounts(setting), "device": plan.device, "epochs": setting.hyper.epochs, "seconds": seconds,
        "rates": [
            {"what": way[0], "processes": way[1], "threads": way[2], "per_s": [rate for rate, _ in measured],
             "cpu": [cpu for _, cpu in measured]}
            for way, measured in rates.items()
        ],
    }  # fmt: skip


def _together(children: Sequence[subprocess.Popen[str]], order: list[Any]) -> tuple[float, float]:
    """Let these processes do the same at once. Returns units a second in all, and CPU seconds a second."""
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
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of realm start, repeatable")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of processes and threads")
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.config, args.set)
        return
    if args.out:
        common.check_out(args.out)
    limits = measure(args.config, args.set, args.seconds)
    print(table(limits))
    if args.out:
        common.write_json(args.out, {"about": common.about(), "limits": limits})


if __name__ == "__main__":
    common.command_line(main)
