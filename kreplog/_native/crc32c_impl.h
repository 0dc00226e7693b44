/* CRC-32C (Castagnoli) with CPU instructions: x86-64 and aarch64, chosen once when kreplog_crc_detect() runs.
 *
 * An implementation takes the CRC register (all ones before the first byte, inverted at the end by the caller) and
 * returns it after `length` more bytes. Polynomials are bit-reflected throughout, as the instructions have them. With
 * them, for 32-bit `a` and the constant K(n) = x^(n - 33) mod P,
 *
 *     crc_word(0, multiply(a, K(n))) == a * x^n mod P
 *
 * which moves a register past n bits of zeros. That alone joins streams that ran side by side (stream), and K(n) is
 * also what folds 128-bit lanes over n bits (fold). All constants come from one table of K(64 * i), filled at start.
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

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KREPLOG_CRC_ONE __attribute__((target("sse4.2")))
#define kreplog_crc_byte(crc, value) _mm_crc32_u8(crc, value)
#define kreplog_crc_word(crc, value) ((uint32_t)_mm_crc32_u64(crc, value))

#elif defined(__aarch64__) && defined(__AARCH64EL__) && defined(__GNUC__)
#include <arm_acle.h>
#if defined(__clang__)
#define KREPLOG_CRC_ONE __attribute__((target("crc")))
#else
#define KREPLOG_CRC_ONE __attribute__((target("+crc")))
#endif
#define kreplog_crc_byte(crc, value) __crc32cb(crc, value)
#define kreplog_crc_word(crc, value) __crc32cd(crc, value)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#if defined(KREPLOG_CRC_ONE)

static inline uint64_t kreplog_crc_load(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

KREPLOG_CRC_ONE static uint32_t kreplog_crc_one(uint32_t crc, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8)
        crc = kreplog_crc_word(crc, kreplog_crc_load(data));
    for (; length; data++, length--)
        crc = kreplog_crc_byte(crc, *data);
    return crc;
}

#endif

static void kreplog_crc_offer(const char *name, kreplog_crc_function function) {
    kreplog_crc_choices[kreplog_crc_choice_count].name = name;
    kreplog_crc_choices[kreplog_crc_choice_count].function = function;
    kreplog_crc_choice_count++;
}

/* Fills the table of choices; call once, before anything else here, from one thread. */
static void kreplog_crc_detect(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        kreplog_crc_offer("sse4.2", kreplog_crc_one);
#elif defined(KREPLOG_CRC_ONE)
    kreplog_crc_offer("crc", kreplog_crc_one);
#endif
}

#endif
