"""What of a project's agent is state: its torch modules and what NumPy arrays it learns, which travel, and its
optimizers and counters, which resume.

Nobody declares any of it, so it is found by walking over the agent's attributes, and over those of objects whose class
is the project's own. An agent without modules travels as the files that its `save_model` writes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from realm.contract import Array
from realm.kaiwu.process import current
from realm.kaiwu.surface import Frame

_DEPTH = 4
_MOST_ENTRIES = 64  # of a list or dict that is looked through: a replay memory is none of our business
_FILE = "file:"
_ARRAY = "array:"
_NUMBERS = ("|b1", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8")  # dtypes that torch has, too
_MOST_ARRAY_BYTES = 1 << 20  # a larger one is a memory of samples
_FILES_EVERY_S = 1.0

Files = dict[str, bytes]
_ALL_FIT = SimpleNamespace(missing_keys=[], unexpected_keys=[])  # what torch's `load_state_dict` returns


class Modules(torch.nn.Module):
    """All torch modules and parameters of an agent as one, found anew at each use: code may replace them."""

    def __init__(self, agent: Any, files: Callable[[], Files], load_files: Callable[[Files], None]) -> None:
        """files: saves the agent into files; load_files: the reverse. For agents without modules."""
        super().__init__()
        self._found: Callable[[], dict[str, torch.Tensor]] = lambda: tensors_of(agent)
        self._arrays: Callable[[], dict[str, Array]] = lambda: arrays_of(agent)
        self._learned: set[str] = set()  # names of arrays that travel
        self._files, self._load_files = files, load_files
        self._saved: dict[str, Any] = {}
        self._saved_at = 0.0
        self._held: dict[str, Any] | None = None

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        if self._held is not None:
            return dict(self._held)
        state: dict[str, Any] = {name: tensor.detach() for name, tensor in self._found().items()}
        if state:
            learned = {name: array for name, array in self._arrays().items() if name in self._learned}
            finite = {name: np.array(array, order="C") for name, array in learned.items() if np.isfinite(array).all()}
            return state | {f"{_ARRAY}{name}": torch.from_numpy(array) for name, array in finite.items()}
        if not self._saved or time.monotonic() - self._saved_at > _FILES_EVERY_S:
            self._saved_at = time.monotonic()
            self._saved = as_tensors(self._files())
        return dict(self._saved)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Around the project's `learn`: the arrays that it changes, such as a running mean, are learned."""
        before = {name: array.copy() for name, array in self._arrays().items() if name not in self._learned}
        yield
        after = self._arrays()
        self._learned |= {name for name in before.keys() & after if not np.array_equal(before[name], after[name])}

    def expire(self) -> None:
        """Have an agent that travels as files saved again at the next `state_dict`."""
        self._saved = {}

    def hold(self) -> None:
        """Keep the weights aside, also those that arrive from now on, while the agent predicts with another model."""
        if self._held is None:
            self._held = {name: tensor.clone() for name, tensor in self.state_dict().items()}

    def release(self) -> None:
        """Put back what was kept aside."""
        held, self._held = self._held, None
        if held is not None:
            self.load_state_dict(held)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy the weights in place. Modules that only one side has are left as they are; raises RuntimeError where
        shapes differ or nothing fits."""
        if self._held is not None:
            self._held = dict(state)
            return _ALL_FIT
        files = {
            name[len(_FILE) :]: tensor.numpy().tobytes() for name, tensor in state.items() if name.startswith(_FILE)
        }
        if files:
            self.expire()
            self._load_files(files)
            return _ALL_FIT
        for name, array in self._arrays().items():
            new = state.get(f"{_ARRAY}{name}")
            if new is not None and array.shape == new.shape:
                array[...] = new.numpy()
                self._learned.add(name)
        own = self._found()
        called = {name: other for name in own if (other := _name_in(state, name))}
        if own and not called:
            raise RuntimeError(f"the agent has {next(iter(own))}, these weights have {next(iter(state), 'nothing')}")
        with torch.no_grad():
            for name, other in called.items():
                if own[name].shape != state[other].shape:
                    shapes = f"{list(own[name].shape)}, not {list(state[other].shape)}"
                    raise RuntimeError(f"{name} is {shapes}")
                own[name].copy_(state[other])
        return _ALL_FIT


def as_tensors(files: Files) -> dict[str, torch.Tensor]:
    """Files in the form in which weights travel."""
    return {f"{_FILE}{name}": torch.from_numpy(np.frombuffer(body, np.uint8).copy()) for name, body in files.items()}


def tensors_of(agent: Any) -> dict[str, torch.Tensor]:
    """Name -> tensor of everything that travels, each tensor once."""
    found: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for path, thing in _walk(agent):
        if isinstance(thing, torch.nn.Module):
            inner = torch.nn.Module.state_dict(thing, keep_vars=True)
        elif isinstance(thing, torch.nn.Parameter):
            inner = {"": thing}
        else:
            continue
        for name, tensor in inner.items():
            if isinstance(tensor, torch.Tensor) and id(tensor) not in taken:
                taken.add(id(tensor))
                found[f"{path}.{name}".strip(".")] = tensor
    return found


def _name_in(state: Mapping[str, Any], name: str) -> str:
    """What a tensor is called there: an agent that holds a network twice may find it by another path elsewhere."""
    if name in state:
        return name
    near = [other for other in state if other.endswith(f".{name}") or name.endswith(f".{other}")]
    return near[0] if len(near) == 1 else ""


def arrays_of(agent: Any) -> dict[str, Array]:
    """Path -> each NumPy array of numbers that may be written to and is small."""
    arrays = {path: thing for path, thing in _walk(agent) if isinstance(thing, np.ndarray) and thing.flags.writeable}
    small = {path: array for path, array in arrays.items() if array.nbytes <= _MOST_ARRAY_BYTES}
    return {path: array for path, array in small.items() if array.dtype.str in _NUMBERS}


def optimizer_states(agent: Any) -> dict[str, Any]:
    """Path -> state of each optimizer, scheduler and scaler, as plain data and tensors."""
    return {path: _plain(thing.state_dict()) for path, thing in _walk(agent) if _keeps_state(thing)}


def load_optimizer_states(agent: Any, states: Mapping[str, Any]) -> None:
    """Give each its state back. One that is not there any more is left out."""
    for path, thing in _walk(agent):
        if _keeps_state(thing) and path in states:
            thing.load_state_dict(_as_it_was(states[path]))


def counters(agent: Any) -> dict[str, int | float]:
    """The agent's own attributes that are plain numbers: how often it learnt, how much it explores."""
    return {name: value for name, value in _attributes(agent).items() if type(value) in (int, float)}


