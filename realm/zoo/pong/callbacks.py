"""Ends a run whose evaluation has reached `stop_at`."""

import re

from realm.contract import Progress, stop_at_score
from realm.zoo.pong.config import Config


def on_evaluation(progress: Progress) -> str | None:
    """The run's own file says where it stops if its configuration did."""
    told = re.search(r"^stop_at = (\S+)", (progress.run_dir / "config.toml").read_text("utf-8"), re.MULTILINE)
    return stop_at_score(float(told[1]) if told else Config.stop_at)(progress)
