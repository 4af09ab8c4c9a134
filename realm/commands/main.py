"""The command line behind the scripts in `tools/`: `python -m realm start|stop|status|eval|map|oracle|...`.

Every error that a user can cause ends here as one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from loguru import logger

from realm import __version__
from realm.commands import train
from realm.commands.models import (
    DEFAULT_CONFIG,
    ID_HELP,
    LOG_DIR_HELP,
    MODEL_HELP,
    chosen_model,
    runs_folder,
)
from realm.config.load import EVAL_SEED, RunConfig
from realm.errors import ConfigError, UserError

MAP_HELP = "default, generated:SEED, a folder with map_1.json and crab.yaml, or the json file"


def main(argv: list[str]) -> int:
    """Parse and run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    _log_to_stderr()
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `realm map show | head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        from realm.errors import UserCodeError  # late: the command `role` must stay light

        if isinstance(error, UserCodeError):
            print(f"error: {error}", file=sys.stderr)
            return 2
        raise


def console() -> int:
    """Entry point of the installed command `realm`."""
    return main(sys.argv[1:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="realm", description="Distributed PPO training for the realm.")
    parser.add_argument("--version", action="version", version=f"realm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    start = commands.add_parser("start", help="train: start the cluster (or one process, if the configuration says so)")
    start.add_argument("--config", default=DEFAULT_CONFIG, help=f"TOML file (default {DEFAULT_CONFIG})")
    start.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable")
    start.add_argument("--detach", action="store_true", help="leave the run in the background when it is ready")
    start.set_defaults(run=train.start)

    stop = commands.add_parser("stop", help="end a run, or one role of it")
    stop.add_argument("what", choices=("all", "aisrv", "actor", "buffer", "learner", "model_pool", "evaluator"))
    stop.add_argument("--log-dir", help=LOG_DIR_HELP)
    stop.set_defaults(run=_stop)

    status = commands.add_parser("status", help="show the living runs and their roles")
    status.add_argument("--log-dir", help=LOG_DIR_HELP)
    status.set_defaults(run=_status)

    save = commands.add_parser("save", help="keep the current model of the living runs in their user_ckpt/")
    save.add_argument("--log-dir", help=LOG_DIR_HELP)
    save.set_defaults(run=_save)

    evaluation = commands.add_parser("eval", help="play a trained model and print how well it does")
    evaluation.add_argument("model", nargs="?", default="", help=MODEL_HELP)
    evaluation.add_argument("--id", default="latest", help=ID_HELP)
    which = evaluation.add_mutually_exclusive_group()
    which.add_argument(
        "--episodes", type=int, default=0, help="so many episodes as [env] draws them (default: eval_episodes)"
    )
    which.add_argument("--all", action="store_true", help="every layout with as many treasures as [env] has")
    which.add_argument("--sets", action="store_true", help="every set of treasures")
    how = evaluation.add_mutually_exclusive_group()
    how.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the best")
    how.add_argument("--both", action="store_true", help="take the best actions, and draw them in a second round")
    evaluation.add_argument("--executed", action="store_true", help="compare with the oracle's own play, not its bound")
    evaluation.add_argument("--worst", type=int, default=6, metavar="N", help="list and draw the N worst (default 6)")
    evaluation.add_argument("--seed", type=int, default=EVAL_SEED, help=f"default {EVAL_SEED}")
    evaluation.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable"
    )
    evaluation.add_argument("--json", type=Path, help="write every episode's statistics to this file")
    evaluation.add_argument("--out", type=Path, help="draw the regrets and the worst routes to this .png")
    evaluation.add_argument("--log-dir", help=LOG_DIR_HELP)
    evaluation.set_defaults(run=_eval)

    _add_map(commands)
    _add_oracle(commands)
    _add_record(commands)
    _add_play(commands)
    return parser


def _add_map(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    map_ = commands.add_parser("map", help="show, generate or check a map of the realm")
    what = map_.add_subparsers(required=True, metavar="show|generate|check")

    show = what.add_parser("show", help="print facts about a map and draw it")
    show.add_argument("map", nargs="?", default="default", help=f"{MAP_HELP} (default: default)")
    show.add_argument("--out", type=Path, help="draw it to this .png instead of here")
    show.set_defaults(run=_map_show)

    generate = what.add_parser("generate", help="make a corridor map from a seed")
    generate.add_argument("--seed", type=int, required=True, help="same seed, same map")
    generate.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="for map_1.json, crab.yaml, map.png"
    )
    generate.set_defaults(run=_map_generate)

    check = what.add_parser("check", help="say whether a map can be played, and if not why")
    check.add_argument("map", help=MAP_HELP)
    check.set_defaults(run=_map_check)


def _add_oracle(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    oracle = commands.add_parser("oracle", help="what the best play of an episode can score at most, and one near it")
    _add_episode(oracle, "the realm's own, with all treasures")
    oracle.add_argument("--out", type=Path, help="draw that play: .gif, or .png for its end")
    oracle.set_defaults(run=_oracle)


def _add_episode(parser: argparse.ArgumentParser, default: str) -> None:
    """The options of one certain episode."""
    group = parser.add_argument_group("the episode", f"What is not given is {default}.")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--treasures", metavar="IDS", help="like 3,7,12")
    which.add_argument("--random", type=int, metavar="N", help="so many random treasures, drawn from the seed")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--map", help=MAP_HELP)
    group.add_argument("--start", type=int, metavar="POINT", help="1 to 15 (the realm's own: 2)")
    group.add_argument("--end", type=int, metavar="POINT", help="1 to 15 (the realm's own: 1)")
    group.add_argument("--max-step", type=int, metavar="STEPS", help="the time limit (the realm's own: 2000)")


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = commands.add_parser("record", help="draw an episode of a trained model as a GIF")
    _add_player(record)
    record.add_argument("--out", type=Path, default=Path("episode.gif"), help=".gif, or .png for the episode's end")
    record.set_defaults(run=_record)


def _add_play(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    play = commands.add_parser("play", help="show an episode of a trained model in the terminal")
    _add_player(play)
    play.add_argument("--speed", type=float, default=20.0, metavar="STEPS_PER_S", help="default 20")
    play.set_defaults(run=_play)


def _add_player(parser: argparse.ArgumentParser) -> None:
    """The options of who plays which episode."""
    parser.add_argument("model", nargs="?", default="", help=MODEL_HELP)
    parser.add_argument("--id", default="latest", help=ID_HELP)
    parser.add_argument("--oracle", action="store_true", help="the oracle's episode instead of a model's")
    _add_episode(parser, "the run's; with --oracle the realm's own, with all treasures")
    parser.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the best")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, repeatable")
    parser.add_argument("--log-dir", help=LOG_DIR_HELP)


def _stop(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import stop_all, stop_role

    if arguments.what == "all":
        return stop_all(runs_folder(arguments.log_dir))
    return stop_role(runs_folder(arguments.log_dir), arguments.what)


def _status(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import show_status

    return show_status(runs_folder(arguments.log_dir))


def _save(arguments: argparse.Namespace) -> int:
    from realm.commands.runs import save_models

    return save_models(runs_folder(arguments.log_dir))


def _eval(arguments: argparse.Namespace) -> int:
    from realm.commands.evaluate import Request, evaluate_model

    request = Request(
        which="all" if arguments.all else "sets" if arguments.sets else "sample",
        episodes=arguments.episodes,
        explores=(0.0, 1.0) if arguments.both else (float(arguments.stochastic),),
        seed=arguments.seed,
        executed=arguments.executed,
        worst=arguments.worst,
        json=arguments.json,
        out=arguments.out,
    )
    evaluate_model(*_chosen_model(arguments), request)
    return 0


def _chosen_model(arguments: argparse.Namespace) -> tuple[RunConfig, Path, int | Literal["latest"]]:
    """What `eval`, `record`, `play` are to play, with the options of evaluations."""
    if not 0 <= arguments.seed < 2**32:
        raise ConfigError(f"--seed {arguments.seed}: allowed is a number from 0 to 2^32 - 1")
    config, folder, number = chosen_model(arguments.model, arguments.id, arguments.set, arguments.log_dir)
    return config.evaluated(), folder, number


def _oracle(arguments: argparse.Namespace) -> int:
    from realm.env.commands import show_oracle

    show_oracle(_episode(arguments), _treasures(arguments), arguments.random, arguments.seed, arguments.out)
    return 0


def _record(arguments: argparse.Namespace) -> int:
    if arguments.oracle:
        _refuse_model(arguments)
        return _oracle(arguments)
    from realm.env.commands import check_ending, summary, write_recording

    check_ending(arguments.out, (".gif", ".png"))
    recording = _agent_episode(arguments)
    print(summary(recording))
    write_recording(recording, arguments.out)
    return 0


def _play(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.speed < math.inf:
        raise ConfigError(f"--speed {arguments.speed:g}: allowed is a number above 0")
    try:
        from realm.env.commands import oracle_episode, play

        if arguments.oracle:
            _refuse_model(arguments)
            answer, recording = oracle_episode(
                _episode(arguments), _treasures(arguments), arguments.random, arguments.seed
            )
            if answer.plan is None:
                raise ConfigError("--oracle: no play was found that comes to the end in time")
        else:
            recording = _agent_episode(arguments)
        play(recording, arguments.speed)
    except KeyboardInterrupt:
        return 130  # as shells have it
    return 0


def _refuse_model(arguments: argparse.Namespace) -> None:
    of_a_model = (arguments.model, arguments.id != "latest", arguments.stochastic, arguments.set, arguments.log_dir)
    if any(of_a_model):
        raise ConfigError("--oracle: it plays without a model, --id, --stochastic, --set and --log-dir")


def _agent_episode(arguments: argparse.Namespace) -> Any:
    """The recording of the episode that a model plays."""
    from realm.env.commands import agent_episode

    config, folder, model = _chosen_model(arguments)
    config = replace(config, env={**config.env, **_episode(arguments)})
    treasures, random = _treasures(arguments), arguments.random
    return agent_episode(config, folder, model, treasures, random, arguments.seed, arguments.stochastic)


def _episode(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of [env] that were given."""
    given = {name: getattr(arguments, name) for name in ("map", "start", "end", "max_step")}
    return {name: value for name, value in given.items() if value is not None}


def _treasures(arguments: argparse.Namespace) -> list[int] | None:
    from realm.env.commands import treasure_ids

    return None if arguments.treasures is None else treasure_ids(arguments.treasures)


def _map_show(arguments: argparse.Namespace) -> int:
    from realm.env.commands import show_map

    show_map(arguments.map, arguments.out)
    return 0


def _map_generate(arguments: argparse.Namespace) -> int:
    from realm.env.commands import generate_map

    generate_map(arguments.seed, arguments.out)
    return 0


def _map_check(arguments: argparse.Namespace) -> int:
    from realm.env.commands import check_map

    check_map(arguments.map)
    return 0


def _log_to_stderr() -> None:
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{time:HH:mm:ss} {level:<7} {message}")
