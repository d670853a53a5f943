/* ids_errors_test.c - what bad input gets in a routing by expert ids: the status, a message with
 * the argument, the place and the values, nothing written; and the sizes that are no fault. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <string.h>

/* T = 3, K = 2, E = 4, H = 5; every slot is used; rows [0, 6). */
struct good {
    struct test_tensor x, ids, weights, bias, residual, rows, row_weights, sorted, source, count, y,
        weights_grad;
    moetoken_permute_args permute;
    moetoken_permute_grad_args permute_grad;
    moetoken_unpermute_args unpermute;
    moetoken_unpermute_grad_args unpermute_grad;
};

static void make(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                 int64_t columns)
{
    tensor_make(tensor, type, ndim, rows, columns, NULL);
    if (type <= MOETOKEN_F64) {
        tensor_fill_random(&tensor->dl, 0);
    }
}

static void good_tensors(struct good *good)
{
    static const int64_t ids[6] = {3, 0, 1, 0, 2, 2}, sorted[6] = {5, 0, 2, 1, 3, 4};
    make(&good->x, MOETOKEN_F32, 2, 3, 5);
    make(&good->y, MOETOKEN_F32, 2, 3, 5);
    make(&good->residual, MOETOKEN_F32, 2, 3, 5);
    make(&good->bias, MOETOKEN_F32, 2, 4, 5);
    make(&good->rows, MOETOKEN_F32, 2, 6, 5);
    make(&good->row_weights, MOETOKEN_F32, 1, 6, 1);
    make(&good->weights, MOETOKEN_F32, 2, 3, 2);
    make(&good->weights_grad, MOETOKEN_F32, 2, 3, 2);
    make(&good->ids, MOETOKEN_I32, 2, 3, 2);
    make(&good->sorted, MOETOKEN_I32, 1, 6, 1);
    make(&good->source, MOETOKEN_I32, 1, 6, 1);
    make(&good->count, MOETOKEN_I64, 1, 4, 1);
    for (int64_t s = 0; s < 6; s++) {
        tensor_set(&good->ids.dl, s / 2, s % 2, (double)ids[s]);
    }
    tensor_fill_indices(&good->sorted.dl, sorted);
}

static void good_make(struct good *good)
{
    memset(good, 0, sizeof *good);
    good_tensors(good);
    good->permute = (moetoken_permute_args){.tokens = &good->x.dl,
                                            .expert_ids = &good->ids.dl,
                                            .weights = &good->weights.dl,
                                            .experts_num = 4,
                                            .permuted_tokens = &good->rows.dl,
                                            .permuted_probs = &good->row_weights.dl,
                                            .sorted_indices = &good->sorted.dl,
                                            .source_slots = &good->source.dl,
                                            .rows_per_expert = &good->count.dl};
    good->permute_grad = (moetoken_permute_grad_args){.permuted_tokens_grad = &good->rows.dl,
                                                      .permuted_probs_grad = &good->row_weights.dl,
                                                      .sorted_indices = &good->sorted.dl,
                                                      .tokens_num = 3,
                                                      .tokens_grad = &good->y.dl,
                                                      .weights_grad = &good->weights_grad.dl};
    good->unpermute = (moetoken_unpermute_args){.permuted_tokens = &good->rows.dl,
                                                .sorted_indices = &good->sorted.dl,
                                                .weights = &good->weights.dl,
                                                .expert_ids = &good->ids.dl,
                                                .expert_bias = &good->bias.dl,
                                                .residual = &good->residual.dl,
                                                .unpermuted_tokens = &good->y.dl};
    good->unpermute_grad = (moetoken_unpermute_grad_args){.unpermuted_tokens_grad = &good->x.dl,
                                                          .out_index = &good->sorted.dl,
                                                          .permuted_tokens = &good->rows.dl,
                                                          .weights = &good->weights.dl,
                                                          .expert_ids = &good->ids.dl,
                                                          .expert_bias = &good->bias.dl,
                                                          .permuted_tokens_grad = &good->rows.dl,
                                                          .weights_grad = &good->weights_grad.dl};
}

#define TENSORS 12

