/* ids_twin.c - see ids_twin.h. */
#include "ids_twin.h"

const aclDataType float_types[3] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
uint64_t ids_workspace_bytes;
aclOpExecutor *ids_executor;

moetoken_type number_type(aclDataType type)
{
    return type == ACL_FLOAT16 ? MOETOKEN_F16
           : type == ACL_BF16  ? MOETOKEN_BF16
           : type == ACL_INT32 ? MOETOKEN_I32
           : type == ACL_INT64 ? MOETOKEN_I64
                               : MOETOKEN_F32;
}

/* ---- numbers -------------------------------------------------------------------------------- */

void numbers_fill(struct numbers *numbers, int64_t rows, int64_t columns, int64_t steps)
{
    numbers_zero(numbers, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        numbers->value[i] = (double)(random_below(17) - 8) / (double)steps;
}

void numbers_zero(struct numbers *numbers, int64_t rows, int64_t columns)
{
    assert_true(rows * columns <= ELEMENTS_MOST);
    numbers->rows = rows;
    numbers->columns = columns;
    memset(numbers->value, 0, (size_t)(rows * columns) * sizeof numbers->value[0]);
}

/* A strided view has its elements two columns apart, one row of them behind the other, from element
 * 3 of its memory on. */
static struct twin_tensor view(int64_t rows, int64_t columns, aclDataType type, int rank,
                               bool strided)
{
    if (!strided)
        return twin_make(type, rows, rank == 1 ? -1 : columns, NULL);
    struct twin_tensor made = twin_make(type, rows * columns * 2 + 5, -1, NULL);
    int64_t shape[] = {rows, columns}, strides[] = {2 * columns, 2};
    int64_t storage = rows * columns * 2 + 5;
    assert_int_equal(aclDestroyTensor(made.tensor), ACL_SUCCESS);
    made.tensor = aclCreateTensor(shape, (uint64_t)rank, type, strides, 3, ACL_FORMAT_ND, &storage,
                                  1, made.data);
    assert_non_null(made.tensor);
    return made;
}

struct twin_tensor room_tensor(int64_t rows, int64_t columns, aclDataType type, int rank,
                               bool strided)
{
    return view(rows, columns, type, rank, strided);
}

/* Where element i lies, in bytes. */
static size_t place_of(const struct twin_tensor *tensor, int64_t i, size_t size)
{
    int64_t offset = 0;
    assert_int_equal(aclGetViewOffset(tensor->tensor, &offset), 0);
    return (size_t)(offset == 0 ? i : offset + 2 * i) * size;
}

struct twin_tensor numbers_tensor(const struct numbers *numbers, aclDataType type, int rank,
                                  bool strided)
{
    struct twin_tensor made = view(numbers->rows, numbers->columns, type, rank, strided);
    size_t size = aclDataTypeSize(type);
    for (int64_t i = 0; i < numbers->rows * numbers->columns; i++)
        number_store((char *)made.data + place_of(&made, i, size), number_type(type),
                     numbers->value[i]);
    return made;
}

void expect_numbers(const struct twin_tensor *tensor, const struct numbers *expected,
                    const char *name)
{
    aclDataType acl_type;
    assert_int_equal(aclGetDataType(tensor->tensor, &acl_type), 0);
    moetoken_type type = number_type(acl_type);
    size_t size = aclDataTypeSize(acl_type), next = 0;
    const unsigned char *bytes = tensor->data;
    for (int64_t i = 0; i < expected->rows * expected->columns; i++) {
        size_t at = place_of(tensor, i, size);
        for (; next < at; next++)
            if (bytes[next] != 0xFF)
                fail_msg("%s: byte %zu between the elements has changed", name, next);
        uint64_t found = number_load_bits(bytes + at, type);
        if (found != number_encode(expected->value[i], type))
            fail_msg("%s[%lld, %lld] = %g, expected %g", name, (long long)(i / expected->columns),
                     (long long)(i % expected->columns), number_decode(found, type),
                     number_round(expected->value[i], type));
        next = at + size;
    }
    for (; next < tensor->bytes; next++)
        if (bytes[next] != 0xFF)
            fail_msg("%s: byte %zu behind the elements has changed", name, next);
}

/* ---- routing -------------------------------------------------------------------------------- */

/* Slot i stands behind every slot of a lesser id, and behind the slots of its own before it. */
static int64_t row_of(const struct routing *routing, int64_t i)
{
    int64_t row = 0;
    for (int64_t j = 0; j < routing->slots; j++)
        row += routing->id[j] < routing->id[i] || (routing->id[j] == routing->id[i] && j < i);
    return row;
}

void routing_make(struct routing *routing, int64_t tokens, int64_t topk, int64_t least,
                  int64_t ids_num)
{
    routing->tokens = tokens;
    routing->topk = topk;
    routing->slots = tokens * topk;
    assert_true(routing->slots <= SLOTS_MOST);
    for (int64_t i = 0; i < routing->slots; i++)
        routing->id[i] = least + random_below(ids_num);
    for (int64_t i = 0; i < routing->slots; i++)
        routing->row[i] = row_of(routing, i);
}

struct twin_tensor routing_indices(const struct routing *routing)
{
    int32_t rows[SLOTS_MOST];
    for (int64_t i = 0; i < routing->slots; i++)
        rows[i] = (int32_t)routing->row[i];
    return twin_make(ACL_INT32, routing->slots, -1, rows);
}

/* ---- phases --------------------------------------------------------------------------------- */

aclnnStatus ids_phase_two(phase_two_fn *phase_two)
{
    void *workspace = NULL;
    uint64_t bytes = ids_workspace_bytes;
    if (bytes > 0) {
        assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
        assert_int_equal(aclrtMemset(workspace, bytes, 0xFF, bytes), 0);
    }
    aclnnStatus status = phase_two(workspace, bytes, ids_executor, twin_stream);
    if (workspace)
        assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    return status;
}

void ids_run(aclnnStatus phase_one, phase_two_fn *phase_two)
{
    if (phase_one != ACLNN_SUCCESS)
        fail_msg("phase one: %d, %s", phase_one, aclGetRecentErrMsg());
    aclnnStatus status = ids_phase_two(phase_two);
    if (status != ACLNN_SUCCESS)
        fail_msg("phase two: %d, %s", status, aclGetRecentErrMsg());
}

void ids_refused(aclnnStatus phase_one, aclnnStatus expected, const char *words)
{
    if (phase_one == ACLNN_SUCCESS)
        aclDestroyAclOpExecutor(ids_executor);
    if (expected == ACLNN_SUCCESS)
        assert_int_equal(phase_one, ACLNN_SUCCESS);
    else
        assert_fails(phase_one, expected, words);
}
