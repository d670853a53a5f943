/* rows_test.c - every kernel of every instruction set against an oracle of its own, byte for byte:
 * lengths around every vector width, alignments, strides, special numbers, counts, in place.
 *
 * The memory a kernel is given is compared whole, gaps and guard bytes included. */
#include "rows/rows.h"
#include "support/buffers.h"
#include "support/check.h"
#include "support/numbers.h"
#include "support/random.h"

#include <math.h>
#include <string.h>

#define MAX_COUNT MOETOKEN_ROWS_PER_SUM

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};

enum {
    TOKEN,
    IN,
    OUT
};

/* How a kernel is called; strides in elements, index TOKEN, IN, OUT. */
struct shape {
    int64_t length, count;
    int64_t stride[3];
    int64_t row_gap[3];
    size_t misalignment[3];
    enum buffer_placement placement[3];
    bool in_place, streaming, without_weights;
    int special_percent;
};

/* The memory of one call. */
struct field {
    struct buffer buffer[3];
    struct moetoken_rows rows;
    int64_t row[MAX_COUNT], next_rows[MAX_COUNT];
    const char *in_row[MAX_COUNT];
    double weight[MAX_COUNT], dot[MAX_COUNT];
    moetoken_type type;
    enum moetoken_row_verb verb;
};

static moetoken_type entry_type(const struct moetoken_row_kernel_entry *entry)
{
    if (entry->type >= 0) {
        return (moetoken_type)entry->type;
    }
    return entry->element_size == 2   ? MOETOKEN_BF16
           : entry->element_size == 4 ? MOETOKEN_F32
                                      : MOETOKEN_F64;
}

static int64_t row_bytes(const struct shape *shape, int which, size_t size)
{
    return (shape->length * shape->stride[which] + shape->row_gap[which]) * (int64_t)size;
}

/* A page placement means something only when the last element is the last byte. */
static size_t field_bytes(const struct shape *shape, int which, size_t size)
{
    int64_t rows = which == TOKEN ? 1 : shape->count + 2;
    if (shape->length == 0) {
        return 0;
    }
    int64_t last = (shape->length - 1) * shape->stride[which] * (int64_t)size;
    return (size_t)((rows - 1) * row_bytes(shape, which, size) + last) + size;
}

static void point_rows(struct field *field, const struct shape *shape)
{
    size_t size = number_size(field->type);
    int out = shape->in_place ? IN : OUT;
    for (int64_t s = 0; s < shape->count; s++) {
        field->in_row[s] = field->buffer[IN].data + field->row[s] * row_bytes(shape, IN, size);
    }
    bool sums = field->verb == MOETOKEN_SUM_ROWS;
    field->rows = (struct moetoken_rows){.length = shape->length,
                                         .count = shape->count,
                                         .row = sums ? NULL : field->row,
                                         .in_row = sums ? field->in_row : NULL,
                                         .next_rows = field->next_rows,
                                         .weight = shape->without_weights ? NULL : field->weight,
                                         .dot = field->dot,
                                         .token_in = field->buffer[TOKEN].data,
                                         .token_out = field->buffer[TOKEN].data,
                                         .token_stride = shape->stride[TOKEN] * (int64_t)size,
                                         .in = field->buffer[IN].data,
                                         .in_row_stride = row_bytes(shape, IN, size),
                                         .in_stride = shape->stride[IN] * (int64_t)size,
                                         .out = field->buffer[out].data,
                                         .out_row_stride = row_bytes(shape, out, size),
                                         .out_stride = shape->stride[out] * (int64_t)size,
                                         .streaming = shape->streaming};
}

static void fill_random(struct field *field, const struct shape *shape, int which)
{
    size_t size = number_size(field->type);
    int64_t rows = which == TOKEN ? 1 : shape->count + 2;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < shape->length; h++) {
            char *at = field->buffer[which].data + r * row_bytes(shape, which, size) +
                       h * shape->stride[which] * (int64_t)size;
            bool special = random_chance(shape->special_percent);
            number_store_bits(at, field->type,
                              special ? random_special(field->type) : random_number(field->type));
        }
    }
}

