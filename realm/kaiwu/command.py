"""The parser of `realm pack`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_pack(commands: Any) -> None:
    """Add the command."""
    text, example = "build the submission of a project written for KaiwuDRL", "realm pack RUN --out x.zip"
    parser = commands.add_parser("pack", help=text, example=example)
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("--id", default="latest", help="train steps of the model (default: latest)")
    parser.add_argument("--out", type=Path, required=True, metavar="X.zip")
    parser.set_defaults(run=_pack)


def _pack(arguments: argparse.Namespace) -> int:
    from realm.kaiwu.pack import pack  # late: other commands need nothing of it

    print(pack(arguments.run_dir, arguments.id, arguments.out))
    return 0
