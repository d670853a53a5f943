/* rounding_test.c - the arithmetic of docs/contract.md section 5 in single numbers: what one
 * product, one dot product and one forward sum must give, bit by bit, worked by hand. */
#include "support/check.h"
#include "support/tensors.h"

#include <string.h>

#define F32  MOETOKEN_F32
#define F16  MOETOKEN_F16
#define BF16 MOETOKEN_BF16
#define F64  MOETOKEN_F64

/* What a token's only slot makes of a row of equal elements: gives every place in a vector the
 * same work, so that bodies and tails are both seen. */
#define ROW 37

struct product {
    moetoken_type token, probs;
    uint64_t weight, element, wanted;
    const char *why;
};

static const struct product products[] = {
    {F32, F32, 0x3f800001, 0x3f800001, 0x3f800002, "(1+u)^2 = 1+2u+u^2, down"},
    {F32, F32, 0x3fc00000, 0x3f800001, 0x3fc00002, "1.5+1.5u: a tie, up to even"},
    {F32, F32, 0x3fc00000, 0x3f800003, 0x3fc00004, "1.5+4.5u: a tie, down to even"},
    {F32, F32, 0xbfc00000, 0x3f800003, 0xbfc00004, "the same tie, negative"},
    {F32, F32, 0x40000000, 0x7f7fffff, 0x7f800000, "twice the largest number"},
    {F32, F32, 0x40000000, 0xff7fffff, 0xff800000, "twice the lowest number"},
    {F32, F32, 0x3f000000, 0x00800000, 0x00400000, "half the smallest normal: subnormal"},
    {F32, F32, 0x3f000000, 0x00000001, 0x00000000, "half the smallest subnormal: tie to zero"},
    {F32, F32, 0x3f000000, 0x00000003, 0x00000002, "1.5 subnormal units: tie to even"},
    {F32, F32, 0x3f800000, 0x80000001, 0x80000001, "a subnormal is kept"},
    {F32, F32, 0x3f000000, 0x80000001, 0x80000000, "rounds to minus zero"},
    {F32, F32, 0xbf800000, 0x00000000, 0x80000000, "-1 * 0 = -0"},
    {F32, F32, 0x00000000, 0x7f800000, 0x7fc00000, "0 * Inf is the positive quiet NaN"},
    {F32, F32, 0x7f812345, 0x3f800000, 0x7fc00000, "a signalling weight"},
    {F32, F32, 0x3f800000, 0xffc12345, 0x7fc00000, "a NaN with sign and payload"},
    {F32, F32, 0xffc00001, 0x7fc00002, 0x7fc00000, "NaN * NaN"},
    {F32, F32, 0xff800000, 0x3f800000, 0xff800000, "-Inf * 1"},
    {F32, F32, 0x7f7fffff, 0x3f800001, 0x7f800000, "just above the largest: to Inf"},

    {F16, F16, 0x3e00, 0x3c01, 0x3e02, "1.5*(1+u): a tie, up to even"},
    {F16, F16, 0x3e00, 0x3c03, 0x3e04, "1.5*(1+3u): a tie, down to even"},
    {F16, F16, 0x5410, 0x63e0, 0x7c00, "65 * 1008 = 65520: tie, to Inf"},
    {F16, F16, 0x3c00, 0x7bff, 0x7bff, "65504 stays"},
    {F16, F16, 0x3800, 0x0001, 0x0000, "half the smallest subnormal: tie to zero"},
    {F16, F16, 0x3800, 0x0003, 0x0002, "1.5 subnormal units: tie to even"},
    {F16, F16, 0xb800, 0x0400, 0x8200, "half the smallest normal, negative"},
    {F16, F16, 0x3c00, 0x03ff, 0x03ff, "the largest subnormal is kept"},
    {F16, F16, 0x3c00, 0x7d55, 0x7e00, "a signalling NaN becomes the quiet one"},
    {F16, F16, 0xfe01, 0x3c00, 0x7e00, "a NaN weight"},
    {F16, F16, 0x7c00, 0x8000, 0x7e00, "Inf * -0"},
    {F16, F16, 0x7c00, 0xbc00, 0xfc00, "Inf * -1"},
    {F16, F32, 0x33800000, 0x3c00, 0x0001, "2^-24: a weight that f16 holds as a subnormal"},
    {F16, F32, 0x33000000, 0x3c00, 0x0000, "2^-25: a tie, to zero"},
    {F16, F32, 0x33000001, 0x3c00, 0x0001, "just above the tie"},
    {F16, F32, 0x48000000, 0x2800, 0x6c00, "2^17 * 2^-5: a weight that f16 cannot hold"},
    {F16, F32, 0x0d800000, 0x7bff, 0x0000, "2^-100: underflows to zero"},
    {F16, F32, 0x3f800ff4, 0x3c03, 0x3c04, "float32 lands on the tie, then even: not 0x3c03"},
    {F16, F32, 0x477fe000, 0x3c00, 0x7bff, "65504 as a float32 weight"},
    {F16, F32, 0x477fefff, 0x3c00, 0x7bff, "just below 65520"},
    {F16, F32, 0x477ff000, 0x3c00, 0x7c00, "65520"},

    {BF16, BF16, 0x3fc0, 0x3f81, 0x3fc2, "1.5*(1+u): a tie, up to even"},
    {BF16, BF16, 0x3fc0, 0x3f83, 0x3fc4, "1.5*(1+3u): a tie, down to even"},
    {BF16, BF16, 0x4000, 0x7f7f, 0x7f80, "twice the largest number"},
    {BF16, BF16, 0x3f80, 0x0001, 0x0001, "the smallest subnormal is kept"},
    {BF16, BF16, 0x3f80, 0x807f, 0x807f, "the largest subnormal is kept"},
    {BF16, BF16, 0x3f00, 0x0080, 0x0040, "half the smallest normal"},
    {BF16, BF16, 0x3f00, 0x0001, 0x0000, "half the smallest subnormal: tie to zero"},
    {BF16, BF16, 0x3f00, 0x0003, 0x0002, "1.5 subnormal units: tie to even"},
    {BF16, BF16, 0x0001, 0x3f80, 0x0001, "a subnormal weight is kept"},
    {BF16, BF16, 0x3f80, 0xffff, 0x7fc0, "a NaN of all ones does not wrap around"},
    {BF16, BF16, 0x3f80, 0x7f81, 0x7fc0, "a signalling NaN"},
    {BF16, BF16, 0x8000, 0xff80, 0x7fc0, "-0 * -Inf"},
    {BF16, F32, 0x3f7fffff, 0x7f7f, 0x7f7f, "just below the largest rounds back up to it"},
    {BF16, F32, 0x3f817735, 0x3f83, 0x3f84, "float32 lands on the tie, then even: not 0x3f85"},
    {BF16, F32, 0x3f808000, 0x3f80, 0x3f80, "1+u/2: a weight that bf16 cannot hold, tie to even"},
    {BF16, F32, 0x3f808001, 0x3f80, 0x3f81, "just above the tie"},
    {BF16, F32, 0x1c800100, 0x6280, 0x3f80, "2^-70*(1+2^-15) * 2^70"},
    {BF16, F32, 0x7f7fffff, 0x3f80, 0x7f80, "the largest float32 is Inf in bf16"},

    {F64, F64, 0x3ff0000000000001, 0x3ff0000000000001, 0x3ff0000000000002, "(1+u)^2"},
    {F64, F64, 0x3ff8000000000000, 0x3ff0000000000001, 0x3ff8000000000002, "a tie, up to even"},
    {F64, F64, 0x3fe0000000000000, 0x0000000000000003, 0x0000000000000002, "a subnormal tie"},
    {F64, F64, 0x4000000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, "overflow"},
    {F64, F64, 0x3ff0000000000000, 0xfff0000000000001, 0x7ff8000000000000, "a signalling NaN"},
    {F64, F64, 0x4630000000000000, 0x4630000000000000, 0x4c70000000000000, "2^100 squared"},
};

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};

