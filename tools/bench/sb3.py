"""PPO beside stable-baselines3's, with the same settings and networks: seconds for a million env steps, in turns.

    python tools/bench/sb3.py                  # conf/ppo/halfcheetah.toml, in one process with one and two threads
    python tools/bench/sb3.py --config conf/ppo/hopper.toml --rounds 5
    python tools/bench/sb3.py --returns --env-steps 200000 --rounds 2    # mean returns of greedy episodes instead
    python tools/bench/sb3.py --config conf/ppo/pong.toml --loop --puffer    # frames, with two more to compare with

Each row trains from scratch, without evaluations, and what counts is the time of `--env-steps` after as many others. A
million is scaled from that. `--loop` adds the shortest loop that trains the same network, without the framework and in
float32; `--puffer` adds PufferLib, once tools/bench/puffer.sh has installed it. The table has medians over the rounds,
and what Realm takes of each other's time: with the same threads, and its fastest of the other's fastest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.config.load import RunConfig, load_config
from realm.contract import Field
from realm.user import hyper_of, load_definition, make_envs
from tools import common
from tools.bench.train import Row, start_of

EVALUATIONS = 25  # of a run with --returns, ten greedy episodes each


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


def of_loop(config: RunConfig, threads: int, env_steps: int) -> float:
    """Seconds, of frames and discrete actions with a shared trunk: GAE, clipped losses, one Adam."""
    import torch

    from realm.algorithms.actor_critic import ActorCritic

    torch.set_num_threads(threads)
    own: Any = dataclasses.replace(hyper_of(config), normalise_images=False, normalise_returns=False, precision="fp32")
    num_envs, steps = int(config.app.aisrv_connect_to_kaiwu_env_count), own.chunk_length
    envs = make_envs(config, num_envs, 1)
    of = load_definition(config.app.algo).spec(envs, own)
    network = ActorCritic(of.obs, of.action, own)
    adam = torch.optim.Adam(network.parameters(), own.lr_start, eps=own.adam_eps)
    seen = torch.from_numpy(envs.reset()[0]["state"]).unsqueeze(1).repeat_interleave(own.frames, 1)
    shape = steps, num_envs
    obs = torch.empty(shape + seen.shape[1:], dtype=seen.dtype)
    action, log_prob, value, reward, ended = torch.empty(shape, dtype=torch.int64), *torch.empty((4, *shape))
    begin, done = 0.0, -env_steps
    while done < env_steps:
        if not done:
            begin = time.monotonic()
        for t in range(steps):
            with torch.inference_mode():
                logits, value[t] = network({"state": seen})
                policy = torch.distributions.Categorical(logits=logits, validate_args=False)
                action[t] = policy.sample()
                log_prob[t], obs[t] = policy.log_prob(action[t]), seen
            new, scored, terminated, truncated, _ = envs.step(action[t].numpy())
            frame, over = torch.from_numpy(new["state"]).unsqueeze(1), torch.from_numpy(terminated | truncated)
            seen = torch.where(over.view(-1, 1, 1, 1, 1), frame, torch.cat((seen[:, 1:], frame), 1))
            reward[t], ended[t] = torch.from_numpy(scored), over
        with torch.inference_mode():
            after, last = network({"state": seen})[1], torch.zeros(num_envs)
        advantage = torch.empty(shape)
        for t in reversed(range(steps)):
            last = reward[t] - value[t] + own.gamma_start * (1 - ended[t]) * (after + own.lam * last)
            advantage[t], after = last, value[t]
        target = (advantage + value).flatten()
        scaled = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
        rows, chosen, old = obs.flatten(0, 1), action.flatten(), log_prob.flatten()
        for _ in range(own.epochs):
            for part in torch.randperm(len(rows)).split(own.minibatch_size):
                logits, values = network({"state": rows[part]})
                policy = torch.distributions.Categorical(logits=logits, validate_args=False)
                ratio = (policy.log_prob(chosen[part]) - old[part]).exp()
                clipped = ratio.clamp(1 - own.clip, 1 + own.clip)
                loss = -torch.minimum(ratio * scaled[part], clipped * scaled[part]).mean()
                loss = loss + own.vf_coef * (values - target[part]).square().mean()
                adam.zero_grad()
                (loss - own.entropy_start * policy.entropy().mean()).backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), own.max_grad_norm)
                adam.step()
        done += len(rows)
    return (time.monotonic() - begin) * env_steps / done


def of_puffer(path: Path, config: RunConfig, threads: int, env_steps: int) -> float:
    """Seconds, as its lines of progress have them."""
    row, plan = Row("pufferlib", "", "peer"), common.plan_of(config.app)
    with tempfile.TemporaryDirectory() as folder:
        start = start_of(row, path.resolve(), plan, Path(folder), 1, threads)
        first: dict[str, Any] = {}
        with subprocess.Popen(
            start.command, env=start.environment, cwd=folder, text=True, stdout=subprocess.PIPE
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                now = json.loads(line) if line.startswith('{"time"') else {"env_steps": 0}
                if now["env_steps"] >= env_steps:
                    first = first or now
                if first and (done := now["env_steps"] - first["env_steps"]) >= env_steps:
                    run.kill()
                    return float((now["time"] - first["time"]) * env_steps / done)
    sys.exit(f"error: PufferLib ended with exit code {run.returncode}")


def sb3_envs(config: RunConfig, seed: int) -> Any:
    """Those of the configuration. Atari's frames come from the library's own wrappers, of the same size and number."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    own: Any = hyper_of(config)
    num_envs = int(config.app.aisrv_connect_to_kaiwu_env_count)
    if config.env["id"].startswith("ALE/"):
        wrapper = {"screen_size": config.env.get("img_height", 84), "terminal_on_life_loss": False}
        game = config.env["id"].removeprefix("ALE/").split("-")[0]
        return VecFrameStack(
            make_atari_env(f"ale_py:{game}NoFrameskip-v4", num_envs, seed, wrapper_kwargs=wrapper), own.frames
        )
    envs: Any = make_vec_env(config.env["id"], num_envs, seed=seed)
    if own.normalise_obs or own.normalise_returns:
        envs = VecNormalize(envs, norm_obs=own.normalise_obs, norm_reward=own.normalise_returns, gamma=own.gamma_start)
    return envs


