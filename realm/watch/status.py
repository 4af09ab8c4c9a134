"""What a run shows of itself at one moment: the numbers, their words, and the lines of a terminal of any width.

The board makes a `Status` (`realm/watch/board.py: Board.status`). The live display shows it, `realm status` and `realm
attach` get it over the control channel, and `realm status --json` prints it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from loguru import logger

from realm.contract import Version, curve_name
from realm.errors import plain

Cell = tuple[str, str]
"""Label and text."""

LOG_FORMAT = "{time:HH:mm:ss} {level:<7} {message}"
"""Of a terminal."""

_GAP = 3  # spaces between two columns
_INDENT = 2


@dataclass(frozen=True)
class Scored:
    """A model that the evaluator has judged. statistic: what `score` is the mean of."""

    statistic: str
    score: float
    epoch: int
    update: int


@dataclass(frozen=True)
class HostStatus:
    """Another machine of the run. up, down: MB/s on its cable, the mean of the run."""

    name: str
    workers: int
    up: float
    down: float
    heard_s: float


@dataclass(frozen=True)
class Status:
    """One moment of a run. Limits that are 0 and values that are None do not exist (yet)."""

    state: str
    env_steps: int
    max_env_steps: int
    env_steps_per_s: float
    updates: int
    episodes: int
    statistic: str
    """What training episodes are measured by: score, or return."""
    score: float | None
    score_episodes: int
    """The mean `score` is of so many training episodes, the newest ones."""
    evaluation: Scored | None
    best: Scored | None
    policy_lag_updates: float | None
    buffer_samples: int
    buffer_capacity: int
    elapsed_s: float
    remaining_s: float | None
    warm_up_left: int = 0
    """Env steps before the first update from a replay memory."""
    warm_up_samples_left: int = 0
    """The same in samples, where these are items of the user's own."""
    hosts: list[HostStatus] = field(default_factory=list)
    homeless: int = 0
    """Workers that wait for a host."""


def facts(status: Status) -> list[Cell]:
    """The short ones of the numbers."""
    limit = f" of {status.max_env_steps:,}" if status.max_env_steps else ""
    lag = "-" if status.policy_lag_updates is None else f"{status.policy_lag_updates:.2f} updates"
    left = "not known yet" if status.max_env_steps else "no limit set"
    left = left if status.remaining_s is None else clock(status.remaining_s)
    warm_up = (status.warm_up_left, "env steps"), (status.warm_up_samples_left, "samples")
    return [
        ("env steps", f"{status.env_steps:,}{limit}"),
        ("speed", f"{status.env_steps_per_s:,.0f} env steps/s"),
        ("updates", f"{status.updates:,}"),
        ("episodes", f"{status.episodes:,}"),
        ("elapsed", clock(status.elapsed_s)),
        ("remaining", left),
        ("policy lag", lag),
        *([("buffer", f"{status.buffer_samples:,} of {status.buffer_capacity:,}")] if status.buffer_capacity else []),
        *[("warm-up", f"{still:,} {unit} to go") for still, unit in warm_up if still],
    ]


def machines(status: Status) -> list[Cell]:
    """The other machines of the run."""
    cells = [("no host", f"for {status.homeless} workers, which wait for one")] if status.homeless else []
    for host in status.hosts:
        rates = f"{host.up:.2f} MB/s up, {host.down:.2f} down so far"
        cells.append((f"host {host.name}", f"{host.workers} workers, {rates}, heard {host.heard_s:.0f} s ago"))
    return cells


def scores(status: Status) -> list[Cell]:
    """How well the run plays, in words."""
    episodes = f"{status.score_episodes} episodes" if status.score_episodes > 1 else "episode"
    playing = "-" if status.score is None else f"{status.score:.1f}, mean of the last {episodes}"
    cells = [(f"training {status.statistic}", playing)]
    if status.evaluation:
        cells.append((f"evaluation {named(status.evaluation.statistic)}", judged(status.evaluation)))
    if status.best:
        cells.append((f"best {named(status.best.statistic)}", judged(status.best)))
    return cells


def judged(scored: Scored) -> str:
    """A score and its model."""
    return f"{scored.score:.1f}, model of {Version(scored.epoch, scored.update)}"


def named(statistic: str) -> str:
    """gymnasium calls the return `r`, the length `l` and the seconds that an episode took `t`."""
    return "seconds" if statistic == "t" else plain(curve_name(statistic) or statistic)


def one_line(status: Status) -> str:
    """Everything in a line, for a log."""
    cells = [("state", status.state), *facts(status), *scores(status), *machines(status)]
    return " | ".join(f"{label} {text}" for label, text in cells)


def lines(status: Status, width: int) -> list[str]:
    """Everything for a terminal of `width` columns; no line is longer, and no number is cut."""
    return [*in_columns(facts(status), width), *in_rows([*scores(status), *machines(status)], width)]


def in_columns(cells: Sequence[Cell], width: int) -> list[str]:
    """The cells next to each other, in as many columns as there is room for."""
    for count in range(min(4, len(cells)), 0, -1):
        columns = [cells[start::count] for start in range(count)]
        sizes = [[max(len(cell[part]) for cell in column) for part in (0, 1)] for column in columns]
        if count == 1 or _INDENT + sum(a + 1 + b for a, b in sizes) + _GAP * (count - 1) <= width:
            break
    rows = []
    for start in range(0, len(cells), count):
        row = zip(cells[start : start + count], sizes, strict=False)
        parts = [f"{label:<{left}} {text:<{right}}" for (label, text), (left, right) in row]
        rows.append((" " * _INDENT + (" " * _GAP).join(parts)).rstrip())
    return rows


def in_rows(cells: Sequence[Cell], width: int) -> list[str]:
    """A cell in each line; a text that is too long goes on below itself."""
    left = max((len(label) for label, _ in cells), default=0)
    rows = []
    for label, text in cells:
        begin = f"{'':{_INDENT}}{label:<{left}} "
        rows += textwrap.wrap(
            text, max(width, len(begin) + 12), initial_indent=begin, subsequent_indent=" " * len(begin),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return rows


def table(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of equally many texts as lines, as wide as they must be. right: columns that are flush right."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{text:>{size}}" if number in right else f"{text:<{size}}"
            for number, (text, size) in enumerate(zip(row, sizes, strict=True))
        ).rstrip()
        for row in rows
    ]


def say(*printed: str, to_stderr: bool = False) -> None:
    """Print lines, at once. Commands print by it alone, so that no name and no text of a file steers the terminal.

    Raises OSError if nobody reads the output; what goes to stderr is lost then.
    """
    with suppress(OSError) if to_stderr else nullcontext():
        print(*map(plain, printed), sep="\n", file=sys.stderr if to_stderr else None, flush=True)


def log_plainly() -> None:
    """Have what is logged steer no terminal, neither now nor when a log is shown; it may have several lines."""
    logger.configure(
        patcher=lambda record: record.update({"message": "\n".join(map(plain, record["message"].split("\n")))})
    )


def wrapped(text: str, width: int) -> str:
    """A log line for a terminal: a long one goes on below its message. Lines of tracebacks stay as they are."""
    first, *more = text.splitlines()
    indent = " " * len("00:00:00 WARNING ")
    lines = textwrap.wrap(first, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, *more]) + "\n"


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
