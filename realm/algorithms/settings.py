"""Every hyper-parameter of PPO (`realm/algorithms/ppo.py`), with its default and its bounds.

A user's `Config` (`<algo>/config.py`) inherits from `Settings`, adds its own fields and gives others their defaults.
Workers make it, too, so there is no torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

CHOICES: dict[str, tuple[Any, ...]] = {
    "advantage": ("gae", "vtrace"),
    "value_source": ("actor", "learner"),
    "normalise_advantage": ("none", "std", "mean_std"),
}


@dataclass(frozen=True)
class Settings:
    table: ClassVar[str] = "ppo"
    """Of the TOML file: a value that cannot work is refused with one sentence that begins with `<table>.<field>`."""

    # returns
    gamma_start: float = 0.99  # discount of a step, at the first step ...
    gamma_end: float = 0.99  # ... and at total_env_steps; 1 - gamma falls geometrically between
    advantage: str = "vtrace"  # how advantages and the critic's targets are estimated: "gae" or "vtrace"; see below
    lam: float = 0.8  # lambda of either: 0 trusts the critic, 1 the sampled return
    value_source: str = "learner"  # values in these: of the "actor" as it acted, or of the "learner" before its update

    # the objective
    clip: float = 0.2  # PPO's clip range of the probability ratio
    decoupled: bool = False  # clip around the policy at the start of the update instead of the one that acted
    behaviour_weight_clip: float = 5.0  # decoupled: bound of the weight of a sample from an older policy
    normalise_advantage: str = "mean_std"  # over the batch: "none", "std" (divide only) or "mean_std"
    vf_coef: float = 0.5  # weight of the value loss
    value_clip: float = 0.0  # keep a new value this near to the old one in the value loss; 0 does not clip
    entropy_start: float = 0.01  # weight of the entropy bonus at the first step ...
    entropy_end: float = 0.0  # ... and at total_env_steps, linear between
    shared_trunk: bool = False  # policy and critic share weights, so a gradient step is one of both

    # the optimizer (Adam)
    total_env_steps: int = 1_000_000  # horizon of the schedules; training may go on after it with the end values
    lr_start: float = 1e-3  # learning rate at the first step ...
    lr_end: float = 0.0  # ... and at total_env_steps, linear between
    adam_eps: float = 1e-5  # Adam's epsilon
    epochs: int = 2  # passes over a batch in one update
    minibatch_size: int = 1024  # rows of one gradient step; a batch is cut into equal parts of about this size
    max_grad_norm: float = 0.5  # gradients longer than this, of policy or critic, are scaled down to it

    # V-trace estimates for the policy before the update what an older one has played, so a lag of some updates costs
    # little. Its targets are corrections of the critic being trained, so it takes the learner's values: those of an
    # older critic would bring the lag back. Its advantages are weighted by the ratio of the two policies already; so
    # the loss clips around the policy before the update, and `decoupled` would weigh a sample twice.

    def __post_init__(self) -> None:
        self.check_choices(CHOICES)
        vtrace = self.advantage == "vtrace"
        self.check("value_source", not vtrace or self.value_source == "learner", "'learner' if advantage is 'vtrace'")
        self.check("decoupled", not vtrace or not self.decoupled, "false if advantage is 'vtrace'")
        self.check_least(("total_env_steps", "epochs", "minibatch_size"), 1)
        self.check_share(("gamma_start", "gamma_end", "lam"))
        self.check_positive(("clip", "behaviour_weight_clip", "lr_start", "adam_eps", "max_grad_norm"))
        self.check_least(("lr_end", "entropy_start", "entropy_end", "vf_coef", "value_clip"), 0)

    def check(self, name: str, ok: bool, must_be: str) -> None:
        """Raise ValueError, one sentence, unless `ok`."""
        if not ok:
            raise ValueError(f"{self.table}.{name} is {getattr(self, name)!r}, it must be {must_be}")

    def check_choices(self, choices: Mapping[str, tuple[Any, ...]]) -> None:
        for name, allowed in choices.items():
            self.check(name, getattr(self, name) in allowed, "one of " + ", ".join(map(repr, allowed)))

    def check_least(self, names: Iterable[str], least: int) -> None:
        for name in names:
            self.check(name, getattr(self, name) >= least, f"at least {least}" if least else "0 or more")

    def check_share(self, names: Iterable[str]) -> None:
        for name in names:
            self.check(name, 0.0 <= getattr(self, name) <= 1.0, "from 0 to 1")

    def check_positive(self, names: Iterable[str]) -> None:
        for name in names:
            self.check(name, getattr(self, name) > 0.0, "above 0")
