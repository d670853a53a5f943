/* ids_test.c - the four operators with a routing by expert ids, against the oracle of ids_case.c to
 * the bit: every mode, type and layout, every instruction set, several threads. */
#include "support/check.h"
#include "support/ids_case.h"
#include "support/random.h"

#define CASES 400

static moetoken_options options_random(void)
{
    static const uint32_t stores[] = {0, MOETOKEN_CACHED_STORES, MOETOKEN_STREAMING_STORES};
    return (moetoken_options){.isa_mask = random_chance(50) ? MOETOKEN_ISA_SCALAR : 0,
                              .threads = (int32_t)random_below(4),
                              .flags = stores[random_below(3)]};
}

static void check_ok(moetoken_status status)
{
    check(status == MOETOKEN_OK, "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

/* A NaN that is copied keeps its bits, one that is computed has bits of its own. */
static void check_bits(const struct test_tensor *tensor, int64_t i, int64_t j, uint64_t wanted,
                       const char *name)
{
    uint64_t bits = tensor_get_bits(&tensor->dl, i, j);
    check(bits == wanted, "%s[%lld, %lld] = 0x%llx, wanted 0x%llx", name, (long long)i,
          (long long)j, (unsigned long long)bits, (unsigned long long)wanted);
}

static void each_case(void (*body)(struct ids_case *ids))
{
    for (int i = 0; i < CASES; i++) {
        struct ids_spec spec = ids_spec_random();
        struct ids_case ids;
        ids_case_make(&ids, &spec);
        body(&ids);
        ids_case_free(&ids);
    }
}

/* ---- permute -------------------------------------------------------------------------------- */

static void check_rows(const struct ids_case *ids, const struct test_tensor *rows,
                       const struct test_tensor *row_weights, const struct test_tensor *source)
{
    int64_t per_token = ids->spec.slots_per_token;
    for (int64_t r = 0; r < ids->rows; r++) {
        int64_t slot = ids->slot_of_row[r];
        for (int64_t h = 0; h < ids->spec.hidden; h++) {
            check_bits(rows, r, h,
                       slot < 0 ? 0 : tensor_get_bits(&ids->tokens.dl, slot / per_token, h),
                       "permuted_tokens");
        }
        check_bits(row_weights, r, 0,
                   slot < 0 ? 0
                            : tensor_get_bits(&ids->weights.dl, slot / per_token, slot % per_token),
                   "permuted_probs");
        check(tensor_get_index(&source->dl, r) == slot, "source_slots[%lld]", (long long)r);
    }
}

static void check_permute(struct ids_case *ids)
{
    struct test_tensor rows, row_weights, sorted, source, count;
    const struct ids_spec *spec = &ids->spec;
    int64_t end = spec->begin == 0 && spec->end == 0 ? spec->experts : spec->end;
    moetoken_options options = options_random();
    ids_output(&rows, spec->token_type, 2, ids->rows, spec->hidden);
    ids_output(&row_weights, spec->weights_type, 1, ids->rows, 1);
    ids_output(&sorted, spec->index_type, 1, ids->slots, 1);
    ids_output(&source, spec->index_type, 1, ids->rows, 1);
    ids_output(&count, MOETOKEN_I64, 1, end - spec->begin, 1);
    moetoken_permute_args args = {
        .struct_size = sizeof args,
        .tokens = &ids->tokens.dl,
        .expert_ids = &ids->expert_ids.dl,
        .weights = &ids->weights.dl,
        .experts_num = spec->experts,
        .expert_begin = spec->begin,
        .expert_end = spec->end,
        .capacity = spec->capacity,
        .permuted_tokens = &rows.dl,
        .permuted_probs = &row_weights.dl,
        .sorted_indices = &sorted.dl,
        .source_slots = &source.dl,
        .rows_per_expert = &count.dl,
    };
    check_ok(moetoken_permute_check(&args, &options));
    check_ok(moetoken_permute(&args, &options));
    check_rows(ids, &rows, &row_weights, &source);
    for (int64_t s = 0; s < ids->slots; s++) {
        check(tensor_get_index(&sorted.dl, s) == ids->row[s], "sorted_indices[%lld]", (long long)s);
    }
    for (int64_t e = 0; e < end - spec->begin; e++) {
        check(tensor_get_index(&count.dl, e) == ids->count[e], "rows_per_expert[%lld]",
              (long long)e);
    }
    struct test_tensor *outputs[] = {&rows, &row_weights, &sorted, &source, &count};
    for (int i = 0; i < 5; i++) {
        check(tensor_gaps_unchanged(outputs[i]), "output %d written outside its elements", i);
        tensor_free(outputs[i]);
    }
}

static void permute(void **state)
{
    (void)state;
    each_case(check_permute);
}

/* The routing alone, without tokens: R is what the ids fill. */
static void check_routing_alone(struct ids_case *ids)
{
    struct test_tensor sorted;
    if (ids->spec.rows >= 0) {
        return; /* nothing would say what R is */
    }
    moetoken_options options = options_random();
    ids_output(&sorted, ids->spec.index_type, 1, ids->slots, 1);
    moetoken_permute_args args = {.expert_ids = &ids->expert_ids.dl,
                                  .experts_num = ids->spec.experts,
                                  .expert_begin = ids->spec.begin,
                                  .expert_end = ids->spec.end,
                                  .capacity = ids->spec.capacity,
                                  .sorted_indices = &sorted.dl};
    check_ok(moetoken_permute(&args, &options));
    for (int64_t s = 0; s < ids->slots; s++) {
        check(tensor_get_index(&sorted.dl, s) == ids->row[s], "sorted_indices[%lld]", (long long)s);
    }
    tensor_free(&sorted);
}

static void routing_alone(void **state)
{
    (void)state;
    each_case(check_routing_alone);
}

/* The most rows that there can be: slots of others' experts are still told from them. */
static void largest_capacity(void **state)
{
    (void)state;
    int64_t ids[6] = {0, 1, 2, -1, 1, 2}, sorted[6], tk[2] = {3, 2}, n[1] = {6};
    const int64_t expected[6] = {-1, 0, -1, -1, 1, -1};
    DLTensor expert_ids = moetoken_tensor(ids, MOETOKEN_I64, 2, tk);
    DLTensor sorted_indices = moetoken_tensor(sorted, MOETOKEN_I64, 1, n);
    moetoken_permute_args args = {.expert_ids = &expert_ids,
                                  .experts_num = 3,
                                  .expert_begin = 1,
                                  .expert_end = 2,
                                  .capacity = INT64_MAX,
                                  .sorted_indices = &sorted_indices};
    check_ok(moetoken_permute(&args, NULL));
    for (int s = 0; s < 6; s++) {
        check(sorted[s] == expected[s], "sorted_indices[%d] = %lld", s, (long long)sorted[s]);
    }
}

/* Enough slots for several threads and parts; the definition goes by experts, as ids_case does. */
static void many_slots(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct ids_spec spec = {.tokens = 40000,
                                .slots_per_token = 8,
                                .experts = round % 2 ? 3 : 61,
                                .hidden = 1,
                                .capacity = round < 2 ? 0 : 5000,
                                .rows = -1,
                                .unused_percent = 20,
                                .repeat_experts = true,
                                .skewed = round % 2 == 0,
                                .token_type = MOETOKEN_BF16,
                                .weights_type = MOETOKEN_F32,
                                .index_type = round % 2 ? MOETOKEN_I32 : MOETOKEN_I64};
        struct ids_case ids;
        ids_case_make(&ids, &spec);
        check_permute(&ids);
        ids_case_free(&ids);
    }
}

/* ---- permute_grad --------------------------------------------------------------------------- */

static void check_permute_grad(struct ids_case *ids)
{
    struct test_tensor tokens_grad, weights_grad;
    const struct ids_spec *spec = &ids->spec;
    moetoken_options options = options_random();
    ids_output(&tokens_grad, spec->token_type, 2, spec->tokens, spec->hidden);
    ids_output(&weights_grad, spec->weights_type, 2, spec->tokens, spec->slots_per_token);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &ids->expert_rows.dl,
                                       .permuted_probs_grad = &ids->row_grad.dl,
                                       .sorted_indices = &ids->sorted.dl,
                                       .tokens_num = spec->tokens,
                                       .tokens_grad = &tokens_grad.dl,
                                       .weights_grad = &weights_grad.dl};
    check_ok(moetoken_permute_grad_check(&args, &options));
    check_ok(moetoken_permute_grad(&args, &options));
    for (int64_t t = 0; t < spec->tokens; t++) {
        for (int64_t h = 0; h < spec->hidden; h++) {
            check_bits(&tokens_grad, t, h, ids_expect_tokens_grad(ids, t, h), "tokens_grad");
        }
        for (int64_t k = 0; k < spec->slots_per_token; k++) {
            int64_t row = ids->row[t * spec->slots_per_token + k];
            double grad = row < 0 ? 0 : tensor_get(&ids->row_grad.dl, row, 0);
            check_bits(&weights_grad, t, k, number_encode(grad, spec->weights_type),
                       "weights_grad");
        }
    }
    check(tensor_gaps_unchanged(&tokens_grad) && tensor_gaps_unchanged(&weights_grad),
          "written outside the elements");
    tensor_free(&tokens_grad);
    tensor_free(&weights_grad);
}