def sb3_model(config: RunConfig, seed: int) -> Any:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from realm.algorithms.networks import Encoder
    from realm.algorithms.settings import EncoderSettings

    class Features(BaseFeaturesExtractor):
        """The same convolutions. Images come as f32 [n, channels, height, width], from 0 to 1."""

        def __init__(self, space: Any) -> None:
            image = Field((*space.shape[1:], space.shape[0]), "uint8")
            encoder = Encoder({"state": image}, EncoderSettings(channels=own.channels))
            super().__init__(space, encoder.features)
            self.cnn = encoder.cnns["0"]

        def forward(self, image: Any) -> Any:
            return self.cnn(image)

    own: Any = hyper_of(config)
    envs = sb3_envs(config, seed)
    layers, activation = [own.hidden] * 2, torch.nn.Tanh if own.activation == "tanh" else torch.nn.ReLU
    network = {"net_arch": {"pi": layers, "vf": layers}, "activation_fn": activation}
    if images := len(envs.observation_space.shape) == 3:
        network = {"net_arch": [], "features_extractor_class": Features}
    return PPO(
        "CnnPolicy" if images else "MlpPolicy", envs,
        n_steps=own.chunk_length, batch_size=own.minibatch_size, n_epochs=own.epochs,
        gamma=own.gamma_start, gae_lambda=own.lam, clip_range=own.clip, ent_coef=own.entropy_start,
        learning_rate=lambda left: own.lr_end + left * (own.lr_start - own.lr_end), vf_coef=own.vf_coef,
        max_grad_norm=own.max_grad_norm, device="cpu", seed=seed,
        policy_kwargs={**network, "ortho_init": own.orthogonal, "log_std_init": own.log_std},
    )  # fmt: skip


def of_sb3(config: RunConfig, threads: int, env_steps: int) -> float:
    import torch

    torch.set_num_threads(threads)
    model = sb3_model(config, seed=0)
    model.learn(env_steps)
    begin, before = time.monotonic(), model.num_timesteps
    model.learn(env_steps, reset_num_timesteps=False)
    return (time.monotonic() - begin) * env_steps / (model.num_timesteps - before)


def returns_of_realm(path: Path, config: RunConfig, seed: int, env_steps: int) -> list[float]:
    """Mean returns of the evaluations."""
    table = hyper_of(config).table
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"max_env_steps={env_steps}", f"{table}.total_env_steps={env_steps}", f"seed={seed}"]
        settings += ["run_name=beside", f"eval_every_steps={env_steps // EVALUATIONS}"]
        if code := common.run_process(common.start_command(path, [f"log_dir={folder}", *settings])):
            sys.exit(f"error: a run of {path} ended with exit code {code}")
        lines = (Path(folder) / "beside" / "evaluations.jsonl").read_text().splitlines()
    return [float(json.loads(line)["score"]) for line in lines]


