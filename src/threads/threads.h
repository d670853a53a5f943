/* threads.h - the library's own threads: tasks of a call are shared out among the calling thread
 * and workers that sleep between calls.
 *
 * The calling thread always works itself and takes back what no worker has begun, so a call needs
 * no worker to get done: not where no thread can be started, not in the child of a fork, not while
 * other calls keep the workers busy. */
#ifndef MOETOKEN_THREADS_H
#define MOETOKEN_THREADS_H

#include <stdint.h>

typedef void moetoken_task_fn(const void *context, int64_t task);

/* Calls body(context, task) once for each task of [0, tasks), at most `threads` at a time, in any
 * order. Returns when all are done and what they wrote is visible. Allocates nothing. */
void moetoken_threads_run(int threads, int64_t tasks, moetoken_task_fn *body, const void *context);

/* The number of parts to cut `count` things into, at least `least` of them each, so that every one
 * of `threads` threads gets a part: from 1 to threads. */
int moetoken_threads_parts(int threads, int64_t count, int64_t least);

/* Makes *lowest `value` unless it is lower already: how tasks that run at once agree on the first
 * place where something holds. */
void moetoken_keep_lowest(int64_t *lowest, int64_t value);

#endif
