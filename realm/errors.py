"""Errors whose text is one sentence for the user. Each ends its process with its class's exit code.

Raised everywhere, caught at the top of a process (`commands/main.py`, `launch/child.py`). After a UserError a restart
does not help: the configuration, the user's code or a file must change first. A RunError ends a run that had begun.
"""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from realm.files import from_here


class UserError(ValueError):
    """The user must change something; the text says in one sentence what is wrong, where, and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A key, an option or a file name is wrong."""


class UserCodeError(UserError):
    """The user's package lacks something, or raises where the framework calls it."""


class CheckpointError(UserError):
    """A checkpoint cannot be used; the text names the file."""


class ContractError(UserError):
    """An array, a Spec or a message breaks the contract; the text names the field and both sides."""


class RunError(RuntimeError):
    """A run failed; the text says in one sentence why and what to do. It is not tried again."""

    exit_code = 1


class DivergedError(RunError):
    """The weights became NaN or infinite again and again."""

    exit_code = 3


class Stopped(Exception):
    """The run ends: whoever is asked to go on raises it, and the top of the process catches it."""


LEFT_DEBUGGER = "the debugger was left (by q, or at the end of its input), so the run ends here, without a checkpoint"


def to_install(packages: str) -> str:
    """The command that brings packages into this Python. In the .venv of a checkout what is locked keeps its version:
    a newer NumPy or protobuf, which a package may ask for, would break the others."""
    locked = Path(sys.prefix, "locked.txt")
    if not locked.is_file():
        return f"pip install {packages}"
    python, constraints = (shlex.quote(str(from_here(path))) for path in (Path(sys.executable), locked))
    return f"{python} -m pip install -c {constraints} {packages}"


def pip_here(text: str) -> str:
    """What gymnasium says of a missing package, with the command of `to_install` in it."""
    return re.sub(r"pip install ([^`]+)", lambda found: to_install(found[1].replace('"', "'")), text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` if a known word is close, else ""."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


_HERE = Path(__file__).resolve().parent
_LIBRARIES = (
    _HERE,
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def place_of(error: BaseException, after: Path | None = None) -> str:
    """`file:line` of the deepest call in the user's code, which is neither Realm's nor installed; "" if there is none.

    after: only among the calls that this file made, if it is in the traceback.
    """
    if isinstance(error, SyntaxError):
        return place_in(_HERE, error)
    frames = traceback.extract_tb(error.__traceback__)
    made = [i for i, frame in enumerate(frames) if Path(frame.filename) == after]
    for frame in reversed(frames[made[-1] if made else 0 :]):
        if _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    # gymnasium raises the TypeError of a constructor anew
    return place_of(error.__cause__, after) if error.__cause__ else ""


def place_of_call() -> str:
    """`file:line` in the user's code from which Realm was called; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_users(filename: str) -> bool:
    """Whether code is neither Realm's nor installed."""
    path = Path(filename)
    return path.is_absolute() and not any(folder in path.resolve().parents for folder in _LIBRARIES)


def place_of_function(function: Callable[..., Any]) -> str:
    """`file:line` where a function of the user's begins, also below its decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def place_in(folder: Path, error: BaseException) -> str:
    """`file:line` of the deepest call in a folder's code, or where a SyntaxError is; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    own = [one for one in traceback.extract_tb(error.__traceback__) if folder in Path(one.filename).parents]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def one_line(error: object) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split())[:300]


# control characters but the tab, marks and overrides of the writing direction, separators, halves of characters
_STEERS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(line: str) -> str:
    """A line as a terminal may get it: what would steer the terminal, or begin another line, is written as an escape.
    For all text that comes from a file or a peer."""
    return _STEERS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), line)
