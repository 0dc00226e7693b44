"""The decisions: sans-I/O state machines and rules; no threads, sockets, files, clocks or randomness of their own."""
