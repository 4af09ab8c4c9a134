"""How a run starts, ends and fails: real processes, signals, a taken port, a killed launcher."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from realm.launch.decisions import Role
from realm.launch.supervisor import Supervisor
from tests.backends import HAS_REVERB, OWN_NETWORK
from tests.cluster import PATIENCE_S, ROOT, Run
from tests.console import finished

pytestmark = pytest.mark.system
NATIVE = "buffer_backend=native"


def command(*arguments):
    return finished("-m", "realm", *arguments)


def loaded_libraries(pid):
    text = Path(f"/proc/{pid}/maps").read_text()
    assert "libtensorflow_cc" not in text  # a gigabyte; reverb needs a small part of TensorFlow
    return {name for name in ("torch", "tensorflow", "reverb") if f"site-packages/{name}/" in text}


def test_status_stop_and_resume(tmp_path):
    """The user's day: start, look, ask for a model, stop twice, go on later."""
    with Run(tmp_path, NATIVE) as run:
        log_dir = str(run.dir.parent)
        run.wait_running()
        run.wait_trained(20)

        def told():
            (one,) = json.loads(command("status", "--json", "--log-dir", log_dir).stdout)
            return one if one["status"]["updates"] >= 20 and one["status"]["statistic"] == "score" else None

        seen = run.wait_for(told, "workers and learner have told")
        shown = command("status", "--log-dir", log_dir).stdout
        for text in ("running", "aisrv-1", "learner-0", "model_pool-0", "env steps", "training score"):
            assert text in shown
        assert (seen["run"], seen["alive"], seen["status"]["updates"] >= 20) == (str(run.dir), True, True)
        assert "learner-0.log" in command("logs", "one", "learner", "--log-dir", log_dir).stdout
        assert command("save", "--log-dir", log_dir).returncode == 0
        run.wait_for(lambda: list(run.dir.glob("user_ckpt/model.ckpt-*/manifest.json")), "the user's model was saved")
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            assert command("stop", "all", "--log-dir", log_dir).returncode == 0
            assert run.finish() == 0, run.text()
            assert run.processes() == []
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()
        assert command("stop", "all", "--log-dir", log_dir).returncode == 0
        assert "no living run" in command("status", "--log-dir", log_dir).stdout
        version = run.totals("learner")["version_update"]
        steps = run.summary()["env_steps"]
        # `stop` is SIGTERM; the final checkpoint is of the last version that was trained
        assert (run.file()["state"], run.file()["cause"]) == ("stopped", "SIGTERM received")
        assert run.checkpoints()[-1] == (1, version)
        assert "evaluator-0" not in run.file()["roles"]  # eval_cpu_share is 0 here
    with Run(tmp_path, NATIVE, f"max_env_steps={int(steps) + 3000}") as run:
        assert run.finish() == 0, run.text()
        assert run.checkpoints()[-1][0] == 2
        assert run.checkpoints()[-1][1] > version
        assert run.summary()["env_steps"] >= steps + 3000
        models = run.checkpoints()
    # a folder of bad checkpoints is not trained over
    for path in run.dir.glob("ckpt/*/state.pt"):
        path.write_bytes(b"nothing")
    with Run(tmp_path, NATIVE, "max_env_steps=3000") as run:
        assert run.finish() == 2, run.text()
        assert "checkpoints can be used" in run.output.read_text()
        assert run.checkpoints() == models


