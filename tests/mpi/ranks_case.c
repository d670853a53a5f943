/* ranks_case.c - cases over ranks, and the core library's answers to them. */
#include "ranks_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ranks_require(bool condition, const char *format, ...)
{
    if (condition)
        return;
    int rank = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "rank %d: ", rank);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void require_ok(moetoken_status status, const char *what)
{
    ranks_require(status == MOETOKEN_OK, "%s in one process: %s", what, moetoken_last_error());
}

struct ranks_spec ranks_spec_random(int ranks)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    struct ranks_spec spec = {.ranks = ranks, .empty_rank = -1};
    spec.slots_per_token = 1 + random_below(4);
    spec.own_experts = 1 + random_below(4);
    spec.hidden = random_chance(4) ? 0 : 1 + random_below(40);
    spec.most_tokens = random_below(20);
    spec.unused_percent = random_chance(50) ? 0 : (int)random_below(60);
    if (random_chance(30))
        spec.empty_rank = (int)random_below(ranks);
    spec.one_expert = random_chance(15);
    spec.repeat = random_chance(40);
    spec.token_type = types[random_below(4)];
    bool narrow = spec.token_type == MOETOKEN_F16 || spec.token_type == MOETOKEN_BF16;
    spec.weights_type = narrow && random_chance(50) ? MOETOKEN_F32 : spec.token_type;
    spec.index_type = random_chance(50) ? MOETOKEN_I32 : MOETOKEN_I64;
    return spec;
}

static int64_t pick_expert(const struct ranks_case *all, int64_t token, int64_t k)
{
    if (random_chance(all->spec.unused_percent))
        return -1;
    if (all->spec.one_expert)
        return all->spec.repeat || k == 0 ? all->experts - 1 : -1;
    for (int attempt = 0; attempt < 50; attempt++) {
        int64_t expert = random_below(all->experts);
        bool seen = false;
        for (int64_t before = 0; before < k && !all->spec.repeat; before++)
            seen |= (int64_t)tensor_get(&all->ids.dl, token, before) == expert;
        if (!seen)
            return expert;
    }
    return -1;
}

static void make_plain(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                       int64_t columns)
{
    tensor_make(tensor, type, ndim, rows, columns, NULL);
}

static void make_random(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                        int64_t columns)
{
    make_plain(tensor, type, ndim, rows, columns);
    tensor_fill_random(&tensor->dl, random_chance(50) ? 0 : 10);
}

static void route(struct ranks_case *all)
{
    int64_t slots_per_token = all->spec.slots_per_token;
    for (int rank = 0; rank < all->spec.ranks; rank++) {
        int64_t some = rank == all->spec.empty_rank ? 0 : random_below(all->spec.most_tokens + 1);
        all->token_begin[rank + 1] = all->token_begin[rank] + some;
    }
    all->tokens = all->token_begin[all->spec.ranks];
    make_plain(&all->ids, all->spec.index_type, 2, all->tokens, slots_per_token);
    make_plain(&all->sorted, MOETOKEN_I64, 1, all->tokens * slots_per_token, 1);
    for (int64_t t = 0; t < all->tokens; t++)
        for (int64_t k = 0; k < slots_per_token; k++)
            tensor_set(&all->ids.dl, t, k, (double)pick_expert(all, t, k));
    for (int64_t t = 0; t < all->tokens; t++)
        for (int64_t k = 0; k < slots_per_token; k++) {
            int64_t expert = (int64_t)tensor_get(&all->ids.dl, t, k);
            if (expert >= 0)
                all->per_expert[expert]++;
        }
    for (int64_t e = 0; e < all->experts; e++) {
        if (e % all->spec.own_experts == 0)
            all->row_begin[e / all->spec.own_experts] = all->rows;
        all->rows += all->per_expert[e];
    }
    all->row_begin[all->spec.ranks] = all->rows;
}

static void forward(struct ranks_case *all)
{
    moetoken_permute_args permute = {.tokens = &all->x.dl,
                                     .expert_ids = &all->ids.dl,
                                     .weights = &all->weights.dl,
                                     .experts_num = all->experts,
                                     .permuted_tokens = &all->rows_x.dl,
                                     .permuted_probs = &all->rows_weights.dl,
                                     .sorted_indices = &all->sorted.dl};
    require_ok(moetoken_permute(&permute, NULL), "permute");
    moetoken_unpermute_args combine = {.permuted_tokens = &all->answers.dl,
                                       .sorted_indices = &all->sorted.dl,
                                       .unpermuted_tokens = &all->y_plain.dl};
    require_ok(moetoken_unpermute(&combine, NULL), "unpermute");
    combine.weights = &all->weights.dl;
    combine.unpermuted_tokens = &all->y_weighted.dl;
    require_ok(moetoken_unpermute(&combine, NULL), "unpermute with weights");
    combine.residual = &all->residual.dl;
    combine.residual2 = &all->residual2.dl;
    combine.unpermuted_tokens = &all->y_added.dl;
    require_ok(moetoken_unpermute(&combine, NULL), "unpermute with residuals");
}

