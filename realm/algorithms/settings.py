"""Every hyper-parameter of the algorithms, with its default and its bounds.

`Settings` are those of PPO (`ppo.py`); `TD3Settings`, `SACSettings` and `QSettings` those of the others. A user's
`Config` (`<algo>/config.py`) inherits from one of them, adds its own fields and gives others their defaults. Workers
make it, too, so there is no torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

CHOICES: dict[str, tuple[Any, ...]] = {
    "value_source": ("actor", "learner"),
    "normalise_advantage": ("none", "std", "mean_std"),
    "normalise_over": ("batch", "minibatch"),
    "minibatches": ("permuted", "drawn"),
    "ratio": ("joint", "each"),
}
PRECISIONS = ("fp32", "bf16", "auto")


def between(start: float, end: float, steps: int, now: int) -> float:
    """A value that goes from `start` at step 0 to `end` at `steps` and stays there; with 0 steps it is `start`."""
    return start + (end - start) * (min(1.0, now / steps) if steps else 0.0)


class Checked:
    """The checks of a configuration's fields."""

    table: ClassVar[str] = ""
    """Of the TOML file: a value that cannot work is refused with one sentence that begins with `<table>.<field>`."""

    def __post_init__(self) -> None:
        """Where a chain of checks ends."""

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


@dataclass(frozen=True)
class Schedule:
    """The settings that change during training, at one update."""

    lr: float
    entropy_coef: float
    gamma: float


@dataclass(frozen=True)
class Settings(Checked):
    table: ClassVar[str] = "ppo"
    advantages: ClassVar[tuple[str, ...]] = ("gae", "vtrace", "delta", "returns")
    """What `advantage` may be; one that allows "q" has a critic with a value of each action."""

    # returns
    gamma_start: float = 0.99  # discount of a step, at the first step ...
    gamma_end: float = 0.99  # ... and at total_env_steps; 1 - gamma falls geometrically between
    advantage: str = "vtrace"  # estimates advantages and targets; or "gae", "delta", "returns", in realm.zoo.ppo "q"
    lam: float = 0.8  # lambda of "gae" and "vtrace": 0 trusts the critic, 1 the sampled return
    estimate_each_pass: bool = False  # estimate both again before each further pass, by the critic as it is then
    value_source: str = "learner"  # values in these: of the "actor" as it acted, or of the "learner" before its update

    # running moments, in the model's `observations` and `returns` (`normalise.py`)
    normalise_obs: bool = False  # the network sees floats less their mean, in standard deviations
    normalise_images: bool = False  # and each pixel of an image likewise, in the deviations of that pixel
    normalise_returns: bool = False  # the critic estimates returns less their mean, in standard deviations

    # the objective
    clip: float = 0.2  # PPO's clip range of the probability ratio
    ratio: str = "joint"  # of the probabilities of an action of several numbers: of all ("joint"), or one of "each"
    decoupled: bool = False  # clip around the policy at the start of the update instead of the one that acted
    behaviour_weight_clip: float = 5.0  # decoupled: bound of the weight of a sample from an older policy
    normalise_advantage: str = "mean_std"  # "none", "std" (divide only) or "mean_std" ...
    normalise_over: str = "batch"  # ... over the "batch" or each "minibatch"
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
    minibatches: str = "permuted"  # a pass takes each row once ("permuted"), or as many "drawn" with replacement
    kl_stop: float = 0.0  # no further pass once the policy has moved this far from the one that acted; 0: all passes
    kl_target: float = 0.0  # lr_start is scaled so that an update moves the policy about so far; 0: see lr_end
    max_grad_norm: float = 0.5  # gradients longer than this, of policy or critic, are scaled down to it

    # "delta" is the error of one step, GAE with lambda 0; "returns" are discounted rewards minus the value, lambda 1.
    # "q": the critic has a value of each action; the advantage is that of the action taken less the policy's mean of
    # them. Targets are of one step and the policy as it is, so actions of older ones serve, too: it alone may be
    # trained off-policy. `kl_stop` and `kl_target` count from the policy that acted, so they stop that early.
    #
    # V-trace estimates for the policy before the update what an older one has played, so a lag of some updates costs
    # little. Its targets are corrections of the critic being trained, so it takes the learner's values: those of an
    # older critic would bring the lag back. Its advantages are weighted by the ratio of the two policies already; so
    # the loss clips around the policy before the update, and `decoupled` would weigh a sample twice.

    def __post_init__(self) -> None:
        self.check_choices({"advantage": self.advantages, **CHOICES})
        vtrace = self.advantage == "vtrace"
        self.check("value_source", not vtrace or self.value_source == "learner", "'learner' if advantage is 'vtrace'")
        self.check(
            "estimate_each_pass",
            not self.estimate_each_pass or self.value_source == "learner",
            "false if value_source is 'actor'",
        )
        of_learner = self.value_source == "learner"
        self.check("normalise_returns", not self.normalise_returns or of_learner, "false if value_source is 'actor'")
        self.check("decoupled", not vtrace or not self.decoupled, "false if advantage is 'vtrace'")
        alone = self.ratio == "each" and (vtrace or self.decoupled)
        self.check("ratio", not alone, "'joint' if advantage is 'vtrace' or decoupled is true")
        self.check_least(("total_env_steps", "epochs", "minibatch_size"), 1)
        self.check_share(("gamma_start", "gamma_end", "lam"))
        ends = (self.gamma_start == 1.0) == (self.gamma_end == 1.0)
        self.check("gamma_end", ends, "1 where gamma_start is 1 and nowhere else: between, 1 - gamma is multiplied")
        self.check_positive(("clip", "behaviour_weight_clip", "lr_start", "adam_eps", "max_grad_norm"))
        self.check_least(("kl_stop", "kl_target", "lr_end", "entropy_start", "entropy_end", "vf_coef", "value_clip"), 0)

    @property
    def normalises(self) -> bool:
        """Whether the network has moments of observations."""
        return self.normalise_obs or self.normalise_images

    @property
    def gamma(self) -> float:
        """That of packages which give each step a discount of its own, which no schedule changes."""
        return self.gamma_start

    def schedule(self, env_steps: int) -> Schedule:
        """Interpolate the settings `*_start` and `*_end` after so many env steps."""
        until = self.total_env_steps, env_steps
        progress = between(0.0, 1.0, *until)
        return Schedule(
            lr=self.lr_start if self.kl_target else between(self.lr_start, self.lr_end, *until),
            entropy_coef=between(self.entropy_start, self.entropy_end, *until),
            gamma=1.0 - (1.0 - self.gamma_start) ** (1.0 - progress) * (1.0 - self.gamma_end) ** progress,
        )

    def lr_scale(self, scale: float, kl: float) -> float:
        """The scale of the learning rate after an update that has moved the policy by `kl`, as in rl_games."""
        if self.kl_target / 2 <= kl <= 2 * self.kl_target:
            return scale
        return min(1.5 * scale, 100.0) if kl < self.kl_target else max(scale / 1.5, 0.01)


