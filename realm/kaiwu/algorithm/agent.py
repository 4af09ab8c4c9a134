"""A project's agent, as the framework asks for one: made in each process that holds weights.

The project's own instance is `user`. The framework calls its undecorated methods; what the decorated ones do when the
project's code calls them is `methods.py`'s matter.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from realm.contract import Array, Arrays, PredictContext, SampleInfo, Spec
from realm.errors import UserCodeError
from realm.kaiwu import code, models, modules
from realm.kaiwu.config import Config
from realm.kaiwu.fields import from_array, record_fields, to_array
from realm.kaiwu.game import seen
from realm.kaiwu.methods import Side, act_as, inside, plain, wrong_answer
from realm.kaiwu.process import LEARNS, current
from realm.kaiwu.surface import ATTACHED, Logger

NEWEST = -1


class Agent:
    """See `realm.contract.Agent`."""

    def __init__(self, spec: Spec, config: Config, device: str, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self.config, self.updates = config, 0
        self._definition = code.load_definition()
        self.learns = current().role in LEARNS
        self.monitor = Monitor()
        self.user = make_user_agent(device, self.monitor)
        self.model = modules.Modules(
            self.user,
            lambda: models.as_files(self.user, self.updates),
            lambda files: models.load_files(self.user, files),
        )
        self.saves = models.Saves(self.user)
        self._model_id = NEWEST
        act_as(_LearnerSide(self) if self.learns else _PlayerSide())
        if self.learns and config.preload_dir:
            models.load(self.user, Path(config.preload_dir), config.preload_id)

    # ---- predictions ----

    def predict(self, obs: Arrays, context: PredictContext) -> tuple[Array, Arrays]:
        """Rows of this process's own environments (`row` from 0), or ObsData of workers at the actor."""
        if (obs["row"] >= 0).all():
            return self._play(obs["row"], context.explore), self._no_fields(len(obs["row"]))
        given = {name: array for name, array in obs.items() if name.startswith("obs.")}
        records = []
        for i in range(len(context.first)):
            fields = {name[4:]: from_array(array[i], self.config.obs[name[4:]]) for name, array in given.items()}
            records.append(ATTACHED["ObsData"](**fields))
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
        arrays = {}
        for name, text in self.config.act.items():
            arrays[f"act.{name}"] = np.stack(
                [to_array(record_fields(act).get(name), text, f"ActData.{name}") for act in answers]
            )
        return np.zeros(len(answers), np.int64), arrays

    def ask(self, method: str, records: Sequence[Any]) -> list[Any]:
        """The project's predict or exploit on a list of ObsData. Raises UserCodeError for another answer than a list
        of as many ActData."""
        with code.running(method):
            answers = plain(self.user, method, list(records))
        if not isinstance(answers, (list, tuple)) or len(answers) != len(records):
            raise UserCodeError(wrong_answer(getattr(type(self.user), method), answers, len(records)))
        for answer in answers:
            if not hasattr(answer, "__dict__"):
                raise UserCodeError(
                    f"{code_of(self.user, method)}: Agent.{method} returned a list of {type(answer).__name__}; it must "
                    "be a list of ActData"
                )
        return list(answers)

    def _play(self, rows: Array, explore: Array) -> Array:
        """Actions for environments of this process, as the framework of KaiwuDRL plays evaluations."""
        actions = np.zeros(len(rows), np.int64)
        for i, row in enumerate(rows):
            raw, env_info = seen(int(row))
            with code.calling("playing an evaluation"):
                record = observe(self._definition, raw, env_info)
                answer = self.ask("predict" if explore[i] else "exploit", [record])[0]
                actions[i] = int(self._definition.action_process(answer))
        return actions

    def _no_fields(self, rows: int) -> Arrays:
        return {f"act.{name}": np.stack([to_array_zero(text)] * rows) for name, text in self.config.act.items()}

    def choose_model(self, wanted: int) -> None:
        """Predict with this model of the run's folder; NEWEST: with what travels. Raises UserCodeError."""
        if wanted == self._model_id:
            return
        if wanted == NEWEST:
            self.model.release()
        else:
            self.model.hold()
            models.load(self.user, current().restore_dir, wanted)
        self._model_id = wanted

    # ---- training ----

    def learn(self, batch: Arrays, info: SampleInfo) -> tuple[dict[str, float], None]:
        """Call the project's learn: in a cluster with SampleData made of vectors, in one process with the list that the
        workflow gave."""
        samples: Any = batch.get("samples")
        if samples is None:
            # each vector gets memory of its own: an agent may keep a field for long, and write to it
            samples = [self._definition.decode(np.array(vector)) for vector in batch["vector"]]
        self.updates += 1
        with contextlib.nullcontext() if "samples" in batch else code.running("learning"):
            result = plain(self.user, "learn", samples)
        metrics = {**numbers(result), **self.monitor.take()}
        return metrics, None

    def save_model(self) -> dict[str, Any]:
        self.model.expire()  # a checkpoint has the weights of now
        return {
            "updates": self.updates,
            "optimizers": modules.optimizer_states(self.user),
            "counters": modules.counters(self.user),
        }

    def load_model(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        modules.load_optimizer_states(self.user, state["optimizers"])
        modules.load_counters(self.user, state["counters"])

    def saved(self, path: Path) -> None:
        """Write the project's own files next to a checkpoint, if this one is due: the framework's every
        dump_model_freq, the user's when asked for."""
        if path.parent.name == "user_ckpt":
            self.saves.for_user(self.updates)
        elif self.learns and self.updates % self.config.dump_model_freq == 0:
            self.saves.dump(self.updates)


class _LearnerSide(Side):
    """In the learner, and in one process while the agent learns: predictions and load_model do nothing."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def save_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        if inside():
            self._agent.saves.for_user(self._agent.updates)

    def load_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        return None


class _PlayerSide(Side):
    """Where an agent only predicts: exploit may call predict; nothing learns, saves or loads."""

    def predict(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(agent, *args, **kwargs)

    exploit = predict

    def load_model(self, agent: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        return None


class Monitor:
    """What agents get as `monitor`: their numbers become curves."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def put_data(self, data: Any) -> None:
        """{pid: {name: value}}, where a value is a number, also a tensor of one."""
        for values in data.values() if isinstance(data, dict) else ():
            self._values.update(numbers(values))

    def take(self) -> dict[str, float]:
        taken, self._values = self._values, {}
        return taken


def numbers(values: Any) -> dict[str, float]:
    """Those entries of a dict that are finite numbers."""
    found: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue
        if np.isfinite(number):
            found[str(name)] = number
    return found


def make_user_agent(device: str, monitor: Any) -> Any:
    """An instance of the project's Agent."""
    cls = code.load_agent()
    with code.calling("making the agent"):
        return cls(agent_type=current().agent_type, device=torch.device(device), logger=Logger(), monitor=monitor)


def observe(definition: code.Definition, raw: Any, env_info: Any) -> Any:
    """ObsData of an observation; `env_info` goes to those that take two arguments."""
    function = definition.observation_process
    names = function.__code__.co_varnames[: function.__code__.co_argcount] if hasattr(function, "__code__") else ()
    return function(raw, env_info) if len(names) > 1 else function(raw)


def to_array_zero(text: str) -> Array:
    from realm.kaiwu.fields import field_of

    field = field_of(text)
    return np.zeros(field.shape, field.dtype)


def code_of(agent: Any, method: str) -> str:
    """`file:line` of a method."""
    function = getattr(type(agent), method).__wrapped__
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
