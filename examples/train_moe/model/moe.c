/* moe.c - a token goes to its best K experts and comes back as their weighted answer.
 *
 *   x -> router -> gates, map --------------------------.
 *   x -> moetoken_permute -> experts -> moetoken_unpermute -> y
 *
 * and backward through moetoken_unpermute_grad and moetoken_permute_grad. The router's gradient is
 * that of the gates, which is probs_grad of moetoken_unpermute_grad. */
#include "moe.h"

#include <math.h>
#include <string.h>

#include "case_file.h"
#include "layers.h"
#include "matmul.h"

static int64_t capacity_for(const struct moe_config *config, int64_t tokens)
{
    if (config->capacity_factor <= 0)
        return 0;
    double even = (double)(tokens * config->topk) / (double)config->experts;
    int64_t capacity = (int64_t)ceil(even * config->capacity_factor);
    capacity = capacity < 1 ? 1 : capacity;
    return capacity < tokens ? capacity : tokens;
}

int64_t moe_slots(const struct moe_config *config, int64_t tokens)
{
    int64_t capacity = capacity_for(config, tokens);
    return capacity > 0 ? capacity * config->experts : tokens * config->topk;
}

struct moe moe_create(const struct moe_config *config)
{
    int64_t tokens = config->tokens, pairs = tokens * config->experts;
    int64_t slots = moe_slots(config, tokens);
    return (struct moe){
        .config = *config,
        .probs = allocate(pairs, sizeof(real)),
        .gates = allocate(pairs, sizeof(real)),
        .dgates = allocate(pairs, sizeof(real)),
        .map = allocate(pairs, 1),
        .balance = allocate(config->experts, sizeof(real)),
        .sorted_indices = allocate(slots, sizeof(int32_t)),
        .out_index = allocate(slots, sizeof(int32_t)),
        .permute_token_id = allocate(slots, sizeof(int32_t)),
        .first_row = allocate(config->experts + 1, sizeof(int64_t)),
        .token_side = allocate(tokens * config->width, sizeof(real)),
        .expert_side = allocate(slots * config->width, sizeof(real)),
        .answers = allocate(slots * config->width, sizeof(real)),
        .rows = allocate(slots * config->width, sizeof(real)),
        .rows_scratch = allocate(slots * config->width, sizeof(real)),
        .before = allocate(slots * config->hidden, sizeof(real)),
        .after = allocate(slots * config->hidden, sizeof(real)),
        .dhidden = allocate(slots * config->hidden, sizeof(real)),
        .load = allocate(config->experts, sizeof(int64_t)),
    };
}