static void all_tensors(struct good *good, struct test_tensor *all[TENSORS])
{
    struct test_tensor *tensors[TENSORS] = {
        &good->x,        &good->ids,   &good->weights,     &good->bias,
        &good->residual, &good->rows,  &good->row_weights, &good->sorted,
        &good->source,   &good->count, &good->y,           &good->weights_grad};
    memcpy(all, tensors, sizeof tensors);
}

enum verb {
    PERMUTE,
    PERMUTE_GRAD,
    UNPERMUTE,
    UNPERMUTE_GRAD
};

static moetoken_status call_with(const struct good *good, enum verb verb, bool only_check,
                                 const moetoken_options *options)
{
    switch (verb) {
    case PERMUTE:
        return (only_check ? moetoken_permute_check : moetoken_permute)(&good->permute, options);
    case PERMUTE_GRAD:
        return (only_check ? moetoken_permute_grad_check
                           : moetoken_permute_grad)(&good->permute_grad, options);
    case UNPERMUTE:
        return (only_check ? moetoken_unpermute_check : moetoken_unpermute)(&good->unpermute,
                                                                            options);
    default:
        return (only_check ? moetoken_unpermute_grad_check
                           : moetoken_unpermute_grad)(&good->unpermute_grad, options);
    }
}

static moetoken_status call(const struct good *good, enum verb verb, bool only_check)
{
    return call_with(good, verb, only_check, NULL);
}

/* by_values: the check alone cannot see it. */
static void refused(struct good *good, enum verb verb, bool by_values, moetoken_status status,
                    const char *text, const char *second)
{
    struct test_tensor *all[TENSORS];
    all_tensors(good, all);
    for (int i = 0; i < TENSORS; i++) {
        tensor_snapshot(all[i]);
    }
    check_refused(call(good, verb, false), status, text, second, NULL);
    if (by_values) {
        check(call(good, verb, true) == MOETOKEN_OK, "check: %s", moetoken_last_error());
    } else {
        check_refused(call(good, verb, true), status, text, second, NULL);
    }
    for (int i = 0; i < TENSORS; i++) {
        check(tensor_unchanged(all[i]), "tensor %d was written", i);
        tensor_free(all[i]);
    }
}

#define REFUSED(verb, change, by_values, status, text, second)                                     \
    do {                                                                                           \
        struct good good;                                                                          \
        good_make(&good);                                                                          \
        change;                                                                                    \
        refused(&good, verb, by_values, status, text, second);                                     \
    } while (0)

static void the_good_call_is_good(void **state)
{
    (void)state;
    for (int verb = PERMUTE; verb <= UNPERMUTE_GRAD; verb++) {
        struct good good;
        struct test_tensor *all[TENSORS];
        good_make(&good);
        check(call(&good, (enum verb)verb, false) == MOETOKEN_OK, "%s", moetoken_last_error());
        all_tensors(&good, all);
        for (int i = 0; i < TENSORS; i++) {
            tensor_free(all[i]);
        }
    }
}

static void ids_out_of_range(void **state)
{
    (void)state;
    REFUSED(PERMUTE, tensor_set(&good.ids.dl, 1, 1, 4), true, MOETOKEN_ERR_INDEX,
            "expert_ids[1, 1] = 4", "[-1, 4)");
    REFUSED(PERMUTE, tensor_set(&good.ids.dl, 2, 0, -2), true, MOETOKEN_ERR_INDEX,
            "expert_ids[2, 0] = -2", "[-1, 4)");
    REFUSED(PERMUTE, tensor_set(&good.ids.dl, 0, 1, 2147483647), true, MOETOKEN_ERR_INDEX,
            "expert_ids[0, 1] = 2147483647", NULL);
    REFUSED(UNPERMUTE, tensor_set(&good.ids.dl, 1, 0, 4), true, MOETOKEN_ERR_INDEX,
            "expert_ids[1, 0] = 4", "[0, 4)");
    REFUSED(UNPERMUTE, tensor_set(&good.ids.dl, 1, 0, -1), true, MOETOKEN_ERR_INDEX,
            "expert_ids[1, 0] = -1", "row 2");
    REFUSED(UNPERMUTE_GRAD, tensor_set(&good.ids.dl, 2, 1, -1), true, MOETOKEN_ERR_INDEX,
            "expert_ids[2, 1] = -1", "row 4");
}

