"""Client quotas: which one holds for a client, and how long a client that exceeds it is throttled (KIP-13)."""
