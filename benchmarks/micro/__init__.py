"""Micro-benchmarks by pytest-benchmark: `make bench-micro` saves a run, compares it with the last, and draws both.

With --benchmark-disable they are quick tests, which tests/test_benchmarks.py runs.
"""
