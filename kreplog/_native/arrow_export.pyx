"""ArrowColumns: finished columns, handed to any Arrow library through the C data interface.

A node, its children and what they point to are freed by the node's own release callback; a child that a consumer has
moved away is marked released in place and frees itself.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from kreplog._native.arrow_memory cimport (
    KEY,
    OFFSET,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    VALUE,
    Buffer,
    ByteColumn,
    Columns,
    bytes_used,
    grow,
    headers_used,
    ref_add,
    release_columns,
)

cdef enum:
    NULLABLE = 2  # ARROW_FLAG_NULLABLE


cdef class ArrowColumns:
    """Finished columns, for `pyarrow.record_batch()` and whatever else reads the Arrow PyCapsule interface.

    May be exported any number of times; the memory is shared and lives until the last holder lets go.
    """

    def __dealloc__(self):
        release_columns(self._columns)

    def __len__(self):
        return self._columns.rows

    @property
    def nbytes(self):
        """Bytes of the buffers that the rows fill."""
        return bytes_used(self._columns)

    def __arrow_c_schema__(self):
        """A new "arrow_schema" capsule: a struct of the columns, all nullable."""
        cdef ArrowSchema* schema = <ArrowSchema*> calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError()
        capsule = PyCapsule_New(schema, b"arrow_schema", _drop_schema_capsule)
        cdef SchemaNode* node = _schema(schema, "+s", "", self._count)
        cdef int i
        if node == NULL:
            raise MemoryError()
        for i in range(self._count):
            if not _export_schema(&node.storage[i], self._columns, self._order[i]):
                raise MemoryError()
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        """New ("arrow_schema", "arrow_array") capsules; `requested_schema` changes nothing, as the protocol allows."""
        cdef ArrowArray* array = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError()
        capsule = PyCapsule_New(array, b"arrow_array", _drop_array_capsule)
        cdef ArrayNode* node = _array(array, self._columns, self._columns.rows, 1, self._count)
        cdef int i
        if node == NULL:
            raise MemoryError()
        for i in range(self._count):
            if not _export_array(&node.storage[i], self._columns, self._order[i]):
                raise MemoryError()
        return self.__arrow_c_schema__(), capsule


cdef struct SchemaNode:
    ArrowSchema* children[6]
    ArrowSchema storage[6]


cdef struct ArrayNode:
    Columns* columns
    const void* buffers[3]
    ArrowArray* children[6]
    ArrowArray storage[6]


cdef SchemaNode* _schema(ArrowSchema* out, const char* format, const char* name, int children) noexcept nogil:
    """Fill `out`, its children still released; NULL without memory. The strings are literals."""
    cdef SchemaNode* node = <SchemaNode*> calloc(1, sizeof(SchemaNode))
    cdef int i
    if node == NULL:
        return NULL
    for i in range(children):
        node.children[i] = &node.storage[i]
    out.format = format
    out.name = name
    out.flags = NULLABLE
    out.n_children = children
    out.children = node.children if children else NULL
    out.release = _release_schema
    out.private_data = node
    return node


cdef bint _export_schema(ArrowSchema* out, const Columns* c, int column) noexcept nogil:
    cdef SchemaNode* node
    if column == OFFSET:
        return _schema(out, "l", "offset", 0) != NULL
    if column == TIMESTAMP:
        return _schema(out, "tsu:UTC" if c.timestamp_factor == 1000 else "tsm:UTC", "timestamp", 0) != NULL
    if column == TIMESTAMP_TYPE:
        return _schema(out, "i", "timestampType", 0) != NULL
    if column == KEY:
        return _schema(out, "z", "key", 0) != NULL
    if column == VALUE:
        return _schema(out, "z", "value", 0) != NULL
    node = _schema(out, "+l", "headers", 1)
    if node == NULL:
        return False
    node = _schema(&node.storage[0], "+s", "element", 2)
    return node != NULL and _schema(&node.storage[0], "u", "key", 0) and _schema(&node.storage[1], "z", "value", 0)


cdef ArrayNode* _array(ArrowArray* out, Columns* c, int64_t length, int buffers, int children) noexcept nogil:
    """Fill `out` with buffers yet unset and children yet released; NULL without memory. Takes a reference to `c`."""
    cdef ArrayNode* node = <ArrayNode*> calloc(1, sizeof(ArrayNode))
    cdef int i
    if node == NULL:
        return NULL
    for i in range(children):
        node.children[i] = &node.storage[i]
    node.columns = c
    ref_add(&c.references, 1)
    out.length = length
    out.n_buffers = buffers
    out.buffers = node.buffers
    out.n_children = children
    out.children = node.children if children else NULL
    out.release = _release_array
    out.private_data = node
    return node


cdef bint _export_array(ArrowArray* out, Columns* c, int column) noexcept nogil:
    cdef ArrayNode* node
    cdef int64_t headers
    if column == OFFSET:
        return _export_fixed(out, c, &c.offset)
    if column == TIMESTAMP:
        return _export_fixed(out, c, &c.timestamp)
    if column == TIMESTAMP_TYPE:
        return _export_fixed(out, c, &c.timestamp_type)
    if column == KEY:
        return _export_bytes(out, c, &c.key, c.rows)
    if column == VALUE:
        return _export_bytes(out, c, &c.value, c.rows)
    headers = headers_used(c)
    node = _array(out, c, c.rows, 2, 1)
    if node == NULL:
        return False
    _set_validity(out, node, &c.header_lists_validity)
    node.buffers[1] = c.header_lists.data
    node = _array(&node.storage[0], c, headers, 1, 2)
    return (
        node != NULL
        and _export_bytes(&node.storage[0], c, &c.header_key, headers)
        and _export_bytes(&node.storage[1], c, &c.header_value, headers)
    )


cdef bint _export_fixed(ArrowArray* out, Columns* c, const Buffer* values) noexcept nogil:
    cdef ArrayNode* node = _array(out, c, c.rows, 2, 0)
    if node == NULL:
        return False
    node.buffers[1] = values.data
    return True


cdef bint _export_bytes(ArrowArray* out, Columns* c, ByteColumn* column, int64_t rows) noexcept nogil:
    cdef ArrayNode* node
    if not grow(&column.bytes, 0, 1):
        return False
    node = _array(out, c, rows, 3, 0)
    if node == NULL:
        return False
    _set_validity(out, node, &column.validity)
    node.buffers[1] = column.offsets.data
    node.buffers[2] = column.bytes.data
    return True


cdef void _set_validity(ArrowArray* out, ArrayNode* node, const Buffer* validity) noexcept nogil:
    node.buffers[0] = validity.data
    out.null_count = 0 if validity.data == NULL else -1  # -1: for the reader to count


cdef void _release_schema(ArrowSchema* schema) noexcept nogil:
    cdef SchemaNode* node = <SchemaNode*> schema.private_data
    cdef int64_t i
    for i in range(schema.n_children):
        if node.storage[i].release != NULL:
            node.storage[i].release(&node.storage[i])
    free(node)
    schema.release = NULL


cdef void _release_array(ArrowArray* array) noexcept nogil:
    cdef ArrayNode* node = <ArrayNode*> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if node.storage[i].release != NULL:
            node.storage[i].release(&node.storage[i])
    release_columns(node.columns)
    free(node)
    array.release = NULL


cdef void _drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(capsule, b"arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)
