"""A run's directory and its `run.json`: living processes and their addresses. Read by stop and status.

`run.json` holds the run id, which is the key to the run's sockets, so only its owner can read it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
from loguru import logger

from realm.config.keys import LONGEST_NAME, AppConfig
from realm.errors import ConfigError, one_line
from realm.files import read_json, replace_file
from realm.launch import guard
from realm.learn.results import models_in
from realm.watch.status import Status

_MOST_BYTES = 4 << 20  # of a run.json


@dataclass
class RunFile:
    """The content of run.json. state: starting, running, stopping, stopped or failed."""

    run_id: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    pid: int
    created: float
    """When the process `pid` started, as `start_of` tells it."""
    boot: str = ""
    """The boot of the machine in which all these processes live."""
    started: float = 0.0
    """Wall-clock time of the start: only orders the runs of a folder."""
    control: Annotated[str, msgspec.Meta(pattern=r"\A(tcp://[\w.-]{1,255}:[0-9]{1,5})?\Z")] = ""
    keys_dir: str = ""
    """The keys that the address `control` asks for; empty if none."""
    state: str = "starting"
    cause: str = ""
    statistic: str = ""
    """What `score` is the mean of: score or return of training episodes."""
    score: float | None = None
    """At the end of the last session in which an episode has ended: the mean of its last training episodes."""
    epoch: int = 0
    """The last epoch of a learner in this directory; the next learner gets a greater one."""
    beginning: list[str] = field(default_factory=list)
    """What the start told the user: a new run or a resumed one, changed keys, and where training goes on."""
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`aisrv-0` -> pid, created, incarnation, address, state"""

    def __post_init__(self) -> None:
        self.lock: Any = None  # the open lock file; it keeps other starts out of the directory while this process lives
        self._writing = threading.Lock()  # held meanwhile: in one process a signal is noted by a thread
        self._written, self._warned = b"", False  # what it says since the last write; whether that failed

    def lives(self) -> bool:
        """Whether its supervisor, or its one process, lives."""
        return is_alive(self.pid, self.created, self.boot)

    def note_score(self, status: Status) -> None:
        """Keep what the terminal shows at the end, unless no episode has ended since this start."""
        if status.score is not None:
            self.statistic, self.score = status.statistic, status.score

    def write(self, run_dir: Path) -> None:
        """Write it, unless it says all that already."""
        with self._writing:
            text = json.dumps({entry.name: getattr(self, entry.name) for entry in fields(self)}, indent=1).encode()
            if text != self._written:
                replace_file(run_dir / "run.json", text, mode=0o600, sync=False)
                self._written = text

    def write_or_warn(self, run_dir: Path) -> None:
        """Write it; a full disk is one warning, until a write succeeds again."""
        try:
            self.write(run_dir)
            self._warned = False
        except OSError as error:
            if not self._warned:
                logger.warning("cannot write {}, so stop and status may fail: {}", run_dir / "run.json", error)
            self._warned = True


def read_run(run_dir: Path, skipped: Callable[[str], None] | None = None) -> RunFile | None:
    """Read the run.json of a directory; None without a readable one. skipped: gets a sentence about one that is there
    and cannot be read."""
    path = run_dir / "run.json"
    try:
        run = msgspec.convert(read_json(path, _MOST_BYTES), RunFile)
        for role in run.roles.values():
            msgspec.convert((role["pid"], role["created"]), tuple[int, float])
        return run
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if skipped is not None:
            skipped(f"{path}: {_unreadable(path, error)}")
        return None


def _unreadable(path: Path, error: Exception) -> str:
    """Why a run.json tells nothing."""
    if isinstance(error, PermissionError):
        with suppress(OSError, KeyError):
            return f"only its owner, {path.owner()}, can see this run or stop it"
    reason = error.strerror if isinstance(error, OSError) else one_line(error)[:100]
    return f"skipped, it is not the run.json of a run ({reason})"


def living_pids(run: RunFile) -> list[int]:
    """The pids of the run's living processes, the supervisor first."""
    named = [(run.pid, run.created), *((role["pid"], role["created"]) for role in run.roles.values())]
    return [pid for pid, created in named if is_alive(pid, created, run.boot)]


def is_alive(pid: int, created: float, boot: str) -> bool:
    """Whether exactly this process lives: the system uses pids again, so start time and boot must be the same. Of
    another user's process, which may be hidden from this one, only that there is one."""
    return created > 0 and boot == boot_id() and (start_of(pid) == created or _is_hidden(pid))


