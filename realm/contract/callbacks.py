"""What the functions of a package's `callbacks.py` get, and some that are ready to use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from realm.contract.messages import Evaluation, curve_name
from realm.contract.versions import Version
from realm.errors import to_install


@dataclass(frozen=True)
class Progress:
    """How far a run has come: the argument of `on_start`, `on_update`, `on_evaluation` and `on_end`.

    run_dir     the run's folder, an absolute path
    env_steps   of the run; in on_evaluation those that the evaluated model was trained on
    version     of the weights at the learner's last report, 0.0 before; in on_evaluation of the evaluated model
    metrics     curve -> value, as TensorBoard gets it: means since the last report, levels and rates; in on_evaluation
                `evaluation/<name>`; in on_start empty
    evaluation  the newest one of this session, None before
    reason      in on_end why the run has ended, else ""
    """

    run_dir: Path
    env_steps: int
    version: Version
    metrics: Mapping[str, float]
    evaluation: Evaluation | None
    reason: str = ""


Hook = Callable[[Progress], str | None]


def stop_at_score(score: float, curve: str = "") -> Hook:
    """Make a hook that stops the run as soon as the newest evaluation has this score.

    curve: stop by this curve instead, such as `episode/return`, whose value is the mean of one report.
    """

    def stop(progress: Progress) -> str | None:
        name, value = curve, progress.metrics.get(curve)
        if not curve and progress.evaluation:
            name, value = f"evaluation/{curve_name(progress.evaluation.statistic)}", progress.evaluation.score
        return f"{name} = {value:g} has reached {score:g}" if value is not None and value >= score else None

    return stop


def film_best(file: str = "best.gif") -> Hook:
    """Make an `on_end` that films an episode of the best model, of the newest where none was evaluated: `realm record`
    in a process of its own, which a run does not wait for longer than `stop_timeout_s` and which then goes on.

    file: in the run's folder, .gif, .html or .mp4. Raises RuntimeError with what the command said if it failed.
    """

    def film(progress: Progress) -> None:
        out = progress.run_dir / file
        record = [sys.executable, "-m", "realm", "record", str(progress.run_dir), "--out", str(out), "--id"]
        for model in ("best", "latest"):
            done = subprocess.run([*record, model], capture_output=True, start_new_session=True)
            if done.returncode == 0:
                return
        raise RuntimeError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])

    return film


def wandb_logger(**options: Any) -> tuple[Hook, Hook, Hook, Hook]:
    """Make `on_start`, `on_update`, `on_evaluation` and `on_end`, which send every curve to Weights & Biases.

    options: go to `wandb.init`. Raises ModuleNotFoundError.
    """
    wandb = _imported("wandb")

    def start(progress: Progress) -> None:
        name = progress.run_dir.name
        run = wandb.init(**{"project": "realm", "name": name, "id": name, "resume": "allow", **options})
        run.define_metric("*", step_metric="env_steps")
        wandb.save(str(progress.run_dir / "config.toml"), base_path=str(progress.run_dir), policy="now")

    def log(progress: Progress) -> None:
        wandb.log({**progress.metrics, "env_steps": progress.env_steps})

    return start, log, log, lambda progress: wandb.finish()


def mlflow_logger(**options: Any) -> tuple[Hook, Hook, Hook, Hook]:
    """The same for MLflow, which MLFLOW_TRACKING_URI finds. options: go to `mlflow.start_run`."""
    mlflow = _imported("mlflow")

    def start(progress: Progress) -> None:
        mlflow.start_run(**{"run_name": progress.run_dir.name, **options})
        mlflow.log_artifact(str(progress.run_dir / "config.toml"))

    def log(progress: Progress) -> None:
        mlflow.log_metrics(dict(progress.metrics), step=progress.env_steps)

    return start, log, log, lambda progress: mlflow.end_run()


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(f"{name} is not installed; call `{to_install(name)}`", name=name) from error
