/* thread_count.h - how many threads a call gets: what OpenMP would take. */
#ifndef MOETOKEN_THREAD_COUNT_H
#define MOETOKEN_THREAD_COUNT_H

#include <stdint.h>

/* The threads of a call that asks for `threads` (0: the default): at least 1. The public
 * moetoken_threads_chosen says more. */
int moetoken_thread_count(int32_t threads);

/* The processors that the calling thread may run on. */
int moetoken_processors(void);

#endif
