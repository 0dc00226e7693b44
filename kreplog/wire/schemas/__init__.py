"""What brokers of one cluster say to each other, in Kafka's schema language: one JSON file for each message."""
