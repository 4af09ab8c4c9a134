"""The commands that start and stop runs: their parsers, and what they call."""

from __future__ import annotations

import argparse
from pathlib import Path

from realm.commands import train
from realm.commands.files import check_file
from realm.commands.game import Commands
from realm.commands.init import PACKAGES
from realm.commands.models import (
    CONFIG_HELP,
    DEFAULT_CONFIG,
    LOG_DIR_HELP,
    RUN_HELP,
    config_file,
    run_folder,
    runs_folder,
)
from realm.roles.table import ROLES
from realm.watch.status import say

FRESH_HELP = "begin a new run (run_name-2, run_name-3, ...) where run_name exists, instead of resuming it"
_SET_HELP = "override keys, repeatable; `realm config` lists them"
_DETACH_HELP = "leave the run in the background when it is ready"


def add_train(commands: Commands) -> None:
    """Add them."""
    text = "write a package that trains a gymnasium environment at once"
    init = commands.add_parser("init", help=text, example="realm init cart --env CartPole-v1")
    init.add_argument("name", nargs="?", default="", metavar="NAME", help="of the package (default: the environment's)")
    init.add_argument(
        "--env", default="", metavar="ID", help="of gymnasium, such as CartPole-v1, or my_module:MyEnv-v0"
    )  # fmt: skip
    text = f"{', '.join(PACKAGES[:-1])}, or realm: the game's own agent (default: ppo, or td3 if continuous)"
    init.add_argument("--from", dest="package", choices=PACKAGES, default="", metavar="AGENT", help=text)
    text = "names the environments that PPO has tuned settings for"
    init.add_argument("--list", action="store_true", help=text)
    init.set_defaults(run=_init)

    text = "train, in a cluster of processes or in one process"
    example = "realm start --set run_name=my-run max_seconds=600 diy.lr_start=1e-3"
    start = commands.add_parser("start", help=text, example=example)
    _add_configuration(start)
    start.add_argument("--fresh", action="store_true", help=FRESH_HELP)
    start.add_argument("--detach", action="store_true", help=_DETACH_HELP)
    start.add_argument(
        "--seeds", type=int, nargs="+", default=[], metavar="SEED",
        help="a run for each seed, run_name-seed1 and so on, one after the other; the same command goes on",
    )  # fmt: skip
    start.set_defaults(run=train.start)

    text = "go on with a run, by the configuration in its folder"
    resume = commands.add_parser("resume", help=text, example="realm resume my-run --set max_env_steps=2_000_000")
    resume.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    resume.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=_SET_HELP)
    resume.add_argument("--detach", action="store_true", help=_DETACH_HELP)
    resume.add_argument("--log-dir", help=LOG_DIR_HELP)
    resume.set_defaults(run=_resume)

    _add_sweep(commands)
    stop = commands.add_parser("stop", help="end all runs, or one role of them", example="realm stop all")
    stop.add_argument("what", choices=("all", *ROLES), metavar="all|ROLE", help=f"ROLE is {', '.join(ROLES)}")
    stop.add_argument("--log-dir", help=LOG_DIR_HELP)
    stop.set_defaults(run=_stop)


def add_rare(commands: Commands) -> None:
    """Add those that few users need."""
    text = "keep the current model of each living run in its user_ckpt/"
    save = commands.add_parser("save", help=text, example="realm save")
    save.add_argument("--log-dir", help=LOG_DIR_HELP)
    save.set_defaults(run=_save)

    text = "build the submission of a project written for KaiwuDRL"
    pack = commands.add_parser("pack", help=text, example="realm pack my-run --out submission.zip")
    pack.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    pack.add_argument("--id", default="latest", help="train steps of the model (default: latest)")
    pack.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .zip")
    pack.add_argument("--log-dir", help=LOG_DIR_HELP)
    pack.set_defaults(run=_pack)

    text = "make keys for runs that other machines may connect to"
    keys = commands.add_parser("keys", help=text, example="realm keys new")
    actions = keys.add_subparsers(required=True, metavar="COMMAND")
    new = actions.add_parser("new", help="make the keys of this machine", example="realm keys new keys")
    new.add_argument("folder", nargs="?", type=Path, default=Path("keys"), metavar="DIR", help="default: keys")
    new.set_defaults(run=_new_keys)


def _add_sweep(commands: Commands) -> None:
    text = "look for the best settings in many runs, with Optuna"
    example = "realm sweep --trials 20 --set run_name=my-sweep max_env_steps=200_000"
    sweep = commands.add_parser("sweep", help=text, example=example)
    _add_configuration(sweep)
    sweep.add_argument(
        "--trials", type=int, default=20, metavar="N", help="runs in all, with earlier ones (default 20)"
    )
    sweep.add_argument(
        "--space", type=Path, metavar="FILE",
        help="TOML file with the table [sweep] (default: the configuration, else sweep.toml)",
    )  # fmt: skip
    sweep.set_defaults(run=_sweep)


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=config_file, default=DEFAULT_CONFIG, help=CONFIG_HELP)
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=_SET_HELP)


def _init(arguments: argparse.Namespace) -> int:
    from realm.commands.init import init, list_tuned

    if arguments.list:
        list_tuned()
        return 0
    init(arguments.name, arguments.env, arguments.package)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    from realm.commands.resume import resume

    return resume(run_folder(arguments.name, arguments.log_dir), arguments.set, arguments.detach)


def _sweep(arguments: argparse.Namespace) -> int:
    from realm.commands.sweep import sweep

    return sweep(arguments.config, arguments.set, arguments.trials, arguments.space)


def _stop(arguments: argparse.Namespace) -> int:
    from realm.commands.control import stop_all, stop_role

    if arguments.what == "all":
        return stop_all(runs_folder(arguments.log_dir))
    return stop_role(runs_folder(arguments.log_dir), arguments.what)


def _pack(arguments: argparse.Namespace) -> int:
    from realm.kaiwu.pack import pack  # late: other commands need nothing of it

    check_file("--out", arguments.out, (".zip",))
    say(pack(run_folder(arguments.name, arguments.log_dir), arguments.id, arguments.out))
    return 0


def _save(arguments: argparse.Namespace) -> int:
    from realm.commands.control import save_models

    return save_models(runs_folder(arguments.log_dir))


def _new_keys(arguments: argparse.Namespace) -> int:
    from realm.commands.keys import new_keys

    return new_keys(arguments.folder)
