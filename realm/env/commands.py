"""The commands about the realm itself: `realm map show|generate|check`, `realm oracle`, `realm record`, `realm play`.

Called by the command line with plain values. What a user got wrong, a map, an episode option or a file name, is raised
as a ConfigError of one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console

from realm.config.load import RunConfig
from realm.env import map as maps
from realm.env import options, oracle, oracle_lattice, oracle_play, physics, render, terminal
from realm.env.map import CELL, POINTS, Map, MapError
from realm.env.options import OptionError
from realm.env.oracle import Bound, Plan
from realm.env.realm_env import RealmEnv
from realm.errors import ConfigError
from realm.watch.progress import busy

CACHE = Path(".cache/oracle")  # the oracle's: answers and bounds of some kB, distances of a map of up to 15 MB


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn the errors of a user's map and options into a ConfigError."""
    try:
        yield
    except (MapError, OptionError) as error:
        raise ConfigError(str(error)) from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn what the system says against writing `out` into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or out}: {error.strerror}") from None


# ---- maps ----


def show_map(map_: str, out: Path | None) -> None:
    """Print facts about a map, and draw it: to `out` (.png), else as text."""
    if out is not None:
        check_ending(out, (".png",))
    with in_one_sentence():
        loaded = maps.resolve(map_)
    if out is None:
        print("\n".join([*facts(loaded), "", render.ansi(loaded)]), end="")
        return
    with writing(out):
        render.write_png(render.draw(loaded, scale=2), out)
    print("\n".join([*facts(loaded), f"drawn in {out}"]))


def generate_map(seed: int, folder: Path) -> None:
    """Write a generated map's two files and its picture into `folder`."""
    if seed < 0:
        raise ConfigError(f"--seed is {seed}, it must be 0 or more")
    made, files = maps.generate(seed), (maps.FLAGS_FILE, maps.POINTS_FILE, "map.png")
    for name in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is there already; choose another folder")
    with writing(folder):
        maps.save(made, folder)
        render.write_png(render.draw(made, scale=2), folder / "map.png")
    print("\n".join([*facts(made), f"written to {folder}: {', '.join(files)}"]))


def check_map(map_: str) -> None:
    """Say that a map is good; one that is not ends as a ConfigError with the reason."""
    with in_one_sentence():
        loaded = maps.resolve(map_)
    print(f"{loaded.name}: good, {loaded.road.mean():.1%} road, all {maps.POINTS} points reach each other")


def facts(map_: Map) -> list[str]:
    """What is worth knowing about a map, line by line."""
    width = corridor_widths(map_.road)[map_.road == 1]
    apart = map_.distance[:, map_.cells[:, 1], map_.cells[:, 0]]  # [16, 16]
    a, b = divmod(int(apart.argmax()), maps.POINTS)
    start, end = options.DEFAULTS["start"], options.DEFAULTS["end"]
    low, middle, high = np.percentile(width, (5, 50, 95)).round().astype(int)
    lines = [
        f"map        {map_.name}",
        f"road       {map_.road.mean():.1%} of the cells ({map_.road.sum():,} of {map_.road.size:,})",
        f"corridors  {middle} cells wide (median), nine tenths of the road from {low} to {high}",
        f"start-end  {apart[start, end]} cells from point {start} to point {end}, the defaults",
        f"farthest   {apart[a, b]} cells, between points {min(a, b)} and {max(a, b)}",
    ]
    cells = [f"{i} ({x}, {z})" for i, (x, z) in enumerate(map_.cells)]
    for first in range(0, maps.POINTS, 8):
        head = "points     " if first == 0 else " " * 11
        lines.append(head + "  ".join(f"{one:<12}" for one in cells[first : first + 8]).rstrip())
    return lines


