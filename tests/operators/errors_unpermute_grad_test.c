/* errors_unpermute_grad_test.c - every fault of docs/contract.md section 6 put to
 * moetoken_unpermute_grad: the status, a message with the argument, the place and the values, and
 * nothing written. */
#include "support/check.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <string.h>

enum {
    GRAD,
    OUT_INDEX,
    TOKEN_ID,
    MAP,
    ROWS,
    PROBS,
    ROWS_GRAD,
    PROBS_GRAD,
    TENSORS
};

static const char *const names[TENSORS] = {
    "unpermuted_tokens_grad", "out_index", "permute_token_id",     "routing_map",
    "permuted_tokens",        "probs",     "permuted_tokens_grad", "probs_grad"};

/* A good call whose tensors are described a second time, to be broken there. */
struct broken {
    struct grad_case grad;
    moetoken_unpermute_grad_args args;
    moetoken_options options;
    DLTensor dl[TENSORS];
    int64_t shape[TENSORS][3], strides[TENSORS][3];
};

static void copy_descriptions(struct broken *broken)
{
    struct grad_case *grad = &broken->grad;
    struct test_tensor *tensors[TENSORS] = {&grad->grad,      &grad->out_index, &grad->token_id,
                                            &grad->map,       &grad->rows,      &grad->probs,
                                            &grad->rows_grad, &grad->probs_grad};
    for (int i = 0; i < TENSORS; i++) {
        DLTensor *dl = &broken->dl[i];
        *dl = tensors[i]->dl;
        for (int d = 0; d < 3; d++) {
            broken->shape[i][d] = d < dl->ndim ? dl->shape[d] : 1;
        }
        broken->strides[i][2] = 1;
        broken->strides[i][1] = 1;
        broken->strides[i][0] = dl->ndim == 2 ? dl->shape[1] : 1;
        dl->shape = broken->shape[i];
        dl->strides = broken->strides[i];
    }
}

static void broken_make(struct broken *broken, bool padded)
{
    struct grad_spec spec = grad_spec_default(padded);
    spec.routing.hole_percent = 0;
    spec.routing.shuffled = !padded;
    spec.index_type = MOETOKEN_I64;
    memset(broken, 0, sizeof *broken);
    grad_case_make(&broken->grad, &spec);
    copy_descriptions(broken);
    broken->args = broken->grad.args;
    broken->args.unpermuted_tokens_grad = &broken->dl[GRAD];
    broken->args.out_index = &broken->dl[OUT_INDEX];
    broken->args.permute_token_id = &broken->dl[TOKEN_ID];
    broken->args.routing_map = &broken->dl[MAP];
    broken->args.permuted_tokens = &broken->dl[ROWS];
    broken->args.probs = &broken->dl[PROBS];
    broken->args.permuted_tokens_grad = &broken->dl[ROWS_GRAD];
    broken->args.probs_grad = &broken->dl[PROBS_GRAD];
}

/* Runs the broken call on the good tensors' memory. */
static void refused(struct broken *broken, moetoken_status status, const char *text,
                    const char *second, const char *third)
{
    broken->grad.args = broken->args;
    grad_case_refused(&broken->grad, &broken->options, status, text, second, third);
    grad_case_free(&broken->grad);
}

/* A fault that needs no element: the check function finds it too. */
static void refused_by_check_too(struct broken *broken, moetoken_status status, const char *text,
                                 const char *second, const char *third)
{
    check_refused(moetoken_unpermute_grad_check(&broken->args, &broken->options), status, text,
                  second, third);
    refused(broken, status, text, second, third);
}

static void the_unbroken_call_succeeds(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        struct broken broken;
        broken_make(&broken, padded);
        moetoken_status status = moetoken_unpermute_grad(&broken.args, &broken.options);
        check(status == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int i = 0; i < TENSORS; i++) {
            broken.dl[i].data = NULL; /* planning first, memory later */
        }
        status = moetoken_unpermute_grad_check(&broken.args, &broken.options);
        check(status == MOETOKEN_OK, "without data: %s", moetoken_last_error());
        grad_case_free(&broken.grad);
    }
}

/* ---- missing -------------------------------------------------------------------------------- */

