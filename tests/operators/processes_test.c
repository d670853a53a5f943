/* processes_test.c - what happens to the library's threads when a process forks, cannot start any,
 * has a small stack, or asks for few. Each case runs in a child that an alarm ends should it hang.
 */
#include "support/check.h"
#include "support/family_case.h"
#include "support/random.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) /* gcc's word */
#define SANITIZED_ADDRESSES 1
#endif
#if defined(__SANITIZE_THREAD__)
#define SANITIZED_THREADS 1
/* A child of a process with threads may start some of its own. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED_ADDRESSES 1
#endif
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif
#endif

/* Sanitizers take stack and address space of their own. */
#if defined(SANITIZED_ADDRESSES) || defined(SANITIZED_THREADS)
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define HANGS_AFTER 60 /* seconds */

/* unpermute of the last rows of `in`, in reverse: token t gets row 63 - t of `in`. */
enum {
    TOKENS = 64,
    HIDDEN = 1024
};

struct call {
    float in[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
    int32_t indices[TOKENS];
};

static void call_make(struct call *call)
{
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HIDDEN; h++) {
            call->in[t][h] = (float)(t * HIDDEN + h + 1);
        }
    }
}

/* True when the call on `tokens` of them succeeds and every element is right. */
static bool call_is_right(struct call *call, int32_t threads, int64_t tokens)
{
    int64_t shape[] = {tokens, HIDDEN};
    DLTensor in = moetoken_tensor(call->in[TOKENS - tokens], MOETOKEN_F32, 2, shape);
    DLTensor out = moetoken_tensor(call->out, MOETOKEN_F32, 2, shape);
    DLTensor indices = moetoken_tensor(call->indices, MOETOKEN_I32, 1, shape);
    const moetoken_unpermute_args args = {.struct_size = sizeof args,
                                          .permuted_tokens = &in,
                                          .sorted_indices = &indices,
                                          .unpermuted_tokens = &out};
    const moetoken_options options = {.threads = threads};
    for (int t = 0; t < tokens; t++) {
        call->indices[t] = (int32_t)tokens - 1 - t;
    }
    memset(call->out, 0xff, sizeof call->out);
    if (moetoken_unpermute(&args, &options) != MOETOKEN_OK) {
        fprintf(stderr, "%s\n", moetoken_last_error());
        return false;
    }
    for (int t = 0; t < tokens; t++) {
        for (int h = 0; h < HIDDEN; h++) {
            if (call->out[t][h] != (float)((TOKENS - 1 - t) * HIDDEN + h + 1)) {
                return false;
            }
        }
    }
    return true;
}

static bool one_call(int32_t threads)
{
    struct call *call = malloc(sizeof *call);
    call_make(call);
    bool right = call_is_right(call, threads, TOKENS);
    free(call);
    return right;
}

static int threads_of_process(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count - 2;
}

static void *nothing(void *argument)
{
    return argument;
}

/* ThreadSanitizer's own thread starts beside the first one: before anybody counts. */
static void start_one_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) == 0) {
        pthread_join(thread, NULL);
    }
}