def corridor_widths(road: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How wide the road is at each cell: the side of the largest square of road that the cell lies in, 0 off the road.
    road: u8 [Z, X]; i64 [Z, X]."""
    width = road.astype(np.int64)
    for side in range(2, min(road.shape) + 1):
        squares = sliding_window_view(road, (side, side)).all((2, 3))  # by their first corners
        if not squares.any():
            break
        for z, x in np.argwhere(squares):
            width[z : z + side, x : x + side] = side
    return width


# ---- episodes ----


def treasure_ids(text: str) -> list[int]:
    """ "3,7,12" as a list; whether these are ids is checked with the other options."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--treasures {text}: it must be ids with commas between, like 3,7,12")
    return [int(part) for part in parts]


def fixed_options(env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int) -> dict[str, Any]:
    """The options `env` (the table [env]) with one certain episode in place of random ones: with these treasures, or
    `random` ones drawn from `seed`, or as `env` has it."""
    conf = {key: value for key, value in env.items() if key in options.KEYS}
    layouts = env.get("layouts")
    if treasures is not None or random is not None:
        conf = {key: value for key, value in conf.items() if key not in options.TREASURE_KEYS}
        conf |= {"treasure_id": treasures} if treasures is not None else {"treasure_num": random}
        layouts = None
    drawn = RealmEnv(usr_conf=conf, layouts=layouts, map=env.get("map", "default"), observation="vector")
    drawn.reset(seed=seed)
    state = drawn.state
    fixed = {name: int(getattr(state, name)[0]) for name in ("start", "end", "max_step")}
    fixed |= {"treasure_random": 0, "treasure_id": np.flatnonzero(state.planned[0]).tolist()}
    rest = {key: value for key, value in env.items() if key not in ("layouts", *options.TREASURE_KEYS)}
    return {**rest, **fixed}


def agent_episode(
    config: RunConfig,
    folder: Path,
    model: int | Literal["latest"],
    treasures: list[int] | None,
    random: int | None,
    seed: int,
    stochastic: bool,
) -> render.Recording:
    """An episode of a trained model.

    The model plays the environments of its own package; a `RealmEnv` plays the same actions for the picture, which
    gives the same episode, since with treasures fixed nothing in it is random.
    """
    if isinstance(names := config.env.get("map"), list):
        raise ConfigError(f"[env] of this run has {len(names)} maps; name the one to play, like --map generated:1")
    with in_one_sentence():
        env = fixed_options(config.env, treasures, random, seed)
        with busy("the model plays"):
            actions = _agent_actions(config, env, folder, model, seed, stochastic)
        conf = {key: value for key, value in env.items() if key in options.KEYS}
        recording = render.record(RealmEnv(conf, map=env.get("map", "default"), observation="vector"), actions)
    last = recording.moments[-1]
    if not (last.terminated or last.truncated) or len(recording.actions) != len(actions):
        raise ConfigError(
            f"{config.app.algo}: its episode of {len(actions)} steps is none of the realm's with the options of "
            "[env], so there is nothing to draw"
        )
    return recording


def _agent_actions(
    config: RunConfig,
    env: dict[str, Any],
    folder: Path,
    model: int | Literal["latest"],
    seed: int,
    stochastic: bool,
) -> list[int]:
    """The actions of a checkpoint's model in one episode with the options `env`."""
    # late: all of this is slow to import, torch above all, whose threads would only wait for each other over one row
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from realm.contract import PredictContext
    from realm.errors import CheckpointError
    from realm.learn.checkpoint import find
    from realm.learn.evaluate import load_player

    try:
        checkpoint = find(folder, model)
        envs, agent = load_player(config, checkpoint, env, 1, seed)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None

    slot, explore, first = np.zeros(1, np.int64), np.full(1, float(stochastic), np.float32), np.ones(1, np.bool_)
    obs, _ = envs.reset(seed=seed)
    actions: list[int] = []
    # one step more than there can be: then it is no episode of the realm
    while len(actions) <= env["max_step"]:
        action, _ = agent.predict(obs, PredictContext(slot, first, explore))
        obs, _, terminated, truncated, _ = envs.step(action)
        actions.append(int(action[0]))
        first = terminated | truncated
        if first[0]:
            break
    envs.close()
    return actions


