"""`realm start` trains in a cluster of processes or in this one, `realm resume` goes on with a run that has ended, and
`realm host` joins the run of another machine."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from realm.apart import apart
from realm.commands.ending import resuming, say_ending
from realm.commands.games import KAIWU, projects
from realm.commands.locate import DEFAULT_CONFIG, LOG_DIR_HELP, RUN_HELP, SET_HELP, checkpoints_of, run_folder
from realm.commands.parser import Commands
from realm.commands.series import add_configuration, train_seeds
from realm.commands.spawn import set_options, start_detached
from realm.config.load import EVAL_SEED, RunConfig, load_config
from realm.config.plan import decide, make_plan, this_machine
from realm.config.toml import toml_value
from realm.errors import ConfigError
from realm.files import from_here
from realm.launch.environment import enter_learner_environment, role_environment
from realm.launch.place import start_fork_server
from realm.launch.ports import check_ports
from realm.learn.results import newest_model
from realm.user import BUILT_IN, hyper_keys, load_preferences, refuse_code_of_a_run
from realm.watch.status import say

if TYPE_CHECKING:
    from realm.launch.hosts import Hosts

_RUN, _KEYS = "REALM_RUN", "REALM_KEYS_DIR"
FRESH_HELP = "begin a new run (run_name-2, run_name-3, ...) where run_name exists, instead of resuming it"
_DETACH_HELP = "leave the run in the background when it is ready"
_BY_HAND_HELP = "with hosts: print what to call on the other machines and wait for them, instead of asking Ray"


def add_commands(commands: Commands) -> None:
    """Add them."""
    text = "train, in a cluster of processes or in one process"
    example = "realm start --set run_name=my-run max_seconds=600 diy.lr_start=1e-3"
    starting = commands.add_parser("start", help=text, example=example)
    add_configuration(starting)
    starting.add_argument("--fresh", action="store_true", help=FRESH_HELP)
    starting.add_argument("--detach", action="store_true", help=_DETACH_HELP)
    starting.add_argument("--by-hand", action="store_true", help=_BY_HAND_HELP)
    starting.add_argument(
        "--seeds", type=int, nargs="+", default=[], metavar="SEED",
        help="a run for each seed, run_name-seed1 and so on, one after the other; the same command goes on",
    )  # fmt: skip
    starting.set_defaults(run=start)

    text = "go on with a run, by the configuration in its folder"
    going_on = commands.add_parser("resume", help=text, example="realm resume my-run --set max_env_steps=2_000_000")
    going_on.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    going_on.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=SET_HELP)
    going_on.add_argument("--detach", action="store_true", help=_DETACH_HELP)
    going_on.add_argument("--by-hand", action="store_true", help=_BY_HAND_HELP)
    going_on.add_argument("--log-dir", help=LOG_DIR_HELP)
    going_on.set_defaults(
        run=lambda given: resume(run_folder(given.name, given.log_dir), given.set, given.detach, given.by_hand)
    )

    text = "run workers of a run that another machine leads"
    joining = commands.add_parser("host", help=text, example="realm host --keys keys")
    joining.add_argument("--keys", help=f"folder of this machine's keys (default: {_KEYS}, else keys)")
    joining.set_defaults(run=_host)


def start(arguments: argparse.Namespace) -> int:
    """`realm start`: train until a limit, a signal or an error; return the exit code."""
    config = projects().load(arguments.config, arguments.set, hyper_keys)
    if arguments.seeds:
        if arguments.fresh or arguments.detach or arguments.by_hand:
            raise ConfigError(
                "--seeds goes on with the runs that are there and shows them: leave out --fresh, --detach, --by-hand"
            )
        return train_seeds(config, arguments.config, arguments.set, arguments.seeds)
    if arguments.detach:
        _refuse_to_detach(config, arguments.by_hand)
        words = ["start", "--config", arguments.config, *(["--fresh"] if arguments.fresh else [])]
        return start_detached(words + set_options(arguments.set), config)
    return train(config, arguments.fresh, arguments.by_hand)


def _refuse_to_detach(config: RunConfig, by_hand: bool) -> None:
    """Raise ConfigError for what nobody would see or wait for in the background."""
    if by_hand or config.app.run_mode == "eval":
        what = "--by-hand prints a line for the other machines" if by_hand else 'run_mode = "eval" prints its report'
        raise ConfigError(f"--detach: {what}, which needs a terminal; leave --detach out")


def train(config: RunConfig, fresh: bool = False, by_hand: bool = False) -> int:
    """Train in this terminal. fresh: do not resume the run `run_name`, but begin another next to it. by_hand: people
    start the agents of hosts."""
    if config.app.run_mode == "eval":
        return _evaluate(config)
    from realm.watch.resources import raise_file_limit  # late: it brings rich, which `--help` does not need

    raise_file_limit()
    if config.app.wrapper_type == "remote":
        check_ports(config.app)  # once, since hosts are awaited at one of them
    if not config.app.hosts and not by_hand:
        return _train(config, fresh, None)
    hosts = _awaited(config, by_hand)
    try:
        return _train(config, fresh, hosts)
    finally:
        hosts.end()


def _awaited(config: RunConfig, by_hand: bool) -> Hosts:
    """The hosts of a start, none of which has come yet."""
    from realm.launch.hosts import Hosts
    from realm.wire.curve_keys import load_keys

    app = config.app
    if not app.hosts:
        raise ConfigError("--by-hand: the key hosts is 0, so there is no other machine to wait for; leave it out")
    if app.algo == KAIWU:
        raise ConfigError(f"hosts = {app.hosts}: a project written for KaiwuDRL runs on one machine; it must be 0")
    keys = load_keys(app.keys_dir)
    assert keys is not None, "AppConfig asks for them"
    hosts = Hosts(app, keys, by_hand)
    if by_hand:
        told = "other machines, where a copy of this folder is, and give it this line:"
        say(f"call `realm host` on {app.hosts} {told}", hosts.line, to_stderr=True)
    return hosts


def _host(given: argparse.Namespace) -> int:
    """`realm host`. The run's id is never on the command line, which every user of a machine can read."""
    from realm.launch.host import serve
    from realm.watch.resources import raise_file_limit
    from realm.wire.curve_keys import load_keys

    keys = load_keys(given.keys or os.environ.get(_KEYS) or "keys", joins=True)
    assert keys is not None
    if not (line := os.environ.pop(_RUN, "")):
        say("give me the line that `realm start --by-hand` has printed:", to_stderr=True)
        line = sys.stdin.readline()
    if not (match := re.fullmatch(r"\s*(tcp://[\w.-]{1,255}:[0-9]{1,5}) ([0-9a-f]{16}) ([\w.]{1,80})\s*", line)):
        raise ConfigError(f"{line[:60]!r} is not the line that `realm start --by-hand` has printed")
    raise_file_limit()
    serve(match[1], match[2], match[3], keys)
    return 0


