"""The records section of a batch, compressed and back, in the framing that Kafka's clients write.

    1 gzip     one RFC 1952 member
    2 snappy   82 "SNAPPY" 00, int32 version 1, int32 compatible 1, then per 32 KiB block int32 length and raw snappy;
               bare raw snappy is read too
    3 lz4      one frame: 64 KiB independent blocks, no content size, no checksums (04 22 4d 18 60 40 82)
    4 zstd     one frame

The bytes are not trusted. The decompressed size of a frame is bounded from its block headers before anything is
allocated, whatever sizes it claims, and decompression stops at the caller's limit. The packages of snappy and zstd are
imported when first needed.
"""

import zlib
from importlib import import_module

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from kreplog._native.cursor cimport load32

import lz4.block
import lz4.frame

from kreplog.errors import ArgumentTypeError, CorruptBatchError, UnsupportedCompressionError, UsageError

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

cdef enum:
    NONE, GZIP, SNAPPY, LZ4, ZSTD

cdef int _GZIP_WBITS = 31
cdef bytes _SNAPPY_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
cdef Py_ssize_t _SNAPPY_MAGIC_SIZE = 8
cdef Py_ssize_t _SNAPPY_BLOCK = 32 * 1024
cdef bytes _LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
cdef bytes _LZ4_END = b"\x00\x00\x00\x00"
cdef Py_ssize_t _LZ4_BLOCK = 64 * 1024
cdef int _LZ4_LEVEL = 9  # of lz4's fast mode, as in Kafka; every other is one of its high compression
cdef int _ZSTD_LEVEL = 3
cdef int _LZ4_ACCELERATION = 2  # 14 % faster on random JSON and the same on flights; up to 5 % larger on source text
cdef Py_ssize_t _ZSTD_BLOCK = 128 * 1024
cdef Py_ssize_t _PIECE_BYTES = 4 << 20  # of what one call of a package makes that copies it while other threads wait
cdef Py_ssize_t _PIECE_BLOCKS = _PIECE_BYTES // _SNAPPY_BLOCK
cdef list _zstd_compressors = []  # idle ones: to make one takes longer than to decompress 16 KiB
cdef list _zstd_decompressors = []
cdef Py_ssize_t _MAX_IDLE = 4
cdef Py_ssize_t _MAX_IDLE_BYTES = 4 << 20  # of each; a frame may have a window of 128 MiB


cpdef bytes compress(int codec, data):
    """`data` (any contiguous buffer) compressed as Kafka frames it; `codec` is an id out of CODECS.

    Raises UnsupportedCompressionError for an unknown codec or one whose package is missing.
    """
    return b"".join(compressed_pieces(codec, data))


cdef list compressed_pieces(int codec, data, int level=0):
    """What `compress` gives as bytes objects to be put one behind the other; `data` may be overwritten by them.

    level: of gzip, lz4 or zstd, as KIP-390 has them; 0 for the codec's default."""
    view = _view(data)
    if codec == LZ4:
        return _lz4_compress(view, level or _LZ4_LEVEL)
    if codec == NONE:
        return [bytes(view)]
    if codec == GZIP:
        return [zlib.compress(view, level or zlib.Z_DEFAULT_COMPRESSION, wbits=_GZIP_WBITS)]
    if codec == SNAPPY:
        return _snappy_compress(view)
    if codec == ZSTD:
        return [_zstd_compress(view, level or _ZSTD_LEVEL)]
    raise _unknown(codec)


cdef bytes _zstd_compress(view, int level):
    if level != _ZSTD_LEVEL:
        return _package("zstandard", "zstd").ZstdCompressor(level=level).compress(view)
    compressor = _idle(_zstd_compressors, _package("zstandard", "zstd").ZstdCompressor)
    out = compressor.compress(view)
    _put_idle(_zstd_compressors, compressor)
    return out


cdef object _idle(list idle, make):
    """One of `idle`, which one thread at a time may use, or a new one."""
    try:
        return idle.pop()
    except IndexError:
        return make()


cdef int _put_idle(list idle, worker) except -1:
    """For the next caller, unless there are enough or it holds much memory."""
    if len(idle) < _MAX_IDLE and worker.memory_size() <= _MAX_IDLE_BYTES:
        idle.append(worker)
    return 0


cdef list _lz4_compress(view, int level):
    """A frame around blocks of lz4.block, whose table for up to 64 KiB is faster than lz4.frame's and packs closer."""
    cdef list pieces = [_LZ4_HEADER]
    cdef Py_ssize_t start
    cdef Py_ssize_t size
    for start in range(0, len(view), _LZ4_BLOCK):
        plain = view[start:start + _LZ4_BLOCK]
        if level == _LZ4_LEVEL:
            block = lz4.block.compress(plain, mode="fast", acceleration=_LZ4_ACCELERATION, store_size=False)
        else:
            block = lz4.block.compress(plain, mode="high_compression", compression=level, store_size=False)
        size = len(block)
        if size >= len(plain):  # stored as it is
            block = bytes(plain)
            size = len(plain) | 0x80000000
        pieces.append(size.to_bytes(4, "little"))
        pieces.append(block)
    pieces.append(_LZ4_END)
    return pieces