static bool next_isa(size_t *i, moetoken_options *options)
{
    while (*i < 4 && !(all_isas[*i] & moetoken_isa_detected())) {
        ++*i;
    }
    if (*i == 4) {
        return false;
    }
    *options = (moetoken_options){.isa_mask = all_isas[(*i)++]};
    return true;
}

static void check_ok(moetoken_status status)
{
    check(status == MOETOKEN_OK, "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

static void fill_bits(const DLTensor *tensor, uint64_t bits)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            tensor_set_bits(tensor, i, j, bits);
        }
    }
}

/* One token, one expert, one slot: a gradient call with nothing but numbers in it. */
struct single {
    struct test_tensor grad, rows, probs, map, index, rows_grad, probs_grad;
};

static void single_make(struct single *single, moetoken_type token, moetoken_type probs,
                        int64_t hidden)
{
    tensor_make(&single->grad, token, 2, 1, hidden, NULL);
    tensor_make(&single->rows, token, 2, 1, hidden, NULL);
    tensor_make(&single->probs, probs, 2, 1, 1, NULL);
    tensor_make(&single->map, MOETOKEN_BOOL, 2, 1, 1, NULL);
    tensor_make(&single->index, MOETOKEN_I32, 1, 1, 1, NULL);
    tensor_make(&single->rows_grad, token, 2, 1, hidden, NULL);
    tensor_make(&single->probs_grad, probs, 2, 1, 1, NULL);
    fill_bits(&single->grad.dl, 0);
    fill_bits(&single->rows.dl, 0);
    fill_bits(&single->index.dl, 0);
    fill_bits(&single->map.dl, 1);
    tensor_set(&single->probs.dl, 0, 0, 1);
    tensor_fill_poison(&single->rows_grad.dl);
    tensor_fill_poison(&single->probs_grad.dl);
}

