"""`realm doctor`: looks at this machine, this Python and the runs for what a start would not say.

Each check is a plain function of facts and returns one `Finding`, so a test can give it any machine. What takes long,
loading torch and reverb, happens in processes of its own meanwhile, which also survives a library that crashes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import realm
from realm import netns
from realm.commands.games import projects
from realm.commands.locate import CONFIG_HELP, DEFAULT_CONFIG, LOG_DIR_HELP, config_file
from realm.commands.parser import Commands
from realm.config.keys import AppConfig
from realm.config.plan import gpus, usable_cores
from realm.config.toml import read_toml
from realm.errors import ConfigError
from realm.launch.rundir import find_runs, living_pids
from realm.watch.resources import in_words
from realm.watch.status import say

_ROOT = Path(realm.__file__).parents[1]
_WITHIN_S = 60.0  # a library loads in two seconds, and a busy machine may take long
_WIDTH = 80
_REVERB = """
try:
    import realm.data.reverb
    print("ok")
except Exception as error:
    print(error.__cause__ or error)
"""
_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({"version": torch.__version__, "cuda": cuda, "gpus": names}))
"""
_SETUP = "in a checkout remove .venv and call tools/setup.sh, else install realm-rl again"
_JUMP_S = 0.5
_FUTURE_S = 60.0
_FEW_FILES, _ENOUGH_FILES = 256, 4096
_SMALL_SHM = 64 << 20


def add_commands(commands: Commands) -> None:
    """Add it."""
    text = "look for what needs mending: machine, Python, runs"
    parser = commands.add_parser("doctor", help=text, example="realm doctor")
    parser.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    parser.add_argument("--log-dir", help=LOG_DIR_HELP)
    parser.add_argument("--json", action="store_true", help="print a list for programs")
    parser.set_defaults(run=lambda given: doctor(given.config, given.log_dir, given.json))


def doctor(config: str, log_dir: str | None, as_json: bool) -> int:
    """Print what was found; return 1 if anything of it is bad."""
    found = list(_examine(Path(config), log_dir))
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        for finding in found:
            say(*_lines(finding))
        bad, warn = (sum(finding.state == state for finding in found) for state in ("bad", "warn"))
        say(f"{bad} bad, {warn} to look at, {len(found) - bad - warn} ok")
    return int(any(finding.state == "bad" for finding in found))


def misfit() -> str:
    """Which of Realm's packages do not take the versions of others, and what to do; "" if they fit."""
    finding = check_fit(_installed(), [*_needed(), *_locked()])
    return f"{finding.what}; {finding.do}" if finding.state == "bad" else ""


@dataclass(frozen=True)
class Finding:
    """What one check has found, in one sentence, and what to do about it. bad: a run will not work."""

    name: str
    state: Literal["ok", "warn", "bad"]
    what: str
    do: str = ""


@dataclass(frozen=True)
class Torch:
    """What an import of torch tells. error: why it failed; then the rest is empty."""

    error: str = ""
    version: str = ""
    cuda: bool = False
    gpus: tuple[str, ...] = ()


# --- the checks: software


def check_packages(needed: Sequence[str], locked: Sequence[str], have: Callable[[str], str | None]) -> Finding:
    """needed, locked: requirements, as in pyproject.toml and requirements.lock. have: a package's version, or None."""
    try:
        from packaging.requirements import Requirement  # late: what is missing here must not end the doctor
    except ImportError:
        return Finding("packages", "bad", "packaging is not installed", _SETUP)

    def unfit(lines: Sequence[str]) -> list[str]:
        found = []
        for requirement in map(Requirement, lines):
            version = have(requirement.name)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if version is None:
                found.append(f"{requirement.name} is missing")
            elif not requirement.specifier.contains(version, prereleases=True):
                found.append(f"{requirement.name} is {version}, not {requirement.specifier}")
        return found

    if wrong := unfit(needed):
        return Finding("packages", "bad", _some(wrong), _SETUP)
    if not locked:
        return Finding("packages", "ok", "all there; there is no requirements.lock to compare them with")
    if other := unfit(locked):
        return Finding("packages", "warn", f"not those of requirements.lock: {_some(other)}", _SETUP)
    return Finding("packages", "ok", "as in requirements.lock")


