/* large_test.c - tensors whose row * H passes 2^31 and 2^32 elements, in sparse mappings that take
 * little memory: rows far apart, and a contiguous tensor of which few rows are named. */
#include "oracle/oracle.h"
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <string.h>
#include <sys/mman.h>

/* Address space that costs memory only where it is written. NULL where there is not enough. */
static void *sparse(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
#ifdef MADV_NOHUGEPAGE
    madvise(memory, bytes, MADV_NOHUGEPAGE);
#endif
    return memory;
}

/* A copy of a tensor with its rows `stride` elements apart. */
struct far_tensor {
    DLTensor dl;
    int64_t strides[2];
    size_t bytes;
};

static bool far_make(struct far_tensor *far, const DLTensor *near, int64_t stride)
{
    far->dl = *near;
    far->dl.byte_offset = 0;
    far->strides[0] = stride;
    far->strides[1] = 1;
    far->dl.strides = far->strides;
    int64_t span = (near->shape[0] - 1) * stride + tensor_columns(near);
    far->bytes = (size_t)span * (near->dtype.bits / 8);
    far->dl.data = sparse(far->bytes);
    for (int64_t i = 0; far->dl.data != NULL && i < near->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(near); j++) {
            tensor_set_bits(&far->dl, i, j, tensor_get_bits(near, i, j));
        }
    }
    return far->dl.data != NULL;
}

/* Every tensor of a call far apart, 2^31 and 2^32 elements and more between rows. */
static void rows_far_apart(void **state)
{
    static const int64_t strides[] = {(INT64_C(1) << 31) + 11, (INT64_C(1) << 32) + 3};
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        struct grad_case grad;
        struct far_tensor far[8];
        struct grad_spec spec = grad_spec_default(mode != 2);
        spec.token_type = mode == 1 ? MOETOKEN_BF16 : MOETOKEN_F32;
        spec.probs_type = spec.token_type;
        spec.routing.tokens = 2; /* few: emulators take their time over each page of the span */
        spec.routing.experts = 2;
        spec.routing.slots = 1;
        spec.routing.hole_percent = 0;
        grad_case_make(&grad, &spec);
        const DLTensor **arguments[] = {&grad.args.unpermuted_tokens_grad, &grad.args.out_index,
                                        &grad.args.permute_token_id,       &grad.args.routing_map,
                                        &grad.args.permuted_tokens,        &grad.args.probs,
                                        &grad.args.permuted_tokens_grad,   &grad.args.probs_grad};
        bool enough = true;
        int made = 0;
        for (; made < 8 && enough; made++) {
            enough = far_make(&far[made], *arguments[made], strides[mode % 2]);
            *arguments[made] = &far[made].dl;
        }
        if (enough) {
            char line[300];
            struct oracle *oracle = oracle_unpermute_grad(&grad.args, 0);
            moetoken_status status = moetoken_unpermute_grad(&grad.args, NULL);
            check(status == MOETOKEN_OK, "%s", moetoken_last_error());
            oracle_difference(oracle, line, sizeof line);
            check(line[0] == '\0', "%s", line);
            oracle_free(oracle);
        }
        for (int i = 0; i < made; i++) {
            if (far[i].dl.data != NULL) {
                munmap(far[i].dl.data, far[i].bytes);
            }
        }
        grad_case_free(&grad);
        if (!enough) {
            skip(); /* the machine gives no such address space */
        }
    }
}

static struct oracle *family_oracle(const struct family_case *family)
{
    switch (family->spec.verb) {
    case FAMILY_UNPERMUTE:
        return oracle_unpermute(&family->unpermute, 0);
    case FAMILY_PERMUTE:
        return oracle_permute(&family->permute);
    default:
        return oracle_permute_grad(&family->permute_grad, 0);
    }
}

static bool move_far_apart(struct family_case *family, struct far_tensor far[7], int *made)
{
    moetoken_unpermute_args *u = &family->unpermute;
    moetoken_permute_args *p = &family->permute;
    moetoken_permute_grad_args *g = &family->permute_grad;
    const DLTensor **all[3][7] = {
        {&u->permuted_tokens, &u->sorted_indices, &u->routing_map, &u->probs, &u->unpermuted_tokens,
         &u->out_index, &u->permuted_probs},
        {&p->tokens, &p->routing_map, &p->probs, &p->permuted_tokens, &p->permuted_probs,
         &p->sorted_indices, NULL},
        {&g->permuted_tokens_grad, &g->permuted_probs_grad, &g->sorted_indices, &g->routing_map,
         &g->tokens_grad, &g->probs_grad, NULL}};
    for (*made = 0; *made < 7 && all[family->spec.verb][*made] != NULL; ++*made) {
        const DLTensor **argument = all[family->spec.verb][*made];
        if (!far_make(&far[*made], *argument, (INT64_C(1) << 31) + 11)) {
            return false;
        }
        *argument = &far[*made].dl;
    }
    return true;
}

static void the_family_with_rows_far_apart(void **state)
{
    (void)state;
    for (int verb = 0; verb < 3; verb++) {
        struct family_case family;
        struct far_tensor far[7];
        int made;
        struct family_spec spec = family_spec_default((enum family_verb)verb, verb == 0);
        spec.routing.tokens = 2;
        spec.routing.experts = 2;
        spec.routing.slots = 1;
        spec.routing.hole_percent = 0;
        family_case_make(&family, &spec);
        bool enough = move_far_apart(&family, far, &made);
        if (enough) {
            char line[300];
            struct oracle *oracle = family_oracle(&family);
            moetoken_status status = family_case_call(&family, NULL);
            check(status == MOETOKEN_OK, "%s", moetoken_last_error());
            oracle_difference(oracle, line, sizeof line);
            check(line[0] == '\0', "%s", line);
            oracle_free(oracle);
        }
        for (int i = 0; i < made; i++) {
            munmap(far[i].dl.data, far[i].bytes);
        }
        family_case_free(&family);
        if (!enough) {
            skip();
        }
    }
}