static void single_free(struct single *single)
{
    struct test_tensor *tensors = &single->grad;
    for (size_t i = 0; i < sizeof *single / sizeof *tensors; i++) {
        tensor_free(&tensors[i]);
    }
}

static void single_run(struct single *single, const moetoken_options *options)
{
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &single->grad.dl,
                                         .out_index = &single->index.dl,
                                         .routing_map = &single->map.dl,
                                         .permuted_tokens = &single->rows.dl,
                                         .probs = &single->probs.dl,
                                         .permuted_tokens_grad = &single->rows_grad.dl,
                                         .probs_grad = &single->probs_grad.dl};
    check_ok(moetoken_unpermute_grad(&args, options));
}

static void products_round_once(void **state)
{
    moetoken_options options;
    (void)state;
    for (size_t isa = 0; next_isa(&isa, &options);) {
        for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
            const struct product *p = &products[i];
            struct single single;
            single_make(&single, p->token, p->probs, ROW);
            fill_bits(&single.grad.dl, p->element);
            tensor_set_bits(&single.probs.dl, 0, 0, p->weight);
            single_run(&single, &options);
            for (int64_t h = 0; h < ROW; h++) {
                uint64_t bits = tensor_get_bits(&single.rows_grad.dl, 0, h);
                check(bits == p->wanted,
                      "%s: %s 0x%llx * 0x%llx [%lld] = 0x%llx, expected 0x%llx: %s",
                      moetoken_isa_name(options.isa_mask), number_type_name(p->token),
                      (unsigned long long)p->weight, (unsigned long long)p->element, (long long)h,
                      (unsigned long long)bits, (unsigned long long)p->wanted, p->why);
            }
            single_free(&single);
        }
    }
}

/* Up to four products at chosen places of the row, zeros elsewhere. */
struct dot {
    moetoken_type token, probs;
    int count;
    int64_t place[4];
    uint64_t x[4], g[4];
    uint64_t wanted;
    const char *why;
};

