/* stack_test.c - how much stack a call takes: below MOST_STACK on the calling thread, for every
 * operator, type, mode and instruction set; and that a thread with the least stack that the system
 * gives is enough. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/ids_case.h"
#include "support/random.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* What the header promises. */
#define MOST_STACK 8192

#define STACK_BYTES (256 * 1024) /* above what any system asks for at least */
#define PATTERN     0xa5

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};
static const moetoken_type all_types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};

/* A call, and where the thread that makes it found its stack. */
struct job {
    struct grad_case *grad;
    struct family_case *family;
    const moetoken_unpermute_args *unpermute; /* by expert ids */
    const moetoken_unpermute_grad_args *unpermute_grad;
    moetoken_options options;
    moetoken_status status;
    char *entry;
};

static void *run_job(void *context)
{
    struct job *job = context;
    char here = 0;
    job->entry = &here;
    if (job->unpermute != NULL) {
        job->status = moetoken_unpermute(job->unpermute, &job->options);
    } else if (job->unpermute_grad != NULL) {
        job->status = moetoken_unpermute_grad(job->unpermute_grad, &job->options);
    } else if (job->grad != NULL) {
        job->status = moetoken_unpermute_grad(&job->grad->args, &job->options);
    } else {
        job->status = family_case_call(job->family, &job->options);
    }
    return here == 0 ? NULL : context;
}

/* The most that any call took. */
static size_t most_used;

static void run_on_stack(struct job *job, void *stack, size_t bytes)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    if (stack != NULL) {
        assert_int_equal(pthread_attr_setstack(&attributes, stack, bytes), 0);
    } else {
        assert_int_equal(pthread_attr_setstacksize(&attributes, bytes), 0);
    }
    assert_int_equal(pthread_create(&thread, &attributes, run_job, job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    check(job->status == MOETOKEN_OK, "the call failed: status %d", (int)job->status);
}

static void check_job(struct job *job, const char *what, moetoken_type type)
{
    unsigned char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    assert_ptr_not_equal(stack, MAP_FAILED);
    for (size_t i = 0; i < sizeof all_isas / sizeof all_isas[0]; i++) {
        if ((all_isas[i] & moetoken_isa_detected()) == 0) {
            continue;
        }
        job->options = (moetoken_options){.threads = 1, .isa_mask = all_isas[i]};
        memset(stack, PATTERN, STACK_BYTES);
        run_on_stack(job, stack, STACK_BYTES);
        size_t untouched = 0;
        while (stack[untouched] == PATTERN) {
            untouched++;
        }
        size_t used = (size_t)((unsigned char *)job->entry - (stack + untouched));
        most_used = used > most_used ? used : most_used;
        check(used <= MOST_STACK, "%s %s %s takes %zu bytes of stack, expected at most %d", what,
              number_type_name(type), moetoken_isa_name(all_isas[i]), used, MOST_STACK);
        run_on_stack(job, NULL, (size_t)PTHREAD_STACK_MIN);
    }
    munmap(stack, STACK_BYTES);
}

/* Tails, special numbers, more slots than one call of a kernel takes. */
static struct routing_spec routing_of(bool padded, int64_t slots)
{
    return (struct routing_spec){.padded = padded,
                                 .tokens = padded ? 3 : 5,
                                 .experts = 100,
                                 .slots = padded ? 3 : slots,
                                 .hole_percent = 10};
}

static void check_grad(moetoken_type type, int mode)
{
    struct grad_spec spec = grad_spec_default((mode & 1) != 0);
    struct grad_case grad;
    spec.routing = routing_of((mode & 1) != 0, 40);
    spec.hidden = 1061;
    spec.token_type = type;
    spec.probs_type = type;
    spec.without_probs = (mode & 6) == 2;
    spec.without_probs_grad = (mode & 6) == 4 || spec.without_probs;
    spec.in_place = (mode & 6) == 6;
    spec.special_percent = (mode & 8) != 0 ? 5 : 0;
    grad_case_make(&grad, &spec);
    check_job(&(struct job){.grad = &grad}, "unpermute_grad", type);
    grad_case_free(&grad);
}

static void unpermute_grad_takes_little_stack(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (int mode = 0; mode < 16; mode++) {
            check_grad(all_types[t], mode);
        }
    }
}

