"""`realm compare A B`: the settings in which runs differ, what they came to, and their curves in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from realm.commands.files import check_file
from realm.commands.parser import terminal_width
from realm.commands.plot import PICTURES, draw
from realm.commands.runs import RIGHT, overview
from realm.config.load import load_config, settings_of
from realm.errors import ConfigError
from realm.launch.rundir import read_run
from realm.watch.status import say, table


def compare(folders: Sequence[Path], out: Path | None) -> int:
    """Print what differs; draw the curves to `out`, if it is given."""
    check_file("--out", out, PICTURES)
    if len(set(folders)) < 2:
        raise ConfigError("realm compare: must be given at least two runs that are not the same")
    names = [path.name for path in folders]
    if len(set(names)) < len(names):
        names = [str(path) for path in folders]
    settings = [settings_of(load_config(path / "config.toml")) for path in folders]
    runs = [(path, run) for path in folders if (run := read_run(path))]
    say(*table(overview(runs), RIGHT))
    lines = differences(names, settings, terminal_width(120) - 2) or ["none"]
    say("", "settings that differ:", *(f"  {line}" for line in lines))
    if out is None:
        say("", "--out FILE.png draws their curves")
        return 0
    draw({name: [path] for name, path in zip(names, folders, strict=True)}, out)
    say("", f"their curves: {out}")
    return 0


def differences(names: Sequence[str], settings: Sequence[dict[str, str]], width: int) -> list[str]:
    """A line for each key in which the runs differ, as `--set` names keys; below each other if that is too wide."""
    keys = dict.fromkeys(key for one in settings for key in one if key != "run_name")
    rows = [(key, *(one.get(key, "not set") for one in settings)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return []
    lines = table([("", *names), *rows])
    if max(map(len, lines)) <= width:
        return lines
    left = max(map(len, names))
    return [
        line
        for key, *values in rows
        for line in (key, *(f"  {name:<{left}} {value}" for name, value in zip(names, values, strict=True)))
    ]