/* What body says in a child process: true when it returns true there, in time. */
static bool in_child(bool (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(HANGS_AFTER);
        start_one_thread();
        _exit(body() ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/* ---- fork ----------------------------------------------------------------------------------- */

static bool call_with_four(void)
{
    return one_call(4) && one_call(4) && one_call(3);
}

/* The child has threads of its own, not only its caller. */
static bool call_and_count(void)
{
    int before = threads_of_process();
    return call_with_four() && threads_of_process() >= before + 3;
}

static bool fork_again(void)
{
    return in_child(call_with_four) && call_with_four() && in_child(call_with_four);
}

static void children_before_and_after_the_parent_called(void **state)
{
    (void)state;
    assert_true(in_child(call_and_count)); /* nobody called in the parent yet */
    assert_true(call_with_four());
    assert_true(in_child(call_and_count));
    assert_true(in_child(fork_again));
    assert_true(call_with_four()); /* the parent's workers are still there */
}

static bool stop_calling;
static bool calls_went_well = true;

static void *call_until_stopped(void *argument)
{
    struct call *call = argument;
    call_make(call);
    while (!__atomic_load_n(&stop_calling, __ATOMIC_RELAXED)) {
        if (!call_is_right(call, 3, TOKENS)) {
            __atomic_store_n(&calls_went_well, false, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void forks_while_other_threads_are_within_a_call(void **state)
{
    enum {
        CALLERS = 3
    };
    static struct call calls[CALLERS];
    pthread_t threads[CALLERS];
    (void)state;
    stop_calling = false;
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call_until_stopped, &calls[i]), 0);
    }
    int failed = 0;
    for (int i = 0; i < 40; i++) {
        static struct call own; /* a child must not allocate: another thread may hold the lock */
        call_make(&own);
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm(HANGS_AFTER);
            _exit(call_is_right(&own, 4, TOKENS) && call_is_right(&own, 2, TOKENS) ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    __atomic_store_n(&stop_calling, true, __ATOMIC_RELAXED);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
    }
    check(failed == 0, "%d of 40 children failed", failed);
    assert_true(calls_went_well);
}

/* ---- no thread to be had -------------------------------------------------------------------- */

static bool without_processes(void)
{
    const struct rlimit none = {1, 1};
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
        return false;
    }
    if (setrlimit(RLIMIT_NPROC, &none) != 0) {
        return false;
    }
    int before = threads_of_process();
    return one_call(8) && one_call(0) && one_call(8) && threads_of_process() == before;
}

/* Less address space left than the smallest stack of a worker. */
static bool without_address_space(void)
{
    static struct call call;
    call_make(&call);
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld", &pages) != 1) {
        return false;
    }
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + 200 * 1024;
    const struct rlimit limit = {bytes, bytes};
    return setrlimit(RLIMIT_AS, &limit) == 0 && call_is_right(&call, 8, TOKENS) &&
           call_is_right(&call, 8, TOKENS);
}

static void the_caller_does_it_all_where_no_thread_starts(void **state)
{
    (void)state;
    assert_true(in_child(without_processes));
    assert_true(SANITIZED || in_child(without_address_space));
}

/* ---- stacks, signals, few threads ----------------------------------------------------------- */

static void *call_on_small_stack(void *argument)
{
    struct call *call = argument;
    return call_is_right(call, 4, TOKENS) ? argument : NULL;
}

static bool on_the_smallest_stack(void)
{
    static struct call call;
    call_make(&call);
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    pthread_attr_init(&attributes);
    long smallest = sysconf(_SC_THREAD_STACK_MIN);
    if (pthread_attr_setstacksize(&attributes, (size_t)(smallest > 16384 ? smallest : 16384)) ||
        pthread_create(&thread, &attributes, call_on_small_stack, &call) != 0) {
        return false;
    }
    pthread_join(thread, &result);
    pthread_attr_destroy(&attributes);
    return result != NULL;
}

static void a_caller_with_the_smallest_stack(void **state)
{
    (void)state;
    assert_true(SANITIZED || in_child(on_the_smallest_stack));
}

static int signals_of_other_threads;
static pthread_t caller;

static void count_signal(int number)
{
    (void)number;
    if (!pthread_equal(pthread_self(), caller)) {
        __atomic_add_fetch(&signals_of_other_threads, 1, __ATOMIC_RELAXED);
    }
}

/* While the caller blocks it, no worker takes a signal sent to the process. */
static bool signals_stay_with_the_caller(void)
{
    sigset_t usr1, pending;
    caller = pthread_self();
    signal(SIGUSR1, count_signal);
    if (!one_call(4)) {
        return false;
    }
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    kill(getpid(), SIGUSR1);
    usleep(20000);
    return one_call(4) && sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1 &&
           signals_of_other_threads == 0;
}

static void workers_take_no_signal(void **state)
{
    (void)state;
    assert_true(in_child(signals_stay_with_the_caller));
}

/* 31 tokens of 4 KB in and out are below 256 KB, 33 are above it, by hand: 2 * 31 * 4 KB = 248 KB
 * and 2 * 33 * 4 KB = 264 KB, and a few hundred bytes of indices. */
static bool threads_start_above_the_serial_bytes(void)
{
    static struct call call;
    call_make(&call);
    int before = threads_of_process();
    if (!call_is_right(&call, 4, 31) || threads_of_process() != before) {
        return false;
    }
    return call_is_right(&call, 4, 33) && threads_of_process() == before + 3;
}

/* g and its rows are 2 * 24 * 4 KB = 192 KB without probs; to count the output twice makes 288 KB.
 * Nor does it matter how large tensors are that are not read: the rows that the forward pass
 * combined. */
static bool gradients_count_what_they_move(void)
{
    static struct call call;
    call_make(&call);
    int64_t shape[] = {24, HIDDEN}, map_shape[] = {24, 1};
    uint8_t map[24];
    float probs[24];
    DLTensor g = moetoken_tensor(call.in, MOETOKEN_F32, 2, shape);
    DLTensor rows = moetoken_tensor(call.in, MOETOKEN_F32, 2, shape);
    DLTensor out = moetoken_tensor(call.out, MOETOKEN_F32, 2, shape);
    DLTensor indices = moetoken_tensor(call.indices, MOETOKEN_I32, 1, shape);
    DLTensor ones = moetoken_tensor(map, MOETOKEN_BOOL, 2, map_shape);
    DLTensor weights = moetoken_tensor(probs, MOETOKEN_F32, 2, map_shape);
    moetoken_unpermute_grad_args args = {
        .unpermuted_tokens_grad = &g, .out_index = &indices, .permuted_tokens_grad = &out};
    const moetoken_options options = {.threads = 4};
    for (int t = 0; t < 24; t++) {
        call.indices[t] = 23 - t;
        map[t] = 1;
        probs[t] = 1;
    }
    int before = threads_of_process();
    if (moetoken_unpermute_grad(&args, &options) != MOETOKEN_OK || threads_of_process() != before) {
        return false;
    }
    args.probs = &weights;
    args.routing_map = &ones;
    args.permuted_tokens = &rows;
    return moetoken_unpermute_grad(&args, &options) == MOETOKEN_OK &&
           threads_of_process() == before;
}

static void small_calls_start_no_thread(void **state)
{
    (void)state;
    assert_true(in_child(gradients_count_what_they_move));
    assert_true(in_child(threads_start_above_the_serial_bytes));
}

/* ---- how many ------------------------------------------------------------------------------- */

static bool four_of_a_list(void)
{
    setenv("OMP_NUM_THREADS", " 4 ,2", 1);
    unsetenv("OMP_THREAD_LIMIT");
    return moetoken_threads_chosen(0) == 4 && moetoken_threads_chosen(7) == 7 &&
           moetoken_threads_chosen(1) == 1 && moetoken_threads_chosen(-1) == 0 && one_call(0);
}

static bool a_limit(void)
{
    setenv("OMP_NUM_THREADS", "4", 1);
    setenv("OMP_THREAD_LIMIT", "3", 1);
    int before = threads_of_process();
    return moetoken_threads_chosen(0) == 3 && moetoken_threads_chosen(7) == 3 &&
           moetoken_threads_chosen(2) == 2 && one_call(8) && threads_of_process() == before + 2;
}

static const char *nonsense;

static bool nonsense_is_ignored(void)
{
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_THREAD_LIMIT");
    int32_t usual = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    setenv("OMP_THREAD_LIMIT", nonsense, 1);
    setenv("OMP_NUM_THREADS", nonsense, 1);
    return moetoken_threads_chosen(0) >= 1 && moetoken_threads_chosen(0) <= usual && one_call(0);
}

static bool absurd_numbers(void)
{
    setenv("OMP_NUM_THREADS", "99999999999999999999", 1);
    unsetenv("OMP_THREAD_LIMIT");
    return moetoken_threads_chosen(0) >= 64 && moetoken_threads_chosen(0) < 100000 &&
           moetoken_threads_chosen(INT32_MAX) == moetoken_threads_chosen(0) && one_call(INT32_MAX);
}

/* In children that nobody has called in: the variables are read once a process. */
static void the_variables_of_openmp(void **state)
{
    (void)state;
    assert_true(in_child(four_of_a_list));
    assert_true(in_child(a_limit));
    static const char *const words[] = {"", "many", "0", "-3", "4096x", "4096 2"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        nonsense = words[i];
        assert_true(in_child(nonsense_is_ignored));
    }
    assert_true(in_child(absurd_numbers));
}

int main(void)
{
    random_start("processes_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_variables_of_openmp),
        cmocka_unit_test(small_calls_start_no_thread),
        cmocka_unit_test(the_caller_does_it_all_where_no_thread_starts),
        cmocka_unit_test(a_caller_with_the_smallest_stack),
        cmocka_unit_test(workers_take_no_signal),
        cmocka_unit_test(children_before_and_after_the_parent_called),
        cmocka_unit_test(forks_while_other_threads_are_within_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
