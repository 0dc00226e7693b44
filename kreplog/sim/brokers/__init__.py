"""Brokers of the simulator: the cores, and the shell that carries out their effects; an administrator."""
