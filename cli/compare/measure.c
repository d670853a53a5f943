/* measure.c - one pass over a tensor and its golden result. See measure.h. */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "values/number_formats.h"

#define BLOCK        4096 /* elements whose values lie on the stack */
#define RELATIVE_EPS 1e-7 /* beside |golden|, in the standards' relative error */

/* A block of elements of both tensors. */
struct block {
    const DLTensor *tensor, *golden;
    moetoken_type type, golden_type;
    const struct measure_limits *limits;
    int64_t first, count;
    struct measure *measure;
};

static void raise_peak(struct peak *peak, double size, int64_t element)
{
    /* A NaN, infinity minus infinity, is as bad as can be. */
    if (isnan(size))
        size = INFINITY;
    if (size > peak->size) {
        peak->size = size;
        peak->element = element;
    }
}

/* ---- numbers -------------------------------------------------------------------------------- */

static void add_error(struct error_sums *sums, double difference, double golden, int64_t element)
{
    double relative = fabs(difference) / (fabs(golden) + RELATIVE_EPS);
    sums->count++;
    sums->relative_sum += relative;
    sums->squares += (long double)difference * difference;
    raise_peak(&sums->relative, relative, element);
}

static void add_small_error(const struct block *block, double difference, int64_t element)
{
    if (!(fabs(difference) > block->limits->small_error))
        return;
    block->measure->small_errors++;
    raise_peak(&block->measure->small_error, fabs(difference), element);
}

static void add_tolerance(const struct block *block, double difference, double golden,
                          int64_t element)
{
    double tolerance = block->limits->atol + block->limits->rtol * fabs(golden);
    if (fabs(difference) <= tolerance)
        return;
    block->measure->intolerant++;
    raise_peak(&block->measure->intolerance, fabs(difference) / tolerance, element);
}

static void add_absolute(const struct block *block, double difference, double rounded,
                         int64_t element)
{
    struct measure *measure = block->measure;
    raise_peak(&measure->absolute, fabs(difference), element);
    if (measure->absolute.element == element)
        measure->golden_at_absolute = rounded;
}

static void add_rounded(struct measure *measure, double value, double rounded, int64_t element)
{
    double difference = value - rounded;
    /* Both move by the smallest step from 1 where the golden value is 0, which leaves the
     * difference alone. */
    double relative = fabs(difference) / (rounded == 0 ? 0x1p-52 : fabs(rounded));
    measure->dot += (long double)value * rounded;
    measure->squares += (long double)value * value;
    measure->golden_squares += (long double)rounded * rounded;
    measure->within_thousandth += relative < 0.001;
    measure->within_five_thousandths += relative < 0.005;
    raise_peak(&measure->rounded_absolute, fabs(difference), element);
    raise_peak(&measure->rounded_relative, relative, element);
}

static void add_number(const struct block *block, double value, double golden, double rounded,
                       int64_t element)
{
    struct measure *measure = block->measure;
    double difference = value - golden;
    measure->finite++;
    add_error(&measure->all, difference, golden, element);
    if (fabs(golden) >= block->limits->small_value)
        add_error(&measure->normal, difference, golden, element);
    else
        add_small_error(block, difference, element);
    measure->balance += difference / fmax(fabs(golden), 1);
    add_tolerance(block, difference, golden, element);
    add_absolute(block, difference, rounded, element);
    raise_peak(&measure->ulps, fabs(difference) / unit_in_last_place(block->type, golden), element);
    add_rounded(measure, value, rounded, element);
}

static void count_unequal(const struct block *block, double ulps, int64_t element)
{
    if (block->measure->unequal++ == 0)
        block->measure->first_unequal = element;
    raise_peak(&block->measure->unequal_ulps, ulps, element);
}

static void measure_float(const struct block *block, double value, double golden, int64_t element)
{
    struct measure *measure = block->measure;
    uint64_t bits = bits_at(block->tensor, element);
    uint64_t wanted = block->type == block->golden_type ? bits_at(block->golden, element)
                                                        : double_to_bits(block->type, golden);
    double rounded = bits_to_double(block->type, wanted);
    bool both_nan = isnan(value) && isnan(rounded);
    bool numbers = isfinite(value) && isfinite(golden);
    if (bits != wanted && !(both_nan && block->type != block->golden_type)) {
        double ulp = unit_in_last_place(block->type, numbers ? golden : 1);
        count_unequal(block, numbers ? fabs(value - golden) / ulp : INFINITY, element);
    }
    if (numbers) { /* a golden number beyond the type's largest stays what it is */
        add_number(block, value, golden, isfinite(rounded) ? rounded : golden, element);
    } else if (!both_nan && value != rounded) {
        if (measure->misplaced++ == 0)
            measure->first_misplaced = element;
    }
}

static void measure_floats(const struct block *block)
{
    double values[BLOCK], golden[BLOCK];
    floats_at(block->tensor, block->first, block->count, values);
    floats_at(block->golden, block->first, block->count, golden);
    for (int64_t i = 0; i < block->count; i++)
        measure_float(block, values[i], golden[i], block->first + i);
}

/* ---- integers ------------------------------------------------------------------------------- */

