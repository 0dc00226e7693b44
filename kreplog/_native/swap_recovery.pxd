# What proves a swap of compaction, and its completion by recovery.

from kreplog._native.files cimport FileHandle


cdef str checkpoint_path(str stem)
cdef int write_checkpoint(FileHandle checkpoint, FileHandle cleaned, list base_offsets) except -1
cdef bint link_at(str path, str name) except -1
