# Group-commit gate: one thread fsyncs, all waiters share its result.
#
# When the thread inside leaves, every waiter whose offset it has covered leaves at once, with no need of the GIL and
# without waiting for the others; one of the rest enters. Entering again from inside waits for ever.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t left;
        int occupied;
    } kreplog_gate;
    /* Of new memory, or of a forked child's copy in any state. Never destroyed: that would wait for the waiters, and in
       a child those never leave. */
    static void __attribute__((unused)) kreplog_gate_init(kreplog_gate* gate) {
        pthread_mutex_init(&gate->mutex, NULL);
        pthread_cond_init(&gate->left, NULL);
        gate->occupied = 0;
    }
    /* Waits until the gate is free or *reached is `wanted` or more; returns 1 when entered, 0 when already covered. */
    static int __attribute__((unused)) kreplog_gate_enter(kreplog_gate* gate, const int64_t* reached, int64_t wanted) {
        int missing;
        pthread_mutex_lock(&gate->mutex);
        while ((missing = __atomic_load_n(reached, __ATOMIC_ACQUIRE) < wanted) && gate->occupied)
            pthread_cond_wait(&gate->left, &gate->mutex);
        if (missing) gate->occupied = 1;
        pthread_mutex_unlock(&gate->mutex);
        return missing;
    }
    static void __attribute__((unused)) kreplog_gate_leave(kreplog_gate* gate) {
        pthread_mutex_lock(&gate->mutex);
        gate->occupied = 0;
        pthread_mutex_unlock(&gate->mutex);
        pthread_cond_broadcast(&gate->left);
    }
    """
    ctypedef struct CommitGate "kreplog_gate":
        pass
    void gate_init "kreplog_gate_init"(CommitGate* gate) noexcept nogil
    bint gate_enter "kreplog_gate_enter"(CommitGate* gate, const int64_t* reached, int64_t wanted) noexcept nogil
    void gate_leave "kreplog_gate_leave"(CommitGate* gate) noexcept nogil
