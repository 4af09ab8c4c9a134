"""realm/launch/signals.py: what a signal asks for, in forks and imports, too, and what a launcher leaves behind."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from realm.launch import rundir
from realm.launch.signals import Wishes, ends

ROOT = Path(__file__).parents[2]


def python(*words, **settings):
    """Run a Python program in a process of its own, in the repository's folder."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, timeout=120, check=False, **settings)


def test_two_wishes_of_a_kind_end_a_run_at_once():
    wishes = Wishes()
    warnings = (signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU, signal.SIGXCPU, 40)
    for number in (*warnings, signal.SIGTERM, signal.SIGTERM):  # `timeout` sends its own twice
        wishes.hear(number)
    time.sleep(0.25)
    for number in (*warnings, signal.SIGINT):
        wishes.hear(number)
    assert (wishes.first, wishes.at_once) == (signal.SIGHUP, False)
    wishes.hear(signal.SIGTERM)
    assert wishes.at_once


def test_what_a_launcher_leaves_behind_is_made_sane(tmp_path):
    def launch():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        for number in range(3):
            os.close(number)

    code = (
        "import os, signal, subprocess, sys; from realm.launch.signals import ends, make_sane; make_sane();"
        "file = open(sys.argv[1], 'w'); done = subprocess.run(['false']).returncode; numbers = ends();"
        "heard = [one in numbers for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)];"
        "print('into nothing'); print(sys.stdin.read(), file=sys.stderr, flush=True);"
        "print(file.fileno(), done, signal.pthread_sigmask(signal.SIG_BLOCK, ()), heard, file=file)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "seen"], cwd=ROOT, preexec_fn=launch, check=False)
    assert done.returncode == 0
    # what a shell ignores in the background ends a run nevertheless; what somebody else ignores does not
    assert (tmp_path / "seen").read_text() == "3 1 set() [True, True, True, False]\n"


def test_an_interrupt_before_a_command_begins_is_no_traceback():
    def launch():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # it waits, as over the restart of a one-process run

    done = python("-m", "realm", "config", preexec_fn=launch)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_in_an_import_is_one_line(tmp_path):
    """Raised there, it may be swallowed, or come out as another error, as here."""
    (tmp_path / "slow.py").write_text(
        "import os, signal\nclass Name:\n    def __set_name__(self, owner, name):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\nclass Owner:\n    name = Name()\n"
    )
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from realm.launch.signals import make_sane; make_sane(); import slow"
    done = python("-c", code, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


def test_forks_of_a_run_die_of_a_signal():
    """Such as workers of an environment: its `close` may wait for that. Only Ctrl+C waits until the second time."""
    code = (
        "import os, signal, sys, time\nfrom realm.launch.signals import Wishes, listen\n"
        "wishes = Wishes()\nlisten(wishes.hear)\n"
        "for numbers in ([signal.SIGTERM], [signal.SIGUSR1], [signal.SIGINT] * 2, [signal.SIGHUP, signal.SIGTERM]):\n"
        "    if (pid := os.fork()) == 0:\n        for number in numbers:\n            os.kill(os.getpid(), number)\n"
        "        os._exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), wishes.first)\n"
    )
    assert python("-c", code).stdout.decode().split() == ["-15", "0", "-10", "0", "-2", "0", "-15", "0"]


def test_ctrl_c_is_called_so_where_there_is_a_terminal():
    code = "import signal; from realm.launch.signals import called; print(called(signal.SIGINT), called(36), sep='|')"
    there, terminal = pty.openpty()
    try:
        assert python("-c", code, stdin=terminal).stdout == b"Ctrl+C|signal 36 received\n"
        assert python("-c", code, stdin=subprocess.DEVNULL).stdout == b"SIGINT received|signal 36 received\n"
    finally:
        os.close(there)
        os.close(terminal)


def test_a_signal_that_has_another_use_does_not_end_a_run():
    before = signal.signal(signal.SIGPROF, lambda number, frame: None)  # as a profiler does
    try:
        assert signal.SIGPROF not in ends()
    finally:
        signal.signal(signal.SIGPROF, before)


def test_a_run_of_another_user_is_not_called_dead(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "not permitted")

    assert not rundir.is_alive(2**22 + 1, 5.0, rundir.boot_id())  # no such process
    monkeypatch.setattr(os, "kill", refused)
    assert rundir.is_alive(2**22 + 1, 5.0, rundir.boot_id())  # there is one, which this user cannot see
    assert not rundir.is_alive(os.getpid(), 5.0, rundir.boot_id())  # seen, and another one
    (tmp_path / "run.json").touch()
    monkeypatch.setattr(rundir, "read_json", refused)
    said = []
    assert rundir.read_run(tmp_path, said.append) is None
    assert said == [f"{tmp_path / 'run.json'}: only its owner, {tmp_path.owner()}, can see this run or stop it"]
