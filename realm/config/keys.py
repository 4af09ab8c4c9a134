"""Every key of the table `[app]`: its type, bounds, default and meaning. KaiwuDRL's names where it has them."""

from __future__ import annotations

import ipaddress
import keyword
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _matches(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(what)
        return text

    return AfterValidator(check)


def _algo(text: str) -> str:
    parts = text.split(".")
    names = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", one) and not keyword.iskeyword(one) for one in parts)
    if not names or len(text) > 80:
        raise ValueError('the dotted name of a Python package, like "diy"')
    if parts[-1] in ("app", "env", "eval_env"):
        raise ValueError("a package of another name, since [app], [env] and [eval_env] are tables already")
    return text


def _folder(text: str) -> str:
    root = text != "" and not text.strip("/")
    if root or ".." in text.split("/") or text.startswith("~") or "\\" in text or not text.isprintable():
        raise ValueError('a folder without "..", "~" or backslashes, and not /')
    return text


def _loopback(text: str) -> str:
    try:
        fine = ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise ValueError('a loopback address like "127.0.0.1", since there is no encryption or authentication yet')
    return text


def _share(value: float) -> float:
    if value != 0 and not 0.01 <= value <= 1:  # a process that only waits takes a thousandth
        raise ValueError("a number from 0.01 to 1, or 0")
    return value


def _bare_selector(value: Any) -> Any:
    return value.removeprefix("reverb.selectors.") if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}"
Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Limit = Annotated[int, Field(ge=0, le=10**15)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Seconds = Annotated[float, Field(ge=0.01, le=86_400)]
Device = Annotated[str, _matches(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", '"auto", "cpu", "mps", "cuda" or "cuda:N"')]
Name = Annotated[str, _matches(NAME, "letters, digits, dots, dashes and underscores, at most 80, no dot in front")]
NameOrEmpty = Annotated[str, _matches(f"({NAME})?", "letters, digits, dots, dashes and underscores, or empty")]
Folder = Annotated[str, AfterValidator(_folder)]
ModelId = Annotated[int, Field(ge=0)] | Literal["latest"]
Selector = Annotated[
    Literal["Uniform", "Fifo", "Lifo", "Prioritized", "MinHeap", "MaxHeap"], BeforeValidator(_bare_selector)
]


class AppConfig(BaseModel):
    """Table `[app]`: one attribute a key, KaiwuDRL's name where it has one; `sample` means a chunk by default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    algo: Annotated[str, AfterValidator(_algo)] = "diy"
    """The user's package; the last part of its name is also the table with its hyper-parameters."""
    app: Name = "back_to_the_realm"
    """Name of the game, for logs and file names."""
    run_name: NameOrEmpty = ""
    """Folder of the run below `log_dir`; empty makes a time-stamped name, an existing one is resumed."""
    run_mode: Literal["train", "eval"] = "train"
    """Train, or only play with the model that `eval_model_dir` and `eval_model_id` name."""
    wrapper_type: Literal["remote", "local"] = "remote"
    """All roles as processes, or everything in one process without sockets."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of everything random; a worker's own seed derives from it and its number."""
    device: Device = "auto"
    """Where the learner and the actor put the model."""

    aisrv_count: Threads | Auto = "auto"
    """Worker processes (N)."""
    aisrv_connect_to_kaiwu_env_count: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Environments of one worker (E)."""
    predict_local_or_remote: Literal["remote", "local"] | Auto = "auto"
    """Predict at the shared actor, or in the worker with its own copy of the weights."""
    predict_batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 1024
    """The most rows that the actor puts into one forward pass; a larger request is a batch of its own."""
    torch_num_threads: Threads | Auto = "auto"
    """Torch threads of the learner."""
    flow: Literal["alternating", "overlapping"] | Auto = "auto"
    """Workers wait while the learner trains (one core, no lag), or both run at once: what other `auto` keys aim for."""

    buffer_backend: Literal["reverb", "native"] | Auto = "auto"
    """Reverb, or the project's own NumPy buffer; auto takes reverb where it is installed."""
    replay_buffer_capacity: Count | Auto = "auto"
    """Samples that the buffer holds."""
    preload_ratio: Annotated[float, Field(ge=1)] = 2.0
    """Training starts when the buffer has received capacity / preload_ratio samples."""
    train_batch_size: Count | Auto = "auto"
    """Samples of one update; auto takes one round of all workers, N x E."""
    production_consume_ratio: Annotated[float, Field(gt=0)] = 1.0
    """How often a sample is used on average: an update is due after train_batch_size / this many new samples."""
    algorithm_on_policy_or_off_policy: Literal["on-policy", "off-policy"] = "on-policy"
    """On-policy: each sample is trained on once and leaves the buffer. Off-policy: it stays until it is removed."""
    reverb_sampler: Selector | Auto = "auto"
    """Which sample is drawn next; auto is Fifo on-policy and Uniform off-policy."""
    reverb_remover: Selector = "Fifo"
    """Which sample leaves a full buffer."""
    priority_exponent: Annotated[float, Field(ge=0, le=100)] = 0.6
    """Power of the priority in a Prioritized selector; 0 is uniform."""
    max_version_lag: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["part", "free"] | Auto = "auto"
    """How many updates old the weights that act may be: 0 is strict on-policy, part lets them lack that part of the
    newest update beside which they play, free has no limit."""
    max_unacked_rounds: Annotated[int, Field(ge=1, le=1024)] = 1
    """Rounds that a worker may have under way to the buffer; then it waits."""

    dump_model_freq: Count = 100
    """Updates between two checkpoints."""
    modelpool_max_save_model_count: Annotated[int, Field(ge=1, le=10_000)] = 5
    """The model pool and the folder of checkpoints keep the last so many."""
    user_save_mode_max_count: Limit = 0
    """The most models that the user's code may save; 0 is no limit."""
    preload_model: bool = False
    """Begin with the model that the next two keys name."""
    preload_model_dir: Folder = ""
    """Folder of checkpoints to begin with."""
    preload_model_id: ModelId = "latest"
    """The checkpoint's number of updates, or latest."""
    eval_model_dir: Folder = ""
    """Folder of checkpoints to evaluate; empty takes those of the run `run_name`."""
    eval_model_id: ModelId = "latest"
    """The checkpoint's number of updates, or latest."""
    eval_episodes: Count = 100
    """Episodes of one evaluation."""
    eval_cpu_share: Annotated[float, AfterValidator(_share)] = 0.05
    """Share of the run's CPU time in which the evaluator plays the newest models with their best actions and keeps the
    best of them in best_ckpt/; 0 starts none. With wrapper_type "local" there is none: a run in one process would stop
    training meanwhile; use `realm eval`."""

    log_dir: Annotated[Folder, _matches(".+", "the name of a folder")] = "train"
    """Folder that holds the folders of runs."""
    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = "INFO"
    """Least important level that is logged."""
    max_env_steps: Limit = 0
    """The run ends after so many environment steps; 0 is no limit."""
    max_seconds: Annotated[float, Field(ge=0, le=1_000_000_000)] = 0.0
    """The run ends after so many seconds; 0 is no limit."""
    restart_budget: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often one role is started again within restart_window_s before the whole run stops."""
    restart_window_s: Seconds = 300.0
    """Restarts longer ago than this are forgotten."""
    report_interval_s: Seconds = 0.5
    """Seconds between two reports of a role to the supervisor."""
    start_timeout_s: Seconds = 120.0
    """The run stops if a role is not ready after this time."""
    stop_timeout_s: Seconds = 10.0
    """A role that has not ended this long after it was told to is killed."""
    bind_host: Annotated[str, AfterValidator(_loopback)] = "127.0.0.1"
    """Address on which the roles listen."""
    base_port: Annotated[int, Field(ge=1024, le=65_000)] | Literal[0] = 0
    """First of the run's ports; 0 takes free ones."""

    @model_validator(mode="after")
    def _together(self) -> AppConfig:
        if self.preload_model and not self.preload_model_dir:
            raise ValueError("preload_model = true needs a folder of checkpoints in preload_model_dir")
        if self.run_mode == "eval" and not (self.eval_model_dir or self.run_name):
            raise ValueError("run_mode = 'eval' needs a folder of checkpoints in eval_model_dir, or a run_name")
        return self

    @property
    def hyper_table(self) -> str:
        """Name of the table with the user's hyper-parameters."""
        return self.algo.rpartition(".")[2]


def replaced(app: AppConfig, **values: Any) -> AppConfig:
    """A copy with other values, which are not checked again."""
    return app.model_copy(update=values)


IGNORED = {
    "learner_train_by_while_true": "the buffer decides when an update is due",
    "learner_train_sleep_seconds": "the buffer decides when an update is due",
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
}
"""Keys that KaiwuDRL knows and that have no effect here, with the reason: they load, and are named in one warning."""
