# A turn at what one thread does for all who wait for it, such as an fsync.
#
# When it ends, all those whom it served leave at once, with no need of the GIL and without waiting for one another; one
# of the rest has the next turn. Taking a turn again in the thread that has it waits for ever.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t ended;
        int taken;
    } kreplog_turn;
    /* For new memory, or in a forked child whatever its parent's threads were at. There is nothing to free: destroying
       would wait for those who wait, and in a child they never leave. */
    static void __attribute__((unused)) kreplog_turn_init(kreplog_turn* turn) {
        pthread_mutex_init(&turn->mutex, NULL);
        pthread_cond_init(&turn->ended, NULL);
        turn->taken = 0;
    }
    /* Waits for the turn or for *reached to be `wanted` or more, whichever comes first; 1 with the turn, else 0. */
    static int __attribute__((unused)) kreplog_turn_take(kreplog_turn* turn, const int64_t* reached, int64_t wanted) {
        int missing;
        pthread_mutex_lock(&turn->mutex);
        while ((missing = __atomic_load_n(reached, __ATOMIC_ACQUIRE) < wanted) && turn->taken)
            pthread_cond_wait(&turn->ended, &turn->mutex);
        if (missing) turn->taken = 1;
        pthread_mutex_unlock(&turn->mutex);
        return missing;
    }
    static void __attribute__((unused)) kreplog_turn_end(kreplog_turn* turn) {
        pthread_mutex_lock(&turn->mutex);
        turn->taken = 0;
        pthread_mutex_unlock(&turn->mutex);
        pthread_cond_broadcast(&turn->ended);
    }
    """
    ctypedef struct Turn "kreplog_turn":
        pass
    void turn_init "kreplog_turn_init"(Turn* turn) noexcept nogil
    bint turn_take "kreplog_turn_take"(Turn* turn, const int64_t* reached, int64_t wanted) noexcept nogil
    void turn_end "kreplog_turn_end"(Turn* turn) noexcept nogil
