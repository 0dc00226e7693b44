/* SipHash-1-3 with 128 bits of result: a hash with a secret key, so that nobody can choose two inputs that collide.
 * Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; its 128-bit form is that of the authors' code. */

#ifndef KREPLOG_SIPHASH_IMPL_H
#define KREPLOG_SIPHASH_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KREPLOG_ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

#define KREPLOG_SIP_ROUND(a, b, c, d) \
    do { \
        (a) += (b); (c) += (d); \
        (b) = KREPLOG_ROTATE(b, 13) ^ (a); (d) = KREPLOG_ROTATE(d, 16) ^ (c); \
        (a) = KREPLOG_ROTATE(a, 32); \
        (c) += (b); (a) += (d); \
        (b) = KREPLOG_ROTATE(b, 17) ^ (c); (d) = KREPLOG_ROTATE(d, 21) ^ (a); \
        (c) = KREPLOG_ROTATE(c, 32); \
    } while (0)

static inline uint64_t kreplog_little64(const uint8_t* p) {
    uint64_t x;
    memcpy(&x, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static inline void kreplog_siphash(
    const uint64_t key[2], const uint8_t* data, size_t length, uint64_t* first, uint64_t* second
) {
    uint64_t a = key[0] ^ 0x736f6d6570736575ULL, b = key[1] ^ 0x646f72616e646f6dULL ^ 0xee;
    uint64_t c = key[0] ^ 0x6c7967656e657261ULL, d = key[1] ^ 0x7465646279746573ULL;
    uint64_t word;
    const uint8_t* end = data + (length & ~(size_t) 7);
    size_t i;
    for (; data < end; data += 8) {
        word = kreplog_little64(data);
        d ^= word;
        KREPLOG_SIP_ROUND(a, b, c, d);
        a ^= word;
    }
    word = (uint64_t) length << 56;
    for (i = 0; i < (length & 7); i++)
        word |= (uint64_t) data[i] << (8 * i);
    d ^= word;
    KREPLOG_SIP_ROUND(a, b, c, d);
    a ^= word;
    c ^= 0xee;
    for (i = 0; i < 3; i++)
        KREPLOG_SIP_ROUND(a, b, c, d);
    *first = a ^ b ^ c ^ d;
    b ^= 0xdd;
    for (i = 0; i < 3; i++)
        KREPLOG_SIP_ROUND(a, b, c, d);
    *second = a ^ b ^ c ^ d;
}

#endif
