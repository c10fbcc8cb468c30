"""Benchmarks that users run with `onetool bench`."""
