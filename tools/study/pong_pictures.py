"""What a network of conf/pong/ has learned, as one picture: features of its layers, what it attends to, what it
reconstructs, its latent along a game, and the frame that excites each action most.

    python tools/study/pong_pictures.py train/pong/std_only-1
    python tools/study/pong_pictures.py train/pong/vae_10-1 --id best --steps 500 --out docs/pong-vae_10.png

It plays a game with sampled actions. Rows that the network has no layer for are left out. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.commands.locate import chosen_model
from realm.contract import Array
from realm.errors import ConfigError
from realm.learn.evaluation import Player, load_player, steps_of
from tools import common

ACTIONS = "still", "fire", "up", "down", "up, fire", "down, fire"
MOMENTS = 6  # pictures of a row


class Game(NamedTuple):
    """frames: u8 [steps, 84, 84]; logits: f32 [steps, A]; of_layers: name -> f32 [steps, ...]; scored: steps"""

    frames: Array
    logits: Array
    of_layers: dict[str, Array]
    scored: list[int]


@contextmanager
def watched(model: Any, seen: dict[str, list[Array]]) -> Iterator[None]:
    """What layers give, by the names of these, and the weights of attention of each call in a step."""
    import torch
    from torch import nn

    def keep(name: str) -> Any:
        return lambda module, given, got: seen.setdefault(name, []).append(got[0].float().numpy())

    def attention(query: Any, key: Any, value: Any, mask: Any = None, **_: Any) -> Any:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        seen.setdefault("attention", []).append(weights[0].numpy())
        return weights @ value

    kinds = nn.Conv2d, nn.ConvTranspose2d
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}
    layers |= {name: layer for name, layer in model.named_modules() if name in ("actor_head", "trunk.mean")}
    handles = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    own, nn.functional.scaled_dot_product_attention = nn.functional.scaled_dot_product_attention, attention
    try:
        with torch.inference_mode():
            yield
    finally:
        nn.functional.scaled_dot_product_attention = own
        for handle in handles:
            handle.remove()


def played(player: Player, seed: int, most: int) -> Game:
    """A game, or its first `most` steps."""
    seen: dict[str, list[Array]] = {}
    frames, scored = [], list[int]()
    obs, _ = player.envs.reset(seed=seed)

    def predict(obs: Any, context: Any) -> Any:
        frame = obs["state"][0]
        frames.append(frame[..., 0] if frame.ndim == 3 else frame[-1, ..., 0])
        return player.predict(obs, context)

    with watched(player.agent.model, seen):
        for number, step in enumerate(steps_of(player.envs, predict, obs, 1.0, np.ones(1, np.bool_)), 1):
            scored += [number] if step.reward[0] else []
            if step.ended[0] or number == most:
                break
    logits = np.stack(seen.pop("actor_head")).reshape(len(frames), -1)
    calls = len(seen.get("attention", ())) // len(frames)  # a step: the last layer is shown
    if calls:
        seen["attention"] = seen["attention"][calls - 1 :: calls]
    return Game(np.stack(frames), logits, {name: np.stack(every) for name, every in seen.items()}, scored)


def mosaic(maps: Array) -> Array:
    """Feature maps [n, h, w] side by side, each from its least to its greatest, with a line between."""
    across = int(np.ceil(np.sqrt(2 * len(maps))))
    scaled = [(one - one.min()) / max(float(np.ptp(one)), 1e-6) for one in maps]
    scaled += [np.ones_like(maps[0])] * (-len(maps) % across)
    tiles = [np.pad(one, ((0, 1), (0, 1)), constant_values=1.0) for one in scaled]
    return np.block([tiles[i : i + across] for i in range(0, len(tiles), across)])


def draw(game: Game, model: Any, title: str, out: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import torch
    from matplotlib import pyplot as plt

    centred = game.logits - game.logits.mean(1, keepdims=True)
    best = [int(step) for step in centred.argmax(0)]
    moment = int(np.ptp(game.logits, 1).argmax())
    convolutions = {n: x[moment] for n, x in game.of_layers.items() if x.ndim == 4 and n != "attention"}
    attention, latent = game.of_layers.get("attention"), game.of_layers.get("trunk.mean")
    decoder = getattr(model, "decoder", None)
    kinds = ["actions", *(["layers"] if convolutions else []), *(["attention"] if attention is not None else [])]
    kinds += ["decoder"] * 2 * (decoder is not None) + ["latent"] * (latent is not None)
    figure = plt.figure(figsize=(2 * MOMENTS, 2.4 * len(kinds)), layout="constrained")
    figure.suptitle(title)
    grid, row = figure.add_gridspec(len(kinds), MOMENTS), 0

    def show(place: Any, picture: Array, says: str, **more: Any) -> Any:
        axes = figure.add_subplot(place)
        axes.imshow(picture, cmap="gray", **more)
        axes.set_title(says, fontsize=9)
        axes.axis("off")
        return axes

    for action, step in enumerate(best[:MOMENTS]):
        show(grid[row, action], game.frames[step], f"most for “{ACTIONS[action]}”", vmin=0, vmax=255)
    if convolutions:
        row += 1
        show(grid[row, 0], game.frames[moment], f"step {moment}", vmin=0, vmax=255)
        for column, (name, maps) in zip((1, 3, 5), convolutions.items(), strict=False):
            place = grid[row, column : column + 2] if column < 5 else grid[row, column]
            show(place, mosaic(maps), f"{name}: {len(maps)} features")
    if attention is not None:
        row += 1
        weights = attention.reshape(len(attention), -1, attention.shape[-1]).mean(1)  # of queries and heads
        if (side := round(weights.shape[1] ** 0.5)) ** 2 == weights.shape[1] and len(weights[0]) in (49, 144):
            for column, step in enumerate(np.linspace(len(weights) // 10, len(weights) - 1, MOMENTS).astype(int)):
                axes = show(grid[row, column], game.frames[step], f"step {step}: looked at", vmin=0, vmax=255)
                over = weights[step].reshape(side, side)
                axes.imshow(over, cmap="hot", alpha=0.5, extent=(-0.5, 83.5, 83.5, -0.5))
        else:
            axes = figure.add_subplot(grid[row, :])
            axes.imshow(weights.T, aspect="auto", cmap="viridis")
            axes.set(xlabel="step of the game", ylabel="from oldest to now", title="weights of attention")
    if decoder is not None:
        some = np.linspace(len(game.frames) // 10, len(game.frames) - 1, MOMENTS).astype(int)
        with torch.inference_mode():
            shown = decoder(torch.from_numpy(latent[some])).permute(0, 2, 3, 1)
            shown = model.observations.moments[0].unscaled(shown) / 255 if hasattr(model, "observations") else shown
        for column, step in enumerate(some):
            show(grid[row + 1, column], game.frames[step], f"step {step}", vmin=0, vmax=255)
            show(grid[row + 2, column], shown[column, ..., 0].numpy(), "reconstructed", vmin=0, vmax=1)
        row += 2
    if latent is not None:
        axes = figure.add_subplot(grid[row + 1, :])
        axes.plot(latent, linewidth=0.7)
        for step in game.scored:
            axes.axvline(step, color="gray", linewidth=0.5)
        axes.set(xlabel="step of the game (lines: a point)", title="the latent's means", xlim=(0, len(latent)))
    figure.savefig(out, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run of conf/pong/")
    parser.add_argument("--id", default="latest", help="model: a number of updates, latest or best (default: latest)")
    parser.add_argument("--steps", type=int, default=1000, help="of the game, at most (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="default: RUN/features.png")
    args = parser.parse_args()
    config, folder, number = chosen_model(args.run, args.id, (), None)
    if config.app.algo != "realm.zoo.pong":
        raise ConfigError(f"{args.run}: algo is {config.app.algo!r}; it must be realm.zoo.pong, whose layers are drawn")
    from realm.learn.checkpoint import find

    config, checkpoint = config.evaluated(), find(folder, number)
    out = args.out or Path(args.run) / "features.png"
    common.check_out(out)
    player = load_player(config, checkpoint, 1, args.seed)
    game = played(player, args.seed, args.steps)
    draw(game, player.agent.model, f"{config.app.run_name}, after {checkpoint.env_steps:,} env steps", out)
    print(out)


if __name__ == "__main__":
    common.command_line(main)
