"""Faults of processes: clocks, hangs, signals, a lost terminal. Real processes, small configurations."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster import ROOT, Run

from realm.launch.rundir import RunFile, boot_id, find_runs, is_alive, living_pids, read_run, start_of

NATIVE = "buffer_backend=native"
LOCAL = "wrapper_type=local"
LINUX = os.path.exists("/proc/self/stat")


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_start_times_do_not_move_with_the_wall_clock():
    """They count ticks since the boot; a time of day would move with the clock."""
    process = subprocess.Popen(["sleep", "100"])
    try:
        started = start_of(process.pid)
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        assert abs(started / os.sysconf("SC_CLK_TCK") - uptime) < 60
        assert is_alive(process.pid, started, boot_id())
        assert not is_alive(process.pid, started, "another boot")
        assert not is_alive(process.pid, started + 1, boot_id())
    finally:
        process.kill()
    deadline = time.monotonic() + 60
    while is_alive(process.pid, started, boot_id()):  # it is not waited for yet: a zombie does not live
        assert time.monotonic() < deadline
    assert Path(f"/proc/{process.pid}").exists()
    process.wait()


def test_runs_are_ordered_and_their_processes_known(tmp_path):
    own = os.getpid()
    for name, started in (("b", 1.0), ("a", 2.0), ("c", 3.0)):
        (tmp_path / name).mkdir()
        roles = {"aisrv-0": {"pid": own, "created": start_of(own)}, "aisrv-1": {"pid": 0, "created": 0.0}}
        RunFile("id", own, start_of(own) - (name == "a"), boot_id(), started, roles=roles).write(tmp_path / name)
    runs = find_runs(tmp_path)
    assert [path.name for path, _ in runs] == ["b", "a", "c"]
    assert [len(living_pids(run)) for _, run in runs] == [2, 1, 2]


@pytest.mark.parametrize(
    "changes",
    [{"pid": "7"}, {"created": []}, {"roles": 3}, {"roles": {"x": {}}}, {"roles": {"x": {"pid": "a", "created": 1}}}],
)
def test_a_run_file_made_by_somebody_else_stops_nobody(tmp_path, changes):
    RunFile("id", 1, 0.0).write(tmp_path)
    path = tmp_path / "run.json"
    assert read_run(tmp_path) is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert read_run(tmp_path) is None
    path.write_text("[" * 100_000)
    assert read_run(tmp_path) is None


@pytest.mark.system
def test_a_hangup_ends_one_process_with_a_checkpoint(tmp_path):
    with Run(tmp_path, LOCAL) as run:
        run.wait_trained(20)
        run.process.send_signal(signal.SIGHUP)
        run.process.send_signal(signal.SIGHUP)  # of the shell: no second wish
        assert run.finish() == 0, run.text()
        assert run.file()["cause"] == "SIGHUP received"
        last = int(re.findall(r"version 1\.(\d+)", run.text())[-1])
        assert run.checkpoints()[-1] == (1, last)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_one_process_at_once(tmp_path, number):
    with Run(tmp_path, LOCAL, "counting.learn_s=600.0") as run:
        run.wait_running()
        time.sleep(3)
        run.process.send_signal(number)
        time.sleep(0.5)
        assert run.process.poll() is None
        run.process.send_signal(number)
        assert run.finish() == -number, run.text()


@pytest.mark.system
def test_an_interrupt_while_starting_is_one_line(tmp_path):
    with Run(tmp_path, LOCAL, config="conf/smoke.toml") as run:
        while not run.output.exists() or "torch" not in Path(f"/proc/{run.process.pid}/maps").read_text():
            time.sleep(0.01)
        run.process.send_signal(signal.SIGINT)
        code, text = run.finish(), run.output.read_text()
        if code:  # it may be running by then
            assert code == 130, text
            assert "Traceback" not in text
            assert text.splitlines()[-1] == "interrupted"


@pytest.mark.system
@pytest.mark.parametrize("mode", [LOCAL, "wrapper_type=remote"])
def test_a_closed_terminal_ends_the_run_in_order(tmp_path, mode):
    run = Run.__new__(Run)
    run.dir, run.output = tmp_path / "runs" / "one", tmp_path / "none"
    command = [sys.executable, "-m", "realm", "start", "--config", "tests/counting/counting.toml"]
    for one in (f"log_dir={tmp_path / 'runs'}", "run_name=one", NATIVE, mode):
        command += ["--set", one]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, command)

    def read():
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    deadline = time.monotonic() + 240
    while not (run.dir.exists() and run.checkpoints() and run.checkpoints()[-1] >= (1, 20)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = run.checkpoints()[-1]
    os.dup2(os.open(os.devnull, os.O_RDWR), terminal)  # closes it also while the thread reads
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert run.file()["state"] == "stopped"
    assert run.file()["cause"] == "SIGHUP received"
    assert run.checkpoints()[-1] > before
    assert run.processes() == []
    if mode != LOCAL:
        assert run.checkpoints()[-1] == (1, run.totals("learner")["version_update"])