def summary(recording: render.Recording) -> str:
    """What happened in an episode, in a line."""
    last = recording.moments[-1]
    taken = sum(p and not t for p, t in zip(last.planned, last.there, strict=True))
    end = "reached the end" if last.terminated else "ran out of time" if last.truncated else "stopped"
    return (
        f"{end} in {last.steps} steps: score {last.score:.1f}, treasures {taken} of {sum(last.planned)}, "
        f"flashes {int(recording.route[:, 2].sum())}"
    )


def write_recording(recording: render.Recording, out: Path) -> None:
    """Draw an episode to `out`: the whole of it (.gif) or its end (.png)."""
    if out.suffix.lower() == ".gif":
        with busy("drawing"), writing(out):
            pictures = render.frames(recording)
            render.write_gif(pictures, out)
        what = f"{len(pictures)} frames"
    else:
        picture, what = render.draw(recording.map, recording.moments[-1], recording.route, scale=2), "the end"
        with writing(out):
            render.write_png(picture, out)
    print(f"drawn in {out} ({what}, {out.stat().st_size / 1e6:.1f} MB)")


def play(recording: render.Recording, speed: float) -> None:
    """Show an episode in the terminal, `speed` steps a second, and at last its end and summary.

    Only these two, without colours, where there is no terminal that could show it.
    """
    console, last = Console(highlight=False), len(recording.moments) - 1
    if not console.is_terminal or console.color_system is None:
        print(render.ansi(recording.map, recording.moments[-1]), end="")
        print(summary(recording))
        return
    system = terminal.SYSTEMS[console.color_system]
    with _silent_keyboard(), console.screen():
        begin, before, k = time.monotonic(), None, 0
        while True:
            now = terminal.screen(recording, k, console.width, console.height)
            sys.stdout.write(terminal.changes(now, before, system))
            sys.stdout.flush()
            if k == last:
                break
            before = now
            time.sleep(max(1 / MOST_FRAMES_PER_S, 1 / speed))
            k = min(last, int((time.monotonic() - begin) * speed))
        time.sleep(HOLD_S)
    print(terminal.lines(terminal.screen(recording, last, console.width, console.height - 3), system))
    print(summary(recording))


MOST_FRAMES_PER_S, HOLD_S = 30, 1.0


@contextmanager
def _silent_keyboard() -> Iterator[None]:
    """Keys that are pressed are not shown, nor read by the shell afterwards; Ctrl+C still counts."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)


def check_ending(out: Path, allowed: tuple[str, ...]) -> None:
    """Refuse a file name before the work that goes into the file."""
    if out.suffix.lower() not in allowed:
        raise ConfigError(f"--out {out}: the name must end in {' or '.join(allowed)}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: it cannot be written")


# ---- the oracle ----


class Answer(NamedTuple):
    """What the oracle says of one episode."""

    bound: Bound
    plan: Plan | None  # None if no play was found
    actions: list[int]


def show_oracle(
    env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int, out: Path | None
) -> None:
    """Print what the best play of an episode can score at most, and how the oracle plays it; draw that to `out`."""
    if out is not None:
        check_ending(out, (".gif", ".png"))
    answer, recording = oracle_episode(env, treasures, random, seed)
    print("\n".join(account(answer, recording)))
    if out is not None:
        if answer.plan is None:
            raise ConfigError(f"--out {out}: no play was found, so there is nothing to draw")
        write_recording(recording, out)


def oracle_episode(
    env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int
) -> tuple[Answer, render.Recording]:
    """The oracle's answer and its play (none of a step if it found none).

    env: options as in [env]; all treasures if neither `treasures` nor `random` is given.
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"--seed {seed}: allowed is a number from 0 to 2^32 - 1")
    if treasures is None and random is None:
        random = options.MAX_TREASURES
    with in_one_sentence():
        map_ = maps.resolve(env.get("map", "default"))
        conf = fixed_options({**env, "map": map_}, treasures, random, seed)
    del conf["map"]
    answer = ask_oracle(map_, conf["start"], conf["end"], tuple(conf["treasure_id"]), conf["max_step"])
    return answer, render.record(RealmEnv(conf, map=map_, observation="vector"), answer.actions)


