"""`realm doctor`: looks at this Python and machine for what a start would not say.

Each check is a plain function of facts and returns one `Finding`, so a test can give it any machine. Torch and reverb
are loaded in processes of their own, which takes long and may crash. Ports, files, folders and devices are not looked
at: a start refuses what is wrong with them, and says what it has chosen and why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

import realm
from realm.commands.locate import LOG_DIR_HELP, runs_folder
from realm.commands.parser import Commands
from realm.config.plan import gpus, usable_cores
from realm.config.toml import read_toml
from realm.errors import ConfigError, to_install
from realm.launch.rundir import find_runs, living_pids
from realm.watch.resources import in_words
from realm.watch.status import say

_ROOT = Path(realm.__file__).parents[1]
_WITHIN_S = 60.0  # a library loads in two seconds, and a busy machine may take long
_WIDTH = 80
_REVERB = """
import importlib.util
try:
    if importlib.util.find_spec("reverb"):
        import realm.data.reverb
    print("ok")
except Exception as error:
    print(error.__cause__ or error)
"""
_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if cuda else []
print(json.dumps([torch.__version__, *names]))
"""
_SMALL_SHM = 64 << 20
_SETUP = "in a checkout remove .venv and call tools/setup.sh, else install realm-rl again"


@dataclass(frozen=True)
class Finding:
    """What one check has found, in one sentence, and what to do about it. bad: a run will not work."""

    name: str
    state: Literal["ok", "warn", "bad"]
    what: str
    do: str = ""


def add_commands(commands: Commands) -> None:
    """Add it."""
    text = "look for what needs mending: packages, GPU, runs"
    parser = commands.add_parser("doctor", help=text, example="realm doctor")
    parser.add_argument("--log-dir", help=LOG_DIR_HELP)
    parser.set_defaults(run=lambda given: doctor(runs_folder(given.log_dir)))


def doctor(log_dir: Path) -> int:
    """Print what was found; return 1 if anything of it is bad."""
    found = list(_examine(log_dir))
    for finding in found:
        say(*lines(finding))
    bad, warn = (sum(finding.state == state for finding in found) for state in ("bad", "warn"))
    say(f"{bad} bad, {warn} to look at, {len(found) - bad - warn} ok")
    return int(bad > 0)


def misfit() -> str:
    """Which packages that Realm needs are missing or do not fit, and what to do; "" if they fit."""
    finding = check_packages(_installed(), needed(), locked())
    return f"{finding.what}; {finding.do}" if finding.state == "bad" else ""