static void indices_of_another_call(void **state)
{
    (void)state;
    for (int verb = PERMUTE_GRAD; verb <= UNPERMUTE_GRAD; verb++) {
        const char *text = verb == UNPERMUTE_GRAD ? "out_index[4] = 6" : "sorted_indices[4] = 6";
        REFUSED((enum verb)verb, tensor_set(&good.sorted.dl, 4, 0, 6), true, MOETOKEN_ERR_INDEX,
                text, "[0, 6)");
        text = verb == UNPERMUTE_GRAD ? "out_index[0] = -2" : "sorted_indices[0] = -2";
        REFUSED((enum verb)verb, tensor_set(&good.sorted.dl, 0, 0, -2), true, MOETOKEN_ERR_INDEX,
                text, NULL);
    }
    REFUSED(PERMUTE_GRAD, tensor_set(&good.sorted.dl, 4, 0, 5), true, MOETOKEN_ERR_DUPLICATE,
            "sorted_indices[4] = 5", "sorted_indices[0]");
    REFUSED(UNPERMUTE_GRAD, tensor_set(&good.sorted.dl, 4, 0, 5), true, MOETOKEN_ERR_DUPLICATE,
            "out_index[4] = 5", "out_index[0]");
}

/* Rows far more than 64 a slot are looked up in a list. */
static void repeated_rows_among_many(void **state)
{
    (void)state;
    for (int outside = 0; outside < 2; outside++) {
        struct good good;
        good_make(&good);
        tensor_free(&good.rows);
        make(&good.rows, MOETOKEN_F32, 2, 1000, 5);
        tensor_set(&good.sorted.dl, 1, 0, 999);
        tensor_set(&good.sorted.dl, 5, 0, outside ? 1000 : 999);
        refused(&good, UNPERMUTE_GRAD, true, outside ? MOETOKEN_ERR_INDEX : MOETOKEN_ERR_DUPLICATE,
                outside ? "out_index[5] = 1000" : "out_index[5] = 999",
                outside ? "[0, 1000)" : "out_index[1]");
    }
}

static void shapes_that_disagree(void **state)
{
    (void)state;
    REFUSED(PERMUTE, good.weights.shape[1] = 1, false, MOETOKEN_ERR_SHAPE, "weights has size 1",
            "K = 2");
    REFUSED(PERMUTE, good.ids.shape[0] = 2, false, MOETOKEN_ERR_SHAPE, "expert_ids has size 2",
            "T = 3");
    REFUSED(PERMUTE, good.count.shape[0] = 3, false, MOETOKEN_ERR_SHAPE, "rows_per_expert has size",
            "E' = 4");
    REFUSED(PERMUTE, good.source.shape[0] = 5, false, MOETOKEN_ERR_SHAPE, "source_slots has size 5",
            "R = 6");
    REFUSED(PERMUTE, good.sorted.shape[0] = 5, false, MOETOKEN_ERR_SHAPE,
            "sorted_indices has size 5", "N = 6");
    REFUSED(PERMUTE, good.permute.capacity = 2, false, MOETOKEN_ERR_SHAPE,
            "permuted_tokens has size 6", "R = 8");
    REFUSED(PERMUTE, good.count.dl.dtype = moetoken_dtype(MOETOKEN_I32), false, MOETOKEN_ERR_TYPE,
            "rows_per_expert is int32", "int64");
    REFUSED(PERMUTE_GRAD, good.weights_grad.shape[1] = 1, false, MOETOKEN_ERR_SHAPE, "N = 6",
            "3 * 1");
    REFUSED(UNPERMUTE, good.weights.shape[0] = 2, false, MOETOKEN_ERR_SHAPE, "weights has size 2",
            "T = 3");
    REFUSED(UNPERMUTE, good.sorted.shape[0] = 4, false, MOETOKEN_ERR_SHAPE, "N = 4", "3 * 2");
    REFUSED(UNPERMUTE, good.bias.shape[1] = 4, false, MOETOKEN_ERR_SHAPE, "expert_bias has size 4",
            "H = 5");
    REFUSED(UNPERMUTE, good.residual.shape[0] = 2, false, MOETOKEN_ERR_SHAPE, "residual has size 2",
            "T = 3");
    REFUSED(UNPERMUTE, good.bias.dl.dtype = moetoken_dtype(MOETOKEN_F64), false, MOETOKEN_ERR_TYPE,
            "expert_bias is float64", "float32");
    REFUSED(UNPERMUTE_GRAD, good.weights_grad.shape[0] = 2, false, MOETOKEN_ERR_SHAPE,
            "weights_grad has size 2", "T = 3");
}

