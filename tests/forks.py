"""Commands of Realm in forks of one process that has imported torch and Realm: an import takes one to three seconds of
CPU time, and the tests call some hundred commands.

`Fork` begins a command; this file as a program makes the forks. A fork has a directory, variables, descriptors, signals
and modules of its own, as a new process has. The runs of `cluster.py` are new processes.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import setproctitle

ROOT = Path(__file__).parents[1]


class Fork:
    """A command that has begun, with what the tests use of a Popen. words: what follows `python` in its command.
    output: a file for what it says, instead of `communicate`."""

    def __init__(self, words: Sequence[str], cwd: Path, env: dict[str, str], output: Path | None = None) -> None:
        self.args, self.returncode = [sys.executable, *words], None
        (out, to_out), (err, to_err), (self._ended, to_ended) = os.pipe(), os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        if output:
            os.dup2(file := os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT), to_out)
            os.dup2(file, to_err)
            os.close(file)
        theirs = [nothing, to_out, to_err, to_ended]
        socket.send_fds(_server(), [json.dumps([list(words), str(cwd), env]).encode()], theirs)
        self.pid = int(_server().recv(100))
        for one in theirs:
            os.close(one)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        if output:
            self.stdout.close()
            self.stderr.close()

    def poll(self, timeout: float | None = 0.0) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ended, 100))
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        code = self.poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        with ThreadPoolExecutor(2) as pool:
            texts = [pool.submit(one.read) for one in (self.stdout, self.stderr)]
            try:
                out, err = (one.result(timeout) for one in texts)
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
        self.stdout.close()
        self.stderr.close()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    """To the process that makes the forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()],
        env={**os.environ, **one, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    return ours


def _serve(asks: socket.socket) -> None:
    from realm.commands import train
    from realm.launch import environment, local  # noqa: F401

    # it would start a process again for the threads of a learner; here they are set already
    train.enter_learner_environment = environment.enter_learner_environment = lambda plan: None
    gc.collect()
    gc.freeze()
    living: dict[int, tuple[int, int]] = {}  # by the descriptor of a fork: its pid, and where to say how it has ended
    while True:
        for ready in select.select([asks, *living], [], [])[0]:
            if ready is asks:
                text, given, *_ = socket.recv_fds(asks, 1 << 20, 4)
                if not text:
                    return
                if (pid := os.fork()) == 0:
                    _run(*json.loads(text), given)
                living[os.pidfd_open(pid)] = pid, given[3]
                for one in given[:3]:
                    os.close(one)
                asks.send(str(pid).encode())
            else:
                pid, ended = living.pop(ready)
                os.write(ended, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(ready)
                os.close(ended)


def _run(words: list[str], cwd: str, env: dict[str, str], given: list[int]) -> NoReturn:
    """The program `python WORDS` in this fork."""
    code: Any = 1
    try:
        for number in range(3):
            os.dup2(given[number], number)
        os.closerange(3, 1024)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - to the end
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.orig_argv = [sys.executable, *words]
        setproctitle.setproctitle(" ".join(sys.orig_argv))
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], cwd
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
