"""The roles: five that train, and the evaluator. Each module has one `run(job)` with one loop and imports no other."""
