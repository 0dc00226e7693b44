"""The bytes of the log: record batches, indexes, segments, checkpoints; nothing here knows of replicas.

Compiled, private to kreplog, and free of the GIL for I/O, checksums and scans. The public face is `kreplog.Log`.
"""
