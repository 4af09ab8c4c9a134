"""PPO beside stable-baselines3's, with the same settings and networks: seconds for a million env steps, in turns.

    python tools/bench/sb3.py                  # conf/ppo/halfcheetah.toml, in one process with one and two threads
    python tools/bench/sb3.py --config conf/ppo/hopper.toml --rounds 5

Each row trains from scratch, without evaluations, and what counts is the time of `--env-steps` after as many others. A
million is scaled from that. The table has medians over the rounds, and what Realm takes of stable-baselines3's time:
of the same threads, and of the fastest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.user import hyper_of
from tools import common


def of_realm(path: Path, threads: int, env_steps: int) -> float:
    """Seconds: those of a run of twice the steps less those of a run of the steps."""
    taken = []
    for steps in (env_steps, 2 * env_steps):
        with tempfile.TemporaryDirectory() as folder:
            settings = ["eval_every_steps=0", f"max_env_steps={steps}", f"torch_num_threads={threads}"]
            begin = time.monotonic()
            code = common.run_process(common.start_command(path, [f"log_dir={folder}", *settings]))
            taken.append(time.monotonic() - begin)
            if code:
                sys.exit(f"error: a run of {path} ended with exit code {code}")
    return taken[1] - taken[0]


def of_sb3(config: RunConfig, threads: int, env_steps: int) -> float:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    own: Any = hyper_of(config)
    torch.set_num_threads(threads)
    envs: Any = make_vec_env(config.env["id"], int(config.app.aisrv_connect_to_kaiwu_env_count))
    if own.normalise_obs or own.normalise_returns:
        envs = VecNormalize(envs, norm_obs=own.normalise_obs, norm_reward=own.normalise_returns, gamma=own.gamma_start)
    layers, activation = [own.hidden] * 2, torch.nn.Tanh if own.activation == "tanh" else torch.nn.ReLU
    network = {"net_arch": {"pi": layers, "vf": layers}, "activation_fn": activation}
    model = PPO(
        "MlpPolicy", envs, n_steps=own.chunk_length, batch_size=own.minibatch_size, n_epochs=own.epochs,
        gamma=own.gamma_start, gae_lambda=own.lam, clip_range=own.clip, ent_coef=own.entropy_start,
        learning_rate=lambda left: own.lr_end + left * (own.lr_start - own.lr_end), vf_coef=own.vf_coef,
        max_grad_norm=own.max_grad_norm, device="cpu",
        policy_kwargs={**network, "ortho_init": own.orthogonal, "log_std_init": own.log_std},
    )  # fmt: skip
    model.learn(env_steps)
    begin, before = time.monotonic(), model.num_timesteps
    model.learn(env_steps, reset_num_timesteps=False)
    return (time.monotonic() - begin) * env_steps / (model.num_timesteps - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.ROOT / "conf" / "ppo" / "halfcheetah.toml")
    parser.add_argument("--env-steps", type=int, default=16_384)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("train/sb3.json"))
    args = parser.parse_args()
    common.end_in_order()
    common.check_out(args.out)
    config, scale = load_config(args.config), 1e6 / args.env_steps
    taken: dict[str, dict[int, list[float]]] = {who: {n: [] for n in args.threads} for who in ("realm", "sb3")}
    show = common.counting("runs", 2 * len(args.threads) * args.rounds)
    for number in range(args.rounds):
        for n in args.threads:
            taken["realm"][n].append(scale * of_realm(args.config, n, args.env_steps))
            taken["sb3"][n].append(scale * of_sb3(config, n, args.env_steps))
            done = 2 * (number * len(args.threads) + args.threads.index(n) + 1)
            show(done, done)
    best = min(common.spread(x).median for x in taken["sb3"].values())
    print("\n| threads | Realm, s | stable-baselines3, s | Realm takes of it | of its fastest |")
    print("|---:|---:|---:|---:|---:|")
    for n in args.threads:
        ours, theirs = (common.spread(taken[who][n]).median for who in ("realm", "sb3"))
        print(f"| {n} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} | {ours / best:.2f} |")
    about = common.about()
    print(f"\n`{about['command']}`, {about['date']}, {about['machine']}, commit {about['commit']}")
    common.write_json(args.out, {"about": about, "seconds_for_1m": taken})


if __name__ == "__main__":
    common.command_line(main)
