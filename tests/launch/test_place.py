"""realm/launch/place.py: processes forked off the fork server and processes from scratch keep the same contract."""

import ctypes
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.launch import place as place_
from realm.launch.child import _Output
from realm.launch.environment import role_environment
from realm.launch.place import place, start_fork_server, starved_s
from realm.launch.ports import check_ports
from realm.launch.rundir import start_of, start_of_leader

PATIENCE_S = 60
ROOT = Path(__file__).parents[2]


def say(text):
    """Runs in the new process."""
    print(text, os.environ.get("COLUMNS"), os.getsid(0) == os.getpid(), flush=True)
    return 3


def fail(argument):
    raise LookupError(argument)


def draw(path):
    torch = sys.modules.get("torch")
    numbers = (np.random.random(), random.random(), torch and torch.get_num_threads())
    Path(path).write_text(repr(numbers))
    return 0


def wait(path):
    """Start a child, write down both pids, and wait for ever."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(1000)
    return 0


def hold(path):
    """Hold Python's lock for ever, as C code may; its child has left the session."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    forked = os.fork()
    if forked == 0:
        os.setsid()
        time.sleep(1000)
    Path(path).write_text(f"{os.getpid()} {child.pid} {forked}")
    ctypes.PyDLL(None).sleep(1000)
    return 0


@pytest.fixture
def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


@pytest.fixture(params=["forked", "from scratch"])
def start(request, environment, tmp_path):
    """start(run, argument, **variables) -> process"""
    started = []

    def start_(run, argument, **more):
        log = tmp_path / f"log{len(started)}"
        forked = request.param == "forked"
        started.append(place(run, argument, environment | more, log, "test-0", imports_torch=forked))
        return started[-1], log

    yield start_
    for process in started:
        process.kill()
        process.join()


def eventually(condition, what):
    until = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.02)
    return value


def ended(process):
    process.join(PATIENCE_S)
    return process.exit_code


def pids(path):
    """What `wait` wrote."""
    return [int(pid) for pid in eventually(lambda: path.exists() and path.read_text(), path).split()]