static double random_weight(const struct field *field, const struct shape *shape)
{
    moetoken_type type = field->type == MOETOKEN_F64 ? MOETOKEN_F64 : MOETOKEN_F32;
    bool special = random_chance(shape->special_percent);
    return number_decode(special ? random_special(type) : random_number(type), type);
}

static void field_make(struct field *field, const struct moetoken_row_kernel_entry *entry,
                       const struct shape *shape)
{
    *field = (struct field){.type = entry_type(entry), .verb = entry->verb};
    int64_t order[MAX_COUNT + 2];
    random_permutation(order, shape->count + 2);
    for (int which = 0; which < 3; which++) {
        buffer_make(&field->buffer[which], field_bytes(shape, which, entry->element_size),
                    shape->placement[which], shape->misalignment[which]);
        fill_random(field, shape, which);
    }
    for (int64_t s = 0; s < shape->count; s++) {
        field->row[s] = order[s];
        field->weight[s] = random_weight(field, shape);
        field->dot[s] = -1234.5;
    }
    point_rows(field, shape);
    field->rows.next_count = random_below(shape->count + 1);
    for (int64_t n = 0; n < field->rows.next_count; n++) {
        field->next_rows[n] = random_chance(20) ? -1 : order[random_below(shape->count + 2)];
    }
}

static void field_copy(struct field *copy, const struct field *from, const struct shape *shape)
{
    *copy = *from;
    for (int which = 0; which < 3; which++) {
        buffer_make(&copy->buffer[which], from->buffer[which].bytes, shape->placement[which],
                    shape->misalignment[which]);
        memcpy(copy->buffer[which].guarded, from->buffer[which].guarded,
               from->buffer[which].guarded_bytes);
    }
    point_rows(copy, shape);
    copy->rows.next_count = from->rows.next_count;
}

static void field_free(struct field *field)
{
    for (int which = 0; which < 3; which++) {
        buffer_free(&field->buffer[which]);
    }
}

/* ---- the oracle ----------------------------------------------------------------------------- */

static char *out_at(const struct field *field, int64_t s, int64_t h)
{
    return field->rows.out + field->row[s] * field->rows.out_row_stride +
           h * field->rows.out_stride;
}

static double in_value(const struct field *field, int64_t s, int64_t h)
{
    return number_load(field->rows.in + field->row[s] * field->rows.in_row_stride +
                           h * field->rows.in_stride,
                       field->type);
}

static const char *token_at(const struct field *field, int64_t h)
{
    return field->rows.token_in + h * field->rows.token_stride;
}

static double product(double w, double x, moetoken_type type)
{
    double exact = w * x;
    return type == MOETOKEN_F64 ? exact : number_round(exact, MOETOKEN_F32);
}

static void expect_dots(struct field *field)
{
    for (int64_t s = 0; s < field->rows.count; s++) {
        double lanes[MOETOKEN_DOT_LANES] = {0};
        for (int64_t h = 0; h < field->rows.length; h++) {
            double term = in_value(field, s, h) * number_load(token_at(field, h), field->type);
            lanes[h % 32] += term;
        }
        for (int half = 16; half > 0; half /= 2) {
            for (int lane = 0; lane < half; lane++) {
                lanes[lane] += lanes[lane + half];
            }
        }
        field->dot[s] = lanes[0];
    }
}

static void expect_rows(struct field *field)
{
    for (int64_t s = 0; s < field->rows.count; s++) {
        for (int64_t h = 0; h < field->rows.length; h++) {
            if (field->verb == MOETOKEN_COPY_ROWS) {
                number_store_bits(out_at(field, s, h), field->type,
                                  number_load_bits(token_at(field, h), field->type));
            } else {
                double element = number_load(token_at(field, h), field->type);
                number_store(out_at(field, s, h), field->type,
                             product(field->weight[s], element, field->type));
            }
        }
    }
}

static void expect_sum(struct field *field)
{
    for (int64_t h = 0; h < field->rows.length; h++) {
        double sum = 0;
        for (int64_t s = 0; s < field->rows.count; s++) {
            double weight = field->rows.weight != NULL ? field->weight[s] : 1;
            double more = sum + product(weight, in_value(field, s, h), field->type);
            sum = field->type == MOETOKEN_F64 ? more : number_round(more, MOETOKEN_F32);
        }
        number_store(field->rows.token_out + h * field->rows.token_stride, field->type, sum);
    }
}