def test_a_run_from_its_start_to_an_interrupt(tmp_path):
    """Who loads what, which ports are used, that a second start is refused, and that Ctrl+C ends it cleanly."""
    candidates = range(20_000 + os.getpid() % 3_000 * 4, 32_700, 4)  # below those that the system hands out
    base = next(port for port in candidates if all(_is_free(one) for one in range(port, port + 4)))
    backend = "reverb" if HAS_REVERB else "native"
    with Run(tmp_path, f"buffer_backend={backend}", f"base_port={base}", "restart_budget=3") as run:
        run.wait_running()
        run.wait_trained(20)
        # only those who need it load torch and TensorFlow
        loaded = {role: loaded_libraries(run.pid(role)) for role in run.file()["roles"]}
        assert loaded["aisrv-0"] == loaded["aisrv-1"] == loaded["model_pool-0"] == set()
        assert loaded["actor-0"] == loaded["learner-0"] == {"torch"}
        assert "torch" not in loaded["buffer-0"]
        assert ("tensorflow" in loaded["buffer-0"]) == (backend == "reverb")
        assert loaded_libraries(run.process.pid) == set()
        if backend == "native" or OWN_NETWORK:
            assert {address for address, _ in run.listens()} == {"127.0.0.1"}
        assert (run.dir / "run.json").stat().st_mode & 0o077 == 0

        # the fixed ports are used, and used again
        ports = {f"tcp://127.0.0.1:{base + offset}" for offset in range(3)}
        assert run.file()["control"] == f"tcp://127.0.0.1:{base + 3}"
        assert {role["address"] for role in run.file()["roles"].values()} - {""} == ports
        run.kill("actor-0")
        run.wait_for(lambda: run.file()["roles"]["actor-0"]["state"] == "ready", "the actor is back")
        assert {role["address"] for role in run.file()["roles"].values()} - {""} == ports

        # a run directory has one run
        second = command("start", "--config", "tests/counting/counting.toml",
                         "--set", f"log_dir={run.dir.parent}", "--set", "run_name=one")  # fmt: skip
        assert second.returncode == 2
        assert str(run.file()["pid"]) in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1

        assert run.interrupt() == 0, run.text()
        assert run.processes() == []
        assert run.checkpoints()[-1] == (1, run.totals("learner")["version_update"])
        assert (run.file()["state"], run.file()["cause"]) == ("stopped", "SIGINT received")


@pytest.mark.slow
def test_a_second_interrupt_ends_it_at_once(tmp_path):
    with Run(tmp_path, NATIVE, "counting.learn_s=60.0") as run:  # a learner that does not listen
        run.wait_running()
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda: run.file()["state"] == "stopping", "it is stopping")
        run.process.send_signal(signal.SIGINT)
        run.finish()
        assert run.processes() == []


@pytest.mark.slow
def test_many_interrupts_do_not_hang_it(tmp_path):
    with Run(tmp_path, NATIVE, "counting.learn_s=60.0") as run:
        run.wait_running()
        for _ in range(20):
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        run.finish()
        assert run.processes() == []


@pytest.mark.slow
def test_two_starts_at_once_share_nothing(tmp_path):
    """Whoever comes second is refused, also when the first has not written anything yet."""
    with Run(tmp_path, NATIVE, "max_env_steps=2000") as first, Run(tmp_path, NATIVE, "max_env_steps=2000") as second:
        codes = sorted((first.finish(), second.finish()))
        assert codes == [0, 2], first.text()


@pytest.mark.slow
@pytest.mark.parametrize("updates", [0, 1])
def test_a_long_update_is_waited_for(tmp_path, updates):
    """The first one, too, of which nobody knows yet how long it takes."""
    with Run(tmp_path, NATIVE, "counting.learn_s=3.0", "stop_timeout_s=0.5", "dump_model_freq=1") as run:
        run.wait_running()
        run.wait_trained(updates)
        time.sleep(1.0)  # it is in the next one, unless the machine is very busy
        assert run.interrupt() == 0, run.text()
        assert run.checkpoints()[-1] == (1, run.totals("learner")["version_update"])


def test_a_role_that_starts_hears_no_command_but_stop():
    said = []
    supervisor = SimpleNamespace(_server=SimpleNamespace(send=lambda peer, message: said.append((peer, message.kind))))
    for kind in ("save", "hold", "stop"):
        role = Role("learner", 0, bound=(b"starts", 1))
        Supervisor._tell(supervisor, role, kind)
        assert (role.bound is None) == (kind == "stop")
    Supervisor._tell(supervisor, Role("learner", 0, next=(b"runs", 2)), "save")
    assert said == [(b"starts", "stop"), (b"runs", "save")]


