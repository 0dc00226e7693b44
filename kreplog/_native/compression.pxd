cpdef bytes compress(int codec, data)
cpdef bytes decompress(int codec, data, Py_ssize_t max_size)
cdef list compressed_pieces(int codec, data, int level=*)
cpdef Py_ssize_t inflated_bound(int codec, data) except -1
