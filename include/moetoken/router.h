/* router.h - from a token's logits to its experts and their weights, and back.
 *
 * The router of a mixture-of-experts layer stands before permute: it turns logits [T,E] into the
 * list of each token's experts and the weight of each. expert_ids and weights are what
 * moetoken_permute and moetoken_unpermute take by expert ids; routing_map and probs are what they
 * take by map.
 *
 *     moetoken_router                 logits -> expert_ids, weights, scores, rows_per_expert
 *     moetoken_router_grad            gradients of weights and scores -> gradient of the logits
 *     moetoken_router_balance_loss    switch load balancing loss and its gradient
 *     moetoken_router_z_loss          z-loss and its gradient
 *     moetoken_router_update_bias     balancing without a loss
 *     moetoken_router_drop            each expert keeps its heaviest slots
 *     moetoken_router_recipe          the settings of known models by name
 *
 * An example: DeepSeek-V3's router for 4 tokens.
 *
 *     #include <moetoken/router.h>
 *
 *     static float logits[4][256], weights[4][8], bias[256];
 *     static int64_t ids[4][8];
 *     int64_t te[] = {4, 256}, tk[] = {4, 8}, e[] = {256};
 *     DLTensor tl = moetoken_tensor(logits, MOETOKEN_F32, 2, te);
 *     DLTensor tb = moetoken_tensor(bias, MOETOKEN_F32, 1, e);
 *     DLTensor ti = moetoken_tensor(ids, MOETOKEN_I64, 2, tk);
 *     DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, tk);
 *
 *     moetoken_router_args args = {.struct_size = sizeof args, .logits = &tl, .bias = &tb,
 *                                  .expert_ids = &ti, .weights = &tw};
 *     if (moetoken_router_recipe("deepseek-v3", &args.config) != MOETOKEN_OK ||
 *         moetoken_router(&args, NULL) != MOETOKEN_OK)
 *         fprintf(stderr, "%s\n", moetoken_last_error());
 *
 * Words: T tokens, E experts, K = topk experts a token, G = E / groups_num experts a group.
 *
 * Tensors, errors, options and threads are those of moetoken.h; flags other than those about stores
 * are refused. Every args struct begins with its size: sizeof args, or 0 for the struct as this
 * version has it.
 *
 *     logits        [T,E]         float32, float16, bfloat16 or float64
 *     weights-like  [T,K], [T,E]  float32, float64, or the type of the logits
 *     expert_ids    [T,K]         int32 or int64
 *     maps, masks   [T,E], [T]    bool, int8 or uint8; any non-zero byte is set
 *
 * Numbers
 *   Everything is computed in binary64, from exponentials and logarithms of the library's own, and
 *   rounded once. The bits are the same on every instruction set, C library, number of threads and
 *   stride. Before the one rounding a score's relative error is below 2^-50 (unless it is
 *   subnormal in binary64), so a float32 score is the correctly rounded one but where the exact
 *   value lies within 2^-50 of the middle between two float32 numbers. docs/router.md says more.
 *
 * Special values
 *   NaN ranks below everything, -0 and +0 are equal, and ties go to the lower index, for groups
 *   too. With softmax one NaN or +inf among a token's logits, or nothing but -inf, makes all its
 *   scores NaN: the experts are then the lowest eligible ones, with NaN weights.
 */
#ifndef MOETOKEN_ROUTER_H
#define MOETOKEN_ROUTER_H

#include <moetoken/moetoken.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings ------------------------------------------------------------------------------- */

typedef enum moetoken_score {
    MOETOKEN_SCORE_SOFTMAX = 0,      /* over all E logits */
    MOETOKEN_SCORE_SIGMOID = 1,      /* 1 / (1 + exp(-x)) */
    MOETOKEN_SCORE_SQRTSOFTPLUS = 2, /* sqrt(log(1 + exp(x))) */
    MOETOKEN_SCORE_SOFTMAX_AFTER = 3 /* the logits choose, and the weights are the softmax over the
                                        K chosen ones; `scores` is the softmax over all E */
} moetoken_score;

/* All zero but topk is a plain softmax router. */
typedef struct moetoken_router_config {
    int64_t topk;              /* K, at most E, and at most groups_top * G with groups */
    int32_t score;             /* moetoken_score */
    bool normalize;            /* divide the chosen weights by (their sum + eps), K = 1 included */
    bool normalize_scores;     /* divide the output `scores` by (its sum over E + eps) */
    int64_t groups_num;        /* divides E; 0 and 1: no groups */
    int64_t groups_top;        /* groups that stay; 0: 1 */
    int64_t group_score_count; /* best choice values that make a group's value, at most G; 0: 1 */
    double eps;                /* finite, at least 0 */
    double scale;              /* finite; 0: 1 */
} moetoken_router_config;

