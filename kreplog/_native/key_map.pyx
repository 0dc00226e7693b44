"""KeyMap: the largest offset of each key, in bounded memory. The layout is at the top of key_map.pxd."""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import os

from kreplog.errors import ResourceExhaustedError

cdef enum:
    LEAST_SLOTS = 16


@cython.final
cdef class KeyMap:

    def __cinit__(self):
        self.slots = NULL

    def __dealloc__(self):
        free(self.slots)

    def __init__(self, int64_t size, int64_t records):
        """size: bytes of memory at most. records: as many keys as there may be, if it has room for them.

        Raises ResourceExhaustedError where that much memory cannot be had."""
        cdef bytes secret = os.urandom(16)
        cdef const unsigned char* drawn = secret
        self.capacity = <uint64_t> max(
            min(size // <int64_t> sizeof(Slot), records + records // 2), <int64_t> LEAST_SLOTS
        )
        self.limit = <int64_t> (self.capacity - self.capacity // 10)  # beyond, probes would get long
        memcpy(self.secret, drawn, sizeof(self.secret))
        self.slots = <Slot*> calloc(self.capacity, sizeof(Slot))
        if self.slots == NULL:
            raise ResourceExhaustedError(
                f"no memory for a table of {self.capacity} keys ({self.capacity * sizeof(Slot)} bytes): lower "
                "dedupe_buffer_size"
            )
