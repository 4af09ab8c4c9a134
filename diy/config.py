"""Every hyper-parameter of this agent, with its default; made once at start and passed to all user code.

The framework overrides fields from the table `[diy]` of the TOML file and from `--set diy.lr=...`. This file refuses an
impossible value with one sentence. "Points" are points of the game's score: a treasure is 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    # features and network
    features: str = "small"  # "small": 549 numbers, for two MLPs; "reference": the published image, for two conv trunks
    position: bool = True  # small features: the hero's position (130 numbers); useful on one map only
    tours: bool = False  # small features: the shortest tour on foot over all treasures left (33 numbers); see below
    hidden: int = 128  # width of the two hidden layers of each small MLP
    shared_trunk: bool = False  # small features: policy and critic share one MLP instead of one each
    precision: str = "auto"  # of the hidden layers: "fp32", "bf16" (autocast), or "auto": bf16 if supported

    # the reward, in points
    reward: str = "small"  # "small": the terms below; "reference": the published reward
    reward_scale: float = 0.1  # multiplies points, so that returns are near 100
    treasure_points: float = 0.0  # for a treasure
    end_points: float = 50.0  # for reaching the end
    missed_points: float = 200.0  # subtracted at the end for each treasure not collected
    step_points: float = 2.8  # subtracted each step: what a step in the open earns by `way_points`
    way_points: float = 2.0  # for each cell that the shortest tour over all treasures left to the end gets shorter
    flash_share: float = 0.5  # weight of that tour with one flash, if ready, against the tour on foot; see below

    # returns
    chunk_length: int = 128  # T, steps of one environment in a sample
    gamma_start: float = 0.95  # discount at the first step ...
    gamma_end: float = 0.995  # ... and at total_env_steps; 1 - gamma falls geometrically between
    advantage: str = "vtrace"  # estimator of advantages and value targets: "gae" or "vtrace"; see below
    lam: float = 0.8  # lambda of either: 0 trusts the critic, 1 the sampled return
    value_source: str = "learner"  # values for them: the "actor"'s while acting, or the "learner"'s before its update

    # the objective
    clip: float = 0.2  # PPO's clip range of the probability ratio
    decoupled: bool = False  # clip around the policy at the start of the update instead of the acting policy
    behaviour_weight_clip: float = 5.0  # decoupled: upper bound of the weight of a sample from an older policy
    normalise_advantage: str = "mean_std"  # over the batch: "none", "std" (divide only) or "mean_std"
    vf_coef: float = 0.5  # weight of the value loss
    value_clip: float = 0.0  # clip range of a new value around the old one in the value loss; 0 does not clip
    entropy_start: float = 0.01  # weight of the entropy bonus at the first step ...
    entropy_end: float = 0.0  # ... and at total_env_steps, linear between

    # the optimizer (Adam)
    total_env_steps: int = 18_000_000  # horizon of the schedules; later training keeps the end values
    lr_start: float = 2e-3  # learning rate at the first step ...
    lr_end: float = 5e-5  # ... and at total_env_steps, linear between
    adam_eps: float = 1e-5  # Adam's epsilon
    epochs: int = 2  # passes over a batch in one update
    minibatch_size: int = 1024  # rows of one gradient step; a batch is split into equal minibatches of about this size
    max_grad_norm: float = 0.5  # policy and critic gradients with a larger norm are scaled down to it

    # `tours` adds a planner to the features: it computes the best order of the treasures for walking without flash and
    # buff, so the agent need not learn it. Unseen maps need it; the default does not use it.
    #
    # V-trace corrects the data of an older policy towards the policy before the update, so a lag of a few updates costs
    # little. Its targets correct the current critic, so it needs the learner's values: an older critic's values would
    # bring the lag back. Its advantages already contain the ratio of the two policies, so the loss clips around the
    # policy before the update, and `decoupled` would weight a sample twice.
    #
    # With `flash_share` 1 a flash in the wrong place costs so much that some agents stop flashing before they learn the
    # right place.

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            self._check(name, getattr(self, name) in allowed, "one of " + ", ".join(map(repr, allowed)))
        small = self.features == "small"
        self._check("position", self.position or small, "true unless features is 'small'")
        self._check("tours", not self.tours or small, "false unless features is 'small'")
        self._check("shared_trunk", not self.shared_trunk or small, "false unless features is 'small'")
        vtrace = self.advantage == "vtrace"
        self._check("value_source", not vtrace or self.value_source == "learner", "'learner' if advantage is 'vtrace'")
        self._check("decoupled", not vtrace or not self.decoupled, "false if advantage is 'vtrace'")
        for name in ("hidden", "chunk_length", "total_env_steps", "epochs", "minibatch_size"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("gamma_start", "gamma_end", "lam", "flash_share"):
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "from 0 to 1")
        for name in ("reward_scale", "clip", "behaviour_weight_clip", "lr_start", "adam_eps", "max_grad_norm"):
            self._check(name, getattr(self, name) > 0.0, "above 0")
        for name in ("treasure_points", "end_points", "missed_points", "step_points", "way_points"):
            self._check(name, getattr(self, name) >= 0.0, "0 or more")
        for name in ("lr_end", "entropy_start", "entropy_end", "vf_coef", "value_clip"):
            self._check(name, getattr(self, name) >= 0.0, "0 or more")

    def _check(self, name: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(f"diy.{name} is {getattr(self, name)!r}, it must be {expected}")


CHOICES: dict[str, tuple[Any, ...]] = {
    "features": ("small", "reference"),
    "precision": ("auto", "fp32", "bf16"),
    "reward": ("small", "reference"),
    "advantage": ("gae", "vtrace"),
    "value_source": ("actor", "learner"),
    "normalise_advantage": ("none", "std", "mean_std"),
}


def preferred(cores: int, device: str, workers: int) -> dict[str, Any]:
    """Values for keys of [app] that are "auto", measured with this network on the realm (docs/performance.md).

    With fewer environments per update the agent learns in fewer steps. But each update has fixed costs, which more
    cores do not lower.
    """
    if device == "cpu" and cores <= 2:
        return {"aisrv_connect_to_kaiwu_env_count": max(8, 64 // workers), "max_version_lag": "part"}
    return {"aisrv_connect_to_kaiwu_env_count": max(8, 128 // workers)}
