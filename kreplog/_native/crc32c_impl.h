/* CRC-32C (Castagnoli) with CPU instructions: x86-64 and aarch64, chosen once when kreplog_crc_detect() runs.
 *
 * An implementation takes the CRC register (all ones before the first byte, inverted by the caller after the last) and
 * returns it `length` bytes later. Polynomials are bit-reflected throughout, as the instructions have them: bit 0 of a
 * 64-bit word is its highest power. Then, for a 32-bit register `a` and K(n) = x^(n - 33) mod P,
 *
 *     kreplog_crc_word(0, a * K(n)) == a * x^n mod P          (* being carry-less)
 *
 * which takes a register past n bits of zeros, and so joins streams that ran side by side (kreplog_crc_three). K(n) and
 * K(n + 64) are also what moves the two halves of a 128-bit lane n bits on (kreplog_crc_fold). One table of K(64 * i)
 * holds every constant.
 */
#ifndef KREPLOG_CRC32C_IMPL_H
#define KREPLOG_CRC32C_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint32_t (*kreplog_crc_function)(uint32_t crc, const uint8_t *data, size_t length);

typedef struct {
    const char *name;
    kreplog_crc_function function;
} kreplog_crc_choice;

/* What this CPU can run, the fastest last; none where it has no CRC-32C instruction. */
static kreplog_crc_choice kreplog_crc_choices[3];
static int kreplog_crc_choice_count = 0;

static inline void kreplog_crc_offer(const char *name, kreplog_crc_function function) {
    kreplog_crc_choices[kreplog_crc_choice_count].name = name;
    kreplog_crc_choices[kreplog_crc_choice_count].function = function;
    kreplog_crc_choice_count++;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#define KREPLOG_CRC_ONE __attribute__((target("sse4.2")))
#define KREPLOG_CRC_THREE __attribute__((target("sse4.2,pclmul")))
#define KREPLOG_CRC_FOLD __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define KREPLOG_CRC_ONE_NAME "sse4.2"
#define KREPLOG_CRC_THREE_NAME "sse4.2+pclmul"
#define kreplog_crc_byte _mm_crc32_u8
#define kreplog_crc_half _mm_crc32_u32
#define kreplog_crc_word(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))

#elif defined(__AARCH64EL__) && defined(__GNUC__)

#include <arm_acle.h>
#include <arm_neon.h>
#if defined(__clang__)
#define KREPLOG_CRC_ONE __attribute__((target("crc")))
#define KREPLOG_CRC_THREE __attribute__((target("crc,aes")))
#else
#define KREPLOG_CRC_ONE __attribute__((target("+crc")))
#define KREPLOG_CRC_THREE __attribute__((target("+crc+crypto")))
#endif
#define KREPLOG_CRC_ONE_NAME "crc"
#define KREPLOG_CRC_THREE_NAME "crc+pmull"
#define kreplog_crc_byte __crc32cb
#define kreplog_crc_half __crc32cw
#define kreplog_crc_word __crc32cd

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static int kreplog_crc_sysctl(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}
#endif

#endif

#if defined(KREPLOG_CRC_ONE)

/* Streams are at most this long; the table reaches twice as far. */
#define KREPLOG_CRC_STREAM_WORDS 256
#define KREPLOG_CRC_THREE_FROM 96
#define KREPLOG_CRC_FOLD_FROM 256

/* kreplog_crc_k[i] is K(64 * i); K(0) does not exist. */
static uint32_t kreplog_crc_k[2 * KREPLOG_CRC_STREAM_WORDS + 1];

static inline uint64_t kreplog_crc_load(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

KREPLOG_CRC_ONE static void kreplog_crc_fill_table(void) {
    uint32_t k = 1; /* K(64) = x^31 */
    for (int i = 1; i <= 2 * KREPLOG_CRC_STREAM_WORDS; i++) {
        kreplog_crc_k[i] = k;
        k = kreplog_crc_word(0, k);
    }
}

/* One stream: a word takes as long as the instruction's latency, three cycles. */
KREPLOG_CRC_ONE static uint32_t kreplog_crc_one(uint32_t crc, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8)
        crc = kreplog_crc_word(crc, kreplog_crc_load(data));
    if (length & 4) {
        uint32_t half;
        memcpy(&half, data, sizeof half);
        crc = kreplog_crc_half(crc, half);
        data += 4;
    }
    for (length &= 3; length; data++, length--)
        crc = kreplog_crc_byte(crc, *data);
    return crc;
}

KREPLOG_CRC_THREE static inline uint64_t kreplog_crc_multiply(uint32_t a, uint32_t b) {
#if defined(__x86_64__)
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0));
#else
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(a, b)), 0);
#endif
}

/* Three streams side by side, a word of each per three cycles. The registers of the first two are moved past what
 * follows them and join the third with its last word. */
