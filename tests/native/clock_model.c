/* A machine in virtual time under clock_impl.h: each read of its clock or counter takes time, its threads are held up,
   and its clock and counter have the faults of the kind that the caller names. */

#include <stdint.h>

static double lived, counter, rate;  /* ns since the start; ticks of the counter, and those of a ns */
static int64_t clock_base;           /* the clock at the start */
static int steady;
static uint64_t state;
static int64_t real_reads;

static double draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double) (state >> 11) / 9007199254740992.0;
}

static void pass(double ns) {
    lived += ns;
    counter += ns * rate;
}

static int64_t clock_now(void) {
    return clock_base + (int64_t) lived;
}

static void take_a_moment(void) {
    pass(5 + 40 * draw());
    if (draw() < 0.001) pass(3e6 * draw() * draw());
}

static int64_t kreplog_real_ns(void) {
    take_a_moment();
    int64_t now = clock_now();
    real_reads++;
    take_a_moment();
    return now;
}

static uint64_t kreplog_counter(void) {
    take_a_moment();
    uint64_t now = (uint64_t) counter;
    take_a_moment();
    return now;
}

static int kreplog_counter_is_steady(void) {
    return steady;
}

#define KREPLOG_CLOCK_SOURCES
#include "clock_impl.h"

enum { NO_FAULT, CLOCK_SET, COUNTER_LEAPS, RATE_CHANGES, COUNTER_RUNS_AHEAD };

/* Read the clock `calls` times. wrong: how many results were no millisecond of the machine's clock between begin and end
   of their call. latest: the longest time in ns from a fault to a wrong result after it. reads: of the real clock. */
void run(uint64_t seed, int steady_counter, int fault, int64_t calls, int64_t* wrong, double* latest, int64_t* reads) {
    kreplog_clock clock = {0};
    double next_fault = 2e7, fault_at = 0, first_rate;
    int leaps = 0;
    state = seed;
    first_rate = 0.02 + 4 * draw();
    steady = steady_counter;
    lived = 0;
    clock_base = 1700000000000000000 + (int64_t) (1e9 * draw());
    counter = 1e12 * draw();
    rate = first_rate;
    real_reads = *wrong = 0;
    *latest = 0;
    for (int64_t call = 0; call < calls; call++) {
        pass(draw() < 0.0005 ? 5e6 * draw() : 100 * draw());
        if (fault && lived > next_fault) {
            next_fault = lived + 1e7 + 2e7 * draw();
            fault_at = lived;
            if (fault == CLOCK_SET) clock_base += (int64_t) (1e9 * (draw() - 0.5));
            if (fault == COUNTER_LEAPS) counter = draw() < 0.5 ? 1e12 * draw() : counter + 1e10 * draw();
            if (fault == RATE_CHANGES) rate = first_rate * (0.5 + draw());
            if (fault == COUNTER_RUNS_AHEAD) {  /* in one sample of the rate after the other */
                counter += 1e9 + 1e10 * draw();
                if (++leaps % 8) next_fault = lived + 3e5;
            }
        }
        int64_t first = clock_now() / 1000000;
        int64_t ms = kreplog_clock_ms(&clock);
        int64_t last = clock_now() / 1000000;
        if (ms < first || ms > last) {
            ++*wrong;
            if (lived - fault_at > *latest) *latest = lived - fault_at;
        }
    }
    *reads = real_reads;
}