def check_fit(installed: Mapping[str, tuple[str, Sequence[str]]], ours: Collection[str]) -> Finding:
    """Whether the packages that are installed take each other's versions.

    installed: name -> version and requirements. ours: the names that Realm needs, or locks.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.utils import canonicalize_name
    except ImportError:
        return Finding("versions", "bad", "packaging is not installed", _SETUP)
    versions = {canonicalize_name(name): version for name, (version, _) in installed.items()}
    known = {canonicalize_name(Requirement(requirement).name) for requirement in ours}
    bad, warn = list[str](), list[str]()
    for name, (_, lines) in installed.items():
        for line in lines:
            try:
                needed = Requirement(line)
            except InvalidRequirement:
                continue
            version = versions.get(canonicalize_name(needed.name))
            if version is None or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
                continue
            if not needed.specifier.contains(version, prereleases=True):
                text = f"{name} needs {needed.name}{needed.specifier}, which is {version}"
                (bad if canonicalize_name(name) in known else warn).append(text)
    if not bad and not warn:
        return Finding("versions", "ok", "of all packages fit each other")
    return Finding("versions", "bad" if bad else "warn", _some([*bad, *warn]), _SETUP)


def check_reverb(version: tuple[int, int, int], linux_x86: bool, error: str) -> Finding:
    """error: why it cannot be loaded; "" if it can."""
    if not error:
        return Finding("reverb", "ok", "can be loaded")
    if version >= (3, 12, 0) or not linux_x86:
        return Finding("reverb", "ok", "does not exist for this system; the native buffer serves")
    return Finding("reverb", "warn", f"{error}; the native buffer serves", f"if you want reverb: {_SETUP}")


def check_namespace(possible: bool, has_reverb: bool) -> Finding:
    """Whether reverb's port can be kept from others."""
    if possible:
        return Finding("namespace", "ok", "this user may make a network namespace")
    if not has_reverb:
        return Finding("namespace", "ok", "this user may make no network namespace; without reverb nothing needs one")
    return Finding(
        "namespace",
        "warn",
        "this user may make no network namespace, so reverb's port would be open to others; the native buffer serves",
        "if you want reverb: allow user namespaces, or close the port at the firewall",
    )


def check_gpu(devices: int, torch: Torch, device: str) -> Finding:
    """devices: GPUs that the system shows. device: of the configuration."""
    if torch.error:
        return Finding("torch", "bad", torch.error, _SETUP)
    if torch.cuda:
        return Finding("torch", "ok", f"{torch.version} with {', '.join(torch.gpus)}")
    if device.startswith("cuda"):
        return Finding("torch", "bad", f"{torch.version} can use no GPU, and device is {device}", "set device = auto")
    if devices:
        build = "a build for the CPU" if torch.version.endswith("+cpu") else "which may not fit the driver (nvidia-smi)"
        what = f"can use no GPU, although there is one: it is {torch.version}, {build}"
        return Finding("torch", "warn", what, "install torch for CUDA")
    return Finding("torch", "ok", f"{torch.version}; there is no GPU")


# --- machine


def check_cores(cores: int, quota: float | None) -> Finding:
    """cores: that this process may use. quota: the most of them at once that its container allows."""
    if quota is not None and quota < cores - 0.5:
        return Finding(
            "cores",
            "warn",
            f"{cores}, but the container allows only {quota:g} at once, and `auto` keys count {cores}",
            f"give the container {max(1, round(quota))} cores of its own, or set aisrv_count and torch_num_threads",
        )
    return Finding("cores", "ok", str(cores))


