class Config:
    STEPS = 128
    FEATURES = 10_404
    SAMPLE_DIM = STEPS * FEATURES  # 5.5 MB
