/* scores_select.c - the router's kernels for the instruction set that a call may use. */
#include "router/scores/scores.h"

const struct moetoken_score_kernels *moetoken_scores_select(uint32_t isa_mask)
{
    switch (moetoken_isa_chosen(isa_mask)) {
#if defined(__x86_64__)
    case MOETOKEN_ISA_AVX512:
        return &moetoken_scores_avx512;
    case MOETOKEN_ISA_AVX2:
        return &moetoken_scores_avx2;
#elif defined(__aarch64__)
    case MOETOKEN_ISA_NEON:
        return &moetoken_scores_neon;
#endif
    default:
        return &moetoken_scores_scalar;
    }
}
