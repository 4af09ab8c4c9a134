"""What others build from this folder: the locks fit each Python that is offered, the container's files name what is
there, the source distribution is whole."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from realm import __version__
from realm.commands.doctor import locked
from realm.config.toml import read_toml
from tests.cluster import ROOT

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]  # as in pyproject.toml
SYSTEMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
IN_VENV = {".venv/bin/tensorboard": "tensorboard"}


def is_there(command: list[str]) -> bool:
    name = command[0]
    if name in IN_VENV:
        return f"\n{IN_VENV[name]}==" in (ROOT / "requirements.lock").read_text()
    return (ROOT / name).is_file() and (ROOT / name).stat().st_mode & 0o111 != 0


def test_the_container_names_what_is_there() -> None:
    text = re.sub(r"#.*", "", (ROOT / "Dockerfile").read_text())
    folder = re.search(r"^WORKDIR (\S+)$", text, re.MULTILINE)
    assert folder
    copied = [line.split()[2:-1] for line in text.splitlines() if line.startswith("COPY")]
    assert copied[-1] == ["."]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name
    (command,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    assert is_there([part.strip('" ') for part in command.split(",")])
    setup = [word for word in shlex.split(text) if word.startswith("tools/test.sh")][-1]
    assert (ROOT / setup).is_file()
    assert "tools/setup.sh" in copied[1]
    # what the setup reads is copied before it
    assert copied[0] == ["requirements.lock", "requirements.torch.lock", "requirements.dev.lock"]

    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"train", "tensorboard", "test"}
    for service in services.values():
        assert (ROOT / service["build"] / "Dockerfile").is_file()
        assert is_there(service.get("command", ["tools/start.sh"]))
        for volume in service.get("volumes", ()):
            assert volume.split(":")[1] == f"{folder[1]}/train"
        for port in service.get("ports", ()):
            host, outside, inside = port.split(":")
            assert (host, outside) == ("127.0.0.1", inside)
            assert inside in service["command"]


def test_nothing_private_goes_into_the_container() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    kept = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    assert {".git"} | {one for one in kept if one != "*.egg-info" and one != "__pycache__"} <= set(ignored)


def applies(pin: Requirement, python: str, system: tuple[str, str], extra: str = "") -> bool:
    platform, machine = system
    here = {
        "python_version": python,
        "python_full_version": f"{python}.19",
        "sys_platform": platform,
        "platform_system": platform.capitalize(),
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": extra,
    }
    return pin.marker is None or pin.marker.evaluate(here)


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_the_project_asks_for(python: str, system: tuple[str, str]) -> None:
    """Each package stands there once for this Python and system, in a version that pyproject.toml allows."""
    project: dict[str, Any] = read_toml(ROOT / "pyproject.toml")[0]["project"]  # type: ignore[assignment]
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    pins = [pin for pin in map(Requirement, locked()) if applies(pin, python, system)]
    version = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    assert all(pin.specifier.contains(version[pin.name]) for pin in pins)  # some are in two locks
    extras = project["optional-dependencies"]
    for asked in map(Requirement, project["dependencies"] + extras["dev"] + extras["reverb"]):
        if applies(asked, python, system):
            assert asked.specifier.contains(version[canonicalize_name(asked.name)]), asked


def test_each_pin_admits_each_python_that_it_is_for() -> None:
    """By what the packages that are installed here say themselves. The pins of other Pythons are not installed."""
    looked_at = 0
    for pin in map(Requirement, locked()):
        try:
            installed = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:
            continue
        admitted = SpecifierSet(installed.metadata.get("Requires-Python") or "")
        if pin.specifier.contains(installed.version, prereleases=True):
            looked_at += 1
            offered = [python for python in PYTHONS if applies(pin, python, SYSTEMS[0])]
            assert [one for one in offered if f"{one}.19" not in admitted] == [], f"{pin} admits {admitted}"
    assert looked_at > 50


def test_every_file_in_the_locks_has_a_hash() -> None:
    """So pip takes nothing else; torch alone has none (see tools/setup.sh)."""
    for name in ("requirements.lock", "requirements.dev.lock", "requirements.ci.lock"):
        text = re.sub(r"^ *#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
        pins = re.split(r"\n(?=\S)", text.strip())
        assert [pin for pin in pins if not re.search(r"\\\n +--hash=sha256:[0-9a-f]{64}", pin)] == []
    pins = [Requirement(line).name for line in locked() if "torch" in line]
    assert pins == ["torch", "torch"]  # below 3.12 and from there on


def test_the_wheels_for_a_gpu_are_what_realm_needs() -> None:
    """One version of each package for Python 3.12, and no more is missing than a machine with a GPU has anyway."""
    script = (ROOT / "tools/bench/gpu.sh").read_text().replace("\\\n", "")
    (names,), (cut,) = re.findall(r'^needs="(.*)"$', script, re.MULTILINE), re.findall(r'sed -nE "/(.*?)/d;', script)
    pins = [Requirement(line) for line in locked() if re.match(f"({names})==", line) and cut not in line]
    assert sorted(pin.name for pin in pins) == sorted(names.split("|"))
    assert all(applies(pin, "3.12", SYSTEMS[0]) for pin in pins)
    project: dict[str, Any] = read_toml(ROOT / "pyproject.toml")[0]["project"]  # type: ignore[assignment]
    asked = {pin.name for pin in map(Requirement, project["dependencies"]) if applies(pin, "3.12", SYSTEMS[0])}
    assert asked - set(names.split("|")) == {"torch", "numpy", "numba", "setuptools"}


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_source_distribution_is_the_checkout(tmp_path: Path) -> None:
    """All that git knows is in it, and nothing else but what setuptools writes; a wheel can be built from it."""

    def build(what: str, folder: Path) -> Path:
        code = f"import setuptools.build_meta as b; print(b.build_{what}({str(tmp_path)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        return tmp_path / done.stdout.split()[-1]

    tracked = set(
        subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    )
    checkout = tmp_path / "checkout"
    for name in tracked:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    with tarfile.open(build("sdist", checkout)) as archive:
        packed = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert tracked - packed == set()
    assert {name for name in packed - tracked if ".egg-info/" not in name} == {"PKG-INFO", "setup.cfg"}
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build("wheel", unpacked)) as wheel:
        inside = set(wheel.namelist())
    assert {name for name in tracked if name.startswith("realm/")} <= inside
    assert {f"realm/builtin/{name}" for name in tracked if name.startswith(("conf/", "diy/"))} <= inside


def test_a_checkouts_command_and_import_work_from_any_folder(tmp_path: Path) -> None:
    """The last part of tools/setup.sh, in a checkout with an environment of its own."""
    script = (ROOT / "tools/setup.sh").read_text()
    part = re.search(r"^if \[ ! -e \.venv/knows-checkout.*?^fi$", script, re.DOTALL | re.MULTILINE)
    assert part
    checkout, elsewhere = tmp_path / "a checkout", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(checkout / ".venv", symlinks=True)
    (checkout / "realm").symlink_to(ROOT / "realm")
    (site,) = (checkout / ".venv" / "lib").glob("python3*/site-packages")
    (site / "others.pth").write_text("\n".join(one for one in sys.path if one.endswith("-packages")))
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in (
        ["bash", "-euc", part[0]],
        [checkout / ".venv/bin/realm", "--version"],
        [checkout / ".venv/bin/python", "-c", "import realm"],
    ):
        place = checkout if command[0] == "bash" else elsewhere
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == (f"realm {__version__}\n" if "--version" in command else "")
