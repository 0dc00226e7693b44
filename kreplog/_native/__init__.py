"""Bytes, files and offsets: every byte of a record passes here and nowhere else. Knows nothing of replicas."""
