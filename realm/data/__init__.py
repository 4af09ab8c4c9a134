"""Samples on their way from workers to the learner: the buffer and its storages."""
