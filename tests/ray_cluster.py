"""Ray between the machines of the tests: its head here, its nodes in namespaces (`tests/machines.py`)."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.machines import FREE, NET, Led, until

RAY = str(Path(sys.executable).with_name("ray"))
TEMP = f"/tmp/rr{os.getpid()}"  # a socket's name must be short
PORT = 6400 + os.getpid() % 1000  # Ray takes it on every interface
ADDRESS = f"{NET}.1:{PORT}"
SECURE = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
BESIDES = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_TEST_OF": str(os.getpid()),
}


class Cluster:
    """Ray's head on this machine, and its nodes on the others."""

    def __init__(self, folder, machines, variables=SECURE):
        self.folder, self.machines, self.variables = folder, machines, {**BESIDES, **variables}
        self.nodes = {}

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *exc):
        self.end()

    def begin(self):
        """Start the head and all nodes."""
        folder = self.folder
        (folder / "ray.txt").unlink(missing_ok=True)
        os.mkdir(TEMP)
        more = ["--head", f"--port={PORT}", f"--temp-dir={TEMP}", "--include-dashboard=false"]
        self.head = subprocess.Popen(
            self._start(*more, f"--node-ip-address={NET}.1"), stdout=(folder / "ray.txt").open("ab"),
            stderr=subprocess.STDOUT, env={**os.environ, **self.variables}, start_new_session=True,
        )  # fmt: skip
        until(lambda: "Ray runtime started" in (folder / "ray.txt").read_text(), "Ray's head has started", 120)
        for machine in self.machines:
            self.add(machine)

    @staticmethod
    def _start(*more):
        return [RAY, "start", *more, "--num-cpus=1", "--object-store-memory=80000000", "--block"]

    def add(self, machine):
        """Make a machine one of its nodes."""
        machine.start(["mount", "-t", "tmpfs", "tmpfs", TEMP], self.folder / "mount.txt").wait(30)
        out = self.folder / f"ray-{machine.name}.txt"
        out.write_text("")
        node = self._start(f"--address={ADDRESS}", f"--node-ip-address={machine.address}")
        self.nodes[machine] = machine.start(node, out, **self.variables)
        until(lambda: "Ray runtime started" in out.read_text(), "a node has started", 120)

    def keep(self, machine):
        """Make it a node again if Ray ends there: a node that was given up for lost does so when it hears that."""
        with suppress(subprocess.TimeoutExpired):
            self.nodes[machine].wait(10)
            self.add(machine)

    def kill(self, *names, here=False):
        """Kill those of Ray's processes that have one of these words in their command lines, or all. here: not those of
        other machines."""
        for one in psutil.process_iter(["environ", "cmdline"]):
            words = " ".join(one.info["cmdline"] or ())
            own = (one.info["environ"] or {}).get("RAY_TEST_OF") == str(os.getpid())
            with suppress(OSError):
                own = own and not (here and os.readlink(f"/proc/{one.pid}/ns/pid") != os.readlink("/proc/self/ns/pid"))
            if own and (not names or any(name in words for name in names)):
                with suppress(psutil.Error):
                    one.kill()

    def end(self):
        self.kill()
        self.head.wait()
        shutil.rmtree(TEMP, ignore_errors=True)

    def run(self, name, *settings, hosts=1, variables=None, **more):
        """Start a run of that name."""
        folder = self.folder / name
        shutil.copytree(self.folder / "keys", folder / "keys", dirs_exist_ok=True)
        variables = {"RAY_ADDRESS": ADDRESS, **self.variables, **(variables or {})}
        variables.pop("RAY_TEST_OF")
        return Led(folder, [], *FREE, *settings, hosts=hosts, by_hand=False, variables=variables, **more)


def host_of(run, after=0):
    """The machine, other than this one, on which worker 1 is ready, and its incarnation."""
    role = run.file()["roles"]["aisrv-1"]
    return (
        role["state"] == "ready"
        and role["host"]
        and role["incarnation"] > after
        and (role["host"], role["incarnation"])
    )


def kill(machine, *words):
    for pid in machine.pids()[1:]:
        with suppress(OSError):
            if any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in words):
                os.kill(pid, signal.SIGKILL)


def agent(machine):
    os.kill(machine.agent(), signal.SIGKILL)


def actor(machine):
    kill(machine, b"ray::Agent")


def raylet(machine):
    kill(machine, b"/raylet/raylet")