static const struct dot dots[] = {
    {BF16,
     BF16,
     3,
     {0, 1, 2},
     {0x3f80, 0x3b80, 0x2b80},
     {0x3f80, 0x3f80, 0x3f80},
     0x3f81,
     "1 + 2^-8 + 2^-40 straight to bf16; through float32 it would be 0x3f80"},
    {BF16,
     BF16,
     3,
     {0, 1, 2},
     {0xbf80, 0xbb80, 0x2b80},
     {0x3f80, 0x3f80, 0x3f80},
     0xbf80,
     "-1 - 2^-8 + 2^-40"},
    {BF16,
     BF16,
     3,
     {3, 4, 5},
     {0x3f81, 0x3b80, 0xab80},
     {0x3f80, 0x3f80, 0x3f80},
     0x3f81,
     "1 + 2^-7 + 2^-8 - 2^-40; through float32 it would be 0x3f82"},
    {F16,
     F16,
     3,
     {0, 1, 2},
     {0x3c00, 0x1000, 0x0001},
     {0x3c00, 0x3c00, 0x1400},
     0x3c01,
     "1 + 2^-11 + 2^-34 straight to f16; through float32 it would be 0x3c00"},
    {F16,
     F16,
     3,
     {0, 1, 2},
     {0x3c01, 0x1000, 0x8001},
     {0x3c00, 0x3c00, 0x1400},
     0x3c01,
     "1 + 2^-10 + 2^-11 - 2^-34; through float32 it would be 0x3c02"},
    {F16,
     F16,
     2,
     {0, 1},
     {0x0001, 0x0001},
     {0x3800, 0x0001},
     0x0001,
     "2^-25 + 2^-48: above the tie between 0 and the smallest subnormal"},
    {F16, F16, 2, {0, 1}, {0x5410, 0x8001}, {0x63e0, 0x1400}, 0x7bff, "65520 - 2^-34: not Inf"},
    {F16, F16, 1, {0}, {0x5410}, {0x63e0}, 0x7c00, "65520: Inf"},
    {BF16,
     F32,
     3,
     {0, 1, 2},
     {0x3f80, 0x3380, 0x2680},
     {0x3f80, 0x3f80, 0x3f80},
     0x3f800001,
     "1 + 2^-24 + 2^-50 straight to float32"},
    {F32,
     F32,
     3,
     {0, 33, 2},
     {0x3f800000, 0x33800000, 0x26800000},
     {0x3f800000, 0x3f800000, 0x3f800000},
     0x3f800001,
     "1 + 2^-24 + 2^-50"},
    {F32, F32, 1, {36}, {0x3f800001}, {0x3f800001}, 0x3f800002, "(1+u)^2 is exact, then rounded"},
    {F32, F32, 1, {0}, {0x00000001}, {0x3f800000}, 0x00000001, "a subnormal is kept"},
    {F32,
     F32,
     2,
     {0, 1},
     {0x00000001, 0x00000001},
     {0x3f000000, 0x3f000000},
     0x00000001,
     "half plus half a subnormal"},
    {F32,
     F32,
     3,
     {0, 32, 1},
     {0x71800000, 0xf1800000, 0x40400000},
     {0x71800000, 0x71800000, 0x3f800000},
     0x40400000,
     "2^200 - 2^200 + 3: no overflow between"},
    {BF16,
     BF16,
     3,
     {1, 33, 0},
     {0x7180, 0xf180, 0x4040},
     {0x7180, 0x7180, 0x3f80},
     0x4040,
     "the same in bf16"},
    {F32, F32, 1, {0}, {0x7f7fffff}, {0x40000000}, 0x7f800000, "overflow at the end"},
    {F32,
     F32,
     2,
     {0, 1},
     {0x7f800000, 0x7f800000},
     {0x3f800000, 0xbf800000},
     0x7fc00000,
     "Inf - Inf is the positive quiet NaN"},
    {F32, F32, 1, {35}, {0xffc12345}, {0x3f800000}, 0x7fc00000, "a NaN is made canonical"},
    {F16, F16, 1, {35}, {0xfd12}, {0x3c00}, 0x7e00, "a NaN is made canonical"},
    {BF16, BF16, 1, {35}, {0xffff}, {0x3f80}, 0x7fc0, "a NaN is made canonical"},
    {BF16, F32, 1, {35}, {0xffff}, {0x3f80}, 0x7fc00000, "a NaN is made canonical"},
    {F64, F64, 1, {35}, {0xfff0000000000001}, {0}, 0x7ff8000000000000, "a NaN is made canonical"},
    {F32, F32, 1, {3}, {0x7f800000}, {0x00000000}, 0x7fc00000, "Inf * 0"},
    {F32, F32, 1, {0}, {0xbf800000}, {0x00000000}, 0x00000000, "0 + -0 = 0"},
    {F64,
     F64,
     2,
     {0, 32},
     {0x3ff0000000000001, 0xbff0000000000002},
     {0x3ff0000000000001, 0x3ff0000000000000},
     0x0000000000000000,
     "(1+u)^2 rounded to 1+2u, less 1+2u: no fused multiply-add"},
};