@pytest.mark.slow
def test_a_role_that_is_busy_or_starts_ends_where_the_user_has_stopped_it(tmp_path):
    """However many commands came before: in the middle of a long update, or before it runs."""
    with Run(tmp_path, NATIVE, "restart_budget=9", "counting.learn_s=3", "counting.early=false") as run:
        run.wait_running()
        run.wait_for(lambda: run.checkpoints(), "a first checkpoint")
        done = command("stop", "evaluator", "--log-dir", str(tmp_path / "runs"))
        assert (done.returncode, "has no evaluator" in done.stdout) == (1, True), done.stdout
        for words in (("save",), ("stop", "learner")):
            done = command(*words, "--log-dir", str(tmp_path / "runs"))
            assert done.returncode == 0, done.stderr
        run.wait_for(lambda: run.file()["roles"]["learner-0"]["pid"] == 0, "the learner has ended")
        run.kill("aisrv-0")
        assert command("stop", "aisrv", "--log-dir", str(tmp_path / "runs")).returncode == 0
        run.wait_for(
            lambda: not any(run.file()["roles"][f"aisrv-{index}"]["pid"] for index in (0, 1)), "the workers have ended"
        )
        assert {run.file()["roles"][name]["state"] for name in ("learner-0", "aisrv-0", "aisrv-1")} == {"stopped"}
        assert run.interrupt() == 0, run.text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapper_type=local", "wrapper_type=remote"])
def test_a_run_under_nohup_outlives_its_terminal(tmp_path, mode):
    with Run(tmp_path, NATIVE, mode, launch=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as run:
        run.wait_running()
        run.process.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert run.process.poll() is None
        run.signal_all(signal.SIGUSR1)  # as before a time limit; a role only writes its stacks then
        assert run.finish() == 0, run.text()
        assert run.file()["cause"] == "SIGUSR1 received"


def test_stopped_while_starting(tmp_path):
    with Run(tmp_path, NATIVE) as run:
        run.wait_for(lambda: run.file()["roles"]["learner-0"]["pid"], "the roles are started")
        run.signal_all(signal.SIGINT)
        assert run.finish() == 0, run.text()
        assert run.processes() == []


def test_a_taken_port_is_named_with_its_owner(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Run(tmp_path, NATIVE, f"base_port={port}") as run:
            assert run.finish() == 2
            assert f"port {port}" in run.text()
            assert f"pid {os.getpid()}" in run.text()
            assert not run.dir.exists()


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.slow
def test_a_run_whose_files_are_lost(tmp_path):
    """Epochs go on without the checkpoints. Without its log a role cannot be started again: the run ends in order."""
    with Run(tmp_path, NATIVE, "restart_budget=1") as run:
        run.wait_running()
        run.wait_trained(20)
        for path in run.dir.glob("ckpt/model.ckpt-*"):
            with suppress(FileNotFoundError):  # the learner clears away old ones
                path.rename(path.with_name(f"lost-{path.name}"))
        run.kill("learner-0")
        run.wait_trained(20, epoch=2)

        (run.dir / "log").rename(run.dir / "log-gone")
        os.kill(run.pid("aisrv-0"), signal.SIGKILL)
        assert run.finish() == 1, run.text()
        assert run.processes() == []
        found = run.file()
        assert found["state"] == "failed"
        assert "aisrv-0 cannot be started again" in found["cause"]
        # and the learner has saved its last version
        last = run.checkpoints()[-1]
        assert last == (2, run.summary()["processes"]["learner-0.2"]["version_update"])
        assert (run.dir / "ckpt" / f"model.ckpt-{last[0]}-{last[1]}" / "manifest.json").exists()


def test_a_crash_loop_ends_the_run_with_its_cause(tmp_path):
    """The counting agent fails in every `learn` when a batch may be of several versions but must not."""
    with Run(tmp_path, NATIVE, "restart_budget=1", "max_version_lag=free", "train_batch_size=30",
             "counting.strict=true") as run:  # fmt: skip
        assert run.finish() == 1, run.text()
        output = run.output.read_text()
        assert re.search(r"ERROR.*learner-0 failed 2 times.*AssertionError: ", output), output
        # where the user's code raised is on the screen, not in a log file alone
        trace = output.partition("the last lines of the traceback:")[2]
        assert 'counting/algorithm/agent.py", line' in trace, output
        assert len(re.findall("the run has ended", output)) == 1
        assert run.processes() == []
        assert run.file()["state"] == "failed"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("aisrv_cuont=3", ["aisrv_cuont", "did you mean 'aisrv_count'"]),
        ("train_batch_size=7", ["train_batch_size", "7"]),
        ("counting.chunk_lenght=8", ["chunk_lenght", "chunk_length"]),
        ("algo=nobody", ["nobody"]),
        ("reverb_remover=\"__import__('os').system('true')\"", ["reverb_remover", "Fifo"]),
        ("bind_host=10.0.0.1", ["bind_host", "loopback", "realm keys new"]),
    ],
)
def test_a_wrong_setting_starts_nothing(tmp_path, override, words):
    with Run(tmp_path, NATIVE, "max_version_lag=0", override) as run:
        assert run.finish() == 2
        text = run.output.read_text()
        assert len(text.strip().splitlines()) == 1, text
        assert all(word in text for word in words), text
        assert not run.dir.exists()


