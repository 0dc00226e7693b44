"""The parts of the flights demo: where the flights come from, one writer, a cluster, and what Spark makes of them."""