def _is_hidden(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.access(f"/proc/{pid}/stat", os.R_OK)
    except (OSError, OverflowError):
        pass
    return False


def start_of(pid: int) -> float:
    """When a living process started, in a unit that steps of the wall clock do not move; 0 if it does not live."""
    if sys.platform != "linux":  # seconds of the wall clock
        try:
            process = psutil.Process(pid)
            return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except (psutil.Error, ValueError, OverflowError):
            return 0.0
    known = guard.stat(pid)
    return float(known[2]) if known else 0.0  # clock ticks since the boot


def start_of_leader(pid: int) -> float:
    """`start_of`, but 0 also for a process that leads no session, as each role's does: what tells the pid may lie."""
    try:
        return start_of(pid) if os.getsid(pid) == pid else 0.0
    except (OSError, OverflowError):
        return 0.0


def boot_id() -> str:
    """Names this boot of the machine: start times and pids of another boot mean nothing now."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # not Linux, where start times come from the wall clock


def find_runs(log_dir: Path, skipped: Callable[[str], None] | None = None) -> list[tuple[Path, RunFile]]:
    """Every run below `log_dir`, oldest first. skipped: as in `read_run`."""
    # pathlib's * takes names that begin with a dot, too, such as of a run that `realm runs --prune` was deleting
    runs = [(path.parent, read_run(path.parent, skipped)) for path in sorted(log_dir.glob("[!.]*/run.json"))]
    # a file of an older version has no `started`, and the wall-clock time in `created`
    return sorted([(path, run) for path, run in runs if run], key=lambda pair: pair[1].started or pair[1].created)


def claim_run_dir(app: AppConfig, fresh: bool, run_id: str = "") -> tuple[Path, RunFile]:
    """Create or reuse the run's directory; fresh: never reuse one. run_id: "" makes one. Raises ConfigError if a living
    run uses it."""
    folder = Path(app.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if fresh or not app.run_name:
        run_dir = _new_folder(folder, app.run_name or time.strftime("%Y%m%d-%H%M%S"))
    else:
        run_dir = folder / app.run_name
        run_dir.mkdir(exist_ok=True)
    refuse_ways_out(run_dir)
    # held until this process ends in any way
    lock = open(os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "rb")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        earlier = read_run(run_dir)
        owner = f"a run (pid {earlier.pid})" if earlier else "a run that is just starting"
        raise ConfigError(
            f"run directory {run_dir}: {owner} uses it; stop it with `realm stop all`, choose another run_name, or "
            "begin a new run with --fresh"
        ) from None
    earlier = read_run(run_dir, logger.warning)
    for subfolder in ("log/tensorboard", "ckpt", "user_ckpt"):
        (run_dir / subfolder).mkdir(parents=True, exist_ok=True)
    # a damaged checkpoint counts, too: its number is taken
    epoch = max([earlier.epoch if earlier else 0, *(version.epoch for version, _ in models_in(run_dir / "ckpt"))])
    own = os.getpid()
    run = RunFile(run_id or secrets.token_hex(8), own, start_of(own), boot_id(), time.time(), epoch=epoch)
    run.lock = lock
    if earlier:
        run.statistic, run.score = earlier.statistic, earlier.score
    run.write(run_dir)
    return run_dir, run


def refuse_ways_out(run_dir: Path) -> None:
    """Raise ConfigError if something in a run's folder leads out of it: a run writes and deletes there by name, and the
    folder may have come from anybody. The folder itself may be a link."""
    home = os.path.realpath(run_dir)
    elsewhere: dict[int, tuple[int, Path]] = {}  # inode of a file with several names -> how many are not seen yet, one
    for parent, folders, files in os.walk(run_dir, onerror=_raise):
        for path in (Path(parent, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # a run lives here, and has just deleted it
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    if os.path.commonpath((home, os.path.realpath(path))) != home:
                        raise _leads_out(path, f"a link out of the run's folder, to {os.readlink(path)}")
                elif stat.S_ISREG(status.st_mode):
                    # a checkpoint's files are never written again, and to keep one by a hard link is a good habit
                    if status.st_nlink > 1 and not path.parent.name.startswith("model.ckpt-"):
                        unseen, _ = elsewhere.get(status.st_ino, (status.st_nlink, path))
                        elsewhere[status.st_ino] = unseen - 1, path
                elif not (stat.S_ISDIR(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                    raise _leads_out(path, "neither a file nor a folder, but a pipe or a device")
    for unseen, path in elsewhere.values():
        if unseen:
            raise _leads_out(path, "a hard link: the same file has another name outside of the run's folder")


def _leads_out(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path}: is {what}, and a run would write or delete there; put a copy in its place, or remove it (to keep a "
        "run on another disk, make its whole folder a link)"
    )


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _new_folder(folder: Path, name: str) -> Path:
    """Make `name`, or the first of `name-2`, `name-3`, ... that is free, also if another start does the same."""
    path, count = folder / name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            count += 1
            end = f"-{count}"
            path = folder / f"{name[: LONGEST_NAME - len(end)]}{end}"
