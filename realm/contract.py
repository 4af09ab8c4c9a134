"""The data that processes exchange: the one vocabulary that every process shares.

Frozen dataclasses of integers, strings and NumPy arrays; from the project this module imports only `errors`.
Axes: E environments of one worker, N rows of a forward pass, T steps, B chunks of a batch.

A chunk of T = 4 steps, with an episode that ends at step 1:

    row            0        1        2        3        (4)
    obs            o0       o1       o2*      p0       p1       T + 1 rows
    action         a0       a1       (a2)     b0
    reward         r0       r1       0        s0
    terminated     -        True     -        -
    valid          True     True     False    True
    first          True     -        -        True     -        T + 1 rows

1. On every *valid* row, `obs[t+1]` is the true successor of step t, also at an episode's end (o2* is final).
2. A reset takes a row of its own (gymnasium's NEXT_STEP autoreset): row 2 is not valid. Invalid rows count in no
   statistic, and nothing trains on them.
3. So there is one bootstrap rule: V(obs[t+1]) unless `terminated[t]`. `terminated` or `truncated` cuts a trace.
   The learner computes V(obs[T]).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from realm.errors import ContractError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class Version(NamedTuple):
    """Names one set of weights; ordered as a pair. Each start of a learner raises `epoch`; each published update raises
    `update`."""

    epoch: int
    update: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.update}"


NO_VERSION = Version(0, 0)
"""Older than every published model (the first learner starts at epoch 1)."""


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one array, without its leading batch axes."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


Fields = dict[str, Field]


@dataclass(frozen=True)
class ActionSpec:
    """The action space: exactly one of `n` (discrete), `nvec` (multi-discrete) or `low` and `high` (continuous)."""

    n: int = 0
    nvec: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        kinds = (self.n > 0) + bool(self.nvec) + bool(self.low or self.high)
        if kinds != 1 or len(self.low) != len(self.high):
            raise ContractError(
                f"an ActionSpec must have exactly one of n, nvec or (low, high) of equal length, got {self}"
            )

    @property
    def field(self) -> Field:
        if self.n:
            return Field((), "int64")
        if self.nvec:
            return Field((len(self.nvec),), "int64")
        return Field((len(self.low),), "float32")


@dataclass(frozen=True)
class Draw:
    """How a replay memory cuts its chunks into the rows of a batch (`Transitions`). A row begins at one step.

    n_step     steps whose rewards a row sums up; fewer where the episode ends earlier
    gamma      discount of one step; a field `discount` of `Spec.step` takes its place
    look_back  observations before the row's own; at the start of an episode its first one stands in for them
    """

    n_step: int = 1
    gamma: float = 0.99
    look_back: int = 0

    def __post_init__(self) -> None:
        if self.n_step < 1 or self.look_back < 0 or not 0 <= self.gamma <= 1:
            raise ContractError(f"a Draw needs n_step >= 1, look_back >= 0 and 0 <= gamma <= 1, got {self}")


@dataclass(frozen=True)
class Spec:
    """The shapes that user code and framework agree on; `definition.spec` makes it, and every receiver checks it.

    obs     inputs of `predict`, including the legal-action mask if there is one
    action  the action space
    extra   outputs of `predict` next to the action that `learn` needs again (log-probability, value)
    chunk_length  T
    sample  fields of one item of the buffer; empty means a Chunk of T steps
    step    what the workflow adds to each step (parts of the reward, the discount of a step that lasted long)
    state   a policy's memory of one environment: `predict` gets it, zeros where an episode begins, and gives the next
    draw    off-policy: `learn` gets rows of the stored chunks, as Draw says; None: whole items
    """

    obs: Fields
    action: ActionSpec
    extra: Fields
    chunk_length: int
    sample: Fields = field(default_factory=dict)
    step: Fields = field(default_factory=dict)
    state: Fields = field(default_factory=dict)
    draw: Draw | None = None

    def __post_init__(self) -> None:
        if self.chunk_length < 1:
            raise ContractError(f"Spec.chunk_length must be at least 1, got {self.chunk_length}")
        if self.draw is not None and self.sample:
            raise ContractError("Spec.draw cuts chunks into rows, but Spec.sample says that items are no chunks")
        for group in ("obs", "extra", "sample", "step", "state"):
            for name, entry in getattr(self, group).items():
                if not _is_number(entry.dtype) or any(d < 0 for d in entry.shape):
                    raise ContractError(f"Spec.{group}[{name!r}] must be numbers of a fixed shape, got {entry}")
        if self.sample and not set(ORIGIN_FIELDS) <= set(self.sample):
            raise ContractError(f"Spec.sample must contain {sorted(ORIGIN_FIELDS)}, got {sorted(self.sample)}")
        for name, wanted in ORIGIN_FIELDS.items() if self.sample else ():
            entry = self.sample[name]
            shape = entry.shape[-1:] if name == "version" else entry.shape  # an item may hold several rows
            if np.dtype(entry.dtype) != np.int64 or shape != wanted.shape:
                raise ContractError(
                    f"Spec.sample[{name!r}] must be int64 of shape {list(wanted.shape)}, "
                    f"got {entry.dtype}{list(entry.shape)}"
                )

    @property
    def sample_fields(self) -> Fields:
        """Name -> Field of one item of the buffer."""
        return self.sample or chunk_fields(self)

    @property
    def row_bytes(self) -> int:
        """Bytes that a replay memory keeps of a step."""
        return -(-sum(field.nbytes for field in row_fields(self).values()) // self.chunk_length)

    @property
    def sample_dim(self) -> int:
        """Numbers in one item (KaiwuDRL's SAMPLE_DIM): derived, never configured."""
        return sum(entry.size for entry in self.sample_fields.values())

    @property
    def sample_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.sample_fields.values())

    @property
    def steps_per_sample(self) -> int:
        """Env steps of one sample, at most: T of a whole chunk, 1 of a row or of an item of the user's own."""
        return 1 if self.sample or self.draw else self.chunk_length

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value or name not in _LATER}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Spec:
        def fields(group: Mapping[str, Any]) -> Fields:
            return {name: Field(tuple(entry["shape"]), str(entry["dtype"])) for name, entry in group.items()}

        action = data["action"]
        return Spec(
            obs=fields(data["obs"]),
            action=ActionSpec(int(action["n"]), tuple(action["nvec"]), tuple(action["low"]), tuple(action["high"])),
            extra=fields(data["extra"]),
            chunk_length=int(data["chunk_length"]),
            sample=fields(data["sample"]),
            step=fields(data.get("step", {})),
            state=fields(data.get("state", {})),
            draw=Draw(**data["draw"]) if data.get("draw") else None,
        )

    @property
    def schema(self) -> str:
        """Eight hex digits in every message's header; they differ when any shape or dtype differs."""
        shapes = {name: value for name, value in self.to_json().items() if name != "draw"}
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:8]


