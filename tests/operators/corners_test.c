/* corners_test.c - faults and layouts that no random case meets: sizes at the edge of a rule,
 * options that contradict each other, views that interleave. Numbers are worked by hand. */
#include "support/check.h"

#include <math.h>
#include <string.h>

/* g [T,2] for unpermute_grad without probs; every array is large enough for the cases below. */
struct plain {
    float grad[16], rows[64];
    int32_t out_index[8], token_id[8];
    int64_t shape_g[2], shape_n[1], shape_r[2], strides[2];
    DLTensor g, index, id, out;
    moetoken_unpermute_grad_args args;
};

static void plain_make(struct plain *plain, int64_t tokens, int64_t slots, int64_t rows)
{
    *plain = (struct plain){.shape_g = {tokens, 2}, .shape_n = {slots}, .shape_r = {rows, 2}};
    for (int i = 0; i < 16; i++) {
        plain->grad[i] = (float)(i + 1);
    }
    for (int i = 0; i < 8; i++) {
        plain->out_index[i] = i;
    }
    plain->g = moetoken_tensor(plain->grad, MOETOKEN_F32, 2, plain->shape_g);
    plain->index = moetoken_tensor(plain->out_index, MOETOKEN_I32, 1, plain->shape_n);
    plain->id = moetoken_tensor(plain->token_id, MOETOKEN_I32, 1, plain->shape_n);
    plain->out = moetoken_tensor(plain->rows, MOETOKEN_F32, 2, plain->shape_r);
    plain->args = (moetoken_unpermute_grad_args){.unpermuted_tokens_grad = &plain->g,
                                                 .out_index = &plain->index,
                                                 .permuted_tokens_grad = &plain->out};
}

