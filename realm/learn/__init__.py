"""Updates on batches, checkpoints, the best model, evaluation."""
