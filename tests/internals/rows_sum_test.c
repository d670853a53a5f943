/* rows_sum_test.c - sums of more rows than a kernel takes at once: against an oracle of its own,
 * byte for byte, for every instruction set; and through the operators that add rows. */
#include "rows/rows_sum.h"
#include "support/buffers.h"
#include "support/check.h"
#include "support/family_case.h"
#include "support/numbers.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};
static const moetoken_type all_types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};

/* Rows of a matrix, every second list from a second matrix of another element stride. */
struct sum_case {
    int64_t length, count;
    int64_t stride[2]; /* elements, by matrix */
    int64_t list_most; /* rows that a list gets */
    size_t misalignment;
    bool streaming, weighted;
    moetoken_type type;
};

struct sum_memory {
    struct buffer in[2], out;
    double *weight;
    struct sum_case shape;
};

static int matrix_of(const struct sum_case *shape, int64_t row)
{
    return (int)(row / shape->list_most % 2);
}

static const char *row_at(const struct sum_memory *memory, int64_t row)
{
    int matrix = matrix_of(&memory->shape, row);
    int64_t elements = memory->shape.length * memory->shape.stride[matrix];
    return memory->in[matrix].data + row * elements * (int64_t)number_size(memory->shape.type);
}

static void fill(struct buffer *buffer, moetoken_type type)
{
    for (size_t at = 0; at < buffer->bytes; at += number_size(type)) {
        bool special = random_chance(2);
        number_store_bits(buffer->data + at, type,
                          special ? random_special(type) : random_number(type));
    }
}

static void memory_make(struct sum_memory *memory, const struct sum_case *shape)
{
    size_t size = number_size(shape->type);
    *memory = (struct sum_memory){.shape = *shape};
    for (int matrix = 0; matrix < 2; matrix++) {
        buffer_make(&memory->in[matrix],
                    (size_t)(shape->count * shape->length * shape->stride[matrix]) * size,
                    BUFFER_GUARD_BYTES, shape->misalignment);
        fill(&memory->in[matrix], shape->type);
    }
    buffer_make(&memory->out, (size_t)shape->length * size, BUFFER_GUARD_BYTES,
                shape->misalignment);
    memory->weight = calloc((size_t)shape->count + 1, sizeof *memory->weight);
    moetoken_type type = shape->type == MOETOKEN_F64 ? MOETOKEN_F64 : MOETOKEN_F32;
    for (int64_t row = 0; row < shape->count; row++) {
        memory->weight[row] = shape->weighted ? number_decode(random_number(type), type) : 1;
    }
}

static void memory_free(struct sum_memory *memory)
{
    buffer_free(&memory->in[0]);
    buffer_free(&memory->in[1]);
    buffer_free(&memory->out);
    free(memory->weight);
}

static bool list_rows(const void *context, int64_t *position, struct moetoken_addends *addends)
{
    const struct sum_memory *memory = context;
    const struct sum_case *shape = &memory->shape;
    int matrix = matrix_of(shape, *position);
    check(addends->count == 0, "the list has %lld rows, expected 0", (long long)addends->count);
    addends->stride = shape->stride[matrix] * (int64_t)number_size(shape->type);
    while (*position < shape->count && matrix_of(shape, *position) == matrix) {
        moetoken_addends_add(addends, row_at(memory, *position), memory->weight[*position]);
        ++*position;
    }
    return *position < shape->count;
}

static uint64_t expected_sum(const struct sum_memory *memory, int64_t h)
{
    const struct sum_case *shape = &memory->shape;
    moetoken_type type = shape->type == MOETOKEN_F64 ? MOETOKEN_F64 : MOETOKEN_F32;
    double sum = 0;
    for (int64_t row = 0; row < shape->count; row++) {
        int64_t at = h * shape->stride[matrix_of(shape, row)] * (int64_t)number_size(shape->type);
        double x = number_load(row_at(memory, row) + at, shape->type);
        double product = number_round(memory->weight[row] * x, type);
        sum = number_round(sum + product, type);
    }
    return number_encode(sum, shape->type);
}

