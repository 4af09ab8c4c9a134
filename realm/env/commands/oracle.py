"""`realm oracle`: the highest score that an episode allows, and the oracle's own play of it.

`show_oracle` prints and draws; `oracle_episode` gives the same to `realm record --oracle` and `realm play --oracle`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm.commands.locate import check_seed
from realm.commands.parser import check_file
from realm.env import draw, options, oracle
from realm.env import map as maps
from realm.env.commands.episodes import PICTURES, fixed_options, write_recording
from realm.env.draw import Moment, Recording
from realm.env.map import CELL, POINTS, Map
from realm.env.oracle import CACHE, Bound, Plan
from realm.env.oracle.cache import SOURCES, keep, key_of
from realm.env.realm_env import RealmEnv
from realm.errors import ConfigError
from realm.files import read_json
from realm.watch.progress import busy, measuring


class Answer(NamedTuple):
    """What the oracle says of one episode."""

    bound: Bound
    plan: Plan | None  # None if no play was found
    actions: list[int]


def show_oracle(
    env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int, out: Path | None
) -> None:
    """Print what the best play of an episode can score at most, and how the oracle plays it; draw that to `out`."""
    check_file("--out", out, PICTURES)
    answer, recording = oracle_episode(env, treasures, random, seed)
    print("\n".join(account(answer, recording)))
    if out is not None:
        if answer.plan is None:
            raise ConfigError(f"--out {out}: no play was found, so there is nothing to draw")
        write_recording(recording, out, "the oracle")


def oracle_episode(
    env: Mapping[str, Any], treasures: list[int] | None, random: int | None, seed: int
) -> tuple[Answer, Recording]:
    """The oracle's answer and its play (none of a step if it found none).

    env: options as in [env]; all treasures if neither `treasures` nor `random` is given.
    """
    check_seed(seed)
    if treasures is None and random is None:
        random = options.MAX_TREASURES
    map_ = maps.resolve(env.get("map", "default"))
    conf = fixed_options({**env, "map": map_}, treasures, random, seed)
    del conf["map"]
    answer = ask_oracle(map_, conf["start"], conf["end"], tuple(conf["treasure_id"]), conf["max_step"])
    return answer, draw.record(RealmEnv(conf, map=map_, observation="none"), answer.actions)


def ask_oracle(map_: Map, start: int, end: int, treasures: tuple[int, ...], max_step: int) -> Answer:
    """What the oracle says of an episode; what it has said once is kept in CACHE."""
    file = CACHE / f"{key_of(map_, (start, end, max_step, *treasures), SOURCES)}.json"
    try:
        said = read_json(file, 1 << 20)
        steps, score, best = said["bound"]
        plan = said["plan"] and Plan(tuple(said["plan"][0]), *said["plan"][1:])
        return Answer(Bound(steps, score, tuple(best)), plan, said["actions"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError):  # there is none, or it is damaged
        pass
    with measuring("preparing the map's distances, once for an episode") as share:
        prepared = oracle.make_oracle(map_, start, end, treasures, max_step, report=share)
    with busy("playing the best plans"):
        solution = oracle.solve(prepared, treasures, max_step)
    answer = Answer(solution.bound, solution.plan, solution.run.actions.tolist())
    with suppress(OSError):  # where nothing can be kept, the next call asks again
        keep(file, json.dumps(answer._asdict()).encode())
    return answer


def account(answer: Answer, recording: Recording) -> list[str]:
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


def _taken(before: Moment, now: Moment) -> list[int]:
    """The points that were taken between two moments, 0 is the buff."""
    treasures = [i for i in range(1, POINTS) if before.there[i] and not now.there[i]]
    return [0] * (now.buff_wait > before.buff_wait) + treasures
