/* router_family_test.c - what all functions of the router promise alike: the same bits in any
 * layout, on any number of threads and instruction set, whatever else is asked for; and the same
 * refusal from the check as from the call, with nothing written. */
#include "router_functions.h"
#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

static const moetoken_type floating[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};

static void run(struct any_call *call, const moetoken_options *options)
{
    const struct function *function = call->function;
    check(function->try_it(&call->args, options) == MOETOKEN_OK, "%s_check: %s", function->name,
          moetoken_last_error());
    check(function->run(&call->args, options) == MOETOKEN_OK, "%s: %s", function->name,
          moetoken_last_error());
}

static void check_same_outputs(const struct any_call *left, const struct any_call *right)
{
    for (int i = 0; i < left->function->count; i++) {
        const struct field *field = &left->function->fields[i];
        check(tensor_difference(&left->tensors[i].dl, &right->tensors[i].dl) == -1,
              "%s: another %s", left->function->name, field->name);
        check(field->output ? tensor_gaps_unchanged(&right->tensors[i])
                            : tensor_unchanged(&right->tensors[i]),
              "%s: bytes written around or in %s", left->function->name, field->name);
    }
}

/* ---- layouts, threads, instruction sets ----------------------------------------------------- */

static void same_bits_in_every_layout(void **state)
{
    (void)state;
    for (int i = 0; i < 40 * FUNCTIONS; i++) {
        struct any_call plain, other;
        int64_t experts = 1 + random_below(70);
        int64_t topk = 1 + random_below(experts < 8 ? experts : 8);
        any_call_make(&plain, i % FUNCTIONS, random_below(40), experts, topk,
                      floating[i / FUNCTIONS % 4], false);
        run(&plain, &(moetoken_options){.isa_mask = MOETOKEN_ISA_SCALAR, .threads = 1});
        any_call_copy(&other, &plain);
        run(&other, &(moetoken_options){.isa_mask = 1u << random_below(4)});
        check_same_outputs(&plain, &other);
        any_call_free(&plain);
        any_call_free(&other);
    }
}

/* Enough for several threads to have work: above 256 KiB of tensors. */
static void same_bits_on_threads(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * FUNCTIONS; i++) {
        struct any_call one, many;
        bool small_rows = i % FUNCTIONS == DROP || i % FUNCTIONS == UPDATE_BIAS;
        int64_t experts = i % FUNCTIONS == UPDATE_BIAS ? 40000 : 33;
        any_call_make(&one, i % FUNCTIONS, small_rows ? 9000 : 2100, experts, 5,
                      floating[i / FUNCTIONS], false);
        run(&one, &(moetoken_options){.threads = 1});
        any_call_copy(&many, &one);
        for (int threads = 2; threads <= 5; threads++) {
            any_call_poison(&many);
            run(&many, &(moetoken_options){.threads = threads});
            check_same_outputs(&one, &many);
        }
        any_call_free(&one);
        any_call_free(&many);
    }
}

/* With each size of workspace from the least on, which decides how many threads work. */
static void same_bits_in_any_workspace(void **state)
{
    (void)state;
    static int64_t memory[40000];
    for (int which = 0; which < FUNCTIONS; which++) {
        struct any_call own, given;
        size_t bytes;
        any_call_make(&own, which, 2100, 33, 5, MOETOKEN_F32, false);
        run(&own, NULL);
        any_call_copy(&given, &own);
        for (int threads = 1; threads <= 3; threads++) {
            check(moetoken_router_workspace_size(2100, 33, 5, threads, &bytes) == MOETOKEN_OK &&
                      bytes <= sizeof memory,
                  "%zu bytes", bytes);
            memset(memory, 0x5a, sizeof memory);
            any_call_poison(&given);
            run(&given,
                &(moetoken_options){.threads = 3, .workspace = memory, .workspace_bytes = bytes});
            check_same_outputs(&own, &given);
            for (size_t i = bytes; i < sizeof memory; i++)
                check(((char *)memory)[i] == 0x5a, "byte %zu of %zu was written", i, bytes);
        }
        any_call_free(&own);
        any_call_free(&given);
    }
}

