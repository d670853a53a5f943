/* thread_count.c - OMP_NUM_THREADS, OMP_THREAD_LIMIT, the affinity mask, and the OpenMP runtime of
 * the program, if it has one. */
#include "threads/thread_count.h"

#include <moetoken/moetoken.h>

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than this is taken for a mistake, unless the machine is larger. */
#define MOST_THREADS_ANYWHERE 64

typedef int omp_query(void);

/* The runtime that the program is linked with, in a static program too. Nothing here needs one. */
omp_query omp_get_max_threads __attribute__((weak));
omp_query omp_get_active_level __attribute__((weak));
omp_query omp_get_max_active_levels __attribute__((weak));

static struct {
    int number, limit;                       /* from the environment; 0: not set */
    omp_query *threads, *level, *level_most; /* NULL: no runtime */
} known;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A positive number, alone or at the head of a list such as "4,2"; else 0. */
static int environment_number(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL)
        return 0;
    char *end;
    long number = strtol(text, &end, 10);
    while (isspace((unsigned char)*end))
        end++;
    if (end == text || (*end != '\0' && *end != ',') || number < 1)
        return 0;
    return number < INT_MAX ? (int)number : INT_MAX;
}

/* A runtime that was loaded after this library, with RTLD_GLOBAL, is found by name alone. */
static omp_query *find(omp_query *linked, const char *name)
{
    void *loaded = linked ? NULL : dlsym(RTLD_DEFAULT, name);
    if (loaded)
        memcpy(&linked, &loaded, sizeof linked);
    return linked;
}

static void look_around(void)
{
    known.number = environment_number("OMP_NUM_THREADS");
    known.limit = environment_number("OMP_THREAD_LIMIT");
    known.threads = find(omp_get_max_threads, "omp_get_max_threads");
    known.level = find(omp_get_active_level, "omp_get_active_level");
    known.level_most = find(omp_get_max_active_levels, "omp_get_max_active_levels");
}

/* True within as many parallel regions as the program lets be active: there OpenMP starts no
 * further threads. */
static bool nested(void)
{
    return known.level && known.level_most && known.level() > 0 &&
           known.level() >= known.level_most();
}

int moetoken_processors(void)
{
    unsigned long mask[1024 / sizeof(long)] = {0}; /* 8192 processors */
    int count = 0;
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask) != 0)
        count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t i = 0; i < sizeof mask / sizeof mask[0]; i++)
        count += __builtin_popcountl(mask[i]);
    return count > 0 ? count : 1;
}

int moetoken_thread_count(int32_t threads)
{
    pthread_once(&once, look_around);
    if (nested())
        return 1;
    int processors = moetoken_processors(), number;
    if (threads > 0)
        number = threads;
    else if (known.threads)
        number = known.threads();
    else
        number = known.number > 0 ? known.number : processors;
    int most = processors > MOST_THREADS_ANYWHERE / 4 ? 4 * processors : MOST_THREADS_ANYWHERE;
    if (known.limit > 0 && known.limit < most)
        most = known.limit;
    number = number < most ? number : most;
    return number > 1 ? number : 1;
}

int32_t moetoken_threads_chosen(int32_t threads)
{
    return threads < 0 ? 0 : moetoken_thread_count(threads);
}
