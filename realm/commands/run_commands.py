"""The commands that look at runs: their parsers, and what they call."""

from __future__ import annotations

import argparse
from pathlib import Path

from realm.commands.game import Commands
from realm.commands.models import LOG_DIR_HELP, RUN_HELP, run_folder, runs_folder
from realm.errors import ConfigError


def add_runs(commands: Commands) -> None:
    """Add them."""
    status = commands.add_parser(
        "status", help="show the living runs and their roles", example="realm status --watch"
    )  # fmt: skip
    status.add_argument("--watch", action="store_true", help="again and again, until no run lives or Ctrl+C")
    status.add_argument("--json", action="store_true", help="as JSON, with all totals")
    status.add_argument("--log-dir", help=LOG_DIR_HELP)
    status.set_defaults(run=_status)

    text = "show a living run as its own terminal does"
    attach = commands.add_parser("attach", help=text, example="realm attach my-run")
    attach.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    attach.add_argument("--log-dir", help=LOG_DIR_HELP)
    attach.set_defaults(run=_attach)

    logs = commands.add_parser("logs", help="show the logs of a run", example="realm logs my-run learner -f")
    logs.add_argument("name", nargs="?", default="", metavar="RUN", help=RUN_HELP)
    logs.add_argument("role", nargs="?", default="", metavar="ROLE", help="like learner or aisrv-1 (default: all)")
    logs.add_argument("-n", dest="lines", type=int, default=20, metavar="N", help="last lines of each (default 20)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends or Ctrl+C")
    logs.add_argument("--log-dir", help=LOG_DIR_HELP)
    logs.set_defaults(run=_logs)

    text = "list all runs, or delete old ones"
    runs = commands.add_parser("runs", help=text, example="realm runs --prune --keep 10")
    runs.add_argument("--log-dir", help=LOG_DIR_HELP)
    runs.add_argument("--prune", action="store_true", help="show which runs would be deleted, and delete after a yes")
    runs.add_argument("--keep", type=int, metavar="N", help="with --prune: the newest N runs stay")
    runs.add_argument("--older-than", type=float, metavar="DAYS", help="with --prune: younger runs stay")
    runs.add_argument("--yes", action="store_true", help="with --prune: do not ask")
    runs.set_defaults(run=_runs)

    text = "show in which settings runs differ, and what they came to"
    compare = commands.add_parser("compare", help=text, example="realm compare my-run other-run --out curves.png")
    compare.add_argument("names", nargs="*", metavar="RUN", help="name or path of a run (default: the newest two)")
    compare.add_argument("--out", type=Path, help="draw their curves to this .png, .svg or .pdf")
    compare.add_argument("--log-dir", help=LOG_DIR_HELP)
    compare.set_defaults(run=_compare)

    text = "draw curves of runs; several seeds as their mean in a band"
    plot = commands.add_parser("plot", help=text, example="realm plot my-run other-run --out curves.png")
    names = "a run, or the name before -seed1, -seed2, ... (default: the newest run)"
    plot.add_argument("names", nargs="*", metavar="RUN", help=names)
    plot.add_argument("--tag", default="", help="a curve of TensorBoard (default: score or return of the episodes)")
    plot.add_argument("--out", type=Path, default=Path("curves.png"), help="a .png (default curves.png), .svg or .pdf")
    plot.add_argument("--log-dir", help=LOG_DIR_HELP)
    plot.set_defaults(run=_plot)


def _status(arguments: argparse.Namespace) -> int:
    from realm.commands.status import show_status

    return show_status(runs_folder(arguments.log_dir), arguments.watch, arguments.json)


def _runs(arguments: argparse.Namespace) -> int:
    from realm.commands.prune import prune
    from realm.commands.runs import list_runs

    folder = runs_folder(arguments.log_dir)
    if arguments.prune:
        return prune(folder, arguments.keep, arguments.older_than, arguments.yes)
    if arguments.keep is not None or arguments.older_than is not None or arguments.yes:
        raise ConfigError("--keep, --older-than and --yes need --prune")
    return list_runs(folder)


def _compare(arguments: argparse.Namespace) -> int:
    from realm.commands.compare import compare
    from realm.launch.rundir import find_runs

    folders = [run_folder(name, arguments.log_dir) for name in arguments.names]
    newest = [path for path, _ in reversed(find_runs(runs_folder(arguments.log_dir))) if path not in folders]
    return compare([*folders, *newest[: max(0, 2 - len(folders))]], arguments.out)


def _plot(arguments: argparse.Namespace) -> int:
    from realm.commands.plot import plot

    return plot(arguments.names, arguments.log_dir, arguments.tag, arguments.out)


def _attach(arguments: argparse.Namespace) -> int:
    from realm.commands.status import attach

    return attach(run_folder(arguments.name, arguments.log_dir))


def _logs(arguments: argparse.Namespace) -> int:
    from realm.commands.logs import show_logs

    if arguments.lines < 0:
        raise ConfigError(f"-n {arguments.lines}: must be a number from 0")
    return show_logs(run_folder(arguments.name, arguments.log_dir), arguments.role, arguments.lines, arguments.follow)
