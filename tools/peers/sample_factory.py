"""Sample Factory: APPO, asynchronous; no action masks.

Each sampling process, as many as there are spare cores, has its share of the environments in one vector environment. It
knows no masks: an illegal flash is a step on foot, as in the game. Its learner sets torch to one thread by itself; here
it has as many as `OMP_NUM_THREADS` says, if that is set.
"""

# requires: sample-factory==2.1.1
# afterwards: gymnasium==1.4.0

from __future__ import annotations

import functools
import os
import sys
import tempfile
from typing import Any

import gymnasium
import numpy as np
import torch
from sample_factory.algo.learning import learner_worker
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.torch_utils import init_torch_runtime
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from torch import Tensor

from tools.peers.common import Bytes, Realms, Setup, Trunk, read_setup, report, row_space

# it relies on wrappers that hand attributes through, as those of the gymnasium that it asks for
gymnasium.Wrapper.__getattr__ = lambda wrapper, name: getattr(wrapper.__dict__["env"], name)

# the learner's process imports this file too
threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
learner_worker.init_torch_runtime = functools.partial(init_torch_runtime, max_num_threads=threads)


class Envs(gymnasium.Env):
    """A worker's share of the realms, in one call, with tensors."""

    def __init__(self, setup: Setup, num_envs: int, seed: int) -> None:
        self._realms = Realms(setup, num_envs, seed)
        self.num_agents, self.is_multiagent = num_envs, True
        self.observation_space = row_space(self._realms.size, self._realms.dtype)
        self.action_space = gymnasium.spaces.Discrete(self._realms.actions)
        self._score = torch.zeros(num_envs)

    def reset(self, **options: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return torch.from_numpy(self._realms.reset()[0]), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        step = self._realms.step(actions)
        ended = torch.from_numpy(step.terminated | step.truncated)
        self._score[ended] = torch.tensor(self._realms.scores)
        self._realms.scores.clear()
        arrays = (step.features, step.reward, step.terminated, step.truncated)
        return (*map(torch.from_numpy, arrays), {"score": self._score})  # of those that have ended it is taken


def make_envs(setup: Setup, share: int, name: str, config: Any, place: Any, render_mode: Any = None) -> Envs:
    return Envs(setup, share, 1000 * place.worker_index if place else 0)


class Published(Encoder):
    """The published trunk over the bytes of image and vector."""

    def __init__(self, config: Any, obs_space: Any) -> None:
        super().__init__(config)
        self.trunk = Bytes()

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.trunk(obs["obs"])

    def get_out_size(self) -> int:
        return Trunk.size

    def type_for_input_tensor(self, input_tensor_name: str) -> torch.dtype:
        return torch.uint8


class Tell(AlgoObserver):
    def __init__(self) -> None:
        self.scores: list[float] = []

    def scores_of(self, runner: Runner, message: dict[str, Any], policy: int) -> None:
        self.scores += np.atleast_1d(message["episodic"]["score"]).tolist()

    def on_training_step(self, runner: Runner, iteration: int) -> None:
        report(sum(runner.env_steps.values()), iteration, self.scores)


def main() -> None:
    setup = read_setup()
    ppo, cores = setup.ppo, len(os.sched_getaffinity(0))
    workers = max(1, min(cores - 1, 8))
    share = setup.num_envs // workers
    rollout = min(ppo.chunk_length, setup.minibatch)  # a longer one does not fit into a batch of its kind
    options = {
        "env": "realm", "device": "cpu", "train_dir": tempfile.mkdtemp(), "seed": setup.seed, "batched_sampling": True,
        "num_workers": workers, "num_envs_per_worker": 1, "worker_num_splits": 1, "rollout": rollout,
        "batch_size": setup.minibatch, "num_batches_per_epoch": setup.minibatches, "num_epochs": ppo.epochs,
        "shuffle_minibatches": True, "gamma": ppo.gamma_start, "gae_lambda": ppo.lam, "ppo_clip_ratio": ppo.clip,
        "ppo_clip_value": 1e6, "learning_rate": ppo.lr_start, "adam_eps": ppo.adam_eps, "use_rnn": False,
        "max_grad_norm": ppo.max_grad_norm, "value_loss_coeff": ppo.vf_coef, "value_bootstrap": True,
        "exploration_loss_coeff": ppo.entropy_start, "encoder_mlp_layers": [ppo.hidden, ppo.hidden],
        "nonlinearity": "relu", "actor_critic_share_weights": False, "normalize_input": False,
        "normalize_returns": False, "set_workers_cpu_affinity": False, "log_to_file": False,
        "env_gpu_observations": False, "decorrelate_envs_on_one_worker": False,
    }  # fmt: skip

    register_env("realm", functools.partial(make_envs, setup, share))
    if ppo.features != "small":
        global_model_factory().register_encoder_factory(Published)
    parser, _ = parse_sf_args(["--env=realm"])
    parser.set_defaults(**options)
    _, runner = make_runner(parse_full_cfg(parser, ["--env=realm"]))
    tell = Tell()
    runner.register_observer(tell)
    runner.register_episodic_stats_handler(tell.scores_of)
    runner.init()
    sys.exit(runner.run())


if __name__ == "__main__":
    main()