def _train(config: RunConfig, fresh: bool, hosts: Hosts | None) -> int:
    app = config.app
    cores = hosts.gather(app.start_timeout_s) if hosts else ()
    decided = decide(app, this_machine(cores), load_preferences(app.algo))
    plan = make_plan(decided.app)
    if app.wrapper_type == "local":
        enter_learner_environment(plan)  # before slow imports, since it may start this process again
        _say_which(config)
        from realm.launch import local
        from realm.launch.start import prepare

        prepared = prepare(config, decided, fresh)
        with apart(over=True):
            ended = local.run(prepared)
        say_ending(from_here(prepared.run_dir), ended.status("stopped"), 0)
        return 0
    _say_which(config)
    start_fork_server(role_environment("learner", plan))  # it imports torch while this process runs the checks
    from realm.launch.start import prepare
    from realm.launch.supervisor import Supervisor
    from realm.watch.display import STOPS, display
    from realm.watch.summary import write_summary

    prepared = prepare(config, decided, fresh, hosts.run_id if hosts else "")
    run_dir = prepared.run_dir
    if hosts:
        hosts.begin(prepared.config, run_dir)
    supervisor = Supervisor(prepared, decided.own_network, hosts, decided.dealt)
    try:
        with display(str(from_here(run_dir)), STOPS, app.level) as show:
            code = supervisor.run(show)
        write_summary(run_dir, supervisor.board, prepared.plan, supervisor.state.cause, supervisor.ran)
    finally:
        if not supervisor.board.total("learner", "updates"):
            prepared.put_back_config()
    if supervisor.state.trace:
        logger.error("the last lines of the traceback:\n{}", supervisor.state.trace)
    logger.log("INFO" if code == 0 else "ERROR", "the run has ended: {}", supervisor.state.cause)
    say_ending(from_here(run_dir), supervisor.status(), code)
    return code


