"""An agent that learns nothing and checks everything: `learn` raises on the first row that is not what was played."""

import gc
import time

import numpy as np
import torch

from tests.counting.tally import note


class Agent:
    def __init__(self, spec, config, device, seed):
        self.config = config
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
        self.last = {}  # (worker, incarnation, env) -> (seq, count at the chunk's end, first at the end)
        self.env_steps = 0
        self.nans = 0
        self.calls = 0
        self.group = None  # of several learners
        self.told = None  # env steps and size of the memory, as this process's last prediction heard of them

    def predict(self, obs, context):
        self.normalise(obs["count"], moves=False)
        self.told = context.env_steps, context.memory_size
        count = obs["count"][:, 0]
        if self.config.remember:  # steps of this episode that the policy has seen, and which episode it was
            steps = context.state["steps"]
            assert (steps[:, 0] == obs["count"][:, 2]).all(), "moved twice, or not at all, or of another environment"
            assert ((steps[:, 1] == obs["count"][:, 1]) | context.first).all(), "the memory of another episode"
            after = np.stack([steps[:, 0] + 1, obs["count"][:, 1]], 1)
            return count % 1000, {"echo": count.copy()}, {"steps": after}
        return count % 1000, {"echo": count.copy()}

    def join(self, group):
        self.group = group

    def learn(self, batch, info):
        self.check(batch, info)
        note(self.config.tally, "trained", batch)
        self.calls += 1
        if self.group:
            self.check_parts(batch)
        self.normalise(np.array(self.calls) if self.group else batch.obs["count"], moves=True)
        torch.nn.init.constant_(self.model[0].weight, self.calls)  # no two versions have the same weights
        if not self.config.nan_late:
            self.spoil()
        time.sleep(self.config.learn_s / 2)
        if self.config.early:
            yield
        time.sleep(self.config.learn_s / 2)
        if self.config.nan_late:
            self.spoil()
        priorities = 1.0 + batch.env if self.config.ranks else None
        return {"checked_rows": float(len(batch.worker))}, priorities

    def spoil(self):
        if self.config.nan_from and self.calls >= self.config.nan_from and self.nans < self.config.nan_times:
            self.nans += 1
            torch.nn.init.constant_(self.model[0].weight, float("nan"))

    def normalise(self, count, moves):
        """Forward two rows. Raises where that moves the running mean while acting, or does not while learning."""
        batches = int(self.model[1].num_batches_tracked)
        with torch.no_grad():
            self.model(torch.full((2, 1), float(count.flat[0] % 1000)))
        assert int(self.model[1].num_batches_tracked) - batches == moves, f"training mode is {self.model.training}"

    def check(self, batch, info):
        """Raise unless every row is what was played; count them."""
        assert gc.isenabled()  # held while the role started
        before = info.env_steps - info.new_env_steps  # a return to a checkpoint takes back this agent's count alone
        assert before == self.env_steps or (self.config.nan_from and before > self.env_steps), "steps lost, or made up"
        self.env_steps = info.env_steps
        if self.told is not None and info.new_env_steps:  # in one process; since then a round was played
            assert 0 <= info.env_steps - self.told[0] <= 500, (info, self.told)
            assert abs(info.size - self.told[1]) <= 500, (info, self.told)
        if self.config.n_step:
            self._check_rows(batch)
            return
        for b in range(len(batch.worker)):
            self._check_chunk(batch, b)
        if self.config.strict:
            versions = np.unique(batch.version.reshape(-1, 2), axis=0)
            assert len(versions) == 1, f"a batch of versions {versions.tolist()}"
            assert int(versions[0][1]) == info.version.update, (versions.tolist(), info.version)
        if self.config.once:
            assert (info.times_sampled == 1).all(), info.times_sampled

    def check_parts(self, batch):
        """The ranks have parts of equal size, in which no chunk is twice."""
        own = np.stack([batch.worker, batch.incarnation, batch.env, batch.seq], 1)
        every = self.group.rows(torch.from_numpy(own)).numpy()
        assert len(every) == self.group.size * len(own)
        assert len(np.unique(every, axis=0)) == len(every), "a chunk is in two parts"

    def _check_rows(self, batch):
        """Every row is what was played: n steps of one episode, or fewer where it ended."""
        n_step, length = self.config.n_step, self.config.episode_length + batch.env % 5
        obs, after = batch.obs["count"], batch.next_obs["count"]
        if self.config.look_back:
            for seen in (obs, after):  # consecutive steps of one episode; its first one may be repeated
                step = seen[:, :, 2]
                assert (np.diff(seen[:, :, 1], axis=1) == 0).all(), "it looks back into another episode"
                assert ((np.diff(step, axis=1) == 1) | ((step[:, :-1] == 0) & (step[:, 1:] == 0))).all(), step
            obs, after = obs[:, -1], after[:, -1]
        assert (batch.action == obs[:, 0] % 1000).all(), "another row's action"
        assert (batch.extra["echo"] == obs[:, 0]).all(), "another row's extra"
        assert (batch.step["raw"] == obs[:, 0] * 3).all(), "another row's number of the workflow"
        n, ended = after[:, 0] - obs[:, 0], after[:, 2] >= length
        assert ((n == n_step) | (ended & (n >= 1) & (n < n_step))).all(), "n steps, or to the episode's end"
        assert (after[:, 1] == obs[:, 1]).all(), "a row crosses episodes"
        assert (after[:, 2] == obs[:, 2] + n).all(), "a row crosses a reset"
        reward = sum(np.where(k < n, 0.5**k * (obs[:, 2] + k + 1), 0.0) for k in range(n_step))
        np.testing.assert_allclose(batch.reward, reward, rtol=1e-6)
        terminated = ended & (obs[:, 1] % 3 != 2)  # a time limit is no end: the value of what would come counts
        np.testing.assert_array_equal(batch.discount, np.where(terminated, 0.0, 0.5**n).astype(np.float32))

    def _check_chunk(self, batch, b):
        count, first, valid = batch.obs["count"][b], batch.first[b], batch.valid[b]
        who = (int(batch.worker[b]), int(batch.incarnation[b]), int(batch.env[b]))
        seq = int(batch.seq[b])
        assert (np.diff(count[:, 0]) == 1).all(), f"{who} seq {seq}: rows lost or reordered: {count[:, 0]}"
        assert (batch.action[b] == count[:-1, 0] % 1000).all(), f"{who} seq {seq}: another row's action"
        assert (batch.extra["echo"][b] == count[:-1, 0]).all(), f"{who} seq {seq}: another row's extra"
        assert (batch.step["raw"][b] == count[:-1, 0] * 3).all(), (
            f"{who} seq {seq}: another row's number of the workflow"
        )
        assert (first == (count[:, 2] == 0)).all(), f"{who} seq {seq}: first is wrong"
        # a row is not valid exactly where the next row begins an episode: nothing is trained on across a reset
        assert (valid == ~first[1:]).all(), f"{who} seq {seq}: valid is wrong"
        assert (batch.reward[b][valid] == count[1:, 2][valid]).all(), f"{who} seq {seq}: another row's reward"
        assert (batch.reward[b][~valid] == 0).all(), f"{who} seq {seq}: a reset row has a reward"
        ended = batch.terminated[b] | batch.truncated[b]
        assert (ended[:-1] == ~valid[1:]).all(), f"{who} seq {seq}: ends and resets do not match"
        same_episode = count[1:, 1] == count[:-1, 1]
        assert (same_episode == valid).all(), f"{who} seq {seq}: a valid row crosses episodes"
        if self.config.remember:
            assert batch.state["steps"][b, 0] == count[0, 2], f"{who} seq {seq}: the memory is not that before row 0"
        if self.config.once:
            if who in self.last:
                last_seq, last_count = self.last[who]
                assert seq > last_seq, f"{who}: chunk {seq} came after {last_seq}: doubled or out of order"
                # chunks that the buffer refused leave a gap of whole chunks, and of nothing else
                assert int(count[0, 0]) - last_count == (seq - last_seq - 1) * len(valid), f"{who}: a gap inside"
            self.last[who] = (seq, int(count[-1, 0]))

    def save_model(self):
        return {"env_steps": self.env_steps}

    def load_model(self, state):
        self.env_steps = state["env_steps"]
