"""Sockets: connections, requests of clients and other brokers, the internal listener's handshake."""
