"""realm/netns.py: nobody reaches a port of the buffer's threads, and a default run has no port for other machines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import psutil
import pytest

from tests.backends import OWN_NETWORK
from tests.cluster import Run

pytestmark = pytest.mark.skipif(not OWN_NETWORK, reason="no reverb here, or no network namespaces")

LISTENER = """
import socket
from realm import netns
netns.prepare()
before = socket.create_server(("127.0.0.1", 0))
netns.enter()
inside = socket.create_server(("0.0.0.0", 0))
socket.create_connection(("127.0.0.1", inside.getsockname()[1])).close()
print(before.getsockname()[1], inside.getsockname()[1], flush=True)
print(before.accept()[0].recv(9), flush=True)
"""


def test_sockets_stay_where_they_were_opened() -> None:
    """One from before is reached from outside, and its connection works; one from after is reached from inside only."""
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before, inside = (int(port) for port in process.stdout.readline().split())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", inside), timeout=60)
        with socket.create_connection(("127.0.0.1", before), timeout=60) as connection:
            connection.sendall(b"good day")
            assert process.stdout.readline() == "b'good day'\n"


CALLER = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=5).close()
        print(port)
    except OSError:
        pass
"""
Answering = Callable[[Iterable[int]], set[int]]


@pytest.fixture
def another_machine() -> Iterator[Answering]:
    """answering(ports): those that answer another network namespace, which a cable connects with this one."""
    name, here, there = f"realm-{os.getpid()}", f"rh{os.getpid()}", f"rt{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root can lay a cable into another network namespace, with the command ip")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)

    def answering(ports: Iterable[int]) -> set[int]:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", CALLER, "10.212.97.1", *map(str, ports)]
        answered = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
        return {int(port) for port in answered.split()}

    try:
        ip("netns", "add", name)
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("address", "add", "10.212.97.1/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "address", "add", "10.212.97.2/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        pytest.skip(f"no other network namespace here: {error.stderr!r}")
    yield answering
    ip("netns", "delete", name)


def buffer_ports(run: Run) -> set[int]:
    """The ports that listen in the buffer's own network namespace: reverb's."""
    sockets = psutil.Process(run.pid("buffer-0")).net_connections("tcp")
    return {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}


@pytest.mark.system
@pytest.mark.slow
def test_no_port_of_a_default_run_answers_another_machine(tmp_path, another_machine: Answering) -> None:
    """Also not after the buffer was started again."""
    with Run(tmp_path, "buffer_backend=auto", "restart_budget=3") as run, closing(
        socket.create_server(("0.0.0.0", 0))
    ) as control:  # fmt: skip
        open_port = control.getsockname()[1]
        for _ in range(2):
            run.wait_running()
            run.wait_trained(20)
            reverb = run.wait_for(lambda: buffer_ports(run), "reverb listens")
            listens = run.listens()
            assert len(listens) >= 3  # supervisor, model_pool, buffer
            assert {address for address, _ in listens} == {"127.0.0.1"}
            ports = {port for _, port in listens} | reverb
            assert another_machine({*ports, open_port}) == {open_port}
            epoch, update = run.checkpoints()[-1]
            run.kill("buffer-0")
            run.wait_trained(update + 40, epoch)
        assert run.interrupt() == 0, run.text()
