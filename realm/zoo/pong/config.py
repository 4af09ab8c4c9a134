"""Hyper-parameters: all of PPO's in `realm/algorithms/settings.py`, and those of Pong's networks. The defaults are the
base of the runs in `conf/pong/`."""

from dataclasses import dataclass
from typing import ClassVar

from realm.algorithms.settings import PRECISIONS, Settings

FEATURES = 256  # numbers that heads see of a frame

CHOICES = {
    "network": ("conv", "autoencoder", "attention", "patches", "transformer"),
    "batch_norm": ("none", "updates", "always"),
    "policy_from": ("features", "latent"),
    "image_loss": ("mean", "sum"),
    "patches": ("pixels", "conv"),
    "where": ("none", "onehot", "learned"),
    "precision": PRECISIONS,
}

_MEMORY = ("memory_width", "memory_steps", "memory_layers", "memory_heads", "memory_attached")
_DECODER = ("latent", "policy_from", "image_loss", "reconstruction_coef", "divergence_coef")
OF_NETWORKS = {
    "frames": ("conv",),
    "batch_norm": ("conv", "autoencoder", "attention", "transformer"),
    **dict.fromkeys(_DECODER, ("autoencoder",)),
    **dict.fromkeys(("past", "positions", "broken_mask", "predict_coef"), ("attention",)),
    **dict.fromkeys(_MEMORY, ("transformer",)),
    **dict.fromkeys(("patches", "where", "widths"), ("patches",)),
}
"""The networks that a setting is for."""


@dataclass(frozen=True)
class Config(Settings):
    table: ClassVar[str] = "pong"
    chunk_length: int = 256  # steps of each environment for an update
    advantage: str = "gae"
    lam: float = 0.95
    entropy_end: float = 0.01
    vf_coef: float = 1.0  # of half the squared error
    total_env_steps: int = 2_500_000
    lr_start: float = 1e-4
    lr_end: float = 1e-4
    adam_eps: float = 1e-8
    epochs: int = 10
    minibatch_size: int = 64
    minibatches: str = "drawn"
    max_grad_norm: float = 1e9  # none is as long: gradients are not cut
    stop_at: float = 20.0  # the run ends with an evaluation of this mean

    network: str = "conv"  # "conv", "autoencoder", "attention", "patches" or "transformer"
    raw_pixels: bool = False  # the network sees numbers from 0 to 255 instead of 0 to 1
    frames: int = 1  # that it sees at once, the newest last
    difference: bool = False  # of two frames it sees the newer minus the older
    precision: str = "fp32"  # of the convolutions before a gradient, but for "patches": as in `EncoderSettings`
    batch_norm: str = "none"  # after each convolution: in "updates" alone, as it should be, or "always"
    layer: str = ""  # a parameter's name: the length of each loss's gradient there is a curve

    # network = "autoencoder"
    latent: int = 10  # numbers that a frame is reconstructed from
    policy_from: str = "features"  # 256 of them, or the means of the "latent"
    image_loss: str = "mean"  # of an image: "mean" or "sum" of the losses of its numbers
    reconstruction_coef: float = 0.0
    divergence_coef: float = 0.0

    # network = "attention"
    past: int = 16  # frames whose features it looks back at
    positions: bool = False  # learned ones
    broken_mask: bool = False  # what is masked, zeros, gets -1e-7 instead of minus infinity, as in the notebook
    predict_coef: float = 0.0  # of the error of the next frame's features, predicted from these and the action

    # network = "patches"
    patches: str = "pixels"  # 49 of 12 x 12 "pixels", or 144 of 7 x 7 numbers that two convolutions make ("conv")
    where: str = "none"  # what tells the place of a patch: "none", "onehot" or "learned"
    widths: tuple[int, ...] = (36,)  # numbers of a patch that each layer of attention keeps

    # network = "transformer": its keys and values are a memory, so minibatches are whole chunks
    memory_width: int = 128
    memory_steps: int = 256  # how far it looks back
    memory_layers: int = 4
    memory_heads: int = 16
    memory_attached: bool = False  # gradients pass through keys and values of the chunk, too

    # the task, in training; evaluations play whole games for their score
    points: bool = False  # a point ends what advantages look at; the game goes on
    episode: bool = False  # a batch ends with the game, or with `points` at the point; needs one environment
    step_reward: float = 0.0  # added to each step
    compressible: float = 0.0  # weight of a reward for actions that a compressor packs well

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("chunk_length", "frames", "latent", "past"), 1)
        self.check_least(("memory_width", "memory_steps", "memory_layers", "memory_heads"), 1)
        self.check_least(("reconstruction_coef", "divergence_coef", "predict_coef"), 0)
        self.check("widths", min(self.widths, default=0) > 0, "numbers from 1")
        self.check_choices(CHOICES)
        whole = self.memory_width % self.memory_heads == 0
        self.check("memory_width", whole, f"a multiple of memory_heads, {self.memory_heads}")
        whole = self.network != "transformer" or self.minibatch_size >= self.chunk_length
        self.check("minibatch_size", whole, f"chunk_length, {self.chunk_length}, or more with a memory: whole chunks")
        self.check("normalise_obs", not self.normalise_obs, "false, since Pong is seen; normalise_images is for frames")
        self.check("raw_pixels", not (self.raw_pixels and self.normalise_images), "false if normalise_images is true")
        norm = self.batch_norm != "none"
        self.check("minibatch_size", not norm or self.minibatch_size > 1, "above 1 with batch_norm")
        for name, networks in OF_NETWORKS.items():
            other = getattr(self, name) == getattr(Config, name) or self.network in networks
            self.check(name, other, f"{getattr(Config, name)!r}, since the network {self.network!r} has no use for it")
        stays = not self.points or self.gamma_end == self.gamma_start
        self.check("gamma_end", stays, f"gamma_start, {self.gamma_start}, with points: theirs does not change")
        cut = self.predict_coef and self.episode and self.points  # the row of a point has no next frame
        self.check("predict_coef", not cut, "0 with episode and points")
        self.check("difference", not self.difference or self.frames == 2, "false unless frames is 2")
        shared = self.shared_trunk or self.network not in ("autoencoder", "attention")
        self.check("shared_trunk", shared, f"true with the network {self.network!r}")
        self.check("value_source", self.value_source == "learner", "'learner', since the critic does not act")
