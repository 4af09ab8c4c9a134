"""The five roles. Each module has one `run(job)` with one loop; none imports another."""
