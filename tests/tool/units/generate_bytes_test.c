/* generate_bytes_test.c - the same seed gives the same bytes on every machine: the tensors of some
 * cases, made in memory, against checksums that are written down here. Also under qemu. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/generate_case.h"
#include "values/number_formats.h"

/* FNV-1a, 64 bits. */
static uint64_t checksum(uint64_t sum, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static size_t spec_bytes(const struct tensor_spec *spec)
{
    size_t count = 1;
    for (int d = 0; d < spec->ndim; d++)
        count *= (size_t)spec->shape[d];
    return count * type_size(spec->type);
}

static uint64_t checksum_of_case(const struct case_settings *settings)
{
    struct generated_case plan;
    char error[256];
    if (!plan_case(&plan, settings, error, sizeof error)) {
        printf("plan_case: %s\n", error);
        exit(1);
    }
    struct progress progress = {0};
    progress_begin(&progress, "generate", case_bytes(&plan));
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < plan.count; i++) {
        struct tensor_spec *spec = &plan.specs[i];
        size_t bytes = spec_bytes(spec);
        unsigned char *data = malloc(bytes + 1);
        if (data == NULL)
            exit(1);
        DLTensor tensor = moetoken_tensor(data, spec->type, spec->ndim, spec->shape);
        fill_case_tensor(&plan, i, &tensor, &progress);
        sum = checksum(sum, data, bytes);
        free(data);
    }
    progress_end(&progress);
    free_case(&plan);
    return sum;
}

static const struct {
    struct case_settings settings;
    uint64_t sum;
} cases[] = {
    {{.tokens = 37,
      .hidden = 53,
      .experts = 11,
      .topk = 3,
      .skew_64ths = 77,
      .extremes = 40,
      .seed = 1,
      .index_type = MOETOKEN_I32,
      .map_type = MOETOKEN_BOOL},
     UINT64_C(0x244d4edc50e1d137)},
    {{.tokens = 300,
      .hidden = 301,
      .experts = 60,
      .topk = 4,
      .skew_64ths = 32,
      .extremes = 100,
      .seed = UINT64_C(0xfedcba9876543210),
      .holes = true,
      .shuffle = true,
      .spare_rows = 9,
      .token_type = MOETOKEN_BF16,
      .index_type = MOETOKEN_I64,
      .map_type = MOETOKEN_I8},
     UINT64_C(0xe0cc544978e54efe)},
    {{.operator_kind = OPERATOR_UNPERMUTE,
      .tokens = 61,
      .hidden = 29,
      .experts = 7,
      .topk = 2,
      .skew_64ths = 300,
      .extremes = 20,
      .seed = 3,
      .drop_and_pad = true,
      .random_fill_slots = true,
      .token_type = MOETOKEN_F16,
      .probs_type = MOETOKEN_F16,
      .index_type = MOETOKEN_I32,
      .map_type = MOETOKEN_U8},
     UINT64_C(0x8fc4d1090679dae1)},
    {{.operator_kind = OPERATOR_PERMUTE_GRAD,
      .tokens = 40,
      .hidden = 31,
      .experts = 5,
      .topk = 2,
      .extremes = 20,
      .seed = 4,
      .token_type = MOETOKEN_F64,
      .probs_type = MOETOKEN_F64,
      .index_type = MOETOKEN_I64,
      .map_type = MOETOKEN_BOOL},
     UINT64_C(0xd941d64bbbed7129)},
};

int main(void)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t sum = checksum_of_case(&cases[i].settings);
        bool right = sum == cases[i].sum;
        printf("case %zu: 0x%016" PRIx64 "%s\n", i, sum, right ? "" : " WRONG");
        failures += !right;
    }
    return failures;
}