_LATER = ("step", "state", "draw")
"""Left out of a Spec's JSON where they are empty, so that checkpoints from before they were there keep their schema."""


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf" and np.dtype(dtype).isnative
    except TypeError:
        return False


ORIGIN_FIELDS: Fields = {
    "worker": Field((), "int64"),
    "incarnation": Field((), "int64"),
    "env": Field((), "int64"),
    "seq": Field((), "int64"),
    "version": Field((2,), "int64"),
}
"""Which worker made an item, and with which weights; every item carries these (a Chunk has one version per row)."""


@dataclass(frozen=True)
class Chunk:
    """T consecutive steps of one environment, or, with a leading B on every array, a batch of them.

    obs         name -> [T+1, ...]      first       bool [T+1], obs begins an episode
    action      [T, ...]                reward      f32 [T]
    terminated  bool [T]                truncated   bool [T]
    valid       bool [T]                extra       name -> [T, ...]
    version     i64 [T, 2], (epoch, update) of the weights that chose the action
    worker, incarnation, env, seq       i64 [], the chunk's origin; seq counts the worker's rounds
    step        name -> [T, ...], what the workflow added
    state       name -> [...], the policy's memory before row 0
    """

    obs: Arrays
    first: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    extra: Arrays
    version: Array
    worker: Array
    incarnation: Array
    env: Array
    seq: Array
    step: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Transitions:
    """B rows that a replay memory cut out of its chunks, as `Spec.draw` asks. A row begins at step t of an episode.

    obs         name -> [B, ...], or [B, look_back + 1, ...] with the newest last; o_t
    action      [B, ...]; a_t
    reward      f32 [B], r_t + gamma r_(t+1) + ... over n steps, or as many as the episode had left
    discount    f32 [B], gamma^n, and 0 where the episode terminated: the factor of the value of next_obs
    next_obs    as obs, n steps later; also after a time limit the true successor
    extra, step name -> [B, ...], of step t
    version     i64 [B, 2], of the weights that chose the action
    worker, incarnation, env, seq       i64 [B], the origin of the chunk
    """

    obs: Arrays
    action: Array
    reward: Array
    discount: Array
    next_obs: Arrays
    extra: Arrays
    step: Arrays
    version: Array
    worker: Array
    incarnation: Array
    env: Array
    seq: Array


