/* runtime_test.c - the base calls: life cycle, devices, contexts, memory, copies, tensors and
 * numbers, with every status and corner case. */
#include "twin.h"

#include <pthread.h>

/* First of all: aclFinalize before any aclInit is one end, and what a thread without a context
 * gets. */
static void before_anything(void **state)
{
    (void)state;
    void *memory;
    aclrtStream stream;
    aclrtEvent event;
    aclrtContext context;
    int32_t device;
    assert_string_equal(aclGetRecentErrMsg(), "");
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
    assert_fails(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE, "finalised already");
    assert_fails(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL,
                 "aclrtMalloc: the thread has no context");
    assert_int_equal(aclrtMallocHost(&memory, 8), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtCreateEvent(&event), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtGetCurrentContext(&context), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtSynchronizeStream(NULL), ACL_ERROR_RT_CONTEXT_NULL);
    assert_int_equal(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), ACL_ERROR_RT_CONTEXT_NULL);
}

static void life_cycle(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(aclInit(i == 1 ? "acl.json" : NULL), ACL_SUCCESS);
        assert_fails(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE, "initialised already");
        assert_int_equal(aclnnInit(NULL), ACLNN_SUCCESS);
        assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
        void *memory;
        assert_int_equal(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
        assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
        assert_int_equal(aclnnFinalize(), ACLNN_SUCCESS);
        assert_int_equal(aclrtResetDevice(0), ACL_SUCCESS);
        assert_int_equal(aclFinalize(), ACL_SUCCESS);
        assert_fails(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE, "finalised already");
    }
}

