"""What answers `predict`, as far as it needs no socket: a policy in this process, its memory, and the version gate."""
