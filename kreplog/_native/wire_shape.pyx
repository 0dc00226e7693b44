"""Validation of a message against its schema, before a library that trusts its input decodes it.

A message that passes has every length within its bytes, no null in a field that cannot be null, and no more items than
its budget; only text may still not be UTF-8.

    struct   (operations, tags): tags from number to operation, None in plain versions; TAGLESS where none may stand
    operation   (FIXED, bytes), (TEXT, nullable), (BYTES, nullable), (RUN, nullable, bytes of an item),
                (ARRAY, nullable, operation of an item, least bytes of an item), (STRUCT, nullable, struct)
"""

from libc.stdint cimport int64_t

from kreplog._native.wire cimport (
    Frame,
    Input,
    close_message,
    close_tag,
    fail,
    need,
    read_count,
    read_int8,
    read_length,
    read_tag,
    read_tag_count,
    spend,
)

FIXED = 0
TEXT = 1
BYTES = 2
RUN = 3
ARRAY = 4
STRUCT = 5
TAGLESS = "tagless"

cdef enum:
    FIXED_ = 0
    TEXT_ = 1
    BYTES_ = 2
    RUN_ = 3
    ARRAY_ = 4
    STRUCT_ = 5

    # A library may copy all that follows for each struct with tags; this many copied bytes count as one item.
    COPIED_PER_ITEM = 512

    # Kafka's limit of a string's bytes in flexible versions too: records of coordinators have no room for more.
    LONGEST_TEXT = 32767
    ANY_LENGTH = 0x7FFFFFFF


def check_shape(data, Py_ssize_t start, tuple shape, bint flexible, int budget, bint whole):
    """Where the struct of `shape` that begins at byte `start` of `data` ends. Raises PeerProtocolError if invalid.

    budget: maximum of items in arrays and tags. whole: it is from a broker: no bytes may follow it, and its strings may
    have any length.
    """
    cdef Input input
    cdef Py_ssize_t longest = ANY_LENGTH if whole else LONGEST_TEXT
    cdef Frame frame = Frame(data)
    frame.open(&input, start, flexible)
    input.budget = budget
    walk_struct(&input, shape, longest)
    if whole:
        close_message(&input)
    return input.at - input.start


cdef int walk_struct(Input* input, tuple shape, Py_ssize_t longest) except -1:
    cdef tuple operation
    for operation in <tuple> shape[0]:
        walk(input, operation, longest)
    tags = shape[1]
    if tags is None:
        return 0
    need(input, 1)
    if input.at[0] == 0:
        input.at += 1
        return 0
    if tags is TAGLESS:
        fail(input, "a tagged field stands where none may be")
    return walk_tags(input, tags, longest)


cdef int walk_tags(Input* input, dict tags, Py_ssize_t longest) except -1:
    cdef Input content
    cdef int64_t tag
    cdef Py_ssize_t _
    spend(input, (input.end - input.at) // COPIED_PER_ITEM)
    for _ in range(read_tag_count(input)):
        tag = read_tag(input, &content)
        operation = tags.get(tag)
        if operation is not None:
            walk(&content, operation, longest)
            close_tag(input, &content)
    return 0


cdef int walk(Input* input, tuple operation, Py_ssize_t longest) except -1:
    cdef int kind = operation[0]
    cdef Py_ssize_t size
    cdef Py_ssize_t _
    cdef int present
    if kind == FIXED_:
        size = operation[1]
        need(input, size)
        input.at += size
    elif kind == TEXT_ or kind == BYTES_:
        size = read_length(input, kind == BYTES_)
        if kind == TEXT_ and size > longest:
            fail(input, f"a string has {size} bytes: Kafka's protocol allows {LONGEST_TEXT}")
        if size >= 0:
            input.at += size
        else:
            refuse_null(input, operation)
    elif kind == STRUCT_:
        if operation[1]:
            present = read_int8(input)
            if present == -1:
                return 0
            if present != 1:
                fail(input, "a struct is neither present nor null")
        walk_struct(input, operation[2], longest)
    elif kind == RUN_:
        size = read_count(input, operation[2])
        if size >= 0:
            input.at += size * <Py_ssize_t> operation[2]
        else:
            refuse_null(input, operation)
    else:
        size = read_count(input, operation[3])
        if size < 0:
            refuse_null(input, operation)
        for _ in range(size):
            walk(input, operation[2], longest)
    return 0


cdef int refuse_null(Input* input, tuple operation) except -1:
    if not operation[1]:
        fail(input, "a null stands where none may be")
    return 0
