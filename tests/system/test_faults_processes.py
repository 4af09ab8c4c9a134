"""Faults of processes: clocks, hangs, signals, a lost terminal. Real processes, small configurations."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from realm.launch.rundir import RunFile, boot_id, find_runs, is_alive, living_pids, read_run, start_of
from tests import hanging
from tests.cluster import PATIENCE_S, ROOT, Run

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
    [
        {"pid": "7"},
        {"created": []},
        {"roles": 3},
        {"roles": {"x": {}}},
        {"roles": {"x": {"pid": "a", "created": 1}}},
        {"control": "junk"},
        {"control": "tcp://a b:1"},
        {"control": "tcp://127.0.0.1"},
        {"run_id": "x" * 300},
    ],
)
def test_a_run_file_made_by_somebody_else_stops_nobody(tmp_path, changes):
    RunFile("id", 1, 0.0, control="tcp://127.0.0.1:4000").write(tmp_path)
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
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):  # of the shell, of its session: no second wish
            run.process.send_signal(number)
        assert run.finish() == 0, run.text()
        assert run.file()["cause"] in ("SIGHUP received", "SIGTERM received")  # the system may hand over the last first
        last = int(re.findall(r"newest model +update ([\d,]+)", run.text())[-1].replace(",", ""))
        assert run.checkpoints()[-1] == (1, last)


def wait_asleep(run):
    """Wait until its process has slept for a second. One that waits for a core is not asleep."""
    asleep, deadline = 0, time.monotonic() + PATIENCE_S
    while asleep < 20:
        assert time.monotonic() < deadline, run.text()
        time.sleep(0.05)
        asleep = asleep + 1 if psutil.Process(run.process.pid).status() == psutil.STATUS_SLEEPING else 0


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_one_process_at_once(tmp_path, number):
    with Run(tmp_path, LOCAL, "counting.learn_s=600.0") as run:
        run.wait_for(lambda: run.checkpoints(), "the first checkpoint")
        wait_asleep(run)  # in `learn`, as nothing else lasts
        run.process.send_signal(number)
        run.wait_for(lambda: run.file()["state"] == "stopping", "it is stopping")
        time.sleep(0.5)
        assert run.process.poll() is None
        run.process.send_signal(number)
        assert run.finish() == -number, run.text()
        ended = "and again: ended at once, without a last checkpoint"
        assert (run.file()["state"], run.file()["cause"]) == ("failed", f"{number.name} received, {ended}")


@pytest.mark.system
def test_an_interrupt_while_starting_is_one_line(tmp_path):
    with Run(tmp_path, LOCAL, config="conf/smoke.toml", launch=os.getpid) as run:  # no fork of one that has started
        while not run.output.exists() or "torch" not in Path(f"/proc/{run.process.pid}/maps").read_text():
            time.sleep(0.01)
        run.process.send_signal(signal.SIGINT)
        code, text = run.finish(), run.output.read_text()
        if code:  # it may be running by then
            assert code == 130, text
            assert "Traceback" not in text
            assert text.splitlines()[-1] == "interrupted"


@pytest.mark.slow
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
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert run.file()["state"] == "stopped"
    assert run.file()["cause"] == "SIGHUP received"
    assert run.checkpoints()[-1] >= before  # no later one if the signal came right after it
    assert run.processes() == []
    curves = EventAccumulator(str(run.dir / "log" / "tensorboard"), {"scalars": 0})
    curves.Reload()
    # the last checkpoint is the run's end, in both modes
    assert run.checkpoints()[-1] == (1, curves.Scalars("system/learner/version_update")[-1].value)
    if mode != LOCAL:
        assert run.checkpoints()[-1] == (1, run.totals("learner")["version_update"])


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("place", ["reset", "learn"])  # tools/soak has the others
def test_a_hang_is_named_and_started_again(tmp_path, place):
    variables, role = hanging.make(tmp_path, place), hanging.PLACES[place][-1]
    settings = (NATIVE, "algo=hanging", "restart_budget=3", "max_env_steps=4000")
    with Run(tmp_path, *settings, variables=variables) as run:
        run.wait_for(lambda: "has been silent for" in run.output.read_text(), "the hang is named")
        run.wait_for(lambda: "so it was killed; starting it again" in run.output.read_text(), "it is started again")
        assert run.finish() == 0, run.text()
        text = run.output.read_text()
        named = re.findall(r"(\w+)-\d has been silent", text)
        assert set(named) == {role}, text
        logs = "".join(path.read_text() for path in run.dir.glob(f"log/{role}-*.log"))
        assert "in once" in logs  # its stacks
        assert run.processes() == []


@pytest.mark.system
@pytest.mark.slow
def test_every_role_may_be_stopped_for_a_while(tmp_path):
    with Run(tmp_path, NATIVE, "restart_budget=3", "report_interval_s=0.05") as run:
        run.wait_running()
        for role in run.file()["roles"]:
            pid = run.pid(role)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
        assert [entry["incarnation"] for entry in run.file()["roles"].values()] == [1] * len(run.file()["roles"])
        pids = {role: run.pid(role) for role in ("actor-0", "model_pool-0")}
        for pid in pids.values():  # for ever
            os.kill(pid, signal.SIGSTOP)
        for role, pid in pids.items():
            run.wait_for(lambda role=role, pid=pid: run.file()["roles"][role]["pid"] not in (0, pid), "a new process")
            run.pid(role)
        before = {role: entry["incarnation"] for role, entry in run.file()["roles"].items()}
        run.process.send_signal(signal.SIGSTOP)  # nobody is killed because the supervisor did not listen
        time.sleep(12)  # longer than any time-out of ZeroMQ, with full queues when it wakes up
        run.process.send_signal(signal.SIGCONT)
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 40, epoch)
        assert {role: entry["incarnation"] for role, entry in run.file()["roles"].items()} == before
        assert "stood still" in run.output.read_text()
        assert run.interrupt() == 0, run.text()
        assert run.processes() == []


def gone(processes):
    """Wait until none of them lives; a zombie does not."""
    deadline = time.monotonic() + 60
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


def with_children(tmp_path):
    """Write a package whose workers' environments start a process; return the settings with which a run finds it."""
    package = tmp_path / "families"
    shutil.copytree(ROOT / "tests" / "counting", package)
    definition = package / "feature" / "definition.py"
    line = "    return CountingEnvs(num_envs"
    child = "    if num_envs > 1:\n        import subprocess\n        subprocess.Popen(['sleep', '1000'])\n"
    definition.write_text(definition.read_text().replace(line, child + line))
    return (NATIVE, "algo=families", "restart_budget=3"), {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.system
def test_a_signal_to_the_whole_job_ends_it_in_order(tmp_path):
    """Started by one that blocks and ignores what it can, without descriptors 0 to 2. No role counts as crashed."""

    def launch():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for number in range(3):
            os.close(number)

    settings, variables = with_children(tmp_path)
    with Run(tmp_path, *settings, "dump_model_freq=1000000", variables=variables, launch=launch) as run:
        run.wait_running()
        time.sleep(1.0)  # there are updates to lose
        run.signal_all(signal.SIGTERM)
        assert run.finish() == 0, run.text()
        assert run.file()["cause"].startswith("SIGTERM received")
        assert run.checkpoints()[-1] == (1, run.totals("learner")["version_update"])
        assert {role["incarnation"] for role in run.file()["roles"].values()} == {1}
        assert run.processes() == []


@pytest.mark.system
def test_all_processes_end_with_the_worker_and_with_the_run(tmp_path):
    """Also stopped ones, and the children of environments: no supervisor is there any more to end them."""
    settings, variables = with_children(tmp_path)
    with Run(tmp_path, *settings, variables=variables) as run:
        run.wait_running()
        children = psutil.Process(run.pid("aisrv-0")).children()
        assert len(children) == 1
        run.kill("aisrv-0")
        gone(children)
        run.pid("aisrv-0")
        workers = [psutil.Process(run.pid(role)) for role in ("aisrv-0", "aisrv-1")]
        families = [*workers, *(child for worker in workers for child in worker.children())]
        assert len(families) == 4
        assert len(run.processes()) >= 6
        for one in (*families, psutil.Process(run.pid("learner-0"))):  # workers are made from scratch, it is a fork
            one.suspend()
        run.process.kill()
        run.process.wait()
        gone(families)
        gone(run.processes())