def test_detached(tmp_path):
    log_dir = tmp_path / "runs"
    started = command("start", "--config", "tests/counting/counting.toml", "--detach",
                      "--set", f"log_dir={log_dir}", "--set", NATIVE)  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        assert "running in the background" in started.stdout
        assert "running" in command("status", "--log-dir", str(log_dir)).stdout
    finally:
        assert command("stop", "all", "--log-dir", str(log_dir)).returncode == 0
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(log_dir) in " ".join(one.info["cmdline"] or ())]
    wrong = command("start", "--config", "tests/counting/counting.toml", "--detach", "--set", f"log_dir={log_dir}",
                    "--set", "counting.chunk_length=0")  # fmt: skip
    assert wrong.returncode != 0
    assert "chunk_length" in wrong.stderr


def write_silent(folder, turn):
    """A package whose workflow never yields."""
    shutil.copytree(ROOT / "tests" / "counting", folder / "silent")
    (folder / "silent" / "train_workflow.py").write_text(
        "import numpy as np\n\n\ndef workflow(envs, policy, context):\n    obs, _ = envs.reset(seed=1)\n"
        f"    first = np.ones(envs.num_envs, bool)\n    while True:\n        {turn}\n    yield\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("predicts", ["local", "remote"])
def test_a_worker_within_a_long_round_lives_and_hears_its_end(tmp_path, predicts):
    """An environment may need minutes for the steps of a round."""
    write_silent(tmp_path, "policy.predict(obs, first)")
    settings = ("algo=silent", f"predict_local_or_remote={predicts}", "max_seconds=2", "max_version_lag=free")
    with Run(tmp_path, NATIVE, *settings, cwd=tmp_path, config=ROOT / "tests/counting/counting.toml") as run:
        assert run.finish() == 0, run.text()
        assert run.file()["cause"] == "max_seconds = 2 reached"
        assert "is killed" not in run.output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("turn", ["context.tick()", "policy.predict(obs, first)"])
def test_a_workflow_that_never_yields_is_named_and_can_be_ended(tmp_path, turn):
    """In one process nobody else could say it, or stop it."""
    write_silent(tmp_path, turn)
    patience = (
        "import sys; from realm.watch import progress; from realm.commands.main import main; progress.STILL_S = 1"
    )
    settings = ("algo=silent", "wrapper_type=local", f"log_dir={tmp_path / 'runs'}", "max_seconds=4")
    sets = [word for one in settings for word in ("--set", one)]
    done = subprocess.run(
        [sys.executable, "-c", f"{patience}; sys.exit(main(sys.argv[1:]))", "start", "--config",
         ROOT / "tests/counting/counting.toml", *sets],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"WARNING nothing has moved for \d+ s: the workflow has yielded no round", done.stderr)) == 1
    assert "the run has ended: max_seconds = 4 reached" in done.stderr