@dataclass(frozen=True)
class EncoderSettings(Checked):
    """Of the encoder that all networks begin with (`networks.py`)."""

    hidden: int = 64  # width of the two hidden layers; on a shared trunk there is one, and with images there none
    frames: int = 1  # observations that the network sees at once, the newest last
    channels: tuple[int, ...] = ()  # of the convolutions on an image, three at most; empty: 32, 64 and 64
    precision: str = "fp32"  # of an image's gradients: "fp32", "bf16", or "auto": bf16 if the machine is fast with it

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("hidden", "frames"), 1)
        self.check("channels", len(self.channels) < 4 and min(self.channels, default=1) > 0, "up to 3 numbers from 1")
        self.check_choices({"precision": PRECISIONS})


@dataclass(frozen=True)
class NetworkSettings(EncoderSettings, Settings):
    """Those of PPO, and what its network is made of (`actor_critic.py`, or with a memory `recurrent.py`)."""

    advantages: ClassVar[tuple[str, ...]] = (*Settings.advantages, "q")

    activation: str = "tanh"  # between them: "tanh" or "relu"
    orthogonal: bool = True  # first weights: orthogonal, with small ones for the actions; or as torch makes them
    log_std: float = 0.0  # of continuous actions at first: the log of the standard deviation, in halves of the range
    bounded_mean: bool = False  # of continuous actions: means stay in the range, by tanh
    memory: str = "none"  # "gru" or "attention": policy and critic share one, which an episode begins without
    memory_steps: int = 32  # of "attention": how many steps it looks back ...
    memory_layers: int = 1  # ... and how often

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(("memory_steps", "memory_layers"), 1)
        self.check("log_std", abs(self.log_std) <= 10, "from -10 to 10")
        with_memory = {"channels": (), "frames": 1, "activation": "tanh", "precision": "fp32", "orthogonal": True}
        for name, usual in with_memory.items():
            self.check(name, self.memory == "none" or getattr(self, name) == usual, f"{usual!r} with a memory")
        self.check_choices({"activation": ("tanh", "relu"), "memory": ("none", "gru", "attention")})
        self.check("hidden", self.memory != "attention" or self.hidden % 4 == 0, "a multiple of 4 with attention")
        self.check("value_source", self.value_source == "learner", "'learner', since the critic does not act")
        self.check("advantage", self.advantage != "q" or self.memory == "none", "another than 'q' with a memory")


