/* call.c - what calls.h has for any operator's call. */
#include "calls.h"

void call_drop(struct call *call)
{
    for (int i = 0; i < TENSORS_MAX; i++)
        values_drop(&call->tensor[i]);
    assert_int_equal(aclDestroyIntArray(call->range), ACL_SUCCESS);
}

void call_set_range(struct call *call, const int64_t *values, uint64_t count)
{
    assert_int_equal(aclDestroyIntArray(call->range), ACL_SUCCESS);
    call->range = aclCreateIntArray(values, count);
}

void call_replace(struct call *call, int place, struct values by)
{
    values_drop(&call->tensor[place]);
    call->tensor[place] = by;
}

/* ---- refusals ------------------------------------------------------------------------------- */

void expect_refused(const struct tested *tested, struct call *call, aclnnStatus status,
                    const char *words, int line)
{
    twin_assert_fails(tested->phase_one(call), status, words, line);
    call_drop(call);
}

void refuse_without(const struct tested *tested, int place, aclnnStatus status, const char *words,
                    int line)
{
    struct call call = tested->make();
    call_replace(&call, place, (struct values){.count = 0});
    expect_refused(tested, &call, status, words, line);
}

void refuse_with(const struct tested *tested, int place, struct values by, aclnnStatus status,
                 const char *words, int line)
{
    struct call call = tested->make();
    call_replace(&call, place, by);
    expect_refused(tested, &call, status, words, line);
}

void refuse_option(const struct tested *tested, int number, int64_t value, aclnnStatus status,
                   const char *words, int line)
{
    struct call call = tested->make();
    call.option[number] = value;
    expect_refused(tested, &call, status, words, line);
}

void refuse_values(const struct tested *tested, int place, struct values by, const char *words,
                   int line)
{
    struct call call = tested->make();
    call_replace(&call, place, by);
    assert_int_equal(tested->phase_one(&call), ACLNN_SUCCESS);
    twin_assert_fails(run(tested->phase_two, call.bytes, call.executor),
                      ACLNN_ERR_INNER_TILING_ERROR, words, line);
    for (int i = tested->first_output; i < TENSORS_MAX; i++)
        if (call.tensor[i].twin.tensor)
            values_expect_untouched(&call.tensor[i], words);
    call_drop(&call);
}