def load_counters(agent: Any, numbers: Mapping[str, int | float]) -> None:
    """Set those that the agent still has."""
    for name, value in numbers.items():
        if type(_attributes(agent).get(name)) in (int, float):
            setattr(agent, name, value)


def _keeps_state(thing: Any) -> bool:
    if isinstance(thing, (torch.nn.Module, torch.Tensor, type)):
        return False
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _walk(agent: Any) -> Iterator[tuple[str, Any]]:
    """(path, thing) of everything that may be state, each thing once."""
    seen: set[int] = set()

    def visit(path: str, thing: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if id(thing) in seen or depth > _DEPTH or isinstance(thing, type):
            return
        seen.add(id(thing))
        if isinstance(thing, (torch.nn.Module, torch.nn.Parameter, np.ndarray)) or _keeps_state(thing):
            yield path, thing
        elif isinstance(thing, (list, tuple, dict)) and len(thing) <= _MOST_ENTRIES:
            entries = thing.items() if isinstance(thing, dict) else enumerate(thing)
            for key, inner in list(entries):
                if isinstance(inner, np.ndarray) and not isinstance(thing, dict):
                    continue  # arrays in a list are samples
                yield from visit(f"{path}.{key}", inner, depth + 1)
        elif isinstance(thing, (SimpleNamespace, Frame)) or _is_of_project(thing):
            for name, inner in list(_attributes(thing).items()):
                yield from visit(f"{path}.{name}", inner, depth + 1)

    if isinstance(agent, torch.nn.Module):
        yield "", agent
    for name, inner in list(_attributes(agent).items()):
        if not name.startswith("_modules") and name not in ("_parameters", "_buffers"):
            yield from visit(name, inner, 1)


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def _is_of_project(thing: Any) -> bool:
    """Whether its class is one of the project's own."""
    top = (getattr(type(thing), "__module__", "") or "").partition(".")[0]
    config = current().config
    return top == config.package or _is_in(config.root, top)


@functools.cache
def _is_in(root: Path, module: str) -> bool:
    """Whether a project has this module; kept, as each `learn` asks it of every object of an agent."""
    return (root / module).is_dir() or (root / f"{module}.py").is_file()


def _as_it_was(value: Any) -> Any:
    """The reverse of `_plain`."""
    if isinstance(value, dict):
        return value[_ARRAY].numpy() if value.keys() == {_ARRAY} else {key: _as_it_was(x) for key, x in value.items()}
    return type(value)(map(_as_it_was, value)) if type(value) in (list, tuple) else value


def _plain(value: Any) -> Any:
    """Only what safe loading takes: tensors and plain data; anything else is left out."""
    if isinstance(value, torch.Tensor) or value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "bif":
        return {_ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if type(key) in (int, str)}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else [_plain(inner) for inner in value]
    return None
