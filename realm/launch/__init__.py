"""Starts a run: checks (`start`), then one process (`local`) or a cluster (`supervisor`)."""