static void run(const struct sum_case *shape)
{
    const int64_t size = (int64_t)number_size(shape->type);
    struct sum_memory memory;
    memory_make(&memory, shape);
    for (size_t i = 0; i < 4; i++) {
        struct moetoken_row_kernels kernels;
        bool unit = shape->stride[0] == 1 && shape->stride[1] == 1;
        if ((all_isas[i] & moetoken_isa_detected()) == 0 ||
            (!unit && all_isas[i] != MOETOKEN_ISA_SCALAR)) {
            continue;
        }
        moetoken_row_kernels_select(all_isas[i], &kernels);
        struct moetoken_rows rows = {.length = shape->length,
                                     .token_out = memory.out.data,
                                     .token_stride = size,
                                     .in = memory.in[0].data,
                                     .in_row_stride = shape->length * size,
                                     .in_stride = size,
                                     .streaming = shape->streaming};
        memset(memory.out.data, 0x5a, memory.out.bytes);
        moetoken_rows_sum(kernels.sum[shape->type], (int)shape->type, &rows, list_rows, &memory);
        kernels.fence();
        check(buffer_guards_hold(&memory.out), "%s wrote outside of its row",
              moetoken_isa_name(all_isas[i]));
        for (int64_t h = 0; h < shape->length; h++) {
            uint64_t actual = number_load_bits(memory.out.data + h * size, shape->type);
            uint64_t wanted = expected_sum(&memory, h);
            check(actual == wanted,
                  "%s %s: element %lld of a sum of %lld rows of %lld is 0x%llx, expected 0x%llx",
                  moetoken_isa_name(all_isas[i]), number_type_name(shape->type), (long long)h,
                  (long long)shape->count, (long long)shape->length, (unsigned long long)actual,
                  (unsigned long long)wanted);
        }
    }
    memory_free(&memory);
}

static struct sum_case shape_of(moetoken_type type, int64_t length, int64_t count)
{
    return (struct sum_case){.type = type,
                             .length = length,
                             .count = count,
                             .stride = {1, 1},
                             .list_most = MOETOKEN_ROWS_PER_SUM,
                             .misalignment = (size_t)random_below(64),
                             .streaming = random_chance(50),
                             .weighted = random_chance(70)};
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void counts_around_what_a_kernel_takes(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 192, 300, 777};
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (int64_t length = 0; length < 80; length += 1 + random_below(5)) {
                struct sum_case shape = shape_of(all_types[t], length, counts[c]);
                run(&shape);
            }
        }
    }
}

/* The columns that are summed at a time have 512 elements, of float64 256. */
static void lengths_around_a_column(void **state)
{
    static const int64_t lengths[] = {255, 256, 257, 511, 512, 513, 544, 767, 1024, 1061};
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            struct sum_case shape = shape_of(all_types[t], lengths[l], 60 + random_below(80));
            run(&shape);
        }
    }
}

static void aligned_rows(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (size_t misalignment = 0; misalignment < 64; misalignment += 16) {
            struct sum_case shape = shape_of(all_types[t], 640, 70);
            shape.misalignment = misalignment;
            shape.streaming = true;
            run(&shape);
        }
    }
}

static void short_lists_and_strides_of_their_own(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        for (int i = 0; i < 40; i++) {
            struct sum_case shape = shape_of(all_types[t], random_below(600), random_below(40));
            shape.list_most = 1 + random_below(5);
            shape.stride[0] = 1 + random_below(2);
            shape.stride[1] = 1 + random_below(3);
            run(&shape);
        }
    }
}

/* One or two tokens that are named by hundreds of padded slots, through the operators. */
static void tokens_of_hundreds_of_slots(void **state)
{
    static const enum family_verb verbs[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE_GRAD};
    (void)state;
    for (size_t v = 0; v < 2; v++) {
        for (int i = 0; i < 16; i++) {
            struct family_spec spec = family_spec_default(verbs[v], true);
            struct family_case family;
            spec.token_type = all_types[i % 4];
            spec.probs_type = spec.token_type == MOETOKEN_F64 ? MOETOKEN_F64 : MOETOKEN_F32;
            spec.routing.tokens = 2;
            spec.routing.slots = 2;
            spec.routing.experts = 100 + random_below(200);
            spec.hidden = 400 + random_below(300);
            spec.random_layouts = i >= 8;
            family_case_make(&family, &spec);
            for (size_t isa = 0; isa < 4; isa++) {
                moetoken_options options = {.isa_mask = all_isas[isa]};
                if (all_isas[isa] & moetoken_isa_detected()) {
                    family_case_check(&family, &options);
                }
            }
            family_case_free(&family);
        }
    }
}

int main(void)
{
    random_start("rows_sum_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_around_what_a_kernel_takes),
        cmocka_unit_test(lengths_around_a_column),
        cmocka_unit_test(aligned_rows),
        cmocka_unit_test(short_lists_and_strides_of_their_own),
        cmocka_unit_test(tokens_of_hundreds_of_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