static void permute_grad(void **state)
{
    (void)state;
    each_case(check_permute_grad);
}

/* ---- unpermute ------------------------------------------------------------------------------ */

static void check_unpermute(struct ids_case *ids)
{
    struct test_tensor combined;
    const struct ids_spec *spec = &ids->spec;
    int residuals = (int)random_below(3);
    bool weighted = random_chance(70), biased = random_chance(50);
    moetoken_options options = options_random();
    options.flags |= weighted || biased ? 0 : MOETOKEN_REPEATED_ROWS;
    ids_output(&combined, spec->token_type, 2, spec->tokens, spec->hidden);
    moetoken_unpermute_args args = {.permuted_tokens = &ids->expert_rows.dl,
                                    .sorted_indices = &ids->sorted.dl,
                                    .weights = weighted ? &ids->weights.dl : NULL,
                                    .residual = residuals > 0 ? &ids->residual.dl : NULL,
                                    .residual2 = residuals > 1 ? &ids->residual2.dl : NULL,
                                    .expert_bias = biased ? &ids->bias.dl : NULL,
                                    .expert_ids = biased ? &ids->expert_ids.dl : NULL,
                                    .unpermuted_tokens = &combined.dl};
    check_ok(moetoken_unpermute_check(&args, &options));
    check_ok(moetoken_unpermute(&args, &options));
    for (int64_t t = 0; t < spec->tokens; t++) {
        for (int64_t h = 0; h < spec->hidden; h++) {
            check_bits(&combined, t, h, ids_expect_combined(ids, t, h, weighted, residuals, biased),
                       "unpermuted_tokens");
        }
    }
    check(tensor_gaps_unchanged(&combined), "written outside the elements");
    tensor_free(&combined);
}

