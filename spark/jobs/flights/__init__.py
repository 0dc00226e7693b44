"""The parts of the flights demo: the flights, a live producer, three brokers, a streaming job, and its results."""
