"""Replication of one broker: its partitions as leader or follower, delayed requests, and fetches from leaders."""