/* The least workspace that the check takes is enough, also where more threads are asked for. */
static void least_workspace(void **state)
{
    (void)state;
    static int64_t memory[40000];
    for (int which = 0; which < FUNCTIONS; which++) {
        struct any_call own, given;
        any_call_make(&own, which, 2100, 33, 5, MOETOKEN_F32, false);
        run(&own, NULL);
        any_call_copy(&given, &own);
        moetoken_options options = {.threads = 3, .workspace = memory};
        while (given.function->try_it(&given.args, &options) == MOETOKEN_ERR_WORKSPACE &&
               options.workspace_bytes < sizeof memory)
            options.workspace_bytes += 8;
        memset(memory, 0x5a, sizeof memory);
        run(&given, &options);
        check_same_outputs(&own, &given);
        for (size_t i = options.workspace_bytes; i < sizeof memory; i++)
            check(((char *)memory)[i] == 0x5a, "%s: byte %zu of %zu was written",
                  given.function->name, i, options.workspace_bytes);
        any_call_free(&own);
        any_call_free(&given);
    }
}

/* What else is asked for changes no output. */
static void each_output_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 8 * FUNCTIONS; i++) {
        struct any_call all, alone;
        any_call_make(&all, i % FUNCTIONS, 23, 16, 4, floating[i / FUNCTIONS % 4], false);
        run(&all, NULL);
        any_call_copy(&alone, &all);
        for (int wanted = 0; wanted < all.function->count; wanted++) {
            if (!all.function->fields[wanted].output)
                continue;
            any_call_poison(&alone);
            for (int f = 0; f < all.function->count; f++)
                if (all.function->fields[f].output)
                    any_call_set(&alone, f, f == wanted ? &alone.tensors[f].dl : NULL);
            run(&alone, NULL);
            check(tensor_difference(&all.tensors[wanted].dl, &alone.tensors[wanted].dl) == -1,
                  "%s: another %s alone", all.function->name, all.function->fields[wanted].name);
        }
        any_call_free(&all);
        any_call_free(&alone);
    }
}

/* ---- large tensors -------------------------------------------------------------------------- */

/* Rows 2^31 + 11 and 2^32 + 3 elements apart, in address space that costs little memory. */
static void rows_far_apart(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * FUNCTIONS; i++) {
        struct any_call near, far;
        int64_t strides[FIELDS_MOST][2], step = i < FUNCTIONS ? 0x80000000 + 11 : 0x100000000 + 3;
        void *memory[FIELDS_MOST];
        size_t bytes[FIELDS_MOST];
        any_call_make(&near, i % FUNCTIONS, 2, 2, 2, MOETOKEN_F32, false);
        run(&near, NULL);
        any_call_copy(&far, &near);
        for (int f = 0; f < near.function->count; f++) {
            DLTensor *tensor = &far.tensors[f].dl;
            const DLTensor *source = &near.tensors[f].dl;
            bytes[f] = (size_t)(step + 2) * (tensor->dtype.bits / 8);
            memory[f] = mmap(NULL, bytes[f], PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            check(memory[f] != MAP_FAILED, "no address space of %zu bytes", bytes[f]);
            strides[f][0] = step, strides[f][1] = 1;
            tensor->data = memory[f], tensor->byte_offset = 0, tensor->strides = strides[f];
            for (int64_t t = 0; t < source->shape[0] && !near.function->fields[f].output; t++)
                for (int64_t j = 0; j < tensor_columns(source); j++)
                    tensor_set_bits(tensor, t, j, tensor_get_bits(source, t, j));
        }
        run(&far, NULL);
        for (int f = 0; f < near.function->count; f++) {
            check(tensor_difference(&near.tensors[f].dl, &far.tensors[f].dl) == -1,
                  "%s: another %s", near.function->name, near.function->fields[f].name);
            munmap(memory[f], bytes[f]);
        }
        any_call_free(&near);
        any_call_free(&far);
    }
}

