"""Runs commands for the tests as a user does: in a process of its own, with its output in pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

from tests.cluster import ROOT
from tests.forks import Fork

PROGRESS = re.compile(r"^(.* \.\.\.|.*: ([\d,]+ of [\d,]+|\d+%), .*|.* INFO +the package .* plays .*)\n", re.MULTILINE)


def start(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.Popen[str] | Fork:
    words, env = [str(one) for one in arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    if sys.platform == "linux" and (words[:2] == ["-m", "realm"] or words[0].endswith("train_test.py")):
        return Fork(words, cwd, env)
    return subprocess.Popen(
        [sys.executable, *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str] | Fork) -> tuple[int, str, str]:
    """(exit code, stdout, stderr); stderr without what a slow machine has said about work going on."""
    out, err = process.communicate(timeout=400)
    return process.returncode, out, PROGRESS.sub("", err)


def finished(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, after its end; stderr as `end` gives it."""
    process = start(*arguments, cwd=cwd)
    return subprocess.CompletedProcess(process.args, *end(process))


def realm(*arguments: str | Path, cwd: Path = ROOT) -> tuple[int, str, str]:
    return end(start("-m", "realm", *arguments, cwd=cwd))


def start_in_terminal(code: str, cwd: Path = ROOT) -> tuple[subprocess.Popen[bytes], int]:
    """Run code with a terminal of 30 lines and 100 columns of its own; the other end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    env.pop("NO_COLOR", None)
    take = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that its Ctrl+C is ours
    process = subprocess.Popen(
        [sys.executable, "-c", take + code], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=env,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def read_until(terminal: int, wanted: bytes = b"") -> str:
    """What is written until `wanted` is seen, or to the end."""
    seen = b""
    with suppress(OSError):  # which is how the end of a terminal's program is told
        while not (wanted and wanted in seen):
            part = os.read(terminal, 65536)
            if not part:
                break
            seen += part
    return seen.decode(errors="replace")
