"""Every key of the table `[app]`: type, bounds, default and meaning. Names are KaiwuDRL's where it has them."""

from __future__ import annotations

import ipaddress
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from realm.contract import curve_name

LONGEST_NAME = 80
_NAME = rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}"
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"

Auto = Literal["auto"]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Limit = Annotated[int, Meta(ge=0, le=10**15)]
Threads = Annotated[int, Meta(ge=1, le=1024)]
Seconds = Annotated[float, Meta(ge=0.01, le=86_400)]
ModelId = Annotated[int, Meta(ge=0)] | Literal["latest"]
Selector = Literal["Uniform", "Fifo", "Lifo", "Prioritized", "MinHeap", "MaxHeap"]
# A `description` completes the sentence "must be ..."; without one the bounds do.
_PACKAGE = 'the dotted name of a Python package, like "diy"; its last part must not be app, env, eval_env or sweep'
_LETTERS = f"letters, digits, dots, dashes and underscores, at most {LONGEST_NAME}, no dot or dash in front"
_ADDRESS = 'an IPv4 address of this machine, like "127.0.0.1"'
_DEVICE = '"auto", "cpu", "mps", "cuda" or "cuda:N"'
Package = Annotated[str, Meta(pattern=rf"\A{_WORD}(\.{_WORD})*\Z", max_length=80, description=_PACKAGE)]
Device = Annotated[str, Meta(pattern=r"\A(auto|cpu|mps|cuda(:[0-9]{1,3})?)\Z", description=_DEVICE)]
Name = Annotated[str, Meta(pattern=rf"\A{_NAME}\Z", description=_LETTERS)]
NameOrEmpty = Annotated[str, Meta(pattern=rf"\A({_NAME})?\Z", description=f"{_LETTERS}, or empty")]
Folder = Annotated[str, Meta(description='the name of a folder, without "..", "~" in front or backslashes, and not /')]
Address = Annotated[str, Meta(description=_ADDRESS)]
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0.01 to 1, or 0")]
Port = Annotated[int, Meta(ge=0, le=65_000, description="a whole number at least 1024 and at most 65000, or 0")]


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """Table `[app]`: one attribute per key, with KaiwuDRL's name where it has one. A sample is a chunk by default."""

    algo: Package = "diy"
    """The user's package; the last part of its name also names the table with its hyper-parameters."""
    app: Name = "back_to_the_realm"
    """The game whose commands and report of `realm eval` are used: back_to_the_realm, or the name of its package."""
    run_name: NameOrEmpty = ""
    """Folder of the run below `log_dir`. Empty makes a time-stamped name; an existing folder is resumed, unless
    the command has --fresh, which adds a number to the name."""
    run_mode: Literal["train", "eval"] = "train"
    """Train, or only evaluate the model that `eval_model_dir` and `eval_model_id` name."""
    wrapper_type: Literal["remote", "local"] = "remote"
    """All roles as processes, or everything in one process without sockets."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Seed of everything random; each worker derives its own seed from it and from its number."""
    device: Device = "auto"
    """Device of the learner's and the actor's model."""
    learner_count: Annotated[int, Meta(ge=1, le=64)] = 1
    """Learners that train as one (PPO in a cluster), on a GPU each: a batch is shared out among them."""

    aisrv_count: Threads | Auto = "auto"
    """Worker processes (N)."""
    aisrv_connect_to_kaiwu_env_count: Annotated[int, Meta(ge=1, le=65_536)] | Auto = "auto"
    """Environments of one worker (E)."""
    predict_local_or_remote: Literal["remote", "local"] | Auto = "auto"
    """Predict at the shared actor (remote), or in each worker with its own copy of the weights (local)."""
    predict_batch_size: Annotated[int, Meta(ge=1, le=1_048_576)] = 1024
    """The most rows that the actor puts into one forward pass; a larger request gets its own pass."""
    torch_num_threads: Threads | Auto = "auto"
    """Torch threads of the learner."""
    flow: Literal["alternating", "overlapping"] | Auto = "auto"
    """What the other `auto` keys aim at: workers that wait while the learner trains (no lag), or both at once."""

    buffer_backend: Literal["reverb", "native"] | Auto = "auto"
    """Reverb, or the project's NumPy buffer; auto takes reverb on-policy where it is installed and shut in safely."""
    replay_buffer_capacity: Count | Auto = "auto"
    """Samples that the buffer holds; auto for rows of a replay memory: a million, or what fits into half the memory."""
    preload_ratio: Annotated[float, Meta(ge=1)] = 2.0
    """Training starts when the buffer has received capacity / preload_ratio samples, unless warm_up_steps says when."""
    train_batch_size: Count | Auto = "auto"
    """Samples of one update; auto takes one round of all workers, N x E, or of a replay memory one minibatch."""
    warm_up_steps: Limit | Auto = "auto"
    """Off-policy: env steps before the first update, or more until there is a row of n steps. 0: preload_ratio decides;
    auto: what the package prefers, else 0, or 1000 for rows of a replay memory, at most half of max_env_steps."""
    production_consume_ratio: Annotated[float, Meta(gt=0)] = 1.0
    """How often a sample is used on average: an update is due after train_batch_size / this many new samples."""
    learner_train_by_while_true: bool = False
    """Off-policy: the learner trains again and again, and neither it nor the workers wait for a ratio."""
    learner_train_sleep_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Seconds that a cluster's learner rests between two updates with learner_train_by_while_true."""
    algorithm_on_policy_or_off_policy: Literal["on-policy", "off-policy"] = "on-policy"
    """On-policy: each sample is trained on once and leaves the buffer. Off-policy: it stays until it is removed."""
    reverb_sampler: Selector | Auto = "auto"
    """Selects the next sample to draw; auto is Fifo on-policy and Uniform off-policy."""
    reverb_remover: Selector = "Fifo"
    """Selects the sample that leaves a full buffer."""
    max_version_lag: Annotated[int, Meta(ge=0, le=1_000_000)] | Literal["part", "free"] | Auto = "auto"
    """How many updates old the acting weights may be. 0 is strict on-policy; part publishes weights in the middle of an
    update, and workers play with them while the update finishes; free is no limit."""

    dump_model_freq: Limit | Auto = "auto"
    """Updates between two checkpoints; 0: one a minute. auto is 100 on-policy and 0 off-policy."""
    save_replay: bool = False
    """Keep the replay memory in files of the run, so that a resumed run goes on with it; for rows (`Spec.draw`)."""
    publish_every: Count = 1
    """Updates between two models that go out to those who predict; above 1 only with max_version_lag "free"."""
    modelpool_max_save_model_count: Annotated[int, Meta(ge=1, le=10_000)] = 5
    """Models that the folder of checkpoints keeps: the newest ones."""
    user_save_mode_max_count: Limit = 0
    """Models that `user_ckpt/` keeps of those that the user asked for: the newest ones; 0 keeps all."""
    preload_model: bool = False
    """Start from the model that the next two keys name."""
    preload_model_dir: Folder = ""
    """Folder of checkpoints to start from."""
    preload_model_id: ModelId = "latest"
    """The checkpoint's number of updates, or latest."""
    eval_model_dir: Folder = ""
    """Folder of checkpoints to evaluate; empty takes those of the run `run_name`."""
    eval_model_id: ModelId = "latest"
    """The checkpoint's number of updates, or latest."""
    eval_episodes: Count = 100
    """Episodes of one evaluation; the first ones of a run play fewer."""
    eval_cpu_share: Share = 0.05
    """Share of the run's CPU time for the evaluator, which plays the newest models with greedy actions and keeps the
    best one in best_ckpt/; 0 starts none, unless the next key does. With wrapper_type "local" there is none, because
    training would stop meanwhile: use `realm eval`, or the next key."""
    eval_every_steps: Limit = 0
    """Evaluate the untrained policy, and then a model each time this number of env steps has been played, in any mode
    and whatever CPU time that takes, and the last model at max_env_steps; 0: as often as eval_cpu_share allows."""
    eval_actions: Literal["greedy", "sampled", "both"] = "greedy"
    """Actions of an evaluation; with both, models are compared by the greedy ones."""

    log_dir: Annotated[Folder, Meta(min_length=1)] = "train"
    """Folder that holds the folders of runs."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is logged."""
    max_env_steps: Limit = 0
    """The run ends after this many environment steps, those before a resume with them; 0 is no limit."""
    max_seconds: Annotated[float, Meta(ge=0, le=1_000_000_000)] = 0.0
    """The run ends after this many seconds of training; 0 is no limit. They count from when everything is ready for the
    first env step, from 0 in each session of a run."""
    restart_budget: Annotated[int, Meta(ge=0, le=1000)] = 3
    """How often a role is started again within five minutes before the whole run stops."""
    log_info: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    """Keys of the environments' `info`, whose value in the last step of an episode becomes the curve episode/<key>."""
    report_interval_s: Seconds = 0.5
    """Seconds between two reports of a role to the supervisor."""
    start_timeout_s: Seconds = 120.0
    """The run stops if a role is not ready after this time."""
    stop_timeout_s: Seconds = 10.0
    """A role that still runs this long after it was asked to stop is killed; the learner may end its update first."""
    bind_host: Address = "127.0.0.1"
    """Address on which the roles listen. Other machines reach it unless it is loopback; then keys_dir must be set."""
    keys_dir: Folder = ""
    """Folder of keys made by `realm keys new`: every connection is encrypted, and only allowed keys may connect. Empty:
    no keys; the run's id is the password."""
    base_port: Port = 0
    """First of the run's ports; 0 takes any free ports."""
    hosts: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Other machines that run workers of this run, by Ray or --by-hand. They need keys_dir and bind_host."""

    def __post_init__(self) -> None:
        if self.preload_model and not self.preload_model_dir:
            raise ValueError("preload_model = true needs a folder of checkpoints in preload_model_dir")
        if self.run_mode == "eval" and not (self.eval_model_dir or self.run_name):
            raise ValueError("run_mode = 'eval' needs a folder of checkpoints in eval_model_dir, or a run_name")
        if self.learner_count > 1 and self.wrapper_type == "local":
            raise ValueError(f"learner_count is {self.learner_count}, but one process has one learner; it must be 1")
        if self.learner_count > 1 and self.algorithm_on_policy_or_off_policy == "off-policy":
            raise ValueError(f"learner_count is {self.learner_count}, but off-policy training has one; it must be 1")
        if taken := [name for name in self.log_info if name in ("return", "length") or curve_name(name) != name]:
            raise ValueError(f"log_info has {taken[0]!r}, which each episode has; let `info` say it by another name")
        loopback = ipaddress.IPv4Address(self.bind_host).is_loopback
        if not (self.keys_dir or loopback):
            raise ValueError(
                "without keys_dir, bind_host must be a loopback address, since other machines may reach "
                f"{self.bind_host}: call `.venv/bin/python -m realm keys new` and set keys_dir = keys"
            )
        if self.hosts and (loopback or not self.keys_dir or self.wrapper_type == "local"):
            raise ValueError(
                f'hosts = {self.hosts}: other machines join, so this wants keys_dir, wrapper_type = "remote", and a '
                "bind_host that they reach"
            )

    def limit_reached(self, env_steps: int, training_s: float) -> str:
        """Which limit has ended the run, in words; "" if none has. training_s: as `max_seconds` counts."""
        if self.max_env_steps and env_steps >= self.max_env_steps:
            return f"max_env_steps = {self.max_env_steps} reached"
        if self.max_seconds and training_s >= self.max_seconds:
            return f"max_seconds = {self.max_seconds:g} reached"
        return ""

    @property
    def hyper_table(self) -> str:
        """Name of the table with the user's hyper-parameters."""
        return self.algo.rpartition(".")[2]