void moe_destroy(struct moe *moe)
{
    void *all[] = {moe->probs,       moe->gates,
                   moe->dgates,      moe->map,
                   moe->balance,     moe->sorted_indices,
                   moe->out_index,   moe->permute_token_id,
                   moe->first_row,   moe->token_side,
                   moe->expert_side, moe->answers,
                   moe->rows,        moe->rows_scratch,
                   moe->before,      moe->after,
                   moe->dhidden,     moe->load};
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

/* ---- the four operators --------------------------------------------------------------------- */

/* The tensors of one pass, over the buffers of the layer. */
struct tensors {
    int64_t token_shape[2], row_shape[2], pair_shape[2], slot_shape[1];
    DLTensor token_side, expert_side, answers;            /* token-like */
    DLTensor map, gates, dgates;                          /* [T,E] */
    DLTensor sorted_indices, out_index, permute_token_id; /* [N] */
};

static void bind_tensors(struct tensors *t, const struct moe *moe)
{
    const struct moe_config *config = &moe->config;
    *t = (struct tensors){.token_shape = {moe->tokens, config->width},
                          .row_shape = {moe->slots, config->width},
                          .pair_shape = {moe->tokens, config->experts},
                          .slot_shape = {moe->slots}};
    t->token_side = moetoken_tensor(moe->token_side, config->type, 2, t->token_shape);
    t->expert_side = moetoken_tensor(moe->expert_side, config->type, 2, t->row_shape);
    t->answers = moetoken_tensor(moe->answers, config->type, 2, t->row_shape);
    t->map = moetoken_tensor(moe->map, MOETOKEN_BOOL, 2, t->pair_shape);
    t->gates = moetoken_tensor(moe->gates, REAL_TYPE, 2, t->pair_shape);
    t->dgates = moetoken_tensor(moe->dgates, REAL_TYPE, 2, t->pair_shape);
    t->sorted_indices = moetoken_tensor(moe->sorted_indices, MOETOKEN_I32, 1, t->slot_shape);
    t->out_index = moetoken_tensor(moe->out_index, MOETOKEN_I32, 1, t->slot_shape);
    t->permute_token_id = moetoken_tensor(moe->permute_token_id, MOETOKEN_I32, 1, t->slot_shape);
}

static void must(moetoken_status status, const char *operation)
{
    if (status == MOETOKEN_OK)
        return;
    fprintf(stderr, "train_moe: %s: %s: %s\n", operation, moetoken_status_name(status),
            moetoken_last_error());
    exit(1);
}

/* token_side -> expert_side, and where every row came from */
static void dispatch(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_permute_args args = {.tokens = &t.token_side,
                                  .routing_map = &t.map,
                                  .num_out_tokens = moe->slots,
                                  .drop_and_pad = moe->capacity > 0,
                                  .permuted_tokens = &t.expert_side,
                                  .sorted_indices = &t.sorted_indices};
    must(moetoken_permute(&args, options), "permute");
}

/* answers -> token_side, and the indices that combine_backward needs */
static void combine(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_unpermute_args args = {.permuted_tokens = &t.answers,
                                    .sorted_indices = &t.sorted_indices,
                                    .routing_map = &t.map,
                                    .probs = &t.gates,
                                    .drop_and_pad = moe->capacity > 0,
                                    .unpermuted_tokens = &t.token_side,
                                    .out_index = &t.out_index,
                                    .permute_token_id = &t.permute_token_id};
    must(moetoken_unpermute(&args, options), "unpermute");
}

/* token_side (gradient) -> answers (the gradient replaces them in place) and dgates */
static void combine_backward(struct moe *moe, const moetoken_options *options)
{
    struct tensors t;
    bind_tensors(&t, moe);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &t.token_side,
                                         .out_index = &t.out_index,
                                         .permute_token_id = &t.permute_token_id,
                                         .routing_map = &t.map,
                                         .permuted_tokens = &t.answers,
                                         .probs = &t.gates,
                                         .drop_and_pad = moe->capacity > 0,
                                         .permuted_tokens_grad = &t.answers,
                                         .probs_grad = &t.dgates};
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
                                       .experts_num = moe->config.experts,
                                       .drop_and_pad = moe->capacity > 0,
                                       .tokens_grad = &t.token_side};
    must(moetoken_permute_grad(&args, options), "permute_grad");
}

/* ---- router --------------------------------------------------------------------------------- */

/* The K largest probabilities (of equal ones the first) become gates that sum to 1. With K = 1 the
 * gate is the probability itself: a gate of 1 would teach the router nothing. */
static void choose_experts(const real *probs, uint8_t *map, real *gates, int64_t experts,
                           int64_t topk)
{
    real total = 0;
    memset(map, 0, (size_t)experts);
    for (int64_t k = 0; k < topk; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++)
            if (!map[e] && (best < 0 || probs[e] > probs[best]))
                best = e;
        map[best] = 1;
        total += probs[best];
    }
    for (int64_t e = 0; e < experts; e++)
        gates[e] = !map[e] ? 0 : topk > 1 ? probs[e] / total : probs[e];
}

/* The balancing loss: experts * sum over experts of (share of the choices) * (mean probability),
 * which is 1 for an even load and grows with every preference. The share has no derivative. */
static void balancing_loss(struct moe *moe)
{
    int64_t experts = moe->config.experts;
    double loss = 0, choices = (double)(moe->tokens * moe->config.topk);
    for (int64_t e = 0; e < experts; e++) {
        double mean = 0, share = (double)moe->load[e] / choices;
        for (int64_t t = 0; t < moe->tokens; t++)
            mean += (double)moe->probs[t * experts + e];
        double factor = moe->config.aux_weight * (double)experts * share;
        loss += factor * mean / (double)moe->tokens;
        moe->balance[e] = (real)(factor / (double)moe->tokens);
    }
    moe->aux_loss = loss;
}