static void devices(void **state)
{
    (void)state;
    int32_t device = 7;
    uint32_t count = 0;
    aclrtRunMode mode = ACL_DEVICE;
    size_t free_bytes = 0, total = 0;
    assert_int_equal(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    assert_int_equal(count, 1);
    assert_fails(aclrtSetDevice(1), ACL_ERROR_RT_INVALID_DEVICEID,
                 "deviceId = 1 is outside [0, 1)");
    assert_int_equal(aclrtGetDevice(&device), ACL_SUCCESS);
    assert_int_equal(device, 0);
    assert_int_equal(aclrtGetRunMode(&mode), ACL_SUCCESS);
    assert_int_equal(mode, ACL_HOST);
    assert_int_equal(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total), ACL_SUCCESS);
    assert_true(free_bytes > 0 && free_bytes <= total);
    assert_int_equal(aclrtGetDeviceCount(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtGetRunMode(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtGetDevice(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtGetMemInfo(ACL_HBM_MEM, NULL, &total), ACL_ERROR_INVALID_PARAM);
    /* Each aclrtSetDevice wants its aclrtResetDevice. */
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtResetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtGetDevice(&device), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeDevice(), ACL_SUCCESS);
    assert_string_equal(aclrtGetSocName(), "host");
}

static void *find_context(void *found)
{
    aclError status = aclrtGetCurrentContext(found);
    return status == ACL_SUCCESS ? found : NULL;
}

static void contexts(void **state)
{
    (void)state;
    aclrtContext own, second, found = NULL, in_thread = NULL;
    pthread_t thread;
    void *result;
    int64_t value = 0;
    assert_int_equal(aclrtGetCurrentContext(&own), ACL_SUCCESS);
    assert_int_equal(aclrtCreateContext(&second, 0), ACL_SUCCESS);
    assert_int_equal(aclrtGetCurrentContext(&found), ACL_SUCCESS);
    assert_ptr_equal(found, second);
    assert_int_equal(aclrtSetCurrentContext(own), ACL_SUCCESS);
    assert_int_equal(aclrtGetCurrentContext(&found), ACL_SUCCESS);
    assert_ptr_equal(found, own);
    /* A thread that sets nothing works in the device's context. */
    assert_int_equal(pthread_create(&thread, NULL, find_context, &in_thread), 0);
    pthread_join(thread, &result);
    assert_non_null(result);
    assert_ptr_equal(in_thread, own);
    assert_int_equal(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0), ACL_SUCCESS);
    assert_int_equal(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), ACL_SUCCESS);
    assert_int_equal(value, 1);
    assert_int_equal(aclrtDestroyContext(second), ACL_SUCCESS);
    assert_fails(aclrtDestroyContext(second), ACL_ERROR_RT_PARAM_INVALID, "is not a live context");
    assert_int_equal(aclrtSetCurrentContext(second), ACL_ERROR_RT_PARAM_INVALID);
    assert_fails(aclrtDestroyContext(own), ACL_ERROR_RT_PARAM_INVALID, "belongs to the device");
    assert_int_equal(aclrtCreateContext(NULL, 0), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtCreateContext(&second, -1), ACL_ERROR_RT_INVALID_DEVICEID);
    assert_int_equal(aclrtSetCurrentContext(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtDestroyContext(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtGetCurrentContext(NULL), ACL_ERROR_INVALID_PARAM);
}

static void memory(void **state)
{
    (void)state;
    void *block = NULL, *host = NULL;
    assert_fails(aclrtMalloc(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM, "NULL");
    assert_fails(aclrtMalloc(&block, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM,
                 "size = 0");
    assert_fails(aclrtMalloc(&block, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST),
                 ACL_ERROR_RT_MEMORY_ALLOCATION, "no memory for 18446744073709551615 bytes");
    assert_int_equal(aclrtMalloc(&block, SIZE_MAX / 2, ACL_MEM_MALLOC_NORMAL_ONLY),
                     ACL_ERROR_RT_MEMORY_ALLOCATION);
    assert_null(block);
    assert_int_equal(aclrtMallocHost(&host, 0), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtMallocHost(NULL, 1), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtFree(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtFreeHost(NULL), ACL_ERROR_INVALID_PARAM);
    for (size_t size = 1; size < 100; size += 31) {
        assert_int_equal(aclrtMalloc(&block, size, ACL_MEM_MALLOC_HUGE_ONLY), ACL_SUCCESS);
        assert_true((uintptr_t)block % 64 == 0);
        /* Rounded up to 32, and 32 spare bytes: device kernels write whole blocks. */
        memset(block, 1, (size + 31) / 32 * 32 + 32);
        assert_int_equal(aclrtFree(block), ACL_SUCCESS);
    }
    assert_fails(aclrtFree(block), ACL_ERROR_RT_PARAM_INVALID, "is not a live device memory");
    assert_int_equal(aclrtMallocHost(&host, 3), ACL_SUCCESS);
    assert_fails(aclrtFree(host), ACL_ERROR_RT_PARAM_INVALID, "it is host memory");
    assert_int_equal(aclrtFreeHost(host), ACL_SUCCESS);
}

static void copies(void **state)
{
    (void)state;
    char from[8] = "abcdefg", to[8] = "";
    struct twin_tensor device = twin_make(ACL_INT8, 8, -1, NULL);
    assert_int_equal(aclrtMemcpy(NULL, 0, NULL, 0, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
    assert_fails(aclrtMemcpy(NULL, 8, from, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                 "dst is NULL");
    assert_fails(aclrtMemcpy(device.data, 8, NULL, 8, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_INVALID_PARAM, "src is NULL");
    assert_fails(aclrtMemcpy(device.data, 7, from, 8, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "count = 8 is above destMax = 7");
    assert_int_equal(aclrtMemcpy(device.data, 8, from, 8, (aclrtMemcpyKind)99),
                     ACL_ERROR_INVALID_PARAM);
    assert_int_equal(((const unsigned char *)device.data)[0], 0xFF);
    assert_int_equal(aclrtMemcpy(device.data, 8, from, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    assert_int_equal(aclrtMemset((char *)device.data + 1, 7, 'x', 2), ACL_SUCCESS);
    assert_int_equal(aclrtMemcpy(to, 8, device.data, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    assert_string_equal(to, "axxdefg");
    assert_int_equal(aclrtMemset(NULL, 8, 0, 8), ACL_ERROR_INVALID_PARAM);
    assert_fails(aclrtMemset(device.data, 8, 0, 9), ACL_ERROR_RT_PARAM_INVALID,
                 "count = 9 is above maxCount = 8");
    twin_drop(&device);
}

static void tensors(void **state)
{
    (void)state;
    const int64_t shape[] = {2, 3}, strides[] = {5, 1}, storage[] = {10};
    int64_t *array = NULL, offset = 0;
    uint64_t count = 0;
    aclFormat format = ACL_FORMAT_UNDEFINED;
    aclDataType type = ACL_DT_UNDEFINED;
    aclTensor *view =
        aclCreateTensor(shape, 2, ACL_BF16, strides, 4, ACL_FORMAT_NCL, storage, 1, NULL);
    assert_non_null(view);
    assert_int_equal(aclGetViewShape(view, &array, &count), ACLNN_SUCCESS);
    assert_true(count == 2 && array[0] == 2 && array[1] == 3);
    free(array);
    assert_int_equal(aclGetViewStrides(view, &array, &count), ACLNN_SUCCESS);
    assert_true(count == 2 && array[0] == 5 && array[1] == 1);
    free(array);
    assert_int_equal(aclGetStorageShape(view, &array, &count), ACLNN_SUCCESS);
    assert_true(count == 1 && array[0] == 10);
    free(array);
    assert_int_equal(aclGetViewOffset(view, &offset), ACLNN_SUCCESS);
    assert_int_equal(aclGetFormat(view, &format), ACLNN_SUCCESS);
    assert_int_equal(aclGetDataType(view, &type), ACLNN_SUCCESS);
    assert_true(offset == 4 && format == ACL_FORMAT_NCL && type == ACL_BF16);
    assert_int_equal(aclGetViewShape(NULL, &array, &count), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclGetViewShape(view, NULL, &count), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclGetViewShape(view, &array, NULL), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclGetDataType(view, NULL), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclDestroyTensor(view), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyTensor(view), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclGetDataType(view, &type), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclDestroyTensor(NULL), ACLNN_SUCCESS);
    assert_null(aclCreateTensor(NULL, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL));
    assert_null(aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 1, NULL));
    view = aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, NULL);
    assert_int_equal(aclGetViewStrides(view, &array, &count), ACLNN_SUCCESS);
    assert_true(array[0] == 3 && array[1] == 1);
    free(array);
    assert_int_equal(aclDestroyTensor(view), ACLNN_SUCCESS);
}

static void int_arrays(void **state)
{
    (void)state;
    const int64_t values[] = {4, 5, 6};
    uint64_t size = 9;
    aclIntArray *arrays[] = {aclCreateIntArray(values, 3), aclCreateIntArray(NULL, 3),
                             aclCreateIntArray(values, 0)};
    for (int i = 0; i < 3; i++) {
        assert_non_null(arrays[i]);
        assert_int_equal(aclGetIntArraySize(arrays[i], &size), ACLNN_SUCCESS);
        assert_int_equal(size, i == 0 ? 3 : 0);
        assert_int_equal(aclDestroyIntArray(arrays[i]), ACLNN_SUCCESS);
    }
    assert_null(aclCreateIntArray(values, UINT64_MAX / 8));
    assert_int_equal(aclDestroyIntArray(NULL), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyIntArray(arrays[0]), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(aclGetIntArraySize(NULL, &size), ACLNN_ERR_PARAM_NULLPTR);
    assert_int_equal(aclDestroyAclOpExecutor(NULL), ACLNN_SUCCESS);
    assert_int_equal(aclSetAclOpExecutorRepeatable(NULL), ACLNN_ERR_INNER_NULLPTR);
}

static void data_types(void **state)
{
    (void)state;
    const struct {
        aclDataType type;
        size_t size;
    } sizes[] = {{ACL_FLOAT, 4},       {ACL_FLOAT16, 2}, {ACL_INT8, 1},   {ACL_INT32, 4},
                 {ACL_UINT8, 1},       {ACL_INT16, 2},   {ACL_UINT16, 2}, {ACL_UINT32, 4},
                 {ACL_INT64, 8},       {ACL_UINT64, 8},  {ACL_DOUBLE, 8}, {ACL_BOOL, 1},
                 {ACL_COMPLEX64, 8},   {ACL_BF16, 2},    {ACL_STRING, 0}, {ACL_COMPLEX128, 16},
                 {ACL_DT_UNDEFINED, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_int_equal(aclDataTypeSize(sizes[i].type), sizes[i].size);
}

/* Every float16 against its definition in double, back to itself, and ties between neighbours. */
static void float16(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
        double value = exponent ? (1024 + fraction) * 0x1p-25 : fraction * 0x1p-24;
        for (unsigned i = 0; exponent && i < exponent; i++)
            value *= 2;
        float found = aclFloat16ToFloat((aclFloat16)bits);
        if (exponent == 31 && fraction) {
            assert_true(found != found);
            assert_int_equal(aclFloatToFloat16(found), bits | 0x200);
            continue;
        }
        if (exponent < 31)
            assert_true((double)found == (bits & 0x8000 ? -value : value));
        assert_int_equal(aclFloatToFloat16(found), bits);
    }
    assert_true(aclFloat16ToFloat(0x7C00) > 3e38F && aclFloat16ToFloat(0xFC00) < -3e38F);
    static const struct {
        float value;
        aclFloat16 expected;
    } rounded[] = {{65519, 0x7BFF},        {65520, 0x7C00},           {1 + 0x1p-11F, 0x3C00},
                   {1 + 0x3p-11F, 0x3C02}, {0x1p-25F, 0x0000},        {0x1.000002p-25F, 0x0001},
                   {0x1.8p-24F, 0x0002},   {0x1.FFFp-15F, 0x0400},    {-0x1p-26F, 0x8000},
                   {3e38F, 0x7C00},        {1 + 0x1.002p-11F, 0x3C01}};
    for (size_t i = 0; i < sizeof rounded / sizeof rounded[0]; i++)
        assert_int_equal(aclFloatToFloat16(rounded[i].value), rounded[i].expected);
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(before_anything),
                                       cmocka_unit_test(life_cycle)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices),    cmocka_unit_test(contexts), cmocka_unit_test(memory),
        cmocka_unit_test(copies),     cmocka_unit_test(tensors),  cmocka_unit_test(int_arrays),
        cmocka_unit_test(data_types), cmocka_unit_test(float16),
    };
    int failed = cmocka_run_group_tests(first, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
