"""Two halves of an update at the same time. Used by `ppo.py`, `td3.py` and `sac.py`.

On a CPU torch can split each operation among threads, which then meet a hundred times in a gradient step. Where two
networks share no weights, or two halves of a minibatch only a sum, a thread for each meets the other once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Answer = TypeVar("Answer")


class SameThread(Executor):
    """An executor without a thread: it does the work at once."""

    def submit(self, work: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        done: Future[Answer] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class TwoThreads:
    """Has a second thread within `open`, if torch has two; without it everything is done in the first."""

    def __init__(self) -> None:
        self._second: Executor = SameThread()

    @contextmanager
    def open(self, device: torch.device) -> Iterator[None]:
        """Give each of the two threads half of torch's, if it has two and computes on the CPU."""
        threads = torch.get_num_threads()
        if threads == 1 or device.type != "cpu":
            yield
            return
        torch.set_num_threads(threads - threads // 2)
        try:
            with ThreadPoolExecutor(1, "second", torch.set_num_threads, (threads // 2,)) as self._second:
                yield
        finally:
            self._second = SameThread()
            torch.set_num_threads(threads)

    def submit(self, work: Callable[..., Answer], /, *args: Any) -> Future[Answer]:
        """Do the work in the second thread."""
        return self._second.submit(work, *args)

    def both(self, first: Callable[[], Answer], second: Callable[[], Answer]) -> tuple[Answer, Answer]:
        """Call both at the same time and return both results."""
        other = self.submit(second)
        return first(), other.result()

    def halves(self, work: Callable[[slice], Answer], count: int) -> list[Answer]:
        """`work` on each half of `count` rows at the same time, or on all of them where there is one thread."""
        if isinstance(self._second, SameThread) or count < 2:
            return [work(slice(0, count))]
        half = count // 2
        return list(self.both(lambda: work(slice(0, half)), lambda: work(slice(half, count))))
