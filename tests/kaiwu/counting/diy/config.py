import os

import numpy as np


class Config:
    SAMPLE_DIM = np.int64(3 + 50 + 4)
    ROUNDS = int(os.environ.get("ROUNDS", "60"))
