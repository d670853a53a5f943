/* threads.c - a pool of workers that needs no lock: each has one word that says what it does.
 *
 * A caller gives its job to an idle worker by exchanging that word, and takes it back the same way
 * if the worker has not begun by the time nothing is left to do. As nothing is ever locked, a fork
 * finds nothing half done: its child forgets the workers and starts anew. */
#include "threads/threads.h"

#include "threads/futex.h"
#include "threads/thread_count.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

/* More workers than any machine has use for; their places cost memory only once they are used. */
#define MOST_WORKERS 1023

/* What a kernel needs is below 8 KB; the rest is for thread-local variables of the program, which
 * glibc puts there, and for sanitizers. */
#define WORKER_STACK_BYTES ((size_t)512 * 1024)

/* How long a thread looks for work, or for the end of it, before it sleeps. Waking one costs its
 * caller as much as a small call; the time between two calls of a layer is mostly shorter than
 * this. Only while there are as many processors as threads. */
#define SPIN_NANOSECONDS 500000

/* What a worker does, when it is not the address of a job given to it. */
#define VACANT  ((uintptr_t)0) /* there is no such worker yet */
#define IDLE    ((uintptr_t)1)
#define RUNNING ((uintptr_t)2)
#define ENDING  ((uintptr_t)3)

struct worker {
    uintptr_t state;
    uint32_t asleep;  /* futex: 1 from before the worker sleeps until somebody wakes it */
    uint32_t started; /* `thread` is known */
    pthread_t thread;
} __attribute__((aligned(64))); /* a cache line each */

/* In job.helpers, beside the number of workers that may still touch the job. */
#define CALLER_WAITS 0x80000000u

/* One call's work, on its stack. */
struct job {
    moetoken_task_fn *body;
    const void *context;
    int64_t tasks;
    int64_t next;     /* the first task that nobody has taken */
    uint32_t helpers; /* futex */
    uint32_t woken;   /* workers before this one need no waking */
    bool spin;
};

static struct worker workers[MOST_WORKERS];
static uint32_t workers_used; /* those from here on have never been more than vacant */
static uint32_t threads_busy; /* in all calls at once */
static bool closed;           /* no new workers: the process or the library ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* True when SPIN_NANOSECONDS have passed since *began; waits a moment before it says no. */
static bool spun_enough(int64_t *began)
{
    for (int i = 0; i < 16; i++)
        pause_briefly();
    int64_t now = nanoseconds();
    if (*began == 0)
        *began = now;
    return now - *began >= SPIN_NANOSECONDS;
}

/* ---- workers -------------------------------------------------------------------------------- */

static void wake(struct worker *worker)
{
    if (__atomic_exchange_n(&worker->asleep, 0, __ATOMIC_SEQ_CST) != 0)
        moetoken_futex_wake(&worker->asleep);
}

/* Wakes the next worker that was given the job and sleeps. Every thread that works on the job does
 * so before each of its tasks, so that a thousand are awake after ten rounds. */
static void wake_next(struct job *job)
{
    uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_RELAXED);
    while (__atomic_load_n(&job->woken, __ATOMIC_RELAXED) < used) {
        uint32_t i = __atomic_fetch_add(&job->woken, 1, __ATOMIC_RELAXED);
        if (i < used && __atomic_load_n(&workers[i].state, __ATOMIC_SEQ_CST) == (uintptr_t)job &&
            __atomic_load_n(&workers[i].asleep, __ATOMIC_SEQ_CST) != 0) {
            wake(&workers[i]);
            return;
        }
    }
}

static void work(struct job *job)
{
    for (;;) {
        wake_next(job);
        int64_t task = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (task >= job->tasks)
            return;
        job->body(job->context, task);
    }
}

/* After this the job may be gone: only its address is used, to wake who sleeps there. */
static void leave(struct job *job)
{
    if (__atomic_fetch_sub(&job->helpers, 1, __ATOMIC_ACQ_REL) == (CALLER_WAITS | 1))
        moetoken_futex_wake(&job->helpers);
}

/* What the worker is to do, once it is to do something. */
static uintptr_t await_work(struct worker *worker, bool spin)
{
    uintptr_t state = __atomic_load_n(&worker->state, __ATOMIC_ACQUIRE);
    for (int64_t began = 0; spin && state == IDLE && !spun_enough(&began);)
        state = __atomic_load_n(&worker->state, __ATOMIC_ACQUIRE);
    while (state == IDLE) {
        __atomic_store_n(&worker->asleep, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&worker->state, __ATOMIC_SEQ_CST) == IDLE)
            moetoken_futex_wait(&worker->asleep, 1);
        __atomic_store_n(&worker->asleep, 0, __ATOMIC_SEQ_CST);
        state = __atomic_load_n(&worker->state, __ATOMIC_ACQUIRE);
    }
    return state;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    bool spin = false;
    for (;;) {
        uintptr_t state = await_work(worker, spin);
        if (state == ENDING)
            return NULL;
        if (!__atomic_compare_exchange_n(&worker->state, &state, RUNNING, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue; /* taken back */
        /* NOLINTNEXTLINE(performance-no-int-to-ptr): states and addresses share a word */
        struct job *job = (struct job *)state;
        spin = job->spin;
        work(job);
        /* Free first, then leave: the caller's next call should find this worker. */
        __atomic_store_n(&worker->state, IDLE, __ATOMIC_SEQ_CST);
        leave(job);
    }
}

/* Starts the thread of a worker that has its first job already. Its own signals are those of its
 * own faults; all others are for the program's threads. It may run where its creator may. */
static bool start(struct worker *worker)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    sigset_t blocked, before;
    pthread_attr_t attributes;
    sigfillset(&blocked);
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    if (pthread_attr_init(&attributes) != 0)
        return false;
    bool small = pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES) == 0;
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int error = pthread_create(&worker->thread, small ? &attributes : NULL, worker_main, worker);
    if (error == EINVAL && small) /* thread-local variables of the program leave no room */
        error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0)
        __atomic_store_n(&worker->started, 1, __ATOMIC_RELEASE);
    return error == 0;
}

