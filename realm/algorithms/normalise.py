"""What a network learns of its data besides weights: running mean and variance, of observations and of returns.

They are buffers of the model, so they have a version and travel, are saved, resumed and exported with the weights.
`learn` of an agent updates them from each batch before it uses the batch; whoever acts reads them only.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from realm.algorithms.batch import Batch
from realm.algorithms.group import ALONE, Group
from realm.algorithms.networks import Obs, is_image
from realm.algorithms.settings import Settings
from realm.contract import Chunk, Fields
from realm.errors import UserCodeError

if TYPE_CHECKING:
    from realm.algorithms.losses import Network

_EPS = 1e-12  # far below the variance of what is not constant
_MOST_DEVIATIONS = 10.0


class Moments(nn.Module):
    """Mean and variance of all rows so far, each number of a row by itself; float64, since 1e6 + noise has to fit. What
    is uint8 fits into float32, which takes a quarter of the time.

    Rows are merged by counts (Chan, Golub and LeVeque 1979): exact for batches of any size.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def learn(self, rows: Tensor, group: Group = ALONE) -> None:
        """rows: [n, *shape], of this rank."""
        n, mean, variance = group.moments(rows.to(self.mean.device, _kind(rows)))
        if n == 0:
            return
        total = self.count + n
        ahead = mean - self.mean
        between = ahead**2 * (self.count * n / total)
        self.variance.copy_((self.variance * self.count + variance * n + between) / total)
        self.mean += ahead * (n / total)
        self.count.copy_(total)

    @property
    def deviation(self) -> Tensor:
        """f64 [*shape], above 0 also where all rows are the same."""
        return (self.variance + _EPS).sqrt()

    def scaled(self, x: Tensor) -> Tensor:
        """x [..., *shape] less the mean, in deviations, f32. Subtracted in float64: float32 keeps no noise on 1e6."""
        kind = _kind(x)
        return ((x.to(kind) - self.mean.to(kind)) / self.deviation.to(kind)).float()

    def unscaled(self, x: Tensor) -> Tensor:
        """What `scaled` made x of, f32."""
        return (x.double() * self.deviation + self.mean).float()


def _kind(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype == torch.uint8 else torch.float64


class Observations(nn.Module):
    """Observations with mean 0 and deviation 1, cut at ten deviations: those of floats with `normalise_obs`, images
    with `normalise_images`, each pixel by itself. Masks and whole numbers stay as they are."""

    def __init__(self, fields: Fields, settings: Settings) -> None:
        super().__init__()
        self.names = sorted(
            name
            for name, field in fields.items()
            if (settings.normalise_obs and field.dtype.startswith("float"))
            or (settings.normalise_images and is_image(field))
        )
        # by number: a name of a module may hold no dot
        self.moments = nn.ModuleList(Moments(fields[name].shape) for name in self.names)

    def of_names(self) -> list[tuple[str, Moments]]:
        return [(name, cast(Moments, moments)) for name, moments in zip(self.names, self.moments, strict=True)]

    def learn(self, obs: Obs, group: Group = ALONE) -> None:
        """obs: name -> [n, ...], of this rank. Raises ValueError that names a number that is not finite; then nothing
        is learned."""
        for name in self.names:
            finite = torch.isfinite(obs[name])
            if not finite.all():
                row, *place = (~finite).nonzero()[0].tolist()
                raise ValueError(f"observation {name}{place} is {obs[name][(row, *place)]}, it must be finite")
        for name, moments in self.of_names():
            moments.learn(obs[name], group)

    def forward(self, obs: Obs) -> Obs:
        """name -> [..., *shape], those that are normalised as f32."""
        seen = dict(obs)
        for name, moments in self.of_names():
            seen[name] = moments.scaled(obs[name]).clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)
        return seen


def add_moments(network: nn.Module, fields: Fields, settings: Settings) -> None:
    """Give a network its `observations` and `returns`, as the settings say."""
    if settings.normalises:
        network.add_module("observations", Observations(fields, settings))
    if settings.normalise_returns:
        network.add_module("returns", Moments())


def check_moments(network: Network, settings: Settings) -> None:
    """Raise UserCodeError if the settings ask for what `add_moments` has not given to the network."""
    for name, asked in {"observations": settings.normalises, "returns": settings.normalise_returns}.items():
        if asked and not hasattr(network, name):
            what = f"to normalise {name}, {type(network).__name__} must have moments of them"
            raise UserCodeError(f"{what}: call realm.algorithms.normalise.add_moments where it is made")


def learn_observations(network: Network, settings: Settings, chunk: Chunk, group: Group = ALONE) -> None:
    """Learn the moments of the valid rows of B chunks, in the network's `observations`, if there are any to learn."""
    if settings.normalises:
        observations = cast(Observations, network.get_submodule("observations"))
        rows = {name: chunk.obs[name][:, :-1][chunk.valid] for name in observations.names}
        observations.learn({name: torch.from_numpy(x) for name, x in rows.items()}, group)


def seen_by(network: Network, settings: Settings, obs: Obs) -> Obs:
    """What actor and critic get of observations name -> [..., *shape]: normalised ones, if the settings say so. It is
    not for the network to do: an update does it once for a batch, not in each gradient step."""
    return cast(Obs, network.get_submodule("observations")(obs)) if settings.normalises else obs


def returns_of(network: Network, settings: Settings) -> Moments | None:
    """With `normalise_returns`: the moments in whose deviations, and less whose mean, the critic estimates returns."""
    return cast(Moments, network.get_submodule("returns")) if settings.normalise_returns else None


def learn_returns(network: Network, settings: Settings, batch: Batch, group: Group) -> None:
    """With `normalise_returns`: learn the moments of the critic's targets of a batch."""
    if moments := returns_of(network, settings):
        moments.learn(batch.target[batch.valid], group)


def normalised_returns(network: Network, settings: Settings, batch: Batch) -> Batch:
    """With `normalise_returns`: the batch with values and targets as the critic estimates them."""
    moments = returns_of(network, settings)
    if moments is None:
        return batch
    return dataclasses.replace(batch, value=moments.scaled(batch.value), target=moments.scaled(batch.target))
