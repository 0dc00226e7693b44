"""The controller's decisions: who leads each partition, where its replicas lie, and the requests that brokers get."""
