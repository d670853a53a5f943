/* values_test.c - plan, dispatch, combine and their gradients on random cases, over the ranks that
 * mpiexec starts: the bits of one process, by every way that rows can go.
 *
 * MOETOKEN_TEST_SEED gives the seed, MOETOKEN_TEST_CASES the number of cases. */
#include "ranks_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void require_ok(moetoken_status status, const char *what)
{
    ranks_require(status == MOETOKEN_OK, "%s: %s", what, moetoken_mpi_last_error());
}

/* This rank's part of a case. */
struct mine {
    const struct ranks_case *all;
    moetoken_mpi_exchange *exchange;
    int64_t token, token_end, row, row_end;
};

static void check_info(const struct mine *mine, uint32_t flags)
{
    const struct ranks_case *all = mine->all;
    moetoken_mpi_exchange_info info = {0};
    require_ok(moetoken_mpi_exchange_get(mine->exchange, &info), "exchange_get");
    ranks_require(info.rows_num == mine->row_end - mine->row, "%lld rows, expected %lld",
                  (long long)info.rows_num, (long long)(mine->row_end - mine->row));
    int64_t away = 0, sent = 0;
    for (int64_t e = 0; e < all->spec.own_experts; e++)
        ranks_require(info.rows_per_expert[e] == all->per_expert[info.expert_begin + e],
                      "rows_per_expert[%lld] = %lld", (long long)e,
                      (long long)info.rows_per_expert[e]);
    for (int64_t t = mine->token; t < mine->token_end; t++)
        for (int other = 0; other < size; other++) {
            int64_t slots = 0;
            for (int64_t k = 0; k < all->spec.slots_per_token && other != rank; k++) {
                int64_t expert = (int64_t)tensor_get(&all->ids.dl, t, k);
                slots += expert >= 0 && expert / all->spec.own_experts == other;
            }
            away += slots;
            sent += flags & MOETOKEN_MPI_EVERY_SLOT ? slots : slots > 0;
        }
    ranks_require(info.slots_sent == away, "slots_sent = %lld, expected %lld",
                  (long long)info.slots_sent, (long long)away);
    ranks_require(info.tokens_sent == sent, "tokens_sent = %lld, expected %lld",
                  (long long)info.tokens_sent, (long long)sent);
}

static void run_dispatch(const struct mine *mine, bool weighted, bool by_groups)
{
    const struct ranks_case *all = mine->all;
    struct test_tensor x, weights, rows, row_weights;
    ranks_part(&x, &all->x, mine->token, mine->token_end);
    ranks_part(&weights, &all->weights, mine->token, mine->token_end);
    ranks_output(&rows, &all->rows_x, mine->row, mine->row_end);
    ranks_output(&row_weights, &all->rows_weights, mine->row, mine->row_end);
    moetoken_mpi_dispatch_args args = {.tokens = &x.dl, .rows = &rows.dl};
    if (weighted) {
        args.weights = &weights.dl;
        args.row_weights = &row_weights.dl;
    }
    if (by_groups) {
        moetoken_mpi_exchange_info info = {0};
        moetoken_mpi_pending *pending;
        require_ok(moetoken_mpi_exchange_get(mine->exchange, &info), "exchange_get");
        require_ok(moetoken_mpi_dispatch_begin(mine->exchange, &args, &pending), "begin");
        tensor_fill(&x.dl, 0); /* tokens may change from here on */
        for (int64_t g = 0; g < info.groups_num; g++)
            require_ok(moetoken_mpi_dispatch_end(pending, g), "end");
    } else {
        require_ok(moetoken_mpi_dispatch(mine->exchange, &args), "dispatch");
        ranks_require(tensor_unchanged(&x), "dispatch wrote to its tokens");
    }
    ranks_expect("rows", &rows, &all->rows_x, mine->row);
    if (weighted)
        ranks_expect("row_weights", &row_weights, &all->rows_weights, mine->row);
    else
        ranks_require(tensor_unchanged(&row_weights), "row_weights were written unasked");
    tensor_free(&x);
    tensor_free(&weights);
    tensor_free(&rows);
    tensor_free(&row_weights);
}

static void run_combine(const struct mine *mine, bool weighted, bool added)
{
    const struct ranks_case *all = mine->all;
    const struct test_tensor *expected = added      ? &all->y_added
                                         : weighted ? &all->y_weighted
                                                    : &all->y_plain;
    struct test_tensor answers, weights, residual, residual2, y;
    ranks_part(&answers, &all->answers, mine->row, mine->row_end);
    ranks_part(&weights, &all->weights, mine->token, mine->token_end);
    ranks_part(&residual, &all->residual, mine->token, mine->token_end);
    ranks_part(&residual2, &all->residual2, mine->token, mine->token_end);
    ranks_output(&y, expected, mine->token, mine->token_end);
    moetoken_mpi_combine_args args = {.rows = &answers.dl, .tokens = &y.dl};
    if (weighted)
        args.weights = &weights.dl;
    if (added) {
        args.residual = &residual.dl;
        args.residual2 = &residual2.dl;
    }
    require_ok(moetoken_mpi_combine(mine->exchange, &args), "combine");
    ranks_expect("tokens", &y, expected, mine->token);
    ranks_require(tensor_unchanged(&answers), "combine wrote to its rows");
    tensor_free(&answers);
    tensor_free(&weights);
    tensor_free(&residual);
    tensor_free(&residual2);
    tensor_free(&y);
}

