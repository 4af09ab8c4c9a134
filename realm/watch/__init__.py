"""Numbers on their way to the eye: meters, the board, TensorBoard, progress, the summary."""
