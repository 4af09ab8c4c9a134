"""`realm plot RUN...`: curves of runs in one picture, those of several seeds as their mean in a band.

`realm compare --out` draws with it, too. `realm tensorboard` shows all curves in a browser.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from realm.commands.locate import LOG_DIR_HELP, run_folder, runs_folder
from realm.commands.parser import Commands, check_file, writing
from realm.errors import ConfigError, did_you_mean, one_line, to_install
from realm.launch.rundir import find_runs
from realm.watch.progress import busy
from realm.watch.status import say
from realm.watch.tensorboard import Curve, read_curves, without_tensorflow

PICTURES = (".png", ".svg", ".pdf")
_FEW_POINTS = 100  # up to here each has a mark
_SCORES = {"score": ("episode/score", "evaluation/score"), "return": ("episode/return", "evaluation/return")}
"""What episodes are measured by -> its curves: of training, of evaluations. The first that is there is drawn."""
_SEED = re.compile(r"(.+)-seed\d+")


def add_commands(commands: Commands) -> None:
    """Add it."""
    text = "draw curves of runs; several seeds as their mean in a band"
    plotting = commands.add_parser("plot", help=text, example="realm plot my-run other-run --out curves.png")
    text = "a run, or the name before -seed1, -seed2, ... (default: the newest run)"
    plotting.add_argument("names", nargs="*", metavar="RUN", help=text)
    plotting.add_argument("--tag", default="", help="a curve of TensorBoard (default: score or return of the episodes)")
    text = "a .png (default curves.png), .svg or .pdf"
    plotting.add_argument("--out", type=Path, default=Path("curves.png"), help=text)
    plotting.add_argument("--log-dir", help=LOG_DIR_HELP)
    plotting.set_defaults(run=lambda given: plot(given.names, given.log_dir, given.tag, given.out))

    text = "show every curve of every run in a browser"
    board = commands.add_parser("tensorboard", help=text, example="realm tensorboard my-run --port 6007")
    board.add_argument("names", nargs="*", metavar="RUN", help="runs (default: all, also those that begin later)")
    board.add_argument("--port", type=int, default=6006, help="of 127.0.0.1 (default: %(default)s); 0 takes a free one")
    board.add_argument("--log-dir", help=LOG_DIR_HELP)
    board.set_defaults(run=lambda given: tensorboard(given.names, given.log_dir, given.port))


def tensorboard(names: Sequence[str], log_dir: str | None, port: int) -> int:
    """Serve TensorBoard until Ctrl+C. It finds a link to each run in a folder, so that runs have their names."""
    without_tensorflow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pkg_resources
        from tensorboard import default, program
    chosen = [run_folder(name, log_dir).absolute() for name in names]
    linked = set[Path]()

    def link(folder: Path) -> None:
        for run_dir in chosen or [path for path, _ in find_runs(runs_folder(log_dir))]:
            if run_dir not in linked:
                linked.add(run_dir)
                is_taken = (folder / run_dir.name).is_symlink()
                name = str(run_dir).strip("/").replace("/", "_") if is_taken else run_dir.name
                (folder / name).symlink_to((run_dir / "log" / "tensorboard").absolute())

    with TemporaryDirectory(prefix="realm-tensorboard-") as folder:
        link(Path(folder))
        server = program.TensorBoard(default.get_plugins())
        # the fast loader drops what the curves say of themselves
        arguments = ["--logdir", folder, "--port", str(port), "--reload_interval", "5", "--load_fast=false"]
        server.configure(argv=["tensorboard", *arguments])
        try:
            url = server.launch()
        except program.TensorBoardServerException as error:
            raise ConfigError(f"{one_line(error)}; --port 0 takes a free one") from error
        say(f"{url}#custom_scalars", "Ctrl+C ends it")
        while True:
            time.sleep(5.0)
            link(Path(folder))


def plot(names: Sequence[str], log_dir: str | None, tag: str, out: Path) -> int:
    """Draw the runs of these names. tag: the curve to draw; "" is that of the score or the return."""
    check_file("--out", out, PICTURES)
    draw(groups_of(names or [str(run_folder("", log_dir))], log_dir), out, tag)
    say(f"their curves: {out}")
    return 0


def groups_of(names: Sequence[str], log_dir: str | None) -> dict[str, list[Path]]:
    """Label -> its runs: those of one folder that differ in -seed1, -seed2, ... belong together.

    A name means the run of that name and its seeds. Raises ConfigError for a name that no run has.
    """
    seeds: dict[Path, list[Path]] = {}  # their path without -seed<n>
    single: list[Path] = []
    for name in names:
        of_name = _seeds_of(name, log_dir)
        try:
            of_name = [run_folder(name, log_dir), *of_name]
        except ConfigError:
            if not of_name:
                raise
        for path in map(Path.absolute, of_name):
            match, folder = _SEED.fullmatch(path.name), path.parent.resolve()
            group = seeds.setdefault(folder / match[1], []) if match else single
            if all(folder / path.name != one.parent.resolve() / one.name for one in group):
                group.append(path)
    groups = [(path, [path]) for path in single]
    groups += [(path if len(runs) > 1 else runs[0], runs) for path, runs in seeds.items()]
    short = [_label(path.name, runs) for path, runs in groups]
    return {
        _label(str(path), runs) if short.count(label) > 1 else label: runs
        for label, (path, runs) in zip(short, groups, strict=True)
    }


def _label(name: str, runs: Sequence[Path]) -> str:
    return f"{name}, {len(runs)} seeds" if len(runs) > 1 else name


def _seeds_of(name: str, log_dir: str | None) -> list[Path]:
    """The runs NAME-seed1, NAME-seed2, ..."""
    folder = Path(name).parent if "/" in name else runs_folder(log_dir)
    runs = [path for path, _ in find_runs(folder)]
    return [path for path in runs if (match := _SEED.fullmatch(path.name)) and match[1] == Path(name).name]


def draw(groups: Mapping[str, Sequence[Path]], out: Path, tag: str = "") -> None:
    """Draw a line for each label, and a band from the least to the greatest where it has several runs."""
    try:
        from matplotlib.figure import Figure  # late, and only here: few commands draw
    except ImportError:
        raise ConfigError(f"pictures need matplotlib, which is not installed: {to_install('matplotlib')}") from None
    with busy("reading the curves"):
        read = {label: [read_curves(path / "log" / "tensorboard") for path in paths] for label, paths in groups.items()}
    ylabel, tags = _chosen([curves for group in read.values() for curves in group], tag)
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot(xlabel="env steps", ylabel=ylabel)
    for number, (label, runs) in enumerate(read.items()):
        name = " " * label.startswith("_") + label.replace("$", r"\$")  # "_" hides it in a legend, "$" begins a formula
        for one, (what, style) in tags.items():
            there = [curves[one] for curves in runs if one in curves]
            some = f", {len(there)} of them" if len(there) < len(runs) else ""
            _draw_line(axes, there, color=f"C{number}", label=f"{name}{some}{what}", **style)
        if not any(one in curves for curves in runs for one in tags):
            say(f"{label}: is not in the picture, since it has no curve {' or '.join(tags)}", to_stderr=True)
    axes.grid(alpha=0.3)
    axes.legend()
    with writing(out):
        figure.savefig(out)


def _chosen(runs: Sequence[Mapping[str, Curve]], tag: str) -> tuple[str, dict[str, tuple[str, dict[str, Any]]]]:
    """The label of the axis, and of each curve to draw its words and its style."""
    if tag:
        known = sorted({one for curves in runs for one in curves})
        if tag not in known:
            near = did_you_mean(tag, known)
            raise ConfigError(
                f"--tag {tag}: these runs have no such curve{near}; they have {', '.join(known) or 'none'}"
            )
        return tag, {tag: ("", {"linewidth": 1.5})}
    there = {one for curves in runs for one in curves}
    what = next((what for what, pair in _SCORES.items() if there & set(pair)), None)
    if what is None:
        raise ConfigError("these runs have no curve of a score or a return yet")
    training, evaluation = _SCORES[what]
    return f"mean {what} of an episode", {
        training: (": training", {"linewidth": 1, "alpha": 0.5}),
        evaluation: (": evaluation", {"linewidth": 2}),
    }


def _draw_line(axes: Any, curves: Sequence[Curve], **style: Any) -> None:
    if curves:
        steps, mean, least, greatest = band(curves)
        axes.plot(steps, mean, marker="." if len(steps) < _FEW_POINTS else "", **style)
        axes.fill_between(steps, least, greatest, color=style["color"], alpha=0.15, linewidth=0)


def band(curves: Sequence[Curve]) -> tuple[Any, Any, Any, Any]:
    """Steps, and there the mean, the least and the greatest of several curves, from the last begin to the first end."""
    begin, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    steps = np.unique([step for one, _ in curves for step in one if begin <= step <= end])
    values = np.array([np.interp(steps, *curve) for curve in curves])
    return steps, values.mean(0), values.min(0), values.max(0)
