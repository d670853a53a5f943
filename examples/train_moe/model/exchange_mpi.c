/* exchange_mpi.c - the experts spread over the ranks: libmoetoken-mpi.
 *
 * A rank has the experts [rank * E / P, (rank + 1) * E / P). Their rows come in the order of the
 * tokens of all ranks, as permute would have them. */
#include <moetoken/mpi.h>
#include <string.h>

#include "exchange.h"
#include "ranks/ranks.h"
#include "ranks/ranks_mpi.h"

struct exchange {
    moetoken_mpi_exchange *plan; /* of the last forward pass */
    int32_t *kept_ids;           /* [tokens, topk] expert_ids without those that found no place */
};

/* One for all layers of all models. */
static moetoken_mpi_comm *comm;
static int comm_users;

static void must_all(moetoken_status status, const char *operation)
{
    if (status == MOETOKEN_OK)
        return;
    complain("%s: %s: %s", operation, moetoken_status_name(status), moetoken_mpi_last_error());
    give_up_together();
}

struct exchange *exchange_create(const struct moe_config *config, const moetoken_options *options)
{
    struct exchange *exchange = allocate(1, sizeof *exchange);
    moetoken_mpi_options settings = {.isa_mask = options->isa_mask, .threads = options->threads};
    if (comm_users++ == 0)
        must_all(moetoken_mpi_open(ranks_comm(), &settings, &comm), "open");
    exchange->kept_ids = allocate(config->tokens * config->topk, sizeof(int32_t));
    return exchange;
}

void exchange_destroy(struct exchange *exchange)
{
    moetoken_mpi_exchange_free(exchange->plan);
    free(exchange->kept_ids);
    free(exchange);
    if (--comm_users == 0)
        moetoken_mpi_close(comm);
}

/* Every token may want experts of this rank alone. */
int64_t exchange_most_rows(const struct moe_config *config, int64_t all_tokens)
{
    int64_t own = config->own_experts, capacity = moe_capacity(config, all_tokens);
    return capacity > 0 ? capacity * own : all_tokens * (own < config->topk ? own : config->topk);
}

bool exchange_dumps(void)
{
    return false;
}

/* The tensors of one pass, over the buffers of the layer. */
struct tensors {
    int64_t token_shape[2], row_shape[2], choice_shape[2];
    DLTensor token_side, expert_side, answers; /* token-like */
    DLTensor kept_ids, gates, dgates;          /* [T,K] */
};

static void bind_tensors(struct tensors *t, const struct moe *moe)
{
    const struct moe_config *config = &moe->config;
    *t = (struct tensors){.token_shape = {moe->tokens, config->width},
                          .row_shape = {moe->rows, config->width},
                          .choice_shape = {moe->tokens, config->topk}};
    t->token_side = moetoken_tensor(moe->token_side, config->type, 2, t->token_shape);
    t->expert_side = moetoken_tensor(moe->expert_side, config->type, 2, t->row_shape);
    t->answers = moetoken_tensor(moe->answers, config->type, 2, t->row_shape);
    t->kept_ids = moetoken_tensor(moe->exchange->kept_ids, MOETOKEN_I32, 2, t->choice_shape);
    t->gates = moetoken_tensor(moe->gates, REAL_TYPE, 2, t->choice_shape);
    t->dgates = moetoken_tensor(moe->dgates, REAL_TYPE, 2, t->choice_shape);
}

/* An expert keeps its first `capacity` slots in the order of all ranks' tokens: those that the
 * ranks before this one give it come first. */
static void drop_beyond_capacity(struct moe *moe)
{
    int64_t experts = moe->config.experts, slots = moe->tokens * moe->config.topk;
    int64_t *own = allocate(2 * experts, sizeof *own), *taken = own + experts;
    int32_t *ids = moe->exchange->kept_ids;
    for (int64_t i = 0; i < slots; i++)
        own[ids[i]]++;
    MPI_Exscan(own, taken, (int)experts, MPI_INT64_T, MPI_SUM, ranks_comm());
    if (ranks_rank() == 0)
        memset(taken, 0, (size_t)experts * sizeof *taken); /* Exscan leaves rank 0's undefined */
    for (int64_t i = 0; i < slots; i++)
        if (taken[ids[i]]++ >= moe->capacity)
            ids[i] = -1;
    free(own);
}

/* expert_ids -> who sends how many rows where */
static void plan(struct moe *moe)
{
    struct exchange *exchange = moe->exchange;
    struct tensors t;
    int64_t slots = moe->tokens * moe->config.topk;
    memcpy(exchange->kept_ids, moe->expert_ids, (size_t)slots * sizeof(int32_t));
    if (moe->capacity > 0)
        drop_beyond_capacity(moe);
    bind_tensors(&t, moe);
    moetoken_mpi_plan_args args = {.expert_ids = &t.kept_ids, .experts_num = moe->config.experts};
    moetoken_mpi_exchange_free(exchange->plan);
    exchange->plan = NULL;
    must_all(moetoken_mpi_plan(comm, &args, &exchange->plan), "plan");

    moetoken_mpi_exchange_info info = {0};
    must_all(moetoken_mpi_exchange_get(exchange->plan, &info), "exchange_get");
    moe->rows = info.rows_num;
    moe->first_row[0] = 0;
    for (int64_t e = 0; e < moe->config.own_experts; e++)
        moe->first_row[e + 1] = moe->first_row[e] + info.rows_per_expert[e];
}

void exchange_dispatch(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    (void)options;
    plan(moe);
    bind_tensors(&t, moe);
    moetoken_mpi_dispatch_args args = {.tokens = &t.token_side, .rows = &t.expert_side};
    must_all(moetoken_mpi_dispatch(moe->exchange->plan, &args), "dispatch");
}

void exchange_combine(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    (void)options;
    bind_tensors(&t, moe);
    moetoken_mpi_combine_args args = {
        .rows = &t.answers, .weights = &t.gates, .tokens = &t.token_side};
    must_all(moetoken_mpi_combine(moe->exchange->plan, &args), "combine");
}

void exchange_combine_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    (void)options;
    bind_tensors(&t, moe);
    moetoken_mpi_combine_grad_args args = {.tokens_grad = &t.token_side,
                                           .weights = &t.gates,
                                           .rows = &t.answers,
                                           .rows_grad = &t.answers,
                                           .weights_grad = &t.dgates};
    must_all(moetoken_mpi_combine_grad(moe->exchange->plan, &args), "combine_grad");
}

void exchange_dispatch_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    (void)options;
    bind_tensors(&t, moe);
    moetoken_mpi_dispatch_grad_args args = {.rows_grad = &t.expert_side,
                                            .tokens_grad = &t.token_side};
    must_all(moetoken_mpi_dispatch_grad(moe->exchange->plan, &args), "dispatch_grad");
}