def returns_of_sb3(config: RunConfig, seed: int, env_steps: int) -> list[float]:
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    model = sb3_model(config, seed)
    envs: Any = make_vec_env(config.env["id"], 1, seed=seed + 100)
    if isinstance(model.get_env(), VecNormalize):
        envs = VecNormalize(envs, training=False, norm_obs=model.get_env().norm_obs, norm_reward=False)
    with tempfile.TemporaryDirectory() as folder:
        every = env_steps // EVALUATIONS // model.n_envs
        model.learn(env_steps, EvalCallback(envs, n_eval_episodes=10, eval_freq=every, log_path=folder, verbose=0))
        found = np.load(Path(folder) / "evaluations.npz")["results"]
    return [float(one.mean()) for one in found]


def compare_returns(args: argparse.Namespace, config: RunConfig) -> None:
    """Print a table of the last evaluations of each seed, and write all of them."""
    rows: dict[str, Callable[..., list[float]]] = {
        "realm": lambda seed, _: returns_of_realm(args.config, config, seed, args.env_steps),
        "sb3": lambda seed, _: returns_of_sb3(config, seed, args.env_steps),
    }
    curves = {
        who: [found[seed] for seed in sorted(found)] for who, found in common.in_rounds(rows, args.rounds).items()
    }
    print("\n| seed | Realm, last five of its evaluations | stable-baselines3 |\n|---:|---:|---:|")
    for seed, (ours, theirs) in enumerate(zip(*curves.values(), strict=True), 1):
        print(f"| {seed} | {statistics.fmean(ours[-5:]):,.0f} | {statistics.fmean(theirs[-5:]):,.0f} |")
    finish(args.out, {"returns": curves})


def finish(out: Path, results: dict[str, Any]) -> None:
    about = common.about()
    print(f"\n{common.made_by(about)}")
    common.write_json(out, {"about": about, **results})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=common.ROOT / "conf" / "ppo" / "halfcheetah.toml")
    parser.add_argument("--env-steps", type=int, default=16_384)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="of each; with --returns the seeds (default: 3)")
    parser.add_argument("--loop", action="store_true", help="beside a loop, too: for frames on a shared trunk")
    parser.add_argument("--puffer", action="store_true", help="beside PufferLib, too, with the images divided by 255")
    parser.add_argument("--returns", action="store_true", help="compare returns over env steps, not seconds")
    parser.add_argument("--out", type=Path, default=Path("train/sb3.json"))
    args = parser.parse_args()
    common.end_in_order()
    common.check_out(args.out)
    config, scale = load_config(args.config), 1e6 / args.env_steps
    if args.returns:
        return compare_returns(args, config)
    others: dict[str, Callable[[int], float]] = {"stable-baselines3": lambda n: of_sb3(config, n, args.env_steps)}
    if args.loop:
        others["loop"] = lambda n: of_loop(config, n, args.env_steps)
    if args.puffer:
        others["PufferLib"] = lambda n: of_puffer(args.config, config, n, args.env_steps)
    rows: dict[str, Callable[..., float]] = {}
    for n in args.threads:
        for who, one in {"Realm": lambda n: of_realm(args.config, n, args.env_steps), **others}.items():
            rows[f"{who} {n}"] = lambda *_, n=n, one=one: scale * one(n)
    taken = {name: list(found.values()) for name, found in common.in_rounds(rows, args.rounds).items()}
    medians = {name: common.spread(seconds).median for name, seconds in taken.items()}
    print(f"\n| | {' | '.join(f'{n} threads, s' for n in args.threads)} | Realm takes of it | ... of its fastest |")
    print(f"|---|{'---:|' * (len(args.threads) + 2)}")
    ours = [medians[f"Realm {n}"] for n in args.threads]
    for who in ("Realm", *others):
        theirs = [medians[f"{who} {n}"] for n in args.threads]
        same = ", ".join(f"{mine / other:.2f}" for mine, other in zip(ours, theirs, strict=True))
        print(f"| {who} | {' | '.join(f'{s:,.0f}' for s in theirs)} | {same} | {min(ours) / min(theirs):.2f} |")
    finish(args.out, {"seconds_for_1m": taken})


if __name__ == "__main__":
    common.command_line(main)
