"""Starts real runs for the tests: real processes, real sockets, real reverb. Used by the files in `tests/system`.

A run in one process is a fork (`forks.py`), which saves two seconds of CPU time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.forks import Fork

ROOT = Path(__file__).parents[1]
PATIENCE_S = 240.0  # a time-out for a loaded machine, not a speed


class Run:
    """One `realm start` with the counting configuration, in a directory of its own."""

    def __init__(
        self, tmp_path, *overrides, config="tests/counting/counting.toml", cwd=ROOT, variables=None, launch=None,
        options=(),
    ):  # fmt: skip
        """variables: of the environment, besides this process's. launch: called in the new process. options: of the
        command."""
        self.dir = tmp_path / "runs" / "one"
        self.output = tmp_path / "output.txt"
        words = ["-m", "realm", "start", "--config", str(config), *options]
        for one in (f"log_dir={tmp_path / 'runs'}", "run_name=one", *overrides):
            words += ["--set", one]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
        if "wrapper_type=local" in overrides and launch is None and sys.platform == "linux":
            self.process = Fork(words, cwd, env, self.output)
            return
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            stdout=self.output.open("ab"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=launch,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def text(self):
        logs = [self.output, *sorted(self.dir.glob("log/*.log"))]
        there = [path for path in logs if path.exists()]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in there)

    def file(self):
        return json.loads((self.dir / "run.json").read_text())

    def summary(self):
        return json.loads((self.dir / "summary.json").read_text())

    def totals(self, role):
        """Name -> sum over all processes that the role had."""
        sums = {}
        for name, totals in self.summary()["processes"].items():
            if name.rsplit("-", 1)[0] == role:
                for key, value in totals.items():
                    sums[key] = sums.get(key, 0) + value
        return sums

    def wait_for(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            over = self.process.poll() is not None
            try:
                value = condition()
            except (OSError, ValueError, KeyError):
                value = None
            if value:
                return value
            assert not over, f"the run ended before {what}\n{self.text()}"
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{self.text()}")

    def wait_running(self):
        self.wait_for(lambda: self.file()["state"] == "running", "all roles were ready")

    def checkpoints(self):
        """(epoch, update) of every checkpoint, newest last."""
        names = [path.name.split("-")[1:] for path in self.dir.glob("ckpt/model.ckpt-*")]
        return sorted((int(epoch), int(update)) for epoch, update in names)

    def wait_trained(self, updates, epoch=1):
        self.wait_for(
            lambda: self.checkpoints() and self.checkpoints()[-1] >= (epoch, updates),
            f"version {epoch}.{updates} was saved",
        )

    def pid(self, role):
        def ready_pid():
            entry = self.file()["roles"][role]
            return entry["state"] == "ready" and entry["pid"]

        return self.wait_for(ready_pid, f"{role} lives")

    def kill(self, role):
        pid = self.pid(role)
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: self.file()["roles"][role]["pid"] not in (0, pid), f"{role} is started again")

    def finish(self):
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run does not end\n{self.text()}") from None

    def signal_all(self, number):
        """Send a signal to every process of the run, children first, as systems end a job in any order."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        for pid in (*(one.pid for one in reversed(family)), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.finish()

    def listens(self):
        """(address, port) of every socket of the run that listens in this process's network namespace."""
        pids = {one.pid for one in self.processes()}
        sockets = psutil.net_connections("tcp")
        return {tuple(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN and one.pid in pids}

    def processes(self):
        """Living processes whose command line names this run's directory."""
        found = []
        for one in psutil.process_iter(["cmdline", "status"]):
            if str(self.dir.parent) in " ".join(one.info["cmdline"] or ()) and one.info["status"] != "zombie":
                found.append(one)
        return found
