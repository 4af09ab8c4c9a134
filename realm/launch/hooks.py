"""Calls the functions of a package's `callbacks.py` (`contract/callbacks.py: Progress`).

The supervisor, or the one-process run, has one `Hooks`; `watch/curves.py` tells it what happens. The functions run in a
thread of their own, so a slow one delays no role, no update and no sample. What waits for the thread is bounded: the
newest report, and the newest evaluations.
"""

from __future__ import annotations

import dataclasses
import threading
import time

from loguru import logger

from realm.contract import Progress
from realm.errors import one_line, place_of, place_of_function
from realm.launch.signals import Wishes
from realm.user import load_callbacks

_MOST_WAITING = 100


class Hooks:
    """The functions of one run. reason: why one of them wants the run to end, "" while none does."""

    def __init__(self, algo: str) -> None:
        self.reason = ""
        self._functions = load_callbacks(algo)
        self._newest: Progress | None = None
        self._waiting: list[tuple[str, Progress]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="callbacks", daemon=True)
        if self._functions:
            self._thread.start()

    def tell(self, name: str, progress: Progress) -> None:
        """Have the function called, if there is one, after those that wait."""
        if not self._thread.is_alive():
            return
        self._newest = progress
        with self._changed:
            if name == "on_update":
                self._waiting = [waits for waits in self._waiting if waits[0] != name]
            self._waiting = [*self._waiting, (name, progress)][-_MOST_WAITING:]
            self._changed.notify()

    def end(self, reason: str, most_s: float, wishes: Wishes) -> None:
        """Have `on_end` called if the run has begun. Wait for it, unless it takes too long or the user cannot wait."""
        if self._newest is None:
            return
        self.tell("on_end", dataclasses.replace(self._newest, reason=reason))
        until = time.monotonic() + most_s
        while self._thread.is_alive() and time.monotonic() < until and not wishes.at_once:
            self._thread.join(0.1)
        if self._thread.is_alive():
            logger.warning("callbacks.py: still runs {:.0f} s after the end, so it is left alone", most_s)

    def _work(self) -> None:
        name = ""
        while name != "on_end":
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                name, progress = self._waiting.pop(0)
            if name in self._functions:
                self._call(name, progress)

    def _call(self, name: str, progress: Progress) -> None:
        function = self._functions[name]
        try:
            reason = function(progress)
            if not isinstance(reason, str | None):
                raise TypeError(f"returned {type(reason).__name__}; expected None, or the reason to stop as str")
        except (Exception, SystemExit) as error:
            del self._functions[name]
            place, kind = place_of(error) or place_of_function(function), type(error).__name__
            logger.error("{}: {}: {} ({} is not called any more; the run goes on)", place, kind, one_line(error), name)
            return
        if reason and not self.reason:
            self.reason = f"{name}: {one_line(reason)}"