static void check_family(enum family_verb verb, moetoken_type type, int mode)
{
    static const char *const names[] = {"unpermute", "permute", "permute_grad"};
    struct family_spec spec = family_spec_default(verb, (mode & 1) != 0);
    struct family_case family;
    spec.routing = routing_of((mode & 1) != 0, (mode & 2) != 0 ? 100 : 3);
    spec.routing.experts = spec.routing.padded && (mode & 2) == 0 ? 4 : 100;
    spec.hidden = 1061;
    spec.token_type = type;
    spec.probs_type = type;
    spec.without_probs = (mode & 4) != 0;
    spec.special_percent = (mode & 8) != 0 ? 5 : 0;
    family_case_make(&family, &spec);
    check_job(&(struct job){.family = &family}, names[verb], type);
    family_case_free(&family);
}

static void the_others_take_little_stack(void **state)
{
    static const enum family_verb verbs[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE, FAMILY_PERMUTE_GRAD};
    (void)state;
    for (size_t v = 0; v < 3; v++) {
        for (size_t t = 0; t < 4; t++) {
            for (int mode = 0; mode < 16; mode++) {
                check_family(verbs[v], all_types[t], mode);
            }
        }
    }
}

/* Residuals and biases, and more rows of a token than one call of a kernel adds. */
static void check_ids(moetoken_type type, int64_t slots)
{
    struct ids_spec spec = {.tokens = 3,
                            .slots_per_token = slots,
                            .experts = 7,
                            .hidden = 1100,
                            .rows = -1,
                            .unused_percent = 10,
                            .repeat_experts = true,
                            .token_type = type,
                            .weights_type = type,
                            .index_type = MOETOKEN_I64};
    struct ids_case ids;
    struct test_tensor out, rows_grad, weights_grad;
    ids_case_make(&ids, &spec);
    ids_output(&out, type, 2, spec.tokens, spec.hidden);
    ids_output(&rows_grad, type, 2, ids.rows, spec.hidden);
    ids_output(&weights_grad, type, 2, spec.tokens, slots);
    const moetoken_unpermute_args forward = {.permuted_tokens = &ids.expert_rows.dl,
                                             .sorted_indices = &ids.sorted.dl,
                                             .weights = &ids.weights.dl,
                                             .residual = &ids.residual.dl,
                                             .residual2 = &ids.residual2.dl,
                                             .expert_bias = &ids.bias.dl,
                                             .expert_ids = &ids.expert_ids.dl,
                                             .unpermuted_tokens = &out.dl};
    const moetoken_unpermute_grad_args backward = {.unpermuted_tokens_grad = &ids.grad.dl,
                                                   .out_index = &ids.sorted.dl,
                                                   .permuted_tokens = &ids.expert_rows.dl,
                                                   .weights = &ids.weights.dl,
                                                   .expert_bias = &ids.bias.dl,
                                                   .expert_ids = &ids.expert_ids.dl,
                                                   .permuted_tokens_grad = &rows_grad.dl,
                                                   .weights_grad = &weights_grad.dl};
    check_job(&(struct job){.unpermute = &forward}, "unpermute by ids", type);
    check_job(&(struct job){.unpermute_grad = &backward}, "unpermute_grad by ids", type);
    tensor_free(&out);
    tensor_free(&rows_grad);
    tensor_free(&weights_grad);
    ids_case_free(&ids);
}

static void expert_ids_take_little_stack(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof all_types / sizeof all_types[0]; t++) {
        check_ids(all_types[t], 5);
        check_ids(all_types[t], 200);
    }
}

int main(void)
{
    random_start("stack_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpermute_grad_takes_little_stack),
        cmocka_unit_test(the_others_take_little_stack),
        cmocka_unit_test(expert_ids_take_little_stack),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("at most %zu bytes of stack\n", most_used);
    return failed;
}
