"""What `realm start` says when a run has ended: how far it came, its best model and where it lies, what to do next."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from realm.commands.locate import runs_folder
from realm.config.load import load_config
from realm.errors import ConfigError
from realm.files import from_here
from realm.learn.results import best_model, is_judged, newest_model
from realm.watch.status import Status, clock, in_columns, in_rows, named, say, scores


def say_ending(run_dir: Path, status: Status, code: int) -> None:
    """Print it to stderr. code: the run's exit code."""
    width = shutil.get_terminal_size((120, 24)).columns
    say(*ending(run_dir, status, code, width), to_stderr=True)


def ending(run_dir: Path, status: Status, code: int, width: int) -> list[str]:
    """The lines."""
    cells = [
        ("env steps", f"{status.env_steps:,}"),
        ("updates", f"{status.updates:,}"),
        ("episodes", f"{status.episodes:,}"),
        ("time", clock(status.elapsed_s)),
    ]
    models = [cell for cell in scores(status) if cell[0].startswith("training")]
    best, newest = best_model(run_dir), newest_model(run_dir)
    if best and best.scored:
        scored = best.scored
        text = f"{named(scored.statistic)} {scored.score:.1f}, {best.version}: {best.path}"
        same = named(scored.statistic) == status.statistic and not is_judged(run_dir)
        if same and status.score is not None and scored.score < status.score:
            text = f"{named(scored.statistic)} {scored.score:.1f}, {best.version}; training is further"
            best = None  # the run was too short for a later evaluation
        models.append(("best model" if best else "evaluated", text))
    if newest:
        models.append(("newest model", f"{newest.version}: {newest.path}"))
    lines = ["", *in_columns(cells, width), *in_rows(models, width), ""]
    path = shlex.quote(str(run_dir))
    if code:
        lines += ["what happened:", f"  {called()} logs {path}"]
    if newest:
        identity = " --id best" if best else ""
        lines += [
            "how well it plays:", f"  {called()} eval {path}{identity}",
            "train it further:", f"  {resuming(run_dir, status.env_steps, status.max_env_steps)}",
        ]  # fmt: skip
    return lines


def stopping(log_dir: Path) -> str:
    """The command that ends the runs below `log_dir`."""
    where = "" if log_dir == runs_folder(None) else f" --log-dir {shlex.quote(str(log_dir))}"
    return f"{called()} stop all{where}"


def resuming(run_dir: Path, env_steps: int, limit: int) -> str:
    """The command that goes on with a run, and past the limit that has ended it. limit: max_env_steps."""
    further, past = limit, ""
    while 0 < further <= env_steps:
        further *= 2
    if further > limit:
        past = f" --set max_env_steps={further}"
        with suppress(ConfigError):  # it was damaged meanwhile
            config = load_config(run_dir / "config.toml")
            for key in ("total_env_steps", "lr_steps"):  # schedules end there
                if 0 < config.hyper.get(key, 0) < further:
                    past += f" {config.app.hyper_table}.{key}={further}"
    return f"{called()} resume {shlex.quote(str(run_dir))}{past}"


def called() -> str:
    """How the command line can be called here: what is printed with it can be copied."""
    python = Path(sys.executable)
    command = Path(sys.argv[0]) if Path(sys.argv[0]).name == "realm" else python.with_name("realm")
    if not command.is_file():
        return f"{shlex.quote(str(from_here(python)))} -m realm"
    on_path = shutil.which("realm")
    return (
        "realm" if on_path and Path(on_path).absolute() == command.absolute() else shlex.quote(str(from_here(command)))
    )
