"""How one broker replicates: its partitions as leader or follower, what waits, and what it fetches from whom."""
