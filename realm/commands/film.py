"""`realm record` and `realm play`: an episode of a trained model as a film, or in the terminal, of any environment that
renders pictures or text.

A game may have its own of both; those of the realm call `record` and `play` here where a run plays another environment.
The environments are those of the run's package, made with the option render_mode = "rgb_array" or "ansi".
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium
import numpy as np

from realm.apart import apart
from realm.commands.evaluate import title_of
from realm.commands.locate import add_model_options, model_of
from realm.commands.parser import Commands, check_file, writing
from realm.config.load import RunConfig
from realm.contract import Array
from realm.errors import ConfigError, UserCodeError, UserError, one_line, pip_here, place_of, plain, to_install
from realm.learn.evaluation import Player, load_player, steps_of
from realm.learn.results import recorder_of
from realm.rollout.rounds import close
from realm.user import calling, make_envs
from realm.watch.progress import busy, counting
from realm.watch.status import say

if TYPE_CHECKING:
    from realm.commands.screen import Screen
    from realm.learn.checkpoint import Checkpoint

FILMS = (".gif", ".html", ".mp4")
_MOST_STEPS = 1000
_MOST_FRAMES_PER_S = 50  # browsers show a GIF no faster; where a second has more steps, some are left out
_PAGE = Path(__file__).with_name("film.html")


class Frame(NamedTuple):
    step: int
    returned: float  # rewards until then, added up
    picture: bytes  # PNG, or WebP for a page: raw ones would fill the memory


def add_commands(commands: Commands) -> None:
    """Add `record` and `play`, those of them that no game has added."""
    if "record" not in commands.choices:
        text = "film an episode of a trained model"
        parser = commands.add_parser("record", help=text, example="realm record my-run --out film.gif")
        parser.add_argument("--out", type=Path, default=Path("episode.gif"), help=" or ".join(FILMS))
        _add_episode(parser)
        parser.set_defaults(run=lambda given: record(given, *model_of(given)))
    if "play" not in commands.choices:
        text = "show an episode of a trained model in the terminal"
        parser = commands.add_parser("play", help=text, example="realm play my-run --id best")
        text = "default: that of its films"
        parser.add_argument("--speed", type=float, metavar="STEPS_PER_S", help=text)
        _add_episode(parser)
        parser.set_defaults(run=lambda given: play(given, *model_of(given)))


def _add_episode(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-step", type=int, metavar="STEPS", help=f"where it is cut (default {_MOST_STEPS})")
    parser.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")


def record(given: argparse.Namespace, config: RunConfig, folder: Path, model: int | Literal["latest"]) -> int:
    """Film an episode that a checkpoint of `folder` plays. given: the options that `add_commands` adds.

    Raises ConfigError, before the model is loaded, if the environments render nothing or a package is missing.
    """
    out, frames = given.out.absolute(), list[Frame]()
    ending = out.suffix.lower()
    check_file("--out", given.out, FILMS)
    if ending == ".mp4" and (lacking := [name for name in ("imageio", "imageio_ffmpeg") if find_spec(name) is None]):
        raise ConfigError(f"--out {given.out}: {lacking[0]} is not installed; {to_install('imageio imageio-ffmpeg')}")
    with _played(given, config, folder, model, ("rgb_array", "ansi")) as (checkpoint, config, player, steps):
        from realm.commands.screen import as_picture  # late: rich

        fps = _fps(player.envs)
        every = math.ceil(fps / _MOST_FRAMES_PER_S)
        with counting("recording", most := _most(given)) as show:
            for step, returned, over in steps:
                if step % every == 0 or over:
                    seen = _rendered(config, player.envs)
                    picture = seen if isinstance(seen, np.ndarray) else as_picture(seen)
                    frames.append(Frame(step, returned, _packed(picture, ending)))
                show(min(step, most), step)
    name, what = title_of(checkpoint), _told(frames[-1].step, frames[-1].returned)
    with busy("writing"), writing(given.out):
        write = {".gif": _write_gif, ".html": _write_page, ".mp4": _write_video}[ending]
        write(frames, out, fps / every, f"{name}: {what}")
    say(name)
    say(f"{what}, filmed in {given.out} ({len(frames):,} frames, {out.stat().st_size / 1e6:.1f} MB)")
    return 0


def play(given: argparse.Namespace, config: RunConfig, folder: Path, model: int | Literal["latest"]) -> int:
    """Show it in the terminal while it is played: the text that the environment renders, or else its pictures.

    given and errors as in `record`. Where no terminal is, only the end is told.
    """
    if given.speed is not None and not 0 < given.speed < math.inf:
        raise ConfigError(f"--speed {given.speed:g}: must be a number above 0")
    told = ""
    try:
        with _played(given, config, folder, model, ("ansi", "rgb_array")) as (checkpoint, config, player, steps):
            from rich.console import Console  # late: `--help` does not need it

            from realm.commands.screen import Screen, can_show, of_picture, show, with_caption

            def drawn(columns: int, lines: int) -> Screen:
                seen = _rendered(config, player.envs)
                seen = seen if isinstance(seen, Screen) else of_picture(seen, columns, lines - 1)
                return with_caption(seen, told, columns, lines)

            def moments() -> Iterator[Any]:
                nonlocal told
                for step, returned, _ in steps:
                    told = _told(step, returned)
                    yield drawn

            console = Console(highlight=False)
            if can_show(console):
                show(console, moments(), given.speed or _fps(player.envs))
            else:
                for _ in moments():
                    pass
    except KeyboardInterrupt:
        return 130  # as shells have it
    say(title_of(checkpoint))
    say(told)
    return 0


@contextmanager
def _played(
    given: argparse.Namespace, config: RunConfig, folder: Path, model: int | Literal["latest"], modes: Sequence[str]
) -> Iterator[tuple[Checkpoint, RunConfig, Player, Iterator[tuple[int, float, bool]]]]:
    """The checkpoint, the configuration with the first of the modes that renders, the player, and what `_steps` gives.
    What the environments change in this process is set back afterwards."""
    if _most(given) < 1:
        raise ConfigError(f"--max-step {given.max_step}: must be a number from 1")
    with apart(over=True):
        os.environ.update(SDL_VIDEODRIVER="dummy", SDL_AUDIODRIVER="dummy")  # pygame looks for no screen
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
        warnings.filterwarnings("ignore", ".*No render fps")  # 30 then
        config = _rendering(config, given.seed, modes)
        from realm.learn.checkpoint import find  # late: torch

        checkpoint = find(folder, model)
        player = load_player(config, checkpoint, 1, given.seed)
        yield checkpoint, config, player, _steps(player, float(given.stochastic), given.seed, _most(given))
        close(player.envs)


def _most(given: argparse.Namespace) -> int:
    return _MOST_STEPS if given.max_step is None else int(given.max_step)


def _fps(envs: Any) -> float:
    return float(envs.metadata.get("render_fps") or 30)


def _told(step: int, returned: float) -> str:
    return f"{step:,} steps, return {returned:,.1f}"


def _steps(player: Any, explore: float, seed: int, most: int) -> Iterator[tuple[int, float, bool]]:
    """Play an episode of at most `most` steps: after the reset and after each step its number, the return until then,
    and whether it was the last."""
    obs, _ = player.envs.reset(seed=seed)
    returned = 0.0
    yield 0, returned, False
    for number, step in enumerate(steps_of(player.envs, player.predict, obs, explore, np.ones(1, np.bool_)), 1):
        recorder = recorder_of(player.envs)  # it has rewards before they are scaled
        returned = float(recorder.episode_returns[0]) if recorder else returned + float(step.reward[0])
        over = bool(step.ended[0]) or number == most
        yield number, returned, over
        if over:
            return


def _rendering(config: RunConfig, seed: int, modes: Sequence[str]) -> RunConfig:
    """The configuration with the first of the modes in which its environments render. Raises what "rgb_array" raised,
    before torch is loaded."""
    errors = dict[str, UserError]()
    for mode in modes:
        tried = replace(config, env={**config.env, "render_mode": mode})
        try:
            _try_rendering(tried, seed)
            return tried
        except UserError as error:
            errors[mode] = error
    raise errors["rgb_array"]


def _try_rendering(config: RunConfig, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns of what is refused here
        try:
            envs = make_envs(config, 1, seed)
        except UserError as error:
            # the constructor has no such argument, or not this mode
            if "render_mode" in str(error) or isinstance(error.__cause__, AssertionError):
                raise _nothing(config) from error
            raise
        try:
            with calling(config, "reset"):
                envs.reset(seed=seed)
            _rendered(config, envs)
        finally:
            close(envs)


def _rendered(config: RunConfig, envs: Any) -> Array | Screen:
    """What one environment looks like now: u8 [H, W, 3], or text as a grid."""
    try:
        given = envs.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{_name(config)} needs a package to render: {pip_here(str(error))}") from error
    except NotImplementedError as error:
        raise _nothing(config) from error
    except Exception as error:
        text = f"{place_of(error) or _name(config)}: {type(error).__name__}: {one_line(error)}"
        raise UserCodeError(f"{text} (while rendering)") from error
    given = given[0] if isinstance(given, Sequence) and given and not isinstance(given, str) else given
    if isinstance(given, str):
        from realm.commands.screen import of_text

        return of_text(given)
    picture = np.asarray(given)
    picture = picture[0] if picture.ndim == 4 else picture  # of a vector environment
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] not in (3, 4):
        raise _nothing(config)
    return picture[..., :3]


def _name(config: RunConfig) -> str:
    return str(config.env.get("id", config.app.algo))


def _nothing(config: RunConfig) -> ConfigError:
    text = 'with render_mode="rgb_array", its render() must give uint8[height, width, 3], or with "ansi" text'
    return ConfigError(f"{_name(config)} renders nothing, so there is nothing to see; {text}")


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
    """All as large as the largest: text may grow."""
    from PIL import Image

    images = [Image.open(BytesIO(frame.picture)) for frame in frames]  # read when they are cropped
    width, height = (max(sides) for sides in zip(*(image.size for image in images), strict=True))
    return (image.crop((0, 0, width, height)) for image in images)


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
    page = (
        _PAGE.read_text()
        .replace("TITLE", html.escape(plain(title)))
        .replace("film = FILM", f"film = {json.dumps(film)}")
    )
    out.write_text(page, encoding="utf-8")


def _write_video(frames: list[Frame], out: Path, fps: float, title: str) -> None:
    import imageio.v2 as imageio  # late: it may not be installed

    writer: Any
    with imageio.get_writer(out, format="FFMPEG", fps=fps, macro_block_size=1) as writer:
        for image in _images(frames):
            picture = np.asarray(image)
            height, width = (side // 2 * 2 for side in picture.shape[:2])  # the codec has even ones
            writer.append_data(picture[:height, :width])
