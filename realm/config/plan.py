"""The numbers of a run: decides every `auto` of the configuration, and says why.

Before a run starts, `decide` fills in every `auto` from the machine and from the preferences of the user's package. The
run's config.toml holds the result, so every role derives the same `Plan` from it (`make_plan`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

from realm import netns
from realm.config.flow import check_flow, check_warm_up
from realm.config.keys import AppConfig
from realm.errors import ConfigError

Preferences = Callable[[int, str, int], Mapping[str, Any]]
"""(cores, device, workers) to values of `auto` keys, and `why`: `preferred` of the user's `config.py`, if any."""

_ENVS_IN_ALL = 64
_MOST_WORKERS = 16
_FEW_ENVS = 32  # in all; with fewer, a forward pass costs more than its rows
_REPLAY_STEPS = 1_000_000  # the replay memory of the papers on TD3, SAC and DQN
_REPLAY_SHARE = 0.5  # of the memory, at most
_FIRST_STEPS = 1000  # env steps before the first draw from a replay memory
_ACTOR_ENVS = 64  # environments in a question: below that the way to the actor takes more than a tenth of all CPU time
_ACTOR_ON_CPU = f"without a GPU an actor costs least for one worker with {_ACTOR_ENVS} environments or more"


@dataclass(frozen=True)
class Plan:
    """The processes of a run and the flow of samples between them: a decided AppConfig in the code's words.

    workers, envs_per_worker      N and E
    evaluator                     whether the run has one
    predict_local                 predict in the worker instead of at the actor
    backend                       reverb or native
    on_policy                     every sample is trained on once
    sampler, remover              names of reverb's selectors, without their prefix
    capacity, preload, batch      samples: size of the buffer, needed before the first update, taken by an update
    warm_up_steps                 env steps before the first update; 0: preload decides
    ratio                         draws per sample that arrived
    free_running, rest_s          no ratio holds anybody back; seconds that the learner rests between two updates
    max_version_lag               updates; None: no bound
    publish_early                 weights go out in the middle of an update, while workers collect the next round
    cores                         cores that the run may use
    learner_threads               torch threads of the learner
    device                        of the learner's and the actor's models
    learners                      processes that train as one, each on its part of a batch
    """

    workers: int
    envs_per_worker: int
    evaluator: bool
    predict_local: bool
    backend: str
    on_policy: bool
    sampler: str
    remover: str
    capacity: int
    preload: int
    warm_up_steps: int
    batch: int
    ratio: float
    max_version_lag: int | None
    publish_early: bool
    cores: int
    learner_threads: int
    device: str
    learners: int = 1
    free_running: bool = False
    rest_s: float = 0.0

    @property
    def round_size(self) -> int:
        """Samples of one round of all workers: N * E."""
        return self.workers * self.envs_per_worker


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that decisions depend on.

    own_network   a process may have a network namespace of its own; asked only where there is reverb, which needs it
    host_cores    of each host, which runs workers of this run
    """

    cores: int
    gpus: int
    has_reverb: bool
    own_network: bool = True
    host_cores: tuple[int, ...] = ()


def usable_cores() -> int:
    """Cores that this process may use."""
    # sched_getaffinity respects taskset and cpusets, but only Linux has it
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def gpus() -> int:
    """GPUs that the system shows and CUDA_VISIBLE_DEVICES leaves; torch may be unable to use them."""
    there = len(list(Path("/dev").glob("nvidia[0-9]*"))) or int(Path("/dev/dxg").exists())  # dxg: Windows' WSL
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    names = [name.strip() for name in chosen.split(",")]
    return min(there, len(list(itertools.takewhile(lambda name: name not in ("", "-1"), names))))


def this_machine(host_cores: tuple[int, ...] = ()) -> Machine:
    """Look at this machine without importing torch or reverb."""
    from importlib import metadata  # late: roles import this module and do not need it

    try:
        usable = 0 if metadata.version("torch").endswith("+cpu") else gpus()  # that build cannot use them
    except metadata.PackageNotFoundError as error:
        raise ConfigError("torch is not installed in this Python; README.md says how to install it") from error
    has_reverb = all(find_spec(name) for name in ("reverb", "tensorflow"))
    return Machine(usable_cores(), usable, has_reverb, has_reverb and netns.possible(), host_cores)


# --- decisions

Choice = tuple[Any, str]
"""The value of an `auto` key, and the reason for it."""


@dataclass(frozen=True)
class Decided:
    """A configuration without `auto`.

    why           key -> the reason for its value, for each key that was `auto`
    own_network   the buffer's storage is in a network namespace of its own: no other process reaches reverb's port
    dealt         workers of this machine and of each host
    """

    app: AppConfig
    why: dict[str, str]
    own_network: bool
    dealt: tuple[int, ...]


def decide(app: AppConfig, machine: Machine, preferences: Preferences | None = None) -> Decided:
    """Replace every `auto`. Raises ConfigError for a setting that this machine cannot run."""
    _check_machine(app, machine)
    if app.wrapper_type == "local":  # one process: one worker that predicts locally, and the native buffer
        app = dataclasses.replace(app, predict_local_or_remote="local", aisrv_count=1, buffer_backend="native")
    capacity = app.replay_buffer_capacity
    why: dict[str, str] = {}
    preferred: Mapping[str, Any] = {}
    for key, rule in _RULES.items():
        if key == "aisrv_connect_to_kaiwu_env_count" and preferences is not None:
            preferred = preferences(machine.cores, app.device, int(app.aisrv_count))
        if getattr(app, key) == "auto":
            value, why[key] = rule(app, machine, preferred)
            app = dataclasses.replace(app, **cast(Any, {key: value}))
    if capacity == "auto" and app.max_version_lag != "free":
        # workers that wait for a newer version must first have collected enough for an update
        ratio = max(app.preload_ratio, int(app.replay_buffer_capacity) / int(app.train_batch_size))
        app = dataclasses.replace(app, preload_ratio=ratio)
    return Decided(app, why, app.buffer_backend == "reverb" and machine.own_network, _deal(app, machine))


def with_replay(decided: Decided, step_bytes: int, usable: int, rows: int) -> Decided:
    """Decide what depends on the size of a step, for rows (`Spec.draw`): the memory's size, a warm-up to go with it,
    and how many are drawn, where the configuration leaves them open. usable: bytes of memory; rows: of a gradient
    step."""
    app, why = decided.app, dict(decided.why)
    if "replay_buffer_capacity" in why:
        steps = min(_REPLAY_STEPS, int(_REPLAY_SHARE * usable / step_bytes))
        app = dataclasses.replace(app, replay_buffer_capacity=max(int(app.replay_buffer_capacity), steps))
        why["replay_buffer_capacity"] = f"{steps:,} steps of {step_bytes:,} bytes"
    rows = min(rows, int(app.replay_buffer_capacity))
    if "train_batch_size" in why and rows > 1:
        app = dataclasses.replace(app, train_batch_size=rows)
        why["train_batch_size"] = "rows of one gradient step"
    if "warm_up_steps" in why and app.warm_up_steps == 0:
        most = min(int(app.replay_buffer_capacity), app.max_env_steps or _FIRST_STEPS * 2) // 2
        app = dataclasses.replace(app, warm_up_steps=min(_FIRST_STEPS, most))
        why["warm_up_steps"] = "some steps to draw from"
    return dataclasses.replace(decided, app=app, why=why)


def _check_machine(app: AppConfig, machine: Machine) -> None:
    if app.device.startswith("cuda") and not machine.gpus:
        raise ConfigError(
            f"device is {app.device}, but there is no GPU (/dev/nvidia0), CUDA_VISIBLE_DEVICES hides it, or this build "
            "of torch is for the CPU only; it must be auto or cpu"
        )
    if app.device.startswith("cuda:") and int(app.device[5:]) >= machine.gpus:
        raise ConfigError(
            f"device is {app.device}, but the GPUs here end with cuda:{machine.gpus - 1}; it must be auto or one"
        )
    several = app.learner_count > 1 and app.device != "cpu"
    if several and (app.learner_count > machine.gpus or app.device not in ("auto", "cuda")):
        raise ConfigError(
            f"learner_count is {app.learner_count}, device {app.device}, and there are {machine.gpus} GPUs, one for a "
            "learner; it must be at most that with device auto, or device cpu for tests"
        )
    if app.device == "mps" and sys.platform != "darwin":
        raise ConfigError("device is mps, which only macOS has; it must be auto, cpu or cuda")
    if app.buffer_backend == "reverb" and app.wrapper_type == "remote" and not machine.has_reverb:
        raise ConfigError("buffer_backend is reverb, which is not installed in this Python; it must be auto or native")


def _device(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    return ("cuda", "there is a GPU") if machine.gpus else ("cpu", "there is no GPU")


def _predict(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if app.device != "cpu":
        return "remote", "one forward pass on the GPU for all workers"
    if app.flow == "alternating":
        return "local", "without a GPU each core predicts for its own worker while the learner waits"
    if _is_off_policy(app):
        return "local", "without a GPU a few rows cost less than the way to an actor"
    if _costly_actor(_deal(app, machine)[0], int(app.aisrv_connect_to_kaiwu_env_count)):
        return "local", _ACTOR_ON_CPU
    return "remote", "the worker asks about so many environments at once that the way to the actor costs little"


def _flow(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if app.max_version_lag == 0:
        return "alternating", "max_version_lag is 0"
    if machine.cores == 1 and machine.gpus == 0:
        return "alternating", "there is one core"
    return "overlapping", f"there are {machine.cores} cores, {machine.gpus} GPUs"


def _deal(app: AppConfig, machine: Machine) -> tuple[int, ...]:
    """Workers of this machine and of each host: their shares of `aisrv_count` are as `auto` would have them."""
    shares = [_workers_here(app, machine)[0], *machine.host_cores]
    ends = [round(int(app.aisrv_count) * end / sum(shares)) for end in itertools.accumulate(shares, initial=0)]
    return tuple(end - start for start, end in itertools.pairwise(ends))


def _workers(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    (here, why), there = _workers_here(app, machine), sum(machine.host_cores)
    return min(here + there, 1024), f"{here} here ({why}), and one for each core of a host" if there else why


def _workers_here(app: AppConfig, machine: Machine) -> tuple[int, str]:
    alone = app.predict_local_or_remote == "local" or (app.predict_local_or_remote, app.device) == ("auto", "cpu")
    if app.flow == "alternating" and alone:
        return min(machine.cores, _MOST_WORKERS), "one core each while they play"
    if app.flow == "alternating":
        return 2, "one steps its environments while the actor answers the other"
    if app.device == "cpu":
        return min(max(1, machine.cores // 4), _MOST_WORKERS), "without a GPU training takes most of the time"
    return min(max(1, machine.cores - 2), _MOST_WORKERS), "one core each"


def _envs(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    key = "aisrv_connect_to_kaiwu_env_count"
    if key in preferred:
        return preferred[key], f"{app.algo} prefers it{preferred.get('why', '')}"
    if _is_off_policy(app):
        return 1, "an env step costs less than the training that it is worth"
    return max(8, _ENVS_IN_ALL // int(app.aisrv_count)), f"about {_ENVS_IN_ALL} environments in all"


def _batch(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    return _round_size(app), "one round of all workers"


def _lag(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if _is_off_policy(app):
        return "free", "a replay memory holds samples of any age"
    if int(app.train_batch_size) % _round_size(app):
        return "free", "a bound needs whole rounds"
    strict = app.train_batch_size == _round_size(app)
    if strict and app.flow == "alternating":
        return 0, "every batch is of one version"
    if strict and app.wrapper_type == "remote" and preferred.get("max_version_lag") == "part":
        return "part", "workers collect the next round while the learner finishes this update"
    return 1, "a round may be one update old"


def _warm_up(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if _is_off_policy(app) and "warm_up_steps" in preferred:
        return preferred["warm_up_steps"], f"{app.algo} prefers it"
    return 0, "preload_ratio decides"


def _sampler(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    policy = app.algorithm_on_policy_or_off_policy
    return ("Fifo" if policy == "on-policy" else "Uniform"), policy


def _capacity(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    batch, round_size = int(app.train_batch_size), _round_size(app)
    if app.algorithm_on_policy_or_off_policy == "on-policy":
        return max(2 * batch, batch + 2 * round_size), "room for what is under way"
    return 32 * max(batch, round_size), "32 batches"


def _backend(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if _is_off_policy(app):
        return "native", "a large memory is quicker and smaller in NumPy, and only there rows are cut out of chunks"
    if not machine.has_reverb:
        return "native", "reverb is not installed"
    if not machine.own_network:
        return "native", "this system allows no network namespace, so other machines could reach reverb's port"
    return "reverb", "it is installed"


def _threads(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if _is_off_policy(app) and app.device == "cpu":
        # measured, 2 cores: two threads make 0.7 times the gradient steps of one with TD3, and 0.5 times with DQN
        return 1, "more of them make a gradient step of a few hundred rows slower"
    if app.wrapper_type == "local" or (app.flow == "alternating" and app.max_version_lag == 0):
        # with any other lag workers play during an update, even if flow is "alternating"
        return machine.cores, "all others wait while it trains"
    # at least two, one for the policy and one for the critic: on two cores a worker still fits in next to them
    # an actor with a single worker computes while that waits
    here = _deal(app, machine)[0]
    left = machine.cores - here - (app.predict_local_or_remote == "remote" and here != 1)
    return max(min(2, machine.cores), left), "the cores that workers and actor do not use"


def _checkpoints(app: AppConfig, machine: Machine, preferred: Mapping[str, Any]) -> Choice:
    if _is_off_policy(app):
        return 0, "by time: updates are many and short"
    return 100, "updates are long"


def _costly_actor(workers: int, envs: int) -> bool:
    """Whether the way to an actor takes more than a tenth of all CPU time, if its forward runs on the CPU."""
    return workers != 1 or envs < _ACTOR_ENVS


def _is_off_policy(app: AppConfig) -> bool:
    return app.algorithm_on_policy_or_off_policy == "off-policy"


def _round_size(app: AppConfig) -> int:
    return int(app.aisrv_count) * int(app.aisrv_connect_to_kaiwu_env_count)


_RULES: dict[str, Callable[[AppConfig, Machine, Mapping[str, Any]], Choice]] = {
    "device": _device,
    "flow": _flow,
    "aisrv_count": _workers,
    "aisrv_connect_to_kaiwu_env_count": _envs,
    "predict_local_or_remote": _predict,
    "train_batch_size": _batch,
    "max_version_lag": _lag,
    "warm_up_steps": _warm_up,
    "reverb_sampler": _sampler,
    "replay_buffer_capacity": _capacity,
    "buffer_backend": _backend,
    "torch_num_threads": _threads,
    "dump_model_freq": _checkpoints,
}
"""How each `auto` key is decided, in this order: a rule may read the keys above its own."""


# --- the plan


def make_plan(app: AppConfig, cores: int | None = None) -> Plan:
    """The plan of a decided configuration. cores: by default those of this process.

    Raises ConfigError when the numbers cannot work together.
    """
    undecided = [key for key in _RULES if getattr(app, key) == "auto"]
    if undecided:
        raise ConfigError(f'key {undecided[0]!r} is still "auto"; it must be decided first, as in a run\'s config.toml')
    numbers = cast(Any, app)  # no `auto` is left
    lag: int | Literal["part"] | None = None if app.max_version_lag == "free" else numbers.max_version_lag
    if app.publish_every > 1 and lag is not None:
        raise ConfigError(
            f"publish_every is {app.publish_every}, but with max_version_lag {app.max_version_lag} workers wait for "
            "the weights of every update; it must be 1, or max_version_lag free"
        )
    on_policy = app.algorithm_on_policy_or_off_policy == "on-policy"
    if app.learner_train_by_while_true and on_policy:
        raise ConfigError(
            "learner_train_by_while_true is true, but on-policy training uses each sample once; it must be false, or "
            "training off-policy"
        )
    if numbers.train_batch_size % app.learner_count:
        raise ConfigError(
            f"learner_count is {app.learner_count}, but a batch has {numbers.train_batch_size} chunks, which cannot be "
            "shared out evenly; it must divide train_batch_size"
        )
    plan = Plan(
        workers=numbers.aisrv_count,
        envs_per_worker=numbers.aisrv_connect_to_kaiwu_env_count,
        evaluator=app.eval_cpu_share > 0 or app.eval_every_steps > 0,
        predict_local=app.predict_local_or_remote == "local",
        backend=app.buffer_backend,
        on_policy=on_policy,
        sampler=app.reverb_sampler,
        remover=app.reverb_remover,
        capacity=numbers.replay_buffer_capacity,
        preload=preload_samples(numbers.replay_buffer_capacity, app.preload_ratio, numbers.train_batch_size, on_policy),
        warm_up_steps=numbers.warm_up_steps,
        batch=numbers.train_batch_size,
        ratio=app.production_consume_ratio,
        free_running=app.learner_train_by_while_true,
        rest_s=app.learner_train_sleep_seconds if app.learner_train_by_while_true else 0.0,
        max_version_lag=0 if lag == "part" else lag,
        publish_early=lag == "part",
        cores=cores or usable_cores(),
        learner_threads=numbers.torch_num_threads,
        device=app.device,
        learners=app.learner_count,
    )
    check_flow(plan, app.preload_ratio)
    check_warm_up(app.max_env_steps, plan.warm_up_steps)
    return plan


def preload_samples(capacity: int, preload_ratio: float, batch: int, on_policy: bool) -> int:
    """Samples that must arrive before the first update. A replay memory hands out a sample again, so a batch may be
    larger than what is there."""
    return max(batch if on_policy else 1, int(capacity / preload_ratio))


def stale_choice(decided: Decided, plan: Plan) -> str:
    """A sentence, if a setting lets on-policy training use samples of any age without saying so; else ""."""
    app = decided.app
    if not plan.on_policy or app.max_version_lag != "free" or "max_version_lag" not in decided.why:
        return ""
    return (
        f"max_version_lag is free, since train_batch_size {plan.batch} is not a whole number of rounds of all workers "
        f"({plan.round_size} samples each): so samples may be of any age, from which on-policy training may learn "
        f"nothing. Choose train_batch_size = {plan.round_size}, a multiple of it or auto, or set max_version_lag = free"
    )


def slow_choices(app: AppConfig, plan: Plan, here: int | None = None) -> list[str]:
    """A sentence for each of the user's choices that is known to be slow on this machine (docs/performance.md). here:
    its workers, if not all are."""
    here = plan.workers if here is None else here
    remote, gpu = app.wrapper_type == "remote", plan.device != "cpu"
    strict = remote and plan.max_version_lag == 0 and not plan.publish_early
    rules = (
        (
            here > 2 * plan.cores,
            f"aisrv_count is {plan.workers}, but there are {plan.cores} cores for all workers"
            + (f" here, which are {here}" if here != plan.workers else ""),
        ),
        (plan.learners > 1 and not gpu, "learner_count is above 1 without a GPU, where one learner is quicker"),
        (
            plan.learner_threads > plan.cores,
            f"torch_num_threads is {plan.learner_threads}, but there are {plan.cores} cores",
        ),
        (
            remote and plan.on_policy and plan.round_size < _FEW_ENVS,
            f"there are {plan.round_size} environments in all, and a forward pass over so few rows takes nearly as "
            f"long as one over {_FEW_ENVS}",
        ),
        (
            not plan.predict_local and app.predict_batch_size < plan.envs_per_worker,
            f"predict_batch_size is {app.predict_batch_size}, so each worker's request for "
            f"{plan.envs_per_worker} environments needs its own forward pass",
        ),
        (
            remote and plan.predict_local and gpu,
            "predict_local_or_remote is local, so workers predict on the CPU although there is a GPU",
        ),
        (
            not plan.predict_local and not gpu and _costly_actor(here, plan.envs_per_worker),
            f"predict_local_or_remote is remote, but {_ACTOR_ON_CPU}",
        ),
        (
            strict and (plan.cores > 1 or gpu),
            "max_version_lag is 0, so workers and learner wait for each other instead of running at once",
        ),
    )
    return [sentence for holds, sentence in rules if holds]
