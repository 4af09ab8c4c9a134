"""Runs user code, and sets back what it changed in this process for everybody else.

`realm/user.py` imports packages and makes environments in such a block. A start tries the user's code in one, and a
command that plays runs in one. Nothing is kept here: each block sets back what it found.
"""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
from loguru import logger

# not those of timers and of children: libraries have their own uses for them
_KEPT_SIGNALS = signal.valid_signals() - {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGCHLD}
_log_core: Any = getattr(logger, "_core")  # noqa: B009 - loguru has no other way to keep its handlers


@contextmanager
def apart(over: bool = False) -> Iterator[None]:
    """Run user code, and set back what it changed in this process for all others: torch's defaults, NumPy's and
    Python's warnings, the handlers of signals and logs, descriptors 0 to 2, output, umask, recursion limit, locale.

    over: nothing of the user code lives on after the block, so the current directory and the environment's variables
    are set back, too. Else a simulator that went to a folder of its own may still need it.
    """
    with ExitStack() as back:
        back.callback(_set_torch, _torch_state())  # last: it may import, which a low recursion limit would end
        if over:
            back.callback(set_environment, dict(os.environ))
            back.callback(os.chdir, os.getcwd())
        os.umask(umask := os.umask(0o077))
        back.callback(os.umask, umask)
        back.callback(_set_signals, {number: signal.getsignal(number) for number in _KEPT_SIGNALS})
        for number in range(3):
            with suppress(OSError):
                back.callback(_set_descriptor, number, kept := os.dup(number), os.fstat(kept))
        for name in ("stdin", "stdout", "stderr"):
            back.callback(setattr, sys, name, getattr(sys, name))
        if not over:
            back.callback(_set_logs, dict(_log_core.handlers))
        back.callback(_set_warnings, list(warnings.filters))
        back.enter_context(np.errstate())
        back.callback(locale.setlocale, locale.LC_NUMERIC, locale.setlocale(locale.LC_NUMERIC))
        back.callback(_set_interpreter, sys.getrecursionlimit(), gc.isenabled())
        yield


def set_environment(environment: Mapping[str, str]) -> None:
    """Have these variables and no others."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _set_signals(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            with suppress(ValueError):  # not in the main thread, where user code could not change one either
                signal.signal(number, handler)


def _set_descriptor(number: int, kept: int, file: os.stat_result) -> None:
    """Open a descriptor again that was closed, or nothing in its place if the kept one is closed, too."""
    try:
        kept = kept if os.path.samestat(os.fstat(kept), file) else -1
    except OSError:
        kept = -1
    try:
        os.fstat(number)
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing if kept < 0 else kept, number)
        if nothing != number:
            os.close(nothing)
    if kept >= 0:
        os.close(kept)


def _set_logs(before: dict[int, Any]) -> None:
    """Bring back what `logger.remove()` took; what was added stays."""
    for gone in before.keys() - _log_core.handlers.keys():
        before[gone]._stopped = False
        _log_core.handlers = {gone: before[gone], **_log_core.handlers}
        _log_core.min_level = min(handler.levelno for handler in _log_core.handlers.values())


def _set_warnings(before: list[Any]) -> None:
    """What user code does not want to see stays unseen, but no warning becomes an error of Realm's."""
    kept = [rule for rule in warnings.filters if rule[0] != "error" or rule in before]
    if len(kept) < len(warnings.filters):
        warnings.filters = kept
        warnings._filters_mutated()  # type: ignore[attr-defined]  # as warnings.catch_warnings does


def _set_interpreter(recursion: int, collects: bool) -> None:
    sys.setrecursionlimit(max(recursion, sys.getrecursionlimit()))
    if collects:
        gc.enable()


def _torch_state() -> tuple[Any, ...]:
    """Default dtype, default device, gradients, determinism; those of a fresh process if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return ()
    device = torch.get_default_device()
    return (
        torch.get_default_dtype(), None if device.type == "cpu" else device, torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
    )  # fmt: skip


def let_learn() -> None:
    """Have torch note gradients again, which an environment may have ended in a step."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_grad_enabled(True)


def _set_torch(before: tuple[Any, ...]) -> None:
    torch = sys.modules.get("torch")
    if torch is None or _torch_state() == before:
        return
    dtype, device, gradients, deterministic, threads = before or (torch.float32, None, True, False, 0)
    torch.set_default_dtype(dtype)
    if torch.get_default_device().type != "cpu" or device is not None:
        torch.set_default_device(device)
    torch.set_grad_enabled(gradients)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)  # it imports much
    if threads:
        torch.set_num_threads(threads)
