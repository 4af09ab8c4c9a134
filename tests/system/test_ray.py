"""Runs whose hosts Ray starts: its head here, its nodes in namespaces (`tests/machines.py`). Ray is in no lock."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.cluster import ROOT
from tests.machines import NET, Led, lan, until
from tests.system.test_hosts import FREE, check_once, ready_at

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]

RAY = str(Path(sys.executable).with_name("ray"))
TEMP = f"/tmp/rr{os.getpid()}"  # a socket's name must be short
ADDRESS = f"{NET}.1:6399"
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
        os.mkdir(TEMP)
        more = ["--head", "--port=6399", f"--temp-dir={TEMP}", "--include-dashboard=false"]
        self.head = subprocess.Popen(
            self._start(*more, f"--node-ip-address={NET}.1"), stdout=(folder / "ray.txt").open("ab"),
            stderr=subprocess.STDOUT, env={**os.environ, **self.variables}, start_new_session=True,
        )  # fmt: skip
        until(lambda: "Ray runtime started" in (folder / "ray.txt").read_text(), "Ray's head has started", 120)
        for machine in machines:
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
        machine.start(node, out, **self.variables)
        until(lambda: "Ray runtime started" in out.read_text(), "a node has started", 120)

    def kill(self, *names):
        """Kill those of Ray's processes that have one of these words in their command lines, or all."""
        for one in psutil.process_iter(["environ", "cmdline"]):
            words = " ".join(one.info["cmdline"] or ())
            own = (one.info["environ"] or {}).get("RAY_TEST_OF") == str(os.getpid())
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
        shutil.copytree(self.folder / "keys", folder / "keys")
        variables = {"RAY_ADDRESS": ADDRESS, **self.variables, **(variables or {})}
        variables.pop("RAY_TEST_OF")
        return Led(folder, [], *FREE, *settings, hosts=hosts, by_hand=False, variables=variables, **more)


@pytest.fixture
def cluster(tmp_path, request):
    """Of as many nodes as the test says."""
    with lan(tmp_path, request.param) as machines:
        ray = Cluster(tmp_path, machines)
        try:
            yield ray
        finally:
            ray.end()


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


def power(machine):
    machine.lose_power()


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_lost_host_is_replaced_by_ray(cluster):
    """R1, R5, R8: no role lives on there, its workers go elsewhere, and Ray's replacement gets them back."""
    machines = {machine.name: machine for machine in cluster.machines}
    since = time.monotonic()
    with cluster.run("one") as run:
        host, old = run.wait_for(lambda: host_of(run), "its worker is ready")
        run.wait_trained(1)
        print(f"warm: {time.monotonic() - since:.1f} s from the command to a checkpoint after the first update")
        for fault in (agent, actor, raylet, power):
            since = time.monotonic()
            fault(machines[host])
            until(lambda: machines[host].realm() == [], "no role lives on there", 15)  # noqa: B023
            gone = time.monotonic() - since
            moved = run.wait_for(lambda: ready_at(run, "", old), "the worker starts here")  # noqa: B023
            elsewhere = time.monotonic() - since
            host, old = run.wait_for(lambda: host_of(run, moved), "the worker is back")  # noqa: B023
            back = time.monotonic() - since
            print(
                f"{fault.__name__}: no role after {gone:.1f} s, here after {elsewhere:.1f}, on {host} after {back:.1f}"
            )
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 40, epoch)
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
        until(lambda: not any(machine.realm() for machine in machines.values()), "no process is left anywhere", 15)
        check_once(run)


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_two_runs_on_one_cluster_and_the_end_of_ray(cluster):
    """R9, R6: one is stopped; the process that talks to Ray is killed; Ray's head dies."""
    with cluster.run("one") as one:
        host, old = one.wait_for(lambda: host_of(one), "its worker is ready")
        with cluster.run("two") as two:
            other, _ = two.wait_for(lambda: host_of(two), "its worker is ready")
            assert host != other
            assert two.interrupt() == 0, two.text()
            assert two.processes() == []
        epoch, update = one.checkpoints()[-1]
        one.wait_trained(update + 40, epoch)
        assert ready_at(one, host) == old
        assert "lost" not in one.output.read_text()
        since = time.monotonic()
        next(each for each in one.processes() if "on-ray" in " ".join(each.cmdline())).kill()
        moved = one.wait_for(lambda: ready_at(one, "", old), "the worker starts here")
        print(f"on_ray: here after {time.monotonic() - since:.1f} s")
        host, old = one.wait_for(lambda: host_of(one, moved), "the worker is back")
        print(f"on_ray: back after {time.monotonic() - since:.1f} s")
        since = time.monotonic()
        cluster.kill("gcs_server")
        one.wait_for(lambda: ready_at(one, "", old), "the worker starts here")
        print(f"Ray's head: here after {time.monotonic() - since:.1f} s")
        one.wait_for(lambda: "no connection to Ray" in one.output.read_text(), "it is said")
        epoch, update = one.checkpoints()[-1]
        one.wait_trained(update + 40, epoch)
        assert one.interrupt() == 0, one.text()
        check_once(one)


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_what_is_wrong_is_a_sentence_and_leaves_nothing_behind(cluster):
    (there,) = cluster.machines
    big = cluster.folder / "big"
    shutil.copytree(ROOT / "tests" / "counting", big / "tests" / "counting")
    with open(big / "data", "wb") as file:
        file.truncate(101 << 20)

    def refused(name, text, *settings, **more):
        with cluster.run(name, *settings, **more) as run:
            assert run.finish() == 2, run.text()
            told = run.output.read_text()
            assert text in told, told
            assert "Traceback" not in told
            until(lambda: there.realm() == run.processes() == [], "nothing is left anywhere", 15)
            assert not run.dir.exists()

    config = str(ROOT / "tests" / "counting" / "counting.toml")
    refused("large", f"{big}: has more than 100 MiB", cwd=big, config=config)
    refused("none", "no connection to Ray (nobody answers at ", variables={"RAY_ADDRESS": f"{NET}.1:6398"})
    refused("few", "Ray's other machines, and their free cores: host1", "start_timeout_s=30", hosts=2)
    refused("token", "no connection to Ray (Failed to connect", variables={"RAY_AUTH_TOKEN": "0" * 64})
    shutil.rmtree(there.keys)
    refused("keys", "host1: keys_dir = ")
    cluster.end()
    again = Cluster(cluster.folder, [], {"RAY_AUTH_MODE": "disabled"})
    try:
        cluster.variables = again.variables
        refused("open", "Ray asks for no token")
    finally:
        again.end()
