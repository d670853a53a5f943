/* layer_forward_backward.cpp - the four operators in the order of a training step, in C++, with
 * float16 tokens and padded experts: each of two experts takes two of three tokens. t0 and t1 go to
 * expert 0, t1 and t2 to expert 1. Every number is exact in float16. */
#include "acl/acl.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

void must(int status, const char *what)
{
    if (status == ACL_SUCCESS)
        return;
    std::fprintf(stderr, "%s failed with %d: %s\n", what, status, aclGetRecentErrMsg());
    std::exit(1);
}

std::vector<aclFloat16> halves(const std::vector<float> &values)
{
    std::vector<aclFloat16> result;
    for (float value : values)
        result.push_back(aclFloatToFloat16(value));
    return result;
}

/* Memory on the device and its description, given back at the end of its scope. */
class DeviceTensor
{
  public:
    template <typename Element>
    DeviceTensor(aclDataType type, const std::vector<int64_t> &shape,
                 const std::vector<Element> &host)
        : bytes(host.size() * sizeof(Element))
    {
        must(aclrtMalloc(&data, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
        must(aclrtMemcpy(data, bytes, host.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE),
             "aclrtMemcpy");
        handle = aclCreateTensor(shape.data(), shape.size(), type, nullptr, 0, ACL_FORMAT_ND,
                                 shape.data(), shape.size(), data);
        must(handle == nullptr, "aclCreateTensor");
    }
    DeviceTensor(const DeviceTensor &) = delete;
    DeviceTensor &operator=(const DeviceTensor &) = delete;
    ~DeviceTensor()
    {
        aclDestroyTensor(handle);
        aclrtFree(data);
    }

    template <typename Element> std::vector<Element> read() const
    {
        std::vector<Element> host(bytes / sizeof(Element));
        must(aclrtMemcpy(host.data(), bytes, data, bytes, ACL_MEMCPY_DEVICE_TO_HOST),
             "aclrtMemcpy");
        return host;
    }

    aclTensor *handle = nullptr;

  private:
    void *data = nullptr;
    size_t bytes;
};

void print(const char *name, const std::vector<aclFloat16> &values)
{
    std::printf("%s", name);
    for (aclFloat16 value : values)
        std::printf(" %g", static_cast<double>(aclFloat16ToFloat(value)));
    std::printf("\n");
}

void print(const char *name, const std::vector<int32_t> &values)
{
    std::printf("%s", name);
    for (int32_t value : values)
        std::printf(" %d", static_cast<int>(value));
    std::printf("\n");
}

using PhaseTwo = aclnnStatus (*)(void *, uint64_t, aclOpExecutor *, aclrtStream);

void run(PhaseTwo phaseTwo, uint64_t bytes, aclOpExecutor *executor, aclrtStream stream)
{
    void *workspace = nullptr;
    if (bytes > 0)
        must(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    must(phaseTwo(workspace, bytes, executor, stream), "phase two");
    must(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
    if (workspace != nullptr)
        must(aclrtFree(workspace), "aclrtFree");
}

void trainingStep(aclrtStream stream)
{
    const int64_t T = 3, H = 2, E = 2, N = 4;
    const std::vector<aclFloat16> noRows(N * H), noTokens(T * H), noPairs(T * E), noSlots(N);
    const std::vector<int32_t> noIndices(N);
    DeviceTensor tokens(ACL_FLOAT16, {T, H}, halves({1, 2, 3, 4, 5, 6}));
    DeviceTensor map(ACL_BOOL, {T, E}, std::vector<int8_t>{1, 0, 1, 1, 0, 1});
    DeviceTensor probs(ACL_FLOAT16, {T, E}, halves({0.5F, 0, 0.25F, 0.75F, 0, 2}));
    DeviceTensor rows(ACL_FLOAT16, {N, H}, noRows), rowProbs(ACL_FLOAT16, {N}, noSlots);
    DeviceTensor sorted(ACL_INT32, {N}, noIndices), outIndex(ACL_INT32, {N}, noIndices);
    DeviceTensor tokenId(ACL_INT32, {N}, noIndices), weights(ACL_FLOAT16, {N}, noSlots);
    DeviceTensor combined(ACL_FLOAT16, {T, H}, noTokens);
    uint64_t bytes = 0;
    aclOpExecutor *executor = nullptr;

    must(aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(tokens.handle, map.handle, probs.handle,
                                                            N, true, rows.handle, rowProbs.handle,
                                                            sorted.handle, &bytes, &executor),
         "permute");
    run(aclnnMoeTokenPermuteWithRoutingMap, bytes, executor, stream);
    print("permuted tokens:", rows.read<aclFloat16>());
    print("permuted probs:", rowProbs.read<aclFloat16>());
    print("sorted indices:", sorted.read<int32_t>());

    must(aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
             rows.handle, sorted.handle, map.handle, probs.handle, true, nullptr, combined.handle,
             outIndex.handle, tokenId.handle, weights.handle, &bytes, &executor),
         "unpermute");
    run(aclnnMoeTokenUnpermuteWithRoutingMap, bytes, executor, stream);
    print("unpermuted tokens:", combined.read<aclFloat16>());
    print("out index:", outIndex.read<int32_t>());
    print("permute token id:", tokenId.read<int32_t>());

    DeviceTensor combinedGrad(ACL_FLOAT16, {T, H}, halves({1, -1, 2, 0, -2, 4}));
    DeviceTensor rowsGrad(ACL_FLOAT16, {N, H}, noRows), probsGrad(ACL_FLOAT16, {T, E}, noPairs);
    DeviceTensor tokensGrad(ACL_FLOAT16, {T, H}, noTokens);
    must(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
             combinedGrad.handle, outIndex.handle, tokenId.handle, map.handle, rows.handle,
             probs.handle, true, nullptr, rowsGrad.handle, probsGrad.handle, &bytes, &executor),
         "unpermute grad");
    run(aclnnMoeTokenUnpermuteWithRoutingMapGrad, bytes, executor, stream);
    print("permuted tokens grad:", rowsGrad.read<aclFloat16>());
    print("probs grad:", probsGrad.read<aclFloat16>());

    must(aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
             rowsGrad.handle, nullptr, sorted.handle, map.handle, E, T, true, tokensGrad.handle,
             nullptr, &bytes, &executor),
         "permute grad");
    run(aclnnMoeTokenPermuteWithRoutingMapGrad, bytes, executor, stream);
    print("tokens grad:", tokensGrad.read<aclFloat16>());
}

} // namespace

int main()
{
    aclrtStream stream;
    must(aclInit(nullptr), "aclInit");
    must(aclrtSetDevice(0), "aclrtSetDevice");
    must(aclrtCreateStream(&stream), "aclrtCreateStream");
    trainingStep(stream);
    must(aclrtDestroyStream(stream), "aclrtDestroyStream");
    must(aclrtResetDevice(0), "aclrtResetDevice");
    must(aclFinalize(), "aclFinalize");
    return 0;
}
