"""The realm's commands: `realm map|oracle|record|play`, and its options and report of `realm eval`.

Found by `realm/commands/games.py` through `[app] app = "back_to_the_realm"`; nothing else imports this package. Here
are the parsers and what they call; the work is in the modules next to this one, imported when a command runs.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from realm.commands.locate import add_model_options, model_of
from realm.commands.parser import Commands, check_file
from realm.errors import ConfigError

if TYPE_CHECKING:
    from realm.commands.evaluate import Candidate, Request
    from realm.config.load import RunConfig
    from realm.env.draw import Recording

MAP_HELP = "default, generated:SEED, a folder with map_1.json and crab.yaml, or the json file"


# ---- the options ----


def add_commands(commands: Commands) -> None:
    """Add `map`, `oracle`, `record` and `play`."""
    _add_map(commands)

    oracle = commands.add_parser(
        "oracle",
        help="find the highest score of an episode, and a play near it",
        example="realm oracle --treasures 3,7,12 --out best.gif",
    )
    _add_episode(oracle, "the realm's own, with all treasures")
    oracle.add_argument("--out", type=Path, help="draw that play: .gif, .html or .png")
    oracle.set_defaults(run=_oracle)

    record = commands.add_parser(
        "record", help="draw an episode of a trained model", example="realm record my-run --out episode.html"
    )
    _add_player(record)
    files = ".gif, .html to play it in a browser, .png for its end; of other environments .gif, .html or .mp4"
    record.add_argument("--out", type=Path, default=Path("episode.gif"), help=files)
    record.set_defaults(run=_record)

    play = commands.add_parser(
        "play", help="show an episode of a trained model in the terminal", example="realm play my-run --id best"
    )
    _add_player(play)
    text = "default 20; of other environments that of their films"
    play.add_argument("--speed", type=float, metavar="STEPS_PER_S", help=text)
    play.set_defaults(run=_play)


def _add_map(commands: Commands) -> None:
    map_ = commands.add_parser(
        "map", help="show, generate or check a map of the realm", example="realm map show generated:7"
    )
    action = map_.add_subparsers(required=True, metavar="show|generate|check")

    show = action.add_parser("show", help="print facts about a map and draw it", example="realm map show generated:7")
    show.add_argument("map", nargs="?", default="default", help=f"{MAP_HELP} (default: default)")
    show.add_argument("--out", type=Path, help="draw it to this .png instead of here")
    show.set_defaults(run=_map_show)

    generate = action.add_parser(
        "generate", help="make a corridor map from a seed", example="realm map generate --seed 7 --out my-map"
    )
    generate.add_argument("--seed", type=int, required=True, help="same seed, same map")
    generate.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="for map_1.json, crab.yaml, map.png"
    )
    generate.set_defaults(run=_map_generate)

    check = action.add_parser(
        "check", help="say whether a map can be played, and if not why", example="realm map check my-map"
    )
    check.add_argument("map", help=MAP_HELP)
    check.set_defaults(run=_map_check)


def _add_episode(parser: argparse.ArgumentParser, default: str) -> None:
    """The options of one certain episode."""
    group = parser.add_argument_group("the episode", f"Options that are not given are {default}.")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--treasures", metavar="IDS", help="like 3,7,12")
    which.add_argument("--random", type=int, metavar="N", help="N random treasures, drawn from the seed")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--map", help=MAP_HELP)
    group.add_argument("--start", type=int, metavar="POINT", help="1 to 15 (the realm's own: 2)")
    group.add_argument("--end", type=int, metavar="POINT", help="1 to 15 (the realm's own: 1)")
    group.add_argument("--max-step", type=int, metavar="STEPS", help="the time limit (the realm's own: 2000)")


def _add_player(parser: argparse.ArgumentParser) -> None:
    """The options that say who plays which episode."""
    add_model_options(parser)
    parser.add_argument("--oracle", action="store_true", help="the oracle's episode instead of a model's")
    _add_episode(parser, "the run's; with --oracle the realm's own, with all treasures")
    parser.add_argument("--stochastic", action="store_true", help="sampled actions instead of greedy ones")


def add_eval_options(parser: argparse.ArgumentParser) -> None:
    """Add the realm's options of `realm eval`."""
    group = parser.add_argument_group("the realm's own options")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every layout with as many treasures as [env] has")
    which.add_argument("--sets", action="store_true", help="every set of treasures")
    group.add_argument("--executed", action="store_true", help="compare with the oracle's own play, not its bound")
    group.add_argument(
        "--no-oracle", action="store_true", help="without a comparison; with --all the mean of all layouts, at once"
    )
    group.add_argument("--worst", type=int, default=6, metavar="N", help="list and draw the N worst (default 6)")
    group.add_argument("--out", type=Path, help="draw the regrets and the worst routes to this .png")


# ---- what they call ----


