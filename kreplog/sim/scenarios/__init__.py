"""Scenarios: scripts of a run and what it must show, written by hand; those of this folder's texts are lessons, too."""
