/* moe.c - a token goes to its best K experts and comes back as their weighted answer.
 *
 *   x -> linear -> moetoken_router -> expert ids, weights
 *   x -> moetoken_permute -> experts -> moetoken_unpermute -> y
 *
 * and backward through moetoken_unpermute_grad, moetoken_permute_grad and moetoken_router_grad. */
#include "moe.h"

#include <math.h>
#include <string.h>

#include "case_file.h"
#include "layers.h"
#include "matmul.h"

static void must(moetoken_status status, const char *operation)
{
    if (status == MOETOKEN_OK)
        return;
    fprintf(stderr, "train_moe: %s: %s: %s\n", operation, moetoken_status_name(status),
            moetoken_last_error());
    exit(1);
}

/* ---- memory --------------------------------------------------------------------------------- */

static int64_t capacity_for(const struct moe_config *config, int64_t tokens)
{
    if (config->capacity_factor <= 0)
        return 0;
    double even = (double)(tokens * config->topk) / (double)config->experts;
    int64_t capacity = (int64_t)ceil(even * config->capacity_factor);
    capacity = capacity < 1 ? 1 : capacity;
    return capacity < tokens ? capacity : tokens;
}

static int64_t rows_for(const struct moe_config *config, int64_t tokens)
{
    int64_t capacity = capacity_for(config, tokens);
    return capacity > 0 ? capacity * config->experts : tokens * config->topk;
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

struct moe moe_create(const struct moe_config *config)
{
    int64_t tokens = config->tokens, pairs = tokens * config->experts;
    int64_t slots = tokens * config->topk, rows = rows_for(config, tokens);
    return (struct moe){
        .config = *config,
        .logits = allocate(pairs, sizeof(real)),
        .scores = allocate(pairs, sizeof(real)),
        .dlogits = allocate(pairs, sizeof(real)),
        .dscores = allocate(pairs, sizeof(real)),
        .expert_ids = allocate(slots, sizeof(int32_t)),
        .gates = allocate(slots, sizeof(real)),
        .dgates = allocate(slots, sizeof(real)),
        .sorted_indices = allocate(slots, sizeof(int32_t)),
        .kept = allocate(config->experts, sizeof(int64_t)),
        .first_row = allocate(config->experts + 1, sizeof(int64_t)),
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
    void *all[] = {moe->logits,     moe->scores,    moe->dlogits,      moe->dscores,
                   moe->expert_ids, moe->gates,     moe->dgates,       moe->sorted_indices,
                   moe->kept,       moe->first_row, moe->token_side,   moe->expert_side,
                   moe->answers,    moe->inputs,    moe->rows_scratch, moe->before,
                   moe->after,      moe->dhidden,   moe->load};
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
    int64_t token_shape[2], row_shape[2], pair_shape[2], choice_shape[2], slot_shape[1];
    int64_t expert_shape[1], one[1];
    DLTensor token_side, expert_side, answers; /* token-like */
    DLTensor logits, scores, dlogits, dscores; /* [T,E] */
    DLTensor expert_ids, gates, dgates;        /* [T,K] */
    DLTensor sorted_indices, load, kept;       /* [N], [E], [E] */
};

static void bind_tensors(struct tensors *t, const struct moe *moe)
{
    const struct moe_config *config = &moe->config;
    *t = (struct tensors){.token_shape = {moe->tokens, config->width},
                          .row_shape = {moe->rows, config->width},
                          .pair_shape = {moe->tokens, config->experts},
                          .choice_shape = {moe->tokens, config->topk},
                          .slot_shape = {moe->slots},
                          .expert_shape = {config->experts},
                          .one = {1}};
    t->token_side = moetoken_tensor(moe->token_side, config->type, 2, t->token_shape);
    t->expert_side = moetoken_tensor(moe->expert_side, config->type, 2, t->row_shape);
    t->answers = moetoken_tensor(moe->answers, config->type, 2, t->row_shape);
    t->logits = moetoken_tensor(moe->logits, REAL_TYPE, 2, t->pair_shape);
    t->scores = moetoken_tensor(moe->scores, REAL_TYPE, 2, t->pair_shape);
    t->dlogits = moetoken_tensor(moe->dlogits, REAL_TYPE, 2, t->pair_shape);
    t->dscores = moetoken_tensor(moe->dscores, REAL_TYPE, 2, t->pair_shape);
    t->expert_ids = moetoken_tensor(moe->expert_ids, MOETOKEN_I32, 2, t->choice_shape);
    t->gates = moetoken_tensor(moe->gates, REAL_TYPE, 2, t->choice_shape);
    t->dgates = moetoken_tensor(moe->dgates, REAL_TYPE, 2, t->choice_shape);
    t->sorted_indices = moetoken_tensor(moe->sorted_indices, MOETOKEN_I32, 1, t->slot_shape);
    t->load = moetoken_tensor(moe->load, MOETOKEN_I64, 1, t->expert_shape);
    t->kept = moetoken_tensor(moe->kept, MOETOKEN_I64, 1, t->expert_shape);
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
 * which is 1 for an even load and grows with every preference. The share has no derivative. */
static void balancing_loss(struct moe *moe, struct tensors *t, const moetoken_options *options)
{
    DLTensor loss = moetoken_tensor(&moe->aux_loss, MOETOKEN_F64, 1, t->one);
    moetoken_router_balance_loss_args args = {.scores = &t->scores,
                                              .rows_per_expert = &t->load,
                                              .topk = moe->config.topk,
                                              .coeff = moe->config.aux_weight,
                                              .loss = &loss,
                                              .scores_grad = &t->dscores};
    must(moetoken_router_balance_loss(&args, options), "router_balance_loss");
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

/* token_side -> expert_side, and the row of every slot */
static void dispatch(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_permute_args args = {.tokens = &t.token_side,
                                  .expert_ids = &t.expert_ids,
                                  .experts_num = moe->config.experts,
                                  .capacity = moe->capacity,
                                  .permuted_tokens = &t.expert_side,
                                  .sorted_indices = &t.sorted_indices,
                                  .rows_per_expert = &t.kept};
    must(moetoken_permute(&args, options), "permute");
}

/* answers -> token_side */
static void combine(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_unpermute_args args = {.permuted_tokens = &t.answers,
                                    .sorted_indices = &t.sorted_indices,
                                    .weights = &t.gates,
                                    .unpermuted_tokens = &t.token_side};
    must(moetoken_unpermute(&args, options), "unpermute");
}

/* token_side (gradient) -> answers (the gradient replaces them in place) and dgates */
static void combine_backward(struct moe *moe, const moetoken_options *options)
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

/* expert_side (gradient) -> token_side */
static void dispatch_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &t.expert_side,
                                       .sorted_indices = &t.sorted_indices,
                                       .tokens_num = moe->tokens,
                                       .tokens_grad = &t.token_side};
    must(moetoken_permute_grad(&args, options), "permute_grad");
}

/* ---- experts -------------------------------------------------------------------------------- */

/* With a capacity the rows that no token fills are zero; their answers are nobody's. */
static void find_first_rows(struct moe *moe)
{
    moe->first_row[0] = 0;
    moe->dropped = 0;
    for (int64_t e = 0; e < moe->config.experts; e++) {
        int64_t rows = moe->capacity > 0 ? moe->capacity : moe->kept[e];
        moe->first_row[e + 1] = moe->first_row[e] + rows;
        moe->dropped += moe->load[e] - moe->kept[e];
    }
}

/* inputs -> rows_scratch, each through its own expert */
static void experts_forward(struct moe *moe, const struct moe_weights *weights)
{
    int64_t width = moe->config.width, hidden = moe->config.hidden;
    for (int64_t e = 0; e < moe->config.experts; e++) {
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
    for (int64_t e = 0; e < moe->config.experts; e++) {
        int64_t first = moe->first_row[e], count = moe->first_row[e + 1] - first;
        int64_t at = e * width * hidden;
        real *gradient = moe->rows_scratch + first * width;
        real *dhidden = moe->dhidden + first * hidden;
        linear_backward(dhidden, gradients->down + at, gradient, moe->after + first * hidden,
                        weights->down + at, count, hidden, width, false, scratch);
        activation_backward(dhidden, moe->before + first * hidden, count * hidden);
        linear_backward(gradient, gradients->up + at, dhidden, moe->inputs + first * width,
                        weights->up + at, count, width, hidden, false, scratch);
    }
}

/* ---- the layer ------------------------------------------------------------------------------ */

void moe_forward(struct moe *moe, const struct moe_weights *weights, real *y, const real *x,
                 int64_t tokens, const moetoken_options *options)
{
    moe->tokens = tokens;
    moe->slots = tokens * moe->config.topk;
    moe->capacity = capacity_for(&moe->config, tokens);
    moe->rows = rows_for(&moe->config, tokens);
    route(moe, weights, x, options);

    to_operator(moe, moe->token_side, x, tokens);
    dispatch(moe, options);
    find_first_rows(moe);
    from_operator(moe, moe->inputs, moe->expert_side, moe->rows);
    experts_forward(moe, weights);
    to_operator(moe, moe->answers, moe->rows_scratch, moe->rows);
    combine(moe, options);
    from_operator(moe, y, moe->token_side, tokens);
}

void moe_backward(struct moe *moe, const struct moe_weights *weights,
                  const struct moe_weights *gradients, real *dx, const real *dy, const real *x,
                  const moetoken_options *options, real *scratch)
{
    int64_t tokens = moe->tokens, width = moe->config.width, experts = moe->config.experts;
    to_operator(moe, moe->token_side, dy, tokens);
    combine_backward(moe, options);
    from_operator(moe, moe->rows_scratch, moe->answers, moe->rows);
    experts_backward(moe, weights, gradients, scratch);
    to_operator(moe, moe->expert_side, moe->rows_scratch, moe->rows);
    dispatch_backward(moe, options);
    from_operator(moe, dx, moe->token_side, tokens);

    route_backward(moe, options);
    linear_backward(dx, gradients->router, moe->dlogits, x, weights->router, tokens, width, experts,
                    true, scratch);
}
