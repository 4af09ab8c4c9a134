"""TOML with places: reads a file together with the line of every key, and writes values back as TOML.

`read_toml` gives the tables of a file and `table.key` -> `file:line`, or raises ConfigError with the line of the wrong
statement. Python's tomllib reports no lines of keys; `_statements` finds them.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realm.errors import ConfigError, did_you_mean, one_line
from realm.files import read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_BYTES = 1 << 20  # of a file
MOST_BRACKETS, MOST_DOTS = 16, 8  # nested in a value; in a key

Key = tuple[str, ...]
Statement = tuple[int, int, list[Key]]
"""First line (from 0), line after the last, and the keys that it sets; no keys if it is not TOML."""


def read_toml(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse a TOML file into its tables and the place of every key."""
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file}: not a file; must be the name of a TOML file")
        data = read_bytes(file, MOST_BYTES)
    except FileNotFoundError as error:
        near = did_you_mean(file.name, (path.name for path in file.parent.glob("*.toml")))
        raise ConfigError(f"{file}: no such file; must be the name of a TOML file{near}") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{file}:{line}: byte {data[error.start]:#04x} is not UTF-8; the file must be UTF-8"
        ) from error
    lines = text.split("\n")
    statements = list(_statements(file, text, lines))
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise _syntax_error(file, lines, statements, error) from error
    places: dict[str, str] = {}
    for start, _, keys in statements:
        for key in keys:
            places.setdefault(".".join(key), f"{file}:{start + 1}")
    return tables, places


def _statements(file: Path, text: str, lines: list[str]) -> Iterator[Statement]:
    """Read each statement of a file by itself. Raises ConfigError for one that is nested too deeply."""
    table: Key = ()
    for start, end, deep in _cut(text):
        if deep:
            raise ConfigError(
                f"{file}:{start + 1}: {lines[start].strip()[:60]!r} is nested too deeply; a value may have "
                f"{MOST_BRACKETS} brackets in each other, and a key {MOST_DOTS} dots"
            )
        try:
            keys = list(_keys(tomllib.loads("\n".join(lines[start:end]) + "\n"), ()))
        except ValueError:
            yield start, end, []
            continue
        if lines[start].lstrip().startswith("["):
            table = keys[-1]
        else:
            keys = [table + key for key in keys]
        if keys:
            yield start, end, keys


_ENDS = {
    "": re.compile(r"""\"{3}|'{3}|["'\n#\[\]{}.,=]"""),
    "#": re.compile(r"\n"),
    '"': re.compile(r"""\\[^\n]|["\n]"""),
    "'": re.compile(r"['\n]"),
    '"""': re.compile(r"""\\.|\"{3}""", re.DOTALL),
    "'''": re.compile("'''"),
}
"""What may end the text that one reads: outside of all quotes, in a comment, in each kind of quotes."""


def _cut(text: str) -> Iterator[tuple[int, int, bool]]:
    """Cut TOML into statements: first line, line after the last, whether it is nested too deeply. In linear time: what
    somebody sent may have any form."""
    quote, depth, dots, deep = "", 0, 0, False
    position = line = start = 0
    while token := _ENDS[quote].search(text, position):
        line += text.count("\n", position, token.end())
        position, sign = token.end(), token[0]
        if quote and sign != "\n":
            quote = quote if sign[0] == "\\" else ""
        elif sign == "\n":
            quote, dots = "", 0
            if depth == 0:
                yield start, line, deep
                start, deep = line, False
        elif sign in _ENDS:
            quote = sign
        else:
            depth = max(0, depth + (sign in "[{") - (sign in "]}"))
            dots = dots + 1 if sign == "." else 0
            deep = deep or depth > MOST_BRACKETS or dots > MOST_DOTS
    yield start, text.count("\n") + 1, deep


def parse_value(text: str) -> Any:
    """Read the text after `key=` on the command line: a TOML value, or else plain text."""
    if any(deep for _, _, deep in _cut(text)):
        return text.strip()
    try:
        return tomllib.loads(f"value = {text}\n")["value"]
    except ValueError:
        return text.strip()


def _keys(value: Any, above: Key) -> Iterator[Key]:
    for entry in value if isinstance(value, list) else [value]:
        for name, inner in entry.items() if isinstance(entry, dict) else ():
            yield (*above, name)
            yield from _keys(inner, (*above, name))


def _syntax_error(file: Path, lines: list[str], statements: list[Statement], error: Exception) -> ConfigError:
    """Name the first statement that is not TOML or repeats an earlier one."""
    broken = next((i for i, (_, _, keys) in enumerate(statements) if not keys), len(statements))
    # the shortest part of the file that is wrong ends with this statement
    broken = bisect_left(range(broken), True, key=lambda i: not _parses(lines[: statements[i][1]]))
    start, _, keys = statements[broken]
    place = f"{file}:{start + 1}"
    seen = {key: first for first, _, earlier in reversed(statements[:broken]) for key in earlier}
    again = next((key for key in reversed(keys) if key in seen), None)
    if again is not None:
        header = lines[start].lstrip().startswith("[")
        label = f"table [{'.'.join(again)}]" if header else f"key {shown(again)!r}"
        return ConfigError(f"{place}: {label}: already set at line {seen[again] + 1}; must be set once")
    reason = re.sub(r" \(at .*\)$|: value has \d+ digits; use .*", "", one_line(error))
    expected = "key = value, with text in quotes, and true or false in small letters"
    return ConfigError(f"{place}: {lines[start].strip()[:60]!r} is not TOML: {reason}; must be {expected}")


def _parses(lines: list[str]) -> bool:
    try:
        tomllib.loads("\n".join(lines) + "\n")
    except ValueError:
        return False
    return True


def shown(key: Key) -> str:
    """Name a key as `--set` does: without [app]."""
    return ".".join(key[1:] if key[0] == "app" else key)


def toml_key(key: str) -> str:
    """Write a key, in quotes if it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write one value as TOML; nested tables in braces."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(entry) for entry in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(entry)}" for key, entry in value.items()) + "}"
    raise TypeError(f"TOML cannot hold a {type(value).__name__}: {value!r}")