def check_clock(jumped_s: float, ahead: tuple[str, float] | None) -> Finding:
    """jumped_s: steps of the wall clock during the checks. ahead: the file from furthest in the future, by seconds."""
    if abs(jumped_s) > _JUMP_S:
        what = f"the wall clock has just stepped by {jumped_s:.1f} s"
        return Finding("clock", "warn", what, "let one service set it; runs survive it, but curves show wrong times")
    if ahead is not None and ahead[1] > _FUTURE_S:
        what = f"{ahead[0]} is from {ahead[1] / 3600:,.1f} hours in the future"
        return Finding("clock", "warn", what, "set the clock; the newest run may be taken for an older one")
    return Finding("clock", "ok", "steady, and no run is from the future")


def check_files(hard: int) -> Finding:
    """hard: the most files that a process may open, if it asks for it, as a run does."""
    if hard >= _ENOUGH_FILES:
        return Finding("files", "ok", f"a process may open {hard:,}")
    state: Literal["warn", "bad"] = "bad" if hard < _FEW_FILES else "warn"
    return Finding("files", state, f"a process may open only {hard}", "raise the hard limit of open files (ulimit -Hn)")


def check_shm(total: int | None, free: int | None) -> Finding:
    """None: there is none."""
    if total is None or free is None:
        return Finding("/dev/shm", "warn", "is not there", "environments that share memory between processes need it")
    text = f"{in_words(free)} of {in_words(total)} are free"
    if free < _SMALL_SHM:
        do = "if environments share memory between processes: docker run --shm-size=1g"
        return Finding("/dev/shm", "warn", text, do)
    return Finding("/dev/shm", "ok", text)


# --- runs


def check_runs(orphans: Sequence[str], killed: Sequence[str], left: Sequence[str]) -> Finding:
    """orphans: runs without a supervisor that still have processes. killed: runs that ended without a word.
    left: files that a killed process left behind.
    """
    if orphans:
        return Finding("runs", "bad", f"processes without a supervisor: {_some(orphans)}", "`realm stop all` ends them")
    if killed:
        what = f"killed, or the machine went down: {_some(killed)}"
        return Finding("runs", "warn", what, "start it again with its run_name to go on, or delete it")
    if left:
        return Finding("runs", "warn", f"left behind: {_some(left)}", "delete them")
    return Finding("runs", "ok", "none was left behind")


def check_rights(folder: Path, mode: int | None, owner: int, user: int, writable: bool) -> Finding:
    """mode: of the folder of runs, or None if there is none yet. owner, user: numbers of users."""
    if not writable:
        return Finding("folder", "bad", f"{folder}: cannot be written", "set log_dir to a folder of your own")
    if mode is None:
        return Finding("folder", "ok", f"{folder}: is made by the first run")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Finding("folder", "warn", f"{folder}: others may write into it", f"chmod go-w {folder}")
    if owner not in (user, 0):
        return Finding("folder", "warn", f"{folder}: belongs to another user", "set log_dir to a folder of your own")
    return Finding("folder", "ok", f"{folder}: only you may write into it")


def _some(words: Sequence[str]) -> str:
    """The first words, and how many more there are."""
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


# --- the facts


def _lines(finding: Finding) -> list[str]:
    """One line, or more if it is too long for 80 columns."""
    head = f"{finding.state:<4} {finding.name:<9} "
    text = finding.what + (f"; {finding.do}" if finding.do else "")
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _examine(config: Path, log_dir: str | None) -> Iterator[Finding]:
    """All checks, in the order in which they are shown."""
    began = time.time() - time.monotonic()
    torch, reverb = _python(_TORCH), _python(_REVERB)
    version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    yield check_packages(_needed(), _locked(), _version)
    yield check_fit(_installed(), [*_needed(), *_locked()])
    try:
        app = projects().translated(config).app
    except ConfigError:  # a start names what is wrong with it
        app = AppConfig()
    folder = Path(log_dir if log_dir is not None else app.log_dir)
    yield _folder(folder)
    yield from _machine()
    yield from _runs(folder)
    loaded = _answer(reverb)
    possible = netns.possible()
    linux_x86 = sys.platform == "linux" and platform.machine() == "x86_64"
    yield check_reverb(version, linux_x86, "" if loaded == "ok" else loaded)
    yield check_namespace(possible, loaded == "ok")
    yield check_gpu(gpus(), _torch(_answer(torch)), app.device)
    yield check_clock(time.time() - time.monotonic() - began, _from_the_future(folder))


