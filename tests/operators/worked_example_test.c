/* worked_example_test.c - docs/contract.md's worked example through all four operators, in every
 * type; every expected number was computed by hand. */
#include "support/check.h"
#include "support/tensors.h"

#define T 3
#define H 2
#define E 3
#define N 6

static const double token_values[T * H] = {1, 2, 3, -1, -2, 0.5};
static const double row_values[N * H] = {1, 1, 2, -4, 0.5, 8, -1, 6, 3, 0.25, 7, 2};
static const double probs_values[T * E] = {0.5, 9, 2, 9, 4, -1, 0.25, -3, 9};
static const double map_values[T * E] = {1, 0, 1, 0, 1, 0, 1, 1, 0};
static const int64_t dropless_rows[N] = {0, 4, 2, -1, 1, 3};
static const int64_t dropless_tokens[N] = {0, 0, 1, 1, 2, 2};
static const int64_t padded_rows[N] = {0, 4, 2, 5, 1, 3};
static const int64_t padded_by_expert[N] = {0, 2, 1, 2, 0, 1};

struct types {
    moetoken_type token, probs, index, map;
};

static const struct types all_types[] = {
    {MOETOKEN_F32, MOETOKEN_F32, MOETOKEN_I32, MOETOKEN_BOOL},
    {MOETOKEN_F16, MOETOKEN_F16, MOETOKEN_I64, MOETOKEN_I8},
    {MOETOKEN_BF16, MOETOKEN_BF16, MOETOKEN_I32, MOETOKEN_U8},
    {MOETOKEN_F16, MOETOKEN_F32, MOETOKEN_I32, MOETOKEN_BOOL},
    {MOETOKEN_BF16, MOETOKEN_F32, MOETOKEN_I64, MOETOKEN_U8},
    {MOETOKEN_F64, MOETOKEN_F64, MOETOKEN_I64, MOETOKEN_BOOL},
};
#define TYPES (sizeof all_types / sizeof all_types[0])

/* The example's inputs in one set of types, and room for any output. */
struct example {
    struct test_tensor tokens, rows, probs, map, rows_index, tokens_index;
    struct test_tensor out_tokens, out_rows, out_probs, out_row_probs, out_first, out_second;
};

static void example_make(struct example *example, const struct types *types, bool padded,
                         int64_t rows)
{
    tensor_make(&example->tokens, types->token, 2, T, H, NULL);
    tensor_make(&example->rows, types->token, 2, rows, H, NULL);
    tensor_make(&example->probs, types->probs, 2, T, E, NULL);
    tensor_make(&example->map, types->map, 2, T, E, NULL);
    tensor_make(&example->rows_index, types->index, 1, N, 1, NULL);
    tensor_make(&example->tokens_index, types->index, 1, N, 1, NULL);
    tensor_make(&example->out_tokens, types->token, 2, T, H, NULL);
    tensor_make(&example->out_rows, types->token, 2, rows, H, NULL);
    tensor_make(&example->out_probs, types->probs, 2, T, E, NULL);
    tensor_make(&example->out_row_probs, types->probs, 1, rows, 1, NULL);
    tensor_make(&example->out_first, types->index, 1, N, 1, NULL);
    tensor_make(&example->out_second, types->index, 1, N, 1, NULL);
    tensor_fill_from(&example->tokens.dl, token_values);
    tensor_fill_from(&example->rows.dl, row_values);
    tensor_fill_from(&example->probs.dl, probs_values);
    tensor_fill_from(&example->map.dl, map_values);
    tensor_fill_indices(&example->rows_index.dl, padded ? padded_rows : dropless_rows);
    tensor_fill_indices(&example->tokens_index.dl, dropless_tokens);
    tensor_fill_poison(&example->out_tokens.dl);
    tensor_fill_poison(&example->out_rows.dl);
    tensor_fill_poison(&example->out_probs.dl);
    tensor_fill_poison(&example->out_row_probs.dl);
    tensor_fill_poison(&example->out_first.dl);
    tensor_fill_poison(&example->out_second.dl);
}

static void example_free(struct example *example)
{
    struct test_tensor *tensors = &example->tokens;
    for (size_t i = 0; i < sizeof *example / sizeof *tensors; i++) {
        check(buffer_guards_hold(&tensors[i].buffer), "guard bytes of tensor %zu", i);
        tensor_free(&tensors[i]);
    }
}

static void check_values(const char *what, const struct test_tensor *tensor, const double *wanted)
{
    int64_t columns = tensor_columns(&tensor->dl);
    for (int64_t i = 0; i < tensor->dl.shape[0] * columns; i++) {
        uint64_t bits = tensor_get_bits(&tensor->dl, i / columns, i % columns);
        check(bits == number_encode(wanted[i], tensor->type), "%s (%s)[%lld] = 0x%llx, expected %g",
              what, number_type_name(tensor->type), (long long)i, (unsigned long long)bits,
              wanted[i]);
    }
}

