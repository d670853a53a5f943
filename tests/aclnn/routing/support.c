/* support.c - see support.h. */
#include "support.h"

static void encode(aclDataType type, double value, char *into)
{
    float single = (float)value;
    int64_t whole =
        value - value == 0 ? (int64_t)value : 0; /* no whole number is NaN or infinite */
    int32_t narrow = (int32_t)whole;
    int8_t byte = (int8_t)whole;
    uint32_t bits;
    uint16_t half = aclFloatToFloat16(single);
    memcpy(&bits, &single, sizeof bits);
    const uint16_t brain = (uint16_t)(bits >> 16);
    const void *from = type == ACL_FLOAT     ? (const void *)&single
                       : type == ACL_BOOL    ? (const void *)&byte
                       : type == ACL_FLOAT16 ? (const void *)&half
                       : type == ACL_BF16    ? (const void *)&brain
                       : type == ACL_INT8    ? (const void *)&byte
                       : type == ACL_INT32   ? (const void *)&narrow
                                             : (const void *)&whole;
    memcpy(into, from, aclDataTypeSize(type));
}

static double decode(aclDataType type, const char *from)
{
    float single;
    int64_t whole;
    int32_t narrow;
    uint16_t half;
    switch (type) {
    case ACL_FLOAT16:
        memcpy(&half, from, sizeof half);
        return (double)aclFloat16ToFloat(half);
    case ACL_BF16: {
        memcpy(&half, from, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
    case ACL_INT8:
        return (double)*(const int8_t *)from;
    case ACL_INT32:
        memcpy(&narrow, from, sizeof narrow);
        return narrow;
    case ACL_INT64:
        memcpy(&whole, from, sizeof whole);
        return (double)whole;
    default:
        memcpy(&single, from, sizeof single);
        return (double)single;
    }
}

struct values values_make(aclDataType type, int rank, const int64_t *shape, const double *from)
{
    struct values made = {.type = type, .count = 1};
    char host[VALUES_MAX * sizeof(int64_t)];
    const size_t size = aclDataTypeSize(type);
    for (int i = 0; i < rank; i++)
        made.count *= shape[i];
    assert_true(made.count <= VALUES_MAX);
    for (int64_t i = 0; from && i < made.count; i++)
        encode(type, from[i], host + (size_t)i * size);
    made.twin = twin_make(type, made.count, -1, from ? host : NULL);
    assert_int_equal(aclDestroyTensor(made.twin.tensor), ACL_SUCCESS);
    made.twin.tensor = aclCreateTensor(shape, (uint64_t)rank, type, NULL, 0, ACL_FORMAT_ND, shape,
                                       (uint64_t)rank, made.twin.data);
    assert_non_null(made.twin.tensor);
    return made;
}

void values_set_view(struct values *values, const int64_t *shape, int rank, const int64_t *strides,
                     int64_t offset, int64_t elements)
{
    assert_int_equal(aclDestroyTensor(values->twin.tensor), ACL_SUCCESS);
    values->twin.tensor = aclCreateTensor(shape, (uint64_t)rank, values->type, strides, offset,
                                          ACL_FORMAT_ND, &elements, 1, values->twin.data);
    assert_non_null(values->twin.tensor);
}

void values_drop(struct values *values)
{
    if (values->twin.tensor)
        twin_drop(&values->twin);
}

void values_read(const struct values *values, double *into)
{
    char host[VALUES_MAX * sizeof(int64_t)];
    if (values->count == 0)
        return;
    twin_read(&values->twin, host);
    for (int64_t i = 0; i < values->count; i++)
        into[i] = decode(values->type, host + (size_t)i * aclDataTypeSize(values->type));
}

void values_expect(const struct values *values, const double *expected, const char *what)
{
    double found[VALUES_MAX];
    values_read(values, found);
    for (int64_t i = 0; i < values->count; i++)
        if (found[i] != expected[i])
            fail_msg("%s: element %lld of type %d is %g, expected %g", what, (long long)i,
                     (int)values->type, found[i], expected[i]);
}

void values_expect_untouched(const struct values *values, const char *what)
{
    unsigned char host[VALUES_MAX * sizeof(int64_t)];
    if (values->count == 0)
        return;
    twin_read(&values->twin, host);
    for (size_t i = 0; i < values->twin.bytes; i++)
        if (host[i] != 0xFF)
            fail_msg("%s: byte %zu was written", what, i);
}

aclnnStatus run(phase_two function, uint64_t bytes, aclOpExecutor *executor)
{
    void *workspace = NULL;
    if (bytes > 0)
        assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    aclnnStatus status = function(workspace, bytes, executor, twin_stream);
    if (workspace)
        assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    return status;
}

aclDataType token_type(int number)
{
    const aclDataType types[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
    return types[number % 3];
}

int64_t draw(int64_t least, int64_t most)
{
    static uint64_t state = 20261201;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return least + (int64_t)((state >> 33) % (uint64_t)(most - least + 1));
}

void draw_values(double *into, int64_t count, int64_t least, int64_t most, double unit)
{
    for (int64_t i = 0; i < count; i++)
        into[i] = (double)draw(least, most) * unit;
}

void sorted_places(const double *key, int64_t count, int64_t *rank)
{
    for (int64_t i = 0; i < count; i++) {
        rank[i] = 0;
        for (int64_t j = 0; j < count; j++)
            rank[i] += key[j] < key[i] || (key[j] == key[i] && j < i);
    }
}
