"""The command `realm pack`, found by `realm/commands/games.py` by name; nothing else imports this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from realm.commands.locate import LOG_DIR_HELP, RUN_HELP, run_folder
from realm.commands.parser import Commands, check_file
from realm.watch.status import say


def add_commands(commands: Commands) -> None:
    """Add it."""
    text = "build the submission of a project written for KaiwuDRL"
    packing = commands.add_parser("pack", help=text, example="realm pack my-run --out submission.zip")
    packing.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    packing.add_argument("--id", default="latest", help="train steps of the model (default: latest)")
    packing.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .zip")
    packing.add_argument("--log-dir", help=LOG_DIR_HELP)
    packing.set_defaults(run=_pack)


def _pack(given: argparse.Namespace) -> int:
    from realm.kaiwu.pack import pack  # late: `--help` needs nothing of it

    check_file("--out", given.out, (".zip",))
    say(pack(run_folder(given.name, given.log_dir), given.id, given.out))
    return 0
