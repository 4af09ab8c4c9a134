"""Work for two threads: PPO's policy and critic where they share no weights, and the next minibatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Answer = TypeVar("Answer")
Part = TypeVar("Part")


def finished(answer: Answer) -> Future[Answer]:
    done: Future[Answer] = Future()
    done.set_result(answer)
    return done


class SideBySide:
    """Does work next to the caller's: in a second thread within `threads`, if torch has two, else at once."""

    def __init__(self, allowed: bool) -> None:
        """allowed: whether there is work for two threads on this device."""
        self._allowed = allowed
        self._second: Executor | None = None

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Open a second thread, and give each of the two half of torch's threads.

        OpenMP's threads, which split each operation, would meet a hundred times in a gradient step.
        """
        threads = torch.get_num_threads()
        if threads == 1 or not self._allowed:
            yield
            return
        torch.set_num_threads(threads - threads // 2)
        try:
            with ThreadPoolExecutor(1, "critic", torch.set_num_threads, (threads // 2,)) as self._second:
                yield
        finally:
            self._second = None
            torch.set_num_threads(threads)

    def submit(self, work: Callable[..., Answer], *args: Any) -> Future[Answer]:
        """Work is done in the order in which it was submitted; without a second thread at once."""
        return self._second.submit(work, *args) if self._second else finished(work(*args))

    def both(self, here: Callable[[], Answer], there: Callable[[], Answer]) -> tuple[Answer, Answer]:
        """Call both at the same time and return both results."""
        other = self.submit(there)
        return here(), other.result()

    def prefetched(self, make: Callable[[Part], Answer], parts: Iterable[Part]) -> Iterator[Answer]:
        """`make` of each part; the next one is made while the caller uses the one before."""
        following: Future[Answer] | None = None
        for part in parts:
            made, following = following, self.submit(make, part)
            if made is not None:
                yield made.result()
        if following is not None:
            yield following.result()

    def wait(self) -> None:
        """Until all that was submitted is done."""
        self.submit(lambda: None).result()