int64_t whole_number_at(const DLTensor *tensor, int64_t i)
{
    moetoken_type type = MOETOKEN_I64;
    uint64_t bits = bits_at(tensor, i);
    type_of_tensor(tensor, &type);
    switch (type) {
    case MOETOKEN_BOOL:
        return bits != 0;
    case MOETOKEN_I8:
        return (int8_t)(uint8_t)bits;
    case MOETOKEN_I32:
        return (int32_t)(uint32_t)bits;
    default:
        return (int64_t)bits;
    }
}

static void measure_integers(const struct block *block)
{
    struct measure *measure = block->measure;
    for (int64_t i = block->first; i < block->first + block->count; i++) {
        int64_t value = whole_number_at(block->tensor, i);
        int64_t golden = whole_number_at(block->golden, i);
        bool other_bits = block->type == block->golden_type &&
                          bits_at(block->tensor, i) != bits_at(block->golden, i);
        if (value != golden) {
            measure->wrong_integers++;
            raise_peak(&measure->integer_error, fabs((double)value - (double)golden), i);
            if (measure->integer_error.element < 0) /* far beyond 2^53 and next to each other */
                raise_peak(&measure->integer_error, 1, i);
        }
        if (value != golden || other_bits)
            count_unequal(block, INFINITY, i);
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void merge_peak(struct peak *whole, const struct peak *part)
{
    if (part->element >= 0)
        raise_peak(whole, part->size, part->element);
}

static void merge_sums(struct error_sums *whole, const struct error_sums *part)
{
    whole->count += part->count;
    merge_peak(&whole->relative, &part->relative);
    whole->relative_sum += part->relative_sum;
    whole->squares += part->squares;
}

static void merge_exact(struct measure *whole, const struct measure *part)
{
    if (whole->unequal == 0)
        whole->first_unequal = part->first_unequal;
    if (whole->misplaced == 0)
        whole->first_misplaced = part->first_misplaced;
    whole->unequal += part->unequal;
    merge_peak(&whole->unequal_ulps, &part->unequal_ulps);
    whole->wrong_integers += part->wrong_integers;
    merge_peak(&whole->integer_error, &part->integer_error);
    whole->finite += part->finite;
    whole->misplaced += part->misplaced;
}

static void merge_errors(struct measure *whole, const struct measure *part)
{
    if (part->absolute.size > whole->absolute.size)
        whole->golden_at_absolute = part->golden_at_absolute;
    merge_sums(&whole->all, &part->all);
    merge_sums(&whole->normal, &part->normal);
    whole->small_errors += part->small_errors;
    merge_peak(&whole->small_error, &part->small_error);
    whole->balance += part->balance;
    whole->intolerant += part->intolerant;
    merge_peak(&whole->intolerance, &part->intolerance);
    merge_peak(&whole->absolute, &part->absolute);
    merge_peak(&whole->ulps, &part->ulps);
    whole->dot += part->dot;
    whole->squares += part->squares;
    whole->golden_squares += part->golden_squares;
    merge_peak(&whole->rounded_absolute, &part->rounded_absolute);
    merge_peak(&whole->rounded_relative, &part->rounded_relative);
    whole->within_thousandth += part->within_thousandth;
    whole->within_five_thousandths += part->within_five_thousandths;
}

static const struct measure nothing = {
    .unequal_ulps.element = -1,
    .first_unequal = -1,
    .integer_error.element = -1,
    .first_misplaced = -1,
    .all.relative.element = -1,
    .normal.relative.element = -1,
    .small_error.element = -1,
    .intolerance.element = -1,
    .absolute.element = -1,
    .ulps.element = -1,
    .rounded_absolute.element = -1,
    .rounded_relative.element = -1,
};

static int64_t elements_of(const DLTensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return 0;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

/* Blocks are measured in rounds: so many at a time, on all threads, and added up in order. */
#define ROUND 64

bool measure_tensor(const DLTensor *tensor, const DLTensor *golden,
                    const struct measure_limits *limits, struct measure *measure)
{
    struct block shared = {.tensor = tensor, .golden = golden, .limits = limits};
    struct measure *parts = calloc(ROUND, sizeof *parts);
    int64_t elements = elements_of(tensor);
    *measure = nothing;
    measure->elements = elements;
    if (parts == NULL)
        return false;
    type_of_tensor(tensor, &shared.type);
    type_of_tensor(golden, &shared.golden_type);
    bool floats = type_is_float(shared.type);
    for (int64_t done = 0; done < elements; done += (int64_t)ROUND * BLOCK) {
#pragma omp parallel for schedule(static) if (elements > 16 * BLOCK)
        for (int64_t i = 0; i < ROUND; i++) {
            struct block block = shared;
            block.first = done + i * BLOCK;
            block.count = elements - block.first < BLOCK ? elements - block.first : BLOCK;
            block.measure = &parts[i];
            parts[i] = nothing;
            if (block.count > 0 && floats)
                measure_floats(&block);
            else if (block.count > 0)
                measure_integers(&block);
        }
        for (int64_t i = 0; i < ROUND; i++) {
            merge_exact(measure, &parts[i]);
            merge_errors(measure, &parts[i]);
        }
    }
    free(parts);
    return true;
}
