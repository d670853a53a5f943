/* ids_map_test.c - one routing in two spellings: by map and by expert ids all four operators give
 * the same bits. And an example that is worked by hand. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <string.h>

#define ROUTINGS 2000
#define MOST     40

static void check_ok(moetoken_status status)
{
    check(status == MOETOKEN_OK, "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

/* ---- worked by hand ------------------------------------------------------------------------- */

/* Three tokens, three experts, K = 2; token 1 has one slot, token 2 names expert 1 twice:
 * ids = [2,0 | 1,-1 | 1,1]. Expert order: row 0 = slot 1, rows 1, 2, 3 = slots 2, 4, 5, row 4 =
 * slot 0. With C = 2: rows 0, 2, 3, 4 = slots 1, 2, 4, 0; slot 5 is dropped, rows 1 and 5 empty. */
static int32_t hand_ids[6] = {2, 0, 1, -1, 1, 1};
static float hand_tokens[3] = {1, 10, 100}, hand_weights[6] = {2, 3, 5, 7, 11, 13};
static int64_t hand_th[2] = {3, 1}, hand_tk[2] = {3, 2};

static void permute_by_hand(void **state)
{
    float rows[6], row_weights[6];
    int32_t sorted[6], source[6];
    int64_t count[3], n[1] = {6}, rh[2] = {5, 1}, r[1] = {5}, e[1] = {3};
    DLTensor t = moetoken_tensor(hand_tokens, MOETOKEN_F32, 2, hand_th);
    DLTensor ids = moetoken_tensor(hand_ids, MOETOKEN_I32, 2, hand_tk);
    DLTensor w = moetoken_tensor(hand_weights, MOETOKEN_F32, 2, hand_tk);
    DLTensor out = moetoken_tensor(rows, MOETOKEN_F32, 2, rh);
    DLTensor out_w = moetoken_tensor(row_weights, MOETOKEN_F32, 1, r);
    DLTensor s = moetoken_tensor(sorted, MOETOKEN_I32, 1, n);
    DLTensor src = moetoken_tensor(source, MOETOKEN_I32, 1, r);
    DLTensor c = moetoken_tensor(count, MOETOKEN_I64, 1, e);
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = &t,
                                  .expert_ids = &ids,
                                  .weights = &w,
                                  .experts_num = 3,
                                  .permuted_tokens = &out,
                                  .permuted_probs = &out_w,
                                  .sorted_indices = &s,
                                  .source_slots = &src,
                                  .rows_per_expert = &c};
    (void)state;
    check_ok(moetoken_permute(&args, NULL));
    assert_memory_equal(sorted, ((int32_t[]){4, 0, 1, -1, 2, 3}), sizeof sorted);
    assert_memory_equal(source, ((int32_t[]){1, 2, 4, 5, 0}), 5 * sizeof *source);
    assert_memory_equal(count, ((int64_t[]){1, 3, 1}), sizeof count);
    assert_memory_equal(rows, ((float[]){1, 10, 100, 100, 1}), 5 * sizeof *rows);
    assert_memory_equal(row_weights, ((float[]){3, 5, 11, 13, 2}), 5 * sizeof *rows);

    args.capacity = 2;
    rh[0] = r[0] = 6;
    check_ok(moetoken_permute(&args, NULL));
    assert_memory_equal(sorted, ((int32_t[]){4, 0, 2, -1, 3, -1}), sizeof sorted);
    assert_memory_equal(source, ((int32_t[]){1, -1, 2, 4, 0, -1}), sizeof source);
    assert_memory_equal(count, ((int64_t[]){1, 2, 1}), sizeof count);
    assert_memory_equal(rows, ((float[]){1, 0, 10, 100, 1, 0}), sizeof rows);
    assert_memory_equal(row_weights, ((float[]){3, 0, 5, 11, 2, 0}), sizeof rows);

    args.capacity = 0; /* the experts of another rank, [1,3): expert 0's slot is not used here */
    args.expert_begin = 1;
    args.expert_end = 3;
    rh[0] = r[0] = 3; /* and one row too few: the last one, slot 0, is dropped */
    e[0] = 2;
    check_ok(moetoken_permute(&args, NULL));
    assert_memory_equal(sorted, ((int32_t[]){-1, -1, 0, -1, 1, 2}), sizeof sorted);
    assert_memory_equal(source, ((int32_t[]){2, 4, 5}), 3 * sizeof *source);
    assert_memory_equal(count, ((int64_t[]){3, 0}), 2 * sizeof *count);
}

