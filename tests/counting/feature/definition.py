"""An environment that counts: its observation says which step of which episode it is, so a learner can tell whether
any row was lost, doubled, reordered or glued to a neighbour's on its way (the idea is dreamerv3's)."""

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from realm.contract import ActionSpec, Draw, Field, Spec


class CountingEnvs(VectorEnv):
    """obs `count` i64 [E, 3]: total steps and resets so far, episode, step in the episode. NEXT_STEP autoreset."""

    def __init__(self, num_envs, episode_length):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = spaces.Dict({"count": spaces.Box(0, 2**40, (3,), np.int64)})
        self.single_action_space = spaces.Discrete(1000)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.length = episode_length + np.arange(num_envs) % 5
        self.count = np.zeros((num_envs, 3), np.int64)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        self.ended[:] = False
        return {"count": self.count.copy()}, {}

    def step(self, actions):
        # the policy's action is a function of the observation it saw: an answer to another question is found out
        # (the very first is not checked: the start's own try of the environment plays a random one)
        assert ((actions == self.count[:, 0] % 1000) | (self.count[:, 0] == 0)).all(), (actions, self.count[:, 0])
        reset = self.ended.copy()
        self.count[:, 0] += 1
        self.count[:, 1] += reset
        self.count[:, 2] = np.where(reset, 0, self.count[:, 2] + 1)
        over = (self.count[:, 2] >= self.length) & ~reset
        truncated = over & (self.count[:, 1] % 3 == 2)
        terminated = over & ~truncated
        self.ended = over
        reward = np.where(reset, -1.0, self.count[:, 2]).astype(np.float32)
        info = {"episode": {"score": self.count[:, 2].astype(float)}, "_episode": over}
        return {"count": self.count.copy()}, reward, terminated, truncated, info


def make_envs(num_envs, seed, config, options):
    return CountingEnvs(num_envs, config.episode_length)


def spec(envs, config):
    return Spec(
        obs={"count": Field((3,), "int64")},
        action=ActionSpec(n=1000),
        extra={"echo": Field((), "int64")},
        step={"raw": Field((), "int64")},
        chunk_length=config.chunk_length,
        state={"steps": Field((2,), "int64")} if config.remember else {},
        draw=Draw(config.n_step, 0.5, config.look_back) if config.n_step else None,
    )