static void what_is_missing(void **state)
{
    (void)state;
    REFUSED(PERMUTE, good.permute.expert_ids = NULL, false, MOETOKEN_ERR_NULL, "expert_ids is NULL",
            "weights is given");
    REFUSED(PERMUTE, good.permute.weights = NULL, false, MOETOKEN_ERR_NULL, "weights is NULL",
            "permuted_probs is given");
    REFUSED(PERMUTE, good.permute.tokens = NULL, false, MOETOKEN_ERR_NULL, "tokens is NULL",
            "permuted_tokens is given");
    REFUSED(PERMUTE_GRAD, good.permute_grad.permuted_probs_grad = NULL, false, MOETOKEN_ERR_NULL,
            "permuted_probs_grad is NULL", "weights_grad is given");
    REFUSED(UNPERMUTE, good.unpermute.expert_ids = NULL, false, MOETOKEN_ERR_NULL,
            "expert_ids is NULL", "expert_bias is given");
    REFUSED(UNPERMUTE,
            (good.unpermute.residual2 = good.unpermute.residual, good.unpermute.residual = NULL),
            false, MOETOKEN_ERR_NULL, "residual is NULL", "residual2 is given");
    REFUSED(UNPERMUTE_GRAD, good.unpermute_grad.weights = NULL, false, MOETOKEN_ERR_NULL,
            "weights is NULL", "weights_grad is given");
    REFUSED(UNPERMUTE_GRAD, good.unpermute_grad.permuted_tokens = NULL, false, MOETOKEN_ERR_NULL,
            "permuted_tokens is NULL", "weights_grad is given");
}

static void both_spellings_at_once(void **state)
{
    (void)state;
    REFUSED(PERMUTE, good.permute.routing_map = &good.ids.dl, false, MOETOKEN_ERR_OPTION,
            "routing_map and expert_ids", NULL);
    REFUSED(PERMUTE, good.permute.probs = &good.weights.dl, false, MOETOKEN_ERR_OPTION,
            "probs and expert_ids", NULL);
    REFUSED(PERMUTE, good.permute.num_out_tokens = 6, false, MOETOKEN_ERR_OPTION,
            "num_out_tokens = 6", "expected 0");
    REFUSED(PERMUTE, good.permute.drop_and_pad = true, false, MOETOKEN_ERR_OPTION, "drop_and_pad",
            "expert_ids is given");
    REFUSED(PERMUTE_GRAD, good.permute_grad.routing_map = &good.ids.dl, false, MOETOKEN_ERR_OPTION,
            "routing_map and weights_grad", NULL);
    REFUSED(UNPERMUTE, good.unpermute.probs = &good.weights.dl, false, MOETOKEN_ERR_OPTION,
            "probs and weights", NULL);
    REFUSED(UNPERMUTE, good.unpermute.drop_and_pad = true, false, MOETOKEN_ERR_OPTION,
            "drop_and_pad", "weights is given");
    REFUSED(UNPERMUTE_GRAD, good.unpermute_grad.permute_token_id = &good.sorted.dl, false,
            MOETOKEN_ERR_OPTION, "permute_token_id and weights", NULL);
}

