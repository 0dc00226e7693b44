"""Several brokers on one host, each a process: their directory, start, stop."""
