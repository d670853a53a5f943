/* meta_test.c - arrays, scalars, lists and the other base calls around them: sizes, statuses, who
 * owns what. */
#include "twin.h"

/* acl_base.h and acl_rt.h alone declare these; newer types and formats have CANN's numbers. */
static void numbers_of_types(void **state)
{
    (void)state;
    assert_int_equal(ACL_FORMAT_NCDHW, 30);
    assert_int_equal(ACL_FORMAT_NDHWC, 27);
    assert_int_equal(ACL_FORMAT_NC, 35);
    assert_int_equal(ACL_INT4, 29);
    assert_int_equal(ACL_COMPLEX32, 33);
    assert_int_equal(ACL_HIFLOAT8, 34);
    assert_int_equal(ACL_FLOAT8_E4M3FN, 36);
    assert_int_equal(ACL_FLOAT4_E1M2, 41);
    assert_int_equal(aclDataTypeSize(ACL_FLOAT8_E5M2), 1);
    assert_int_equal(aclDataTypeSize(ACL_COMPLEX32), 4);
    assert_int_equal(aclDataTypeSize(ACL_INT4), 0);
}

static void arrays(void **state)
{
    (void)state;
    const float floats[] = {1, 2, 3};
    const bool bools[] = {true, false};
    uint64_t size = 9;
    aclFloatArray *float_array = aclCreateFloatArray(floats, 3);
    aclBoolArray *bool_array = aclCreateBoolArray(bools, 2);
    assert_int_equal(aclGetFloatArraySize(float_array, &size), ACLNN_SUCCESS);
    assert_int_equal(size, 3);
    assert_int_equal(aclGetBoolArraySize(bool_array, &size), ACLNN_SUCCESS);
    assert_int_equal(size, 2);
    assert_int_equal(aclGetFloatArraySize(NULL, &size), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclGetBoolArraySize(bool_array, NULL), ACLNN_ERR_PARAM_NULLPTR);
    /* One kind is not another. */
    assert_fails(aclGetFloatArraySize((const aclFloatArray *)bool_array, &size),
                 ACLNN_ERR_PARAM_INVALID, "it is bool array #");
    assert_int_equal(aclDestroyFloatArray(float_array), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyFloatArray(float_array), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclDestroyBoolArray(bool_array), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyBoolArray(NULL), ACLNN_SUCCESS);
    assert_null(aclCreateFloatArray(floats, UINT64_MAX));
}

static void scalars(void **state)
{
    (void)state;
    float value = 2;
    aclScalar *scalar = aclCreateScalar(&value, ACL_FLOAT);
    assert_non_null(scalar);
    assert_null(aclCreateScalar(NULL, ACL_FLOAT));
    assert_null(aclCreateScalar(&value, ACL_STRING));
    assert_int_equal(aclDestroyScalar(scalar), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyScalar(scalar), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclDestroyScalar(NULL), ACLNN_SUCCESS);
}

static aclTensor *pair(void *data)
{
    const int64_t shape[] = {2};
    return aclCreateTensor(shape, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 1, data);
}

/* A list takes its elements over. */
static void lists(void **state)
{
    (void)state;
    float value = 1;
    uint64_t size = 0;
    aclDataType type;
    const aclTensor *tensors[] = {pair(NULL), NULL, pair(NULL)};
    const aclScalar *scalars[] = {aclCreateScalar(&value, ACL_FLOAT)};
    aclTensorList *tensor_list = aclCreateTensorList(tensors, 3);
    aclScalarList *scalar_list = aclCreateScalarList(scalars, 1);
    assert_int_equal(aclGetTensorListSize(tensor_list, &size), ACLNN_SUCCESS);
    assert_int_equal(size, 3);
    assert_int_equal(aclGetScalarListSize(scalar_list, &size), ACLNN_SUCCESS);
    assert_int_equal(size, 1);
    assert_int_equal(aclGetScalarListSize(scalar_list, NULL), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclDestroyTensorList(tensor_list), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyScalarList(scalar_list), ACLNN_SUCCESS);
    assert_int_equal(aclGetDataType(tensors[2], &type), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclDestroyScalar(scalars[0]), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclGetTensorListSize(tensor_list, &size), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclDestroyTensorList(NULL), ACLNN_SUCCESS);
}