cpdef bytes decompress(int codec, data, Py_ssize_t max_size):
    """What `compress` was given, from any contiguous buffer; at most `max_size` bytes.

    Raises CorruptBatchError for what is not exactly one whole frame of the codec, or expands beyond max_size; the
    memory used by then is at most twice max_size and one block of the frame (lz4 has them up to 4 MiB). Raises
    UnsupportedCompressionError as `compress` does.
    """
    if max_size < 0:
        raise UsageError(f"max_size = {max_size}: pass the largest size to accept, in bytes")
    view = _view(data)
    if codec == LZ4:
        return _lz4_decompress(view, max_size)
    if codec == NONE:
        return bytes(view) if len(view) <= max_size else _refuse("uncompressed", max_size)
    if codec == GZIP:
        return _gzip_decompress(view, max_size)
    if codec == SNAPPY:
        return _snappy_decompress(view, max_size)
    if codec == ZSTD:
        return _zstd_decompress(view, max_size)
    raise _unknown(codec)


cpdef Py_ssize_t inflated_bound(int codec, data) except -1:
    """The most bytes that `decompress` can make of `data`, found without decompressing it: by its block headers for
    lz4, by the size that the frame claims for the others; what expands further is corrupt.

    Raises CorruptBatchError for frames that are none, UnsupportedCompressionError for an unknown codec.
    """
    cdef int64_t claimed = -1
    view = _view(data)
    cdef const uint8_t[::1] piece = view
    cdef Py_ssize_t length = piece.shape[0], bound
    cdef const uint8_t* p = &piece[0] if length else NULL
    if codec == NONE:
        return length
    if codec == LZ4:
        return _lz4_bound(p, length)
    if codec == GZIP:
        return <Py_ssize_t> _little(p + length - 4, 4) if length >= 18 else 0
    if codec == SNAPPY:
        return _snappy_bound(p, length)
    if codec == ZSTD:
        bound = _zstd_bound(p, length, &claimed)
        return bound if claimed < 0 else <Py_ssize_t> min(claimed, <int64_t> bound)
    raise _unknown(codec)


cdef bytes _lz4_decompress(view, Py_ssize_t max_size):
    """By the streaming call: given how much room there is, it is five times as fast as lz4.frame.decompress."""
    cdef const uint8_t[::1] piece = view
    cdef Py_ssize_t length = piece.shape[0]
    cdef Py_ssize_t room = max(1, min(_lz4_bound(&piece[0] if length else NULL, length), max_size))
    cdef Py_ssize_t size = 0
    cdef bytes out
    cdef list pieces = []
    context = lz4.frame.create_decompression_context()
    try:
        while True:
            out, used, whole = lz4.frame.decompress_chunk(context, view, max_length=min(room - size, _PIECE_BYTES))
            size += len(out)
            pieces.append(out)
            if whole or size == room or not out:
                break
            view = view[used:]
    except RuntimeError as error:
        raise _corrupt("lz4", str(error)) from None
    if not whole or size > max_size:
        _refuse("lz4", max_size)
    return _joined(pieces)


cdef bytes _gzip_decompress(view, Py_ssize_t max_size):
    cdef Py_ssize_t room = max_size + 1  # one byte more than allowed, since zlib takes 0 for no limit
    cdef Py_ssize_t limit
    cdef list pieces = []
    inflater = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        while not inflater.eof:
            limit = min(room, _PIECE_BYTES)
            out = inflater.decompress(inflater.unconsumed_tail if pieces else view, limit)
            room -= len(out)
            pieces.append(out)
            if not room:
                _refuse("gzip", max_size)
            if len(out) < limit and not inflater.eof:
                raise _corrupt("gzip", "cut short")
    except zlib.error as error:
        raise _corrupt("gzip", str(error)) from None
    if inflater.unused_data:
        raise _corrupt("gzip", "bytes follow its end")
    return _joined(pieces)


cdef bytes _joined(list pieces):
    """As b"".join, which would hold up every other thread while it copies."""
    cdef Py_ssize_t at = 0, length
    cdef const char* source
    cdef char* target
    cdef bytes out
    if len(pieces) == 1:
        return pieces[0]
    out = PyBytes_FromStringAndSize(NULL, sum(map(len, pieces)))
    target = out
    for piece in pieces:
        source, length = piece, len(piece)
        with nogil:
            memcpy(target + at, source, length)
        at += length
    return out


