"""The checks of `realm doctor`: each is a plain function of facts and returns one `Finding`.

`doctor.py` asks the system for the facts. So a test can give a check any machine.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.launch.ports import check_ports
from realm.watch.resources import in_words, low_disk, low_memory
from realm.wire.keys import load_keys

_SETUP = "in a checkout remove .venv and call tools/setup.sh, else install realm-rl again"
_JUMP_S = 0.5
_FUTURE_S = 60.0
_FEW_FILES, _ENOUGH_FILES = 256, 4096
_SMALL_SHM = 64 << 20


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


# --- software


def check_python(version: tuple[int, int, int], path: str) -> Finding:
    text = f"{'.'.join(map(str, version))} ({path})"
    if version < (3, 10, 0):
        return Finding("python", "bad", text, "install Python 3.11; realm needs 3.10 or newer")
    return Finding("python", "ok", text)


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


def check_disk(folder: Path, free: int, total: int, free_names: int | None) -> Finding:
    """free_names: files that the disk has room for; None where it does not count them."""
    text = f"{in_words(free)} of {in_words(total)} are free at {folder}"
    if free_names is not None and free_names < 1000:
        text += f", and room for {free_names} more files"
    elif free >= low_disk(total):
        return Finding("disk", "ok", text)
    full = free < low_disk(total) // 10 or free_names == 0
    return Finding("disk", "bad" if full else "warn", text, "make room, for example with `realm runs --prune --keep 5`")


def check_memory(free: int, total: int) -> Finding:
    text = f"{in_words(free)} of {in_words(total)} are free"
    if free < low_memory(total):
        return Finding("memory", "bad" if free < low_memory(total) // 2 else "warn", text, "end other programs")
    return Finding("memory", "ok", text)


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


def check_network(app: AppConfig) -> Finding:
    try:
        check_ports(app)
    except ConfigError as error:
        return Finding("ports", "bad", str(error))
    ports = f"from {app.base_port} are free" if app.base_port else "are chosen when a run starts"
    return Finding("ports", "ok", f"ports of {app.bind_host} {ports}")


def check_keys(folder: str) -> Finding:
    """folder: keys_dir of the configuration."""
    try:
        load_keys(folder)
    except ConfigError as error:
        return Finding("keys", "bad", str(error))
    return Finding("keys", "ok", f"{folder}: can be used" if folder else "none, so a run is for this machine alone")


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