/* The settings of a model by name: "mixtral", "qwen3", "deepseek-v3", "gpt-oss", "llama-4",
 * "olmoe", "kimi-k2" or "glm-4.5". Any field may be changed afterwards. Those of deepseek-v3,
 * kimi-k2 and glm-4.5 are for use with the model's bias (e_score_correction_bias).
 * MOETOKEN_ERR_OPTION for another name, MOETOKEN_ERR_NULL when an argument is NULL. */
MOETOKEN_API moetoken_status moetoken_router_recipe(const char *name,
                                                    moetoken_router_config *config);

/* The bytes of workspace with which every function of this header is content for T tokens, E
 * experts, K experts a token and this many threads, in *bytes. moetoken_router,
 * moetoken_router_grad and moetoken_router_z_loss take as many threads as the workspace serves, and
 * need it for one. MOETOKEN_ERR_SHAPE for a negative number or no thread, MOETOKEN_ERR_OVERFLOW
 * when it does not fit in size_t, MOETOKEN_ERR_NULL when bytes is NULL. */
MOETOKEN_API moetoken_status moetoken_router_workspace_size(int64_t tokens_num, int64_t experts_num,
                                                            int64_t topk, int32_t threads,
                                                            size_t *bytes);

/* ---- router --------------------------------------------------------------------------------- */

/* 1. Scores from the logits, as config.score says.
 * 2. Choice value = score + bias (with SOFTMAX_AFTER logit + bias). With groups, expert e is in
 *    group e / G; a group's value is the sum of its group_score_count best choice values, best
 *    first; only the groups_top best groups stay. Then the topk best experts, best first.
 * 3. weights[t,k] = the chosen expert's score without bias, with normalize divided by (the sum of
 *    the chosen, in slot order, + eps), times scale.
 *
 * probs[t,e] and routing_map[t,e] say the same by map: the weight, and 1, of a chosen pair, 0
 * elsewhere. A token whose token_mask is 0 is not routed: expert_ids -1, weights, probs, map and
 * scores 0, and counted nowhere. */
typedef struct moetoken_router_args {
    size_t struct_size;
    const DLTensor *logits;     /* in  [T,E] */
    const DLTensor *bias;       /* in  [E] float32, float64 or the logits' type, or NULL */
    const DLTensor *token_mask; /* in  [T], 0: the token is not routed; or NULL: all are */
    moetoken_router_config config;
    const DLTensor *expert_ids;      /* out [T,K] indices, or NULL: not wanted */
    const DLTensor *weights;         /* out [T,K] weights-like, or NULL */
    const DLTensor *routing_map;     /* out [T,E] map, or NULL */
    const DLTensor *probs;           /* out [T,E] weights-like, or NULL */
    const DLTensor *scores;          /* out [T,E] weights-like, or NULL */
    const DLTensor *rows_per_expert; /* out [E] int64, or NULL: the tokens of each expert */
} moetoken_router_args;

MOETOKEN_API moetoken_status moetoken_router(const moetoken_router_args *args,
                                             const moetoken_options *options);
/* As the _check functions of moetoken.h: all that can be said without the data. */
MOETOKEN_API moetoken_status moetoken_router_check(const moetoken_router_args *args,
                                                   const moetoken_options *options);

/* ---- router_grad ---------------------------------------------------------------------------- */

/* The gradient of the logits through the weights and the scores; the choice is constant and the
 * bias has no gradient. config as in the forward call; groups and topk are not used, K is
 * expert_ids'. Give expert_ids as moetoken_router wrote them: what normalize divided by is summed
 * over them. A slot that is dropped afterwards has a gradient of 0, not an id of -1. An id of -1 is
 * a slot that never was. weights_grad and probs_grad, when both are given, add up. */
typedef struct moetoken_router_grad_args {
    size_t struct_size;
    const DLTensor *logits;     /* in  [T,E] */
    const DLTensor *token_mask; /* in  [T] or NULL: as in the forward call */
    const DLTensor *expert_ids; /* in  [T,K] indices; required but for scores_grad alone */
    moetoken_router_config config;
    const DLTensor *weights_grad; /* in  [T,K] weights-like, or NULL */
    const DLTensor *probs_grad;   /* in  [T,E] weights-like, or NULL */
    const DLTensor *scores_grad;  /* in  [T,E] weights-like, or NULL; at least one of the three */
    const DLTensor *logits_grad;  /* out [T,E], type of the logits */
} moetoken_router_grad_args;

