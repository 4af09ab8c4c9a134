"""Where the processes of roles come from: forked off one that has imported already what takes long to import.

Torch takes a second of processor time and a hundred megabytes in each process that imports it, and all roles start at
once. So the supervisor starts the nursery first of all; while it checks the user's code, the nursery imports torch. The
process of a role that holds weights is a fork of it, at the start and whenever one is started again, and shares its
memory; the others, which need no torch, begin with nothing.

A process that forks must have no other thread, no socket of ZeroMQ and no CUDA context, since none of these survives
it. So nothing runs in the nursery but its imports and this file, and user code is imported in roles alone. Where that
is not known to be safe (macOS), there is no nursery: each role is a process that begins with nothing.

`multiprocessing.forkserver` does the same, but runs pickled functions, and what it forks are its own children. Here
they are the supervisor's, so their exit codes do not depend on the nursery; when it is gone, there is another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import BinaryIO

import setproctitle
from loguru import logger

from realm import garbage
from realm.errors import ConfigError

_MAX_BYTES = 1 << 17
_ANSWER_S = 120.0  # the first answer comes after the imports, which take long from a slow disk
_LOOK_S = 0.2  # so often the question is asked whether to wait on
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Process:
    """A child of this process, whoever made it. It ends when the pipe to its standard input is closed."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.pid = pid
        self._stdin = stdin
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, minus a signal's number if that killed it; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """The exit code, when it has ended."""
        code = self._wait(0)
        assert code is not None
        return code

    def close(self) -> None:
        """Close the pipe."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class Nursery:
    """Starts `python -m realm WORDS` as often as it is asked to. Use it in a `with`: the nursery ends with it, the
    processes that it started do not."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """environment: what counts before a process starts, for all of them: threads and allocator of torch."""
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Nursery:
        if sys.platform == "linux" and _adopt_orphans(True):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some launchers ignore it, and then nobody can wait
            self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._close()
            _adopt_orphans(False)

    @property
    def pid(self) -> int:
        """Of the nursery itself; 0 where there is none."""
        return self._process.pid if self._process else 0

    def spawn(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        log: BinaryIO,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Process:
        """Start `python -m realm WORDS` in a session of its own, so that Ctrl+C in the terminal is not for it.

        log: takes its output. give_up: asked while the nursery does not answer. Raises InterruptedError when it gave
        up, ConfigError or OSError if no process can be started.
        """
        if self._socket is None:
            return from_nothing(words, environment, log)
        both = {*environment, *self._environment}  # a message is too short for some users' whole environment
        changes = {name: environment.get(name) for name in both}
        changes = {name: value for name, value in changes.items() if value != self._environment.get(name)}
        request = json.dumps({"words": list(words), "changes": changes}).encode()
        try:
            return _with_stdin(lambda files: self._ask(request, files, give_up), log)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            logger.warning("the nursery is gone; another one is started")
            self._close()
            self._open()
        try:
            return _with_stdin(lambda files: self._ask(request, files, give_up), log)
        except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            text = "the nursery, a process that imports torch, cannot be started: what it said stands above"
            raise ConfigError(text) from error

    def reap(self, known: set[int]) -> None:
        """Take leave of orphans that ended: what a role started and left behind is this process's child, too.

        known: children that somebody else waits for.
        """
        with contextlib.suppress(ChildProcessError):  # there are no children
            while self._process is not None:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in known | {self._process.pid}:
                    break  # the rest when that one has been waited for
                os.waitpid(ended.si_pid, 0)

    def _ask(self, request: bytes, files: list[int], give_up: Callable[[], bool]) -> int:
        """The pid of a fork of the nursery. Raises an OSError if there is no answer."""
        assert self._socket is not None
        socket.send_fds(self._socket, [request], files)
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                answer = self._socket.recv(64)
                break
            except TimeoutError:
                if give_up():
                    self._close()
                    raise InterruptedError from None
                if time.monotonic() > until:
                    raise
        if not answer:
            raise BrokenPipeError
        return int(answer)

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_LOOK_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "realm", "nursery", str(theirs.fileno())],
                env=self._environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def _close(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.kill()  # it may still be importing
            self._process.wait()
            self._process = self._socket = None


def _with_stdin(start: Callable[[list[int]], int], log: BinaryIO) -> Process:
    """start: begins a process with three files as its standard input, output and error, and returns its pid."""
    read, write = os.pipe()
    try:
        return Process(start([read, log.fileno(), log.fileno()]), write)
    except BaseException:
        os.close(write)  # so, if a process has begun all the same, it ends
        raise
    finally:
        os.close(read)


def from_nothing(words: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> Process:
    """What `Nursery.spawn` does, without a fork: for what needs nothing that the nursery has imported."""
    command = [sys.executable, "-m", "realm", *words]

    def start(files: list[int]) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate(files)]
        return os.posix_spawn(command[0], command, dict(environment), file_actions=actions, setsid=True)

    return _with_stdin(start, log)


def _adopt_orphans(yes: bool) -> bool:
    """Have orphans below this process become its children, or no longer (Linux): the nursery's forks are orphans at
    once. Returns whether the kernel does."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) == 0)


def serve(number: int, main: Callable[[list[str]], int]) -> int:
    """The nursery: import, then fork whatever is asked for at the socket with this file number, until it is closed.

    main: what a new process does with its words; returns its exit code.
    """
    garbage.hold()
    setproctitle.getproctitle()  # finds the place of the name now: not when a fork has taken another environment
    setproctitle.setthreadtitle("realm nursery")  # what `top` shows
    with contextlib.suppress(ImportError):  # whoever needs it will say so, in a log of its own
        import realm.learn.checkpoint
        import realm.roles.aisrv
        import realm.roles.learner  # noqa: F401
    gc.freeze()  # a collection in a fork would write into all these objects, and so end their being shared
    with socket.socket(fileno=number) as asked:
        while True:
            request, files, _, _ = socket.recv_fds(asked, _MAX_BYTES, 3)
            if not request:
                return 0
            pid = _orphan(lambda: _become(json.loads(request), files, asked, main))  # noqa: B023 - called at once
            for one in files:
                os.close(one)
            asked.send(str(pid).encode())


def _orphan(run: Callable[[], None]) -> int:
    """The pid of a process that does `run` in a session of its own and is no child of this one: a fork of a fork that
    has ended."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            os.setsid()  # before anybody knows the pid, which is the session's, too
            os.write(write, str(os.getpid()).encode())
            os.close(read)
            os.close(write)
            run()
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    with open(read, "rb") as answer:
        return int(answer.read())


def _become(
    request: dict[str, object], files: list[int], asked: socket.socket, main: Callable[[list[str]], int]
) -> None:
    """Be the process that was asked for, to its end."""
    code = 1
    try:
        words, changes = request["words"], request["changes"]
        assert isinstance(words, list)
        assert isinstance(changes, dict)
        asked.close()
        for number, one in enumerate(files):
            os.dup2(one, number)
            os.close(one)
        for name, value in changes.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _differ(words)
        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:  # the top of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _differ(words: list[str]) -> None:
    """What a process has of its own that a fork shares with its brothers: its name, its chance, its threads."""
    import numpy as np

    setproctitle.setproctitle(" ".join([sys.executable, "-m", "realm", *words]))
    setproctitle.setthreadtitle(" ".join(["realm", *words[1:2]]))
    np.random.seed()  # Python's own generator sees to that by itself; torch's begins with the same seed in any process
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # which OpenMP has read already
