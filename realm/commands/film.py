"""`realm record`: an episode of a trained model as a film, for any environment that renders pictures.

A game may have a `record` of its own; that of the realm calls `record` here where a run plays another environment. The
environments are those of the run's package, made with the option render_mode = "rgb_array".
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from realm.apart import apart
from realm.commands.evaluate import title_of
from realm.commands.locate import add_model_options, model_of
from realm.commands.parser import Commands, check_file, writing
from realm.config.load import RunConfig
from realm.contract import Array
from realm.errors import ConfigError, UserCodeError, UserError, one_line, pip_here, place_of, to_install
from realm.learn.evaluation import load_player, steps_of
from realm.rollout.rounds import close
from realm.user import calling, make_envs
from realm.watch.progress import busy, counting
from realm.watch.status import say

FILMS = (".gif", ".html", ".mp4")
_MOST_STEPS = 1000
_MOST_FRAMES_PER_S = 50  # browsers show a GIF no faster; where a second has more steps, some are left out
_PAGE = Path(__file__).with_name("film.html")


class Frame(NamedTuple):
    step: int
    returned: float  # rewards until then, added up
    picture: bytes  # PNG, or WebP for a page: raw ones would fill the memory


def add_commands(commands: Commands) -> None:
    """Add `record`."""
    text = "film an episode of a trained model"
    parser = commands.add_parser("record", help=text, example="realm record my-run --out film.gif")
    add_model_options(parser)
    parser.add_argument("--out", type=Path, default=Path("episode.gif"), help=" or ".join(FILMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-step", type=int, metavar="STEPS", help=f"the end of the film (default {_MOST_STEPS})")
    parser.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")
    parser.set_defaults(run=lambda given: record(given, *model_of(given)))


def record(given: argparse.Namespace, config: RunConfig, folder: Path, model: int | Literal["latest"]) -> int:
    """Film an episode that a checkpoint of `folder` plays. given: the options that `add_commands` adds.

    Raises ConfigError, before the model is loaded, if the environments render no pictures or a package is missing.
    """
    out, most = given.out.absolute(), _MOST_STEPS if given.max_step is None else given.max_step
    ending = out.suffix.lower()
    check_file("--out", given.out, FILMS)
    if most < 1:
        raise ConfigError(f"--max-step {most}: must be a number from 1")
    if ending == ".mp4" and (lacking := [name for name in ("imageio", "imageio_ffmpeg") if find_spec(name) is None]):
        raise ConfigError(f"--out {given.out}: {lacking[0]} is not installed; {to_install('imageio imageio-ffmpeg')}")
    config = replace(config, env={**config.env, "render_mode": "rgb_array"})
    with apart(over=True):
        os.environ.update(SDL_VIDEODRIVER="dummy", SDL_AUDIODRIVER="dummy")  # pygame looks for no screen
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
        _check_pictures(config, given.seed)
        from realm.learn.checkpoint import find  # late: torch

        checkpoint = find(folder, model)
        player = load_player(config, checkpoint, config.env, 1, given.seed)
        fps = float(player.envs.metadata.get("render_fps") or 30)
        every = math.ceil(fps / _MOST_FRAMES_PER_S)
        frames = list[Frame]()
        with counting("recording", most) as show:
            for step, returned, over in _steps(player, float(given.stochastic), given.seed, most):
                if step % every == 0 or over:
                    frames.append(Frame(step, returned, _packed(_picture(config, player.envs), ending)))
                show(step, step)
        close(player.envs)
    name, what = title_of(checkpoint), f"{frames[-1].step:,} steps, return {frames[-1].returned:,.1f}"
    with busy("writing"), writing(given.out):
        write = {".gif": _write_gif, ".html": _write_page, ".mp4": _write_video}[ending]
        write(frames, out, fps / every, f"{name}: {what}")
    say(name)
    say(f"{what}, filmed in {given.out} ({len(frames):,} frames, {out.stat().st_size / 1e6:.1f} MB)")
    return 0


def _steps(player: Any, explore: float, seed: int, most: int) -> Iterator[tuple[int, float, bool]]:
    """Play an episode of at most `most` steps: after the reset and after each step its number, the return until then,
    and whether it was the last."""
    obs, _ = player.envs.reset(seed=seed)
    returned = 0.0
    yield 0, returned, False
    for number, step in enumerate(steps_of(player.envs, player.predict, obs, explore, np.ones(1, np.bool_)), 1):
        returned += float(step.reward[0])
        over = bool(step.ended[0]) or number == most
        yield number, returned, over
        if over:
            return


def _check_pictures(config: RunConfig, seed: int) -> None:
    """Refuse environments that render no pictures, before torch is loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns of what is refused here
        try:
            envs = make_envs(config, 1, seed)
        except UserError as error:
            if "render_mode" in str(error):  # the constructor has no such argument
                raise _no_pictures(config) from error
            raise
        try:
            with calling(config, "reset"):
                envs.reset(seed=seed)
            _picture(config, envs)
        finally:
            close(envs)


