"""`realm doctor`: looks at this machine, this Python and the runs, and says what to mend before a run fails.

It asks for the facts here; what they mean is decided in `checks.py`. What takes long, loading torch and reverb, happens
in processes of its own meanwhile, which also survives a library that crashes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import realm
from realm import netns
from realm.commands import checks
from realm.commands.checks import Finding, Torch
from realm.config.keys import AppConfig
from realm.config.memory import memory
from realm.config.plan import gpus, usable_cores
from realm.config.toml import read_toml
from realm.errors import ConfigError
from realm.kaiwu.project import translated
from realm.launch.rundir import find_runs, living_pids
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
    finding = checks.check_fit(_installed(), [*_needed(), *_locked()])
    return f"{finding.what}; {finding.do}" if finding.state == "bad" else ""


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
    yield checks.check_python(version, sys.executable)
    yield checks.check_packages(_needed(), _locked(), _version)
    yield checks.check_fit(_installed(), [*_needed(), *_locked()])
    app, finding = _configuration(config)
    yield finding
    folder = Path(log_dir if log_dir is not None else app.log_dir)
    yield checks.check_network(app)
    yield checks.check_keys(app.keys_dir)
    yield from _folder(folder)
    yield from _machine()
    yield from _runs(folder)
    loaded = _answer(reverb)
    possible = netns.possible()
    linux_x86 = sys.platform == "linux" and platform.machine() == "x86_64"
    yield checks.check_reverb(version, linux_x86, "" if loaded == "ok" else loaded)
    yield checks.check_namespace(possible, loaded == "ok")
    yield checks.check_gpu(gpus(), _torch(_answer(torch)), app.device)
    yield checks.check_clock(time.time() - time.monotonic() - began, _from_the_future(folder))


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


def _configuration(path: Path) -> tuple[AppConfig, Finding]:
    """The configuration, or where there is no good one the defaults."""
    if not path.is_file():
        what, do = f"{path}: is not there", "call it in the project's folder, or name a file with --config"
        return AppConfig(), Finding("config", "warn", what, do)
    try:
        return translated(path).app, Finding("config", "ok", f"{path}: can be read")
    except ConfigError as error:
        return AppConfig(), Finding("config", "bad", str(error))


def _machine() -> Iterator[Finding]:
    yield checks.check_memory(*memory())
    yield checks.check_cores(usable_cores(), _quota())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield checks.check_files(1 << 20 if hard == resource.RLIM_INFINITY else hard)
    if sys.platform == "linux":
        try:
            shm = shutil.disk_usage("/dev/shm")
            yield checks.check_shm(shm.total, shm.free)
        except OSError:
            yield checks.check_shm(None, None)


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


def _folder(folder: Path) -> Iterator[Finding]:
    """The folder of runs, and the disk that it is on."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    usage, names = shutil.disk_usage(there), os.statvfs(there)
    yield checks.check_disk(folder, usage.free, usage.total, names.f_favail if names.f_files else None)
    status = folder.stat() if folder.exists() else None
    mode, owner = (status.st_mode, status.st_uid) if status else (None, -1)
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    yield checks.check_rights(folder, mode, owner, os.getuid(), writable)


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
    yield checks.check_runs(orphans, killed, left)


def _lives(pid: str) -> bool:
    return pid.isdigit() and Path("/proc", pid).exists()


def _from_the_future(folder: Path) -> tuple[str, float] | None:
    """The file of a run, or of this project, that is from furthest in the future, and by how many seconds."""
    now, files = time.time(), [Path(realm.__file__), *folder.glob("*/run.json")]
    ahead = [(path.stat().st_mtime - now, str(path)) for path in files if path.exists()]
    return (max(ahead)[1], max(ahead)[0]) if ahead and max(ahead)[0] > 0 else None
