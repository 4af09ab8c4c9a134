"""The most that this machine can do of the three things that training needs, and how near a run is to it.

    python tools/bench/limits.py --seconds 6 --sps 46000 --out train/limits.json
    python tools/bench/limits.py --config conf/reference.toml

S_train   samples/s of gradient steps: diy's loss, minibatch size and precision; one process, the best number of threads
S_infer   rows/s of `Agent.predict`: the best number of threads, or a process on each core
S_env     env steps/s, with observation and reward: a process on each core

Each runs alone in a tight loop. Processes on all cores count as that many times one process, a bound. With them,

    eta = SPS x (epochs / S_train + 1 / S_infer + 1 / S_env)

is the share of its time that a run with SPS env steps/s needs for these three, if everything else is free. S_train is a
frozen yardstick, no bound: a learner that uses the cores better than OpenMP does can bring eta above 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.config.plan import Plan
from realm.contract import Array, Arrays, PredictContext, Spec
from realm.errors import ConfigError
from realm.launch.environment import enter_learner_environment
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
    config = common.effective(config)
    hyper, definition = load_hyper("diy", config.hyper, config.places), load_definition("diy")
    with calling(config, "make_envs"):
        envs = definition.make_envs(1, 0, hyper, config.env)
    return Setting(config, hyper, common.plan_of(config.app), definition.spec(envs, hyper))


def draw(legal: Array, noise: Array) -> Array:
    """Sample a legal action of each row. legal: bool [n, A]; noise: f32 [n, A], 0 to 1."""
    action: Array = ((noise + 0.01) * legal).argmax(-1)
    return action


def make_env_step(envs: Any) -> Callable[[], tuple[Any, ...]]:
    """Make a call that steps all environments with random legal actions."""
    obs, _ = envs.reset()
    noise = np.random.default_rng(0).random((97, *obs["legal"].shape), np.float32)
    turn = 0

    def step() -> tuple[Any, ...]:
        nonlocal obs, turn
        result: tuple[Any, ...] = envs.step(draw(obs["legal"], noise[turn % len(noise)]))
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


# ---- measuring ----


def numbers_of_threads(cores: int) -> list[int]:
    """Those that are tried."""
    return [n for n in range(1, cores + 1) if cores <= FEW_CORES or n == cores or n & (n - 1) == 0]


def measure(setting: Setting, seconds: float) -> dict[str, Any]:
    """Measure all three, `seconds` for each number of threads, in three rounds in which they alternate.

    Returns s_train, s_infer, s_env, and all rates: {what, amount: units of a call, threads, processes: that the rate
    counts for, per_s: of each round}.
    """
    import torch

    cores, agent = setting.plan.cores, setting.agent()
    counts = numbers_of_threads(cores) if setting.plan.device == "cpu" else [1]
    rows = {"train": setting.minibatch, "infer": setting.forward_rows, "env": setting.plan.envs_per_worker}
    calls = {
        "train": make_gradient_step(agent, setting.hyper, observations(setting, rows["train"])),
        "infer": make_predict(setting.agent(), observations(setting, rows["infer"])),
        "env": make_env_step(setting.envs(rows["env"])),
    }
    ways = [*(("train", n, 1) for n in counts), *(("infer", n, 1) for n in counts), ("env", 1, cores)]
    ways += [("infer", 1, cores)] if cores > 1 and setting.plan.device == "cpu" else []
    rates: list[dict[str, Any]] = [
        {"what": what, "amount": rows[what], "threads": threads, "processes": processes, "per_s": []}
        for what, threads, processes in ways
    ]
    progress = common.Progress()
    for share in [0.0] + ROUNDS * [seconds / ROUNDS]:  # the first: kernels are compiled
        for one in rates:
            progress.show(f"S_{one['what']}, {one['threads']} threads, round {len(one['per_s']) + 1}")
            torch.set_num_threads(one["threads"])
            done, begin = 0, time.perf_counter()
            while done == 0 or time.perf_counter() - begin < share:
                calls[one["what"]]()
                done += one["amount"]
            if setting.plan.device.startswith("cuda"):
                torch.cuda.synchronize()
            one["per_s"] += [one["processes"] * done / (time.perf_counter() - begin)] if share else []
    progress.clear()
    best = {f"s_{what}": max(statistics.median(x["per_s"]) for x in rates if x["what"] == what) for what in UNITS}
    return {**best, "epochs": setting.hyper.epochs, "device": setting.plan.device, "rates": rates}


def eta(sps: float, epochs: float, limits: Mapping[str, Any]) -> float:
    """Of a run with `sps` env steps a second, each trained on `epochs` times; limits: of `measure`."""
    return float(sps * (epochs / limits["s_train"] + 1 / limits["s_infer"] + 1 / limits["s_env"]))


def table(limits: Mapping[str, Any]) -> str:
    """A line for each number of processes and threads: the median and the range over the rounds."""
    lines = []
    for one in limits["rates"]:
        rates, median = one["per_s"], statistics.median(one["per_s"])
        best = "   best" if median == limits[f"s_{one['what']}"] else ""
        lines.append(
            f"S_{one['what']:<6}{one['processes']:>3} processes x {one['threads']:>2} threads{one['amount']:>6} rows"
            f"{median:>13,.0f} {UNITS[one['what']]:<12}{min(rates):>11,.0f} to {max(rates):<11,.0f}{best}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of realm start, repeatable")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of processes and threads")
    parser.add_argument("--sps", type=float, nargs="+", default=[], help="env steps/s of runs: print their eta")
    parser.add_argument("--out", type=Path, default=None, help="where to write the figures, as JSON")
    args = parser.parse_args()
    if args.seconds <= 0:
        raise ConfigError(f"--seconds {args.seconds:g}: must be above 0")
    if args.out:
        common.check_out(args.out)
    setting = read_setting(args.config, args.set)
    enter_learner_environment(dataclasses.replace(setting.plan, learner_threads=setting.plan.cores))
    limits = measure(setting, args.seconds)
    print(table(limits))
    for sps in args.sps:
        print(f"eta of {sps:,.0f} env steps/s: {eta(sps, limits['epochs'], limits):.2f}")
    if args.out:
        common.write_json(args.out, {"about": common.about(), "limits": limits})


if __name__ == "__main__":
    common.command_line(main)