def chunk_fields(spec: Spec) -> Fields:
    """Name -> Field of a Chunk as a flat item: `obs.<name>`, `extra.<name>` and the plain arrays."""
    t = spec.chunk_length
    action = spec.action.field
    return {
        **{f"obs.{name}": Field((t + 1, *entry.shape), entry.dtype) for name, entry in spec.obs.items()},
        "first": Field((t + 1,), "bool"),
        "action": Field((t, *action.shape), action.dtype),
        "reward": Field((t,), "float32"),
        "terminated": Field((t,), "bool"),
        "truncated": Field((t,), "bool"),
        "valid": Field((t,), "bool"),
        **{f"extra.{name}": Field((t, *entry.shape), entry.dtype) for name, entry in spec.extra.items()},
        **{f"step.{name}": Field((t, *entry.shape), entry.dtype) for name, entry in spec.step.items()},
        **{f"state.{name}": entry for name, entry in spec.state.items()},
        **ORIGIN_FIELDS,
        "version": Field((t, 2), "int64"),
    }


def row_fields(spec: Spec) -> Fields:
    """The fields of a Chunk that a replay memory keeps: a policy's memory is in no row (`Transitions`)."""
    return {name: field for name, field in chunk_fields(spec).items() if not name.startswith("state.")}


def chunk_to_arrays(chunk: Chunk) -> Arrays:
    """Flatten a Chunk into name -> array, the form that is sent and stored (no copy)."""
    flat: Arrays = {}
    for group in dataclasses.fields(Chunk):
        value = getattr(chunk, group.name)
        if isinstance(value, dict):
            flat.update({f"{group.name}.{name}": array for name, array in value.items()})
        else:
            flat[group.name] = value
    return flat


def arrays_to_chunk(flat: Arrays) -> Chunk:
    """Rebuild the Chunk that `chunk_to_arrays` flattened (no copy)."""
    return Chunk(**_regrouped(flat, "obs", "extra", "step", "state"))


def arrays_to_transitions(flat: Arrays) -> Transitions:
    """A drawn batch of rows, flattened as a Chunk is, as Transitions (no copy)."""
    return Transitions(**_regrouped(flat, "obs", "next_obs", "extra", "step"))


def _regrouped(flat: Arrays, *groups: str) -> dict[str, Any]:
    parts: dict[str, Any] = {group: {} for group in groups}
    for name, array in flat.items():
        group, _, inner = name.partition(".")
        if inner:
            parts[group][inner] = array
        else:
            parts[name] = array
    return parts


