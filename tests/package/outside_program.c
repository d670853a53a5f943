/* outside_program.c - a program outside the tree, built against an installed libmoetoken: one
 * token, two experts, numbers that can be done in the head. Exit status 0 when they come out right.
 */
#include <moetoken/moetoken.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    float g[1][2] = {{3, 5}}, x[2][2] = {{1, 2}, {10, 20}}, probs[1][2] = {{0.5f, 2}};
    float dx[2][2], dprobs[1][2];
    int64_t out_index[2] = {1, 0}; /* expert 0's row comes second */
    uint8_t map[1][2] = {{1, 1}};
    int64_t th[] = {1, 2}, rh[] = {2, 2}, n[] = {2};

    DLTensor tg = moetoken_tensor(g, MOETOKEN_F32, 2, th);
    DLTensor tx = moetoken_tensor(x, MOETOKEN_F32, 2, rh);
    DLTensor ti = moetoken_tensor(out_index, MOETOKEN_I64, 1, n);
    DLTensor tm = moetoken_tensor(map, MOETOKEN_U8, 2, th);
    DLTensor tp = moetoken_tensor(probs, MOETOKEN_F32, 2, th);
    DLTensor tdx = moetoken_tensor(dx, MOETOKEN_F32, 2, rh);
    DLTensor tdp = moetoken_tensor(dprobs, MOETOKEN_F32, 2, th);
    moetoken_unpermute_grad_args args = {
        .unpermuted_tokens_grad = &tg,
        .out_index = &ti,
        .routing_map = &tm,
        .permuted_tokens = &tx,
        .probs = &tp,
        .permuted_tokens_grad = &tdx,
        .probs_grad = &tdp,
    };
    if (moetoken_unpermute_grad(&args, NULL) != MOETOKEN_OK) {
        fprintf(stderr, "%s\n", moetoken_last_error());
        return 1;
    }
    const float want_dx[2][2] = {{6, 10}, {1.5f, 2.5f}}, want_dprobs[1][2] = {{130, 13}};
    if (memcmp(dx, want_dx, sizeof dx) != 0 || memcmp(dprobs, want_dprobs, sizeof dprobs) != 0) {
        fprintf(stderr, "wrong numbers\n");
        return 1;
    }
    printf("libmoetoken %s: right\n", moetoken_version());
    return 0;
}
