/* threads_test.c - the same bits for any number of threads, calls from many threads at once, and
 * an error message for each thread. */
#include "oracle/oracle.h"
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Large enough for OpenMP threads: a call moves well over MOETOKEN_SERIAL_BYTES. */
#define TOKENS 201
#define HIDDEN 151

static void the_gradient_for_any_number_of_threads(void **state)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_BF16, MOETOKEN_F64};
    (void)state;
    for (int mode = 0; mode < 6; mode++) {
        struct grad_case grad;
        struct grad_spec spec = grad_spec_default(mode % 2 == 1);
        spec.routing.tokens = TOKENS;
        spec.routing.slots = mode % 2 == 1 ? 83 : 3;
        spec.routing.shuffled = spec.routing.uneven = mode % 2 == 0;
        spec.hidden = HIDDEN;
        spec.token_type = types[mode / 2];
        spec.probs_type = mode / 2 == 1 ? MOETOKEN_F32 : types[mode / 2];
        spec.special_percent = mode == 0 ? 1 : 0;
        grad_case_make(&grad, &spec);
        for (int threads = 1; threads <= 8; threads += mode < 2 ? 1 : 3) {
            const moetoken_options options = {.threads = threads};
            grad_case_check(&grad, &options);
        }
        grad_case_free(&grad);
    }
}

static void the_family_for_any_number_of_threads(void **state)
{
    (void)state;
    for (int mode = 0; mode < 6; mode++) {
        struct family_case family;
        struct family_spec spec = family_spec_default((enum family_verb)(mode / 2), mode % 2 == 1);
        spec.routing.tokens = TOKENS;
        spec.routing.slots = mode % 2 == 1 ? 83 : 3;
        spec.hidden = HIDDEN;
        family_case_make(&family, &spec);
        for (int threads = 1; threads <= 8; threads += 3) {
            const moetoken_options options = {.threads = threads};
            family_case_check(&family, &options);
        }
        family_case_free(&family);
    }
}

/* ---- maps that several threads read -------------------------------------------------------- */

/* Over two mebibytes. */
#define MANY_TOKENS 8209
#define EXPERTS     259

static struct routing_spec large_map(bool padded)
{
    return (struct routing_spec){
        .padded = padded, .tokens = MANY_TOKENS, .experts = EXPERTS, .slots = 3};
}

static void a_gradient_with_a_large_map(void **state)
{
    const moetoken_options options = {.threads = 2 + (int32_t)random_below(6)};
    struct grad_case grad;
    struct grad_spec spec = grad_spec_default(false);
    (void)state;
    spec.routing = large_map(false);
    spec.hidden = 3;
    grad_case_make(&grad, &spec);
    grad_case_check(&grad, &options);
    grad_case_free(&grad);
}

static void permutes_with_a_large_map(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        const moetoken_options options = {.threads = 2 + (int32_t)random_below(6)};
        struct family_case family;
        struct family_spec spec = family_spec_default(FAMILY_PERMUTE, padded == 1);
        spec.routing = large_map(padded == 1);
        spec.hidden = 11;
        spec.without_probs = true;
        family_case_make(&family, &spec);
        family_case_check(&family, &options);
        family_case_free(&family);
    }
}

/* Many tokens are wrong: the message is about the first of them. */
static void the_first_fault_for_any_number_of_threads(void **state)
{
    static const enum family_verb verbs[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE, FAMILY_PERMUTE_GRAD};
    (void)state;
    for (int i = 0; i < 3; i++) {
        int64_t first = random_below(MANY_TOKENS / 2);
        struct family_case family;
        struct family_spec spec = family_spec_default(verbs[i], false);
        char place[64];
        spec.routing = large_map(false);
        spec.hidden = 3;
        family_case_make(&family, &spec);
        for (int64_t t = first; t < MANY_TOKENS; t += 1 + random_below(99)) {
            for (int64_t e = 0; e < EXPERTS; e++) {
                tensor_set_bits(&family.map.dl, t, e, 0x80);
            }
        }
        snprintf(place, sizeof place, "routing_map[%lld] has 259 set", (long long)first);
        for (int threads = 1; threads <= 7; threads += 3) {
            const moetoken_options options = {.threads = threads};
            family_case_refused(&family, &options, MOETOKEN_ERR_ROUTING, place, NULL, NULL);
        }
        family_case_free(&family);
    }
}

/* ---- many callers --------------------------------------------------------------------------- */

