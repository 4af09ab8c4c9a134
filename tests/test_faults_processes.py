"""Faults of processes: clocks, hangs, signals, a lost terminal. Real processes, small configurations."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from realm.launch.rundir import RunFile, boot_id, find_runs, is_alive, living_pids, read_run, start_of

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
