# Transaction markers: control batches that commit or abort.

from libc.stdint cimport int32_t, uint8_t

from kreplog._native.batch cimport BatchHeader


cdef struct Marker:
    bint committed
    int32_t coordinator_epoch


cdef bint read_marker(const uint8_t* batch, const BatchHeader* h, Marker* out) noexcept nogil
