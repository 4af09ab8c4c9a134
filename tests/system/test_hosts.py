"""Runs of two machines: `realm start --by-hand` here, `realm host` in namespaces of its own (`tests/machines.py`).

The counting environment raises on the first row that is not what was played, as in `test_counting.py`.
"""

import os
import re
import shutil
import signal
import sys
import time

import pytest

from realm.wire.curve_keys import make_keys
from tests.backends import BACKENDS
from tests.cluster import PATIENCE_S, ROOT
from tests.console import finished
from tests.machines import FREE, NET, Led, lan, ready_at, until
from tests.system.test_counting import ENOUGH, FLOWS, OFF_POLICY, check_accounts

pytestmark = pytest.mark.system


@pytest.fixture
def host(tmp_path):
    with lan(tmp_path, 1) as machines:
        yield machines[0]


@pytest.mark.parametrize(
    "flow",
    ["strict", *(pytest.param(name, marks=pytest.mark.slow) for name in ("part", "off-policy"))],
)
def test_two_machines_train(tmp_path, host, flow):
    ports = f"base_port={24_000 + os.getpid() % 2_000 * 4}"  # the agent is told the last of them
    with Led(tmp_path, [host], "buffer_backend=native", ports, ENOUGH, *FLOWS[flow]) as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=flow not in OFF_POLICY)
        assert run.processes() == []
        until(lambda: host.realm() == [], "no process is left there", 15)
        assert "aisrv-1 on host1 is ready" in run.output.read_text()
        assert (run.dir / "log" / "aisrv-1.log").read_text().count("aisrv-1 ended: stopped") == 1


def check_once(run):
    """What came in was trained on once. An old worker that comes back may offer rounds, which are refused."""
    buffer = run.totals("buffer")
    assert buffer["inserted"] == buffer["sampled"] + buffer["size"] + buffer["dropped_old_epoch"]
    assert buffer["evicted"] == 0
    assert 0 <= buffer["sampled"] - run.totals("learner")["items_trained"] <= 2 * 20


@pytest.mark.slow
def test_a_killed_agent_takes_its_roles_along(tmp_path, host):
    """R5, R8: workers go elsewhere, and back to the next agent; Ctrl+C leaves no process anywhere."""
    with Led(tmp_path, [host], *FREE) as run:
        run.wait_running()
        old = ready_at(run, "host1")
        os.kill(host.agent(), signal.SIGKILL)
        until(lambda: host.realm() == [], "no role lives on there", 15)
        moved = run.wait_for(lambda: ready_at(run, "", old), "the worker starts here")
        host.start([sys.executable, "-m", "realm", "host"], tmp_path / "host1.txt", REALM_RUN=run.line())
        back = run.wait_for(lambda: ready_at(run, "host1", moved), "the worker is back")
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 40, epoch)
        shown = finished("-m", "realm", "status", "--log-dir", run.dir.parent).stdout
        assert re.search(r"host host1 +1 workers, [\d.]+ MB/s up, [\d.]+ down so far, heard \d+ s ago", shown), shown
        assert re.search(r"aisrv-1 +ready +- .* on host1", shown), shown
        assert run.interrupt() == 0, run.text()
        until(lambda: host.realm() == [], "no process is left there", 15)
        assert run.processes() == []
        assert old < moved < back
        assert "the host host1 is lost (silent for 1" in run.output.read_text()
        check_once(run)


def power(host):
    host.lose_power()


def one_way(host):
    host.lose(True)
    return lambda: host.lose(False)


def frozen(host):
    host.freeze()
    return host.thaw


