"""`realm start`: trains in a cluster of processes or in this process. `realm resume` and `realm sweep` call it, too."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from loguru import logger

from realm.apart import apart
from realm.commands.ending import called, say_ending, stopping
from realm.commands.models import DEFAULT_CONFIG, checkpoints_of
from realm.config.load import EVAL_SEED, RunConfig
from realm.config.plan import decide, make_plan, this_machine
from realm.errors import ConfigError
from realm.files import set_aside
from realm.kaiwu.project import load
from realm.launch.environment import enter_learner_environment, for_python, role_environment
from realm.launch.place import start_fork_server
from realm.user import BUILT_IN, hyper_keys, load_preferences
from realm.watch.status import say


def start(arguments: argparse.Namespace) -> int:
    """`realm start`: train until a limit, a signal or an error; return the exit code."""
    config = load(arguments.config, arguments.set, hyper_keys)
    if arguments.seeds:
        from realm.commands.seeds import train_seeds

        if arguments.fresh or arguments.detach:
            raise ConfigError(
                "--seeds goes on with the runs that are there and shows them: leave out --fresh, --detach"
            )
        return train_seeds(config, arguments.config, arguments.set, arguments.seeds)
    if arguments.detach:
        words = ["start", "--config", arguments.config, *(["--fresh"] if arguments.fresh else [])]
        return start_detached(words + set_options(arguments.set), config)
    return train(config, arguments.fresh)


def train(config: RunConfig, fresh: bool = False) -> int:
    """Train in this terminal. fresh: do not resume the run `run_name`, but begin another next to it."""
    app = config.app
    if app.run_mode == "eval":
        return _evaluate(config)
    from realm.watch.resources import raise_file_limit  # late: it brings rich, which `--help` does not need

    raise_file_limit()
    decided = decide(app, this_machine(), load_preferences(app.algo))
    plan = make_plan(decided.app)
    if app.wrapper_type == "local":
        enter_learner_environment(plan)  # before slow imports, since it may start this process again
        _say_which(config)
        from realm.launch import local
        from realm.launch.start import prepare

        prepared = prepare(config, decided, fresh)
        with apart(over=True):
            end = local.run(prepared)
        say_ending(prepared.run_dir, end.status, 0)
        return 0
    _say_which(config)
    start_fork_server(role_environment("learner", plan))  # it imports torch while this process runs the checks
    from realm.launch.child import EXIT_USER
    from realm.launch.start import prepare
    from realm.launch.supervisor import Supervisor
    from realm.watch.display import STOPS, display
    from realm.watch.summary import write_summary

    prepared = prepare(config, decided, fresh)
    run_dir = prepared.run_dir
    supervisor = Supervisor(prepared, decided.own_network)
    with display(str(run_dir), STOPS, app.level) as show:
        code = supervisor.run(show)
    write_summary(run_dir, supervisor.board, prepared.plan, supervisor.cause)
    if code == EXIT_USER and not supervisor.board.total("learner", "updates"):
        prepared.put_back_config()
    if supervisor.trace:
        logger.error("the last lines of the traceback:\n{}", supervisor.trace)
    logger.log("INFO" if code == 0 else "ERROR", "the run has ended: {}", supervisor.cause)
    say_ending(run_dir, supervisor.status(), code)
    return code


def _say_which(config: RunConfig) -> None:
    own = str(BUILT_IN / DEFAULT_CONFIG)
    if not Path(DEFAULT_CONFIG).parent.exists() and any(place.startswith(own) for place in config.places.values()):
        logger.info("there is no {} here, so this is the one that comes with Realm: {}", DEFAULT_CONFIG, own)


def _evaluate(config: RunConfig) -> int:
    """`run_mode = "eval"`: only evaluate the configured model."""
    from realm.commands.evaluate import Request, evaluate_model

    app = config.app
    folder = checkpoints_of(Path(app.eval_model_dir or f"{app.log_dir}/{app.run_name}"))
    evaluate_model(config.evaluated(), folder, app.eval_model_id, Request(seed=app.seed + EVAL_SEED))
    return 0


def set_options(settings: Sequence[str]) -> list[str]:
    """`key=value` overrides as words of a command line."""
    return [word for text in settings for word in ("--set", text)]


def start_realm(words: Sequence[str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start the command `realm WORDS` in a session of its own. It prints to `log`, or where this process does."""
    return subprocess.Popen(
        [sys.executable, "-m", "realm", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True, env=for_python(os.environ),
    )  # fmt: skip


def start_detached(words: Sequence[str], config: RunConfig) -> int:
    """Start the command `realm WORDS` in a new session, and wait until its run is ready or has ended."""
    from realm.launch.rundir import find_runs

    folder, timeout_s = Path(config.app.log_dir), config.app.start_timeout_s
    log_path = folder / f"start-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log_path.unlink(missing_ok=True)
        # appending, because it is emptied in place when it is large (`watch/logs.py`)
        log = open(log_path, "ab")  # noqa: SIM115 - closed by the `with log` below
    except OSError as error:
        place = config.places.get("app.log_dir", "[app]")
        reason = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{place}: key 'log_dir': {reason}; it must be a writable folder") from error
    with log:
        process = start_realm(words, log)
    deadline, why = time.monotonic() + timeout_s, f"was not ready after start_timeout_s = {timeout_s:g} s"
    try:
        while process.poll() is None and time.monotonic() < deadline:
            for run_dir, run in find_runs(folder):
                if run.pid != process.pid or not run.lives():  # a pid comes again
                    continue
                log_path = _moved(log_path, run_dir / "log" / "supervisor.log")
                if run.state == "running":
                    say(*run.beginning)
                    say(f"running in the background: {run_dir} (pid {run.pid}), log {log_path}")
                    watch = "attach {}" if run.control else "logs {} -f"  # one process answers no questions
                    say(f"watch it: {called()} {watch.format(shlex.quote(str(run_dir)))}")
                    say(f"end it:   {stopping(folder)}")
                    return 0
                if run.state == "stopping":  # it began at its limit, and judges its last model
                    deadline = time.monotonic() + timeout_s
            time.sleep(0.1)
    except KeyboardInterrupt:  # the run has a session of its own, and would go on
        why = "was interrupted before it was ready"
    say(*log_path.read_text(errors="replace").splitlines(), to_stderr=True)
    code = process.poll()
    if code is None:
        process.terminate()  # the supervisor ends its roles first
        try:
            process.wait(2 * config.app.stop_timeout_s + 3 * timeout_s + 10)  # a first update is waited for
        except subprocess.TimeoutExpired:
            process.kill()  # its roles notice and end
            process.wait()
        say(f"error: the run {why} and was stopped; see {log_path}", to_stderr=True)
        return 1
    if log_path.parent == folder:
        log_path.unlink()  # the run has no directory, and its output has been printed
    return code


def _moved(log: Path, to: Path) -> Path:
    """The log of a run that is starting, in its folder; an earlier session's there is set aside."""
    if log != to:
        if to.exists():
            set_aside(to)
        log.rename(to)
    return to