static void a_missing_tensor(void **state)
{
    struct broken broken;
    (void)state;
    check_refused(moetoken_unpermute_grad(NULL, NULL), MOETOKEN_ERR_NULL, "args", NULL, NULL);
    check_refused(moetoken_unpermute_grad_check(NULL, NULL), MOETOKEN_ERR_NULL, "args", NULL, NULL);
    for (int padded = 0; padded < 2; padded++) {
        broken_make(&broken, padded);
        broken.args.unpermuted_tokens_grad = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[GRAD], NULL, NULL);
        broken_make(&broken, padded);
        broken.args.out_index = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[OUT_INDEX], NULL, NULL);
        broken_make(&broken, padded);
        broken.args.routing_map = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[MAP], "probs", NULL);
        broken_make(&broken, padded);
        broken.args.permuted_tokens = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[ROWS], "probs", NULL);
        broken_make(&broken, padded);
        broken.args.permuted_tokens_grad = NULL;
        broken.args.probs_grad = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[ROWS_GRAD], names[PROBS_GRAD], NULL);
        broken_make(&broken, padded);
        broken.args.probs = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, "probs", names[PROBS_GRAD], NULL);
    }
    broken_make(&broken, true);
    broken.args.permute_token_id = NULL;
    refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[TOKEN_ID], NULL, NULL);
}

static void missing_data_or_shape(void **state)
{
    struct broken broken;
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        broken_make(&broken, i % 2 == 0);
        broken.dl[i].data = NULL;
        refused(&broken, MOETOKEN_ERR_NULL, names[i], "data", NULL);
        broken_make(&broken, i % 2 == 0);
        broken.dl[i].shape = NULL;
        refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[i], "shape", NULL);
    }
}

/* ---- device and type ------------------------------------------------------------------------ */

static void a_tensor_elsewhere(void **state)
{
    struct broken broken;
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        broken_make(&broken, true);
        broken.dl[i].device.device_type = kDLCUDA;
        refused_by_check_too(&broken, MOETOKEN_ERR_DEVICE, names[i], "CPU", NULL);
    }
    broken_make(&broken, true);
    broken.dl[ROWS].device.device_type = kDLCUDAHost; /* pinned host memory is CPU memory */
    check(moetoken_unpermute_grad(&broken.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    grad_case_free(&broken.grad);
}

static void wrong_type(int tensor, DLDataType type)
{
    struct broken broken;
    broken_make(&broken, false);
    broken.dl[tensor].dtype = type;
    refused_by_check_too(&broken, MOETOKEN_ERR_TYPE, names[tensor], NULL, NULL);
}

static void a_type_that_is_not_taken(void **state)
{
    static const DLDataType never[] = {{kDLInt, 16, 1},    {kDLUInt, 32, 1},    {kDLFloat, 8, 1},
                                       {kDLFloat, 32, 2},  {kDLComplex, 64, 1}, {0, 0, 0},
                                       {kDLBfloat, 32, 1}, {200, 32, 1},        {kDLFloat, 32, 0},
                                       {kDLInt, 64, 4}};
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        for (size_t j = 0; j < sizeof never / sizeof never[0]; j++) {
            wrong_type(i, never[j]);
        }
    }
    wrong_type(GRAD, moetoken_dtype(MOETOKEN_I32));
    wrong_type(OUT_INDEX, moetoken_dtype(MOETOKEN_F32));
    wrong_type(OUT_INDEX, moetoken_dtype(MOETOKEN_U8));
    wrong_type(TOKEN_ID, moetoken_dtype(MOETOKEN_F64));
    wrong_type(TOKEN_ID, moetoken_dtype(MOETOKEN_BOOL));
    wrong_type(MAP, moetoken_dtype(MOETOKEN_I32));
    wrong_type(MAP, moetoken_dtype(MOETOKEN_F32));
    wrong_type(ROWS, moetoken_dtype(MOETOKEN_BF16)); /* tokens are float32 */
    wrong_type(ROWS_GRAD, moetoken_dtype(MOETOKEN_F16));
    wrong_type(PROBS, moetoken_dtype(MOETOKEN_F16));
    wrong_type(PROBS, moetoken_dtype(MOETOKEN_F64));
    wrong_type(PROBS_GRAD, moetoken_dtype(MOETOKEN_BF16)); /* probs are float32 */
}

/* Each with each other type: which pairs of token and probs types are taken. */
static void which_types_go_together(void **state)
{
    (void)state;
    for (moetoken_type token = MOETOKEN_F32; token <= MOETOKEN_F64; token++) {
        for (moetoken_type probs = MOETOKEN_F32; probs <= MOETOKEN_F64; probs++) {
            struct grad_case grad;
            struct grad_spec spec = grad_spec_default(false);
            bool narrow = token == MOETOKEN_F16 || token == MOETOKEN_BF16;
            spec.token_type = token;
            spec.probs_type = probs;
            grad_case_make(&grad, &spec);
            if (token == probs || (narrow && probs == MOETOKEN_F32)) {
                grad_case_check(&grad, NULL);
            } else {
                grad_case_refused(&grad, NULL, MOETOKEN_ERR_TYPE, "probs", NULL, NULL);
            }
            grad_case_free(&grad);
        }
    }
}