def _picture(config: RunConfig, envs: Any) -> Array:
    """What one environment looks like now, u8 [H, W, 3]."""
    try:
        picture = np.asarray(envs.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{_name(config)} needs a package to render: {pip_here(str(error))}") from error
    except NotImplementedError as error:
        raise _no_pictures(config) from error
    except Exception as error:
        text = f"{place_of(error) or _name(config)}: {type(error).__name__}: {one_line(error)}"
        raise UserCodeError(f"{text} (while rendering)") from error
    picture = picture[0] if picture.ndim == 4 else picture  # of a vector environment
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] not in (3, 4):
        raise _no_pictures(config)
    return picture[..., :3]


def _name(config: RunConfig) -> str:
    return str(config.env.get("id", config.app.algo))


def _no_pictures(config: RunConfig) -> ConfigError:
    text = 'with render_mode="rgb_array", its render() must give uint8[height, width, 3]'
    return ConfigError(f"{_name(config)} renders no pictures, so there is nothing to record; {text}")


# ---- files ----


def _packed(picture: Array, ending: str) -> bytes:
    from PIL import Image  # late: most commands draw nothing

    buffer = BytesIO()
    if ending == ".html":
        Image.fromarray(picture).save(buffer, format="WEBP", quality=80)
    else:
        Image.fromarray(picture).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _images(frames: list[Frame]) -> Iterator[Any]:
    from PIL import Image

    return (Image.open(BytesIO(frame.picture)) for frame in frames)


def _write_gif(frames: list[Frame], out: Path, fps: float, title: str) -> None:
    """All share one palette, without dithering, so that only what changes takes room. The last stays for 2 s."""
    from PIL import Image

    some = frames[:: math.ceil(len(frames) / 16)]
    sample = Image.fromarray(np.concatenate([np.asarray(image) for image in _images(some)]))
    palette = sample.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    images = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in _images(frames))
    ends_ms = [10 * round(100 * frame / fps) for frame in range(len(frames))]  # hundredths of a second are its unit
    times_ms = [*np.diff(ends_ms).tolist(), 2000]
    next(images).save(out, format="GIF", save_all=True, append_images=images, duration=times_ms, loop=0, optimize=False)


def _write_page(frames: list[Frame], out: Path, fps: float, title: str) -> None:
    film = {
        "ms": 1000 / fps,
        "frames": [(one.step, round(one.returned, 2), base64.b64encode(one.picture).decode()) for one in frames],
    }
    page = _PAGE.read_text().replace("TITLE", html.escape(title)).replace("FILM", json.dumps(film))
    out.write_text(page, encoding="utf-8")


def _write_video(frames: list[Frame], out: Path, fps: float, title: str) -> None:
    import imageio.v2 as imageio  # late: it may not be installed

    writer: Any
    with imageio.get_writer(out, format="FFMPEG", fps=fps, macro_block_size=1) as writer:
        for image in _images(frames):
            picture = np.asarray(image)
            height, width = (side // 2 * 2 for side in picture.shape[:2])  # the codec has even ones
            writer.append_data(picture[:height, :width])
