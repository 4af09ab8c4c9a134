"""Imports the code of a project, and says in one sentence what is wrong with it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from realm.errors import UserCodeError, UserError, one_line, place_in, place_of_function
from realm.kaiwu import surface
from realm.kaiwu.methods import METHODS, is_wrapped
from realm.kaiwu.process import current, in_project

FUNCTIONS = ("observation_process", "action_process", "SampleData2NumpyData", "NumpyData2SampleData")
RECORDS = ("ObsData", "ActData", "SampleData")


@dataclass(frozen=True)
class Definition:
    """The functions of `feature/definition.py` that the framework calls."""

    observation_process: Callable[..., Any]
    action_process: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_ATTACHED: WeakKeyDictionary[ModuleType, dict[str, Any]] = WeakKeyDictionary()


def load_definition() -> Definition:
    """Import `<package>/feature/definition.py`; what was attached then, whatever another package attaches later."""
    module = _import("feature.definition")
    attached = surface.ATTACHED
    if module in _ATTACHED:
        attached.update(_ATTACHED[module])
    for name in (*RECORDS, *FUNCTIONS):
        if name in attached:
            continue
        if name in RECORDS and isinstance(getattr(module, name, None), type):
            attached[name] = getattr(module, name)  # a class that they wrote by hand
            continue
        if hasattr(module, name):
            line = _line_of(Path(str(module.__file__)), name)
            raise UserCodeError(f"{module.__file__}{line}: {name} has no @attached; write @attached above it")
        how = f"{name} = create_cls({name!r}, ...)" if name in RECORDS else f"a function {name} with @attached"
        raise UserCodeError(f"{module.__file__}: has no {name}; expected {how}")
    _ATTACHED.setdefault(module, dict(attached))
    return Definition(*(attached[name] for name in FUNCTIONS))


def load_sample_dim() -> int:
    """Config.SAMPLE_DIM of `<package>/config.py`."""
    module = _import("config")
    config = getattr(module, "Config", None)
    if config is None or not hasattr(config, "SAMPLE_DIM"):
        lacks = "Config" if config is None else "Config.SAMPLE_DIM"
        raise UserCodeError(f"{module.__file__}: has no {lacks}; expected a class Config with SAMPLE_DIM, a number")
    try:
        number = int(config.SAMPLE_DIM)
        exact = number == config.SAMPLE_DIM and number > 0
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise UserCodeError(
            f"{module.__file__}: Config.SAMPLE_DIM is {config.SAMPLE_DIM!r}; it must be a whole number above 0, the "
            "length of a sample's vector"
        )
    return number


def load_agent() -> type[Any]:
    """Import the class Agent of `<package>/algorithm/agent.py`."""
    load_definition()
    module = _import("algorithm.agent")
    load_definition()
    agent = getattr(module, "Agent", None)
    if not isinstance(agent, type):
        raise UserCodeError(
            f"{module.__file__}: has no class Agent; expected one with the methods {', '.join(METHODS)}"
        )
    for name in METHODS:
        method = getattr(agent, name, None)
        if method is None:
            raise UserCodeError(f"{module.__file__}: Agent has no {name}; expected a method with @{name}_wrapper")
        if not is_wrapped(method, name):
            line = _line_of(Path(str(module.__file__)), name)
            raise UserCodeError(
                f"{module.__file__}{line}: Agent.{name} has no @{name}_wrapper; write it above the method"
            )
    return agent


def load_workflow() -> Callable[..., Any]:
    """Import the function workflow of `<package>/train_workflow.py`; the definition first, as it may rely on that."""
    load_definition()
    module = _import("train_workflow")
    load_definition()
    workflow: Callable[..., Any] | None = getattr(module, "workflow", None)
    if not callable(workflow):
        raise UserCodeError(
            f"{module.__file__}: has no workflow; expected a function workflow(envs, agents, logger=None, monitor=None)"
        )
    if inspect.isgeneratorfunction(inspect.unwrap(workflow)):
        raise UserCodeError(
            f"{place_of_function(workflow)}: workflow has a yield, so calling it runs nothing; move the yield "
            "into a function of its own"
        )
    return workflow


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn an error of the project's code into one sentence with its place."""
    try:
        with in_project():
            yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{_told(error)} (while {what})") from error


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Name the place of an error. It may not come again, so its process is started again, as with any other code. But
    an import that failed fails again, also where the project's code turned it into another error."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        first: BaseException = error
        while (earlier := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
            first = earlier
        began = "" if first is error else f"; it began with {_told(first)}"
        again = UserCodeError if isinstance(first, (ImportError, SyntaxError)) else RuntimeError
        raise again(f"{_told(error)} (while {what}){began}") from error


def _told(error: BaseException) -> str:
    text = one_line(error.msg if isinstance(error, SyntaxError) else error)
    place = place_in(current().config.root, error) or str(current().config.root / current().config.package)
    return f"{place}: {type(error).__name__}: {text}"


def _import(name: str) -> ModuleType:
    config = current().config
    full = f"{config.package}.{name}"
    file = config.root / f"{full.replace('.', '/')}.py"
    if not file.is_file() and not (file.with_suffix("") / "__init__.py").is_file():
        raise UserCodeError(f"{file}: no such file; a package of KaiwuDRL has one")
    try:
        with calling(f"importing {file.name}"):
            module = importlib.import_module(full)
    except UserCodeError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or not cause.name:
            raise
        if not (config.root / cause.name.partition(".")[0]).is_dir():
            raise
        path = config.root / f"{cause.name.replace('.', '/')}.py"  # a file of the project
        place = place_in(config.root, cause)
        raise UserCodeError(f"{place}: imports {cause.name}, but there is no {path}") from cause
    return module


def _line_of(file: Path, name: str) -> str:
    """`:line` where a file defines a name."""
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith((f"def {name}(", f"class {name}", f"{name} =")):
            return f":{number}"
    return ""