/* ---- shapes --------------------------------------------------------------------------------- */

static void a_wrong_rank(void **state)
{
    static const int ranks[] = {0, 1, 2, 3, -1, 1000000};
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        int good = i == OUT_INDEX || i == TOKEN_ID ? 1 : 2;
        for (size_t j = 0; j < sizeof ranks / sizeof ranks[0]; j++) {
            struct broken broken;
            if (ranks[j] == good) {
                continue;
            }
            broken_make(&broken, true);
            broken.dl[i].ndim = ranks[j];
            refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, names[i], NULL, NULL);
        }
    }
}

/* Every size of every tensor, one more and one less than what the others say, and negative. */
static void sizes_that_disagree(void **state)
{
    static const int64_t sizes[] = {-1, 1, -1000}; /* added, added, set */
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        for (int d = 0; d < (i == OUT_INDEX || i == TOKEN_ID ? 1 : 2); d++) {
            for (int j = 0; j < 3; j++) {
                struct broken broken;
                broken_make(&broken, true);
                int64_t size = j == 2 ? sizes[j] : broken.shape[i][d] + sizes[j];
                char value[24];
                snprintf(value, sizeof value, "%lld", (long long)size);
                broken.shape[i][d] = size;
                broken.strides[i][0] = 64; /* room for a longer row */
                refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, value, NULL, NULL);
            }
        }
    }
}

static void a_restore_shape_that_disagrees(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct broken broken;
        int64_t shape[2] = {7, 19};
        broken_make(&broken, d == 1);
        shape[d]++;
        broken.args.restore_shape = shape;
        refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "restore_shape", d == 0 ? "8" : "20",
                             d == 0 ? "7" : "19");
    }
}

static void slots_that_do_not_divide(void **state)
{
    struct broken broken;
    (void)state;
    broken_make(&broken, false); /* N = 20, T = 7, no token ids */
    broken.args.permute_token_id = NULL;
    broken.shape[OUT_INDEX][0] = 20;
    broken.shape[ROWS][0] = broken.shape[ROWS_GRAD][0] = 14;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "out_index", "20", "7");
    broken_make(&broken, true); /* N = R = 14, E = 5 */
    broken.shape[OUT_INDEX][0] = broken.shape[TOKEN_ID][0] = 14;
    broken.shape[ROWS][0] = broken.shape[ROWS_GRAD][0] = 14;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "14", "5", NULL);
    broken_make(&broken, true); /* E = 1: C = 15 > T = 7 */
    broken.shape[MAP][1] = broken.shape[PROBS][1] = broken.shape[PROBS_GRAD][1] = 1;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "15", "7", NULL);
}

/* ---- strides, sizes beyond 64 bits ---------------------------------------------------------- */

static void bad_strides(void **state)
{
    struct broken broken;
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        broken_make(&broken, true);
        broken.strides[i][0] = -1;
        refused_by_check_too(&broken, MOETOKEN_ERR_STRIDE, names[i], "-1", NULL);
    }
    for (int i = ROWS_GRAD; i <= PROBS_GRAD; i++) {
        broken_make(&broken, true);
        broken.strides[i][0] = 0; /* all rows in one place */
        refused_by_check_too(&broken, MOETOKEN_ERR_STRIDE, names[i], NULL, NULL);
        broken_make(&broken, true);
        broken.strides[i][1] = 0;
        refused_by_check_too(&broken, MOETOKEN_ERR_STRIDE, names[i], NULL, NULL);
        broken_make(&broken, true);
        broken.strides[i][0] =
            broken.shape[i][1] - 1; /* the last of a row, the first of the next */
        refused_by_check_too(&broken, MOETOKEN_ERR_STRIDE, names[i], NULL, NULL);
        broken_make(&broken, true);
        broken.strides[i][0] = 3; /* columns at 0 2 4 6, rows at 0 3 6: 6 twice */
        broken.strides[i][1] = 2;
        refused_by_check_too(&broken, MOETOKEN_ERR_STRIDE, names[i], NULL, NULL);
    }
}

