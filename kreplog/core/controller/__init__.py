"""The controller's decisions: who leads each partition, where its replicas lie, and what each broker is told."""
