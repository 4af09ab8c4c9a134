"""What others build from this folder: the container's files name what is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from cluster import ROOT

from realm import __version__

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
    assert copied[0] == ["requirements.lock"]

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


def test_the_command_of_a_checkout_works_from_any_folder(tmp_path: Path) -> None:
    """`.venv/bin/realm`, which tools/setup.sh writes."""
    text = re.search(r"<< 'END'\n(.*?)^END$", (ROOT / "tools/setup.sh").read_text(), re.DOTALL | re.MULTILINE)
    assert text
    folder = tmp_path / "a checkout" / ".venv" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "a checkout" / "realm").symlink_to(ROOT / "realm")
    for name, content in (("realm", text[1]), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    done = subprocess.run([folder / "realm", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"realm {__version__}\n", "")