static void sizes_that_overflow(void **state)
{
    struct broken broken;
    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        broken_make(&broken, true);
        broken.strides[i][0] = INT64_MAX / 4;
        refused_by_check_too(&broken, MOETOKEN_ERR_OVERFLOW, names[i], NULL, NULL);
        broken_make(&broken, true);
        broken.dl[i].byte_offset = UINT64_MAX - 7;
        refused(&broken, MOETOKEN_ERR_OVERFLOW, names[i], NULL, NULL);
    }
    broken_make(&broken, false); /* H = 2^62 everywhere, contiguous */
    int hidden[] = {GRAD, ROWS, ROWS_GRAD};
    for (int i = 0; i < 3; i++) {
        broken.shape[hidden[i]][1] = INT64_C(1) << 62;
        broken.dl[hidden[i]].strides = NULL;
    }
    broken.args.restore_shape = NULL;
    refused_by_check_too(&broken, MOETOKEN_ERR_OVERFLOW, "4611686018427387904", NULL, NULL);
    broken_make(&broken, false); /* no element at all, but a product beyond 64 bits */
    for (int i = 0; i < 3; i++) {
        broken.shape[hidden[i]][1] = INT64_MAX;
        broken.strides[hidden[i]][0] = INT64_MAX;
    }
    broken.args.restore_shape = NULL;
    refused_by_check_too(&broken, MOETOKEN_ERR_OVERFLOW, NULL, NULL, NULL);
}

/* ---- overlap -------------------------------------------------------------------------------- */

/* Both in a place of their own, so that the output meets nothing else behind the other's end. */
static void overlap(bool padded, int output, int other, int64_t shift)
{
    static char place[1 << 16];
    struct broken broken;
    broken_make(&broken, padded);
    broken.dl[other].data = place + sizeof place / 2;
    broken.dl[output].data = (char *)broken.dl[other].data + shift;
    refused_by_check_too(&broken, MOETOKEN_ERR_OVERLAP, names[output], names[other], NULL);
}

static void an_output_over_something_else(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        for (int other = 0; other < TENSORS; other++) {
            if (other != ROWS_GRAD && other != ROWS) {
                overlap(padded, ROWS_GRAD, other, 0);
            }
            if (other != PROBS_GRAD && other != ROWS_GRAD) {
                overlap(padded, PROBS_GRAD, other, 0);
            }
        }
        overlap(padded, ROWS_GRAD, ROWS, 4);
        overlap(padded, ROWS_GRAD, ROWS, -76); /* one row of 19 */
        overlap(padded, ROWS_GRAD, GRAD, 7 * 76 - 1);
        overlap(padded, PROBS_GRAD, PROBS, 7 * 20 - 4); /* the last element */
    }
}

static void in_place_needs_the_same_strides(void **state)
{
    struct broken broken;
    (void)state;
    broken_make(&broken, true);
    broken.dl[ROWS_GRAD].data = broken.dl[ROWS].data;
    broken.strides[ROWS_GRAD][0] = 20;
    refused_by_check_too(&broken, MOETOKEN_ERR_OVERLAP, names[ROWS_GRAD], names[ROWS], NULL);
}

/* Right behind another tensor is not over it. */
static void neighbours_do_not_overlap(void **state)
{
    struct broken broken;
    struct test_tensor both;
    (void)state;
    broken_make(&broken, true);
    tensor_make(&both, MOETOKEN_F32, 2, 30, 19, NULL);
    tensor_fill_random(&both.dl, 0);
    broken.dl[ROWS].data = both.dl.data;
    broken.dl[ROWS_GRAD].data = (char *)both.dl.data + 15 * 19 * 4;
    check(moetoken_unpermute_grad(&broken.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    tensor_free(&both);
    grad_case_free(&broken.grad);
}

/* ---- index values --------------------------------------------------------------------------- */

static void index_value(bool padded, int tensor, int64_t position, int64_t value)
{
    struct broken broken;
    char place[64], range[32];
    broken_make(&broken, padded);
    int64_t rows = broken.grad.routing.rows_num;
    value = value == INT64_MAX ? rows : value; /* the first value that is too large */
    int64_t end = tensor == TOKEN_ID ? 7 : rows;
    snprintf(place, sizeof place, "%s[%lld] = %lld", names[tensor], (long long)position,
             (long long)value);
    snprintf(range, sizeof range, "[0, %lld)", (long long)end);
    tensor_set_bits(&broken.dl[tensor], position, 0, (uint64_t)value);
    refused(&broken, MOETOKEN_ERR_INDEX, place, range, NULL);
}

static void an_index_out_of_range(void **state)
{
    static const int64_t wrong[] = {INT64_MAX, -2, INT64_MIN, INT64_C(1) << 32, INT64_MAX - 1};
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        for (int position = 0; position < 15; position += 7) {
            for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
                index_value(padded, OUT_INDEX, position, wrong[i]);
            }
            index_value(padded, TOKEN_ID, position, -1);
            index_value(padded, TOKEN_ID, position, 7);
            index_value(padded, TOKEN_ID, position, INT64_C(1) << 32);
            index_value(padded, TOKEN_ID, position, INT64_MIN);
        }
    }
    index_value(true, OUT_INDEX, 14, -1); /* no holes in padded mode */
}

