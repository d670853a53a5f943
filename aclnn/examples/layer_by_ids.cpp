/* layer_by_ids.cpp - a training step with a routing by expert ids, in C++: from logits to experts,
 * rows in expert order, their weighted sum, and all of it backwards. Three tokens, three experts,
 * two of them for each token; every number is exact. */
#include "acl/acl.h"
#include "aclnnop/aclnn_moe_finalize_routing_v2.h"
#include "aclnnop/aclnn_moe_finalize_routing_v2_grad.h"
#include "aclnnop/aclnn_moe_gating_top_k.h"
#include "aclnnop/aclnn_moe_gating_top_k_backward.h"
#include "aclnnop/aclnn_moe_init_routing_v2_grad.h"
#include "aclnnop/aclnn_moe_init_routing_v3.h"

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

    template <typename Element> void write(const std::vector<Element> &host)
    {
        must(aclrtMemcpy(data, bytes, host.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE),
             "aclrtMemcpy");
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

template <typename Element> void print(const char *name, const std::vector<Element> &values)
{
    std::printf("%s", name);
    for (Element value : values)
        std::printf(" %g", static_cast<double>(value));
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

const int64_t T = 3, K = 2, H = 2, E = 3, N = T * K;

/* Expert e makes e + 1 times of what it is given; so does its gradient. */
void runExperts(DeviceTensor &rows, const std::vector<int64_t> &counts)
{
    std::vector<float> values = rows.read<float>();
    size_t next = 0;
    for (size_t e = 0; e < counts.size(); e++)
        for (int64_t i = 0; i < counts[e] * H; i++)
            values[next++] *= static_cast<float>(e + 1);
    rows.write(values);
}

/* The tensors of a step: what forward leaves for backward. */
struct Step {
    DeviceTensor x{ACL_FLOAT, {T, H}, std::vector<float>{1, 2, 3, 4, 5, 6}};
    DeviceTensor logits{ACL_FLOAT, {T, E}, std::vector<float>{0, 0, -8, -8, 0, 0, 0, -8, 0}};
    DeviceTensor weights{ACL_FLOAT, {T, K}, std::vector<float>(N)};
    DeviceTensor ids{ACL_INT32, {T, K}, std::vector<int32_t>(N)};
    DeviceTensor scores{ACL_FLOAT, {T, E}, std::vector<float>(T *E)};
    DeviceTensor rows{ACL_FLOAT, {N, H}, std::vector<float>(N *H)};
    DeviceTensor rowOfSlot{ACL_INT32, {N}, std::vector<int32_t>(N)};
    DeviceTensor counts{ACL_INT64, {E}, std::vector<int64_t>(E)};
};

void forward(Step &s, aclrtStream stream)
{
    DeviceTensor y(ACL_FLOAT, {T, H}, std::vector<float>(T * H));
    uint64_t bytes = 0;
    aclOpExecutor *executor = nullptr;

    /* Each token's two best experts of one group, by sigmoid; their weights add up to 1. */
    must(aclnnMoeGatingTopKGetWorkspaceSize(s.logits.handle, nullptr, K, 1, 1, 0, 0, 1, true, 1, 0,
                                            s.weights.handle, s.ids.handle, s.scores.handle, &bytes,
                                            &executor),
         "gating");
    run(aclnnMoeGatingTopK, bytes, executor, stream);
    print("expert ids:", s.ids.read<int32_t>());
    print("weights:", s.weights.read<float>());

    /* Rows in expert order, the row of each slot, and the number of each expert's rows. */
    must(aclnnMoeInitRoutingV3GetWorkspaceSize(
             s.x.handle, s.ids.handle, nullptr, nullptr, N, 0, E, 0, 1, true, -1, nullptr, 0,
             s.rows.handle, s.rowOfSlot.handle, s.counts.handle, nullptr, &bytes, &executor),
         "init routing");
    run(aclnnMoeInitRoutingV3, bytes, executor, stream);
    print("rows:", s.rows.read<float>());
    print("row of slot:", s.rowOfSlot.read<int32_t>());
    print("rows of expert:", s.counts.read<int64_t>());

    runExperts(s.rows, s.counts.read<int64_t>());

    /* x + the weighted sum of each token's rows; slots in row order. */
    must(aclnnMoeFinalizeRoutingV2GetWorkspaceSize(s.rows.handle, s.rowOfSlot.handle, s.x.handle,
                                                   nullptr, nullptr, s.weights.handle, nullptr, 2,
                                                   y.handle, &bytes, &executor),
         "finalize routing");
    run(aclnnMoeFinalizeRoutingV2, bytes, executor, stream);
    print("y:", y.read<float>());
}

void backward(Step &s, aclrtStream stream)
{
    DeviceTensor yGrad(ACL_FLOAT, {T, H}, std::vector<float>{1, -1, 2, 0, -2, 4});
    DeviceTensor rowsGrad(ACL_FLOAT, {N, H}, std::vector<float>(N * H));
    DeviceTensor weightsGrad(ACL_FLOAT, {T, K}, std::vector<float>(N));
    DeviceTensor xGrad(ACL_FLOAT, {T, H}, std::vector<float>(T * H));
    DeviceTensor logitsGrad(ACL_FLOAT, {T, E}, std::vector<float>(T * E));
    uint64_t bytes = 0;
    aclOpExecutor *executor = nullptr;
    must(aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(
             yGrad.handle, s.rowOfSlot.handle, s.rows.handle, s.weights.handle, nullptr, nullptr, 0,
             0, 0, 0, rowsGrad.handle, weightsGrad.handle, &bytes, &executor),
         "finalize routing grad");
    run(aclnnMoeFinalizeRoutingV2Grad, bytes, executor, stream);
    print("rows grad:", rowsGrad.read<float>());
    print("weights grad:", weightsGrad.read<float>());

    runExperts(rowsGrad, s.counts.read<int64_t>());

    /* Beside yGrad itself, which x has from being added. */
    must(aclnnMoeInitRoutingV2GradGetWorkspaceSize(rowsGrad.handle, s.rowOfSlot.handle, K, 0, 0,
                                                   xGrad.handle, &bytes, &executor),
         "init routing grad");
    run(aclnnMoeInitRoutingV2Grad, bytes, executor, stream);
    print("x grad:", xGrad.read<float>());

    must(aclnnMoeGatingTopKBackwardGetWorkspaceSize(s.scores.handle, weightsGrad.handle,
                                                    s.ids.handle, 0, 1, 1, 0, logitsGrad.handle,
                                                    &bytes, &executor),
         "gating backward");
    run(aclnnMoeGatingTopKBackward, bytes, executor, stream);
    print("logits grad:", logitsGrad.read<float>());
}

} // namespace

int main()
{
    aclrtStream stream;
    must(aclInit(nullptr), "aclInit");
    must(aclrtSetDevice(0), "aclrtSetDevice");
    must(aclrtCreateStream(&stream), "aclrtCreateStream");
    {
        Step step;
        forward(step, stream);
        backward(step, stream);
    }
    must(aclrtDestroyStream(stream), "aclrtDestroyStream");
    must(aclrtResetDevice(0), "aclrtResetDevice");
    must(aclFinalize(), "aclFinalize");
    return 0;
}
