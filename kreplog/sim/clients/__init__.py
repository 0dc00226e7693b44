"""Clients of the simulator: producers, consumers, members of groups, transactional producers."""