static void dots_round_once(void **state)
{
    moetoken_options options;
    (void)state;
    for (size_t isa = 0; next_isa(&isa, &options);) {
        for (size_t i = 0; i < sizeof dots / sizeof dots[0]; i++) {
            const struct dot *d = &dots[i];
            struct single single;
            single_make(&single, d->token, d->probs, ROW);
            for (int j = 0; j < d->count; j++) {
                tensor_set_bits(&single.rows.dl, 0, d->place[j], d->x[j]);
                tensor_set_bits(&single.grad.dl, 0, d->place[j], d->g[j]);
            }
            single_run(&single, &options);
            uint64_t bits = tensor_get_bits(&single.probs_grad.dl, 0, 0);
            check(bits == d->wanted, "%s: dot %zu (%s) = 0x%llx, expected 0x%llx: %s",
                  moetoken_isa_name(options.isa_mask), i, number_type_name(d->token),
                  (unsigned long long)bits, (unsigned long long)d->wanted, d->why);
            single_free(&single);
        }
    }
}

/* Without probs the gradient is a copy of bits: NaN payloads, signalling NaN, minus zero. */
static void without_probs_bits_are_copied(void **state)
{
    static const uint64_t patterns[][4] = {
        [F32] = {0x7f800001, 0xffc12345, 0x80000000, 0x00000001},
        [F16] = {0x7c01, 0xfe55, 0x8000, 0x0001},
        [BF16] = {0x7f81, 0xffff, 0x8000, 0x0001},
        [F64] = {0x7ff0000000000001, 0xffffffffffffffff, 0x8000000000000000, 1},
    };
    moetoken_options options;
    (void)state;
    for (size_t isa = 0; next_isa(&isa, &options);) {
        for (moetoken_type type = F32; type <= F64; type++) {
            struct single single;
            single_make(&single, type, type, ROW);
            for (int64_t h = 0; h < ROW; h++) {
                tensor_set_bits(&single.grad.dl, 0, h, patterns[type][h % 4]);
            }
            moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &single.grad.dl,
                                                 .out_index = &single.index.dl,
                                                 .permuted_tokens_grad = &single.rows_grad.dl};
            check_ok(moetoken_unpermute_grad(&args, &options));
            check(tensor_difference(&single.rows_grad.dl, &single.grad.dl) == -1, "%s copy differs",
                  number_type_name(type));
            single_free(&single);
        }
    }
}

/* ---- forward sums --------------------------------------------------------------------------- */

/* One token with up to three slots, float32, rows of equal elements. */
struct sum {
    int count;
    uint32_t weight[3], element[3], wanted;
    const char *why;
};

static const struct sum sums[] = {
    {2,
     {0xbf800000, 0x3f800800},
     {0x3f801000, 0x3f800800},
     0x00000000,
     "-(1+2^-11), then (1+2^-12)^2 rounded to 1+2^-11: no fused multiply-add"},
    {3,
     {0x3f800000, 0x3f800000, 0x3f800000},
     {0x4cbebc20, 0x3f800000, 0xccbebc20},
     0x00000000,
     "1e8 + 1 - 1e8 in slot order"},
    {3,
     {0x3f800000, 0x3f800000, 0x3f800000},
     {0x4cbebc20, 0xccbebc20, 0x3f800000},
     0x3f800000,
     "1e8 - 1e8 + 1 in slot order"},
    {2, {0x00000000, 0x3f800000}, {0x7f800000, 0x40000000}, 0x40000000, "weight 0: Inf stays out"},
    {2, {0x80000000, 0x3f800000}, {0x7fc00000, 0x40000000}, 0x40000000, "weight -0: NaN stays out"},
    {1, {0x00000000}, {0xffc00001}, 0x00000000, "nothing but a slot of weight 0"},
    {2, {0x3f800000, 0x3f800000}, {0x7f800000, 0xff800000}, 0x7fc00000, "Inf - Inf"},
    {1, {0x3f800000}, {0xffc12345}, 0x7fc00000, "a NaN that is passed on is canonical"},
    {1, {0x7fc00001}, {0x3f800000}, 0x7fc00000, "a NaN weight is not 0"},
    {1, {0x3f800000}, {0x80000000}, 0x00000000, "0 + -0 = 0"},
    {2,
     {0x3f000000, 0x3f000000},
     {0x00000001, 0x00000003},
     0x00000002,
     "0.5 -> 0 and 1.5 -> 2 subnormal units: each product is rounded"},
    {2, {0x40000000, 0x3f800000}, {0x7f7fffff, 0xff7fffff}, 0x7f800000, "overflow stays Inf"},
};

