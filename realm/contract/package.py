"""What a user's package meets and what it must offer: the agent, and what a workflow is given."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from realm.contract.arrays import Array, Arrays
from realm.contract.messages import Evaluation
from realm.contract.samples import SampleInfo
from realm.contract.spec import Spec
from realm.contract.versions import Version


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
    twice moves it once. memory_size: samples in the buffer or replay memory at the last update before that; 0 where a
    checkpoint plays. In one process both are of this moment; in a cluster they are 0 until the first update.
    """

    slot: Array
    first: Array
    explore: Array
    env_steps: int = 0
    state: Arrays = {}  # noqa: RUF012
    memory_size: int = 0


class Policy(Protocol):
    """The verb `predict`, as a workflow sees it: a plain call in one process, a socket in a cluster."""

    def predict(self, obs: Arrays, first: Array, explore: float | Array = 1.0) -> Prediction:
        """obs name -> [E, ...], first bool [E]; explore, one number or f32 [E]: 1 samples the action, 0 is greedy."""


class Monitor(Protocol):
    """Takes numbers from user code; they appear in TensorBoard and in the live line."""

    def put(self, name: str, value: float) -> None: ...

    def episodes(self, info: Mapping[str, Any]) -> None:
        """Take gymnasium's `info["episode"]` (name -> [E]) where `info["_episode"]` is true."""


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
    operations of torch alone, no NumPy and no `len`, so that they can be written down. With `Spec.state` it also gets
    `first`, bool [N], and the memory as `state.<name>`, zeros where first, and gives the memory after by these names.
    """

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays] | tuple[Array, Arrays, Arrays]:
        """obs name -> [N, ...] to action [N, ...] and extra name -> [N, ...]. What is given may be read-only.

        With `Spec.state` a third: the memory after these observations, name -> [N, ...].
        """

    def learn(self, batch: Any, info: SampleInfo) -> Learned | Generator[None, None, Learned]:
        """One update on a batch (a Chunk with leading B, or Transitions). The batch may be read-only.

        A plain function returns (metrics, priorities). A generator yields once at most and then returns the same. It
        yields where its weights may go out before the update is over: with `max_version_lag = "part"` they are
        published there, and workers play the next round with them while the rest of the update is made. The drawback:
        the weights that act lack the steps after the yield. So yield where learner and workers share the cores, after
        about half of the gradient steps, and not where a strictly on-policy batch is needed. `save_model` may be called
        at the yield, so counters must be right by then. `info` says what was counted, and what acted (`SampleInfo`).

        `model` is in training mode within `learn`, and in evaluation mode whenever `predict` or `greedy` is called.
        """

    def save_model(self) -> dict[str, Any]:
        """All state besides `model` that a resume needs (optimizer, counters): tensors and plain data."""

    def load_model(self, state: dict[str, Any]) -> None:
        """Take back what `save_model` gave.

        Three more methods are called if there are: `saved(path)` after each checkpoint, to write files of the agent's
        own into it; `saved_last(path)` with the one that a run ends with; and with several learners once `join(group)`,
        which makes `learn` get a part of a batch and train as one (`algorithms/group.py`).
        """


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
    save: Callable[[], object] = lambda: None
    """Ask for a model in `user_ckpt/`; does not wait for it."""
    update: Callable[[Arrays, SampleInfo], None] | None = None
    """In one process: train at once on just these items, past the buffer. None in a cluster."""
    env_steps: Callable[[], int] = lambda: 0
    """Env steps of the run so far; in a cluster up to `report_interval_s` old, and 0 before the first report."""
    evaluation: Callable[[], Evaluation | None] = lambda: None
    """The newest evaluation of this session, None before."""
