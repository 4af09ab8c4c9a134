"""The hyper-parameters of this agent, with their defaults; made once at start and passed to all user code.

Those of PPO are the fields of `Settings` (`realm/algorithms/settings.py`); here are the defaults that differ. The
framework overrides fields from the table `[diy]` of the TOML file and from `--set diy.lr_start=...`; a value that
cannot work is refused with one sentence. "Points" are points of the game's score: a treasure is 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from realm.algorithms.settings import Settings


@dataclass(frozen=True)
class Config(Settings):
    table: ClassVar[str] = "diy"

    # what the agent sees and is made of
    features: str = "small"  # "small": 549 numbers, for two MLPs; "reference": the published image, for two conv trunks
    position: bool = True  # small features: the hero's position (130 numbers); useful on one map only
    tours: bool = False  # small features: the shortest tour on foot over all treasures left (33 numbers)
    hidden: int = 128  # width of the two hidden layers of each small MLP
    precision: str = "auto"  # of the hidden layers: "fp32", "bf16" (autocast), or "auto": bf16 if supported

    # the reward, in points
    reward: str = "small"  # "small": the terms below; "reference": the published reward
    reward_scale: float = 0.1  # multiplies points, so that returns are near 100
    treasure_points: float = 0.0  # for a treasure
    end_points: float = 50.0  # for reaching the end
    missed_points: float = 200.0  # subtracted at the end for each treasure not collected
    step_points: float = 2.8  # subtracted each step: what a step in the open earns by `way_points`
    way_points: float = 2.0  # for each cell that the shortest tour over all treasures left to the end gets shorter
    flash_share: float = 0.5  # weight of that tour with one flash, if ready, against the tour on foot

    # PPO: all else is in `Settings`, such as clip, epochs, minibatch_size or max_grad_norm
    chunk_length: int = 128  # T, steps of one environment that travel together
    gamma_start: float = 0.95
    gamma_end: float = 0.995
    total_env_steps: int = 18_000_000
    lr_start: float = 2e-3
    lr_end: float = 5e-5

    # `tours` puts a planner into the features: the best order of the treasures, for walking without flash and buff, is
    # computed and not learned. It makes unseen maps playable; the default does without.
    #
    # With `flash_share` 1 a flash in a wrong place costs so much that some agents give flashing up before they know the
    # right one.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choices(CHOICES)
        for name in ("normalise_obs", "normalise_images", "normalise_returns"):
            self.check(name, not getattr(self, name), "false, since features and rewards have their scales already")
        small = self.features == "small"
        self.check("position", self.position or small, "true unless features is 'small'")
        self.check("tours", not self.tours or small, "false unless features is 'small'")
        self.check("shared_trunk", not self.shared_trunk or small, "false unless features is 'small'")
        self.check_least(("hidden", "chunk_length"), 1)
        self.check_share(("flash_share",))
        self.check_positive(("reward_scale",))
        self.check_least(("treasure_points", "end_points", "missed_points", "step_points", "way_points"), 0)


CHOICES: dict[str, tuple[Any, ...]] = {
    "features": ("small", "reference"),
    "precision": ("auto", "fp32", "bf16"),
    "reward": ("small", "reference"),
}


def preferred(cores: int, device: str, workers: int) -> dict[str, Any]:
    """Values for keys of [app] that are "auto", measured with this network on the realm (docs/performance.md).

    The fewer environments play before an update, the fewer steps it takes to learn; but an update has costs of its own,
    which more cores do not lower.
    """
    if device == "cpu" and cores <= 2:
        why = ", as measured on two cores of an AMD EPYC with AVX-512"
        return {"aisrv_connect_to_kaiwu_env_count": max(8, 64 // workers), "max_version_lag": "part", "why": why}
    return {"aisrv_connect_to_kaiwu_env_count": max(8, 128 // workers)}
