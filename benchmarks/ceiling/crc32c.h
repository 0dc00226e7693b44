/* CRC-32C as fast as the processor can, for the ceiling alone: kreplog's own code is measured against it, so none is shared.
 *
 * x86-64 with VPCLMULQDQ and AVX-512: 256 bytes a step are folded by carry-less multiplication. x86-64 with SSE4.2 and
 * PCLMULQDQ, and aarch64 with CRC and PMULL: three interleaved streams of the CRC instruction, joined by one
 * multiplication. Elsewhere: a table of 256 entries. Chosen at run time by crc32c_init().
 *
 * Polynomials are bit-reflected: the lowest bit holds the highest power of x. A 64 by 64 bit carry-less product of two
 * reflected operands therefore comes out multiplied by x, hence the odd exponents (31 and 33) of the constants below. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u
#define STREAM_LONG 2048
#define STREAM_SHORT 256

typedef uint32_t (*crc32c_function)(uint32_t state, const uint8_t *data, size_t length);

static uint32_t crc32c_table[256];
static uint64_t shift_long[2], shift_short[2];   /* by one and by two streams, for the three-stream join */

/* x^n modulo the polynomial, reflected. */
static uint64_t power_of_x(unsigned n) {
    uint32_t power = 0x80000000u;
    while (n--) power = (power >> 1) ^ (power & 1 ? CRC32C_POLYNOMIAL : 0);
    return power;
}

static uint32_t crc32c_by_table(uint32_t state, const uint8_t *data, size_t length) {
    while (length--) state = (state >> 8) ^ crc32c_table[(state ^ *data++) & 0xFF];
    return state;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define STREAMS_TARGET __attribute__((target("sse4.2,pclmul")))
#define CRC_STEP(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))
#define CRC_BYTE(state, byte) _mm_crc32_u8((state), (byte))
#define CARRYLESS(a, b) ((uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128( \
    _mm_cvtsi64_si128((long long)(a)), _mm_cvtsi64_si128((long long)(b)), 0)))
#elif defined(__aarch64__) && (defined(__APPLE__) || defined(__linux__))
#include <arm_acle.h>
#include <arm_neon.h>
#ifdef __APPLE__
#define STREAMS_TARGET
#else
#define STREAMS_TARGET __attribute__((target("+crc+crypto")))
#endif
#define CRC_STEP(state, word) __crc32cd((state), (word))
#define CRC_BYTE(state, byte) __crc32cb((state), (byte))
#define CARRYLESS(a, b) vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64((poly64_t)(a), (poly64_t)(b))), 0)
#endif

#ifdef STREAMS_TARGET

static inline uint64_t load_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

/* Three streams of `size` bytes each at once: the instruction takes three cycles but one can start every cycle. */
STREAMS_TARGET static inline uint32_t three_streams(uint32_t state, const uint8_t *data, size_t size,
                                                    const uint64_t shift[2]) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < size; i += 8) {
        state = CRC_STEP(state, load_word(data + i));
        second = CRC_STEP(second, load_word(data + size + i));
        third = CRC_STEP(third, load_word(data + 2 * size + i));
    }
    return CRC_STEP(0, CARRYLESS(state, shift[1]) ^ CARRYLESS(second, shift[0])) ^ third;
}

STREAMS_TARGET static uint32_t crc32c_by_streams(uint32_t state, const uint8_t *data, size_t length) {
    for (; length >= 3 * STREAM_LONG; data += 3 * STREAM_LONG, length -= 3 * STREAM_LONG)
        state = three_streams(state, data, STREAM_LONG, shift_long);
    for (; length >= 3 * STREAM_SHORT; data += 3 * STREAM_SHORT, length -= 3 * STREAM_SHORT)
        state = three_streams(state, data, STREAM_SHORT, shift_short);
    for (; length >= 8; data += 8, length -= 8) state = CRC_STEP(state, load_word(data));
    while (length--) state = CRC_BYTE(state, *data++);
    return state;
}

