"""Measures the project against what it replaces; docs/benchmarks.md says how to run it and shows the results."""
