"""The five methods of an agent, and their wrappers: who calls decides what happens.

KaiwuDRL's decorators send a method elsewhere, depending on the process. Here each process has one `Side` that says what
a call of the project's code does. The framework itself calls with `plain`, and then the decorator does nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from realm.errors import UserCodeError, place_of_function

METHODS = ("predict", "exploit", "learn", "save_model", "load_model")


class Side:
    """What calls from the project's code do. This one is for a process where nothing goes anywhere; while an agent is
    made, only files are read.

    Each method gets the agent, its undecorated function, and the arguments of the call.
    """

    def predict(self, agent: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return None

    exploit = learn = save_model = predict

    def load_model(self, agent: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(agent, *args, **kwargs)


_side: Side = Side()
_inside: list[str] = []
"""Methods that the framework is calling now, innermost last."""


def act_as(side: Side) -> None:
    """From now on this is what calls in this process do."""
    global _side
    _side = side


def wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorator of one of the five methods."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def method(agent: Any, *args: Any, **kwargs: Any) -> Any:
            if name in _inside:  # a method that calls its parent's, or itself
                return function(agent, *args, **kwargs)
            return getattr(_side, name)(agent, function, *args, **kwargs)

        method.__dict__["kaiwu_method"] = name
        return method

    return decorate


def plain(agent: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an agent's method past its wrapper, but not past other decorators."""
    _inside.append(name)
    try:
        return getattr(agent, name)(*args, **kwargs)
    finally:
        _inside.pop()


def inside() -> bool:
    """Whether the framework is calling a method of the agent now."""
    return bool(_inside)


def is_wrapped(method: Any, name: str, depth: int = 5) -> bool:
    """Whether a method has its wrapper, also below decorators that hide it."""
    if getattr(method, "kaiwu_method", None) == name:
        return True
    if not inspect.isfunction(method) or depth == 0:
        return False
    hidden = inspect.getclosurevars(method).nonlocals.values()
    return any(is_wrapped(inner, name, depth - 1) for inner in hidden)


def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one argument of predict, exploit or learn, by position or by any name."""
    if args:
        return args[0]
    return next(iter(kwargs.values())) if kwargs else []


def checked_answers(function: Callable[..., Any], answers: Any, wanted: int) -> Any:
    """What predict or exploit returned. Raises UserCodeError if that is no list of `wanted` ActData."""
    if isinstance(answers, (list, tuple)) and len(answers) == wanted:
        return answers
    got = f"{len(answers)} things" if isinstance(answers, (list, tuple)) else type(answers).__name__
    raise UserCodeError(
        f"{place_of_function(function)}: Agent.{function.__name__} got {wanted} ObsData and returned {got}; it must "
        "return a list of as many ActData (predict_batch_size bounds how many it gets)"
    )