static void two_slots_with_one_row(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        struct broken broken;
        char value[32];
        broken_make(&broken, padded);
        int64_t row = -1, first = 0;
        while ((row = tensor_get_index(&broken.dl[OUT_INDEX], first)) < 0) {
            first++;
        }
        int64_t last = broken.grad.routing.slots_num - 1;
        tensor_set_bits(&broken.dl[OUT_INDEX], last, 0, (uint64_t)row);
        snprintf(value, sizeof value, "%lld", (long long)row);
        refused(&broken, MOETOKEN_ERR_DUPLICATE, "out_index", value, padded ? "14" : "20");
    }
}

/* ---- routing -------------------------------------------------------------------------------- */

/* T=2, N=4, E=3, two slots a token, all four with rows. */
static void routing_fault(const unsigned char map[6], const int64_t rows[4], const char *place)
{
    const moetoken_options tolerant = {.flags = MOETOKEN_TOLERATE_ROUTING_MISMATCH};
    struct grad_case grad;
    struct grad_spec spec = grad_spec_default(false);
    spec.routing.tokens = 2;
    spec.routing.experts = 3;
    spec.routing.slots = 2;
    spec.routing.mismatch = true;
    spec.routing.hole_percent = 0;
    grad_case_make(&grad, &spec);
    tensor_fill_indices(&grad.out_index.dl, rows);
    for (int64_t i = 0; i < 6; i++) {
        tensor_set_bits(&grad.map.dl, i / 3, i % 3, map[i]);
    }
    grad_case_refused(&grad, NULL, MOETOKEN_ERR_ROUTING, "routing_map", place, NULL);
    grad_case_check(&grad, &tolerant);
    grad.args.probs = NULL; /* without probs the map does not matter */
    grad.args.probs_grad = NULL;
    grad_case_check(&grad, NULL);
    grad_case_free(&grad);
}

static void slots_and_map_that_do_not_belong_together(void **state)
{
    static const int64_t rows[4] = {2, 0, 3, 1}, holes[4] = {2, -1, -1, 1};
    (void)state;
    routing_fault((const unsigned char[]){1, 0, 1, 0, 0x80, 0}, rows, "1"); /* t1 has one too few */
    routing_fault((const unsigned char[]){0, 0, 0, 1, 1, 0}, rows, "0");
    routing_fault((const unsigned char[]){1, 1, 1, 1, 1, 0}, rows, "3"); /* t0: three, two slots */
    routing_fault((const unsigned char[]){1, 1, 1, 1, 1, 0}, holes, "3");
    routing_fault((const unsigned char[]){1, 1, 0, 1, 0, 0}, holes, "1"); /* t1's first is unused */
}

/* ---- options -------------------------------------------------------------------------------- */

static void unknown_options(void **state)
{
    struct broken broken;
    (void)state;
    for (unsigned bit = 4; bit < 32; bit += 9) {
        broken_make(&broken, true);
        broken.options.flags = 1u << bit;
        refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "flags", NULL, NULL);
    }
    broken_make(&broken, true);
    broken.options.threads = -1;
    refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "threads", "-1", NULL);
    broken_make(&broken, true);
    broken.options.reserved = 7;
    refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "reserved", "7", NULL);
}

int main(void)
{
    random_start("errors_unpermute_grad_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unbroken_call_succeeds),
        cmocka_unit_test(a_missing_tensor),
        cmocka_unit_test(missing_data_or_shape),
        cmocka_unit_test(a_tensor_elsewhere),
        cmocka_unit_test(a_type_that_is_not_taken),
        cmocka_unit_test(which_types_go_together),
        cmocka_unit_test(a_wrong_rank),
        cmocka_unit_test(sizes_that_disagree),
        cmocka_unit_test(a_restore_shape_that_disagrees),
        cmocka_unit_test(slots_that_do_not_divide),
        cmocka_unit_test(bad_strides),
        cmocka_unit_test(sizes_that_overflow),
        cmocka_unit_test(an_output_over_something_else),
        cmocka_unit_test(in_place_needs_the_same_strides),
        cmocka_unit_test(neighbours_do_not_overlap),
        cmocka_unit_test(an_index_out_of_range),
        cmocka_unit_test(two_slots_with_one_row),
        cmocka_unit_test(slots_and_map_that_do_not_belong_together),
        cmocka_unit_test(unknown_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
