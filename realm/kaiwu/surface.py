"""What the code of a project imports from KaiwuDRL: records, decorators, helpers, the configuration.

`finder.py` makes modules of these when the project's code imports them; `contents` names what is in which.
"""

from __future__ import annotations

import enum
import functools
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from loguru import logger as log

from realm.kaiwu.methods import METHODS, wrapper

PACKAGES = ("kaiwu_agent", "kaiwudrl", "kaiwu_env", "arena_proto")
CELLS = 128
DIRECTIONS = 8
NEAR = 500.0  # world units: a step that is shorter hit a wall
UNKNOWN = -1

ATTACHED: dict[str, Any] = {}
"""What `attached` and `create_cls` have put into the protocol, by name; the last one wins."""


class Frame:
    """A free-form record: its attributes are the keywords."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.__dict__.items())})"


def create_cls(name: str, **fields: Any) -> type[Any]:
    """A record class with a keyword constructor. A field that is not given has its default here."""

    def __init__(self: Any, **given: Any) -> None:
        self.__dict__.update(fields | given)

    # the module of the caller, so that pickle finds the class
    members = {"__init__": __init__, "__module__": sys._getframe(1).f_globals.get("__name__")}
    return attached(type(name, (Frame,), members))  # type: ignore[no-any-return]


def attached(thing: Any) -> Any:
    """Put a function or a class into the protocol under its name, and return it as it is."""
    ATTACHED[thing.__name__] = thing
    return thing


class BaseAgent:
    """The base class of agents. Many do not call its constructor, so nothing here depends on it."""

    def __init__(self, agent_type: str = "player", device: Any = None, logger: Any = None, monitor: Any = None) -> None:
        self.agent_type, self.device, self.logger, self.monitor = agent_type, device, logger, monitor


def check_hasattr(*names: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of `__init__`: afterwards the object must have these attributes."""
    wanted = [name for group in names for name in ([group] if isinstance(group, str) else group)]

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            for name in wanted:
                if not hasattr(self, name):
                    raise AttributeError(f"{type(self).__name__} has no attribute {name!r} after __init__")

        return checked

    return decorate


# ---- helpers; lists and bools, since their callers concatenate ----


def one_hot_encoding(grid_pos: Any) -> list[int]:
    """Cell (x, z) as 128 numbers for x and 128 for z."""
    code = [0] * (2 * CELLS)
    code[int(grid_pos.x)] = 1
    code[CELLS + int(grid_pos.z)] = 1
    return code


def read_relative_position(position: Any) -> list[float]:
    """9 numbers: one-hot of the eight directions (all 0 for none), and the grid distance."""
    code = [0.0] * DIRECTIONS
    if position.direction:
        code[int(position.direction) - 1] = 1.0
    return [*code, float(position.grid_distance)]


def bump(x: float, z: float, last_x: float, last_z: float) -> bool:
    """Whether two positions are at most 500 units apart; False if either is unknown, (-1, -1)."""
    if (x, z) == (UNKNOWN, UNKNOWN) or (last_x, last_z) == (UNKNOWN, UNKNOWN):
        return False
    return bool(((x - last_x) ** 2 + (z - last_z) ** 2) ** 0.5 <= NEAR)


# ---- configuration, log ----


class _Settings:
    """The configuration's keys as attributes."""

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(f"CONFIG has no key {key!r}; set it in the table [app] of conf/configure_app.toml")


CONFIG = _Settings()
_DEFAULTS: Mapping[str, Any] = {
    "app": "back_to_the_realm", "algo": "diy", "run_mode": "train", "wrapper_type": "remote",
    "dump_model_freq": 100, "train_batch_size": 256, "preload_model": False, "preload_model_dir": "",
    "preload_model_id": 0, "eval_model_dir": "", "eval_model_id": 0, "level": "INFO", "set_name": "set1",
    "use_which_deep_learning_framework": "pytorch",
}  # fmt: skip


def set_config(keys: Mapping[str, Any]) -> None:
    """Set what CONFIG shows."""
    CONFIG.__dict__.clear()
    CONFIG.__dict__.update({**_DEFAULTS, **keys})