static void check_ok(moetoken_status status)
{
    check(status == MOETOKEN_OK, "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

/* ---- unpermute_grad ------------------------------------------------------------------------- */

static void grad_example(const struct types *types, bool padded, int64_t rows, bool with_token_id)
{
    static const double dropless_grad[N * H] = {0.5, 1, -0.5, 0.125, 12, -4, 6, -1.5, 2, 4, 0, 0};
    static const double padded_grad[N * H] = {0.5, 1, -0.5, 0.125, 12, -4, 6, -1.5, 2, 4, -3, 1};
    static const double dropless_probs[T * E] = {3, 0, 3.5, 0, -6.5, 0, -6, 5, 0};
    static const double padded_probs[T * E] = {3, 0, 3.5, 0, -6.5, 19, -6, 5, 0};
    struct example example;
    example_make(&example, types, padded, rows);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &example.tokens.dl,
                                         .out_index = &example.rows_index.dl,
                                         .permute_token_id =
                                             with_token_id ? &example.tokens_index.dl : NULL,
                                         .routing_map = &example.map.dl,
                                         .permuted_tokens = &example.rows.dl,
                                         .probs = &example.probs.dl,
                                         .drop_and_pad = padded,
                                         .permuted_tokens_grad = &example.out_rows.dl,
                                         .probs_grad = &example.out_probs.dl};
    check_ok(moetoken_unpermute_grad(&args, NULL));
    check_values("permuted_tokens_grad", &example.out_rows, padded ? padded_grad : dropless_grad);
    check_values("probs_grad", &example.out_probs, padded ? padded_probs : dropless_probs);
    example_free(&example);
}

static void unpermute_grad_gives_the_worked_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        grad_example(&all_types[i], false, 5, true);
        grad_example(&all_types[i], false, 5, false);
        grad_example(&all_types[i], false, 6, true);
        grad_example(&all_types[i], true, 6, true);
    }
}

static void unpermute_grad_masks_the_fill_slot(void **state)
{
    static const double wanted_rows[N * H] = {0.5, 1, -0.5, 0.125, 12, -4, 6, -1.5, 2, 4, 0, 0};
    static const double wanted_probs[T * E] = {3, 0, 3.5, 0, -6.5, 0, -6, 5, 0};
    const moetoken_options options = {.flags = MOETOKEN_MASK_FILL_SLOTS};
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        struct example example;
        example_make(&example, &all_types[i], true, N);
        moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &example.tokens.dl,
                                             .out_index = &example.rows_index.dl,
                                             .permute_token_id = &example.tokens_index.dl,
                                             .routing_map = &example.map.dl,
                                             .permuted_tokens = &example.rows.dl,
                                             .probs = &example.probs.dl,
                                             .drop_and_pad = true,
                                             .permuted_tokens_grad = &example.out_rows.dl,
                                             .probs_grad = &example.out_probs.dl};
        check_ok(moetoken_unpermute_grad(&args, &options));
        check_values("permuted_tokens_grad", &example.out_rows, wanted_rows);
        check_values("probs_grad", &example.out_probs, wanted_probs);
        example_free(&example);
    }
}

static void unpermute_grad_copies_without_probs(void **state)
{
    static const double dropless_grad[N * H] = {1, 2, -2, 0.5, 3, -1, -2, 0.5, 1, 2, 0, 0};
    static const double padded_grad[N * H] = {1, 2, -2, 0.5, 3, -1, -2, 0.5, 1, 2, 3, -1};
    (void)state;
    for (size_t i = 0; i < 2 * TYPES; i++) {
        bool padded = i % 2 == 1;
        struct example example;
        example_make(&example, &all_types[i / 2], padded, N);
        moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &example.tokens.dl,
                                             .out_index = &example.rows_index.dl,
                                             .permute_token_id = &example.tokens_index.dl,
                                             .drop_and_pad = padded,
                                             .permuted_tokens_grad = &example.out_rows.dl};
        check_ok(moetoken_unpermute_grad(&args, NULL));
        check_values("permuted_tokens_grad", &example.out_rows,
                     padded ? padded_grad : dropless_grad);
        example_free(&example);
    }
}

/* ---- the other three ------------------------------------------------------------------------ */

