/* progress.c - one line on standard error while work goes on for more than a second. */
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const double first_line_after = 1.0, next_line_after = 0.25; /* seconds */

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print_line(struct progress *progress)
{
    double elapsed = seconds_now() - progress->began;
    if (progress->total > 0)
        fprintf(stderr, "\r%s: %.0f %%, %.0f s\033[K", progress->label,
                100.0 * (double)progress->done / (double)progress->total, elapsed);
    else
        fprintf(stderr, "\r%s: %.0f s\033[K", progress->label, elapsed);
}

/* False when the work has finished meanwhile. */
static bool wait_for(struct progress *progress, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    double fraction = (double)until.tv_nsec + seconds * 1e9;
    until.tv_sec += (time_t)(fraction / 1e9);
    until.tv_nsec = (long)(fraction - 1e9 * (double)(time_t)(fraction / 1e9));
    while (!progress->finished)
        if (pthread_cond_timedwait(&progress->condition, &progress->mutex, &until) != 0)
            break;
    return !progress->finished;
}

static void *print_until_finished(void *argument)
{
    struct progress *progress = argument;
    pthread_mutex_lock(&progress->mutex);
    bool printed = false;
    for (double seconds = first_line_after; wait_for(progress, seconds);
         seconds = next_line_after) {
        print_line(progress);
        printed = true;
    }
    if (printed)
        fputs("\r\033[K", stderr);
    pthread_mutex_unlock(&progress->mutex);
    return NULL;
}

void progress_begin(struct progress *progress, const char *label, int64_t total)
{
    snprintf(progress->label, sizeof progress->label, "%s", label);
    progress->total = total;
    progress->done = 0;
    progress->began = seconds_now();
    progress->finished = false;
    progress->running = isatty(STDERR_FILENO) == 1;
    if (!progress->running)
        return;
    pthread_mutex_init(&progress->mutex, NULL);
    pthread_cond_init(&progress->condition, NULL);
    progress->running =
        pthread_create(&progress->thread, NULL, print_until_finished, progress) == 0;
}

void progress_add(struct progress *progress, int64_t amount)
{
    atomic_fetch_add_explicit(&progress->done, amount, memory_order_relaxed);
}

double progress_end(struct progress *progress)
{
    double seconds = seconds_now() - progress->began;
    if (progress->running) {
        pthread_mutex_lock(&progress->mutex);
        progress->finished = true;
        pthread_cond_signal(&progress->condition);
        pthread_mutex_unlock(&progress->mutex);
        pthread_join(progress->thread, NULL);
        pthread_cond_destroy(&progress->condition);
        pthread_mutex_destroy(&progress->mutex);
    }
    progress->running = false;
    return seconds;
}
