/* random_values.c - counter-based random numbers, the same bytes on every machine. See the header.
 */
#include "random_values.h"

#include <string.h>

#include "number_formats.h"

/* The output function of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on
 * every bit of x. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio, odd */

uint64_t random_key(uint64_t seed, uint64_t stream)
{
    return scramble(scramble(seed + golden) ^ (stream + 1) * golden);
}

uint64_t random_bits(uint64_t key, uint64_t i)
{
    return scramble(key + (i + 1) * golden);
}

double random_unit(uint64_t key, uint64_t i)
{
    return (double)((random_bits(key, i) >> 11) + 1) * 0x1p-53;
}

void random_shuffle(uint64_t key, int64_t count, int64_t *values)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)(random_bits(key, (uint64_t)i) % (uint64_t)(i + 1));
        int64_t value = values[i];
        values[i] = values[j];
        values[j] = value;
    }
}

/* From 64 bits: four 16-bit numbers give the 18 leading bits, a product of all bits 35 more. */
static double bell_shaped(uint64_t bits)
{
    int64_t sum = (int64_t)(bits & 0xffff) + (int64_t)(bits >> 16 & 0xffff) +
                  (int64_t)(bits >> 32 & 0xffff) + (int64_t)(bits >> 48) - 2 * 65535;
    int64_t low = (int64_t)((bits * UINT64_C(0xd1342543de82ef95)) >> 29);
    return (double)(sum * (INT64_C(1) << 35) + low) * 0x1p-50;
}

/* What makes a value of order 1 subnormal, tiny or huge in a type; products of two such values and
 * sums of thousands of them stay finite in all types but float16. */
static const double extreme_factors[4][4] = {
    [MOETOKEN_F32] = {0x1p-130, 0x1p-100, 0x1p+50, 0.0},
    [MOETOKEN_F16] = {0x1p-16, 0x1p-12, 0x1p+9, 0.0},
    [MOETOKEN_BF16] = {0x1p-130, 0x1p-100, 0x1p+50, 0.0},
    [MOETOKEN_F64] = {0x1p-1030, 0x1p-400, 0x1p+400, 0.0},
};

static double value_at(moetoken_type type, uint64_t key, uint64_t i, uint64_t threshold)
{
    uint64_t bits = random_bits(key, i);
    double value = bell_shaped(bits);
    uint64_t choice = bits * UINT64_C(0xaf251af3b0f025b5);
    if (choice < threshold)
        value *= extreme_factors[type][scramble(choice) >> 62];
    return value;
}

static void fill_run(char *data, moetoken_type type, uint64_t key, uint64_t threshold,
                     int64_t first, int64_t end)
{
    size_t size = type_size(type);
    for (int64_t i = first; i < end; i++) {
        double value = value_at(type, key, (uint64_t)i, threshold);
        if (type == MOETOKEN_F32) {
            float narrow = (float)value;
            memcpy(data + (size_t)i * size, &narrow, sizeof narrow);
        } else {
            store_bits(data + (size_t)i * size, size, double_to_bits(type, value));
        }
    }
}

void random_fill(DLTensor *tensor, moetoken_type type, uint64_t key, int64_t extremes,
                 struct progress *progress)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    char *data = (char *)tensor->data + tensor->byte_offset;
    uint64_t threshold = extremes <= 0 ? 0 : UINT64_MAX / (uint64_t)extremes;
    const int64_t run = INT64_C(1) << 16;
    int64_t runs = (count + run - 1) / run;
#pragma omp parallel for schedule(static) if (runs > 1)
    for (int64_t r = 0; r < runs; r++) {
        int64_t first = r * run, end = first + run < count ? first + run : count;
        fill_run(data, type, key, threshold, first, end);
        progress_add(progress, (end - first) * (int64_t)type_size(type));
    }
}
