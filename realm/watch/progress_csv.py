"""`progress.csv` of a run: a row for each report, with what TensorBoard gets, for any program that reads tables.

Each row is flushed as a whole. A curve that is new becomes the last column: the file is written again with a wider
header and renamed. The same is done where a session or a learner begins, without the half line that a killed run may
have left, and without the rows of updates that a resume has lost.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from loguru import logger

from realm.errors import plain

_MOST_COLUMNS = 1000
_MOST_IN_A_LINE = 1 << 20
_RETRY_AFTER_S = 60.0


class ProgressCsv:
    """Writes rows; a full disk causes one warning a minute and never ends the run."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_name(f".{path.name}")
        self._names: list[str] = []
        self._file: IO[str] | None = None
        self._begins_at = math.inf
        self._retry_at = 0.0

    def begin(self, step: int) -> None:
        """Say that training begins or goes on at `step`: rows beyond it are dropped."""
        self.close()
        self._begins_at = step

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write name -> value at `step` (env steps); after a failure, rows of the next minute are lost."""
        if time.monotonic() < self._retry_at:
            return
        row = {"env_steps": str(step), "wall_time": f"{time.time():.1f}"}
        row |= {plain(name): f"{value:.7g}" for name, value in values.items()}  # TensorBoard's float32 knows no more
        try:
            more = len(self._names) < _MOST_COLUMNS and not row.keys() <= set(self._names)
            if self._file is None or more:
                self._file = self._write_again(row)
            self._file.write(",".join(row.get(name, "") for name in self._names) + "\n")
            self._file.flush()
        except (OSError, csv.Error) as error:
            self._retry_at = time.monotonic() + _RETRY_AFTER_S
            logger.warning("cannot write {}, training goes on without it: {}", self._path, error)
            self.close()

    def _write_again(self, names: Iterable[str]) -> IO[str]:
        """Write the file with columns of these names, too; returns it, open to append."""
        self.close()
        with ExitStack() as files:
            new = files.enter_context(open(self._draft, "w", encoding="utf-8", newline=""))
            lines: Iterator[str] = iter(())
            with suppress(FileNotFoundError):
                old = files.enter_context(open(self._path, encoding="utf-8", errors="replace", newline="\n"))
                lines = iter(lambda: old.readline(_MOST_IN_A_LINE), "")
            known = next(csv.reader([next(lines, "")]), [])
            self._names = list(dict.fromkeys((*known, *names)))[:_MOST_COLUMNS]
            csv.writer(new, lineterminator="\n").writerow(self._names)
            empty = "," * (len(self._names) - len(known))
            for line in lines:
                step, whole = line.partition(",")[0], line.endswith("\n") and line.count(",") == len(known) - 1
                if whole and step.isdecimal() and float(step) <= self._begins_at:
                    new.write(f"{line[:-1]}{empty}\n")
        os.replace(self._draft, self._path)
        self._begins_at = math.inf
        return open(self._path, "a", encoding="utf-8", newline="")

    def close(self) -> None:
        file, self._file = self._file, None
        with suppress(OSError):  # each row was flushed or has caused a warning
            if file is not None:
                file.close()
            self._draft.unlink(missing_ok=True)  # free the space on a full disk