def lives(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_output_exit_code_session_and_environment(start):
    first, log = start(say, "hello", COLUMNS="40")
    second, other = start(say, "again")
    assert (ended(first), ended(second)) == (3, 3)
    assert log.read_text() == "hello 40 True\n"
    assert other.read_text() == f"again {os.environ.get('COLUMNS')} True\n"


def test_an_error_nobody_caught_is_in_its_log(start):
    process, log = start(fail, "no such thing")
    assert ended(process) == 1
    assert "LookupError: no such thing" in log.read_text()


def test_a_kill_is_told_with_the_signal(start, tmp_path):
    process, _ = start(wait, str(tmp_path / "pids"))
    own, child = pids(tmp_path / "pids")
    assert start_of_leader(own) == start_of(own) > 0
    assert start_of_leader(child) == 0  # a role that told this pid would lie
    assert "realm test-0" in " ".join(psutil.Process(own).cmdline())
    os.kill(own, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    os.kill(child, signal.SIGKILL)


def test_processes_draw_different_numbers_and_have_their_own_threads(start, tmp_path):
    results = []
    for threads in (1, 2):
        process, log = start(draw, str(tmp_path / str(threads)), OMP_NUM_THREADS=str(threads))
        assert ended(process) == 0, log.read_text()
        results.append(eval((tmp_path / str(threads)).read_text()))
    assert results[0][0] != results[1][0]
    assert results[0][1] != results[1][1]
    if results[0][2] is not None:  # forked: torch was imported before
        assert [one[2] for one in results] == [1, 2]


@pytest.mark.parametrize("imports_torch", [True, False])
def test_no_file_stays_open(environment, tmp_path, imports_torch):
    def once():
        process = place(say, "x", environment, tmp_path / "log", "test-0", imports_torch)
        assert ended(process) == 3

    once()
    gc.collect()  # what other tests have left open
    before = psutil.Process().num_fds()
    for _ in range(3):
        once()
    assert psutil.Process().num_fds() <= before


def test_a_fork_server_that_was_killed_is_replaced(environment, tmp_path):
    start_fork_server(environment)
    server = forkserver._forkserver._forkserver_pid
    assert "realm fork server" in eventually(lambda: " ".join(psutil.Process(server).cmdline()), "name") or server
    os.kill(server, signal.SIGKILL)
    eventually(lambda: not lives(server), "it ends")
    process = place(say, "after", environment, tmp_path / "log", "test-0", imports_torch=True)
    assert ended(process) == 3
    assert forkserver._forkserver._forkserver_pid != server


@pytest.mark.parametrize("size", [75, 76, 200])
def test_a_folder_for_sockets_has_a_short_name(monkeypatch, tmp_path, size):
    folder = tmp_path / ("x" * max(1, size - len(str(tmp_path)) - 1))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    short = len(str(folder)) <= 75
    assert place_._socket_folder() == (str(folder) if short else "/tmp")
    assert tempfile.gettempdir() == str(folder)  # the user's own files stay there


def test_no_folder_for_temporary_files(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/1"])
    with pytest.raises(ConfigError, match=r"TMPDIR: .*No usable temporary directory found .*set TMPDIR to a folder"):
        place_._socket_folder()


def test_a_kill_takes_what_the_process_has_started(start, tmp_path):
    path = tmp_path / "pids"
    process, _ = start(wait, str(path))
    both = pids(path)
    assert process.exit_code is None
    process.kill()
    assert ended(process) == -signal.SIGKILL
    eventually(lambda: not any(lives(pid) for pid in both), "both have ended")


def test_a_pid_that_another_process_has_now_is_left_alone(start):
    process, _ = start(say, "hello")
    assert ended(process) == 3
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    process._pid = other.pid  # as where pids have come round while the supervisor was stopped
    process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.3)
    other.kill()
    other.wait()


def test_a_spare_process_counts_as_larger():
    code = "from realm.launch.child import end_first; end_first(); print(open('/proc/self/oom_score_adj').read())"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    assert int(told) == min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + 300)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")
def test_who_shares_a_core_waits_for_it():
    core = str(min(os.sched_getaffinity(0)))
    code = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        while not all(starved_s(one.pid) > 0.05 for one in both):
            assert all(one.poll() is None for one in both)
            time.sleep(0.05)
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert starved_s(both[0].pid) == 0


ORPHANS = """
import os, signal, sys, time
from pathlib import Path
from tests.launch import test_place
from realm.launch import place as place_
from realm.launch.place import place, start_fork_server
from realm.launch.ports import check_ports
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    start_fork_server(os.environ)
    names = ("forked", "scratch", "forked lock", "scratch lock")
    for name in names:
        run = test_place.hold if "lock" in name else test_place.wait
        place(run, str(folder / name), os.environ, folder / "log", name, imports_torch=name.startswith("forked"))
    from multiprocessing import forkserver
    (folder / "server").write_text(str(forkserver._forkserver._forkserver_pid))
    while not all((folder / name).exists() and (folder / name).read_text() for name in names):
        time.sleep(0.02)
    if sys.argv[2] == "stopped":
        for name in names:
            os.kill(int((folder / name).read_text().split()[0]), signal.SIGSTOP)
        os.kill(place_._guard.pid, signal.SIGSTOP)
    if sys.argv[2] == "guard killed":  # the next process brings another one, which knows all of them
        os.kill(place_._guard.pid, signal.SIGKILL)
        place_._guard.wait()
        place(test_place.say, "again", os.environ, folder / "log", "again", imports_torch=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how", ["stopped", pytest.param("plain", marks=SLOW), pytest.param("guard killed", marks=SLOW)]
)
def test_everything_ends_with_the_process_that_placed_it(environment, tmp_path, how):
    innocent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), how], env=environment, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    server = int((tmp_path / "server").read_text())
    all_pids = [pid for name in ("forked", "scratch", "forked lock", "scratch lock") for pid in pids(tmp_path / name)]
    for pid in (server, *all_pids):  # the processes' own children, too
        eventually(lambda pid=pid: not lives(pid), f"{pid} ends")
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_what_a_role_may_see(environment):
    from realm.config.keys import AppConfig
    from realm.config.plan import Machine, decide, make_plan

    plan = make_plan(decide(AppConfig(), Machine(4, 0, False)).app, cores=4)
    for role, threads in (("learner", "3"), ("aisrv", "1"), ("buffer", "1"), ("evaluator", "1")):
        assert role_environment(role, plan)["OMP_NUM_THREADS"] == threads
    # or they would look for kernels elsewhere than this process, which has compiled them while it tried the package
    assert role_environment("aisrv", plan).get("NUMBA_CACHE_DIR") == os.environ.get("NUMBA_CACHE_DIR")
    assert role_environment("aisrv", plan)["CUDA_VISIBLE_DEVICES"] == ""
    assert role_environment("learner", plan).get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_taken_port_names_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
        check_ports(AppConfig(base_port=listener.getsockname()[1]))


def test_what_is_printed_on_a_full_disk_is_lost() -> None:
    with _Output(open("/dev/full", "wb", 0), write_through=True) as full:
        for text in ("one", "x" * 100_000):
            print(text, file=full, flush=True)