static void permute_example(const struct types *types, bool padded, int64_t rows)
{
    static const double wanted_rows[2][N * H] = {{1, 2, -2, 0.5, 3, -1, -2, 0.5, 1, 2, 0, 0},
                                                 {1, 2, -2, 0.5, 3, -1, -2, 0.5, 1, 2, 3, -1}};
    static const double wanted_probs[2][N] = {{0.5, 0.25, 4, -3, 2, 0}, {0.5, 0.25, 4, -3, 2, -1}};
    static const double wanted_indices[2][N] = {{0, 4, 2, -1, 1, 3}, {0, 2, 1, 2, 0, 1}};
    struct example example;
    example_make(&example, types, padded, rows);
    moetoken_permute_args args = {.tokens = &example.tokens.dl,
                                  .routing_map = &example.map.dl,
                                  .probs = &example.probs.dl,
                                  .num_out_tokens = N,
                                  .drop_and_pad = padded,
                                  .permuted_tokens = &example.out_rows.dl,
                                  .permuted_probs = &example.out_row_probs.dl,
                                  .sorted_indices = &example.out_first.dl};
    check_ok(moetoken_permute(&args, NULL));
    check_values("permuted_tokens", &example.out_rows, wanted_rows[padded]);
    check_values("permuted_probs", &example.out_row_probs, wanted_probs[padded]);
    check_values("sorted_indices", &example.out_first, wanted_indices[padded]);
    example_free(&example);
}

static void permute_gives_the_worked_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        permute_example(&all_types[i], false, 5);
        permute_example(&all_types[i], false, 6);
        permute_example(&all_types[i], true, 6);
    }
}

static void unpermute_example(const struct types *types, bool padded)
{
    static const double wanted[2][T * H] = {{6.5, 1, 2, 32, 3.5, -19}, {6.5, 1, -5, 30, 3.5, -19}};
    static const double wanted_rows[2][N] = {{0, 4, 2, -1, 1, 3}, {0, 4, 2, 5, 1, 3}};
    static const double wanted_tokens[N] = {0, 0, 1, 1, 2, 2};
    static const double wanted_probs[2][N] = {{0.5, 2, 4, 0, 0.25, -3}, {0.5, 0.25, 4, -3, 2, -1}};
    struct example example;
    example_make(&example, types, padded, N);
    tensor_fill_indices(&example.rows_index.dl, padded ? padded_by_expert : dropless_rows);
    moetoken_unpermute_args args = {.permuted_tokens = &example.rows.dl,
                                    .sorted_indices = &example.rows_index.dl,
                                    .routing_map = &example.map.dl,
                                    .probs = &example.probs.dl,
                                    .drop_and_pad = padded,
                                    .unpermuted_tokens = &example.out_tokens.dl,
                                    .out_index = &example.out_first.dl,
                                    .permute_token_id = &example.out_second.dl,
                                    .permuted_probs = &example.out_row_probs.dl};
    check_ok(moetoken_unpermute(&args, NULL));
    check_values("unpermuted_tokens", &example.out_tokens, wanted[padded]);
    check_values("out_index", &example.out_first, wanted_rows[padded]);
    check_values("permute_token_id", &example.out_second, wanted_tokens);
    check_values("permuted_probs", &example.out_row_probs, wanted_probs[padded]);
    example_free(&example);
}

static void unpermute_gives_the_worked_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        unpermute_example(&all_types[i], false);
        unpermute_example(&all_types[i], true);
    }
}

static void permute_grad_example(const struct types *types, bool padded)
{
    static const double row_probs[N] = {1, 2, 3, 4, 5, 6};
    static const double wanted[2][T * H] = {{4, 1.25, 0.5, 8, 1, 2}, {4, 1.25, 7.5, 10, 1, 2}};
    static const double wanted_probs[2][T * E] = {{1, 0, 5, 0, 3, 0, 2, 4, 0},
                                                  {1, 0, 5, 0, 3, 6, 2, 4, 0}};
    struct example example;
    example_make(&example, types, padded, N);
    tensor_fill_indices(&example.rows_index.dl, padded ? padded_by_expert : dropless_rows);
    tensor_fill_from(&example.out_row_probs.dl, row_probs);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &example.rows.dl,
                                       .permuted_probs_grad = &example.out_row_probs.dl,
                                       .sorted_indices = &example.rows_index.dl,
                                       .routing_map = &example.map.dl,
                                       .tokens_num = T,
                                       .experts_num = E,
                                       .drop_and_pad = padded,
                                       .tokens_grad = &example.out_tokens.dl,
                                       .probs_grad = &example.out_probs.dl};
    check_ok(moetoken_permute_grad(&args, NULL));
    check_values("tokens_grad", &example.out_tokens, wanted[padded]);
    check_values("probs_grad", &example.out_probs, wanted_probs[padded]);
    example_free(&example);
}

static void permute_grad_gives_the_worked_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPES; i++) {
        permute_grad_example(&all_types[i], false);
        permute_grad_example(&all_types[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpermute_grad_gives_the_worked_example),
        cmocka_unit_test(unpermute_grad_masks_the_fill_slot),
        cmocka_unit_test(unpermute_grad_copies_without_probs),
        cmocka_unit_test(permute_gives_the_worked_example),
        cmocka_unit_test(unpermute_gives_the_worked_example),
        cmocka_unit_test(permute_grad_gives_the_worked_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
