"""Puts the model of a run into diy/shipped, from where `realm play` takes it when there is no run.

    python tools/study/ship_model.py train/my_run --id best

Evaluates the run's model with `realm eval --all` and writes `eval.json`, `config.toml` (with every hyper-parameter, so
that new defaults do not change the model) and `ckpt/`, in which the optimizer is a fresh one, since training never goes
on from there. What was shipped before is replaced at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.commands.main import main as realm
from realm.commands.models import ID_HELP, chosen_model
from realm.config.keys import AppConfig
from realm.config.load import to_toml
from realm.errors import ConfigError
from realm.learn import checkpoint
from realm.learn.evaluate import load_player
from realm.user import hyper_of
from tools import common


def ship(run: Path, number: str, shipped: Path) -> None:
    """Replace the folder `shipped`. Raises an error of one sentence if the model cannot be played by this code."""
    config, folder, update = chosen_model(str(run), number, (), None)
    env = config.evaluated().env
    if config.app.algo != "diy" or env.get("map", "default") != "default":
        raise ConfigError(f"{run}: it is not of diy on the default map, which is what comes with Realm")
    hyper = hyper_of(config)
    app = dataclasses.replace(config.app, log_dir=AppConfig().log_dir)  # not a folder of this machine
    config = dataclasses.replace(config, app=app, hyper=dataclasses.asdict(hyper))
    found = checkpoint.find(folder, update)
    envs, agent, *_ = load_player(config, found, env, 1, 0)  # refuses a model of other shapes
    envs.close()

    draft = shipped.with_name(f".{shipped.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        checkpoint.save(draft / "ckpt", agent, found.version, found.env_steps, found.schema, keep=1)
        (draft / "config.toml").write_text(to_toml(config))
        if realm(["eval", str(found.path), "--all", "--json", str(draft / "eval.json")]) != 0:
            sys.exit(2)
        shutil.rmtree(shipped, ignore_errors=True)
        draft.rename(shipped)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    size = sum(one.stat().st_size for one in shipped.rglob("*") if one.is_file())
    print(f"shipped {found.path} to {shipped} ({size / 1e6:.1f} MB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, such as train/final")
    parser.add_argument("--id", default="latest", help=ID_HELP)
    args = parser.parse_args()
    ship(args.run, args.id, common.ROOT / "diy" / "shipped")


if __name__ == "__main__":
    common.command_line(main)
