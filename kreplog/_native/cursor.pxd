# Checked reads and plain writes over raw bytes: big-endian integers and Kafka's zigzag varints (protobuf encoding).
# Nothing here allocates, raises or needs the GIL; a caller bounds-checks fixed-width loads itself.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define kreplog_be16(x) (x)
    #define kreplog_be32(x) (x)
    #define kreplog_be64(x) (x)
    #else
    #define kreplog_be16(x) __builtin_bswap16(x)
    #define kreplog_be32(x) __builtin_bswap32(x)
    #define kreplog_be64(x) __builtin_bswap64(x)
    #endif
    /* The rare long varint, kept out of line so that the short ones are inlined. */
    static int __attribute__((noinline, unused))
    kreplog_read_long(const uint8_t** at, const uint8_t* end, int bits, int64_t* out) {
        const uint8_t* p = *at;
        uint64_t raw = 0;
        int shift = 0;
        while (p < end && shift < bits) {
            uint64_t byte = *p++;
            if (bits - shift < 7 && (byte & 0x7F) >> (bits - shift)) return 0;
            raw |= (byte & 0x7F) << shift;
            if (byte < 0x80) {
                *out = (int64_t) (raw >> 1) ^ -(int64_t) (raw & 1);
                *at = p;
                return 1;
            }
            shift += 7;
        }
        return 0;
    }
    #define kreplog_bit_length(x) (64 - __builtin_clzll(x))  /* x != 0 */
    #define kreplog_prefetch(p) __builtin_prefetch(p)
    #define kreplog_likely(x) __builtin_expect(!!(x), 1)
    #define kreplog_unlikely(x) __builtin_expect(!!(x), 0)
    """
    uint16_t be16 "kreplog_be16"(uint16_t x) noexcept nogil
    uint32_t be32 "kreplog_be32"(uint32_t x) noexcept nogil
    uint64_t be64 "kreplog_be64"(uint64_t x) noexcept nogil
    bint read_long "kreplog_read_long"(const uint8_t** at, const uint8_t* end, int bits, int64_t* out) noexcept nogil
    int bit_length "kreplog_bit_length"(uint64_t x) noexcept nogil
    void prefetch "kreplog_prefetch"(const void* p) noexcept nogil
    bint likely "kreplog_likely"(bint x) noexcept nogil
    bint unlikely "kreplog_unlikely"(bint x) noexcept nogil


cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    cdef uint16_t x
    memcpy(&x, p, 2)
    return be16(x)


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t x
    memcpy(&x, p, 4)
    return be32(x)


cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, p, 8)
    return be64(x)


cdef inline void store16(uint8_t* p, uint16_t value) noexcept nogil:
    cdef uint16_t x = be16(value)
    memcpy(p, &x, 2)


cdef inline void store32(uint8_t* p, uint32_t value) noexcept nogil:
    cdef uint32_t x = be32(value)
    memcpy(p, &x, 4)


cdef inline void store64(uint8_t* p, uint64_t value) noexcept nogil:
    cdef uint64_t x = be64(value)
    memcpy(p, &x, 8)


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline int64_t unzigzag(uint64_t raw) noexcept nogil:
    return <int64_t> (raw >> 1) ^ -<int64_t> (raw & 1)


cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    """Bytes that write_varint will take, 1 to 10."""
    return (bit_length(zigzag(value) | 1) * 9 + 64) >> 6


cdef inline uint8_t* write_varint(uint8_t* p, int64_t value) noexcept nogil:
    """Write at `p` (room for 10 bytes); return the position after."""
    cdef uint64_t raw = zigzag(value)
    while raw >= 0x80:
        p[0] = <uint8_t> (raw | 0x80)
        p += 1
        raw >>= 7
    p[0] = <uint8_t> raw
    return p + 1


cdef inline bint read_varlong(const uint8_t** at, const uint8_t* end, int64_t* out) noexcept nogil:
    """Read up to 10 bytes and advance `at`; False, with `at` unchanged, when cut short or wider than 64 bits."""
    cdef const uint8_t* p = at[0]
    if likely(p < end and p[0] < 0x80):
        out[0] = unzigzag(p[0])
        at[0] = p + 1
        return True
    return read_long(at, end, 64, out)


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, int32_t* out) noexcept nogil:
    """Read up to 5 bytes and advance `at`; False, with `at` unchanged, when cut short or wider than 32 bits."""
    cdef const uint8_t* p = at[0]
    cdef int64_t wide
    if likely(p < end and p[0] < 0x80):
        out[0] = <int32_t> unzigzag(p[0])
        at[0] = p + 1
        return True
    if likely(end - p >= 2 and p[1] < 0x80):
        out[0] = <int32_t> unzigzag((p[0] & 0x7F) | (<uint32_t> p[1] << 7))
        at[0] = p + 2
        return True
    if not read_long(at, end, 32, &wide):
        return False
    out[0] = <int32_t> wide
    return True
