"""CRC-32C of bytes: the fastest implementation that this CPU runs, chosen once at import.

crc32c_impl.h holds those that use CPU instructions; `crcmod` serves where there are none. Other modules cimport
`crc32c_update`, which needs no GIL (only crcmod takes it). The environment variable KREPLOG_CRC32C names one of
`available()` to use instead, for tests and for a CPU under suspicion.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetInterrupt
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint8_t, uint32_t

from kreplog.errors import ArgumentTypeError, UsageError

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept

cdef extern from "crc32c_impl.h" nogil:
    ctypedef uint32_t (*kreplog_crc_function)(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil
    ctypedef struct kreplog_crc_choice:
        const char* name
        kreplog_crc_function function
    kreplog_crc_choice* kreplog_crc_choices
    int kreplog_crc_choice_count
    void kreplog_crc_detect() noexcept

# Shorter data is summed with the GIL held: giving it up and taking it back would cost more than the sum.
cdef Py_ssize_t _RELEASE_GIL_FROM = 65536

cdef kreplog_crc_function _chosen = NULL
cdef str _chosen_name = "crcmod"
cdef object _crcmod_crc = None


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t length) noexcept nogil:
    """The CRC-32C of the bytes that gave `crc` (0 for none) followed by data[0:length]."""
    return ~_chosen(~crc, data, length)


def crc32c(data, value=0):
    """The CRC-32C of the bytes that gave `value` (0 for none) followed by `data`, any contiguous buffer.

    Raises ArgumentTypeError for data that is no such buffer, UsageError for a value that is no CRC.
    """
    return _sum(_chosen, data, value)


def crc32c_with(str name, data, value=0):
    """`crc32c` by the implementation `name`, one of `available()`; for comparing them."""
    return _sum(_function(name), data, value)


def implementation():
    """The name of the implementation in use."""
    return _chosen_name


def available():
    """The names of the implementations that this machine runs, the preferred one last."""
    return ("crcmod", *[kreplog_crc_choices[i].name.decode() for i in range(kreplog_crc_choice_count)])


cdef object _sum(kreplog_crc_function function, data, value):
    cdef Py_buffer view
    cdef uint32_t crc
    try:
        crc = PyNumber_Index(value)
    except (OverflowError, TypeError):
        raise UsageError(f"{value!r} is no CRC-32C to go on from: pass 0 or what crc32c returned") from None
    try:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    except (BufferError, TypeError) as error:
        raise ArgumentTypeError(f"crc32c takes contiguous bytes, not {type(data).__name__}: {error}") from None
    if view.len >= _RELEASE_GIL_FROM:
        with nogil:
            crc = ~function(~crc, <const uint8_t*> view.buf, view.len)
    else:
        crc = ~function(~crc, <const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


cdef uint32_t _by_crcmod(uint32_t crc, const uint8_t* data, size_t length) noexcept with gil:
    """As the functions of crc32c_impl.h, through crcmod.

    There is no way to report an exception from here and no sum may be made up. crcmod runs Python code, so a signal
    handler may raise in it: the sum is made again, and the interrupt delivered after it.
    """
    cdef bint interrupted = False
    if length == 0:
        return crc
    while True:
        try:
            crc = ~<uint32_t> _crcmod_crc(<const uint8_t[:length]> data, <uint32_t> ~crc)
            break
        except MemoryError:
            Py_FatalError("kreplog: no memory to sum a record batch with crcmod")
        except BaseException:
            interrupted = True
    if interrupted:
        PyErr_SetInterrupt()
    return crc


cdef kreplog_crc_function _function(str name) except NULL:
    """The implementation called `name`; loads crcmod when it is the one."""
    global _crcmod_crc
    for i in range(kreplog_crc_choice_count):
        if kreplog_crc_choices[i].name == name.encode():
            return kreplog_crc_choices[i].function
    if name != "crcmod":
        raise UsageError(f"there is no CRC-32C implementation {name!r} on this machine: choose one of {available()}")
    if _crcmod_crc is None:
        from crcmod.predefined import mkPredefinedCrcFun
        _crcmod_crc = mkPredefinedCrcFun("crc-32c")
    return _by_crcmod


kreplog_crc_detect()
_chosen_name = os.environ.get("KREPLOG_CRC32C") or next(reversed(available()))
_chosen = _function(_chosen_name)
