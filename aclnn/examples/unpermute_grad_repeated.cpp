/* unpermute_grad_repeated.cpp - one executor for many steps, in C++: a context of its own, copies
 * and operator in order on a stream, addresses that change from step to step, and events that time
 * it. Links with -lopapi_transformer -lopapi_math in build files of newer CANN versions. */
#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

const int64_t T = 2, H = 2, N = 2;
const size_t bytes = T * H * sizeof(float);

void must(int status, const char *what)
{
    if (status == ACL_SUCCESS)
        return;
    std::fprintf(stderr, "%s failed with %d: %s\n", what, status, aclGetRecentErrMsg());
    std::exit(1);
}

void *deviceMemory(size_t size)
{
    void *memory = nullptr;
    must(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    return memory;
}

aclTensor *describe(aclDataType type, const std::vector<int64_t> &shape, void *data)
{
    aclTensor *tensor = aclCreateTensor(shape.data(), shape.size(), type, nullptr, 0, ACL_FORMAT_ND,
                                        shape.data(), shape.size(), data);
    must(tensor == nullptr, "aclCreateTensor");
    return tensor;
}

/* Copies in, runs, copies out: all in the stream's order, without a wait between. */
void step(aclOpExecutor *executor, aclTensor *grad, void *gradData, const float *host,
          aclTensor *rowsGrad, void *rowsData, float *result, aclrtStream stream)
{
    must(aclrtMemcpyAsync(gradData, bytes, host, bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream),
         "aclrtMemcpyAsync");
    must(aclSetInputTensorAddr(executor, 0, grad, gradData), "aclSetInputTensorAddr");
    must(aclSetOutputTensorAddr(executor, 0, rowsGrad, rowsData), "aclSetOutputTensorAddr");
    void *workspace = deviceMemory(16 * (T + N));
    must(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, 16 * (T + N), executor, stream),
         "phase two");
    must(aclrtMemcpyAsync(result, bytes, rowsData, bytes, ACL_MEMCPY_DEVICE_TO_HOST, stream),
         "aclrtMemcpyAsync");
    must(aclrtSynchronizeStreamWithTimeout(stream, 60000), "aclrtSynchronizeStreamWithTimeout");
    must(aclrtFree(workspace), "aclrtFree");
}

// Four steps with one executor, on two sets of buffers in turn.
void steps(aclOpExecutor *executor, aclTensor *grad, void *const *gradData, float *host,
           aclTensor *rowsGrad, void *const *rowsData, aclrtStream stream)
{
    for (int i = 0; i < 4; i++) {
        float result[T * H];
        for (int j = 0; j < T * H; j++)
            host[j] = static_cast<float>(10 * i + j);
        step(executor, grad, gradData[i % 2], host, rowsGrad, rowsData[i % 2], result, stream);
        std::printf("step %d: %g %g %g %g\n", i, static_cast<double>(result[0]),
                    static_cast<double>(result[1]), static_cast<double>(result[2]),
                    static_cast<double>(result[3]));
    }
}

} // namespace

int main()
{
    aclrtContext context;
    aclrtStream stream;
    aclrtEvent begin, end;
    must(aclInit(nullptr), "aclInit");
    must(aclnnInit(nullptr), "aclnnInit");
    must(aclrtCreateContext(&context, 0), "aclrtCreateContext");
    must(aclrtSetCurrentContext(context), "aclrtSetCurrentContext");
    must(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), "aclrtCtxSetSysParamOpt");
    must(aclrtCreateStream(&stream), "aclrtCreateStream");
    must(aclrtCreateEvent(&begin), "aclrtCreateEvent");
    must(aclrtCreateEvent(&end), "aclrtCreateEvent");

    const int32_t outIndex[N] = {1, 0};
    void *gradData[2] = {deviceMemory(bytes), deviceMemory(bytes)};
    void *rowsData[2] = {deviceMemory(bytes), deviceMemory(bytes)};
    void *indexData = deviceMemory(sizeof outIndex);
    must(aclrtMemcpy(indexData, sizeof outIndex, outIndex, sizeof outIndex,
                     ACL_MEMCPY_HOST_TO_DEVICE),
         "aclrtMemcpy");
    aclTensor *grad = describe(ACL_FLOAT, {T, H}, gradData[0]);
    aclTensor *index = describe(ACL_INT32, {N}, indexData);
    aclTensor *rowsGrad = describe(ACL_FLOAT, {N, H}, rowsData[0]);

    uint64_t workspaceSize = 0;
    aclOpExecutor *executor = nullptr;
    must(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
             grad, index, index, nullptr, nullptr, nullptr, false, nullptr, rowsGrad, nullptr,
             &workspaceSize, &executor),
         "phase one");
    must(aclSetAclOpExecutorRepeatable(executor), "aclSetAclOpExecutorRepeatable");

    float *host = nullptr;
    must(aclrtMallocHost(reinterpret_cast<void **>(&host), bytes), "aclrtMallocHost");
    must(aclrtRecordEvent(begin, stream), "aclrtRecordEvent");
    steps(executor, grad, gradData, host, rowsGrad, rowsData, stream);
    must(aclrtRecordEvent(end, stream), "aclrtRecordEvent");
    must(aclrtSynchronizeEvent(end), "aclrtSynchronizeEvent");
    float milliseconds = -1;
    must(aclrtEventElapsedTime(&milliseconds, begin, end), "aclrtEventElapsedTime");
    std::printf("time is positive: %s\n", milliseconds > 0 ? "yes" : "no");

    must(aclDestroyAclOpExecutor(executor), "aclDestroyAclOpExecutor");
    aclDestroyTensor(grad);
    aclDestroyTensor(index);
    aclDestroyTensor(rowsGrad);
    for (void *memory : {gradData[0], gradData[1], rowsData[0], rowsData[1], indexData})
        must(aclrtFree(memory), "aclrtFree");
    must(aclrtFreeHost(host), "aclrtFreeHost");
    must(aclrtDestroyEvent(begin), "aclrtDestroyEvent");
    must(aclrtDestroyEvent(end), "aclrtDestroyEvent");
    must(aclrtDestroyStream(stream), "aclrtDestroyStream");
    must(aclrtDestroyContext(context), "aclrtDestroyContext");
    must(aclnnFinalize(), "aclnnFinalize");
    must(aclFinalize(), "aclFinalize");
    return 0;
}
