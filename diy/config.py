"""Every hyper-parameter of this agent, with its default; made once at start and handed to all user code.

The framework overrides fields from the table `[diy]` of the TOML file and from `--set diy.lr=...`; a value that cannot
work is refused here, with one sentence. "Points" are points of the game's score: a treasure is 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    # what the agent sees and is made of
    features: str = "small"  # "small": 549 numbers, for two MLPs; "reference": the published image, for two conv trunks
    position: bool = True  # small features: where on the map the hero is (130 numbers); holds for one map only
    tours: bool = False  # small features: the shortest tour on foot over all treasures left (33 numbers); see below
    hidden: int = 128  # width of the two hidden layers of each small MLP
    shared_trunk: bool = False  # small features: policy and critic on one MLP instead of one each
    precision: str = "auto"  # of the hidden layers: "fp32", "bf16" (autocast), or "auto": bf16 where the machine has it

    # the reward, in points
    reward: str = "small"  # "small": the terms below; "reference": the published reward
    reward_scale: float = 0.1  # points are multiplied by this; returns are near 100 then
    treasure_points: float = 0.0  # for a treasure
    end_points: float = 50.0  # for reaching the end
    missed_points: float = 200.0  # taken off at the end for each treasure left behind
    step_points: float = 2.8  # taken off each step: what a step in the open wins by `way_points`
    way_points: float = 2.0  # for each cell by which the shortest tour over all treasures left to the end gets shorter
    flash_share: float = 0.5  # weight of that tour with one flash on the way, if ready, against that on foot; see below

    # returns
    chunk_length: int = 128  # T, steps of one environment that travel together
    gamma_start: float = 0.95  # discount of a step, at the first step ...
    gamma_end: float = 0.995  # ... and at total_env_steps; 1 - gamma falls geometrically between
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

    # the optimizer (Adam)
    total_env_steps: int = 18_000_000  # horizon of both schedules; training may go on after it with the end values
    lr_start: float = 2e-3  # learning rate at the first step ...
    lr_end: float = 5e-5  # ... and at total_env_steps, linear between
    adam_eps: float = 1e-5  # Adam's epsilon
    epochs: int = 2  # passes over a batch in one update
    minibatch_size: int = 1024  # rows of one gradient step; a batch is cut into equal parts of about this size
    max_grad_norm: float = 0.5  # gradients longer than this, of policy or critic, are scaled down to it

    # `tours` puts a planner into the features: the best order of the treasures, for walking without flash and buff, is
    # worked out and not learned. It makes maps that were never seen playable; the default does without.
    #
    # V-trace estimates for the policy before the update what an older one has played, so a lag of some updates costs
    # little. Its targets are corrections of the critic being trained, so it takes the learner's values: those of an
    # older critic would bring the lag back. Its advantages are weighted by the ratio of the two policies already; so
    # the loss clips around the policy before the update, and `decoupled` would weigh a sample twice.

    # With `flash_share` 1 a flash in a wrong place costs so much that some agents give flashing up before they know the
    # right one.

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

    def _check(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise ValueError(f"diy.{name} is {getattr(self, name)!r}, it must be {allowed}")


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

    The fewer environments play before an update, the fewer steps it takes to learn; but an update has costs of its own,
    which more cores do not lower.
    """
    if device == "cpu" and cores <= 2:
        return {"aisrv_connect_to_kaiwu_env_count": max(8, 64 // workers), "max_version_lag": "part"}
    return {"aisrv_connect_to_kaiwu_env_count": max(8, 128 // workers)}