class Logger:
    """The logger that agents and workflows get: one text to each method, written to the log of the process."""

    def info(self, text: Any = "", *args: Any, **kwargs: Any) -> None:
        log.opt(depth=1).info("{}", text)

    def warning(self, text: Any = "", *args: Any, **kwargs: Any) -> None:
        log.opt(depth=1).warning("{}", text)

    def error(self, text: Any = "", *args: Any, **kwargs: Any) -> None:
        log.opt(depth=1).error("{}", text)

    def debug(self, text: Any = "", *args: Any, **kwargs: Any) -> None:
        log.opt(depth=1).debug("{}", text)

    def exception(self, text: Any = "", *args: Any, **kwargs: Any) -> None:
        log.opt(depth=1, exception=True).error("{}", text)

    warn, critical, fatal = warning, error, error


class Monitor:
    """What agents and workflows get as `monitor`."""

    def __init__(self, put: Callable[[str, float], None]) -> None:
        """put: gets the name and the value of each curve."""
        self.put = put

    def put_data(self, data: Any) -> None:
        """{pid: {name: value}} or {name: value}; a value is a number, also a tensor of one; others are left out."""
        for values in (data, *data.values()) if isinstance(data, dict) else ():
            for name, number in numbers(values).items():
                self.put(name, number)


def numbers(values: Any) -> dict[str, float]:
    """Those entries of a dict that are finite numbers."""
    found: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue
        if math.isfinite(number):
            found[str(name)] = number
    return found


# ---- generated files in conf/ import these and only hold them ----


class _Held:
    """Holds its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self.__dict__.update(kwargs)


def _held(*names: str) -> dict[str, Any]:
    return {name: type(name, (_Held,), {}) for name in names}


RelativeDirection = enum.IntEnum(
    "RelativeDirection",
    "RELATIVE_DIRECTION_NONE East NorthEast North NorthWest West SouthWest South SouthEast",
    start=0,
)
RelativeDistance = enum.IntEnum(
    "RelativeDistance", "RELATIVE_DISTANCE_NONE VerySmall Small Medium Large VeryLarge", start=0
)


# ---- which module has what ----


def _attached_or_raise(name: str) -> Any:
    """The protocol's `__getattr__`: a workflow may import from it before it imports its own definition."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    if name not in ATTACHED:
        importlib.import_module(f"{CONFIG.algo}.feature.definition")
    if name == "__all__":  # import *
        return list(ATTACHED)
    if name not in ATTACHED:
        raise AttributeError(f"no {name} with @attached in {CONFIG.algo}/feature/definition.py")
    return ATTACHED[name]


def _make(name: str = "back_to_the_realm", *args: Any, **kwargs: Any) -> Any:
    """kaiwu_env.make."""
    from realm.kaiwu.game import Game  # late: only then is a game needed

    return Game()


_AGENT = {"BaseAgent": BaseAgent, "check_hasattr": check_hasattr} | {
    f"{method}_wrapper": wrapper(method) for method in METHODS
}
_HELPERS: Mapping[str, Any] = {one.__name__: one for one in (one_hot_encoding, read_relative_position, bump)}
_ENUMS = {
    "RelativeDirection": RelativeDirection, "RelativeDistance": RelativeDistance,
    **RelativeDirection.__members__, **RelativeDistance.__members__,
}  # fmt: skip
_MODULES: Mapping[str, Mapping[str, Any]] = {
    "kaiwu_agent.utils.common_func": {"create_cls": create_cls, "attached": attached, "Frame": Frame},
    "kaiwu_agent.agent.base_agent": _AGENT,
    "kaiwu_agent.agent.protocol.protocol": {"__getattr__": _attached_or_raise},
    "kaiwudrl.common.config.config_control": {"CONFIG": CONFIG},
    "kaiwudrl.interface.array_spec": _held("ArraySpec"),
    "kaiwudrl.interface.state": _held("State"),
    "kaiwudrl.interface.action": _held("Action", "ActionSpec"),
    "kaiwudrl.common.algorithms.distribution": _held("CategoricalDist"),
    "kaiwu_env": {"make": _make},
    "arena_proto.back_to_the_realm.custom_pb2": _ENUMS,
}


def contents(module: str) -> Mapping[str, Any] | None:
    """What is in a module of KaiwuDRL; empty for a package that only holds others, None if there is none."""
    if module in _MODULES:
        return _MODULES[module]
    if any(name.startswith(f"{module}.") for name in _MODULES):
        return {}
    parts = module.split(".")
    if parts[:2] == ["kaiwu_agent", "back_to_the_realm"]:  # the same helpers for any algorithm
        return _HELPERS if parts[3:] == ["feature_process"] else {} if len(parts) < 4 else None
    return None
