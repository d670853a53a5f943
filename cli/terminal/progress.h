/* progress.h - one line on standard error while work goes on for more than a second.
 * A thread of its own prints it, so that a single long call shows that it is alive; nothing is
 * started when standard error is no terminal. */
#ifndef MOETOKEN_CLI_PROGRESS_H
#define MOETOKEN_CLI_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
    char label[128];
    int64_t total; /* of whatever unit; 0: only the time is shown */
    _Atomic int64_t done;
    double began; /* seconds */
    bool running; /* thread, mutex and condition are alive */
    bool finished;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t condition;
};

/* Seconds on a clock that only goes forward. */
double seconds_now(void);

void progress_begin(struct progress *progress, const char *label, int64_t total);
/* From any thread. */
void progress_add(struct progress *progress, int64_t amount);
/* Takes the line away again. Returns the seconds since the beginning. */
double progress_end(struct progress *progress);

#endif
