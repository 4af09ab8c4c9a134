"""From another machine no port of a default run answers: reverb listens in a network that nobody else is in."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import psutil
import pytest
from backends import NEEDS_REVERB
from cluster import Run

from realm.config.keys import AppConfig
from realm.config.plan import Machine, decide
from realm.data import namespace

NEEDS_NETWORKS = pytest.mark.skipif(namespace.refusal() != "", reason="this machine lets nobody make networks")


def listeners(tcp: Path) -> set[tuple[str, int]]:
    """(address in hex, port) of every listening socket in a /proc/.../net/tcp or tcp6."""
    rows = [line.split() for line in tcp.read_text().splitlines()[1:]]
    return {(row[1].split(":")[0], int(row[1].split(":")[1], 16)) for row in rows if row[3] == "0A"}


@NEEDS_REVERB
@NEEDS_NETWORKS
@pytest.mark.system
def test_no_port_of_a_run_leaves_the_loopback(tmp_path: Path) -> None:
    here = os.readlink("/proc/self/ns/net")
    with Run(tmp_path, "buffer_backend=reverb", "max_version_lag=0", "counting.strict=true") as run:
        run.wait_running()
        run.wait_trained(20)
        buffer, ports = run.pid("buffer-0"), set()
        own = [one for one in Path(f"/proc/{buffer}/task").iterdir() if os.readlink(one / "ns" / "net") != here]
        assert own, "no thread of the buffer has a network of its own"
        for thread in own:
            ports |= {port for kind in ("tcp", "tcp6") for _, port in listeners(thread / "net" / kind)}
        assert ports, "reverb listens there"
        outside = {port for kind in ("tcp", "tcp6") for _, port in listeners(Path("/proc/net") / kind)}
        supervisor = psutil.Process(run.process.pid)
        for process in [supervisor, *supervisor.children(recursive=True)]:
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN and one.laddr.port in outside:
                    assert one.laddr.ip == "127.0.0.1", (process.name(), one)
        assert run.interrupt() == 0, run.text()


@NEEDS_NETWORKS
def test_a_thread_gets_a_network_of_its_own() -> None:
    """What listens there is out of reach from here, and what runs here stays where it is."""
    listening, done, found = threading.Event(), threading.Event(), {}

    def listen() -> None:
        namespace.own_network()
        with socket.create_server(("127.0.0.1", 0)) as server:
            found["port"] = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", found["port"]), timeout=5):
                found["inside"] = True
            listening.set()
            done.wait(20)

    here = os.readlink("/proc/self/ns/net")
    thread = threading.Thread(target=listen)
    thread.start()
    assert listening.wait(20)
    try:
        assert found["inside"]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", found["port"]), timeout=5)
        assert os.readlink("/proc/self/ns/net") == here
    finally:
        done.set()
        thread.join()


def test_where_no_network_can_be_made_auto_takes_the_native_buffer() -> None:
    closed, opened = Machine(2, 0, True), Machine(2, 0, True, "unshare: Operation not permitted")
    assert decide(AppConfig(), closed).app.buffer_backend == "reverb"
    decided = decide(AppConfig(), opened)
    assert decided.app.buffer_backend == "native"
    assert "unshare: Operation not permitted" in decided.why["buffer_backend"]
    assert decide(AppConfig(buffer_backend="reverb"), opened).app.buffer_backend == "reverb"  # the user's own choice


def test_a_refusal_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kinds: int) -> None:
        raise OSError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(namespace, "_unshare", refused)
    namespace.own_user()
    with pytest.raises(OSError, match="unshare"):
        namespace.own_network()
    assert struct.calcsize("16sh14x") == 32  # the kernel's ifreq, as far as flags need it
