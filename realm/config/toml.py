"""TOML with places: reads a file together with the line of every key, and writes values back as TOML.

Called only within `config`. `read_toml` gives the tables of a file and `table.key` -> `file:line`, or raises
ConfigError with the line of the wrong statement. Python's tomllib reports no lines of keys; `_statements` finds them.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from realm.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Key = tuple[str, ...]
Statement = tuple[int, int, list[Key]]
"""First line (from 0), line after the last, and the keys that it sets; no keys if it is not TOML."""


def read_toml(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse a TOML file into its tables and the place of every key."""
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file}: not a file; must be the name of a TOML file")
        data = file.read_bytes()
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
    statements = list(_statements(lines))
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _syntax_error(file, lines, statements, error) from error
    places: dict[str, str] = {}
    for start, _, keys in statements:
        for key in keys:
            places.setdefault(".".join(key), f"{file}:{start + 1}")
    return tables, places


def _statements(lines: list[str]) -> Iterator[Statement]:
    """Cut a file into its statements: each ends at the first line up to which it parses by itself."""
    table: Key = ()
    start = 0
    for end in range(1, len(lines) + 1):
        try:
            keys = list(_keys(tomllib.loads("\n".join(lines[start:end]) + "\n"), ()))
        except (ValueError, RecursionError):
            continue
        if lines[start].lstrip().startswith("["):
            table = keys[-1]
        else:
            keys = [table + key for key in keys]
        if keys:
            yield start, end, keys
        start = end
    if start < len(lines):
        yield start, len(lines), []


def parse_value(text: str) -> Any:
    """Read the text after `key=` on the command line: a TOML value, or else plain text."""
    try:
        return tomllib.loads(f"value = {text}\n")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def _keys(value: Any, above: Key) -> Iterator[Key]:
    for entry in value if isinstance(value, list) else [value]:
        for name, inner in entry.items() if isinstance(entry, dict) else ():
            yield (*above, name)
            yield from _keys(inner, (*above, name))


def _syntax_error(file: Path, lines: list[str], statements: list[Statement], error: Exception) -> ConfigError:
    """Name the first statement that is not TOML or repeats an earlier one."""
    seen: dict[Key, int] = {}
    for start, end, keys in statements:
        place = f"{file}:{start + 1}"
        if not keys:
            break
        try:
            tomllib.loads("\n".join(lines[:end]) + "\n")
        except (ValueError, RecursionError):
            again = next((key for key in reversed(keys) if key in seen), None)
            if again is None:
                break
            header = lines[start].lstrip().startswith("[")
            label = f"table [{'.'.join(again)}]" if header else f"key {shown(again)!r}"
            return ConfigError(f"{place}: {label}: already set at line {seen[again] + 1}; must be set once")
        for key in keys:
            seen.setdefault(key, start)
    reason = re.sub(r" \(at .*\)$", "", one_line(error))
    expected = "key = value, with text in quotes, and true or false in small letters"
    return ConfigError(f"{place}: {lines[start].strip()[:60]!r} is not TOML: {reason}; must be {expected}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` if a known word is close, else ""."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def shown(key: Key) -> str:
    """Name a key as `--set` does: without [app]."""
    return ".".join(key[1:] if key[0] == "app" else key)


def one_line(error: object) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split())[:300]


def toml_key(key: str) -> str:
    """Write a key, in quotes if it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write one value as TOML; nested tables in braces."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
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