static void more_rows_than_slots(void **state)
{
    struct plain plain;
    (void)state;
    plain_make(&plain, 2, 4, 5); /* by map, as token ids are given */
    plain.args.permute_token_id = &plain.id;
    check_refused(moetoken_unpermute_grad(&plain.args, NULL), MOETOKEN_ERR_SHAPE, "R = 5",
                  "at most N = 4", NULL);
    plain_make(&plain, 2, 4, 5); /* by ids, as far as can be told: the last row is nobody's */
    plain.rows[8] = plain.rows[9] = NAN;
    check(moetoken_unpermute_grad(&plain.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(plain.rows[7] == 4 && plain.rows[8] == 0 && plain.rows[9] == 0, "rows %g %g %g",
          plain.rows[7], plain.rows[8], plain.rows[9]);
    plain_make(&plain, 2, 4, 3); /* padded: exactly as many */
    plain.args.permute_token_id = &plain.id;
    plain.args.drop_and_pad = true;
    check_refused(moetoken_unpermute_grad(&plain.args, NULL), MOETOKEN_ERR_SHAPE, "R = 3",
                  "exactly N = 4", NULL);
}

static void more_rows_than_permute_fills(void **state)
{
    float tokens[4] = {0}, rows[10];
    uint8_t map[4] = {1, 0, 0, 1};
    int64_t th[2] = {2, 2}, rh[2] = {5, 2};
    DLTensor t = moetoken_tensor(tokens, MOETOKEN_F32, 2, th);
    DLTensor m = moetoken_tensor(map, MOETOKEN_U8, 2, th);
    DLTensor r = moetoken_tensor(rows, MOETOKEN_F32, 2, rh);
    moetoken_permute_args args = {
        .tokens = &t, .routing_map = &m, .num_out_tokens = 4, .permuted_tokens = &r};
    (void)state;
    check_refused(moetoken_permute(&args, NULL), MOETOKEN_ERR_SHAPE, "permuted_tokens has R = 5",
                  "at most N = 4", NULL);
}

/* K = 1 / 2 = 0 slots a token, so no expert may be set. */
static void permute_to_no_slots(void **state)
{
    float tokens[4] = {0};
    uint8_t map[4] = {0, 0, 0, 0x80};
    int64_t th[2] = {2, 2}, rh[2] = {0, 2};
    DLTensor t = moetoken_tensor(tokens, MOETOKEN_F32, 2, th);
    DLTensor m = moetoken_tensor(map, MOETOKEN_U8, 2, th);
    DLTensor r = moetoken_tensor(tokens, MOETOKEN_F32, 2, rh);
    moetoken_permute_args args = {
        .tokens = &t, .routing_map = &m, .num_out_tokens = 1, .permuted_tokens = &r};
    (void)state;
    check_refused(moetoken_permute(&args, NULL), MOETOKEN_ERR_ROUTING,
                  "routing_map[1] has 1 set experts", "K = num_out_tokens / T = 0", NULL);
    map[3] = 0;
    check(moetoken_permute(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
}

static void slots_without_tokens(void **state)
{
    struct plain plain;
    (void)state;
    plain_make(&plain, 0, 1, 1);
    plain.args.permute_token_id = &plain.id;
    check_refused(moetoken_unpermute_grad(&plain.args, NULL), MOETOKEN_ERR_INDEX,
                  "permute_token_id[0] = 0 is outside [0, 0)", NULL, NULL);
}

static void options_that_contradict(void **state)
{
    struct plain plain;
    (void)state;
    plain_make(&plain, 2, 4, 4);
    moetoken_options both = {.flags = MOETOKEN_CACHED_STORES | MOETOKEN_STREAMING_STORES};
    check_refused(moetoken_unpermute_grad(&plain.args, &both), MOETOKEN_ERR_OPTION,
                  "options.flags = 0xc", NULL, NULL);
    moetoken_options sized = {.workspace_bytes = 64};
    check_refused(moetoken_unpermute_grad(&plain.args, &sized), MOETOKEN_ERR_OPTION,
                  "options.workspace is NULL", "64", NULL);
}

/* 2^31 + 1 rows, none of which is touched: the last one's number does not fit. */
static void indices_too_narrow(void **state)
{
    uint8_t set = 1;
    int64_t slots = (INT64_C(1) << 31) + 1;
    int64_t th[2] = {1, 0}, te[2] = {1, 1}, n[1] = {slots};
    DLTensor t = moetoken_tensor(NULL, MOETOKEN_F32, 2, th);
    DLTensor m = moetoken_tensor(&set, MOETOKEN_BOOL, 2, te);
    DLTensor narrow = moetoken_tensor(NULL, MOETOKEN_I32, 1, n);
    moetoken_permute_args args = {
        .tokens = &t, .routing_map = &m, .num_out_tokens = slots, .sorted_indices = &narrow};
    (void)state;
    check_refused(moetoken_permute_check(&args, NULL), MOETOKEN_ERR_SHAPE,
                  "sorted_indices is int32", "2147483648", NULL);
    narrow.dtype = moetoken_dtype(MOETOKEN_I64);
    check(moetoken_permute_check(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
}

/* g and the gradient rows as columns of one buffer of 4 columns, in either order; and g as windows
 * that slide over the buffer one element at a time. */
static void views_into_one_buffer(void **state)
{
    struct plain plain;
    (void)state;
    for (int64_t grad_first = 0; grad_first < 2; grad_first++) {
        plain_make(&plain, 2, 2, 2);
        plain.out_index[0] = 1;
        plain.out_index[1] = 0;
        int64_t wide[2] = {4, 1};
        plain.g.strides = plain.out.strides = wide;
        plain.g.data = plain.rows + (grad_first ? 0 : 2);
        plain.out.data = plain.rows + (grad_first ? 2 : 0);
        for (int i = 0; i < 64; i++) {
            plain.rows[i] = (float)i;
        }
        check(moetoken_unpermute_grad(&plain.args, NULL) == MOETOKEN_OK, "%s",
              moetoken_last_error());
        const float *in = plain.g.data, *out = plain.out.data;
        check(out[0] == in[4] && out[1] == in[5] && out[4] == in[0] && out[5] == in[1],
              "rows %g %g %g %g", out[0], out[1], out[4], out[5]);
    }
    /* windows [0,1], [1,2] of elements 0..2; the output is elements 2..: shares the last one */
    plain_make(&plain, 2, 2, 2);
    int64_t sliding[2] = {1, 1};
    plain.g.data = plain.rows;
    plain.g.strides = sliding;
    plain.out.data = plain.rows + 2;
    check_refused(moetoken_unpermute_grad(&plain.args, NULL), MOETOKEN_ERR_OVERLAP,
                  "permuted_tokens_grad", "unpermuted_tokens_grad", NULL);
    plain.out.data = plain.rows + 3; /* right behind it */
    check(moetoken_unpermute_grad(&plain.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
}

/* The even and the odd elements of one buffer: equal strides keep them apart. */
static void even_and_odd_elements(void **state)
{
    struct plain plain;
    int64_t strides[2] = {4, 2};
    (void)state;
    for (int64_t odd_grad = 0; odd_grad < 2; odd_grad++) {
        plain_make(&plain, 2, 2, 2);
        plain.g.data = plain.rows + odd_grad;
        plain.out.data = plain.rows + 1 - odd_grad;
        plain.g.strides = plain.out.strides = strides;
        check(moetoken_unpermute_grad(&plain.args, NULL) == MOETOKEN_OK, "%s",
              moetoken_last_error());
    }
    plain.out.data = (char *)plain.g.data + 2; /* half an element further */
    check_refused(moetoken_unpermute_grad(&plain.args, NULL), MOETOKEN_ERR_OVERLAP, NULL, NULL,
                  NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_rows_than_slots),    cmocka_unit_test(more_rows_than_permute_fills),
        cmocka_unit_test(permute_to_no_slots),     cmocka_unit_test(slots_without_tokens),
        cmocka_unit_test(options_that_contradict), cmocka_unit_test(indices_too_narrow),
        cmocka_unit_test(views_into_one_buffer),   cmocka_unit_test(even_and_odd_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