static void route(struct moe *moe, const real *router, const real *x)
{
    int64_t experts = moe->config.experts;
    linear_forward(moe->probs, x, router, moe->tokens, moe->config.width, experts, false);
#pragma omp parallel for schedule(static) if (moe->tokens * experts > 4096)
    for (int64_t t = 0; t < moe->tokens; t++) {
        softmax(moe->probs + t * experts, experts);
        choose_experts(moe->probs + t * experts, moe->map + t * experts, moe->gates + t * experts,
                       experts, moe->config.topk);
    }
    memset(moe->load, 0, (size_t)experts * sizeof moe->load[0]);
    for (int64_t t = 0; t < moe->tokens; t++)
        for (int64_t e = 0; e < experts; e++)
            moe->load[e] += moe->map[t * experts + e];
    balancing_loss(moe);
}

/* From the gradient of a token's gates to that of its logits, in place. */
static void gates_backward(const struct moe *moe, int64_t token)
{
    int64_t experts = moe->config.experts, at = token * experts;
    const real *probs = moe->probs + at, *gates = moe->gates + at;
    const uint8_t *map = moe->map + at;
    real *gradient = moe->dgates + at;
    bool renormalised = moe->config.topk > 1;
    real among_chosen = 0, among_all = 0;
    for (int64_t e = 0; e < experts; e++) {
        /* A fill slot's probs_grad is that of a gate which is 0 whatever the router does. */
        gradient[e] = map[e] ? gradient[e] : 0;
        among_chosen += renormalised ? gates[e] * gradient[e] : 0;
        among_all += probs[e] * (moe->balance[e] + (renormalised ? 0 : gradient[e]));
    }
    for (int64_t e = 0; e < experts; e++) {
        real by_gate = renormalised ? gates[e] * (gradient[e] - among_chosen) : 0;
        real by_prob = moe->balance[e] + (renormalised ? 0 : gradient[e]);
        gradient[e] = by_gate + probs[e] * (by_prob - among_all);
    }
}

/* ---- experts -------------------------------------------------------------------------------- */

static void find_first_rows(struct moe *moe)
{
    moe->first_row[0] = 0;
    moe->dropped = 0;
    for (int64_t e = 0; e < moe->config.experts; e++) {
        int64_t rows = moe->capacity > 0 ? moe->capacity : moe->load[e];
        moe->first_row[e + 1] = moe->first_row[e] + rows;
        moe->dropped += moe->load[e] > rows ? moe->load[e] - rows : 0;
    }
}

/* rows -> rows_scratch, each through its own expert */
static void experts_forward(struct moe *moe, const struct moe_weights *weights)
{
    int64_t width = moe->config.width, hidden = moe->config.hidden;
    for (int64_t e = 0; e < moe->config.experts; e++) {
        int64_t first = moe->first_row[e], count = moe->first_row[e + 1] - first;
        real *before = moe->before + first * hidden, *after = moe->after + first * hidden;
        linear_forward(before, moe->rows + first * width, weights->up + e * width * hidden, count,
                       width, hidden, false);
        activation_forward(after, before, count * hidden);
        linear_forward(moe->rows_scratch + first * width, after, weights->down + e * width * hidden,
                       count, hidden, width, false);
    }
}

/* rows_scratch: the answers' gradient -> the rows' gradient */
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
        linear_backward(gradient, gradients->up + at, dhidden, moe->rows + first * width,
                        weights->up + at, count, width, hidden, false, scratch);
    }
}

/* ---- the layer ------------------------------------------------------------------------------ */

void moe_forward(struct moe *moe, const struct moe_weights *weights, real *y, const real *x,
                 int64_t tokens, const moetoken_options *options)
{
    moe->tokens = tokens;
    moe->capacity = capacity_for(&moe->config, tokens);
    moe->slots = moe_slots(&moe->config, tokens);
    route(moe, weights->router, x);
    find_first_rows(moe);

    to_operator(moe, moe->token_side, x, tokens);
    dispatch(moe, options);
    from_operator(moe, moe->rows, moe->expert_side, moe->slots);
    experts_forward(moe, weights);
    to_operator(moe, moe->answers, moe->rows_scratch, moe->slots);
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
    from_operator(moe, moe->rows_scratch, moe->answers, moe->slots);
    experts_backward(moe, weights, gradients, scratch);
    to_operator(moe, moe->expert_side, moe->rows_scratch, moe->slots);
    dispatch_backward(moe, options);
    from_operator(moe, dx, moe->token_side, tokens);

    for (int64_t t = 0; t < tokens; t++)
        gates_backward(moe, t);
    linear_backward(dx, gradients->router, moe->dgates, x, weights->router, tokens, width, experts,
                    true, scratch);
}