def _python(code: str) -> subprocess.Popen[str]:
    """Run code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).strip(":")},
    )


def _answer(process: subprocess.Popen[str]) -> str:
    """The last line that it has printed; else its error, in one line."""
    try:
        out, err = process.communicate(timeout=_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"did not load in {_WITHIN_S:.0f} s"
    lines = (out if process.returncode == 0 else err).strip().splitlines()
    return lines[-1] if lines else f"loading it ends with exit code {process.returncode}"


def _torch(answer: str) -> Torch:
    try:
        told = json.loads(answer)
        return Torch("", told["version"], told["cuda"], tuple(told["gpus"]))
    except (ValueError, LookupError, TypeError):
        return Torch(answer)


def _needed() -> list[str]:
    """The requirements of the project without its extras."""
    file = _ROOT / "pyproject.toml"
    if file.is_file():
        try:
            project = read_toml(file)[0].get("project")
            return list(project["dependencies"]) if isinstance(project, dict) else []
        except (ConfigError, LookupError, TypeError):
            return []
    try:
        return metadata.requires("realm-rl") or []
    except metadata.PackageNotFoundError:
        return []


def _locked() -> list[str]:
    try:
        lines = [
            line.strip(" \\")  # a hash follows
            for name in ("requirements.lock", "requirements.torch.lock")
            for line in (_ROOT / name).read_text().splitlines()
        ]
    except OSError:
        return []
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def _installed() -> dict[str, tuple[str, list[str]]]:
    """Name -> version and requirements of each package that this Python finds; of two, the first one counts."""
    found: dict[str, tuple[str, list[str]]] = {}
    for one in metadata.distributions():
        if name := one.metadata["Name"]:
            found.setdefault(name, (one.version, one.requires or []))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Finding]:
    yield check_cores(usable_cores(), _quota())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield check_files(1 << 20 if hard == resource.RLIM_INFINITY else hard)
    if sys.platform == "linux":
        try:
            shm = shutil.disk_usage("/dev/shm")
            yield check_shm(shm.total, shm.free)
        except OSError:
            yield check_shm(None, None)


def _quota() -> float | None:
    """Cores at once that the control group of this container allows; None without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join(Path("/sys/fs/cgroup", name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return None


def _folder(folder: Path) -> Finding:
    """The folder of runs."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    status = folder.stat() if folder.exists() else None
    mode, owner = (status.st_mode, status.st_uid) if status else (None, -1)
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return check_rights(folder, mode, owner, os.getuid(), writable)


def _runs(folder: Path) -> Iterator[Finding]:
    orphans, killed = [], []
    for path, run in find_runs(folder):
        if run.lives():
            continue
        if pids := living_pids(run):
            orphans.append(f"{path} ({', '.join(map(str, pids))})")
        elif run.state not in ("stopped", "failed"):
            killed.append(str(path))
    left = [str(path) for path in sorted(folder.glob("start-*.log")) if not _lives(path.stem.rpartition("-")[2])]
    left += [str(path) for path in sorted(folder.glob(".removing-*"))]
    yield check_runs(orphans, killed, left)


def _lives(pid: str) -> bool:
    return pid.isdigit() and Path("/proc", pid).exists()


def _from_the_future(folder: Path) -> tuple[str, float] | None:
    """The file of a run, or of this project, that is from furthest in the future, and by how many seconds."""
    now, files = time.time(), [Path(realm.__file__), *folder.glob("*/run.json")]
    ahead = [(path.stat().st_mtime - now, str(path)) for path in files if path.exists()]
    return (max(ahead)[1], max(ahead)[0]) if ahead and max(ahead)[0] > 0 else None
