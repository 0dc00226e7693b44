"""Several brokers on one host, each a process: their files, start and stop, plans of rebalances."""