def _is_package(name: str) -> bool:
    *_, last = words = name.split(".")
    return last not in ("app", "env", "eval_env", "sweep") and not any(keyword.iskeyword(word) for word in words)


def _is_folder(name: str) -> bool:
    is_root = name != "" and not name.strip("/")
    return name.isprintable() and not (is_root or ".." in name.split("/") or name.startswith("~") or "\\" in name)


def _is_address(text: str) -> bool:
    """Whether it is an address that a peer can connect to: not 0.0.0.0, which stands for all of a machine's."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast or address.is_reserved)


CHECKS: dict[str, Callable[[Any], bool]] = {
    "algo": _is_package,
    "preload_model_dir": _is_folder,
    "eval_model_dir": _is_folder,
    "eval_cpu_share": lambda share: share == 0 or share >= 0.01,  # an idle process already takes 0.001
    "log_dir": _is_folder,
    "bind_host": _is_address,
    "base_port": lambda port: port == 0 or port >= 1024,
}
"""Further checks of a value, for keys whose type and bounds do not say everything."""


SPELLINGS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("reverb_sampler", "reverb_remover"), lambda name: name.removeprefix("reverb.selectors.")),
    "level": str.upper,
}
"""Converts the file's spelling to AppConfig's, for keys with more than one."""


IGNORED = {
    "max_unacked_rounds": "a worker plays on while one round is on its way, which is enough",
    "send_sample_size": "a worker sends one chunk of each environment",
    "sample_dim": "it is derived from the spec",
    "model_file_sync_per_minutes": "weights travel after every update",
    "model_file_load_per_minutes": "weights travel after every update",
    "restore_dir": "checkpoints are in <log_dir>/<run>/ckpt",
    "user_ckpt_dir": "the user's models are in <log_dir>/<run>/user_ckpt",
    "actor_addrs": "addresses are chosen at start",
    "learner_addrs": "addresses are chosen at start",
    "copy_dir": "nothing is copied",
    "set_name": "there is one set of processes",
    "self_play": "the game has one player",
    "priority_exponent": "a Prioritized selector takes the power 0.6 of a priority",
    "restart_window_s": "restarts longer ago than five minutes are forgotten",
}
"""Keys that have no effect here, most of them KaiwuDRL's, with the reason. They load, and one warning names them."""