/* y[0] = 1000 + 2 * (5 + 40) + 3 * (1 + 20); slot 3 is unused, whatever its weight and expert are:
 * y[1] = 2000 + 5 * (2 + 30); y[2] = 3000 + 11 * (3 + 30) + 13 * (4 + 30). */
static void combine_by_hand(void **state)
{
    float rows[5] = {1, 2, 3, 4, 5}, bias[3] = {20, 30, 40}, residual[3] = {1000, 2000, 3000};
    float y[3], g[3] = {1, 10, 100}, rows_grad[5], weights_grad[6];
    int32_t sorted[6] = {4, 0, 1, -1, 2, 3};
    int64_t rh[2] = {5, 1}, n[1] = {6}, eh[2] = {3, 1};
    DLTensor x = moetoken_tensor(rows, MOETOKEN_F32, 2, rh);
    DLTensor s = moetoken_tensor(sorted, MOETOKEN_I32, 1, n);
    DLTensor w = moetoken_tensor(hand_weights, MOETOKEN_F32, 2, hand_tk);
    DLTensor ids = moetoken_tensor(hand_ids, MOETOKEN_I32, 2, hand_tk);
    DLTensor b = moetoken_tensor(bias, MOETOKEN_F32, 2, eh);
    DLTensor res = moetoken_tensor(residual, MOETOKEN_F32, 2, hand_th);
    DLTensor out = moetoken_tensor(y, MOETOKEN_F32, 2, hand_th);
    moetoken_unpermute_args args = {.permuted_tokens = &x,
                                    .sorted_indices = &s,
                                    .weights = &w,
                                    .expert_ids = &ids,
                                    .expert_bias = &b,
                                    .residual = &res,
                                    .unpermuted_tokens = &out};
    (void)state;
    check_ok(moetoken_unpermute(&args, NULL));
    assert_memory_equal(y, ((float[]){1153, 2160, 3805}), sizeof y);

    DLTensor grad = moetoken_tensor(g, MOETOKEN_F32, 2, hand_th);
    DLTensor dx = moetoken_tensor(rows_grad, MOETOKEN_F32, 2, rh);
    DLTensor dw = moetoken_tensor(weights_grad, MOETOKEN_F32, 2, hand_tk);
    moetoken_unpermute_grad_args grad_args = {.unpermuted_tokens_grad = &grad,
                                              .out_index = &s,
                                              .permuted_tokens = &x,
                                              .weights = &w,
                                              .expert_bias = &b,
                                              .expert_ids = &ids,
                                              .permuted_tokens_grad = &dx,
                                              .weights_grad = &dw};
    check_ok(moetoken_unpermute_grad(&grad_args, NULL));
    assert_memory_equal(rows_grad, ((float[]){3, 50, 1100, 1300, 2}), sizeof rows_grad);
    assert_memory_equal(weights_grad, ((float[]){45, 21, 320, 0, 3300, 3400}), sizeof weights_grad);
}

