"""What happens to a batch and to the weights: updates, checkpoints, the best model, evaluation."""
