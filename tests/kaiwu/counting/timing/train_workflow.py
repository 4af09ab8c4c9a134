import json
import time
from pathlib import Path

import numpy as np
import psutil
from timing.config import Config
from timing.feature import definition
from timing.feature.definition import SampleData, action_process, observation_process
from kaiwudrl.common.config.config_control import CONFIG


def ms(seconds):
    return round(float(np.median(seconds)) * 1e3, 3)


def workflow(envs, agents, logger=None, monitor=None):
    env, agent = envs[0], agents[0]
    obs = env.reset({"diy": {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 5}})
    asked, learnt, copied, memory = [], [], [], psutil.Process().memory_info()
    for _ in range(40):
        agent.load_model(id="latest")
        rows = []
        while len(rows) < Config.STEPS:
            obs_data = observation_process(obs)
            began = time.perf_counter()
            act_data = agent.predict([obs_data])[0]
            asked.append(time.perf_counter() - began)
            _, obs, _, terminated, truncated, _ = env.step(action_process(act_data))
            rows.append(obs_data.feature)
            if terminated or truncated:
                obs = env.reset({"diy": {"start": 2, "end": 1, "treasure_random": 1, "treasure_num": 5}})
        sample = SampleData(rows=rows)
        began = time.perf_counter()
        agent.learn([sample])
        learnt.append(time.perf_counter() - began)
        vector = np.concatenate(rows)
        began = time.perf_counter()
        vector.copy()
        vector.copy()
        copied.append(time.perf_counter() - began)
    inside = agent.inside or [0.0]
    report = {
        "predict_ms": ms(asked),
        "own_predict_ms": ms(inside),
        "learn_ms": ms(learnt),
        "own_encoding_ms": ms(definition.encoding),
        "two_copies_ms": ms(copied),
        "update_to_prediction_s": round(float(np.median(agent.arrived)), 3) if agent.arrived else None,
        "rss_mb": memory.rss // 2**20,
        "unique_mb": psutil.Process().memory_full_info().uss // 2**20,
    }
    Path(CONFIG.log_dir, "timing.json").write_text(json.dumps(report, indent=1))
