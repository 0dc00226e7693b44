"""Consumer groups: the coordinator core of one broker, for the classic protocol."""