static void tensors_anew(void **state)
{
    (void)state;
    float first[2], second[6];
    const int64_t shape[] = {3, 2};
    int64_t *dims = NULL;
    uint64_t rank = 0;
    void *address = NULL;
    aclTensor *tensor = pair(first);
    assert_int_equal(aclGetRawTensorAddr(tensor, &address), ACLNN_SUCCESS);
    assert_ptr_equal(address, first);
    assert_int_equal(aclSetRawTensorAddr(tensor, second), ACLNN_SUCCESS);
    assert_int_equal(aclGetRawTensorAddr(tensor, &address), ACLNN_SUCCESS);
    assert_ptr_equal(address, second);
    assert_int_equal(
        aclInitTensor(tensor, shape, 2, ACL_BF16, NULL, 1, ACL_FORMAT_ND, shape, 2, first),
        ACLNN_SUCCESS);
    assert_int_equal(aclGetViewStrides(tensor, &dims, &rank), ACLNN_SUCCESS);
    assert_true(rank == 2 && dims[0] == 2 && dims[1] == 1);
    free(dims);
    assert_int_equal(aclGetRawTensorAddr(tensor, &address), ACLNN_SUCCESS);
    assert_ptr_equal(address, first);
    assert_int_equal(
        aclInitTensor(NULL, shape, 2, ACL_BF16, NULL, 0, ACL_FORMAT_ND, shape, 2, first),
        ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(
        aclInitTensor(tensor, NULL, 2, ACL_BF16, NULL, 0, ACL_FORMAT_ND, shape, 2, first),
        ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclGetRawTensorAddr(NULL, &address), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclGetRawTensorAddr(tensor, NULL), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclSetRawTensorAddr(NULL, first), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclDestroyTensor(tensor), ACLNN_SUCCESS);
    assert_int_equal(aclSetRawTensorAddr(tensor, first), ACLNN_ERR_PARAM_INVALID);
}

/* The setters of addresses, under both names, alone and through a list. */
static void addresses(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    const aclTensor *element[] = {call.grad.tensor};
    aclTensorList *list = aclCreateTensorList(element, 1);
    float elsewhere[6] = {0};
    void *data = call.grad.data, *found = NULL;
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(AclSetInputTensorAddr(call.executor, 0, call.grad.tensor, elsewhere), 0);
    assert_int_equal(aclGetRawTensorAddr(call.grad.tensor, &found), ACLNN_SUCCESS);
    assert_ptr_equal(found, elsewhere);
    assert_int_equal(AclSetTensorAddr(call.executor, 0, call.grad.tensor, elsewhere), 0);
    assert_int_equal(
        AclSetOutputTensorAddr(call.executor, 0, call.rows_grad.tensor, call.rows_grad.data), 0);
    assert_int_equal(aclSetDynamicTensorAddr(call.executor, 0, 0, list, elsewhere), 0);
    assert_int_equal(AclSetDynamicTensorAddr(call.executor, 0, 0, list, elsewhere), 0);
    assert_int_equal(aclSetDynamicInputTensorAddr(call.executor, 0, 0, list, data), 0);
    assert_int_equal(AclSetDynamicInputTensorAddr(call.executor, 0, 0, list, data), 0);
    assert_fails(aclSetDynamicInputTensorAddr(call.executor, 0, 1, list, data),
                 ACLNN_ERR_PARAM_INVALID, "relativeIndex = 1, the list has 1 tensors");
    assert_int_equal(aclSetDynamicInputTensorAddr(call.executor, 0, 0, NULL, data),
                     ACLNN_ERR_INNER_NULLPTR);
    assert_int_equal(aclSetDynamicOutputTensorAddr(NULL, 0, 0, list, data),
                     ACLNN_ERR_INNER_NULLPTR);
    assert_int_equal(AclSetDynamicOutputTensorAddr(call.executor, 7, 0, list, data),
                     ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_memory_equal(call.rows_grad.data, example_rows_grad, sizeof example_rows_grad);
    assert_int_equal(aclDestroyTensorList(list), ACLNN_SUCCESS);
    call.grad.tensor = pair(data);
    grad_call_drop(&call);
}

static void options_and_versions(void **state)
{
    (void)state;
    int32_t major = 0, minor = 0, patch = -1;
    int64_t value = 0;
    void *memory = NULL;
    assert_int_equal(aclrtGetVersion(&major, &minor, &patch), ACL_SUCCESS);
    assert_true(major == 1 && minor == ACL_MINOR_VERSION && patch == ACL_PATCH_VERSION);
    assert_int_equal(aclrtGetVersion(&major, NULL, &patch), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0), ACL_SUCCESS);
    assert_int_equal(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), ACL_SUCCESS);
    assert_int_equal(value, 1);
    assert_fails(aclrtGetSysParamOpt((aclSysParamOpt)77, &value), ACL_ERROR_INVALID_PARAM,
                 "opt = 77 is unknown");
    assert_int_equal(aclrtSetSysParamOpt((aclSysParamOpt)77, 1), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtCtxGetSysParamOpt((aclSysParamOpt)77, &value), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtCtxSetSysParamOpt((aclSysParamOpt)77, 1), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtMallocAlign32(&memory, 3, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    assert_int_equal(aclrtMemset(NULL, 0, 0, 0), ACL_SUCCESS);
    char host[4] = "abc", back[4] = "";
    for (int kind = ACL_MEMCPY_DEFAULT; kind <= ACL_MEMCPY_INTER_DEVICE_TO_DEVICE; kind++) {
        host[0] = (char)('a' + kind);
        assert_int_equal(aclrtMemcpy(memory, 3, host, 3, (aclrtMemcpyKind)kind), ACL_SUCCESS);
        assert_int_equal(aclrtMemcpy(back, 3, memory, 3, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
        assert_string_equal(back, host);
    }
    assert_int_equal(aclrtMemcpy(memory, 3, host, 3, (aclrtMemcpyKind)8), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
}

/* Every aclInit counts, aclFinalizeReference counts down, aclFinalize ends whatever the count. */
static void references(void **state)
{
    (void)state;
    uint64_t left = 9;
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_int_equal(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclFinalizeReference(&left), ACL_SUCCESS);
    assert_int_equal(left, 1);
    int32_t device = 7;
    assert_int_equal(aclrtGetDevice(&device), ACL_SUCCESS); /* not ended yet */
    assert_int_equal(aclFinalizeReference(&left), ACL_SUCCESS);
    assert_int_equal(left, 0);
    assert_int_equal(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclFinalizeReference(NULL), ACL_ERROR_REPEAT_FINALIZE);
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_int_equal(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
    assert_int_equal(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    /* Set twice, reset once, by force. */
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtResetDeviceForce(1), ACL_ERROR_RT_INVALID_DEVICEID);
    assert_int_equal(aclrtResetDeviceForce(0), ACL_SUCCESS);
    assert_int_equal(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(references)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_types),
        cmocka_unit_test(arrays),
        cmocka_unit_test(scalars),
        cmocka_unit_test(lists),
        cmocka_unit_test(tensors_anew),
        cmocka_unit_test(addresses),
        cmocka_unit_test(options_and_versions),
    };
    int failed = cmocka_run_group_tests(first, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
