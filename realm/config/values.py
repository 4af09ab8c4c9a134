"""Converts one value of a TOML file to the annotated type of its key or field, or says what the value must be.

Called by `load` for the keys of [app] and for the fields of the user's Config. In: a value, a type hint and the place
of the key. Out: the converted value, or a ConfigError of one sentence. Types are strict: text never becomes a number,
a bool is not a number, an int is accepted as a float, and every number must be finite.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from realm.config.toml import toml_value
from realm.errors import ConfigError, did_you_mean, one_line

NOUNS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes",
    list: "a list", tuple: "a list", dict: "a table",
}  # fmt: skip
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
"""Attribute of msgspec.Meta -> its words."""


def convert(
    value: Any,
    hint: Any,
    place: str,
    name: str,
    check: Callable[[Any], bool] | None = None,
    spelling: Callable[[str], str] | None = None,
) -> Any:
    """Convert `value` to the type `hint`; `check` must accept it. `spelling` rewrites text first."""
    spelt = spelling(value) if spelling and isinstance(value, str) else value
    must = ""
    try:
        converted = msgspec.convert(spelt, hint, strict=True)
    except msgspec.ValidationError as error:
        converted, must = None, _expected_instead(value, hint) or one_line(error).removeprefix("Expected ")
    else:
        if not _is_finite(converted):
            must = "a finite number" if isinstance(value, int | float) else "made of finite numbers"
        elif check and not check(converted):
            must = expected(hint)
    if must:
        near = did_you_mean(value.rpartition(".")[2], _choices(hint)) if isinstance(value, str) else ""
        raise ConfigError(f"{place}: key {name!r}: got {toml_value(value)[:80]}; must be {must}{near}")
    return converted


def is_text(hint: Any) -> bool:
    """Whether a hint is `str`, with or without bounds."""
    return getattr(hint, "__origin__", hint) is str  # Annotated[str, ...] has the origin str


def _is_finite(value: Any) -> bool:
    """Whether no number in `value` is NaN, infinite or too large for a float."""
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def _expected_instead(value: Any, hint: Any) -> str:
    """Say in words what a hint accepts, for a value of another type or out of bounds."""
    if is_text(hint) and not isinstance(value, str):
        return NOUNS[str]
    words = expected(hint)
    return words if _is_finite(value) else re.sub(r"\ba (whole )?number", r"a finite \1number", words)


def expected(hint: Any) -> str:
    """Say in words which values a hint accepts; "" where there are no words for it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        metas = [meta for meta in args[1:] if isinstance(meta, msgspec.Meta)]
        limits = [(word, getattr(meta, bound)) for meta in metas for bound, word in BOUNDS.items()]
        bounds = " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
        described = next((meta.description for meta in metas if meta.description), None)
        return described or f"{expected(args[0])} {bounds}".strip()
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(expected, args)))
    if origin is typing.Literal:
        return " or ".join(map(toml_value, args))
    if origin in (list, tuple) and args[1:] in ((), (...,)):
        return f"a list, each {expected(args[0])}"
    return NOUNS.get(origin or hint, "")


def _choices(hint: Any) -> list[str]:
    """The literal words that a hint accepts, for advice."""
    if hint is bool:
        return ["true", "false"]
    if typing.get_origin(hint) is typing.Literal:
        return [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
    return [choice for inner in typing.get_args(hint) for choice in _choices(inner)]
