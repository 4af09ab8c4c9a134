"""The counting user with models that differ: an episode of the evaluator scores minus the number of the updates that
the model has had, so every score tells which model has played, and the first model evaluated is the best one."""

import time

from tests.counting.feature.definition import CountingEnvs, spec

JUDGES_SEEDS = range(1_000_000, 2_001_000)  # the evaluator's and that of `realm eval`; a worker's is below 2**31

__all__ = ["make_envs", "spec"]


class EvaluatedEnvs(CountingEnvs):
    def __init__(self, num_envs, config):
        super().__init__(num_envs, config.episode_length)
        self.config = config

    def step(self, actions):
        time.sleep(self.config.step_s)
        obs, reward, terminated, truncated, info = super().step(self.count[:, 0] % 1000)
        info["episode"] = {"length": self.count[:, 2].copy(), "score": -actions.astype(float)}
        return obs, reward, terminated, truncated, info if self.config.reports else {}


def make_envs(num_envs, seed, config, options):
    return EvaluatedEnvs(num_envs, config) if seed in JUDGES_SEEDS else CountingEnvs(num_envs, config.episode_length)