def prepare_eval(options: argparse.Namespace, request: Request, episodes: int) -> int:
    """Refuse options that cannot be followed; returns how many environments shall play at the same time."""
    every = options.all or options.sets
    if every and request.episodes:
        raise ConfigError(f"--episodes {request.episodes}: cannot be given with --all or --sets")
    if options.no_oracle:
        for name in ("executed", "out"):
            if getattr(options, name):
                raise ConfigError(f"--no-oracle: cannot be given with --{name}, which compares with the oracle")
    if not 0 <= options.worst <= 60:
        raise ConfigError(f"--worst {options.worst}: must be a number from 0 to 60")
    check_file("--out", options.out, (".png",))
    return 512 if every else min(256, episodes)


def evaluate(candidate: Candidate, options: argparse.Namespace) -> bool:
    """Report on a model of the realm; False if its environments cannot be given layouts on one map."""
    from realm.env.commands import eval_report as report

    return report.evaluate(candidate, options)


def _map_show(arguments: argparse.Namespace) -> int:
    from realm.env.commands import maps

    maps.show_map(arguments.map, arguments.out)
    return 0


def _map_generate(arguments: argparse.Namespace) -> int:
    from realm.env.commands import maps

    maps.generate_map(arguments.seed, arguments.out)
    return 0


def _map_check(arguments: argparse.Namespace) -> int:
    from realm.env.commands import maps

    maps.check_map(arguments.map)
    return 0


def _oracle(arguments: argparse.Namespace) -> int:
    from realm.env.commands import oracle

    oracle.show_oracle(_episode(arguments), _treasures(arguments), arguments.random, arguments.seed, arguments.out)
    return 0


def _record(arguments: argparse.Namespace) -> int:
    if arguments.oracle:
        _refuse_model(arguments)
        return _oracle(arguments)
    from realm.env.commands.episodes import PICTURES, summary, write_recording

    model = model_of(arguments)
    if not _plays_the_realm(arguments, model[0]):
        from realm.commands import film

        return film.record(arguments, *model)
    check_file("--out", arguments.out, PICTURES)
    recording = _agent_episode(arguments, *model)
    print(summary(recording))
    write_recording(recording, arguments.out, arguments.model or "the newest model")
    return 0


def _play(arguments: argparse.Namespace) -> int:
    if arguments.speed is not None and not 0 < arguments.speed < math.inf:
        raise ConfigError(f"--speed {arguments.speed:g}: must be a number above 0")
    try:
        from realm.env.commands.terminal import play

        if arguments.oracle:
            recording = _oracle_episode(arguments)
        else:
            model = model_of(arguments)
            if not _plays_the_realm(arguments, model[0]):
                from realm.commands import film

                return film.play(arguments, *model)
            recording = _agent_episode(arguments, *model)
        play(recording, arguments.speed or 20.0)
    except KeyboardInterrupt:
        return 130  # as shells have it
    return 0


def _plays_the_realm(arguments: argparse.Namespace, config: RunConfig) -> bool:
    """Whether it does; if not, the realm's own options are refused."""
    from realm.env.commands.episodes import is_realm

    if is_realm(config, arguments.seed):
        return True
    if any(getattr(arguments, name) is not None for name in ("treasures", "random", "map", "start", "end")):
        raise ConfigError(f"{config.app.algo}: its episodes have no map, points and treasures to choose")
    return False


def _oracle_episode(arguments: argparse.Namespace) -> Recording:
    """The recording of the oracle's own play."""
    from realm.env.commands.oracle import oracle_episode

    _refuse_model(arguments)
    episode, treasures = _episode(arguments), _treasures(arguments)
    answer, recording = oracle_episode(episode, treasures, arguments.random, arguments.seed)
    if answer.plan is None:
        raise ConfigError("--oracle: no play was found that comes to the end in time")
    return recording


def _refuse_model(arguments: argparse.Namespace) -> None:
    of_a_model = (arguments.model, arguments.id != "latest", arguments.stochastic, arguments.set, arguments.log_dir)
    if any(of_a_model):
        raise ConfigError("--oracle: it plays without a model, --id, --stochastic, --set and --log-dir")


def _agent_episode(
    arguments: argparse.Namespace, config: RunConfig, folder: Path, model: int | Literal["latest"]
) -> Recording:
    """The recording of the episode that a model plays."""
    from realm.env.commands.episodes import agent_episode, chosen

    config = replace(config, env=chosen(config.env, _episode(arguments)))
    treasures, random = _treasures(arguments), arguments.random
    return agent_episode(config, folder, model, treasures, random, arguments.seed, arguments.stochastic)


def _episode(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of [env] that were given."""
    given = {name: getattr(arguments, name) for name in ("map", "start", "end", "max_step")}
    return {name: value for name, value in given.items() if value is not None}


def _treasures(arguments: argparse.Namespace) -> list[int] | None:
    from realm.env.commands.episodes import treasure_ids

    return None if arguments.treasures is None else treasure_ids(arguments.treasures)
