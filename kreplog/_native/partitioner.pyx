"""Kafka's default partitioner: from the key of a record to a partition of its topic."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef uint32_t murmur2_of(const uint8_t* data, Py_ssize_t length) noexcept nogil:
    """MurmurHash2 with Kafka's seed. Source: Kafka, Utils.murmur2."""
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t> 0x9747B28C ^ <uint32_t> length
    cdef uint32_t k
    cdef Py_ssize_t i = 0
    while i + 4 <= length:
        k = data[i] | <uint32_t> data[i + 1] << 8 | <uint32_t> data[i + 2] << 16 | <uint32_t> data[i + 3] << 24
        k *= m
        k ^= k >> 24
        h = h * m ^ k * m
        i += 4
    if length - i == 3:
        h ^= <uint32_t> data[i + 2] << 16
    if length - i >= 2:
        h ^= <uint32_t> data[i + 1] << 8
    if length - i >= 1:
        h = (h ^ data[i]) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


cdef int32_t partition_of_key(const uint8_t* key, Py_ssize_t length, int32_t partitions) noexcept nogil:
    return <int32_t> (murmur2_of(key, length) & 0x7FFFFFFF) % partitions


def murmur2(key):
    """The hash of a key as a signed 32-bit number, as Kafka's clients print it."""
    cdef const uint8_t[::1] data = memoryview(key).cast("B")
    return <int32_t> murmur2_of(&data[0] if data.shape[0] else NULL, data.shape[0])


def partition_for(key, int32_t partitions):
    """The partition, of `partitions` > 0, that Kafka's default partitioner puts a record with this key in."""
    cdef const uint8_t[::1] data
    if partitions < 1:
        raise ValueError(f"a topic has 1 partition or more, not {partitions}")
    if type(key) is bytes:
        return partition_of_key(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), partitions)
    data = memoryview(key).cast("B")
    return partition_of_key(&data[0] if data.shape[0] else NULL, data.shape[0], partitions)
