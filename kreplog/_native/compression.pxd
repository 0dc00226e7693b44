cpdef bytes compress(int codec, data)
cpdef bytes decompress(int codec, data, Py_ssize_t max_size)
