"""Appends of many batches that become visible together, in one log or in several: what sinks are built from.

`Log.append_once` is all that one log needs. Several logs, or batches that other processes encode, take the parts of it:
PartitionedWriter stages batches in a file, BulkAppend puts them into a log, commits, and shows them to readers.
"""

from __future__ import annotations

from kreplog._native.bulk import BulkAppend, last_sequence
from kreplog._native.checkpoint import atomic_write
from kreplog._native.partitioned import PartitionedWriter
from kreplog._native.partitioner import murmur2, partition_for

__all__ = ["BulkAppend", "PartitionedWriter", "atomic_write", "last_sequence", "murmur2", "partition_for"]
