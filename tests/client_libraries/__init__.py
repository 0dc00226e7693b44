"""A package, so that the brokers of its fixture end with its last test."""
