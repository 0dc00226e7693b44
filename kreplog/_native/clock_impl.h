/* The wall clock in milliseconds for calls that each want it, from the processor's counter where that is steady.

   Reading the real clock takes longer than all else that an append to a buffer does. A reading holds until its millisecond
   ends; how many ticks of the counter that is follows from the rate between readings. In a sample of the rate the counter
   is read late at its begin and early at its end, so a thread that is held up between two reads finds a lower rate, never
   a higher one; a leap of counter or clock (the machine slept or moved, the clock was set) spoils one sample, and the lower
   of the latest two counts. So a reading is dropped before its millisecond is over, and the result is that of the real
   clock. A clock that is set is followed within a millisecond. Where the processor does not promise a steady counter, each
   call reads the real clock.

   A kreplog_clock belongs to one log or appender; whoever uses it holds the GIL. Zeroed memory is a new one. */

#ifndef KREPLOG_CLOCK_IMPL_H
#define KREPLOG_CLOCK_IMPL_H

#include <stdint.h>
#include <time.h>

#ifndef KREPLOG_CLOCK_SOURCES  /* a test has sources of its own */
static inline int64_t kreplog_real_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>

static inline uint64_t kreplog_counter(void) {
    return __rdtsc();
}

static inline int kreplog_counter_is_steady(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
}
#else
static inline uint64_t kreplog_counter(void) {
    return 0;
}

static inline int kreplog_counter_is_steady(void) {
    return 0;
}
#endif
#endif

enum { KREPLOG_NEW_CLOCK, KREPLOG_COUNTS, KREPLOG_NO_COUNTER };
enum { KREPLOG_SAMPLE_NS = 500000 };  /* a shorter sample says little of the rate */
enum { KREPLOG_HIGHEST_RATE = 10 };  /* ticks a ns: no counter is faster, so this bounds what two spoilt samples can do */
enum { KREPLOG_CLOCK_MARGIN_NS = 1000, KREPLOG_CLOCK_MARGIN_PART = 100 };  /* of the time that a reading holds */

typedef struct {
    uint64_t read_at;     /* the counter before the latest reading, which holds for so many ticks */
    uint64_t ticks;
    int64_t ms;
    uint64_t sample_from; /* the counter and the clock at the begin of the sample under way */
    int64_t sample_ns;
    double rate;          /* ticks a ns by the latest whole sample, and by the one before; 0 for none */
    double earlier_rate;
    int state;
} kreplog_clock;

static int64_t __attribute__((noinline, unused)) kreplog_clock_read(kreplog_clock* clock) {
    uint64_t before = kreplog_counter();
    int64_t now = kreplog_real_ns();
    uint64_t after = kreplog_counter();
    int64_t left = 1000000 - now % 1000000;
    int64_t sampled = now - clock->sample_ns;
    double rate;
    if (clock->state == KREPLOG_NEW_CLOCK) clock->state = kreplog_counter_is_steady() ? KREPLOG_COUNTS : KREPLOG_NO_COUNTER;
    if (clock->state == KREPLOG_COUNTS) {
        if (sampled < 0 || sampled >= KREPLOG_SAMPLE_NS) {
            clock->earlier_rate = clock->rate;
            clock->rate = sampled < 0 || !clock->sample_ns ? 0 : (double) (int64_t) (before - clock->sample_from) / sampled;
            if (clock->rate > KREPLOG_HIGHEST_RATE) clock->rate = 0;
            clock->sample_ns = now;
            clock->sample_from = after;
        }
        rate = clock->rate < clock->earlier_rate ? clock->rate : clock->earlier_rate;
        left -= left / KREPLOG_CLOCK_MARGIN_PART + KREPLOG_CLOCK_MARGIN_NS;
        clock->ticks = left > 0 && rate > 0 ? (uint64_t) (left * rate) : 0;
        clock->read_at = before;
        clock->ms = now / 1000000;
    }
    return now / 1000000;
}

static inline int64_t kreplog_clock_ms(kreplog_clock* clock) {
    return kreplog_counter() - clock->read_at < clock->ticks ? clock->ms : kreplog_clock_read(clock);
}

#endif
