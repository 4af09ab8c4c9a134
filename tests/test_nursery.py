"""Processes of roles: the same for those that the nursery forks off and for those that begin with nothing; and what a
fork alone could get wrong."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from realm import __version__
from realm.errors import ConfigError
from realm.launch.child import EXIT_ORPHAN, RUN_ID_VARIABLE
from realm.launch.nursery import Nursery

PATIENCE_S = 60
RUN = {RUN_ID_VARIABLE: "a run"}


@pytest.fixture
def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(params=["forked", "from nothing"])
def nursery(request, environment):
    found = Nursery(environment)
    with found if request.param == "forked" else contextlib.nullcontext():
        yield found


@pytest.fixture
def forked(environment):
    with Nursery(environment) as found:
        yield found


@pytest.fixture
def role(tmp_path, environment):
    """Starts a role that waits for a supervisor which is not there; takes what its environment has besides."""
    (tmp_path / "config.toml").write_text("[app]\n")
    started = []

    def start(nursery, **more):
        words = ["role", "model_pool", "--index=0", "--incarnation=1", f"--run-dir={tmp_path}"]
        words += ["--control=tcp://127.0.0.1:9", "--port=0", "--schema=", "--max-bytes=1000"]
        with open(tmp_path / "log", "ab") as log:
            started.append(nursery.spawn(words, environment | more, log))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
        one.wait()
        one.close()


def ended(process):
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return process.poll()


def run(nursery, words, environment, path):
    """Exit code and output."""
    with open(path, "ab") as log:
        process = nursery.spawn(words, environment, log)
    code = ended(process)
    process.close()
    return code, path.read_text()


def test_output_and_exit_code(nursery, environment, tmp_path):
    assert run(nursery, ["--version"], environment, tmp_path / "log") == (0, f"realm {__version__}\n")
    code, text = run(nursery, ["no such command"], environment, tmp_path / "log 2")
    assert code == 2
    assert "no such command" in text


def test_an_error_of_no_kind_that_is_known_is_in_its_output(nursery, role, tmp_path):
    process = role(nursery)  # without the run's id
    assert ended(process) == 1
    assert "KeyError" in (tmp_path / "log").read_text()


def test_it_has_the_environment_that_was_asked_for_and_no_other(environment, tmp_path):
    """COLUMNS is how wide argparse makes its help."""
    with_it, without = environment | {"COLUMNS": "40"}, {n: one for n, one in environment.items() if n != "COLUMNS"}
    wide = {}
    for forked in (True, False):
        nursery = Nursery(with_it)
        with nursery if forked else contextlib.nullcontext():
            for name, asked in (("40", with_it), ("60", environment | {"COLUMNS": "60"}), ("none", without)):
                text = run(nursery, ["start", "--help"], asked, tmp_path / f"{name} {forked}")[1]
                wide[name, forked] = max(map(len, text.splitlines()))
    assert wide["40", True] == wide["40", False] <= 40
    assert 40 < wide["60", True] == wide["60", False] <= 60
    assert 60 < wide["none", True] == wide["none", False]


def test_a_large_environment_is_no_hindrance(environment, tmp_path):
    large = environment | {f"LARGE_{number}": 100_000 * "x" for number in range(10)}
    with Nursery(large) as nursery:
        assert run(nursery, ["--version"], large, tmp_path / "log")[0] == 0


def test_it_is_a_child_of_this_process_with_a_name_and_a_session_of_its_own(nursery, role):
    process = role(nursery, **RUN)
    assert os.getsid(process.pid) == process.pid  # at once: whoever knows the pid may kill its group
    seen, until = psutil.Process(process.pid), time.monotonic() + PATIENCE_S
    assert seen.ppid() == os.getpid()
    while "model_pool" not in seen.cmdline():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert seen.cmdline()[:5] == [sys.executable, "-m", "realm", "role", "model_pool"]
    assert process.poll() is None


def test_its_death_is_told_with_the_signal(nursery, role):
    process = role(nursery, **RUN)
    os.kill(process.pid, signal.SIGKILL)
    assert ended(process) == process.wait() == -signal.SIGKILL


def test_it_ends_when_its_standard_input_does(nursery, role):
    process = role(nursery, **RUN)
    process.close()
    assert ended(process) == EXIT_ORPHAN
    process.close()  # again does nothing


def test_no_file_is_left_open(nursery, environment, tmp_path):
    run(nursery, ["--version"], environment, tmp_path / "log")
    before = psutil.Process().num_fds()
    for number in range(3):
        run(nursery, ["--version"], environment, tmp_path / f"log {number}")
    assert psutil.Process().num_fds() == before


# ---- the nursery alone


def test_the_nursery_has_one_thread_and_few_files(forked, environment, tmp_path):
    for number in range(3):
        run(forked, ["--version"], environment, tmp_path / f"log {number}")
    seen = psutil.Process(forked.pid)
    assert seen.num_threads() == 1  # a fork of more would have locks that nobody opens
    assert seen.num_fds() <= 6
    assert seen.children() == []


def test_a_nursery_that_was_killed_is_replaced_and_what_it_forked_lives_on(forked, role, environment, tmp_path):
    process, before = role(forked, **RUN), forked.pid
    os.kill(before, signal.SIGKILL)
    assert run(forked, ["--version"], environment, tmp_path / "log 2")[0] == 0
    assert forked.pid != before
    assert process.poll() is None


def test_it_ends_with_its_block_and_what_it_forked_does_not(environment, role):
    with Nursery(environment) as nursery:
        pid = nursery.pid
        process = role(nursery, **RUN)
    assert not psutil.pid_exists(pid)
    assert nursery.pid == 0
    assert process.poll() is None


def test_it_ends_with_the_process_that_started_it(environment, tmp_path):
    script = "import os, sys; from realm.launch.nursery import Nursery\n"
    script += "with Nursery(os.environ) as one: open(sys.argv[1], 'w').write(str(one.pid)); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", script + " # too late", str(tmp_path / "pid")]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S)
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + PATIENCE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_who_waits_for_a_nursery_that_hangs_can_give_up(forked, environment, tmp_path):
    os.kill(forked.pid, signal.SIGSTOP)
    asked = []

    def give_up():
        asked.append(time.monotonic())
        return len(asked) == 2

    with open(tmp_path / "log", "wb") as log, pytest.raises(InterruptedError):
        forked.spawn(["--version"], environment, log, give_up)
    assert forked.pid == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_orphans_of_what_it_started_do_not_stay_as_zombies(forked, environment, tmp_path):
    role_like = subprocess.Popen(["sh", "-c", "sleep 0.2 & echo $!"], stdout=subprocess.PIPE, text=True)
    orphan = int(role_like.stdout.readline())
    role_like.stdout.close()
    until = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(orphan):
        forked.reap({role_like.pid})
        assert time.monotonic() < until
        time.sleep(0.01)
        role_like.poll()
    assert role_like.wait() == 0  # left to whoever waits for it
    assert run(forked, ["--version"], environment, tmp_path / "log")[0] == 0


def test_it_works_where_children_are_ignored(environment, tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some launchers leave it
    try:
        with Nursery(environment) as nursery:
            assert run(nursery, ["--version"], environment, tmp_path / "log")[0] == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_nursery_that_cannot_start_is_one_sentence(environment, role):
    with (
        pytest.raises(ConfigError, match="cannot be started"),
        Nursery({**environment, "PYTHONHOME": "/nowhere"}) as nursery,
    ):
        role(nursery)


MAIN = """
import os, random, sys
import numpy as np
import torch
from realm.launch.nursery import serve

