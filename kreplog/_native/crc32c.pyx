# cython: language_level=3
"""CRC-32C of bytes: the fastest implementation that this CPU runs, chosen once at import.

crc32c_impl.h holds the implementations by CPU instruction; `crcmod` serves where there are none. Others cimport
`crc32c_update`, which needs no GIL (only the crcmod fallback takes it).
"""

from cpython.exc cimport PyErr_SetInterrupt
from libc.stdint cimport uint8_t, uint32_t

from crcmod.predefined import mkPredefinedCrcFun

from kreplog.errors import UsageError

cdef extern from "crc32c_impl.h" nogil:
    ctypedef uint32_t (*kreplog_crc_function)(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil
    ctypedef struct kreplog_crc_choice:
        const char* name
        kreplog_crc_function function
    kreplog_crc_choice* kreplog_crc_choices
    int kreplog_crc_choice_count
    void kreplog_crc_detect()

cdef object _crcmod_crc = mkPredefinedCrcFun("crc-32c")
cdef kreplog_crc_function _chosen = _by_crcmod

# Shorter pieces are summed with the GIL held: giving it up and taking it back costs more than the sum.
cdef Py_ssize_t _RELEASE_GIL_FROM = 16384


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil:
    """The CRC-32C of all bytes so far, `crc` being that of those before `data` (0 when there are none)."""
    return ~_chosen(~crc, data, length)


def crc32c(data, uint32_t value=0):
    """The CRC-32C of `data` (any contiguous buffer), following bytes whose CRC-32C is `value`."""
    cdef const uint8_t[::1] view
    cdef uint32_t crc = value
    view = memoryview(data).cast("B")
    if view.shape[0]:
        crc = crc32c_update(crc, &view[0], view.shape[0])
    return crc


cdef uint32_t _by_crcmod(uint32_t crc, const uint8_t* data, size_t length) noexcept with gil:
    if length == 0:
        return crc
    return ~(<uint32_t> _crcmod_crc(<const uint8_t[:length]> data, <uint32_t> ~crc))


kreplog_crc_detect()
if kreplog_crc_choice_count:
    _chosen = kreplog_crc_choices[kreplog_crc_choice_count - 1].function