@pytest.mark.slow
@pytest.mark.parametrize("fault", [power, one_way, frozen])  # tools/soak has the others
def test_a_lost_host(tmp_path, fault):
    """R1, R3, R4: its workers start elsewhere, the next agent gets them back, and the old one is told to end."""
    with lan(tmp_path, 2) as (host, spare), Led(tmp_path, [host], *FREE) as run:
        run.wait_running()
        old = ready_at(run, host.name)
        mend = fault(host)
        moved = run.wait_for(lambda: ready_at(run, "", old), "the worker starts here")
        run.join(spare)
        run.wait_for(lambda: ready_at(run, spare.name, moved), "the worker is back")
        if mend:
            mend()
            until(lambda: host.realm() == [], "the old agent was told to end", 45)
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 40, epoch)
        assert run.interrupt() == 0, run.text()
        check_once(run)


@pytest.mark.slow
def test_a_short_fault_restarts_nothing(tmp_path, host):
    """R2: the cable cut for 3 s, again and again. And a machine that takes long to import torch."""
    slow = "import sys, time\n\nif 'forkserver' in ' '.join(sys.orig_argv):\n    time.sleep(12)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    host.variables["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    with Led(tmp_path, [host], *FREE) as run:
        run.wait_running()
        old = ready_at(run, "host1")
        for _ in range(3):
            host.cut()
            time.sleep(3)
            host.mend()
            time.sleep(4)
        assert ready_at(run, "host1") == old
        assert finished("-m", "realm", "stop", "all", "--log-dir", run.dir.parent).returncode == 0
        assert run.finish() == 0, run.text()
        until(lambda: host.realm() == [], "no process is left there", 15)
        check_accounts(run, samples_once=True)
        assert "lost" not in run.output.read_text()


@pytest.mark.slow
def test_a_third_machine_reaches_nothing(tmp_path):
    """No port of the head or of a host lets in somebody without a key; those of a host's own pool are not even seen."""
    with lan(tmp_path, 2) as (host, third), Led(tmp_path, [host], *FREE) as run:
        run.wait_running()
        ports = {port for _, port in run.listens()} | host.listens()
        assert len(ports) >= 5  # supervisor, actor, pool and buffer here, a pool there
        code = """
import socket, sys
for address in sys.argv[1].split(","):
    for port in map(int, sys.argv[2].split(",")):
        try:
            with socket.create_connection((address, port), timeout=5) as line:
                line.sendall(bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0]) + b"CURVE" + bytes(47))
                got = b""
                while len(got) < 64 and (more := line.recv(64)):
                    got += more
            print(address, port, "CURVE" if got[12:17] == b"CURVE" else f"open:{got}")
        except OSError as error:
            print(address, port, type(error).__name__)
"""
        out = tmp_path / "third.txt"
        addresses = f"{NET}.1,{host.address}"
        program = third.start([sys.executable, "-c", code, addresses, ",".join(map(str, ports))], out)
        assert program.wait(240) == 0
        answers = [line.split() for line in out.read_text().splitlines()]
        assert len(answers) == 2 * len(ports)
        assert {answer for address, _, answer in answers if address == host.address} == {"ConnectionRefusedError"}
        assert {answer for address, _, answer in answers if address != host.address} <= {
            "CURVE",
            "ConnectionRefusedError",
        }
        assert run.interrupt() == 0, run.text()


def refuse(tmp_path, machine, line, text, code=2):
    """Join, and be refused with a sentence."""
    out = tmp_path / "refused.txt"
    assert machine.join(line, out).wait(PATIENCE_S) == code, out.read_text()
    told = out.read_text()
    assert text in told, told
    assert "Traceback" not in told
    out.unlink()


