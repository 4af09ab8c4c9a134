"""The debug run: the whole pipeline in one process, in under a minute. Exit code 0 means that it really trained.

    python train_test.py [--config conf/smoke.toml] [--set key=value]... [--fresh]

It checks that updates happened, that losses are finite, and that a saved checkpoint loads again. A breakpoint anywhere
in `diy/` works, because there is only one process.
"""

from __future__ import annotations

import argparse
import math
import sys

from loguru import logger

from realm.commands.locate import config_file
from realm.config.plan import decide, make_plan, this_machine
from realm.errors import RunError, UserError
from realm.kaiwu.project import load
from realm.launch.environment import enter_learner_environment
from realm.launch.signals import make_sane
from realm.launch.start import prepare
from realm.user import load_agent, load_hyper, load_preferences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=config_file, default="conf/smoke.toml")
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--fresh", action="store_true", help="begin a new run where run_name exists")
    arguments = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{time:HH:mm:ss} {level:<7} {message}")
    try:
        make_sane()
        config = load(arguments.config, [*arguments.set, "wrapper_type=local"])
        decided = decide(config.app, this_machine(), load_preferences(config.app.algo))
        enter_learner_environment(make_plan(decided.app))
        from realm.launch import local  # late: it imports torch, and the thread settings must come first

        prepared = prepare(config, decided, arguments.fresh)
        ended = local.run(prepared)
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130

    from realm.learn import checkpoint  # late: it imports torch, which the checks do not need

    failures, updates, version = [], int(ended.board.total("learner", "updates")), ended.trainer.version
    if updates < 1:
        failures.append("no update happened")
    losses = {name: value for name, value in ended.board.recent_of("learner").items() if "loss" in name}
    words = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
    if not all(math.isfinite(value) for value in losses.values()):
        failures.append(f"losses are not finite numbers: {words}")
    saved, skipped = checkpoint.load_newest(prepared.run_dir / "ckpt")
    if saved is None or skipped or saved.version != version:
        failures.append(f"the last version {version} has no valid checkpoint {skipped}")
    else:
        app = prepared.config.app
        agent = load_agent(app.algo)(prepared.spec, load_hyper(app.algo, prepared.config.hyper), "cpu", app.seed + 1)
        checkpoint.restore(agent, saved)
        if checkpoint.to_bytes(agent.model) != saved.weights:
            failures.append(f"the weights loaded from {saved.path} differ from the saved ones")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    if not failures:
        print(f"ok: {updates} updates, {ended.board.env_steps} env steps, {words}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