MOETOKEN_API moetoken_status moetoken_router_grad(const moetoken_router_grad_args *args,
                                                  const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_router_grad_check(const moetoken_router_grad_args *args,
                                                        const moetoken_options *options);

/* ---- losses --------------------------------------------------------------------------------- */

/* The switch load balancing loss:
 *
 *     loss = E * coeff / (topk * N^2) * sum over e of rows_per_expert[e] * S[e]
 *
 * with N = total_tokens and S[e] the sum over t of scores[t,e]. rows_per_expert may count the
 * tokens of other processes too. */
typedef struct moetoken_router_balance_loss_args {
    size_t struct_size;
    const DLTensor *scores;          /* in  [T,E] floating */
    const DLTensor *rows_per_expert; /* in  [E] int64 */
    int64_t topk;                    /* at least 1 */
    int64_t total_tokens;            /* N; 0: T. A loss over no token is 0 */
    double coeff;
    const DLTensor *loss_grad;   /* in  [1] floating: the loss's own gradient, or NULL: 1 */
    const DLTensor *loss;        /* out [1] floating, or NULL */
    const DLTensor *scores_grad; /* out [T,E], type of scores, or NULL */
} moetoken_router_balance_loss_args;

MOETOKEN_API moetoken_status moetoken_router_balance_loss(
    const moetoken_router_balance_loss_args *args, const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_router_balance_loss_check(
    const moetoken_router_balance_loss_args *args, const moetoken_options *options);

/* The z-loss: coeff * the mean over the tokens of logsumexp(logits[t,:])^2. Tokens whose mask is 0
 * are left out of the mean; a mean over no token is 0. */
typedef struct moetoken_router_z_loss_args {
    size_t struct_size;
    const DLTensor *logits;     /* in  [T,E] */
    const DLTensor *token_mask; /* in  [T] or NULL */
    double coeff;
    const DLTensor *loss_grad;   /* in  [1] floating, or NULL: 1 */
    const DLTensor *loss;        /* out [1] floating, or NULL */
    const DLTensor *logits_grad; /* out [T,E], type of the logits, or NULL */
} moetoken_router_z_loss_args;

MOETOKEN_API moetoken_status moetoken_router_z_loss(const moetoken_router_z_loss_args *args,
                                                    const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_router_z_loss_check(const moetoken_router_z_loss_args *args,
                                                          const moetoken_options *options);

/* ---- balancing by bias ---------------------------------------------------------------------- */

/* updated_bias[e] = bias[e] + rate * sign(mean count - rows_per_expert[e]), the comparison exact.
 */
typedef struct moetoken_router_update_bias_args {
    size_t struct_size;
    const DLTensor *bias;            /* in  [E] floating */
    const DLTensor *rows_per_expert; /* in  [E] int64 */
    double rate;
    const DLTensor *updated_bias; /* out [E], type of bias; may be the buffer of bias */
} moetoken_router_update_bias_args;

MOETOKEN_API moetoken_status moetoken_router_update_bias(
    const moetoken_router_update_bias_args *args, const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_router_update_bias_check(
    const moetoken_router_update_bias_args *args, const moetoken_options *options);

/* ---- dropping by weight --------------------------------------------------------------------- */

/* Each expert keeps its `capacity` heaviest slots; ties stay with the lower slot, NaN is lighter
 * than everything. A dropped slot gets the id -1 and the weight 0; a slot that is kept is copied.
 * (By slot order instead: moetoken_permute's capacity.) */
typedef struct moetoken_router_drop_args {
    size_t struct_size;
    const DLTensor *expert_ids;      /* in  [T,K] indices; -1: an unused slot */
    const DLTensor *weights;         /* in  [T,K] floating */
    int64_t experts_num;             /* E */
    int64_t capacity;                /* at least 0 */
    const DLTensor *kept_ids;        /* out [T,K], type of expert_ids, or NULL; may be its buffer */
    const DLTensor *kept_weights;    /* out [T,K], type of weights, or NULL; may be its buffer */
    const DLTensor *rows_per_expert; /* out [E] int64, or NULL: the slots kept */
} moetoken_router_drop_args;

MOETOKEN_API moetoken_status moetoken_router_drop(const moetoken_router_drop_args *args,
                                                  const moetoken_options *options);
MOETOKEN_API moetoken_status moetoken_router_drop_check(const moetoken_router_drop_args *args,
                                                        const moetoken_options *options);

#ifdef __cplusplus
}
#endif

#endif