def count_env_steps(items: Arrays) -> int:
    """The env steps in items of the buffer: valid rows of chunks, or one for each item without `valid`."""
    return int(items["valid"].sum()) if "valid" in items else len(items["worker"])


def check_arrays(arrays: Arrays, fields: Fields, leading: tuple[int, ...], label: str) -> None:
    """Raise ContractError, naming `label`, unless `arrays` has exactly `fields`, each with `leading` axes in front."""
    if arrays.keys() != fields.keys():
        missing, unknown = sorted(fields.keys() - arrays.keys()), sorted(arrays.keys() - fields.keys())
        raise ContractError(f"{label}: missing {missing}, unknown {unknown}")
    for name, expected in fields.items():
        array = arrays[name]
        if array.dtype != _dtype(expected.dtype) or array.shape != (*leading, *expected.shape):
            raise ContractError(
                f"{label}: {name} must be {expected.dtype}{[*leading, *expected.shape]}, "
                f"got {array.dtype}{list(array.shape)}"
            )


_dtype = lru_cache(np.dtype)  # to read a name takes longer than all else here


def check_finite(arrays: Arrays, label: str) -> None:
    """Raise ContractError, naming `label`, if a float array holds NaN or infinity."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ContractError(f"{label}: {name} holds NaN or infinity")


class Prediction(NamedTuple):
    """A policy's answer: action [E, ...], extra name -> [E, ...], the version that gave it, and its env steps.

    state: the policy's memory before this answer, name -> [E, ...]. memory_size: as in PredictContext.
    """

    action: Array
    extra: Arrays
    version: Version
    env_steps: int = 0
    state: Arrays = {}  # noqa: RUF012 (nobody writes into it)
    memory_size: int = 0


class PredictContext(NamedTuple):
    """What `Agent.predict` gets besides the observations.

    slot i64 [N] is each row's environment, first bool [N], explore f32 [N]: 1 samples the action, 0 takes the greedy
    one. env_steps: played before the weights that act were published; a schedule of exploration follows it. state:
    name -> [N, ...], the memory that `Spec.state` names: it travels with each question, so a question that is asked
    twice moves it once. memory_size: samples in the buffer or replay memory at the last update before that.
    """

    slot: Array
    first: Array
    explore: Array
    env_steps: int = 0
    state: Arrays = {}  # noqa: RUF012
    memory_size: int = 0


@dataclass(frozen=True)
class SampleInfo:
    """What the buffer says about a batch. A sample is an item, or a row with `Spec.draw`.

    key            u64 [B], names the sample for new priorities
    probability    f64 [B], of being drawn
    times_sampled  i64 [B]
    new_env_steps  played into the buffer since the batch before; on-policy those of this batch
    size           samples that can be drawn
    env_steps      of the run so far, with the new ones; the trainer fills it in
    """

    key: Array
    probability: Array
    times_sampled: Array
    new_env_steps: int = 0
    size: int = 0
    env_steps: int = 0


@dataclass(frozen=True)
class ModelTag:
    """Names one published model: its version, how many env steps it was trained on, its bytes' sha256, when, and how
    many samples the buffer held.
    """

    version: Version
    env_steps: int
    sha256: str
    published_ns: int
    """The learner's monotonic clock."""
    memory_size: int = 0