/* ---- the process's fork and end ------------------------------------------------------------- */

/* In the child of a fork, which has one thread and no worker. */
static void forget_workers(void)
{
    uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < used; i++) {
        __atomic_store_n(&workers[i].asleep, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&workers[i].started, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&workers[i].state, VACANT, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&workers_used, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&threads_busy, 0, __ATOMIC_RELAXED);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

/* Ends the workers that sleep, when the process ends or the library is unloaded. One that works is
 * left alone: the process ends while another thread is within a call. */
__attribute__((destructor)) static void end_workers(void)
{
    __atomic_store_n(&closed, true, __ATOMIC_SEQ_CST);
    uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < used; i++) {
        uintptr_t idle = IDLE;
        if (!__atomic_load_n(&workers[i].started, __ATOMIC_ACQUIRE) ||
            !__atomic_compare_exchange_n(&workers[i].state, &idle, ENDING, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        wake(&workers[i]);
        pthread_join(workers[i].thread, NULL);
    }
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Gives the job to a worker that is in the state `expected`. */
static bool give(struct worker *worker, uintptr_t expected, struct job *job)
{
    return __atomic_load_n(&worker->state, __ATOMIC_RELAXED) == expected &&
           __atomic_compare_exchange_n(&worker->state, &expected, (uintptr_t)job, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static uint32_t give_to_idle(struct job *job, uint32_t wanted)
{
    uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_ACQUIRE), given = 0;
    for (uint32_t i = 0; i < used && given < wanted; i++)
        given += give(&workers[i], IDLE, job);
    return given;
}

/* New workers for what the idle ones do not cover, while there are fewer than `most` in all. */
static uint32_t give_to_new(struct job *job, uint32_t wanted, uint32_t most)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < most && given < wanted && !__atomic_load_n(&closed, __ATOMIC_RELAXED);
         i++) {
        if (!give(&workers[i], VACANT, job))
            continue;
        uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_RELAXED);
        while (used < i + 1 && !__atomic_compare_exchange_n(&workers_used, &used, i + 1, true,
                                                            __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            ;
        if (!start(&workers[i])) {
            __atomic_store_n(&workers[i].state, VACANT, __ATOMIC_SEQ_CST);
            break; /* the next one would not start either */
        }
        given++;
    }
    return given;
}

/* Takes the job back from workers that have not begun. */
static uint32_t take_back(struct job *job)
{
    uint32_t used = __atomic_load_n(&workers_used, __ATOMIC_ACQUIRE), taken = 0;
    for (uint32_t i = 0; i < used; i++) {
        uintptr_t mine = (uintptr_t)job;
        if (__atomic_load_n(&workers[i].state, __ATOMIC_RELAXED) == mine)
            taken += __atomic_compare_exchange_n(&workers[i].state, &mine, IDLE, false,
                                                 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    }
    return taken;
}

static void await_helpers(struct job *job)
{
    uint32_t helpers = __atomic_load_n(&job->helpers, __ATOMIC_ACQUIRE);
    for (int64_t began = 0; job->spin && helpers != 0 && !spun_enough(&began);)
        helpers = __atomic_load_n(&job->helpers, __ATOMIC_ACQUIRE);
    if (helpers == 0)
        return;
    helpers = __atomic_or_fetch(&job->helpers, CALLER_WAITS, __ATOMIC_ACQ_REL);
    while (helpers != CALLER_WAITS) {
        moetoken_futex_wait(&job->helpers, helpers);
        helpers = __atomic_load_n(&job->helpers, __ATOMIC_ACQUIRE);
    }
}

static void run_with_helpers(uint32_t wanted, struct job *job)
{
    uint32_t processors = (uint32_t)moetoken_processors();
    uint32_t most = processors > wanted + 1 ? processors - 1 : wanted;
    most = most < MOST_WORKERS ? most : MOST_WORKERS;
    pthread_once(&once, watch_forks);
    uint32_t busy = __atomic_add_fetch(&threads_busy, wanted + 1, __ATOMIC_RELAXED);
    job->spin = busy <= processors;
    job->helpers = wanted;
    uint32_t given = give_to_idle(job, wanted);
    if (given < wanted)
        given += give_to_new(job, wanted - given, most);
    work(job);
    uint32_t absent = wanted - given + take_back(job);
    __atomic_sub_fetch(&job->helpers, absent, __ATOMIC_ACQ_REL);
    await_helpers(job);
    __atomic_sub_fetch(&threads_busy, wanted + 1, __ATOMIC_RELAXED);
}

void moetoken_threads_run(int threads, int64_t tasks, moetoken_task_fn *body, const void *context)
{
    struct job job = {.body = body, .context = context, .tasks = tasks};
    threads = threads < tasks ? threads : (int)tasks;
    if (threads > 1)
        run_with_helpers((uint32_t)threads - 1, &job);
    else
        for (int64_t task = 0; task < tasks; task++)
            body(context, task);
}

int moetoken_threads_parts(int threads, int64_t count, int64_t least)
{
    int64_t most = least > 0 ? count / least : count;
    if (most > threads)
        most = threads;
    return most > 1 ? (int)most : 1;
}

void moetoken_keep_lowest(int64_t *lowest, int64_t value)
{
    int64_t known = __atomic_load_n(lowest, __ATOMIC_RELAXED);
    while (value < known && !__atomic_compare_exchange_n(lowest, &known, value, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}
