"""Scenarios: scripts of a run and what it must show, written by hand."""