cdef list _snappy_compress(view):
    snappy = _package("cramjam", "snappy").snappy
    cdef list pieces = [_SNAPPY_HEADER]
    cdef Py_ssize_t start
    for start in range(0, len(view), _SNAPPY_BLOCK):
        block = snappy.compress_raw(view[start:start + _SNAPPY_BLOCK])
        pieces.append(len(block).to_bytes(4, "big"))
        pieces.append(bytes(block))
    return pieces


cdef bytes _snappy_decompress(view, Py_ssize_t max_size):
    cdef const uint8_t[::1] piece = view
    cdef Py_ssize_t length = piece.shape[0], position = len(_SNAPPY_HEADER), room = max_size
    cdef int32_t size
    cdef const uint8_t* p = &piece[0] if length else NULL
    cdef list blocks = [], pieces = []
    if length < _SNAPPY_MAGIC_SIZE or memcmp(p, <const uint8_t*> _SNAPPY_HEADER, _SNAPPY_MAGIC_SIZE) != 0:
        return bytes(_snappy_block(view, p, length, max_size, max_size))
    if length < position:
        raise _corrupt("snappy", "cut short")
    while position < length:
        if length - position < 4:
            raise _corrupt("snappy", "cut short")
        size = <int32_t> load32(p + position)
        position += 4
        if size < 0 or size > length - position:
            raise _corrupt("snappy", f"a block of {size} bytes where {length - position} are left")
        block = _snappy_block(view[position:position + size], p + position, size, room, max_size)
        blocks.append(block)
        room -= len(block)
        position += size
        if len(blocks) == _PIECE_BLOCKS:
            pieces.append(b"".join(blocks))
            blocks = []
    pieces.append(b"".join(blocks))
    return _joined(pieces)


cdef object _snappy_block(view, const uint8_t* p, Py_ssize_t length, Py_ssize_t room, Py_ssize_t max_size):
    """One block of raw snappy, at most `room` bytes of it, as a buffer. It begins with its size as a varint."""
    if _snappy_claim(p, length) > room:
        _refuse("snappy", max_size)
    module = _package("cramjam", "snappy")
    try:
        return module.snappy.decompress_raw(view)
    except module.DecompressionError as error:
        raise _corrupt("snappy", str(error)) from None


cdef Py_ssize_t _snappy_claim(const uint8_t* p, Py_ssize_t length) except -1:
    """The size at the head of one raw block, which is what it expands to."""
    cdef uint64_t claimed = 0
    cdef int i = 0
    while True:
        if i == length or i == 5:
            raise _corrupt("snappy", "no size at its head")
        claimed |= <uint64_t> (p[i] & 0x7f) << (7 * i)
        if p[i] < 0x80:
            break
        i += 1
    # No element yields more than 64 bytes, and each but the literals has at least two.
    if claimed > <uint64_t> length * 32:
        raise _corrupt("snappy", f"claims {claimed} bytes, which {length} bytes cannot hold")
    return <Py_ssize_t> claimed


cdef Py_ssize_t _snappy_bound(const uint8_t* p, Py_ssize_t length) except -1:
    """The claims of all blocks; what is no whole block claims nothing, since decompress refuses it."""
    cdef Py_ssize_t position = len(_SNAPPY_HEADER), bound = 0
    cdef int32_t size
    if length < _SNAPPY_MAGIC_SIZE or memcmp(p, <const uint8_t*> _SNAPPY_HEADER, _SNAPPY_MAGIC_SIZE) != 0:
        return _snappy_claim(p, length)
    while length - position >= 4:
        size = <int32_t> load32(p + position)
        position += 4
        if size < 0 or size > length - position:
            break
        bound += _snappy_claim(p + position, size)
        position += size
    return bound


cdef bytes _zstd_decompress(view, Py_ssize_t max_size):
    cdef const uint8_t[::1] piece = view
    cdef Py_ssize_t length = piece.shape[0]
    cdef int64_t claimed = -1
    cdef Py_ssize_t bound = _zstd_bound(&piece[0] if length else NULL, length, &claimed)
    if claimed > bound:
        raise _corrupt("zstd", f"claims {claimed} bytes, which its blocks cannot hold")
    if claimed > max_size:
        _refuse("zstd", max_size)
    module = _package("zstandard", "zstd")
    decompressor = _idle(_zstd_decompressors, module.ZstdDecompressor)
    try:
        out = decompressor.decompress(view, max_output_size=max(1, min(bound, max_size)))
    except module.ZstdError as error:
        if bound > max_size:
            _refuse("zstd", max_size, str(error))
        raise _corrupt("zstd", str(error)) from None
    _put_idle(_zstd_decompressors, decompressor)
    if len(out) > max_size:
        _refuse("zstd", max_size)
    return out


