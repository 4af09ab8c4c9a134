"""Starts a run: decides its numbers (`plan`), in one process (`local`) or as a cluster (`processes`)."""