static void expect(struct field *field)
{
    if (field->verb == MOETOKEN_SUM_ROWS) {
        expect_sum(field);
        return;
    }
    if (field->verb == MOETOKEN_DOT_ROWS || field->verb == MOETOKEN_SCALE_DOT_ROWS) {
        expect_dots(field); /* before a row is overwritten in place */
    }
    if (field->verb != MOETOKEN_DOT_ROWS) {
        expect_rows(field);
    }
}

/* ---- comparison ----------------------------------------------------------------------------- */

static void check_same(const struct field *actual, const struct field *wanted, const char *kernel,
                       const char *isa, const struct shape *shape)
{
    static const char *const names[] = {"token", "in", "out"};
    for (int which = 0; which < 3; which++) {
        const struct buffer *left = &actual->buffer[which], *right = &wanted->buffer[which];
        size_t at = 0;
        while (at < left->guarded_bytes && left->guarded[at] == right->guarded[at]) {
            at++;
        }
        check(at == left->guarded_bytes,
              "%s %s: %s differs at byte %lld of %zu: length %lld count %lld strides %lld %lld "
              "%lld misaligned %zu %zu %zu%s%s",
              kernel, isa, names[which], (long long)at - (left->data - left->guarded), left->bytes,
              (long long)shape->length, (long long)shape->count, (long long)shape->stride[TOKEN],
              (long long)shape->stride[IN], (long long)shape->stride[OUT],
              shape->misalignment[TOKEN], shape->misalignment[IN], shape->misalignment[OUT],
              shape->in_place ? " in place" : "", shape->streaming ? " streaming" : "");
    }
    for (int64_t s = 0; s < shape->count; s++) {
        check(number_encode(actual->dot[s], MOETOKEN_F64) ==
                  number_encode(wanted->dot[s], MOETOKEN_F64),
              "%s %s: dot[%lld] = %a, expected %a: length %lld count %lld", kernel, isa,
              (long long)s, actual->dot[s], wanted->dot[s], (long long)shape->length,
              (long long)shape->count);
    }
}

static void run(const struct moetoken_row_kernel_entry *entry, struct shape shape)
{
    struct field pristine, wanted;
    bool can_be_in_place = entry->verb == MOETOKEN_SCALE_DOT_ROWS;
    shape.in_place = shape.in_place && can_be_in_place;
    shape.without_weights = shape.without_weights && entry->verb == MOETOKEN_SUM_ROWS;
    if (entry->verb != MOETOKEN_SUM_ROWS && shape.count > MOETOKEN_SLOTS_PER_CALL) {
        shape.count = MOETOKEN_SLOTS_PER_CALL;
    }
    field_make(&pristine, entry, &shape);
    field_copy(&wanted, &pristine, &shape);
    expect(&wanted);
    bool unit = shape.stride[TOKEN] == 1 && shape.stride[IN] == 1 && shape.stride[OUT] == 1;
    for (size_t i = 0; i < 4; i++) {
        if ((all_isas[i] & moetoken_isa_detected()) == 0 ||
            (!unit && all_isas[i] != MOETOKEN_ISA_SCALAR)) {
            continue; /* other strides are for the scalar kernels alone */
        }
        struct moetoken_row_kernels kernels;
        struct field actual;
        moetoken_row_kernels_select(all_isas[i], &kernels);
        field_copy(&actual, &pristine, &shape);
        moetoken_row_kernel_get(&kernels, entry)(&actual.rows);
        kernels.fence();
        check_same(&actual, &wanted, entry->name, moetoken_isa_name(all_isas[i]), &shape);
        field_free(&actual);
    }
    field_free(&wanted);
    field_free(&pristine);
}

