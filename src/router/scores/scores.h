/* scores.h - the kernel table of the router: what runs over all logits of a token.
 *
 * scores_body.h is the one source of all variants; compilers turn its loops into vector code, which
 * changes no bit as nothing in it is reordered or fused. */
#ifndef MOETOKEN_ROUTER_SCORES_H
#define MOETOKEN_ROUTER_SCORES_H

#include <moetoken/moetoken.h>

#include <stdbool.h>

struct moetoken_score_kernels {
    /* count elements of a moetoken_type, stride bytes apart, as binary64. */
    void (*load)(moetoken_type type, const char *from, int64_t stride, int64_t count, double *to);
    /* And back, rounded once. */
    void (*store)(moetoken_type type, const double *from, int64_t count, char *to, int64_t stride);
    /* scores = softmax(logits); *log_sum, unless NULL, = log(sum of exp(logits)). */
    void (*softmax)(const double *logits, int64_t count, double *scores, double *log_sum);
    /* The same before it is divided: scores = exp(logits - their maximum); returns their sum. */
    double (*exps)(const double *logits, int64_t count, double *scores);
    /* values = values / divisor * scale */
    void (*divide)(double *values, int64_t count, double divisor, double scale);
    /* values = values * factor */
    void (*scale)(double *values, int64_t count, double factor);
    /* scores = 1 / (1 + exp(-logits)); rests, unless NULL, = 1 - scores without cancellation. */
    void (*sigmoid)(const double *logits, int64_t count, double *scores, double *rests);
    /* scores = sqrt(log(1 + exp(logits))) */
    void (*sqrtsoftplus)(const double *logits, int64_t count, double *scores);
    /* grads = scores * (grads - sum of scores * grads): softmax's gradient, in place. */
    void (*softmax_grad)(const double *scores, int64_t count, double *grads);
    /* Quick ways of what choice.c computes, or NULL: the best topk of the values, each divided by
     * divisor; and the sum of the best two. false, NaN: this one does not know. */
    bool (*best)(const double *values, int64_t count, double divisor, int64_t topk,
                 int64_t *chosen);
    double (*best_two)(const double *values, int64_t count);
};

extern const struct moetoken_score_kernels moetoken_scores_scalar;
extern const struct moetoken_score_kernels moetoken_scores_avx2;
extern const struct moetoken_score_kernels moetoken_scores_avx512;
extern const struct moetoken_score_kernels moetoken_scores_neon;

/* The kernels that run under an isa_mask (0: all). */
const struct moetoken_score_kernels *moetoken_scores_select(uint32_t isa_mask);

#endif
