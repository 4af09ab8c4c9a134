"""Loads the user's package by name: `feature/definition.py`, `algorithm/agent.py`, `train_workflow.py`, `config.py`.

The command line calls it to check these files, and `callbacks.py` if there is one, before any process starts; each role
loads those that it needs. Only roles with weights call `load_agent`; this module itself imports no torch. In goes the
dotted name of the package, which is looked up in the current directory first, and last in what comes with Realm. Out
come the objects, or a UserCodeError of one sentence with the file, what is wrong and what is expected.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import sys
import sysconfig
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, get_type_hints

import msgspec

from realm.apart import apart
from realm.config.keys import AppConfig
from realm.config.load import HINTS, RunConfig, build_dataclass
from realm.config.plan import Preferences
from realm.config.toml import toml_value
from realm.contract import Policy, Progress, Spec, WorkflowContext
from realm.errors import (
    LEFT_DEBUGGER,
    ConfigError,
    ContractError,
    UserCodeError,
    UserError,
    did_you_mean,
    one_line,
    place_in,
    place_of,
)

Workflow = Callable[[Any, Policy, WorkflowContext], Iterator[Any]]

MAKES_ENVS = Path(__file__).with_name("zoo") / "gym.py"
_UNKNOWN_ARGUMENT = re.compile(r"got an unexpected keyword argument '(\w+)'")

_HERE = Path(__file__).resolve().parent
BUILT_IN = _HERE / "builtin" if (_HERE / "builtin").is_dir() else _HERE.parent
"""The folder of `diy/` and `conf/`, which come with Realm: the checkout, or what setup.py makes of it."""


@dataclass(frozen=True)
class Definition:
    """The two functions of `<algo>/feature/definition.py`; neither needs weights."""

    make_envs: Callable[[int, int, Any, dict[str, Any]], Any]
    """(num_envs, seed, config, options) to a vector environment; config is the Config, options the table [env]."""
    spec: Callable[[Any, Any], Spec]
    """(envs, config) to the Spec that all processes share."""


def load_definition(algo: str) -> Definition:
    """Import `<algo>/feature/definition.py`."""
    module = _module(algo, "feature.definition", "make_envs(num_envs, seed, config, options) and spec(envs, config)")
    make_envs = _function(module, "make_envs", "num_envs", "seed", "config", "options")
    return Definition(apart()(make_envs), _function(module, "spec", "envs", "config"))


def make_envs(config: RunConfig, num_envs: int, seed: int) -> Any:
    """Make the package's environments with the options of [env]. Raises ConfigError or UserCodeError."""
    with calling(config, "make_envs"):
        return load_definition(config.app.algo).make_envs(num_envs, seed, hyper_of(config), config.env)


def load_agent(algo: str) -> type[Any]:
    """Import the class `Agent` of `<algo>/algorithm/agent.py`, which may import torch."""
    module = _module(algo, "algorithm.agent", "a class Agent")
    agent = _function(module, "Agent", "spec", "config", "device", "seed")
    methods = ("predict", "learn", "save_model", "load_model")
    missing = [method for method in methods if not callable(getattr(agent, method, None))]
    if not isinstance(agent, type) or missing:
        lacks = f"has no {', '.join(missing)}" if isinstance(agent, type) else "is not a class"
        raise UserCodeError(f"{module.__file__}: Agent {lacks}; expected a class with {', '.join(methods)}")
    return agent


def make_agent(config: RunConfig, spec: Spec, device: str, seed: int) -> Any:
    """The agent of a run, to act: its model is in evaluation mode, and a trainer takes it out of that for `learn`."""
    agent = load_agent(config.app.algo)(spec, hyper_of(config), device, seed)
    if not callable(getattr(getattr(agent, "model", None), "eval", None)):
        raise UserCodeError(f"{folder_of(config.app.algo)}: Agent has no `model`, its network, a torch.nn.Module")
    agent.model.eval()
    return agent


def search_path() -> list[str]:
    """Where packages are looked up: in the current directory, on the Python path, and in what comes with Realm.

    The standard library comes before all of them, and where a module of the user's has the name of one that Realm
    needs, so does what is installed: `random.py` or `torch.py` of the user's would end in errors of Realm's.
    """
    here = os.getcwd()
    rest = [place for place in sys.path if place not in ("", here)]
    hidden = any(os.path.exists(os.path.join(here, f"{name}.py")) for name in _NEEDED)
    first = [place for place in rest if place in _STANDARD or (hidden and place in _INSTALLED)]
    return list(dict.fromkeys((*first, here, *rest, str(BUILT_IN))))