def main(words):
    print(repr((np.random.random(), random.random(), torch.get_num_threads(), words)), flush=True)
    if words[0] == "1":
        sys.exit("what a user's code may do")
    return 3

sys.exit(serve(int(sys.argv[1]), main))
"""


def test_forks_draw_other_numbers_and_have_their_own_threads(environment, tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE_S)
    with ours, open(tmp_path / "log", "wb") as log:
        with theirs:
            command = [sys.executable, "-c", MAIN, str(theirs.fileno())]
            nursery = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        for threads in (1, 2):
            request = {"words": [str(threads)], "changes": {"OMP_NUM_THREADS": str(threads)}}
            socket.send_fds(ours, [json.dumps(request).encode()], [0, log.fileno(), log.fileno()])
            assert int(ours.recv(64)) > 0
        until = time.monotonic() + PATIENCE_S
        while (text := (tmp_path / "log").read_text()).count("\n") < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert nursery.wait(PATIENCE_S) == 0  # its socket was closed
    lines = text.splitlines()
    lines.remove("what a user's code may do")
    found = {words[0]: (first, second, threads) for first, second, threads, words in map(eval, lines)}
    assert (found["1"][2], found["2"][2]) == (1, 2)
    assert not np.isclose(found["1"][:2], found["2"][:2]).any()