/* T * E of 2^32 and 2^52: what is planned there, and how much memory is asked for. */
static void descriptions_of_large_tensors(void **state)
{
    (void)state;
    static int64_t memory[8];
    const moetoken_options little = {.workspace = memory, .workspace_bytes = sizeof memory};
    for (int i = 0; i < 2 * FUNCTIONS; i++) {
        struct any_call call;
        int64_t tokens = INT64_C(1) << (i < FUNCTIONS ? 16 : 26);
        any_call_make(&call, i % FUNCTIONS, 2, 2, 2, MOETOKEN_F32, false);
        for (int f = 0; f < call.function->count; f++) {
            DLTensor *tensor = &call.tensors[f].dl;
            tensor->data = NULL;
            for (int d = 0; d < tensor->ndim; d++)
                tensor->shape[d] = call.function->fields[f].sizes[d] == 'T'   ? tokens
                                   : call.function->fields[f].sizes[d] == 'E' ? tokens
                                                                              : tensor->shape[d];
        }
        call.args.drop.experts_num =
            call.function == &functions[DROP] ? tokens : call.args.drop.experts_num;
        check(call.function->try_it(&call.args, NULL) == MOETOKEN_OK, "%s: %s", call.function->name,
              moetoken_last_error());
        if (i % FUNCTIONS != UPDATE_BIAS) /* needs none */
            check_refused(call.function->try_it(&call.args, &little), MOETOKEN_ERR_WORKSPACE,
                          "options.workspace_bytes = 64", NULL, NULL);
        any_call_free(&call);
    }
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void refused(struct any_call *call, moetoken_status status, const char *text)
{
    const char *name = call->function->name;
    check(call->function->try_it(&call->args, NULL) == status, "%s_check, %s: %s", name, text,
          moetoken_last_error());
    check_refused(call->function->try_it(&call->args, NULL), status, text, NULL, NULL);
    check_refused(call->function->run(&call->args, NULL), status, text, NULL, NULL);
    for (int i = 0; i < call->function->count; i++)
        check(tensor_unchanged(&call->tensors[i]), "%s: %s was written", name,
              call->function->fields[i].name);
}

/* Each tensor of each function, bent in one way after the other. */
static void bend_description(struct any_call *call, int f)
{
    const struct field *field = &call->function->fields[f];
    DLTensor *tensor = &call->tensors[f].dl, good = *tensor;
    tensor->dtype = moetoken_dtype(field->kind == INDEX ? MOETOKEN_F32 : MOETOKEN_I32);
    refused(call, MOETOKEN_ERR_TYPE, field->name);
    *tensor = good;
    if (field->kind == WEIGHTS || field->kind == LIKE_FIRST) { /* the first is float16 */
        tensor->dtype = moetoken_dtype(MOETOKEN_BF16);
        refused(call, MOETOKEN_ERR_TYPE, field->name);
        *tensor = good;
    }
    tensor->ndim = 3 - tensor->ndim;
    refused(call, MOETOKEN_ERR_SHAPE, field->name);
    *tensor = good;
    tensor->device.device_type = kDLCUDA;
    refused(call, MOETOKEN_ERR_DEVICE, field->name);
    *tensor = good;
    for (int d = 0; d < tensor->ndim; d++) {
        tensor->shape[d]++; /* told of this tensor or, if it is its letter's first, of the next */
        refused(call, MOETOKEN_ERR_SHAPE, field->sizes[0] == '1' ? "expected 1" : "expected ");
        tensor->shape[d]--;
    }
    if (field->required) {
        any_call_set(call, f, NULL);
        refused(call, MOETOKEN_ERR_NULL, field->name);
        any_call_set(call, f, tensor);
    }
}

static void bend_memory(struct any_call *call, int f)
{
    const struct field *field = &call->function->fields[f];
    DLTensor *tensor = &call->tensors[f].dl, good = *tensor;
    tensor->data = NULL;
    check(call->function->try_it(&call->args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check_refused(call->function->run(&call->args, NULL), MOETOKEN_ERR_NULL, field->name,
                  "has no data", NULL);
    *tensor = good;
    for (int other = 0; other < call->function->count && field->output; other++) {
        if (other == f)
            continue;
        tensor->data = (char *)call->tensors[other].dl.data;
        if (field->replaces == other + 1) { /* all of it may, a part may not */
            check(call->function->try_it(&call->args, NULL) == MOETOKEN_OK, "%s",
                  moetoken_last_error());
            tensor->data = (char *)call->tensors[other].dl.data + tensor->dtype.bits / 8;
        }
        refused(call, MOETOKEN_ERR_OVERLAP, field->name);
    }
    *tensor = good;
    int64_t nowhere[2] = {0, 0};
    tensor->strides = nowhere;
    if (field->output && field->sizes[0] != '1')
        refused(call, MOETOKEN_ERR_STRIDE, field->name);
    *tensor = good;
}

static void bent_tensors(void **state)
{
    (void)state;
    for (int which = 0; which < FUNCTIONS; which++) {
        struct any_call call;
        any_call_make(&call, which, 3, 6, 2, MOETOKEN_F16, false);
        for (int f = 0; f < call.function->count; f++) {
            bend_description(&call, f);
            bend_memory(&call, f);
        }
        for (int f = 0; f < call.function->count; f++)
            if (call.function->fields[f].output)
                any_call_set(&call, f, NULL);
        refused(&call, MOETOKEN_ERR_NULL,
                which == ROUTER_GRAD   ? "logits_grad is NULL"
                : which == UPDATE_BIAS ? "updated_bias is NULL"
                                       : "expected at least one output");
        check_refused(call.function->run(NULL, NULL), MOETOKEN_ERR_NULL, "args is NULL", NULL,
                      NULL);
        check_refused(call.function->try_it(NULL, NULL), MOETOKEN_ERR_NULL, "args is NULL", NULL,
                      NULL);
        any_call_free(&call);
    }
}

#define REFUSED(which, status, text, ...)                                                          \
    do {                                                                                           \
        struct any_call call;                                                                      \
        any_call_make(&call, which, 3, 6, 2, MOETOKEN_F32, false);                                 \
        __VA_ARGS__;                                                                               \
        refused(&call, status, text);                                                              \
        any_call_free(&call);                                                                      \
    } while (0)

static void bent_numbers(void **state)
{
    (void)state;
    const moetoken_status option = MOETOKEN_ERR_OPTION, shape = MOETOKEN_ERR_SHAPE;
    for (int which = 0; which < FUNCTIONS; which++)
        REFUSED(which, option, "args.struct_size = 8", call.args.struct_size = 8);
    REFUSED(ROUTER_GRAD, option, "config.score = 4", call.args.grad.config.score = 4);
    REFUSED(ROUTER_GRAD, option, "config.score = -1", call.args.grad.config.score = -1);
    REFUSED(ROUTER_GRAD, option, "config.eps = -0.5", call.args.grad.config.eps = -0.5);
    REFUSED(ROUTER_GRAD, option, "config.eps = ", call.args.grad.config.eps = NAN);
    REFUSED(ROUTER_GRAD, option, "config.scale = inf", call.args.grad.config.scale = INFINITY);
    REFUSED(ROUTER_GRAD, MOETOKEN_ERR_NULL,
            "weights_grad, probs_grad and scores_grad are NULL, expected at least one of them",
            call.args.grad.weights_grad = call.args.grad.probs_grad = call.args.grad.scores_grad =
                NULL);
    REFUSED(Z_LOSS, option, "coeff = ", call.args.z_loss.coeff = NAN);
    REFUSED(Z_LOSS, option, "coeff = inf", call.args.z_loss.coeff = INFINITY);
    REFUSED(BALANCE_LOSS, option, "coeff = -inf", call.args.balance_loss.coeff = -INFINITY);
    REFUSED(BALANCE_LOSS, option, "topk = 0", call.args.balance_loss.topk = 0);
    REFUSED(BALANCE_LOSS, option, "total_tokens = -1", call.args.balance_loss.total_tokens = -1);
    REFUSED(UPDATE_BIAS, option, "rate = inf", call.args.update_bias.rate = INFINITY);
    REFUSED(DROP, shape, "experts_num = -1", call.args.drop.experts_num = -1);
    REFUSED(DROP, shape, "capacity = -1", call.args.drop.capacity = -1);
    REFUSED(DROP, MOETOKEN_ERR_OVERFLOW, "does not fit in size_t",
            call.args.drop.experts_num = INT64_MAX, call.args.drop.rows_per_expert = NULL);
}

/* A loss's own tensors may be without data where they are not read. */
static void unread_scores(void **state)
{
    (void)state;
    struct any_call call;
    any_call_make(&call, BALANCE_LOSS, 3, 6, 2, MOETOKEN_F32, false);
    call.tensors[0].dl.data = NULL;
    call.args.balance_loss.loss = NULL;
    run(&call, NULL);
    any_call_free(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_in_every_layout),
        cmocka_unit_test(same_bits_on_threads),
        cmocka_unit_test(same_bits_in_any_workspace),
        cmocka_unit_test(least_workspace),
        cmocka_unit_test(each_output_alone),
        cmocka_unit_test(rows_far_apart),
        cmocka_unit_test(descriptions_of_large_tensors),
        cmocka_unit_test(bent_tensors),
        cmocka_unit_test(bent_numbers),
        cmocka_unit_test(unread_scores),
    };
    random_start("router_family_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
