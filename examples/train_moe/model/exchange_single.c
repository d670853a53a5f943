/* exchange_single.c - all experts in this process: moetoken_permute, moetoken_unpermute and the
 * gradients of both. */
#include "case_file.h"
#include "exchange.h"

struct exchange {
    int32_t *sorted_indices; /* [slots] the row of each slot */
};

bool exchange_dumps(void)
{
    return true;
}

/* The tensors of one pass, over the buffers of the layer. */
struct tensors {
    int64_t token_shape[2], row_shape[2], choice_shape[2], slot_shape[1];
    DLTensor token_side, expert_side, answers; /* token-like */
    DLTensor expert_ids, gates, dgates;        /* [T,K] */
    DLTensor sorted_indices;                   /* [N] */
};

static void bind_tensors(struct tensors *t, const struct moe *moe)
{
    const struct moe_config *config = &moe->config;
    *t = (struct tensors){.token_shape = {moe->tokens, config->width},
                          .row_shape = {moe->rows, config->width},
                          .choice_shape = {moe->tokens, config->topk},
                          .slot_shape = {moe->tokens * config->topk}};
    t->token_side = moetoken_tensor(moe->token_side, config->type, 2, t->token_shape);
    t->expert_side = moetoken_tensor(moe->expert_side, config->type, 2, t->row_shape);
    t->answers = moetoken_tensor(moe->answers, config->type, 2, t->row_shape);
    t->expert_ids = moetoken_tensor(moe->expert_ids, MOETOKEN_I32, 2, t->choice_shape);
    t->gates = moetoken_tensor(moe->gates, REAL_TYPE, 2, t->choice_shape);
    t->dgates = moetoken_tensor(moe->dgates, REAL_TYPE, 2, t->choice_shape);
    t->sorted_indices =
        moetoken_tensor(moe->exchange->sorted_indices, MOETOKEN_I32, 1, t->slot_shape);
}

struct exchange *exchange_create(const struct moe_config *config, const moetoken_options *options)
{
    struct exchange *exchange = allocate(1, sizeof *exchange);
    (void)options;
    exchange->sorted_indices = allocate(config->tokens * config->topk, sizeof(int32_t));
    return exchange;
}

void exchange_destroy(struct exchange *exchange)
{
    free(exchange->sorted_indices);
    free(exchange);
}

int64_t exchange_most_rows(const struct moe_config *config, int64_t all_tokens)
{
    int64_t capacity = moe_capacity(config, all_tokens);
    return capacity > 0 ? capacity * config->experts : all_tokens * config->topk;
}

/* With a capacity the rows that no token fills are zero; their answers are nobody's. */
static void find_first_rows(struct moe *moe)
{
    moe->first_row[0] = 0;
    for (int64_t e = 0; e < moe->config.experts; e++)
        moe->first_row[e + 1] =
            moe->first_row[e] + (moe->capacity > 0 ? moe->capacity : moe->load[e]);
    moe->rows = moe->first_row[moe->config.experts];
}

void exchange_dispatch(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    find_first_rows(moe);
    bind_tensors(&t, moe);
    moetoken_permute_args args = {.tokens = &t.token_side,
                                  .expert_ids = &t.expert_ids,
                                  .experts_num = moe->config.experts,
                                  .capacity = moe->capacity,
                                  .permuted_tokens = &t.expert_side,
                                  .sorted_indices = &t.sorted_indices};
    must(moetoken_permute(&args, options), "permute");
}

void exchange_combine(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_unpermute_args args = {.permuted_tokens = &t.answers,
                                    .sorted_indices = &t.sorted_indices,
                                    .weights = &t.gates,
                                    .unpermuted_tokens = &t.token_side};
    must(moetoken_unpermute(&args, options), "unpermute");
}

void exchange_combine_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &t.token_side,
                                         .out_index = &t.sorted_indices,
                                         .permuted_tokens = &t.answers,
                                         .weights = &t.gates,
                                         .permuted_tokens_grad = &t.answers,
                                         .weights_grad = &t.dgates};
    if (moe->dump)
        case_file_write(moe->dump, &args);
    moe->dump = NULL;
    must(moetoken_unpermute_grad(&args, options), "unpermute_grad");
}

void exchange_dispatch_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &t.expert_side,
                                       .sorted_indices = &t.sorted_indices,
                                       .tokens_num = moe->tokens,
                                       .tokens_grad = &t.token_side};
    must(moetoken_permute_grad(&args, options), "permute_grad");
}