@pytest.mark.slow
def test_what_is_wrong_is_a_sentence_and_leaves_nothing_behind(tmp_path):
    with lan(tmp_path, 1) as (host,):
        refuse(tmp_path, host, "realm://x", "is not the line that `realm start --by-hand` has printed")
        host.keys, keys = tmp_path / "none", host.keys
        refuse(tmp_path, host, "", "has no secret.key")
        make_keys(host.keys)
        shutil.copy(keys / "server.key", host.keys)
        with Led(tmp_path, [], *FREE, "start_timeout_s=30", hosts=1) as run:
            refuse(tmp_path, host, run.line(), "the key of this machine is not allowed there")
            assert run.finish() == 2
            assert "within start_timeout_s = 30 s there came none" in run.output.read_text()
            assert not run.dir.exists()
            run.output.unlink()
        host.keys = keys
        other = tmp_path / "other"
        shutil.copytree(ROOT / "tests" / "counting", other / "tests" / "counting")
        (other / "tests" / "counting" / "config.py").open("a").write("# another\n")
        with Led(tmp_path, [], *FREE, hosts=1) as run:
            program = host.join(run.line(), out := tmp_path / "refused.txt", cwd=other)
            assert program.wait(PATIENCE_S) == 2
            assert run.finish() == 2
            for told in (out, run.output):
                assert "host1: the package tests.counting is " in told.read_text()
            until(lambda: host.realm() == run.processes() == [], "nothing is left anywhere", 15)


@pytest.mark.slow
def test_what_fails_there_alone_is_told_with_the_hosts_name(tmp_path, host):
    """A package that imports here and not there: its line arrives, and nothing is left anywhere."""
    other = tmp_path / "other"
    shutil.copytree(ROOT / "tests" / "counting", other / "own")
    for path in (other / "own").rglob("*.py"):
        path.write_text(path.read_text().replace("tests.counting", "own"))
    workflow = other / "own" / "train_workflow.py"
    workflow.write_text(workflow.read_text() + "\nimport socket\n\nassert socket.gethostname() != 'host1'\n")
    toml = (ROOT / "tests" / "counting" / "counting.toml").read_text()
    (other / "own.toml").write_text(toml.replace("tests.counting", "own").replace("[counting]", "[own]"))
    with Led(tmp_path, [], "buffer_backend=native", config=str(other / "own.toml"), cwd=other, hosts=1) as run:
        program = host.join(run.line(), tmp_path / "host1.txt", cwd=other)
        assert run.finish() == 2, run.text()
        assert "aisrv-1 on host1: " in run.output.read_text()
        assert "own/train_workflow.py:" in run.output.read_text()
        assert program.wait(PATIENCE_S) == 0
        until(lambda: host.realm() == run.processes() == [], "nothing is left anywhere", 15)


@pytest.mark.slow
def test_a_dead_supervisor_leaves_nothing_and_is_resumed(tmp_path, host):
    """R7."""
    with Led(tmp_path, [host], *FREE) as run:
        run.wait_running()
        run.wait_trained(40)
        run.process.kill()
        took = until(lambda: host.realm() == [], "its roles have ended", PATIENCE_S)
        print(f"R7: {took:.1f} s until no role lived on the host")
    with Led(tmp_path, [host], *FREE) as run:
        run.wait_trained(20, epoch=2)
        assert run.interrupt() == 0, run.text()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_three_machines_train(tmp_path, backend):
    flow = [*FLOWS["strict"], "aisrv_count=4"]
    with lan(tmp_path, 2) as machines, Led(tmp_path, machines, f"buffer_backend={backend}", ENOUGH, *flow) as run:
        assert run.finish() == 0, run.text()
        check_accounts(run, samples_once=True)
        assert run.summary()["hosts"].keys() == {"host1", "host2"}
        assert all(share["env_steps"] > 0 for share in run.summary()["hosts"].values())
        for machine in machines:
            until(lambda: machine.realm() == [], "no process is left there", 15)  # noqa: B023


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--by-hand"], "--by-hand: the key hosts is 0"),
        (["--set", "hosts=1"], "hosts = 1: other machines join, so this wants keys_dir"),
    ],
)
def test_a_wrong_start(tmp_path, words, text):
    done = finished("-m", "realm", "start", "--config", "tests/counting/counting.toml", *words)
    assert done.returncode == 2
    assert text in done.stderr