static void run_combine_grad(const struct mine *mine, bool weighted, bool in_place)
{
    const struct ranks_case *all = mine->all;
    const struct test_tensor *expected = weighted ? &all->rows_grad : &all->rows_grad_plain;
    struct test_tensor g, weights, answers, rows_grad, weights_grad;
    ranks_part(&g, &all->g, mine->token, mine->token_end);
    ranks_part(&weights, &all->weights, mine->token, mine->token_end);
    ranks_part(&answers, &all->answers, mine->row, mine->row_end);
    ranks_output(&rows_grad, expected, mine->row, mine->row_end);
    ranks_output(&weights_grad, &all->weights_grad, mine->token, mine->token_end);
    moetoken_mpi_combine_grad_args args = {.tokens_grad = &g.dl,
                                           .rows_grad = in_place ? &answers.dl : &rows_grad.dl};
    if (weighted) {
        args.weights = &weights.dl;
        args.rows = &answers.dl;
        args.weights_grad = &weights_grad.dl;
    }
    require_ok(moetoken_mpi_combine_grad(mine->exchange, &args), "combine_grad");
    ranks_expect("rows_grad", in_place ? &answers : &rows_grad, expected, mine->row);
    if (weighted)
        ranks_expect("weights_grad", &weights_grad, &all->weights_grad, mine->token);
    tensor_free(&g);
    tensor_free(&weights);
    tensor_free(&answers);
    tensor_free(&rows_grad);
    tensor_free(&weights_grad);
}

static void run_dispatch_grad(const struct mine *mine, bool rows, bool numbers)
{
    const struct ranks_case *all = mine->all;
    struct test_tensor answers, row_weights_grad, tokens_grad, weights_grad;
    ranks_part(&answers, &all->answers, mine->row, mine->row_end);
    ranks_part(&row_weights_grad, &all->row_weights_grad, mine->row, mine->row_end);
    ranks_output(&tokens_grad, &all->tokens_grad, mine->token, mine->token_end);
    ranks_output(&weights_grad, &all->home_weights_grad, mine->token, mine->token_end);
    moetoken_mpi_dispatch_grad_args args = {0};
    if (rows) {
        args.rows_grad = &answers.dl;
        args.tokens_grad = &tokens_grad.dl;
    }
    if (numbers) {
        args.row_weights_grad = &row_weights_grad.dl;
        args.weights_grad = &weights_grad.dl;
    }
    require_ok(moetoken_mpi_dispatch_grad(mine->exchange, &args), "dispatch_grad");
    if (rows)
        ranks_expect("tokens_grad", &tokens_grad, &all->tokens_grad, mine->token);
    if (numbers)
        ranks_expect("weights_grad", &weights_grad, &all->home_weights_grad, mine->token);
    tensor_free(&answers);
    tensor_free(&row_weights_grad);
    tensor_free(&tokens_grad);
    tensor_free(&weights_grad);
}

static void run_case(moetoken_mpi_comm *comm, const struct ranks_case *all, int64_t groups,
                     uint32_t flags)
{
    struct mine mine = {.all = all,
                        .token = all->token_begin[rank],
                        .token_end = all->token_begin[rank + 1],
                        .row = all->row_begin[rank],
                        .row_end = all->row_begin[rank + 1]};
    struct test_tensor ids;
    ranks_part(&ids, &all->ids, mine.token, mine.token_end);
    moetoken_mpi_plan_args plan = {
        .expert_ids = &ids.dl, .experts_num = all->experts, .groups_num = groups, .flags = flags};
    require_ok(moetoken_mpi_plan(comm, &plan, &mine.exchange), "plan");
    tensor_free(&ids);
    check_info(&mine, flags);
    for (int weighted = 0; weighted < 2; weighted++) {
        run_dispatch(&mine, weighted, false);
        run_combine(&mine, weighted, false);
        run_combine_grad(&mine, weighted, false);
        run_dispatch_grad(&mine, true, weighted);
    }
    run_dispatch(&mine, true, true);
    run_combine(&mine, true, true);
    run_combine_grad(&mine, true, true);
    run_dispatch_grad(&mine, false, true);
    moetoken_mpi_exchange_free(mine.exchange);
}

/* Rank 0's, for all. */
static uint64_t first_seed(void)
{
    uint64_t seed = 0;
    if (rank == 0) {
        random_start("mpi_values_test");
        seed = random_bits();
    }
    MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return seed;
}

int main(int argc, char **argv)
{
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *wanted = getenv("MOETOKEN_TEST_CASES");
    long cases = wanted ? strtol(wanted, NULL, 10) : 60;
    uint64_t seed = first_seed();
    moetoken_mpi_comm *comms[3]; /* whole, in pieces, in single rows */
    for (int i = 0; i < 3; i++) {
        moetoken_mpi_options options = {.piece_rows = i == 0   ? 0
                                                      : i == 1 ? 7
                                                               : 1,
                                        .timeout_ms = 20000};
        require_ok(moetoken_mpi_open(MPI_COMM_WORLD, &options, &comms[i]), "open");
    }
    for (long i = 0; i < cases; i++) {
        random_seed(seed + (uint64_t)i);
        struct ranks_spec spec = ranks_spec_random(size);
        struct ranks_case all;
        ranks_case_make(&all, &spec);
        int64_t groups = random_below(spec.own_experts + 1);
        uint32_t flags = random_chance(20) ? MOETOKEN_MPI_EVERY_SLOT : 0;
        int way = (int)random_below(3);
        run_case(comms[way], &all, groups, flags);
        ranks_case_free(&all);
    }
    for (int i = 0; i < 3; i++)
        moetoken_mpi_close(comms[i]);
    MPI_Finalize();
    return 0;
}
