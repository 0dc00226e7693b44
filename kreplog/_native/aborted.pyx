"""AbortedFilter: which batches, read in the order of their offsets, belong to aborted transactions.

A fetch says of each aborted transaction its producer and where it begins; the next marker of that producer ends it.
Source: KIP-98, Kafka's consumer.
"""

cimport cython
from kreplog._native.batch cimport TRANSACTIONAL, BatchHeader, is_control, next_offset_of


@cython.final
cdef class AbortedFilter:
    """Finds the batches of aborted transactions. transactions: (producer id, first offset) of each, in any
    order."""

    def __init__(self, transactions):
        self.pending = sorted([(first, producer) for producer, first in transactions], reverse=True)
        self.aborting = set()

    cdef bint skips(self, const BatchHeader* header) except -1:
        """Whether the batch, whose CRC holds, is of an aborted transaction, or is the marker that aborts one."""
        while self.pending and self.pending[len(self.pending) - 1][0] < next_offset_of(header):
            self.aborting.add(self.pending.pop()[1])
        if not self.aborting or header.producer_id < 0 or header.producer_id not in self.aborting:
            return False
        if is_control(header):
            self.aborting.discard(header.producer_id)
            return True
        return (header.attributes & TRANSACTIONAL) != 0