static void backward(struct ranks_case *all)
{
    moetoken_unpermute_grad_args combine = {.unpermuted_tokens_grad = &all->g.dl,
                                            .out_index = &all->sorted.dl,
                                            .permuted_tokens_grad = &all->rows_grad_plain.dl};
    require_ok(moetoken_unpermute_grad(&combine, NULL), "unpermute_grad");
    combine.permuted_tokens = &all->answers.dl;
    combine.weights = &all->weights.dl;
    combine.permuted_tokens_grad = &all->rows_grad.dl;
    combine.weights_grad = &all->weights_grad.dl;
    require_ok(moetoken_unpermute_grad(&combine, NULL), "unpermute_grad with weights");
    moetoken_permute_grad_args dispatch = {.permuted_tokens_grad = &all->answers.dl,
                                           .permuted_probs_grad = &all->row_weights_grad.dl,
                                           .sorted_indices = &all->sorted.dl,
                                           .tokens_num = all->tokens,
                                           .tokens_grad = &all->tokens_grad.dl,
                                           .weights_grad = &all->home_weights_grad.dl};
    require_ok(moetoken_permute_grad(&dispatch, NULL), "permute_grad");
}

void ranks_case_make(struct ranks_case *all, const struct ranks_spec *spec)
{
    memset(all, 0, sizeof *all);
    all->spec = *spec;
    all->experts = spec->own_experts * spec->ranks;
    all->per_expert = calloc((size_t)all->experts, sizeof *all->per_expert);
    route(all);
    moetoken_type type = spec->token_type, weights = spec->weights_type;
    int64_t tokens = all->tokens, rows = all->rows, hidden = spec->hidden;
    make_random(&all->weights, weights, 2, tokens, spec->slots_per_token);
    make_random(&all->row_weights_grad, weights, 1, rows, 1);
    struct test_tensor *inputs_t[] = {&all->x, &all->residual, &all->residual2, &all->g};
    for (size_t i = 0; i < sizeof inputs_t / sizeof inputs_t[0]; i++)
        make_random(inputs_t[i], type, 2, tokens, hidden);
    make_random(&all->answers, type, 2, rows, hidden);
    struct test_tensor *outputs_t[] = {&all->y_plain, &all->y_weighted, &all->y_added,
                                       &all->tokens_grad};
    for (size_t i = 0; i < sizeof outputs_t / sizeof outputs_t[0]; i++)
        make_plain(outputs_t[i], type, 2, tokens, hidden);
    struct test_tensor *outputs_r[] = {&all->rows_x, &all->rows_grad, &all->rows_grad_plain};
    for (size_t i = 0; i < sizeof outputs_r / sizeof outputs_r[0]; i++)
        make_plain(outputs_r[i], type, 2, rows, hidden);
    make_plain(&all->rows_weights, weights, 1, rows, 1);
    make_plain(&all->weights_grad, weights, 2, tokens, spec->slots_per_token);
    make_plain(&all->home_weights_grad, weights, 2, tokens, spec->slots_per_token);
    forward(all);
    backward(all);
}

void ranks_case_free(struct ranks_case *all)
{
    struct test_tensor *tensors[] = {&all->ids,
                                     &all->weights,
                                     &all->x,
                                     &all->residual,
                                     &all->residual2,
                                     &all->sorted,
                                     &all->rows_x,
                                     &all->rows_weights,
                                     &all->answers,
                                     &all->y_plain,
                                     &all->y_weighted,
                                     &all->y_added,
                                     &all->g,
                                     &all->rows_grad,
                                     &all->weights_grad,
                                     &all->row_weights_grad,
                                     &all->tokens_grad,
                                     &all->home_weights_grad,
                                     &all->rows_grad_plain};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(tensors[i]);
    free(all->per_expert);
}

void ranks_part(struct test_tensor *part, const struct test_tensor *whole, int64_t begin,
                int64_t end)
{
    /* Layouts of inputs that repeat elements could not hold these values. */
    struct layout layout = layout_random(true);
    int64_t columns = tensor_columns(&whole->dl);
    tensor_make(part, whole->type, whole->dl.ndim, end - begin, columns, &layout);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < columns; j++)
            tensor_set_bits(&part->dl, i - begin, j, tensor_get_bits(&whole->dl, i, j));
    tensor_snapshot(part);
}

void ranks_output(struct test_tensor *part, const struct test_tensor *whole, int64_t begin,
                  int64_t end)
{
    struct layout layout = layout_random(true);
    tensor_make(part, whole->type, whole->dl.ndim, end - begin, tensor_columns(&whole->dl),
                &layout);
    tensor_fill_poison(&part->dl);
    tensor_snapshot(part);
}

void ranks_expect(const char *what, const struct test_tensor *part, const struct test_tensor *whole,
                  int64_t begin)
{
    for (int64_t i = 0; i < part->shape[0]; i++)
        for (int64_t j = 0; j < tensor_columns(&part->dl); j++) {
            uint64_t got = tensor_get_bits(&part->dl, i, j);
            uint64_t expected = tensor_get_bits(&whole->dl, begin + i, j);
            ranks_require(got == expected, "%s[%lld,%lld] = 0x%llx, in one process 0x%llx", what,
                          (long long)i, (long long)j, (unsigned long long)got,
                          (unsigned long long)expected);
        }
    ranks_require(tensor_gaps_unchanged(part), "%s: bytes around it were written", what);
}
