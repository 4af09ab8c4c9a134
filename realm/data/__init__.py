"""Samples on their way from workers to the learner: the buffer, its storages, and the version gate."""