static void run_sum(const struct sum *sum, const moetoken_options *options)
{
    struct test_tensor rows, probs, map, index, out;
    tensor_make(&rows, F32, 2, 3, ROW, NULL);
    tensor_make(&probs, F32, 2, 1, 3, NULL);
    tensor_make(&map, MOETOKEN_U8, 2, 1, 3, NULL);
    tensor_make(&index, MOETOKEN_I64, 1, 3, 1, NULL);
    tensor_make(&out, F32, 2, 1, ROW, NULL);
    tensor_fill_poison(&out.dl);
    for (int64_t i = 0; i < 3; i++) {
        tensor_set_bits(&map.dl, 0, i, i < sum->count);
        tensor_set_bits(&index.dl, i, 0, i < sum->count ? (uint64_t)(2 - i) : UINT64_MAX);
        tensor_set_bits(&probs.dl, 0, i, sum->weight[i]);
        for (int64_t h = 0; h < ROW; h++) {
            tensor_set_bits(&rows.dl, 2 - i, h, sum->element[i]);
        }
    }
    moetoken_unpermute_args args = {.permuted_tokens = &rows.dl,
                                    .sorted_indices = &index.dl,
                                    .routing_map = &map.dl,
                                    .probs = &probs.dl,
                                    .unpermuted_tokens = &out.dl};
    check_ok(moetoken_unpermute(&args, options));
    for (int64_t h = 0; h < ROW; h++) {
        uint64_t bits = tensor_get_bits(&out.dl, 0, h);
        check(bits == sum->wanted, "%s: [%lld] = 0x%llx, expected 0x%lx: %s",
              moetoken_isa_name(options->isa_mask), (long long)h, (unsigned long long)bits,
              (unsigned long)sum->wanted, sum->why);
    }
    struct test_tensor *tensors[] = {&rows, &probs, &map, &index, &out};
    for (size_t i = 0; i < 5; i++) {
        tensor_free(tensors[i]);
    }
}

static void sums_go_slot_by_slot_in_float32(void **state)
{
    moetoken_options options;
    (void)state;
    for (size_t isa = 0; next_isa(&isa, &options);) {
        for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
            run_sum(&sums[i], &options);
        }
    }
}

/* In the gradient a weight of 0 hides nothing: 0 * Inf is NaN, and the dot product is there. */
static void a_zero_weight_is_differentiated_like_any_other(void **state)
{
    struct single single;
    (void)state;
    single_make(&single, F32, F32, 4);
    fill_bits(&single.grad.dl, 0x3f800000);
    tensor_set_bits(&single.grad.dl, 0, 2, 0x7f800000);
    fill_bits(&single.rows.dl, 0x40000000);
    tensor_set(&single.probs.dl, 0, 0, 0);
    single_run(&single, NULL);
    assert_int_equal(tensor_get_bits(&single.rows_grad.dl, 0, 0), 0);
    assert_int_equal(tensor_get_bits(&single.rows_grad.dl, 0, 2), 0x7fc00000);
    assert_int_equal(tensor_get_bits(&single.probs_grad.dl, 0, 0), 0x7f800000);
    single_free(&single);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_round_once),
        cmocka_unit_test(dots_round_once),
        cmocka_unit_test(without_probs_bits_are_copied),
        cmocka_unit_test(sums_go_slot_by_slot_in_float32),
        cmocka_unit_test(a_zero_weight_is_differentiated_like_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
