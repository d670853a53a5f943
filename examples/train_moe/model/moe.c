/* moe.c - a token goes to its best K experts and comes back as their weighted answer.
 *
 *   x -> linear -> moetoken_router -> expert ids, weights
 *   x -> exchange_dispatch -> experts -> exchange_combine -> y
 *
 * and backward through the gradients of all three. The exchange is moetoken_permute and
 * moetoken_unpermute, or over several ranks moetoken_mpi_dispatch and moetoken_mpi_combine. */
#include "moe.h"

#include <math.h>
#include <string.h>

#include "exchange.h"
#include "layers.h"
#include "matmul.h"
#include "ranks/ranks.h"

/* ---- memory --------------------------------------------------------------------------------- */

int64_t moe_capacity(const struct moe_config *config, int64_t tokens)
{
    if (config->capacity_factor <= 0)
        return 0;
    double even = (double)(tokens * config->topk) / (double)config->experts;
    int64_t capacity = (int64_t)ceil(even * config->capacity_factor);
    capacity = capacity < 1 ? 1 : capacity;
    return capacity < tokens ? capacity : tokens;
}

size_t moe_workspace_bytes(const struct moe_config *config, int32_t threads)
{
    size_t operators, router;
    must(moetoken_workspace_size(config->tokens, config->tokens * config->topk, &operators),
         "workspace");
    must(moetoken_router_workspace_size(config->tokens, config->experts, config->topk,
                                        moetoken_threads_chosen(threads), &router),
         "the router's workspace");
    return operators > router ? operators : router;
}

struct moe moe_create(const struct moe_config *config, const moetoken_options *options)
{
    int64_t tokens = config->tokens, pairs = tokens * config->experts;
    int64_t slots = tokens * config->topk, rows = exchange_most_rows(config, config->all_tokens);
    return (struct moe){
        .config = *config,
        .logits = allocate(pairs, sizeof(real)),
        .scores = allocate(pairs, sizeof(real)),
        .dlogits = allocate(pairs, sizeof(real)),
        .dscores = allocate(pairs, sizeof(real)),
        .expert_ids = allocate(slots, sizeof(int32_t)),
        .gates = allocate(slots, sizeof(real)),
        .dgates = allocate(slots, sizeof(real)),
        .exchange = exchange_create(config, options),
        .first_row = allocate(config->own_experts + 1, sizeof(int64_t)),
        .token_side = allocate(tokens * config->width, sizeof(real)),
        .expert_side = allocate(rows * config->width, sizeof(real)),
        .answers = allocate(rows * config->width, sizeof(real)),
        .inputs = allocate(rows * config->width, sizeof(real)),
        .rows_scratch = allocate(rows * config->width, sizeof(real)),
        .before = allocate(rows * config->hidden, sizeof(real)),
        .after = allocate(rows * config->hidden, sizeof(real)),
        .dhidden = allocate(rows * config->hidden, sizeof(real)),
        .load = allocate(config->experts, sizeof(int64_t)),
    };
}

void moe_destroy(struct moe *moe)
{
    void *all[] = {moe->logits,  moe->scores, moe->dlogits,      moe->dscores,    moe->expert_ids,
                   moe->gates,   moe->dgates, moe->first_row,    moe->token_side, moe->expert_side,
                   moe->answers, moe->inputs, moe->rows_scratch, moe->before,     moe->after,
                   moe->dhidden, moe->load};
    exchange_destroy(moe->exchange);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    memset(moe, 0, sizeof *moe);
}

/* ---- rows of the operators' type ------------------------------------------------------------ */

