# Hyper-parameters of our PPO.


class Config:
    WINDOW = 3  # cells around the hero, each side
    CROP = (2 * WINDOW + 1) ** 2
    # position as one-hot of 16 + 16 blocks, end and 3 treasures (9 numbers each), flash, obstacles, memory
    FEATURES = 32 + 9 + 3 * 9 + 1 + 2 * CROP
    ACTIONS = 8  # walking only

    STEPS = 128  # of a trajectory
    TRAJECTORIES = 2  # of a call of learn
    # features, legal, action, log-probability, advantage, return
    SAMPLE_DIM = STEPS * (FEATURES + 4)

    GAMMA = 0.995
    LAMBDA = 0.95
    LR = 5e-4
    CLIP = 0.2
    ENTROPY = 0.01
    EPOCHS = 4
    MINIBATCH = 256
