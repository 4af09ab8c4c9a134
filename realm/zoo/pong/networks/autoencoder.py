"""A variational autoencoder next to the policy: what the policy sees must suffice to reconstruct the frame."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from realm.algorithms.batch import Batch
from realm.algorithms.losses import Loss, Outputs
from realm.algorithms.networks import Obs, relu
from realm.zoo.pong.config import Config
from realm.zoo.pong.networks.conv import Conv, pixels
from realm.zoo.pong.networks.heads import Heads, Trunk


class Encoding(Trunk):
    """Features, and mean and log of the variance of the latent, f32 [n, latent] each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.of_latent = config.policy_from == "latent"
        self.conv = Conv(config)
        self.mean, self.log_variance = (nn.Linear(self.conv.width, config.latent) for _ in range(2))
        self.width = config.latent if self.of_latent else self.conv.width

    def forward(self, obs: Obs) -> tuple[Tensor, Obs]:
        features, _ = self.conv(obs)
        mean = self.mean(features)
        more = {"mean": mean, "log_variance": self.log_variance(features)}
        return mean if self.of_latent else features, more


class Autoencoder(Heads):
    def __init__(self, config: Config, actions: int) -> None:
        super().__init__(lambda: Encoding(config), actions, shared=True)
        self.config = config
        self.decoder = nn.Sequential(
            *(nn.Linear(config.latent, Conv.width), relu(), nn.Linear(Conv.width, 32 * 9 * 9), relu()),
            *(nn.Unflatten(1, (32, 9, 9)), nn.ConvTranspose2d(32, 16, 4, 2), relu(), nn.ConvTranspose2d(16, 1, 8, 4)),
        )

    def losses(self) -> Sequence[Loss]:
        """Means over all numbers, or sums over those of an image, and means over images."""
        per_image = self.config.image_loss == "sum"

        def reduced(x: Tensor) -> Tensor:
            return x.flatten(1).sum(1).mean() if per_image else x.mean()

        def reconstruction(minibatch: Batch, outputs: Outputs) -> Tensor:
            mean, log_variance = outputs.more["mean"], outputs.more["log_variance"]
            shown = self.decoder(mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
            return reduced((shown - pixels(minibatch.obs, self.config)).square())

        def divergence(minibatch: Batch, outputs: Outputs) -> Tensor:
            mean, log_variance = outputs.more["mean"], outputs.more["log_variance"]
            return reduced(0.5 * (mean.square() + log_variance.exp() - log_variance - 1))

        return (
            Loss("reconstruction_loss", reconstruction, self.config.reconstruction_coef),
            Loss("divergence_loss", divergence, self.config.divergence_coef),
        )