/* Three slots on one row, as programs that take abs() of -1 have them, with weights of 0 there. */
static void rows_named_twice(void **state)
{
    float rows[2] = {4, 8}, w[4] = {3, 0, 0, 5}, y[2];
    int32_t sorted[4] = {1, 1, 1, 0};
    int64_t rh[2] = {2, 1}, n[1] = {4}, tk[2] = {2, 2}, th[2] = {2, 1};
    DLTensor x = moetoken_tensor(rows, MOETOKEN_F32, 2, rh);
    DLTensor s = moetoken_tensor(sorted, MOETOKEN_I32, 1, n);
    DLTensor weights = moetoken_tensor(w, MOETOKEN_F32, 2, tk);
    DLTensor out = moetoken_tensor(y, MOETOKEN_F32, 2, th);
    moetoken_unpermute_args args = {.permuted_tokens = &x,
                                    .sorted_indices = &s,
                                    .weights = &weights,
                                    .unpermuted_tokens = &out};
    moetoken_options repeated = {.flags = MOETOKEN_REPEATED_ROWS};
    (void)state;
    check_ok(moetoken_unpermute(&args, NULL));
    assert_true(y[0] == 24 && y[1] == 20);
    args.weights = NULL; /* now nothing but the flag says that it is by ids */
    check_refused(moetoken_unpermute(&args, NULL), MOETOKEN_ERR_DUPLICATE, "sorted_indices[1] = 1",
                  "sorted_indices[0]", NULL);
    check_ok(moetoken_unpermute(&args, &repeated));
    assert_true(y[0] == 16 && y[1] == 12);
    moetoken_unpermute_grad_args grad = {.unpermuted_tokens_grad = &out,
                                         .out_index = &s,
                                         .permuted_tokens_grad = &x,
                                         .weights = &weights};
    check_refused(moetoken_unpermute_grad(&grad, NULL), MOETOKEN_ERR_DUPLICATE, "out_index[1] = 1",
                  "out_index[0]", NULL);
}

/* ---- both spellings ------------------------------------------------------------------------- */

/* A routing whose tokens name their experts in ascending order, unused slots last: what a map can
 * say, too. Everything in `type`, with random numbers. */
struct pair {
    moetoken_type type;
    int64_t tokens, experts, slots, hidden, rows; /* slots: K */
    unsigned char map[MOST * MOST];
    struct test_tensor x, expert_rows, grad, row_grad, routing_map, probs, ids, weights, sorted;
};

static void make(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                 int64_t columns)
{
    tensor_make(tensor, type, ndim, rows, columns, NULL);
    if (type <= MOETOKEN_F64) {
        tensor_fill_random(&tensor->dl, 2);
    }
}

static void draw_routing(struct pair *pair)
{
    for (int64_t t = 0; t < pair->tokens; t++) {
        int64_t k = 0;
        for (int64_t e = 0; e < pair->experts; e++) {
            bool set = k < pair->slots && random_chance(30);
            tensor_set(&pair->routing_map.dl, t, e, set);
            if (set) {
                tensor_set(&pair->ids.dl, t, k, (double)e);
                tensor_set_bits(&pair->weights.dl, t, k, tensor_get_bits(&pair->probs.dl, t, e));
                k++;
                pair->rows++;
            }
        }
        while (k < pair->slots) { /* nobody looks at the weight of an unused slot */
            tensor_set(&pair->ids.dl, t, k++, -1);
        }
    }
}

static void pair_make(struct pair *pair)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    memset(pair, 0, sizeof *pair);
    pair->type = types[random_below(4)];
    pair->tokens = 1 + random_below(MOST);
    pair->experts = 1 + random_below(20);
    pair->slots = 1 + random_below(pair->experts);
    pair->hidden = 1 + random_below(40);
    make(&pair->x, pair->type, 2, pair->tokens, pair->hidden);
    make(&pair->grad, pair->type, 2, pair->tokens, pair->hidden);
    make(&pair->routing_map, MOETOKEN_BOOL, 2, pair->tokens, pair->experts);
    make(&pair->probs, pair->type, 2, pair->tokens, pair->experts);
    make(&pair->weights, pair->type, 2, pair->tokens, pair->slots);
    make(&pair->ids, MOETOKEN_I32, 2, pair->tokens, pair->slots);
    draw_routing(pair);
    make(&pair->expert_rows, pair->type, 2, pair->rows, pair->hidden);
    make(&pair->row_grad, pair->type, 1, pair->rows, 1);
    make(&pair->sorted, MOETOKEN_I64, 1, pair->tokens * pair->slots, 1);
}

