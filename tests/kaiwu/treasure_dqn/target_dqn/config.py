class Config:
    # position blocks, end, three nearest treasures, 7x7 obstacles, 7x7 memory
    DIM_OF_OBSERVATION = 32 + 9 + 27 + 49 + 49
    DIM_OF_ACTION = 8
    SAMPLE_DIM = 2 * DIM_OF_OBSERVATION + 3

    GAMMA = 0.98
    LR = 5e-4
    TARGET_UPDATE_FREQ = 200
    MEMORY = 20_000
    BATCH = 128
    EPSILON = 0.05
    EPSILON_START = 0.6
    EPSILON_STEPS = 20_000