/* To nearest, ties to even. Training meets no NaN that would have to survive. */
static uint16_t bfloat16_from(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float bfloat16_to(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static void to_operator(const struct moe *moe, void *out, const real *in, int64_t rows)
{
    int64_t count = rows * moe->config.width;
    if (moe->config.type != MOETOKEN_BF16) {
        memcpy(out, in, (size_t)count * sizeof(real));
        return;
    }
    uint16_t *halves = out;
    for (int64_t i = 0; i < count; i++)
        halves[i] = bfloat16_from((float)in[i]);
}

static void from_operator(const struct moe *moe, real *out, const void *in, int64_t rows)
{
    int64_t count = rows * moe->config.width;
    if (moe->config.type != MOETOKEN_BF16) {
        memcpy(out, in, (size_t)count * sizeof(real));
        return;
    }
    const uint16_t *halves = in;
    for (int64_t i = 0; i < count; i++)
        out[i] = (real)bfloat16_to(halves[i]);
}

/* ---- the library's part --------------------------------------------------------------------- */

/* The tensors of one pass, over the buffers of the layer. */
struct tensors {
    int64_t pair_shape[2], choice_shape[2], expert_shape[1], one[1];
    DLTensor logits, scores, dlogits, dscores; /* [T,E] */
    DLTensor expert_ids, gates, dgates;        /* [T,K] */
    DLTensor load;                             /* [E] */
};

static void bind_tensors(struct tensors *t, const struct moe *moe)
{
    const struct moe_config *config = &moe->config;
    *t = (struct tensors){.pair_shape = {moe->tokens, config->experts},
                          .choice_shape = {moe->tokens, config->topk},
                          .expert_shape = {config->experts},
                          .one = {1}};
    t->logits = moetoken_tensor(moe->logits, REAL_TYPE, 2, t->pair_shape);
    t->scores = moetoken_tensor(moe->scores, REAL_TYPE, 2, t->pair_shape);
    t->dlogits = moetoken_tensor(moe->dlogits, REAL_TYPE, 2, t->pair_shape);
    t->dscores = moetoken_tensor(moe->dscores, REAL_TYPE, 2, t->pair_shape);
    t->expert_ids = moetoken_tensor(moe->expert_ids, MOETOKEN_I32, 2, t->choice_shape);
    t->gates = moetoken_tensor(moe->gates, REAL_TYPE, 2, t->choice_shape);
    t->dgates = moetoken_tensor(moe->dgates, REAL_TYPE, 2, t->choice_shape);
    t->load = moetoken_tensor(moe->load, MOETOKEN_I64, 1, t->expert_shape);
}

/* A recipe without its groups, which spread experts over machines, and for any number of experts.
 * With one expert a token its weight is not divided by itself: a weight of 1 would teach the router
 * nothing. */
static moetoken_router_config router_config(const struct moe_config *config)
{
    moetoken_router_config recipe;
    must(moetoken_router_recipe(config->balance_by_bias ? "deepseek-v3" : "mixtral", &recipe),
         "recipe");
    recipe.topk = config->topk;
    recipe.groups_num = recipe.groups_top = recipe.group_score_count = 0;
    recipe.normalize = config->topk > 1;
    return recipe;
}

/* The balancing loss: experts * sum over experts of (share of the choices) * (mean probability),
 * which is 1 for an even load and grows with every preference. The share has no derivative. This
 * rank's tokens' part of it. */
static void balancing_loss(struct moe *moe, struct tensors *t, const moetoken_options *options)
{
    DLTensor loss = moetoken_tensor(&moe->aux_loss, MOETOKEN_F64, 1, t->one);
    moetoken_router_balance_loss_args args = {.scores = &t->scores,
                                              .rows_per_expert = &t->load,
                                              .topk = moe->config.topk,
                                              .total_tokens = moe->all_tokens,
                                              .coeff = moe->config.aux_weight,
                                              .loss = &loss,
                                              .scores_grad = &t->dscores};
    must(moetoken_router_balance_loss(&args, options), "router_balance_loss");
}

static void count_dropped(struct moe *moe)
{
    moe->dropped = 0;
    for (int64_t e = 0; moe->capacity > 0 && e < moe->config.experts; e++)
        moe->dropped += moe->load[e] > moe->capacity ? moe->load[e] - moe->capacity : 0;
}

/* logits -> experts and their weights */
static void route(struct moe *moe, const struct moe_weights *weights, const real *x,
                  const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    DLTensor bias = moetoken_tensor(weights->bias, REAL_TYPE, 1, t.expert_shape);
    moetoken_router_args args = {.logits = &t.logits,
                                 .bias = moe->config.balance_by_bias ? &bias : NULL,
                                 .config = router_config(&moe->config),
                                 .expert_ids = &t.expert_ids,
                                 .weights = &t.gates,
                                 .scores = moe->config.balance_by_bias ? NULL : &t.scores,
                                 .rows_per_expert = &t.load};
    linear_forward(moe->logits, x, weights->router, moe->tokens, moe->config.width,
                   moe->config.experts, false);
    must(moetoken_router(&args, options), "router");
    ranks_add_counts(moe->load, moe->config.experts);
    count_dropped(moe);
    if (!moe->config.balance_by_bias)
        balancing_loss(moe, &t, options);
}

/* dgates, and the gradient of the balancing loss -> dlogits */
static void route_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_router_grad_args args = {.logits = &t.logits,
                                      .expert_ids = &t.expert_ids,
                                      .config = router_config(&moe->config),
                                      .weights_grad = &t.dgates,
                                      .scores_grad =
                                          moe->config.balance_by_bias ? NULL : &t.dscores,
                                      .logits_grad = &t.dlogits};
    must(moetoken_router_grad(&args, options), "router_grad");
}

void moe_update_bias(const struct moe *moe, const struct moe_weights *weights,
                     const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    DLTensor bias = moetoken_tensor(weights->bias, REAL_TYPE, 1, t.expert_shape);
    moetoken_router_update_bias_args args = {.bias = &bias,
                                             .rows_per_expert = &t.load,
                                             .rate = moe->config.bias_rate,
                                             .updated_bias = &bias};
    must(moetoken_router_update_bias(&args, options), "router_update_bias");
}

/* ---- experts -------------------------------------------------------------------------------- */

/* inputs -> rows_scratch, each through its own expert */
static void experts_forward(struct moe *moe, const struct moe_weights *weights)
{
    int64_t width = moe->config.width, hidden = moe->config.hidden;
    for (int64_t e = 0; e < moe->config.own_experts; e++) {
        int64_t first = moe->first_row[e], count = moe->first_row[e + 1] - first;
        real *before = moe->before + first * hidden, *after = moe->after + first * hidden;
        linear_forward(before, moe->inputs + first * width, weights->up + e * width * hidden, count,
                       width, hidden, false);
        activation_forward(after, before, count * hidden);
        linear_forward(moe->rows_scratch + first * width, after, weights->down + e * width * hidden,
                       count, hidden, width, false);
    }
}

/* rows_scratch: the answers' gradient -> the inputs' gradient */
static void experts_backward(struct moe *moe, const struct moe_weights *weights,
                             const struct moe_weights *gradients, real *scratch)
{
    int64_t width = moe->config.width, hidden = moe->config.hidden;
    for (int64_t e = 0; e < moe->config.own_experts; e++) {
        int64_t first = moe->first_row[e], count = moe->first_row[e + 1] - first;
        int64_t at = e * width * hidden;
        real *gradient = moe->rows_scratch + first * width;
        real *dhidden = moe->dhidden + first * hidden;
        linear_gradient(gradients->down + at, gradient, moe->after + first * hidden, count, hidden,
                        width);
        linear_backward(dhidden, gradient, weights->down + at, count, hidden, width, false,
                        scratch);
        activation_backward(dhidden, moe->before + first * hidden, count * hidden);
        linear_gradient(gradients->up + at, dhidden, moe->inputs + first * width, count, width,
                        hidden);
        linear_backward(gradient, dhidden, weights->up + at, count, width, hidden, false, scratch);
    }
}

/* ---- the layer ------------------------------------------------------------------------------ */

void moe_forward(struct moe *moe, const struct moe_weights *weights, real *y, const real *x,
                 int64_t tokens, int64_t all_tokens, const moetoken_options *options)
{
    moe->tokens = tokens;
    moe->all_tokens = all_tokens;
    moe->capacity = moe_capacity(&moe->config, all_tokens);
    route(moe, weights, x, options);

    to_operator(moe, moe->token_side, x, tokens);
    exchange_dispatch(moe, options);
    from_operator(moe, moe->inputs, moe->expert_side, moe->rows);
    experts_forward(moe, weights);
    to_operator(moe, moe->answers, moe->rows_scratch, moe->rows);
    exchange_combine(moe, options);
    from_operator(moe, y, moe->token_side, tokens);
}

void moe_backward(struct moe *moe, const struct moe_weights *weights,
                  const struct moe_weights *gradients, real *dx, const real *dy,
                  const moetoken_options *options, real *scratch)
{
    int64_t tokens = moe->tokens, width = moe->config.width, experts = moe->config.experts;
    to_operator(moe, moe->token_side, dy, tokens);
    exchange_combine_backward(moe, options);
    from_operator(moe, moe->rows_scratch, moe->answers, moe->rows);
    experts_backward(moe, weights, gradients, scratch);
    to_operator(moe, moe->expert_side, moe->rows_scratch, moe->rows);
    exchange_dispatch_backward(moe, options);
    from_operator(moe, dx, moe->token_side, tokens);

    route_backward(moe, options);
    linear_backward(dx, moe->dlogits, weights->router, tokens, width, experts, true, scratch);
}
