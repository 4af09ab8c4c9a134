"""A project's agent, as the framework asks for one: made in each process that holds weights.

The project's own instance is `user`. What its five methods do, by who calls them, is in `methods.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger

from realm.contract import Array, Arrays, PredictContext, SampleInfo, Spec
from realm.errors import ConfigError, UserCodeError
from realm.kaiwu import code, model_files, modules
from realm.kaiwu.game import seen
from realm.kaiwu.methods import Side, act_as, checked_answers, inside, plain
from realm.kaiwu.model_files import NEWEST
from realm.kaiwu.process import LEARNS, current
from realm.kaiwu.records import field_of, from_array, record_fields, to_array
from realm.kaiwu.surface import ATTACHED, Logger, Monitor, numbers
from realm.learn.results import models_in

if TYPE_CHECKING:
    from realm.kaiwu.config import Config


class Agent:
    """See `realm.contract.Agent`."""

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self.config, self.updates = config, 0
        self._definition = code.load_definition()
        self.learns = current().role in LEARNS
        self._curves: dict[str, float] = {}
        self.monitor = Monitor(self._curves.__setitem__)
        self.user = make_user_agent(device, self.monitor)
        self._made = modules.counters(self.user)
        self.model = modules.Modules(
            self.user,
            lambda: model_files.as_files(self.user, self.updates),
            lambda files: model_files.load_files(self.user, files),
        )
        self.saves = model_files.Saves(self.user)
        self.model_id = NEWEST
        act_as(_LearnerSide(self) if self.learns else _PlayerSide())
        if self.learns and config.preload_dir and not models_in(current().run_dir / "ckpt"):
            model_files.load(self.user, Path(config.preload_dir), config.preload_id)

    # ---- predictions ----

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        """Rows of this process's own environments (`row` from 0), or ObsData of workers at the actor."""
        if (obs["row"] >= 0).all():
            act = ((f"act.{name}", field_of(text)) for name, text in self.config.act.items())
            none = {name: np.zeros((len(obs["row"]), *field.shape), field.dtype) for name, field in act}
            return self._play(obs["row"], context.explore), none
        records = []
        for i in range(len(context.first)):
            values = {name: from_array(obs[f"obs.{name}"][i], text) for name, text in self.config.obs.items()}
            records.append(ATTACHED["ObsData"](**values))
        answers: list[Any] = []
        asked = [(explore != 0, int(model)) for explore, model in zip(context.explore, obs["model"], strict=True)]
        start = 0
        while start < len(records):
            end = start + 1
            while end < min(len(records), start + self.config.predict_batch_size) and asked[end] == asked[start]:
                end += 1
            explore, model = asked[start]
            self.choose_model(model)
            answers += self.ask("predict" if explore else "exploit", records[start:end])
            start = end
        fields = [record_fields(answer, "what Agent.predict returned") for answer in answers]
        arrays = {
            f"act.{name}": np.stack([to_array(given.get(name), text, f"ActData.{name}") for given in fields])
            for name, text in self.config.act.items()
        }
        return np.zeros(len(answers), np.int64), arrays

    def ask(self, method: str, records: Sequence[Any]) -> list[Any]:
        """The project's predict or exploit on a list of ObsData. Raises UserCodeError for another answer than a list
        of as many."""
        with code.running(method):
            answers = plain(self.user, method, list(records))
        return list(checked_answers(getattr(type(self.user), method), answers, len(records)))

    def _play(self, rows: Array, explore: Array) -> Array:
        """Actions for environments of this process, as the framework of KaiwuDRL plays evaluations."""
        actions = np.zeros(len(rows), np.int64)
        for i, row in enumerate(rows):
            raw, env_info = seen(int(row))
            method = "predict" if explore[i] else "exploit"
            with code.calling(f"playing an evaluation, {method}"):
                answers = plain(self.user, method, [observe(self._definition, raw, env_info)])
                (answer,) = checked_answers(getattr(type(self.user), method), answers, 1)
                actions[i] = int(self._definition.action_process(answer))
        return actions

    def choose_model(self, wanted: int) -> None:
        """Predict with this model of the run's folder; NEWEST: with what travels. A model that the learner has removed
        meanwhile gives way to the newest. Raises UserCodeError."""
        if wanted == self.model_id:
            return
        folder = current().restore_dir
        if wanted == NEWEST:
            self.model.release()
        else:
            self.model.hold()
            try:
                model_files.load(self.user, folder, wanted)
            except (ConfigError, UserCodeError):
                if model_files.files_of(folder, wanted):
                    raise
                logger.info("model {} is gone, since there are newer ones; the newest weights predict", wanted)
                self.model.release()
        self.model_id = wanted

    # ---- training ----

    def learn(self, batch: Arrays, info: SampleInfo) -> tuple[dict[str, float], None]:
        """Call the project's learn: in a cluster with SampleData made of vectors, in one process with the list that the
        workflow gave."""
        samples: Any = batch.get("samples")
        if samples is None:
            # each vector gets memory of its own: an agent may keep a field for long, and write to it
            samples = [self._definition.decode(np.array(vector)) for vector in batch["vector"]]
        self.updates += 1
        named = contextlib.nullcontext() if "samples" in batch else code.running("learning")
        with named, self.model.learning():
            result = plain(self.user, "learn", samples)
        metrics = {**numbers(result), **self._curves}
        self._curves.clear()
        return metrics, None

    def save_model(self) -> dict[str, Any]:
        self.model.expire()  # a checkpoint has the weights of now
        optimizers, counters = modules.optimizer_states(self.user), modules.counters(self.user)
        # one that training never changes is a setting, which a user may edit before a resume
        counters = {name: number for name, number in counters.items() if self._made.get(name) != number}
        return {"updates": self.updates, "optimizers": optimizers, "counters": counters}

    def load_model(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        modules.load_optimizer_states(self.user, state["optimizers"])
        modules.load_counters(self.user, {**self._made, **state["counters"]})

    def save_for_user(self) -> None:
        """What the project's code asks for by `save_model`: files of its own, and no checkpoint."""
        self.saves.for_user(self.updates)

    def saved(self, path: Path) -> None:
        """Write the project's own files next to a checkpoint, every dump_model_freq."""
        if self.learns:
            number = int(path.name.rpartition("-")[2])  # not `updates`, which a return to a checkpoint takes back
            if not self.config.dump_model_freq or number % self.config.dump_model_freq == 0:
                self.saves.dump(number)

    def saved_last(self, path: Path) -> None:
        """The newest model of a run that ends, whether due or not: it is what a user submits."""
        self.choose_model(NEWEST)
        self.saves.dump(int(path.name.rpartition("-")[2]))


class _LearnerSide(Side):
    """In the learner, and in one process while the agent learns: predictions and load_model do nothing."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def save_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        if inside():
            self._agent.saves.for_user(self._agent.updates)

    load_model = Side.predict


class _PlayerSide(Side):
    """Where an agent only predicts: exploit may call predict; nothing learns, saves or loads."""

    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(agent, *args, **kwargs)

    exploit = predict
    load_model = Side.predict


def make_user_agent(device: str, monitor: Monitor | None = None) -> Any:
    """An instance of the project's Agent."""
    cls = code.load_agent()
    monitor = monitor or Monitor(lambda name, number: None)
    with code.calling("making the agent"):
        return cls(agent_type=current().agent_type, device=torch.device(device), logger=Logger(), monitor=monitor)


@functools.cache
def agent_to_look_at() -> Any:
    """A worker's own instance of the project's Agent, where the actor predicts."""
    return make_user_agent("cpu")


def observe(definition: code.Definition, raw: Any, env_info: Any) -> Any:
    """ObsData of an observation; `env_info` goes to those that take two arguments."""
    function = definition.observation_process
    written = getattr(inspect.unwrap(function), "__code__", None)
    return function(raw, env_info) if written is not None and written.co_argcount > 1 else function(raw)
