"""Makes what comes with Realm: the model in diy/shipped, and the oracle's bounds on the default map.

    python tools/study/ship.py train/my_run --id best
    python tools/study/ship.py train/pong/quick-1 --id best --to realm/zoo/pong/shipped
    python tools/study/ship.py --bounds

A model: `realm play` takes it when there is no run. Evaluates the run's model with `realm eval --all` and writes
`eval.json`, `config.toml` (with every hyper-parameter, so that new defaults do not change the model) and `ckpt/`, in
which the optimizer is a fresh one, since training never goes on from there. What was shipped before is replaced at the
end. With --to it is a model of any package, evaluated in 30 sampled episodes; its weights are in float16.

Bounds: so that `realm eval` answers at once on the default map. To be made again (two minutes) after a change of that
map, of the game's rules or of the oracle's bound; a slow test compares the file with what the oracle computes. The file
is `realm/env/maps/default/bounds-<hash>.npz`; the hash is of the map and of the question, so that a changed map never
gets the bounds of the old one.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.commands.locate import ID_HELP, chosen_model
from realm.commands.main import main as realm
from realm.config.keys import AppConfig
from realm.config.load import to_toml
from realm.env import map as maps
from realm.env import options, oracle, report
from realm.errors import ConfigError
from realm.learn import checkpoint
from realm.learn.evaluation import load_player
from realm.user import hyper_of
from realm.watch.progress import measuring
from tools import common


def ship(run: Path, number: str, shipped: Path, of_diy: bool = True) -> None:
    """Replace the folder `shipped`. Raises an error of one sentence if the model cannot be played by this code."""
    if shipped.exists() and not (shipped / "config.toml").exists():
        raise ConfigError(f"--to {shipped}: it is there and holds no shipped model; name another folder")
    config, folder, update = chosen_model(str(run), number, (), None)
    env = config.evaluated().env
    if of_diy and (config.app.algo != "diy" or env.get("map", "default") != "default"):
        raise ConfigError(f"{run}: it is not of diy on the default map, which is what comes with Realm")
    hyper = hyper_of(config)
    usual = AppConfig()  # no folder of this machine, and not as many models as judge.py keeps
    kept = usual.modelpool_max_save_model_count
    app = dataclasses.replace(config.app, log_dir=usual.log_dir, modelpool_max_save_model_count=kept)
    config = dataclasses.replace(config, app=app, hyper=dataclasses.asdict(hyper))
    found = checkpoint.find(folder, update)
    envs, agent, *_ = load_player(config.evaluated(), found, 1, 0)  # refuses a model of other shapes
    envs.close()
    for weight in [] if of_diy else agent.model.parameters():
        weight.data = weight.data.half()

    draft = shipped.with_name(f".{shipped.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        checkpoint.save(draft / "ckpt", agent, found.version, found.env_steps, found.schema, keep=1)
        (draft / "config.toml").write_text(to_toml(config))
        told = draft / "eval.json"
        what = [str(found.path), "--all"] if of_diy else [str(draft / "ckpt"), "--stochastic", "--episodes", "30"]
        if realm(["eval", *what, "--json", str(told)]) != 0:
            sys.exit(2)
        told.write_text(told.read_text().replace(draft.name, shipped.name).replace(f"{common.ROOT}/", ""))
        shutil.rmtree(shipped, ignore_errors=True)
        draft.rename(shipped)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    size = sum(one.stat().st_size for one in shipped.rglob("*") if one.is_file())
    print(f"shipped {found.path} to {shipped} ({size / 1e6:.1f} MB)")


def ship_bounds() -> None:
    """Replace the file of bounds."""
    start, end, max_step = (int(options.DEFAULTS[name]) for name in ("start", "end", "max_step"))
    ids = [point for point in options.IDS if point not in (start, end)]
    with measuring("the oracle's bounds of the default map") as show:
        steps = oracle.make_oracle(maps.default(), start, end, ids, max_step, report=show).steps
    file = report.shipped_bounds(maps.default(), start, end, ids, max_step)
    for old in file.parent.glob("bounds-*.npz"):
        old.unlink()
    np.savez_compressed(file, steps=steps)
    print(f"{file} ({file.stat().st_size / 1e3:.0f} kB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run's folder, such as train/final")
    parser.add_argument("--id", default="latest", help=ID_HELP)
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="of a model of another package than diy")
    parser.add_argument("--bounds", action="store_true", help="the oracle's bounds instead of a model")
    args = parser.parse_args()
    if (args.run is None) != args.bounds or (args.bounds and args.to):
        parser.error("give the run whose model is to be shipped, or --bounds alone")
    if args.bounds:
        return ship_bounds()
    to = args.to.resolve() if args.to else common.ROOT / "diy" / "shipped"
    ship(args.run, args.id, to, of_diy=args.to is None)


if __name__ == "__main__":
    common.command_line(main)
