"""Checkers: they compare what clients and disks show with the guarantees."""