@dataclass(frozen=True)
class OffPolicySettings(Checked):
    """What the off-policy algorithms share."""

    gamma: float = 0.99  # discount of a step
    minibatch_size: int = 256  # rows of one gradient step; a draw is cut into parts of this size
    lr: float = 3e-4  # learning rate, of every network
    lr_end: float = 0.0  # what it becomes by lr_steps, linear between
    lr_steps: int = 0  # env steps until lr_end; 0: the learning rate stays
    beta_start: float = 0.4  # how far a prioritised draw is corrected, at the first step ...
    beta_steps: int = 100_000  # ... and fully from here on, linear between (arXiv:1511.05952)
    best_by: tuple[str, ...] = ()  # statistics of an evaluation that choose the best model before the score does

    def __post_init__(self) -> None:
        self.check_positive(("lr",))
        self.check_least(("lr_end", "lr_steps"), 0)
        self.check_least(("minibatch_size", "beta_steps"), 1)
        self.check_share(("gamma", "beta_start"))

    def lr_at(self, env_steps: int) -> float:
        return between(self.lr, self.lr_end, self.lr_steps, env_steps)

    def beta_at(self, env_steps: int) -> float:
        return between(self.beta_start, 1.0, self.beta_steps, env_steps)


@dataclass(frozen=True)
class TD3Settings(OffPolicySettings):
    """Of `td3.py`; the paper's values where it has them (arXiv:1802.09477)."""

    table: ClassVar[str] = "td3"
    tau: float = 0.005  # how far the targets move in a step
    policy_delay: int = 2  # steps of the critics for one of the actor and the targets
    explore_noise: float = 0.1  # standard deviation of exploration, in halves of the action's range
    target_noise: float = 0.2  # of the noise on the target's action, likewise ...
    target_noise_clip: float = 0.5  # ... and its bound
    random_steps: int = 10_000  # env steps with uniform actions at first

    def __post_init__(self) -> None:
        self.check_least(("policy_delay",), 1)
        super().__post_init__()
        self.check_share(("tau",))
        self.check_least(("explore_noise", "target_noise", "target_noise_clip", "random_steps"), 0)


@dataclass(frozen=True)
class SACSettings(OffPolicySettings):
    """Of `sac.py`; the values of arXiv:1812.05905."""

    table: ClassVar[str] = "sac"
    tau: float = 0.005  # how far the targets move in a step
    temperature: float = 0.0  # weight of the entropy; 0: learned
    entropy_target: float = 0.0  # of the learned temperature, in nats; 0: minus the number of action dimensions
    random_steps: int = 10_000  # env steps with uniform actions at first

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_share(("tau",))
        self.check_least(("temperature", "random_steps"), 0)


@dataclass(frozen=True)
class QSettings(OffPolicySettings):
    """Of `q_learning.py`."""

    table: ClassVar[str] = "q_learning"
    n_step: int = 1  # rewards of a row
    minibatch_size: int = 128
    lr: float = 2.5e-4
    double: bool = True  # the network chooses the next action, and the target rates it (arXiv:1509.06461)
    target_every: int = 500  # gradient steps after which the target becomes the network
    huber: float = 1.0  # errors above this count linearly; 0: all squared
    max_grad_norm: float = 10.0  # longer gradients are scaled down to it; 0: none are
    epsilon_start: float = 1.0  # share of random actions at the first env step ...
    epsilon_end: float = 0.05  # ... and from epsilon_steps on, linear between
    epsilon_steps: int = 10_000  # env steps until epsilon_end

    def __post_init__(self) -> None:
        self.check_least(("n_step", "target_every", "epsilon_steps"), 1)
        super().__post_init__()
        self.check_share(("epsilon_start", "epsilon_end"))
        self.check_least(("huber", "max_grad_norm"), 0)
