"""Benchmarks of kreplog against a ceiling and against what a Python user would pick instead; see README.md here."""