_NEEDED = ("torch", "numpy", "gymnasium", "zmq", "msgspec", "loguru", "rich", "numba", "tensorboard", "psutil")
_STANDARD = {
    place
    for place in sys.path
    if any(place.startswith(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")) or place.endswith(".zip")
    if "site-packages" not in place and "dist-packages" not in place
}
_INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib")}


def folder_of(algo: str) -> Path:
    """The package's folder, or where it would be in the current directory."""
    inner = algo.replace(".", os.sep)
    for place in search_path():
        if (Path(place) / inner / "__init__.py").is_file():
            return Path(place) / inner
    imported = list(getattr(sys.modules.get(algo), "__path__", []))  # from elsewhere, as KaiwuDRL's code is
    return Path(imported[0] if imported else Path.cwd() / inner)


def refuse_code_of_a_run(package: str, run_dir: Path | None = None, log_dir: Path | None = None) -> None:
    """Raise ConfigError if the package would be imported from inside a run, which somebody else may have made.

    Code comes from where the user stands. It is decided by path and before any import, which would run `__init__.py`.
    No code is taken from `run_dir` either, nor from `log_dir` unless the user stands in it.
    """
    levels = package.split(".")
    for place in dict.fromkeys(Path(one or os.curdir).resolve() for one in search_path()):
        chain = [place.joinpath(*levels[:count]) for count in range(1, len(levels) + 1)]
        if not (chain[0].is_dir() or chain[0].with_suffix(".py").is_file()):
            continue
        named = {log_dir.resolve()} - {place, *place.parents} if log_dir else set()
        named |= {run_dir.resolve()} if run_dir else set()
        for folder in (
            folder for level in (*chain, *(one.resolve() for one in chain)) for folder in _up_to(place, level)
        ):
            if folder in named or _is_run(folder, strict=folder == place):
                raise ConfigError(
                    f"{chain[-1]}: is inside {folder}, which holds runs or a model, so no code is taken from there; "
                    f"move the package {package!r} elsewhere if you trust it"
                )


def _up_to(place: Path, folder: Path) -> list[Path]:
    """The folder and those above it, down to `place` or to the root."""
    above = [folder, *folder.parents]
    return above[: above.index(place) + 1] if place in above else above


def _is_run(folder: Path, strict: bool) -> bool:
    """Whether it holds a run or a model. strict: a config.toml alone may be the user's own."""
    if (folder / "run.json").is_file() or (folder / "manifest.json").is_file():
        return True
    return (folder / "config.toml").is_file() and (not strict or (folder / "ckpt").is_dir())


def check_agent(algo: str) -> None:
    """Check that `<algo>/algorithm/agent.py` exists and is valid Python, without running it (it imports torch)."""
    path = folder_of(algo) / "algorithm" / "agent.py"
    try:
        compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise UserCodeError(f"{path}: {error.strerror}; expected a class Agent") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserCodeError(f"{path}{line}: {type(error).__name__}: {error}") from error


def load_workflow(algo: str) -> Workflow:
    """Import the generator function `workflow` of `<algo>/train_workflow.py`."""
    module = _module(algo, "train_workflow", "workflow(envs, policy, context)")
    return _function(module, "workflow", "envs", "policy", "context")


def load_callbacks(algo: str) -> dict[str, Callable[[Progress], Any]]:
    """Import `<algo>/callbacks.py`: the functions that it has of these four, by name; none if there is no such file."""
    names = ("on_start", "on_update", "on_evaluation", "on_end")
    if not (folder_of(algo) / "callbacks.py").is_file():
        return {}
    module = _module(algo, "callbacks", f"some of {', '.join(names)}")
    for name in vars(module):
        if name.startswith("on_") and name not in names:
            near = did_you_mean(name, names)
            raise UserCodeError(f"{module.__file__}: nothing calls {name}; expected some of {', '.join(names)}{near}")
    return {name: _function(module, name, "progress") for name in names if hasattr(module, name)}


def load_config_class(algo: str) -> type[Any]:
    """Import the class `Config` of `<algo>/config.py`."""
    expected = "a frozen dataclass Config"
    module = _module(algo, "config", expected)
    config: Any = _attribute(module, "Config", expected)
    dataclass = isinstance(config, type) and dataclasses.is_dataclass(config)
    if not dataclass or not config.__dataclass_params__.frozen:
        raise UserCodeError(f"{module.__file__}: Config must be a frozen dataclass")
    try:
        get_type_hints(config)
    except Exception as error:  # of any name in them
        raise _raised(error, algo, "config", "making Config") from error
    return config  # type: ignore[no-any-return]


def hyper_keys(algo: str) -> list[str]:
    """The fields of the user's Config, for advice; none if it cannot be loaded."""
    try:
        return [field.name for field in dataclasses.fields(load_config_class(algo)) if field.init]
    except UserError:
        return []


def load_hyper(algo: str, overrides: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Any:
    """Make the frozen `Config` of `<algo>/config.py` with overrides; `places` are RunConfig's, for messages."""
    config = load_config_class(algo)
    file = str(sys.modules[f"{algo}.config"].__file__)
    try:
        return build_dataclass(config, overrides, algo.rpartition(".")[2], places or {}, file)
    except ConfigError:
        raise
    except Exception as error:
        raise _raised(error, algo, "config", "making Config") from error


def hyper_of(config: RunConfig) -> Any:
    """The frozen `Config` of a run's package, with the run's hyper-parameters."""
    return load_hyper(config.app.algo, config.hyper, config.places)


def enter(config: RunConfig, role: str, run_dir: Path) -> None:
    """Call the function `enter(config, role, run_dir)` of `<algo>/config.py`, if it has one: a package may prepare each
    process before any of its other files is loaded there. role: that of the process, or "local" or "eval"."""
    if has_enter(config.app.algo):
        module = _module(config.app.algo, "config", "a frozen dataclass Config")
        _function(module, "enter", "config", "role", "run_dir")(hyper_of(config), role, run_dir)


def has_enter(algo: str) -> bool:
    """Whether the package has a function `enter`, so that its other files only run in a process that it prepared."""
    return hasattr(_module(algo, "config", "a frozen dataclass Config"), "enter")


def load_preferences(algo: str) -> Preferences | None:
    """The function `preferred(cores, device, workers)` of `<algo>/config.py`, or None if it has none. It gives the
    values that suit the package's agent for keys of [app] that are "auto"; `why` is what a start says of them."""
    module = _module(algo, "config", "a frozen dataclass Config")
    if not hasattr(module, "preferred"):
        return None
    function = _function(module, "preferred", "cores", "device", "workers")

    def preferred(cores: int, device: str, workers: int) -> Mapping[str, Any]:
        try:
            given = dict(function(cores, device, workers))
            msgspec.convert({key: value for key, value in given.items() if key != "why"}, AppConfig)
        except (Exception, SystemExit) as error:
            raise _raised(error, algo, "config", "calling preferred") from error
        return given

    return preferred


def hyper_table(hyper: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the user's Config that TOML can write, so that a run does not depend on defaults that change."""
    table = dict(overrides)
    for field in dataclasses.fields(hyper):
        with suppress(TypeError):  # TOML has no such value: keep the default or the override
            toml_value(value := getattr(hyper, field.name))
            if field.init:
                table[field.name] = value
    return table


@contextmanager
def calling(config: RunConfig, function: str, file: str = "feature.definition") -> Iterator[None]:
    """Turn errors from calls of a function of the user's, in this file of the package, into one sentence.

    A ConfigError gets the place of the key it names, else of the environment. A ValueError that names a key of [env],
    as environments refuse their options, becomes one; so does the TypeError of a constructor without such an argument:
    most often [env] belongs to another environment. Every other error becomes a UserCodeError with the user's line.
    """
    try:
        yield
    except ConfigError as refused:
        text = str(refused).replace("[env] ", "env.")
        named = [key for key in config.places if "." in key and _mention(text, key, None) >= 0]
        place = config.places.get(named[0] if named else "env.id") or config.places.get("app.algo", "[env]")
        raise ConfigError(f"{place}: {refused}") from refused
    except BdbQuit as left:
        raise UserCodeError(LEFT_DEBUGGER) from left
    except (Exception, SystemExit) as told:
        error = told.__cause__ if isinstance(told, UserCodeError) and told.__cause__ else told
        if isinstance(error, ValueError) and not isinstance(error, ContractError | UserCodeError):
            text = one_line(error)
            mentions = {key: _mention(text, key, value) for key, value in config.env.items()}
            if named := [key for key, position in mentions.items() if position >= 0]:
                key = min(named, key=lambda name: mentions[name])  # a list of the valid keys comes after the wrong one
                place = config.places.get(f"env.{key}", "table [env]")
                unknown = "must be" not in text  # it knows the key, but not the value
                near = f" (did you mean {key!r} in [app]?)" if unknown and key in HINTS else ""
                own = hyper_keys(config.app.algo) if unknown else ()
                near = f" (did you mean '{config.app.hyper_table}.{key}'?)" if key in own else near
                raise ConfigError(f"{place}: key 'env.{key}': {text}{near}") from error
        if isinstance(error, TypeError) and (found := _UNKNOWN_ARGUMENT.search(str(error))) and found[1] in config.env:
            place = config.places.get(f"env.{found[1]}", "table [env]")
            raise ConfigError(
                f"{place}: key 'env.{found[1]}': {one_line(error)}; if [env] belongs to another environment, give the "
                "configuration of this one with --config"
            ) from error
        if isinstance(told, UserCodeError):
            raise
        of_env = config.places.get("env.id", "") if function != "workflow" else ""
        raise _raised(error, config.app.algo, file, f"calling {function}", of_env) from error


def _mention(text: str, key: str, value: Any) -> int:
    """Where `text` first names a key, or its value if that is text such as a file name; -1 if nowhere."""
    names = [key, value] if isinstance(value, str) and value else [key]
    return min(
        (match.start() for name in names if (match := re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))), default=-1
    )


def _module(algo: str, name: str, expected: str) -> ModuleType:
    if f"{algo}.{name}" in sys.modules:  # the current directory may be a simulator's by now
        return sys.modules[f"{algo}.{name}"]
    refuse_code_of_a_run(algo)
    sys.path[:] = search_path()
    try:
        with apart():
            return importlib.import_module(f"{algo}.{name}")
    except (Exception, SystemExit) as error:
        gone = error.name if isinstance(error, ModuleNotFoundError) else None
        if gone is not None and f"{algo}.{name}.".startswith(f"{gone}."):
            raise _missing(algo, name, expected) from error
        raise _raised(error, algo, name, "importing it") from error


def _missing(algo: str, name: str, expected: str) -> UserCodeError:
    if algo in sys.modules:
        file = folder_of(algo) / f"{name.replace('.', '/')}.py"
        return UserCodeError(f"{file}: no such file; expected a file with {expected}")
    near = did_you_mean(algo, [path.parent.name for path in Path.cwd().glob("*/config.py")])
    return UserCodeError(
        f"{folder_of(algo)}: no such package, nor elsewhere on the Python path; algo must name a package{near}"
    )


def _raised(error: BaseException, algo: str, name: str, doing: str, env_id: str = "") -> UserCodeError:
    """A UserCodeError with the line of the user's code that raised. env_id: the place of the key `env.id`, which stands
    for an environment that the zoo's packages made of it."""
    folder = folder_of(algo)
    place = place_of(error, after=MAKES_ENVS)
    if not place and env_id and any(frame.filename == str(MAKES_ENVS) for frame in extract_tb(error.__traceback__)):
        place = f"{env_id}: key 'env.id'"
    place = place or place_in(folder, error) or str(folder / f"{name.replace('.', '/')}.py")
    text = one_line(error.msg if isinstance(error, SyntaxError) else error)
    return UserCodeError(f"{place}: {type(error).__name__}: {text} (while {doing})")


def _attribute(module: ModuleType, name: str, expected: str) -> Any:
    if not hasattr(module, name):
        near = did_you_mean(name, [known for known in vars(module) if not known.startswith("_")])
        raise UserCodeError(f"{module.__file__}: has no {name}; expected {expected}{near}")
    return getattr(module, name)


def _function(module: ModuleType, name: str, *arguments: str) -> Callable[..., Any]:
    expected = f"{name}({', '.join(arguments)})"
    function: Callable[..., Any] = _attribute(module, name, expected)
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise UserCodeError(f"{module.__file__}: {name} cannot be called: {error}; expected {expected}") from error
    return function
