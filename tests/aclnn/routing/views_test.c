/* views_test.c - every tensor of the operators as a view with gaps: the same results, and nothing
 * written into the gaps; and views that no output may be. */
#include "calls.h"

enum {
    BYTES_MAX = 8 * VALUES_MAX,
    RANK_MAX = 3,
    GAP = 2 /* elements from one to the next, and in front of the first */
};

static int shape_of(const aclTensor *tensor, int64_t *shape)
{
    int64_t *dims;
    uint64_t rank;
    assert_int_equal(aclGetViewShape(tensor, &dims, &rank), ACL_SUCCESS);
    assert_true(rank <= RANK_MAX);
    memcpy(shape, dims, rank * sizeof *dims);
    free(dims);
    return (int)rank;
}

/* The tensor's elements in memory of its own, GAP apart; the rest of it is 0xFF. */
static void spread(struct values *values)
{
    unsigned char dense[BYTES_MAX], sparse[BYTES_MAX];
    int64_t shape[RANK_MAX], strides[RANK_MAX], stride = GAP;
    const int rank = shape_of(values->twin.tensor, shape);
    const size_t size = aclDataTypeSize(values->type);
    const int64_t elements = GAP * (values->count + 1);
    assert_true((size_t)elements * size <= sizeof sparse);
    twin_read(&values->twin, dense);
    memset(sparse, 0xFF, sizeof sparse);
    for (int64_t i = 0; i < values->count; i++)
        memcpy(sparse + (size_t)(GAP * (i + 1)) * size, dense + (size_t)i * size, size);
    for (int axis = rank - 1; axis >= 0; axis--) {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    twin_drop(&values->twin);
    values->twin = twin_make(values->type, elements, -1, sparse);
    values_set_view(values, shape, rank, strides, GAP, elements);
}

static void expect_same(const struct values *plain, const struct values *spread_out, int number,
                        int place)
{
    unsigned char dense[BYTES_MAX], sparse[BYTES_MAX];
    const size_t size = aclDataTypeSize(plain->type);
    twin_read(&plain->twin, dense);
    twin_read(&spread_out->twin, sparse);
    for (size_t i = 0; i < spread_out->twin.bytes; i++) {
        const size_t element = i / size;
        const bool gap = element % GAP != 0 || element < GAP;
        const unsigned char expected = gap ? 0xFF : dense[(element / GAP - 1) * size + i % size];
        if (sparse[i] != expected)
            fail_msg("operator %d, tensor %d: byte %zu is %02x, expected %02x%s", number, place, i,
                     sparse[i], expected, gap ? ", a gap" : "");
    }
}

static void spread_out(void **state)
{
    (void)state;
    for (int i = 0; i < operators_num; i++) {
        const struct tested *tested = all_operators[i];
        struct call plain = tested->make(), views = tested->make();
        for (int place = 0; place < TENSORS_MAX; place++)
            if (views.tensor[place].twin.tensor)
                spread(&views.tensor[place]);
        assert_int_equal(tested->phase_one(&plain), ACLNN_SUCCESS);
        assert_int_equal(run(tested->phase_two, plain.bytes, plain.executor), ACLNN_SUCCESS);
        assert_int_equal(tested->phase_one(&views), ACLNN_SUCCESS);
        assert_int_equal(run(tested->phase_two, views.bytes, views.executor), ACLNN_SUCCESS);
        for (int place = 0; place < TENSORS_MAX; place++)
            if (plain.tensor[place].twin.tensor)
                expect_same(&plain.tensor[place], &views.tensor[place], i, place);
        call_drop(&plain);
        call_drop(&views);
    }
}

/* Phase one fails for the tensor at `place` with that stride in the first dimension. */
static void stride_refused(const struct tested *tested, int place, int64_t first, int number)
{
    struct call call = tested->make();
    struct values *values = &call.tensor[place];
    int64_t shape[RANK_MAX], strides[RANK_MAX], stride = 1;
    const int rank = shape_of(values->twin.tensor, shape);
    for (int axis = rank - 1; axis > 0; axis--) {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    strides[0] = first;
    values_set_view(values, shape, rank, strides, first < 0 ? -first * (shape[0] - 1) : 0,
                    values->count);
    const aclnnStatus status = tested->phase_one(&call);
    if (status == ACLNN_SUCCESS || status == ACLNN_ERR_PARAM_NULLPTR ||
        (strstr(aclGetRecentErrMsg(), "stride") == NULL &&
         strstr(aclGetRecentErrMsg(), "memory") == NULL))
        fail_msg("operator %d, tensor %d, stride %lld: %d, \"%s\"", number, place, (long long)first,
                 (int)status, aclGetRecentErrMsg());
    call_drop(&call);
}

static void strides_refused(void **state)
{
    (void)state;
    for (int i = 0; i < operators_num; i++) {
        struct call call = all_operators[i]->make();
        for (int place = 0; place < TENSORS_MAX; place++) {
            int64_t shape[RANK_MAX];
            if (call.tensor[place].twin.tensor == NULL)
                continue;
            const int rank = shape_of(call.tensor[place].twin.tensor, shape);
            stride_refused(all_operators[i], place, rank > 1 ? -shape[1] : -1, i);
            if (place >= all_operators[i]->first_output)
                stride_refused(all_operators[i], place, 0, i);
        }
        call_drop(&call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_out),
        cmocka_unit_test(strides_refused),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
