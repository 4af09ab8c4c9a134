"""Runs commands for the tests as a user does: in a process of its own, with its output in pipes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cluster import ROOT

PROGRESS = re.compile(r"^(.* \.\.\.|.*: ([\d,]+ of [\d,]+|\d+%), .*|.* INFO +the package .* plays .*)\n", re.MULTILINE)


def start(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.Popen[str]:
    command, env = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr); stderr without what a slow machine has said about work going on."""
    out, err = process.communicate(timeout=400)
    return process.returncode, out, PROGRESS.sub("", err)


def realm(*arguments: str | Path, cwd: Path = ROOT) -> tuple[int, str, str]:
    return end(start("-m", "realm", *arguments, cwd=cwd))