static void unpermute(void **state)
{
    (void)state;
    each_case(check_unpermute);
}

/* More rows of a token than one call of a kernel adds. */
static void unpermute_of_many_slots(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        struct ids_spec spec = ids_spec_random();
        spec.tokens = 3;
        spec.slots_per_token = 60 + random_below(150);
        spec.hidden = 1 + random_below(1200);
        struct ids_case ids;
        ids_case_make(&ids, &spec);
        check_unpermute(&ids);
        ids_case_free(&ids);
    }
}

/* ---- unpermute_grad ------------------------------------------------------------------------- */

static void check_unpermute_grad(struct ids_case *ids)
{
    struct test_tensor rows_grad, weights_grad;
    const struct ids_spec *spec = &ids->spec;
    bool weighted = random_chance(80), biased = weighted && random_chance(50);
    moetoken_options options = options_random();
    ids_output(&rows_grad, spec->token_type, 2, ids->rows, spec->hidden);
    ids_output(&weights_grad, spec->weights_type, 2, spec->tokens, spec->slots_per_token);
    moetoken_unpermute_grad_args args = {
        .unpermuted_tokens_grad = &ids->grad.dl,
        .out_index = &ids->sorted.dl,
        .permuted_tokens = weighted ? &ids->expert_rows.dl : NULL,
        .weights = weighted ? &ids->weights.dl : NULL,
        .expert_bias = biased ? &ids->bias.dl : NULL,
        .expert_ids = biased ? &ids->expert_ids.dl : NULL,
        .permuted_tokens_grad = &rows_grad.dl,
        .weights_grad = weighted ? &weights_grad.dl : NULL,
    };
    check_ok(moetoken_unpermute_grad_check(&args, &options));
    check_ok(moetoken_unpermute_grad(&args, &options));
    for (int64_t r = 0; r < ids->rows; r++) {
        for (int64_t h = 0; h < spec->hidden; h++) {
            check_bits(&rows_grad, r, h, ids_expect_scaled(ids, r, h, weighted),
                       "permuted_tokens_grad");
        }
    }
    for (int64_t s = 0; weighted && s < ids->slots; s++) {
        check_bits(&weights_grad, s / spec->slots_per_token, s % spec->slots_per_token,
                   ids_expect_weight_grad(ids, s, biased), "weights_grad");
    }
    check(tensor_gaps_unchanged(&rows_grad) && tensor_gaps_unchanged(&weights_grad),
          "written outside the elements");
    tensor_free(&rows_grad);
    tensor_free(&weights_grad);
}

static void unpermute_grad(void **state)
{
    (void)state;
    each_case(check_unpermute_grad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permute),
        cmocka_unit_test(routing_alone),
        cmocka_unit_test(largest_capacity),
        cmocka_unit_test(many_slots),
        cmocka_unit_test(permute_grad),
        cmocka_unit_test(unpermute),
        cmocka_unit_test(unpermute_of_many_slots),
        cmocka_unit_test(unpermute_grad),
    };
    random_start("ids_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
