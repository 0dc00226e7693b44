"""Transactions: the coordinator core of one broker."""
