"""Consumer groups: the coordinator core of one broker, for the classic protocol and that of KIP-848."""
