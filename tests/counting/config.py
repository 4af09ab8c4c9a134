"""Settings of the counting user: see `feature/definition.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    chunk_length: int = 8
    episode_length: int = 11  # of the shortest environment; others are a little longer, so ends fall everywhere
    learn_s: float = 0.0  # an update takes at least this long
    strict: bool = False  # every batch must hold exactly one version, the current one
    early: bool = True  # learn yields, so weights go out before an update is over, where they may
    once: bool = True  # every chunk must come exactly once
    n_step: int = 0  # draw rows of so many steps, discounted by 0.5; 0: whole chunks
    look_back: int = 0  # observations before a row's own
    ranks: bool = False  # learn returns priorities
    remember: bool = False  # the policy counts its own steps in Spec.state
    nan_from: int = 0  # the weights become NaN in this update and those after it; 0: never
    nan_times: int = 1  # so often
    nan_late: bool = False  # only after the weights went out
    tally: str = ""  # a folder for the names of all chunks, where they were played and where they were trained on