static void pair_free(struct pair *pair)
{
    struct test_tensor *all[] = {&pair->x,        &pair->expert_rows, &pair->grad,
                                 &pair->row_grad, &pair->routing_map, &pair->probs,
                                 &pair->ids,      &pair->weights,     &pair->sorted};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tensor_free(all[i]);
    }
}

static void check_same(struct test_tensor *by_map, struct test_tensor *by_ids, const char *name)
{
    check(tensor_difference(&by_map->dl, &by_ids->dl) == -1, "%s differs at %lld", name,
          (long long)tensor_difference(&by_map->dl, &by_ids->dl));
    tensor_free(by_map);
    tensor_free(by_ids);
}

/* probs_grad[t, e] against weights_grad[t, k], e = ids[t, k]. */
static void check_same_weights_grad(const struct pair *pair, struct test_tensor *probs_grad,
                                    struct test_tensor *weights_grad)
{
    for (int64_t t = 0; t < pair->tokens; t++) {
        for (int64_t k = 0; k < pair->slots; k++) {
            int64_t e = (int64_t)tensor_get(&pair->ids.dl, t, k);
            uint64_t wanted = e < 0 ? 0 : tensor_get_bits(&probs_grad->dl, t, e);
            check(tensor_get_bits(&weights_grad->dl, t, k) == wanted, "weights_grad[%lld, %lld]",
                  (long long)t, (long long)k);
        }
    }
    tensor_free(probs_grad);
    tensor_free(weights_grad);
}

static void both_permute(struct pair *pair)
{
    struct test_tensor rows[2], weights[2], sorted[2];
    for (int i = 0; i < 2; i++) {
        make(&rows[i], pair->type, 2, pair->rows, pair->hidden);
        make(&weights[i], pair->type, 1, pair->rows, 1);
        make(&sorted[i], MOETOKEN_I64, 1, pair->tokens * pair->slots, 1);
        bool by_ids = i == 1;
        moetoken_permute_args args = {
            .tokens = &pair->x.dl,
            .routing_map = by_ids ? NULL : &pair->routing_map.dl,
            .probs = by_ids ? NULL : &pair->probs.dl,
            .num_out_tokens = by_ids ? 0 : pair->tokens * pair->slots,
            .expert_ids = by_ids ? &pair->ids.dl : NULL,
            .weights = by_ids ? &pair->weights.dl : NULL,
            .experts_num = by_ids ? pair->experts : 0,
            .permuted_tokens = &rows[i].dl,
            .permuted_probs = &weights[i].dl,
            .sorted_indices = &sorted[i].dl,
        };
        check_ok(moetoken_permute(&args, NULL));
    }
    for (int64_t s = 0; s < pair->tokens * pair->slots; s++) {
        tensor_set(&pair->sorted.dl, s, 0, (double)tensor_get_index(&sorted[1].dl, s));
    }
    check_same(&rows[0], &rows[1], "permuted_tokens");
    check_same(&weights[0], &weights[1], "permuted_probs");
    check_same(&sorted[0], &sorted[1], "sorted_indices");
}

static void both_unpermute(struct pair *pair)
{
    struct test_tensor tokens[2], weights[2], index[2];
    for (int i = 0; i < 2; i++) {
        make(&tokens[i], pair->type, 2, pair->tokens, pair->hidden);
        make(&weights[i], pair->type, 1, pair->tokens * pair->slots, 1);
        make(&index[i], MOETOKEN_I64, 1, pair->tokens * pair->slots, 1);
        bool by_ids = i == 1;
        moetoken_unpermute_args args = {
            .permuted_tokens = &pair->expert_rows.dl,
            .sorted_indices = &pair->sorted.dl,
            .routing_map = by_ids ? NULL : &pair->routing_map.dl,
            .probs = by_ids ? NULL : &pair->probs.dl,
            .weights = by_ids ? &pair->weights.dl : NULL,
            .unpermuted_tokens = &tokens[i].dl,
            .permuted_probs = &weights[i].dl,
            .out_index = &index[i].dl,
        };
        check_ok(moetoken_unpermute(&args, NULL));
    }
    check_same(&tokens[0], &tokens[1], "unpermuted_tokens");
    check_same(&weights[0], &weights[1], "permuted_probs");
    check_same(&index[0], &index[1], "out_index");
}

