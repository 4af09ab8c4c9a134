"""The five methods of an agent, and their wrappers: who calls decides what happens.

KaiwuDRL's decorators send a method elsewhere, depending on the process. Here each process has one `Side` that says what
a call of the project's code does. The framework itself calls the undecorated function (`plain`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

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
    """Call the undecorated function of an agent's method."""
    function = getattr(type(agent), name).__wrapped__
    _inside.append(name)
    try:
        return function(agent, *args, **kwargs)
    finally:
        _inside.pop()


def inside() -> bool:
    """Whether the framework is calling a method of the agent now."""
    return bool(_inside)


def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one argument of predict, exploit or learn, by position or by any name."""
    if args:
        return args[0]
    return next(iter(kwargs.values())) if kwargs else []


def wrong_answer(function: Callable[..., Any], answers: Any, wanted: int) -> str:
    """What is wrong with an answer of predict or exploit that is no list of `wanted` ActData."""
    code = inspect.unwrap(function).__code__
    got = f"{len(answers)} things" if isinstance(answers, (list, tuple)) else type(answers).__name__
    return (
        f"{code.co_filename}:{code.co_firstlineno}: Agent.{code.co_name} got {wanted} ObsData and returned {got}; it "
        "must return a list of as many ActData (predict_batch_size bounds how many it gets)"
    )