@dataclass(frozen=True)
class Report:
    """A role's report to the supervisor, sent every `report_interval_s`.

    env_steps  learner: trained on so far, over all epochs; worker: collected since its start
    totals     name -> counted since the start of the process
    means      name -> [sum, count] since the last report
    """

    role: str
    index: int
    env_steps: int
    totals: dict[str, float]
    means: dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluator's result for one model, sent to the supervisor.

    env_steps           steps that the model was trained on
    statistic, score    the statistic that compares models, and its mean over the episodes
    best, best_version  the greatest score in this run's directory so far, and its model
    means               statistic -> mean over the episodes
    """

    version: Version
    env_steps: int
    statistic: str
    score: float
    best: float
    best_version: Version
    means: dict[str, float]


Book = dict[str, str]
"""Role name ("actor", "buffer", "model_pool") -> address; every role gets it before it runs."""


class Policy(Protocol):
    """The verb `predict`, as a workflow sees it: a plain call in one process, a socket in a cluster."""

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        """obs name -> [E, ...], first bool [E]; explore, one number or f32 [E]: 1 samples the action, 0 is greedy."""
        ...


class Monitor(Protocol):
    """Takes numbers from user code; they appear in TensorBoard and in the live line."""

    def put(self, name: str, value: float) -> None: ...

    def episodes(self, info: Mapping[str, Any]) -> None:
        """Take gymnasium's `info["episode"]` (name -> [E]) where `info["_episode"]` is true."""
        ...


Learned = tuple[dict[str, float], Array | None]
"""What an update comes to: its metrics, and new priorities [B] or None."""


class Agent(Protocol):
    """What `<algo>/algorithm/agent.py` provides: lives only where weights live (actor, learner, evaluator)."""

    model: Any
    """torch.nn.Module; its `state_dict()` is what is published and what `predict` uses.

    Where `predict` needs only a part of it, an attribute `acting` names that part, as ("actor_net.",): how the names of
    its weights begin. The rest, such as critics, then stays with the learner.

    An agent that can be exported (`realm export`) also has `greedy(obs)`: name -> tensor [N, ...] to name -> tensor,
    with `action`, what `predict` chooses where explore is 0, and what else it knows, such as `logits`. It uses
    operations of torch alone, no NumPy and no `len`, so that they can be written down.
    """

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays] | tuple[Array, Arrays, Arrays]:
        """obs name -> [N, ...] to action [N, ...] and extra name -> [N, ...]. What is given may be read-only.

        With `Spec.state` a third: the memory after these observations, name -> [N, ...].
        """
        ...

    def learn(self, batch: Any, info: SampleInfo) -> Learned | Generator[None, bool, Learned]:
        """One update on a batch (a Chunk with leading B, or Transitions). The batch may be read-only.

        A plain function returns (metrics, priorities). A generator yields once at most and then returns the same. It
        yields where its weights may go out before the update is over: with `max_version_lag = "part"` they are
        published there, and workers play the next round with them while the rest of the update is made. The value of
        the yield says whether they went out: `went_out = yield`. The drawback: the weights that act lack the steps
        after the yield. So yield where learner and workers share the cores, after about half of the gradient steps, and
        not where a strictly on-policy batch is needed. `save_model` may be called at the yield, so counters must be
        right by then.
        """
        ...

    def save_model(self) -> dict[str, Any]:
        """All state besides `model` that a resume needs (optimizer, counters): tensors and plain data."""
        ...

    def load_model(self, state: dict[str, Any]) -> None:
        """Take back what `save_model` gave."""
        ...


@dataclass(frozen=True)
class WorkflowContext:
    """The third argument of a workflow, next to environments and policy: `workflow(envs, policy, context)`."""

    spec: Spec
    config: Any
    """The user's `Config` (`<algo>/config.py`) with the overrides of the run."""
    seed: int
    worker: int
    incarnation: int
    monitor: Monitor
    tick: Callable[[], None] = lambda: None
    """Call it often in long work between two rounds: it reports that the worker lives, and raises when the run ends."""
    add: Callable[[Arrays], None] = lambda items: None
    """Hand a round to the buffer at once, for a workflow that cannot yield it."""
    save: Callable[[], None] = lambda: None
    """Ask for a model in `user_ckpt/`; does not wait for it."""
    update: Callable[[Arrays, SampleInfo], None] | None = None
    """In one process: train at once on just these items, past the buffer. None in a cluster."""