static struct shape unit_shape(int64_t length, int64_t count)
{
    return (struct shape){.length = length, .count = count, .stride = {1, 1, 1}};
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void every_length(void **state)
{
    /* around vector widths, and around the pieces of 1024 elements that kernels decode at once */
    static const int64_t lengths[] = {79,  95,  96,  97,  101,  127,  128,  129,
                                      131, 193, 257, 521, 1023, 1057, 2048, 2081};
    const int64_t extra = (int64_t)(sizeof lengths / sizeof lengths[0]);
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        for (int64_t i = 0; i < 68 + extra; i++) {
            struct shape shape = unit_shape(i < 68 ? i : lengths[i - 68], 1 + i % 5);
            shape.streaming = (i & 1) != 0;
            shape.in_place = (i & 2) != 0;
            shape.placement[i % 3] = (i & 4) != 0 ? BUFFER_BEFORE_PAGE : BUFFER_AFTER_PAGE;
            run(&moetoken_row_kernel_list[k], shape);
        }
    }
}

static void every_alignment(void **state)
{
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        for (int i = 0; i < 3 * 64; i++) {
            struct shape shape = unit_shape(33 + random_below(70), 1 + random_below(4));
            for (int which = 0; which < 3; which++) {
                bool walks = which == i / 64;
                shape.misalignment[which] = walks ? (size_t)i % 64 : (size_t)random_below(64);
            }
            shape.row_gap[IN] = random_below(3);
            shape.row_gap[OUT] = random_below(3);
            shape.streaming = (i & 1) != 0;
            shape.in_place = random_chance(30);
            run(&moetoken_row_kernel_list[k], shape);
        }
    }
}

static void every_count(void **state)
{
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        for (int64_t count = 0; count <= MAX_COUNT; count++) {
            struct shape shape = unit_shape(1 + random_below(80), count);
            shape.without_weights = random_chance(40);
            shape.in_place = random_chance(30);
            shape.streaming = random_chance(50);
            run(&moetoken_row_kernel_list[k], shape);
        }
    }
}

static void any_strides_with_the_scalar_kernels(void **state)
{
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        for (int i = 0; i < 60; i++) {
            struct shape shape = unit_shape(random_below(80), 1 + random_below(6));
            bool written[3] = {moetoken_row_kernel_list[k].verb == MOETOKEN_SUM_ROWS, false, true};
            shape.in_place = random_chance(30);
            written[IN] = shape.in_place;
            for (int which = 0; which < 3; which++) {
                shape.stride[which] = random_chance(60) ? 1 : 1 + random_below(5);
                if (!written[which] && random_chance(15)) {
                    shape.stride[which] = 0;
                    shape.row_gap[which] = 1;
                }
            }
            shape.streaming = random_chance(50);
            run(&moetoken_row_kernel_list[k], shape);
        }
    }
}

static void special_numbers(void **state)
{
    static const int percents[] = {1, 10, 50, 100};
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        for (int i = 0; i < 60; i++) {
            struct shape shape = unit_shape(1 + random_below(140), random_below(20));
            shape.special_percent = percents[i % 4];
            shape.in_place = random_chance(30);
            shape.without_weights = random_chance(20);
            shape.streaming = random_chance(50);
            run(&moetoken_row_kernel_list[k], shape);
        }
    }
}

/* Runs a prepared field with every instruction set. */
static void run_field(const struct field *pristine, const struct moetoken_row_kernel_entry *entry,
                      const struct shape *shape)
{
    struct field wanted;
    field_copy(&wanted, pristine, shape);
    expect(&wanted);
    for (size_t i = 0; i < 4; i++) {
        if (all_isas[i] & moetoken_isa_detected()) {
            struct moetoken_row_kernels kernels;
            struct field actual;
            moetoken_row_kernels_select(all_isas[i], &kernels);
            field_copy(&actual, pristine, shape);
            moetoken_row_kernel_get(&kernels, entry)(&actual.rows);
            kernels.fence();
            check_same(&actual, &wanted, entry->name, moetoken_isa_name(all_isas[i]), shape);
            field_free(&actual);
        }
    }
    field_free(&wanted);
}

static bool scales_16_bit(const struct moetoken_row_kernel_entry *entry)
{
    return (entry->verb == MOETOKEN_SCALE_ROWS || entry->verb == MOETOKEN_SCALE_DOT_ROWS) &&
           entry->element_size == 2;
}