def ask_oracle(map_: Map, start: int, end: int, treasures: tuple[int, ...], max_step: int) -> Answer:
    """What the oracle says of an episode; what it has said once is kept in CACHE."""
    digest = hashlib.sha256()
    for part in (map_.road, map_.points, np.array([start, end, max_step, *treasures])):
        digest.update(part.tobytes())
    for module in (oracle, oracle_lattice, oracle_play, physics):  # a change of these changes the answer
        digest.update(Path(str(module.__file__)).read_bytes())
    file = CACHE / f"{digest.hexdigest()[:24]}.json"
    try:
        said = json.loads(file.read_text())
        steps, score, best = said["bound"]
        plan = said["plan"] and Plan(tuple(said["plan"][0]), *said["plan"][1:])
        return Answer(Bound(steps, score, tuple(best)), plan, said["actions"])
    except (OSError, ValueError, LookupError, TypeError):  # there is none, or it is damaged
        pass
    with busy("preparing the map's distances, about two minutes the first time"):
        prepared = oracle.make_oracle(map_, start, end, treasures, max_step)
    with busy("playing the best plans"):
        solution = oracle.solve(prepared, treasures, max_step)
    answer = Answer(solution.bound, solution.plan, solution.run.actions.tolist())
    draft = file.with_name(f"{file.stem}-{os.getpid()}.json")
    with suppress(OSError):  # where nothing can be kept, the next one asks again
        CACHE.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(answer._asdict()))
        draft.replace(file)  # in one go, so that nobody reads half a file
    return answer


def account(answer: Answer, recording: render.Recording) -> list[str]:
    """An oracle's answer and its play, line by line."""
    bound, plan, moments = answer.bound, answer.plan, recording.moments
    first, last = moments[0], moments[-1]
    planned = [i for i in range(POINTS) if first.planned[i]]
    lines = [
        f"episode  {recording.map.name}, from point {first.start} to point {first.end} in {first.max_step} steps; "
        f"treasures {' '.join(map(str, planned)) or 'none'}"
    ]
    if bound.score == 0:
        return [*lines, f"bound    score 0: the end cannot be reached in {first.max_step} steps"]
    left = [str(i) for i in planned if i not in bound.treasures]
    what = f"leaving out {' '.join(left)}" if left else "with all treasures" if planned else "without treasures"
    lines.append(f"bound    score {bound.score:.1f}, {bound.steps} steps {what}; no play can score more")
    if plan is None:
        return [*lines, "plan     none was found that can be played in time"]
    order = " > ".join("buff" if i == 0 else str(i) for i in (*plan.order, first.end))
    flashes = "no flash" if plan.flashes == 0 else f"up to {plan.flashes} flash{'es' * (plan.flashes > 1)}"
    at = np.floor(recording.route[:, :2] / CELL).astype(int)
    taken = [("buff" if i == 0 else i, k) for k in range(1, len(moments)) for i in _taken(moments[k - 1], moments[k])]
    flashed = [
        f"step {k} from ({at[k - 1][0]}, {at[k - 1][1]}) to ({at[k][0]}, {at[k][1]})"
        for k in np.flatnonzero(recording.route[:, 2])
    ]
    return [
        *lines,
        f"plan     {order}, {flashes}",
        f"played   score {last.score:.1f}, {last.steps} steps; {last.score / bound.score:.2%} of the bound",
        f"flashes  {', '.join(flashed) or 'none'}",
        f"taken    {', '.join(f'{i} (step {k})' for i, k in taken) or 'nothing'}",
    ]


def _taken(before: render.Moment, now: render.Moment) -> list[int]:
    """The points that were taken between two moments, 0 is the buff."""
    treasures = [i for i in range(1, POINTS) if before.there[i] and not now.there[i]]
    return [0] * (now.buff_wait > before.buff_wait) + treasures
