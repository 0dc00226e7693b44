/* Waiting on a mapped page until another process publishes: a futex that all processes which map the file share.

   Bytes 576..580 of the page are the wake word, 584..592 the high watermark at which the earliest of the waiting readers
   wants to be woken, 0 for none. The writer resets the second to 0 when it wakes: each waiting reader registers again,
   so that one which was killed costs the writer one wake-up and no more.

   Bytes 592..600 are the monotonic time in ns at which a waiting reader last began to look whether the writer lives. It
   looks for all of them: those that find a recent time sleep on, and are woken by the one that finds the writer dead.
   From then on they are -1, at which each reader looks for itself.

   A reader that sleeps at word w sleeps with bit w mod 32. The writer wakes one of them; that reader wakes the others
   that sleep with the same bit, so that a writer pays for one reader, and readers that sleep again already sleep on. */

#ifndef KREPLOG_WAKE_IMPL_H
#define KREPLOG_WAKE_IMPL_H

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { KREPLOG_WAKE_WORD = 576, KREPLOG_WAKE_AT = 584, KREPLOG_LOOKED_AT = 592 };
enum { KREPLOG_WOKEN, KREPLOG_SLEPT };

static inline uint32_t* kreplog_wake_word(const uint8_t* page) {
    return (uint32_t*) (page + KREPLOG_WAKE_WORD);
}

static inline int64_t* kreplog_wake_at(const uint8_t* page) {
    return (int64_t*) (page + KREPLOG_WAKE_AT);
}

static inline int64_t* kreplog_looked_at(const uint8_t* page) {
    return (int64_t*) (page + KREPLOG_LOOKED_AT);
}

static inline uint32_t kreplog_read_word(const uint8_t* page) {
    return __atomic_load_n(kreplog_wake_word(page), __ATOMIC_ACQUIRE);
}

/* For the writer, behind the release of its lock. On x86 that is a full fence, as the look needs one behind the stores
   that publish; elsewhere it may be none. */
static inline int kreplog_is_wake_due(const uint8_t* page, int64_t high_watermark) {
#if !defined(__x86_64__) && !defined(__i386__)
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    int64_t wanted = __atomic_load_n(kreplog_wake_at(page), __ATOMIC_RELAXED);
    return wanted != 0 && high_watermark >= wanted;
}

/* Wake up to `count` readers that sleep at word `seen`. */
static inline void kreplog_wake_sleepers(const uint8_t* page, uint32_t seen, int count) {
#if defined(__linux__)
    int number = errno;
    syscall(SYS_futex, kreplog_wake_word(page), FUTEX_WAKE_BITSET, count, NULL, NULL, 1u << (seen & 31));
    errno = number;
#else
    (void) page; (void) seen; (void) count;
#endif
}

/* For the writer. */
static inline void kreplog_wake(uint8_t* page, int count) {
    __atomic_store_n(kreplog_wake_at(page), 0, __ATOMIC_SEQ_CST);
    kreplog_wake_sleepers(page, __atomic_fetch_add(kreplog_wake_word(page), 1, __ATOMIC_SEQ_CST), count);
}

/* For a reader: be woken at `high_watermark`, or before. A full fence. */
static inline void kreplog_want_wake(uint8_t* page, int64_t high_watermark) {
    int64_t wanted = __atomic_load_n(kreplog_wake_at(page), __ATOMIC_RELAXED);
    do {
        if (wanted != 0 && wanted <= high_watermark) {
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            return;
        }
    } while (!__atomic_compare_exchange_n(
        kreplog_wake_at(page), &wanted, high_watermark, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED
    ));
}

/* For a reader: whether it is its turn to look at the writer at the monotonic time `now`, since no reader has within
   `period` ns. A time of the future is of an earlier boot, and counts for nothing. */
static inline int kreplog_take_look(uint8_t* page, int64_t now, int64_t period) {
    int64_t last = __atomic_load_n(kreplog_looked_at(page), __ATOMIC_RELAXED);
    if (last == -1) return 1;
    if (last <= now && last > now - period) return 0;
    return __atomic_compare_exchange_n(kreplog_looked_at(page), &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* For the reader that has looked, at `now`: until then the writer lived. */
static inline void kreplog_saw_writer(uint8_t* page, int64_t now) {
    __atomic_store_n(kreplog_looked_at(page), now, __ATOMIC_RELAXED);
}

/* For the reader that has found the writer dead, or the directory deleted: all others look, now. */
static inline void kreplog_saw_no_writer(uint8_t* page) {
    __atomic_store_n(kreplog_looked_at(page), -1, __ATOMIC_SEQ_CST);
    kreplog_wake(page, INT_MAX);
}

/* Sleep for `ns` at most while the word is `seen`; KREPLOG_WOKEN where it is not, or where it was raised meanwhile. */
static inline int kreplog_sleep(const uint8_t* page, uint32_t seen, int64_t ns) {
    struct timespec duration = {ns / 1000000000, ns % 1000000000};
#if defined(__linux__)
    if (page != NULL) {
        struct timespec until;  /* FUTEX_WAIT_BITSET takes a time of the monotonic clock */
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += duration.tv_sec;
        until.tv_nsec += duration.tv_nsec;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        if (
            syscall(SYS_futex, kreplog_wake_word(page), FUTEX_WAIT_BITSET, seen, &until, NULL, 1u << (seen & 31)) == 0
            || errno == EAGAIN
        ) {
            return KREPLOG_WOKEN;
        }
        if (errno == ETIMEDOUT || errno == EINTR) return KREPLOG_SLEPT;
    }
#endif
    (void) page; (void) seen;
    nanosleep(&duration, NULL);
    return KREPLOG_SLEPT;
}

#endif
