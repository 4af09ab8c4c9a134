"""Collects the numbers that a role reports: totals, means and timings.

A role owns one `Meters`; every `report_interval_s` its snapshot becomes a Report. User code sees the same object
through the two methods of `contract.Monitor`. Means are sent as (sum, count), so that several workers add up correctly.
The buffer's keeper observes in a thread of its own, so a lock keeps an observation out of the middle of a snapshot.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from loguru import logger

from realm.contract import Array, curve_name
from realm.errors import one_line, place_of_call

_RESERVOIR = 4096


class Meters:
    """Collects totals (since the start), means and quantiles (since the last snapshot)."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)
        self._sums: dict[str, list[float]] = {}
        self._timings: dict[str, list[float]] = defaultdict(list)
        self._left_out: set[str] = set()
        self._lock = threading.Lock()

    def count(self, name: str, amount: float = 1) -> None:
        self.totals[name] += amount

    def put(self, name: str, value: float, where: str = "") -> None:
        """Add one observation to a mean. where: `file:line` of the user's that a warning names; "": who called."""
        try:
            value = float(value)  # users pass tensors and NumPy scalars, too
        except Exception as error:  # whatever else it is: a curve is not worth a run
            if name not in self._left_out:
                self._left_out.add(name)
                where = where or place_of_call()
                what = f"the metric {name!r} is of {type(value).__name__} and left out"
                logger.warning("{}: {}: {}; it must be a number", where, what, one_line(error))
            return
        with self._lock:
            entry = self._sums.setdefault(name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1

    def timing(self, name: str, seconds: float) -> None:
        """Add one observation of a duration; becomes `<name>_median_ms` and `<name>_p99_ms`."""
        with self._lock:
            timings = self._timings[name]
            if len(timings) < _RESERVOIR:
                timings.append(seconds)

    def episodes(self, info: Mapping[str, Any]) -> None:
        """Take gymnasium's `info["episode"]` (name -> [E]) where `info["_episode"]` is true."""
        mask: Array | None = info.get("_episode")
        if mask is None or not mask.any():
            return
        self.count("episodes", int(mask.sum()))
        for name, values in info["episode"].items():
            if curve := curve_name(name):
                for value in np.asarray(values)[mask]:
                    self.put(f"episode/{curve}", value)

    def snapshot(self) -> tuple[dict[str, float], dict[str, list[float]]]:
        """(totals so far, name -> [sum, count] since the last snapshot)."""
        with self._lock:
            means, self._sums = self._sums, {}
            timings, self._timings = self._timings, defaultdict(list)
        for name, seconds in timings.items():
            ms = np.asarray(seconds) * 1e3
            means[f"{name}_median_ms"] = [float(np.median(ms)), 1.0]
            means[f"{name}_p99_ms"] = [float(np.quantile(ms, 0.99)), 1.0]
        return dict(self.totals), means