/* Every one of the 65536 bit patterns of a 16-bit type through a product with 1 and with 1/3. */
static void every_16_bit_number(void **state)
{
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        const struct moetoken_row_kernel_entry *entry = &moetoken_row_kernel_list[k];
        if (!scales_16_bit(entry)) {
            continue;
        }
        struct shape shape = unit_shape(65536, 2);
        struct field field;
        field_make(&field, entry, &shape);
        for (int64_t h = 0; h < 65536; h++) {
            number_store_bits(field.buffer[TOKEN].data + 2 * h, field.type, (uint64_t)h);
        }
        field.weight[0] = 1;
        field.weight[1] = number_round(1.0 / 3, MOETOKEN_F32);
        run_field(&field, entry, &shape);
        field_free(&field);
    }
}

/* A float32 with a long significand whose product with one of 128..255 is (as float32) halfway
 * between two bfloat16, the lower of which is even: 257 / 200 * 200 = 257, between 256 and 258. */
static double weight_with_a_tie(void)
{
    for (;;) {
        double significand = (double)(128 + random_below(128));
        double halfway = (double)(257 + 4 * random_below(64));
        double weight = number_round(halfway / significand, MOETOKEN_F32);
        if (number_round(weight * significand, MOETOKEN_F32) == halfway) {
            return weight;
        }
    }
}

/* Weights of which no, one, or many products are ties, and weights with which products become
 * subnormal: powers of two have ties there alone. */
static double tie_weight(int kind)
{
    static const double few_bits[] = {1.5, -1.0078125, 0.0234375, 3.0};
    double full = number_decode(random_number(MOETOKEN_F32), MOETOKEN_F32);
    switch (kind) {
    case 0:
        return full;
    case 1:
        return weight_with_a_tie();
    case 2:
        return few_bits[random_below(4)];
    case 3:
        return number_round(ldexp(full, -(int)random_below(160)), MOETOKEN_F32);
    case 4:
        return -ldexp(weight_with_a_tie(), -100);
    case 5:
        return ldexp(1, random_chance(50) ? -8 : -1 - (int)random_below(8));
    default:
        return number_round(ldexp(full, (int)random_below(100)), MOETOKEN_F32);
    }
}

/* Every finite number, in an order that mixes magnitudes or in one that does not, so that pieces
 * with and without ties, with and without subnormal products come up. */
static void ties(void **state)
{
    (void)state;
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        const struct moetoken_row_kernel_entry *entry = &moetoken_row_kernel_list[k];
        for (int i = 0; i < 6 && scales_16_bit(entry); i++) {
            struct shape shape = unit_shape(65536, 2 + i);
            struct field field;
            uint64_t infinity = number_infinity(entry_type(entry));
            shape.in_place = i % 2 == 1 && entry->verb == MOETOKEN_SCALE_DOT_ROWS;
            field_make(&field, entry, &shape);
            for (int64_t h = 0; h < 65536; h++) {
                uint64_t bits = (uint64_t)(i != 3 ? h : h * 40503 % 65536);
                bool finite = (bits & infinity) != infinity;
                number_store_bits(field.buffer[TOKEN].data + 2 * h, field.type, finite ? bits : 0);
            }
            for (int64_t s = 0; s < shape.count; s++) {
                field.weight[s] = tie_weight((int)s);
            }
            run_field(&field, entry, &shape);
            field_free(&field);
        }
    }
}

static void the_list_names_every_kernel_once(void **state)
{
    struct moetoken_row_kernels kernels;
    (void)state;
    moetoken_row_kernels_select(0, &kernels);
    for (size_t k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++) {
        const struct moetoken_row_kernel_entry *entry = &moetoken_row_kernel_list[k];
        check(moetoken_row_kernel_get(&kernels, entry) != NULL, "%s is missing", entry->name);
        for (size_t other = 0; other < k; other++) {
            check(strcmp(entry->name, moetoken_row_kernel_list[other].name) != 0 &&
                      entry->offset != moetoken_row_kernel_list[other].offset,
                  "%s is listed twice", entry->name);
        }
    }
}

int main(void)
{
    random_start("rows_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_names_every_kernel_once),
        cmocka_unit_test(every_length),
        cmocka_unit_test(every_alignment),
        cmocka_unit_test(every_count),
        cmocka_unit_test(any_strides_with_the_scalar_kernels),
        cmocka_unit_test(special_numbers),
        cmocka_unit_test(every_16_bit_number),
        cmocka_unit_test(ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