def check_packages(
    installed: Mapping[str, tuple[str, Sequence[str]]], ours: Collection[str], locked: Collection[str] = ()
) -> Finding:
    """Whether what Realm needs is installed, and the packages take each other's versions.

    installed: name -> version and requirements. ours: Realm's requirements, as in pyproject.toml; locked: those of the
    locks.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement  # late: it may be what is missing
        from packaging.utils import canonicalize_name
    except ImportError:
        return Finding("packages", "bad", "packaging is not installed", _SETUP)
    versions = {canonicalize_name(name): version for name, (version, _) in installed.items()}
    known = {canonicalize_name(Requirement(line).name) for line in (*ours, *locked)}
    bad, warn = list[str](), list[str]()
    everybody = [("Realm", ours), ("requirements.lock", locked)]
    for name, requirements in [*everybody, *((name, lines) for name, (_, lines) in installed.items())]:
        for line in requirements:
            try:
                wanted = Requirement(line)
            except InvalidRequirement:
                continue
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            version, text = versions.get(canonicalize_name(wanted.name)), f"{name} needs {wanted.name}"
            if version is None and requirements is ours:
                bad.append(f"{text}, which is not installed")
            elif version is not None and not wanted.specifier.contains(version, prereleases=True):
                text += f"{wanted.specifier}, which is {version}"
                (bad if requirements is ours or canonicalize_name(name) in known else warn).append(text)
    if not bad and not warn:
        return Finding("packages", "ok", "all are there and fit each other")
    return Finding("packages", "bad" if bad else "warn", _some([*bad, *warn]), _SETUP)


def check_torch(devices: int, answer: str) -> Finding:
    """devices: GPUs that the system shows. answer: a list in JSON, of torch's version and the GPUs that it can use;
    else why torch cannot be loaded."""
    try:
        version, *names = json.loads(answer)
    except (ValueError, TypeError):
        return Finding("torch", "bad", answer, _SETUP)
    if names:
        return Finding("torch", "ok", f"{version} with {', '.join(names)}")
    if devices:
        build = "a build for the CPU" if version.endswith("+cpu") else "which may not fit the driver (nvidia-smi)"
        what = f"can use no GPU, although there is one: it is {version}, {build}"
        return Finding("torch", "warn", what, "install torch for CUDA")
    return Finding("torch", "ok", f"{version}; there is no GPU")


def check_reverb(answer: str) -> Finding:
    """answer: "ok", or why it cannot be loaded although it is installed."""
    if answer == "ok":
        return Finding("reverb", "ok", "can be loaded, or is not installed")
    return Finding("reverb", "warn", answer, f"set buffer_backend = native, or if you want reverb: {_SETUP}")


def check_ray(version: str, raylet: Mapping[str, str] | None, is_open: bool) -> Finding:
    """version: that is installed. raylet: the variables with which Ray was started on this machine, None if it was not.
    is_open: it asks nobody for a token."""
    if not version.startswith("2.60."):
        return Finding("ray", "warn", f"{version}, and `realm start` is tested with 2.60", to_install("'ray==2.60.*'"))
    if raylet is None:
        return Finding("ray", "ok", f"{version}; none runs here")
    if is_open:
        what = f"{version} asks nobody for a token: whoever reaches it runs code as you"
        return Finding("ray", "warn", what, "start it with RAY_AUTH_MODE=token on every machine")
    if (niceness := raylet.get("RAY_worker_niceness", "15")) != "0":
        what = f"{version} runs all at niceness {niceness}, so other programs come first"
        return Finding("ray", "warn", what, "start it with RAY_worker_niceness=0 on every machine")
    return Finding("ray", "ok", f"{version} runs here and asks for a token")


def check_cores(cores: int, quota: float | None) -> Finding:
    """cores: that this process may use. quota: the most of them at once that its container allows."""
    if quota is not None and quota < cores - 0.5:
        what = f"{cores}, but the container allows only {quota:g} at once, and `auto` keys count {cores}"
        do = f"give the container {max(1, round(quota))} cores of its own, or set aisrv_count and torch_num_threads"
        return Finding("cores", "warn", what, do)
    return Finding("cores", "ok", str(cores))


def check_shm(free: int) -> Finding:
    """free: bytes of /dev/shm, by which environments in processes of their own may share memory."""
    do = "if environments share memory between processes: docker run --shm-size=1g" if free < _SMALL_SHM else ""
    return Finding("/dev/shm", "warn" if do else "ok", f"{in_words(free)} are free", do)


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


def _some(words: Sequence[str]) -> str:
    """The first words, and how many more there are."""
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def lines(finding: Finding) -> list[str]:
    """One line, or more if it is too long for 80 columns."""
    head = f"{finding.state:<4} {finding.name:<9} "
    text = finding.what + (f"; {finding.do}" if finding.do else "")
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _examine(folder: Path) -> Iterator[Finding]:
    """All checks, in the order in which they are shown."""
    torch, reverb = _python(_TORCH), _python(_REVERB)
    yield check_packages(_installed(), needed(), locked())
    yield check_cores(usable_cores(), _quota())
    if sys.platform == "linux":
        with suppress(OSError):
            yield check_shm(shutil.disk_usage("/dev/shm").free)
    yield _runs(folder)
    yield check_reverb(_answer(reverb))
    yield check_torch(gpus(), _answer(torch))
    with suppress(metadata.PackageNotFoundError):
        from realm.launch.on_ray import is_open  # late: other commands do not need it

        raylet = _raylet()
        yield check_ray(metadata.version("ray"), raylet, raylet is not None and bool(is_open()))


def _raylet() -> dict[str, str] | None:
    """The variables of the raylet here, if there is one. One that was killed, or another user's, has none."""
    for process in psutil.process_iter(["name", "environ"]):
        if process.info["name"] == "raylet" and (variables := process.info["environ"]):
            return dict(variables)
    return None


def _python(code: str) -> subprocess.Popen[str]:
    """Run code in a process of its own."""
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).strip(":")
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def _answer(process: subprocess.Popen[str]) -> str:
    """The last line that it has printed; else its error, in one line."""
    try:
        out, err = process.communicate(timeout=_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"did not load in {_WITHIN_S:.0f} s"
    answer = (out if process.returncode == 0 else err).strip().splitlines()
    return answer[-1] if answer else f"loading it ends with exit code {process.returncode}"


def needed() -> list[str]:
    """The requirements of the project without its extras."""
    try:
        file = _ROOT / "pyproject.toml"
        project = read_toml(file)[0].get("project") if file.is_file() else None
        return list(project["dependencies"]) if isinstance(project, dict) else metadata.requires("realm-rl") or []
    except (ConfigError, LookupError, TypeError, metadata.PackageNotFoundError):
        return []


def locked() -> list[str]:
    names = ("requirements.lock", "requirements.torch.lock", "requirements.dev.lock")
    try:
        lines = {line.strip(" \\"): None for name in names for line in (_ROOT / name).read_text().splitlines()}
    except OSError:
        return []
    return [line for line in lines if line and not line.startswith(("#", "-"))]  # comments, hashes


def _installed() -> dict[str, tuple[str, list[str]]]:
    """Name -> version and requirements of each package that this Python finds; of two, the first one counts."""
    found: dict[str, tuple[str, list[str]]] = {}
    for one in metadata.distributions():
        if name := one.metadata["Name"]:
            found.setdefault(name, (one.version, one.requires or []))
    return found


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


def _runs(folder: Path) -> Finding:
    orphans, killed = [], []
    for path, run in find_runs(folder):
        if run.lives():
            continue
        if pids := living_pids(run):
            orphans.append(f"{path} ({', '.join(map(str, pids))})")
        elif run.state not in ("stopped", "failed"):
            killed.append(str(path))
    logs = sorted(folder.glob("start-*.log"))
    left = [str(path) for path in logs if not Path("/proc", path.stem.rpartition("-")[2]).exists()]
    left += [str(path) for path in sorted(folder.glob(".removing-*"))]
    return check_runs(orphans, killed, left)