/* ---- contiguous ----------------------------------------------------------------------------- */

#define HIDDEN 32771
#define ROWS   66000 /* ROWS * HIDDEN is above 2^31, its bytes above 2^33 */
#define NAMED  5

static const int64_t named_rows[NAMED] = {65999, 0, 65535, 32768, 65540};

static void name_rows(DLTensor *index, DLTensor *rows, const int64_t *slots)
{
    for (int64_t i = 0; i < ROWS; i++) {
        ((int32_t *)index->data)[i] = -1;
    }
    for (int64_t n = 0; n < NAMED; n++) {
        ((int32_t *)index->data)[slots[n]] = (int32_t)named_rows[n];
        tensor_set(rows, named_rows[n], 0, 1.0 + (double)n);
        tensor_set(rows, named_rows[n], HIDDEN - 1, 100.0 * (double)n);
    }
}

/* Only probs_grad is asked for: of the 8 GiB of permuted_tokens five rows are read. */
static void the_gradient_of_probs_reads_named_rows_only(void **state)
{
    /* T = 22000 tokens, K = 3: slot s belongs to token s / 3 */
    static const int64_t slots[NAMED] = {65997, 3, 40000, 20001, 65999};
    int64_t th[] = {ROWS / 3, HIDDEN}, te[] = {ROWS / 3, 3}, rh[] = {ROWS, HIDDEN}, n[] = {ROWS};
    size_t g_bytes = (size_t)ROWS / 3 * HIDDEN * 4, x_bytes = (size_t)ROWS * HIDDEN * 4;
    static int32_t index[ROWS];
    static unsigned char map[ROWS];
    static float probs[ROWS], probs_grad[ROWS];
    (void)state;
    DLTensor g = moetoken_tensor(sparse(g_bytes), MOETOKEN_F32, 2, th);
    DLTensor x = moetoken_tensor(sparse(x_bytes), MOETOKEN_F32, 2, rh);
    if (g.data == NULL || x.data == NULL) {
        skip();
    }
    DLTensor ti = moetoken_tensor(index, MOETOKEN_I32, 1, n);
    DLTensor tm = moetoken_tensor(map, MOETOKEN_U8, 2, te);
    DLTensor tp = moetoken_tensor(probs, MOETOKEN_F32, 2, te);
    DLTensor td = moetoken_tensor(probs_grad, MOETOKEN_F32, 2, te);
    name_rows(&ti, &x, slots);
    memset(map, 1, sizeof map);
    for (int64_t i = 0; i < NAMED; i++) {
        tensor_set(&g, slots[i] / 3, 0, 2);
        tensor_set(&g, slots[i] / 3, HIDDEN - 1, 0.5);
    }
    memset(probs_grad, 0xff, sizeof probs_grad);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &g,
                                         .out_index = &ti,
                                         .routing_map = &tm,
                                         .permuted_tokens = &x,
                                         .probs = &tp,
                                         .probs_grad = &td};
    moetoken_status status = moetoken_unpermute_grad(&args, NULL);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int64_t i = 0; i < ROWS; i++) {
        double wanted = 0;
        for (int64_t j = 0; j < NAMED; j++) {
            wanted = slots[j] == i ? 2 * (1.0 + (double)j) + 50.0 * (double)j : wanted;
        }
        check(probs_grad[i] == (float)wanted, "probs_grad entry %lld is %g, expected %g",
              (long long)i, (double)probs_grad[i], wanted);
    }
    munmap(g.data, g_bytes);
    munmap(x.data, x_bytes);
}

/* The forward sum of two tokens with 33000 slots each, five of which are used. */
static void the_forward_sum_reads_named_rows_only(void **state)
{
    static const int64_t slots[NAMED] = {32999, 17, 33000, 65999, 50000}; /* t0 t0 t1 t1 t1 */
    int64_t th[] = {2, HIDDEN}, rh[] = {ROWS, HIDDEN}, n[] = {ROWS};
    size_t x_bytes = (size_t)ROWS * HIDDEN * 4;
    static int32_t index[ROWS];
    static float out[2][HIDDEN];
    (void)state;
    DLTensor x = moetoken_tensor(sparse(x_bytes), MOETOKEN_F32, 2, rh);
    if (x.data == NULL) {
        skip();
    }
    DLTensor ti = moetoken_tensor(index, MOETOKEN_I32, 1, n);
    DLTensor to = moetoken_tensor(out, MOETOKEN_F32, 2, th);
    name_rows(&ti, &x, slots);
    memset(out, 0xff, sizeof out);
    moetoken_unpermute_args args = {
        .permuted_tokens = &x, .sorted_indices = &ti, .unpermuted_tokens = &to};
    moetoken_status status = moetoken_unpermute(&args, NULL);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    check(out[0][0] == 1 + 2 && out[1][0] == 3 + 4 + 5, "first column %g %g", (double)out[0][0],
          (double)out[1][0]);
    check(out[0][HIDDEN - 1] == 100 && out[1][HIDDEN - 1] == 900, "last column %g %g",
          (double)out[0][HIDDEN - 1], (double)out[1][HIDDEN - 1]);
    check(out[0][1] == 0 && out[1][HIDDEN - 2] == 0, "zeros between");
    munmap(x.data, x_bytes);
}

int main(void)
{
    random_start("large_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_far_apart),
        cmocka_unit_test(the_family_with_rows_far_apart),
        cmocka_unit_test(the_gradient_of_probs_reads_named_rows_only),
        cmocka_unit_test(the_forward_sum_reads_named_rows_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
