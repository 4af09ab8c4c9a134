"""What the functions of a package's `callbacks.py` get, and one that is ready to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from realm.contract.messages import Evaluation
from realm.contract.versions import Version


@dataclass(frozen=True)
class Progress:
    """How far a run has come: the argument of `on_start`, `on_update`, `on_evaluation` and `on_end`.

    run_dir     the run's folder, an absolute path
    env_steps   of the run; in on_evaluation those that the evaluated model was trained on
    version     of the weights at the learner's last report, 0.0 before; in on_evaluation of the evaluated model
    metrics     curve -> value, as TensorBoard gets it: means since the last report, levels and rates; in on_evaluation
                `evaluation/<statistic>`; in on_start empty
    evaluation  the newest one of this session, None before
    reason      in on_end why the run has ended, else ""
    """

    run_dir: Path
    env_steps: int
    version: Version
    metrics: Mapping[str, float]
    evaluation: Evaluation | None
    reason: str = ""


def stop_at_score(score: float, curve: str = "") -> Callable[[Progress], str | None]:
    """Make a hook that stops the run as soon as the newest evaluation has this score.

    curve: stop by this curve instead, such as `episode/r`, whose value is the mean of one report.
    """

    def stop(progress: Progress) -> str | None:
        name, value = curve, progress.metrics.get(curve)
        if not curve and progress.evaluation:
            name, value = f"evaluation/{progress.evaluation.statistic}", progress.evaluation.score
        return f"{name} = {value:g} has reached {score:g}" if value is not None and value >= score else None

    return stop
