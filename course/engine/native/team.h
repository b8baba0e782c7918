// The threads of one parallel region: they take pieces of work one by one, and meet.
//
// A layer is seven short jobs, each of which needs the one before whole. OpenMP's own loops would do,
// but their threads, while they wait, keep the processor for milliseconds. On a machine that has
// something else to do, they keep it from the very thread that they wait for: a step took 20 times as
// long.

#pragma once
#include <omp.h>
#include <sched.h>
#include "cells.h"

enum { SPINS = 4000 };  // looks, some 20 to 100 microseconds, before the processor is given away

typedef struct {
    i64 next;  // the first piece that nobody has taken
    int num_threads;
    _Alignas(64) int num_here;  // threads that have met
    _Alignas(64) int round;     // how often all have
} team;

// What each thread of a parallel region does first.
static inline void join(team *t) {
    __atomic_store_n(&t->num_threads, omp_get_num_threads(), __ATOMIC_RELAXED);
}

static inline i64 take(team *t) { return __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED); }

// Wait until every thread is here. After it, what each has written is seen by all, and the pieces
// are counted from 0 again.
static inline void meet(team *t) {
    int round = __atomic_load_n(&t->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&t->num_here, 1, __ATOMIC_ACQ_REL) == t->num_threads) {
        t->num_here = 0;
        t->next = 0;
        __atomic_store_n(&t->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int i = 0; __atomic_load_n(&t->round, __ATOMIC_ACQUIRE) == round; i++)
        if (i < SPINS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        } else
            sched_yield();
}
