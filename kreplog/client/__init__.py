"""Clients of a running cluster: requests that client libraries lack, for the command and those who start brokers."""