#endif

#if defined(__x86_64__)

static uint64_t fold_2048[2], fold_512[2], fold_128[2];   /* multipliers of the low and of the high 64 bits */

#define FOLD_TARGET __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq")))

static void fold_constants(uint64_t constants[2], unsigned bits) {
    constants[0] = power_of_x(bits + 31);
    constants[1] = power_of_x(bits - 33);
}

/* `sum` moved forward by the distance of `constants`, plus `next`. */
FOLD_TARGET static inline __m512i fold(__m512i sum, __m512i constants, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, constants, 0x00),
                                     _mm512_clmulepi64_epi128(sum, constants, 0x11), next, 0x96);
}

FOLD_TARGET static inline __m128i fold_narrow(__m128i sum, __m128i constants, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, constants, 0x00),
                                       _mm_clmulepi64_si128(sum, constants, 0x11)), next);
}

FOLD_TARGET static uint32_t crc32c_by_folding(uint32_t state, const uint8_t *data, size_t length) {
    if (length < 512) return crc32c_by_streams(state, data, length);
    const __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold_2048));
    const __m512i near = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold_512));
    const __m128i narrow = _mm_loadu_si128((const __m128i *)fold_128);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    __m512i b = _mm512_loadu_si512(data + 64), c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        a = fold(a, far, _mm512_loadu_si512(data));
        b = fold(b, far, _mm512_loadu_si512(data + 64));
        c = fold(c, far, _mm512_loadu_si512(data + 128));
        d = fold(d, far, _mm512_loadu_si512(data + 192));
    }
    a = fold(fold(fold(a, near, b), near, c), near, d);
    for (; length >= 64; data += 64, length -= 64) a = fold(a, near, _mm512_loadu_si512(data));
    __m128i sum = fold_narrow(_mm512_castsi512_si128(a), narrow, _mm512_extracti32x4_epi32(a, 1));
    sum = fold_narrow(sum, narrow, _mm512_extracti32x4_epi32(a, 2));
    sum = fold_narrow(sum, narrow, _mm512_extracti32x4_epi32(a, 3));
    state = CRC_STEP(CRC_STEP(0, (uint64_t)_mm_cvtsi128_si64(sum)), (uint64_t)_mm_extract_epi64(sum, 1));
    return crc32c_by_streams(state, data, length);
}

#endif

static crc32c_function crc32c_state = crc32c_by_table;
static const char *crc32c_name = "table";

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#ifndef HWCAP_PMULL
#define HWCAP_PMULL (1 << 4)
#endif
#endif

static int has_streams(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & (HWCAP_CRC32 | HWCAP_PMULL)) == (HWCAP_CRC32 | HWCAP_PMULL);
#elif defined(STREAMS_TARGET)
    return 1;   /* every Apple processor of this architecture */
#else
    return 0;
#endif
}

static void crc32c_init(void) {
    for (unsigned i = 0; i < 256; i++) {
        uint32_t state = i;
        for (int bit = 0; bit < 8; bit++) state = (state >> 1) ^ (state & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[i] = state;
    }
    for (unsigned streams = 1; streams <= 2; streams++) {
        shift_long[streams - 1] = power_of_x(streams * STREAM_LONG * 8 - 33);
        shift_short[streams - 1] = power_of_x(streams * STREAM_SHORT * 8 - 33);
    }
#ifdef STREAMS_TARGET
    if (!has_streams()) return;
    crc32c_state = crc32c_by_streams;
    crc32c_name = "three streams";
#endif
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq")) {
        fold_constants(fold_2048, 2048);
        fold_constants(fold_512, 512);
        fold_constants(fold_128, 128);
        crc32c_state = crc32c_by_folding;
        crc32c_name = "512-bit folding";
    }
#endif
}

static inline uint32_t crc32c(const uint8_t *data, size_t length) {
    return ~crc32c_state(0xFFFFFFFFu, data, length);
}