static void both_unpermute_grad(struct pair *pair)
{
    struct test_tensor rows[2], probs_grad, weights_grad;
    make(&rows[0], pair->type, 2, pair->rows, pair->hidden);
    make(&rows[1], pair->type, 2, pair->rows, pair->hidden);
    make(&probs_grad, pair->type, 2, pair->tokens, pair->experts);
    make(&weights_grad, pair->type, 2, pair->tokens, pair->slots);
    moetoken_unpermute_grad_args by_map = {.unpermuted_tokens_grad = &pair->grad.dl,
                                           .out_index = &pair->sorted.dl,
                                           .permuted_tokens = &pair->expert_rows.dl,
                                           .routing_map = &pair->routing_map.dl,
                                           .probs = &pair->probs.dl,
                                           .permuted_tokens_grad = &rows[0].dl,
                                           .probs_grad = &probs_grad.dl};
    moetoken_unpermute_grad_args by_ids = {.unpermuted_tokens_grad = &pair->grad.dl,
                                           .out_index = &pair->sorted.dl,
                                           .permuted_tokens = &pair->expert_rows.dl,
                                           .weights = &pair->weights.dl,
                                           .permuted_tokens_grad = &rows[1].dl,
                                           .weights_grad = &weights_grad.dl};
    check_ok(moetoken_unpermute_grad(&by_map, NULL));
    check_ok(moetoken_unpermute_grad(&by_ids, NULL));
    check_same(&rows[0], &rows[1], "permuted_tokens_grad");
    check_same_weights_grad(pair, &probs_grad, &weights_grad);
}

static void both_permute_grad(struct pair *pair)
{
    struct test_tensor tokens[2], probs_grad, weights_grad;
    make(&tokens[0], pair->type, 2, pair->tokens, pair->hidden);
    make(&tokens[1], pair->type, 2, pair->tokens, pair->hidden);
    make(&probs_grad, pair->type, 2, pair->tokens, pair->experts);
    make(&weights_grad, pair->type, 2, pair->tokens, pair->slots);
    moetoken_permute_grad_args by_map = {.permuted_tokens_grad = &pair->expert_rows.dl,
                                         .permuted_probs_grad = &pair->row_grad.dl,
                                         .sorted_indices = &pair->sorted.dl,
                                         .routing_map = &pair->routing_map.dl,
                                         .tokens_num = pair->tokens,
                                         .experts_num = pair->experts,
                                         .tokens_grad = &tokens[0].dl,
                                         .probs_grad = &probs_grad.dl};
    moetoken_permute_grad_args by_ids = {.permuted_tokens_grad = &pair->expert_rows.dl,
                                         .permuted_probs_grad = &pair->row_grad.dl,
                                         .sorted_indices = &pair->sorted.dl,
                                         .tokens_num = pair->tokens,
                                         .tokens_grad = &tokens[1].dl,
                                         .weights_grad = &weights_grad.dl};
    check_ok(moetoken_permute_grad(&by_map, NULL));
    check_ok(moetoken_permute_grad(&by_ids, NULL));
    check_same(&tokens[0], &tokens[1], "tokens_grad");
    check_same_weights_grad(pair, &probs_grad, &weights_grad);
}

static void both_spellings(void **state)
{
    (void)state;
    for (int i = 0; i < ROUTINGS; i++) {
        struct pair pair;
        pair_make(&pair);
        both_permute(&pair);
        both_unpermute(&pair);
        both_unpermute_grad(&pair);
        both_permute_grad(&pair);
        pair_free(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permute_by_hand),
        cmocka_unit_test(combine_by_hand),
        cmocka_unit_test(rows_named_twice),
        cmocka_unit_test(both_spellings),
    };
    random_start("ids_map_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