KREPLOG_CRC_THREE static uint32_t kreplog_crc_three(uint32_t crc, const uint8_t *data, size_t length) {
    while (length >= KREPLOG_CRC_THREE_FROM) {
        size_t words = length / 24 < KREPLOG_CRC_STREAM_WORDS ? length / 24 : KREPLOG_CRC_STREAM_WORDS;
        const uint8_t *second = data + 8 * words, *third = second + 8 * words, *last = third + 8 * (words - 1);
        uint32_t crc_second = 0, crc_third = 0;
        length -= 24 * words;
        for (; third < last; data += 8, second += 8, third += 8) {
            crc = kreplog_crc_word(crc, kreplog_crc_load(data));
            crc_second = kreplog_crc_word(crc_second, kreplog_crc_load(second));
            crc_third = kreplog_crc_word(crc_third, kreplog_crc_load(third));
        }
        crc = kreplog_crc_word(crc, kreplog_crc_load(data));
        crc_second = kreplog_crc_word(crc_second, kreplog_crc_load(second));
        crc = kreplog_crc_word(crc_third, kreplog_crc_load(last) ^ kreplog_crc_multiply(crc, kreplog_crc_k[2 * words]) ^
                                              kreplog_crc_multiply(crc_second, kreplog_crc_k[words]));
        data = last + 8;
    }
    return kreplog_crc_one(crc, data, length);
}

#endif

#if defined(KREPLOG_CRC_FOLD)

/* Multipliers that move a lane `words` words on: its first half also has the second half to pass. */
#define KREPLOG_CRC_LANE(words) kreplog_crc_k[words], kreplog_crc_k[(words) + 1]

KREPLOG_CRC_FOLD static inline __m512i kreplog_crc_mover(int words) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x(KREPLOG_CRC_LANE(words)));
}

KREPLOG_CRC_FOLD static inline __m512i kreplog_crc_move(__m512i lanes, __m512i mover, __m512i onto) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, mover, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, mover, 0x11), onto, 0x96);
}

/* Sixteen lanes of 128 bits, each moved 256 bytes on per round; then four, one, and the register from the last. */
KREPLOG_CRC_FOLD static uint32_t kreplog_crc_fold(uint32_t crc, const uint8_t *data, size_t length) {
    if (length < KREPLOG_CRC_FOLD_FROM)
        return kreplog_crc_three(crc, data, length);
    __m512i mover = kreplog_crc_mover(32);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128);
    __m512i d = _mm512_loadu_si512(data + 192);
    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        a = kreplog_crc_move(a, mover, _mm512_loadu_si512(data));
        b = kreplog_crc_move(b, mover, _mm512_loadu_si512(data + 64));
        c = kreplog_crc_move(c, mover, _mm512_loadu_si512(data + 128));
        d = kreplog_crc_move(d, mover, _mm512_loadu_si512(data + 192));
    }
    mover = kreplog_crc_mover(8);
    b = kreplog_crc_move(a, mover, b);
    d = kreplog_crc_move(c, mover, d);
    a = kreplog_crc_move(b, kreplog_crc_mover(16), d);
    for (; length >= 64; data += 64, length -= 64)
        a = kreplog_crc_move(a, mover, _mm512_loadu_si512(data));

    mover = _mm512_set_epi64(0, 0, KREPLOG_CRC_LANE(2), KREPLOG_CRC_LANE(4), KREPLOG_CRC_LANE(6));
    a = kreplog_crc_move(a, mover, _mm512_maskz_mov_epi64(0xc0, a));
    __m128i lane = _mm_xor_si128(_mm_xor_si128(_mm512_extracti32x4_epi32(a, 0), _mm512_extracti32x4_epi32(a, 1)),
                                 _mm_xor_si128(_mm512_extracti32x4_epi32(a, 2), _mm512_extracti32x4_epi32(a, 3)));
    crc = kreplog_crc_word(0, (uint64_t)_mm_cvtsi128_si64(lane));
    crc = kreplog_crc_word(crc, (uint64_t)_mm_extract_epi64(lane, 1));
    return kreplog_crc_one(crc, data, length);
}

#endif

/* Fills the table of choices; call once, before all else, from one thread. A CPU feature counts only where the
 * operating system saves its registers too (the compiler's query asks xgetbv). */
static void kreplog_crc_detect(void) {
#if defined(KREPLOG_CRC_ONE)
    int one = 0, three = 0;
#if defined(KREPLOG_CRC_FOLD)
    __builtin_cpu_init();
    one = __builtin_cpu_supports("sse4.2");
    three = one && __builtin_cpu_supports("pclmul");
#elif defined(__linux__)
    one = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
    three = one && (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
#elif defined(__APPLE__)
    one = kreplog_crc_sysctl("hw.optional.armv8_crc32");
    three = one && kreplog_crc_sysctl("hw.optional.arm.FEAT_PMULL");
#endif
    if (one) {
        kreplog_crc_fill_table();
        kreplog_crc_offer(KREPLOG_CRC_ONE_NAME, kreplog_crc_one);
    }
    if (three)
        kreplog_crc_offer(KREPLOG_CRC_THREE_NAME, kreplog_crc_three);
#if defined(KREPLOG_CRC_FOLD)
    if (three && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        kreplog_crc_offer("avx512+vpclmulqdq", kreplog_crc_fold);
#endif
#endif
}

#endif