#define CALLERS 8

struct caller {
    struct grad_case grad;
    struct oracle *oracle;
    int number;
    bool good;
    char problem[300];
};

static void call_often(struct caller *caller)
{
    const moetoken_options options = {.threads = 1 + caller->number % 3};
    for (int i = 0; i < 12 && caller->good; i++) {
        tensor_fill_poison(&caller->grad.rows_grad.dl);
        tensor_fill_poison(&caller->grad.probs_grad.dl);
        if (moetoken_unpermute_grad(&caller->grad.args, &options) != MOETOKEN_OK) {
            snprintf(caller->problem, sizeof caller->problem, "%s", moetoken_last_error());
            caller->good = false;
        } else {
            oracle_difference(caller->oracle, caller->problem, sizeof caller->problem);
            caller->good = caller->problem[0] == '\0';
        }
    }
}

/* Every second call fails, with a position of this caller's own in the message. */
static void fail_often(struct caller *caller)
{
    char wanted[64];
    int64_t position = 3 + caller->number;
    int64_t right = tensor_get_index(&caller->grad.out_index.dl, position);
    for (int i = 0; i < 40 && caller->good; i++) {
        int64_t wrong = 100000 + 1000 * caller->number + i;
        tensor_set_bits(&caller->grad.out_index.dl, position, 0, (uint64_t)wrong);
        moetoken_status status = moetoken_unpermute_grad(&caller->grad.args, NULL);
        sched_yield();
        snprintf(wanted, sizeof wanted, "out_index[%lld] = %lld", (long long)position,
                 (long long)wrong);
        caller->good = status == MOETOKEN_ERR_INDEX && strstr(moetoken_last_error(), wanted);
        snprintf(caller->problem, sizeof caller->problem, "%s: %s", moetoken_status_name(status),
                 moetoken_last_error());
        tensor_set_bits(&caller->grad.out_index.dl, position, 0, (uint64_t)right);
    }
}

static void *caller_main(void *argument)
{
    struct caller *caller = argument;
    caller->good = moetoken_last_error()[0] == '\0'; /* nothing of other threads */
    snprintf(caller->problem, sizeof caller->problem, "at first: %s", moetoken_last_error());
    if (caller->number % 2 == 0) {
        call_often(caller);
    } else {
        fail_often(caller);
    }
    return NULL;
}

static void many_threads_call_at_once(void **state)
{
    static struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    (void)state;
    moetoken_unpermute_grad(NULL, NULL);
    for (int i = 0; i < CALLERS; i++) {
        struct grad_spec spec = grad_spec_default(i % 4 == 0);
        spec.routing.tokens = 90;
        spec.routing.slots = i % 4 == 0 ? 40 : 3;
        spec.hidden = i % 2 == 0 ? 301 : 5;
        spec.index_type = MOETOKEN_I64;
        memset(&callers[i], 0, sizeof callers[i]);
        callers[i].number = i;
        grad_case_make(&callers[i].grad, &spec);
        callers[i].oracle = oracle_unpermute_grad(&callers[i].grad.args, 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < CALLERS; i++) {
        check(callers[i].good, "caller %d: %s", i, callers[i].problem);
        oracle_free(callers[i].oracle);
        grad_case_free(&callers[i].grad);
    }
    check(strstr(moetoken_last_error(), "args") != NULL, "this thread's message is now \"%s\"",
          moetoken_last_error());
}

/* A message stays until the thread's next failed call. */
static void a_success_keeps_the_last_message(void **state)
{
    struct grad_case grad;
    struct grad_spec spec = grad_spec_default(false);
    (void)state;
    grad_case_make(&grad, &spec);
    moetoken_unpermute_grad(NULL, NULL);
    char *before = strdup(moetoken_last_error());
    grad_case_check(&grad, NULL);
    check(strcmp(before, moetoken_last_error()) == 0, "%s became %s", before,
          moetoken_last_error());
    free(before);
    grad_case_free(&grad);
}

int main(void)
{
    random_start("threads_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_call_at_once),
        cmocka_unit_test(a_success_keeps_the_last_message),
        cmocka_unit_test(the_gradient_for_any_number_of_threads),
        cmocka_unit_test(the_family_for_any_number_of_threads),
        cmocka_unit_test(a_gradient_with_a_large_map),
        cmocka_unit_test(permutes_with_a_large_map),
        cmocka_unit_test(the_first_fault_for_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