def _say_which(config: RunConfig) -> None:
    own = str(BUILT_IN / DEFAULT_CONFIG)
    if not Path(DEFAULT_CONFIG).parent.exists() and any(place.startswith(own) for place in config.places.values()):
        logger.info("there is no {} here, so this is the one that comes with Realm: {}", DEFAULT_CONFIG, own)


def _evaluate(config: RunConfig) -> int:
    """`run_mode = "eval"`: only evaluate the configured model."""
    from realm.commands.evaluate import Request, evaluate_model
    from realm.learn.evaluation import EXPLORES

    app = config.app
    folder = checkpoints_of(Path(app.eval_model_dir or f"{app.log_dir}/{app.run_name}"))
    request = Request(explores=EXPLORES[app.eval_actions], seed=app.seed + EVAL_SEED)
    evaluate_model(config.evaluated(), folder, app.eval_model_id, request)
    return 0


def resume(run_dir: Path, overrides: Sequence[str], detach: bool, by_hand: bool = False) -> int:
    """Train until a limit, a signal or an error; return the exit code. overrides: `key=value`, as of --set."""
    config = configuration_of(run_dir, overrides)
    if detach:
        _refuse_to_detach(config, by_hand)
        return start_detached(["resume", str(run_dir), *set_options(overrides)], config)
    return train(config, by_hand=by_hand)


def configuration_of(run_dir: Path, overrides: Sequence[str]) -> RunConfig:
    """The configuration of a run, wherever its folder lies now, and whose code is not from there.

    Raises ConfigError if the code would be, and if the run is at its limit already.
    """
    for text in overrides:
        key = text.partition("=")[0].strip().removeprefix("app.")
        if key in ("run_name", "log_dir"):
            raise ConfigError(f"--set {text}: the run stays where it is; leave {key} out, or use realm start")
    folder = Path(os.path.abspath(run_dir))
    file = run_dir / "config.toml"
    app = load_config(file).app
    moved = Path(os.path.abspath(app.log_dir)) != folder.parent  # or the user stands elsewhere
    place = [f"log_dir={toml_value(str(folder.parent))}"] if moved else []
    config = load_config(file, [*overrides, f"run_name={toml_value(folder.name)}", *place], hyper_keys)
    if "app.algo" not in config.places:
        raise ConfigError(f"{file}: has no key 'algo', and Realm wrote all: the file is damaged; restore it")
    for package in {config.app.algo, config.app.app}:
        refuse_code_of_a_run(package, folder, folder.parent)
    projects().check_resumed(config, overrides)
    newest, limit = newest_model(run_dir), config.app.max_env_steps
    if newest and limit and newest.env_steps >= limit:
        raise ConfigError(
            f"{run_dir}: has made {newest.env_steps:,} env steps, and its max_env_steps is {limit:,}; go on past it: "
            f"{resuming(run_dir, newest.env_steps, limit)}"
        )
    return config
