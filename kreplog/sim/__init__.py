"""The simulator: a cluster in one process and in virtual time, with the same cores, seeded faults, and checkers."""
