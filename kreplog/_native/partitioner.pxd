# Kafka's default partitioner.

from libc.stdint cimport int32_t, uint8_t


cdef int32_t partition_of_key(const uint8_t* key, Py_ssize_t length, int32_t partitions) noexcept nogil
