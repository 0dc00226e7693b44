"""A whole cluster in one process and in virtual time: the same cores, under seeded faults, judged from outside."""