cdef Py_ssize_t _lz4_bound(const uint8_t* p, Py_ssize_t length) except -1:
    """The most that a frame can expand to, its blocks walked from end to end of p[0:length].

    magic uint32 | FLG: version:2 independent:1 block checksum:1 content size:1 content checksum:1 0 dictionary:1
    | BD: 0 block size:3 0:4 | content size 8 if flagged | header checksum 1 | blocks | content checksum 4 if flagged
    A block is uint32 size, its top bit set when stored; as many bytes; checksum 4 if flagged. Size 0 ends the frame.
    """
    cdef Py_ssize_t position, bound = 0, size, block_size, block_extra, end_extra
    if length < 7 or _little(p, 4) != 0x184d2204:
        raise _corrupt("lz4", "no frame header")
    if p[4] & 0xc3 != 0x40 or p[5] & 0x8f != 0 or p[5] < 0x40:
        raise _corrupt("lz4", f"a frame header that Kafka never writes ({p[4]:#04x} {p[5]:#04x})")
    block_size = 1 << (8 + 2 * (p[5] >> 4))
    block_extra = 4 if p[4] & 0x10 else 0
    end_extra = 4 if p[4] & 0x04 else 0
    position = 15 if p[4] & 0x08 else 7
    while True:
        if length - position < 4:
            raise _corrupt("lz4", "cut short")
        size = _little(p + position, 4)
        position += 4
        if size == 0:
            break
        bound += block_size if size < 0x80000000 else size & 0x7fffffff
        size = (size & 0x7fffffff) + block_extra
        if size > length - position:
            raise _corrupt("lz4", f"a block of {size} bytes where {length - position} are left")
        position += size
    if length - position != end_extra:
        raise _corrupt("lz4", "cut short" if length - position < end_extra else "bytes follow its end")
    return bound


cdef Py_ssize_t _zstd_bound(const uint8_t* p, Py_ssize_t length, int64_t* claimed) except -1:
    """As `_lz4_bound`, of a zstd frame; `claimed` becomes the content size its header gives, -1 when it gives none.

    magic uint32 | descriptor: size code:2 single segment:1 0 0 checksum:1 dictionary code:2 | window 1 unless single
    segment | dictionary id 0, 1, 2 or 4 | content size 0 (1 if single segment), 2 (plus 256), 4 or 8 | blocks
    | checksum 4 if flagged. A block is 3 bytes, last:1 type:2 size:21 from the lowest bit; then `size` bytes (type 0
    stored, 2 compressed) or the one byte repeated so often (type 1). RFC 8878.
    """
    cdef Py_ssize_t position, bound = 0, field, size, end_extra
    cdef uint64_t header
    if length < 6 or _little(p, 4) != 0xfd2fb528:
        raise _corrupt("zstd", "no frame header")
    if p[4] & 0x0b != 0:
        raise _corrupt("zstd", f"a frame header that Kafka never writes ({p[4]:#04x})")
    position = 5 if p[4] & 0x20 else 6
    field = 1 << (p[4] >> 6) if p[4] & 0xe0 else 0
    end_extra = 4 if p[4] & 0x04 else 0
    if length - position < field:
        raise _corrupt("zstd", "cut short")
    if field:
        header = _little(p + position, field) + (256 if field == 2 else 0)
        claimed[0] = <int64_t> min(header, <uint64_t> INT64_MAX)
        position += field
    header = 0
    while not header & 1:
        if length - position < 3:
            raise _corrupt("zstd", "cut short")
        header = _little(p + position, 3)
        position += 3
        size = header >> 3
        bound += _ZSTD_BLOCK if header & 6 == 4 else size
        if header & 6 == 2:
            size = 1
        if size > length - position:
            raise _corrupt("zstd", f"a block of {size} bytes where {length - position} are left")
        position += size
    if length - position != end_extra:
        raise _corrupt("zstd", "cut short" if length - position < end_extra else "bytes follow its end")
    return bound


cdef inline uint64_t _little(const uint8_t* p, Py_ssize_t size) noexcept:
    cdef uint64_t value = 0
    while size:
        size -= 1
        value = value << 8 | p[size]
    return value


cdef object _view(data):
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise ArgumentTypeError(f"expected contiguous bytes, not {type(data).__name__}: {error}") from None


cdef object _package(str name, str codec):
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedCompressionError(
            f"{codec} needs a package that is not installed: pip install 'kreplog[{codec}]'"
        ) from error


cdef object _unknown(int codec):
    return UnsupportedCompressionError(f"codec {codec} is not known: Kafka has {', '.join(CODECS)} as 0 to 4")


cdef object _corrupt(str codec, str reason):
    return CorruptBatchError(f"corrupt {codec} data: {reason}")


cdef object _refuse(str codec, Py_ssize_t max_size, str reason="too large"):
    raise CorruptBatchError(f"{codec} data expands beyond the {max_size} bytes allowed, or is corrupt ({reason})")
