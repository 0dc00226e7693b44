"""Kafka's replicated log as a Python package."""

__version__ = "0.1.0"