/* The numbers of a routing by ids with one by map. */
static void numbers_of_the_other_spelling(void **state)
{
    float x[2] = {1, 2}, y[2];
    uint8_t set = 1;
    int64_t th[2] = {1, 2}, te[2] = {1, 1};
    DLTensor t = moetoken_tensor(x, MOETOKEN_F32, 2, th);
    DLTensor m = moetoken_tensor(&set, MOETOKEN_BOOL, 2, te);
    DLTensor r = moetoken_tensor(y, MOETOKEN_F32, 2, th);
    moetoken_permute_args args = {
        .tokens = &t, .routing_map = &m, .num_out_tokens = 1, .permuted_tokens = &r};
    (void)state;
    check(moetoken_permute(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    args.experts_num = 1;
    check_refused(moetoken_permute(&args, NULL), MOETOKEN_ERR_OPTION, "experts_num = 1", "by map",
                  NULL);
    args.experts_num = 0;
    args.capacity = -3;
    check_refused(moetoken_permute(&args, NULL), MOETOKEN_ERR_OPTION, "capacity = -3", "by map",
                  NULL);
}

static void ranges_and_capacities(void **state)
{
    const int64_t huge = INT64_C(1) << 62;
    (void)state;
    REFUSED(PERMUTE, (good.permute.expert_begin = 3, good.permute.expert_end = 2), false,
            MOETOKEN_ERR_SHAPE, "expert_begin = 3 and expert_end = 2", "experts_num = 4");
    REFUSED(PERMUTE, good.permute.expert_end = 5, false, MOETOKEN_ERR_SHAPE, "expert_end = 5",
            "experts_num = 4");
    REFUSED(PERMUTE, (good.permute.expert_begin = -1, good.permute.expert_end = 2), false,
            MOETOKEN_ERR_SHAPE, "expert_begin = -1", NULL);
    REFUSED(PERMUTE, good.permute.expert_begin = 1, false, MOETOKEN_ERR_SHAPE, "expert_end = 0",
            NULL);
    REFUSED(PERMUTE, good.permute.experts_num = -4, false, MOETOKEN_ERR_SHAPE, "experts_num = -4",
            "at least 0");
    REFUSED(PERMUTE, good.permute.capacity = -1, false, MOETOKEN_ERR_SHAPE, "capacity = -1",
            "at least 0");
    REFUSED(PERMUTE, good.permute.capacity = huge, false, MOETOKEN_ERR_OVERFLOW,
            "4 * 4611686018427387904", NULL);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Whether the operator's arguments hold the tensor. */
static bool takes(const struct good *good, enum verb verb, const DLTensor *tensor)
{
    const struct {
        const void *args;
        size_t size;
    } all[] = {{&good->permute, sizeof good->permute},
               {&good->permute_grad, sizeof good->permute_grad},
               {&good->unpermute, sizeof good->unpermute},
               {&good->unpermute_grad, sizeof good->unpermute_grad}};
    for (size_t at = 0; at + sizeof tensor <= all[verb].size; at += sizeof tensor) {
        if (memcmp((const char *)all[verb].args + at, &tensor, sizeof tensor) == 0) {
            return true;
        }
    }
    return false;
}

/* A workspace that begins in a tensor, or ends in it: seen by the check and by the call. */
static void workspace_over(struct good *good, enum verb verb, struct test_tensor *tensor)
{
    static char before[512], name[64];
    size_t bytes, length = (size_t)(tensor->buffer.bytes & ~(size_t)7);
    check(moetoken_workspace_size(3, 6, &bytes) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int end = 0; end < 2; end++) {
        moetoken_options options = {.workspace = tensor->buffer.data, .workspace_bytes = bytes};
        if (end) { /* guard bytes before the tensor, then its first 8 */
            options.workspace = tensor->buffer.data + 8 - bytes;
        }
        memcpy(before, tensor->buffer.data, length);
        check_refused(call_with(good, verb, true, &options), MOETOKEN_ERR_OVERLAP,
                      "options.workspace", NULL, NULL);
        check_refused(call_with(good, verb, false, &options), MOETOKEN_ERR_OVERLAP,
                      "options.workspace", NULL, NULL);
        snprintf(name, sizeof name, "%s", moetoken_last_error());
        check(memcmp(before, tensor->buffer.data, length) == 0, "written: %s", name);
    }
}

static void workspace_over_any_tensor(void **state)
{
    (void)state;
    for (int verb = PERMUTE; verb <= UNPERMUTE_GRAD; verb++) {
        struct good good;
        struct test_tensor *all[TENSORS];
        int found = 0;
        good_make(&good);
        all_tensors(&good, all);
        for (int i = 0; i < TENSORS; i++) {
            if (takes(&good, (enum verb)verb, &all[i]->dl)) {
                workspace_over(&good, (enum verb)verb, all[i]);
                found++;
            }
        }
        check(found >= 5, "only %d tensors of operator %d", found, verb);
        for (int i = 0; i < TENSORS; i++) {
            tensor_free(all[i]);
        }
    }
}

/* restore_shape alone says what T is: the check and the call refuse a negative one alike. */
static void negative_restore_shape(void **state)
{
    const int64_t tokens[] = {-1, INT64_MIN};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct good good;
        struct test_tensor *all[TENSORS];
        int64_t restore_shape[2] = {tokens[i], 5};
        good_make(&good);
        good.unpermute = (moetoken_unpermute_args){.permuted_tokens = &good.rows.dl,
                                                   .sorted_indices = &good.sorted.dl,
                                                   .restore_shape = restore_shape,
                                                   .out_index = &good.source.dl};
        check_refused(call(&good, UNPERMUTE, true), MOETOKEN_ERR_SHAPE, "restore_shape[0] = -",
                      "at least 0", NULL);
        check_refused(call(&good, UNPERMUTE, false), MOETOKEN_ERR_SHAPE, "restore_shape[0] = -",
                      "at least 0", NULL);
        all_tensors(&good, all);
        for (int k = 0; k < TENSORS; k++) {
            tensor_free(all[k]);
        }
    }
}

/* ---- what is no fault ----------------------------------------------------------------------- */

/* No tokens, or no slots: the rows of a capacity are nobody's, and zero. */
static void nothing_to_send(void **state)
{
    (void)state;
    for (int without_tokens = 0; without_tokens < 2; without_tokens++) {
        float rows[6] = {9, 9, 9, 9, 9, 9};
        int64_t count[3] = {7, 7, 7}, source[6] = {7, 7, 7, 7, 7, 7};
        int64_t th[2] = {without_tokens ? 0 : 4, 1}, tk[2] = {without_tokens ? 0 : 4, 0};
        int64_t rh[2] = {6, 1}, r[1] = {6}, e[1] = {3}, n[1] = {0};
        float x[4] = {1, 2, 3, 4};
        DLTensor t = moetoken_tensor(x, MOETOKEN_F32, 2, th);
        DLTensor ids = moetoken_tensor(NULL, MOETOKEN_I64, 2, tk);
        DLTensor out = moetoken_tensor(rows, MOETOKEN_F32, 2, rh);
        DLTensor c = moetoken_tensor(count, MOETOKEN_I64, 1, e);
        DLTensor src = moetoken_tensor(source, MOETOKEN_I64, 1, r);
        DLTensor s = moetoken_tensor(NULL, MOETOKEN_I64, 1, n);
        moetoken_permute_args args = {.tokens = &t,
                                      .expert_ids = &ids,
                                      .experts_num = 3,
                                      .capacity = 2,
                                      .permuted_tokens = &out,
                                      .source_slots = &src,
                                      .rows_per_expert = &c,
                                      .sorted_indices = &s};
        check(moetoken_permute(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int i = 0; i < 6; i++) {
            check(rows[i] == 0 && source[i] == -1, "row %d: %g of slot %lld", i, rows[i],
                  (long long)source[i]);
        }
        check(count[0] == 0 && count[1] == 0 && count[2] == 0, "rows_per_expert");
        float g[4] = {1, 2, 3, 4};
        DLTensor grad = moetoken_tensor(g, MOETOKEN_F32, 2, th);
        memset(rows, 0xff, sizeof rows);
        moetoken_unpermute_grad_args grad_args = {
            .unpermuted_tokens_grad = &grad, .out_index = &s, .permuted_tokens_grad = &out};
        check(moetoken_unpermute_grad(&grad_args, NULL) == MOETOKEN_OK, "%s",
              moetoken_last_error());
        for (int i = 0; i < 6; i++) {
            check(rows[i] == 0, "gradient row %d: %g", i, rows[i]);
        }
    }
}

/* Far more experts than slots: they are sorted by comparison; and E = 0, where every slot is
 * unused. */
static void experts_without_slots(void **state)
{
    enum {
        EXPERTS = 1000
    };
    int64_t ids[3] = {999, 7, 998}, tk[2] = {1, 3}, sorted[3], count[EXPERTS];
    int64_t n[1] = {3}, e[1] = {EXPERTS};
    DLTensor i = moetoken_tensor(ids, MOETOKEN_I64, 2, tk);
    DLTensor s = moetoken_tensor(sorted, MOETOKEN_I64, 1, n);
    DLTensor c = moetoken_tensor(count, MOETOKEN_I64, 1, e);
    moetoken_permute_args args = {
        .expert_ids = &i, .experts_num = EXPERTS, .sorted_indices = &s, .rows_per_expert = &c};
    (void)state;
    check(moetoken_permute(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(sorted[0] == 2 && sorted[1] == 0 && sorted[2] == 1, "rows");
    for (int expert = 0; expert < EXPERTS; expert++) {
        bool named = expert == 7 || expert >= 998;
        check(count[expert] == named, "rows_per_expert[%d]", expert);
    }
    ids[0] = ids[1] = ids[2] = -1;
    args.experts_num = 0;
    e[0] = 0;
    check(moetoken_permute(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(sorted[0] == -1 && sorted[1] == -1 && sorted[2] == -1, "unused");
}

/* 2^33 slots in the planning alone; int32 holds neither their rows nor their numbers. */
static void counts_beyond_32_bits(void **state)
{
    int64_t tk[2] = {INT64_C(1) << 30, 8}, n[1] = {INT64_C(1) << 33}, r[1] = {INT64_C(1) << 31};
    DLTensor ids = moetoken_tensor(NULL, MOETOKEN_I32, 2, tk);
    DLTensor s = moetoken_tensor(NULL, MOETOKEN_I32, 1, n);
    DLTensor src = moetoken_tensor(NULL, MOETOKEN_I64, 1, r);
    moetoken_permute_args args = {
        .expert_ids = &ids, .experts_num = 256, .sorted_indices = &s, .source_slots = &src};
    (void)state;
    check(moetoken_permute_check(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    r[0]++;
    check_refused(moetoken_permute_check(&args, NULL), MOETOKEN_ERR_SHAPE,
                  "sorted_indices is int32", "2147483648", NULL);
    s.dtype = moetoken_dtype(MOETOKEN_I64);
    src.dtype = moetoken_dtype(MOETOKEN_I32);
    check_refused(moetoken_permute_check(&args, NULL), MOETOKEN_ERR_SHAPE, "source_slots is int32",
                  "8589934591", NULL);
}

/* ---- the size of the argument struct -------------------------------------------------------- */

static void struct_sizes(void **state)
{
    struct {
        moetoken_permute_args args;
        char newer[16];
    } larger;
    struct good good;
    struct test_tensor *all[TENSORS];
    (void)state;
    good_make(&good);
    good.permute.struct_size = sizeof good.permute;
    check(call(&good, PERMUTE, false) == MOETOKEN_OK, "%s", moetoken_last_error());
    memset(&larger, 0, sizeof larger);
    larger.args = good.permute;
    larger.args.struct_size = sizeof larger;
    check(moetoken_permute(&larger.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    larger.newer[3] = 1;
    check_refused(moetoken_permute(&larger.args, NULL), MOETOKEN_ERR_OPTION, "struct_size", "newer",
                  NULL);
    good.permute.struct_size = sizeof good.permute - 8;
    check_refused(call(&good, PERMUTE, false), MOETOKEN_ERR_OPTION, "struct_size", "at least",
                  NULL);
    all_tensors(&good, all);
    for (int i = 0; i < TENSORS; i++) {
        tensor_free(all[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_call_is_good),
        cmocka_unit_test(ids_out_of_range),
        cmocka_unit_test(indices_of_another_call),
        cmocka_unit_test(repeated_rows_among_many),
        cmocka_unit_test(shapes_that_disagree),
        cmocka_unit_test(what_is_missing),
        cmocka_unit_test(both_spellings_at_once),
        cmocka_unit_test(numbers_of_the_other_spelling),
        cmocka_unit_test(ranges_and_capacities),
        cmocka_unit_test(workspace_over_any_tensor),
        cmocka_unit_test(negative_restore_shape),
        cmocka_unit_test(nothing_to_send),
        cmocka_unit_test(experts_without_slots),
        cmocka_unit_test(counts_beyond_32_bits),
        cmocka_unit_test(struct_sizes),
    };
    random_start("ids_errors_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
