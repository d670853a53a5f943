/* unpermute_grad_padded.c - unpermute_grad with padded experts, in C, and what a fault in the
 * program looks like: the second call names a row that does not exist, and the layer says which. */
#include "acl/acl.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    T = 3,
    H = 1,
    E = 3,
    N = 6
};

static void must(int status, const char *what)
{
    if (status == ACL_SUCCESS)
        return;
    fprintf(stderr, "%s failed with %d: %s\n", what, status, aclGetRecentErrMsg());
    exit(1);
}

static aclTensor *make(aclDataType type, int64_t rows, int64_t columns, const void *host,
                       void **data)
{
    int64_t shape[] = {rows, columns};
    uint64_t rank = columns ? 2 : 1;
    size_t bytes = (size_t)(rows * (columns ? columns : 1)) * aclDataTypeSize(type);
    must(aclrtMalloc(data, bytes, ACL_MEM_MALLOC_NORMAL_ONLY), "aclrtMalloc");
    must(aclrtMemcpy(*data, bytes, host, bytes, ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy");
    aclTensor *tensor =
        aclCreateTensor(shape, rank, type, NULL, 0, ACL_FORMAT_ND, shape, rank, *data);
    must(tensor == NULL, "aclCreateTensor");
    return tensor;
}

static void copy_back(void *host, const void *device, size_t bytes)
{
    must(aclrtMemcpy(host, bytes, device, bytes, ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy");
}

static void print(const char *title, const float *values, int count)
{
    printf("%s:", title);
    for (int i = 0; i < count; i++)
        printf(" %g", (double)values[i]);
    printf("\n");
}

int main(void)
{
    /* Experts take tokens {0,2}, {1,2} and {0,1}; token 1 is a fill of expert 2. */
    int32_t out_index[N] = {0, 4, 2, 5, 1, 3}, token_id[N] = {0, 0, 1, 1, 2, 2};
    int8_t map[T * E] = {1, 0, 1, 0, 1, 0, 1, 1, 0};
    float grad[T * H] = {1, 2, 4}, rows[N * H] = {1, 2, 3, 4, 5, 6}, zeros[T * E] = {0};
    float probs[T * E] = {0.5F, 0, 0.25F, 0, 1, 0.125F, 2, 3, 0};
    void *data[8];
    aclTensor *tensors[8];
    aclrtStream stream;
    must(aclInit(NULL), "aclInit");
    must(aclrtSetDevice(0), "aclrtSetDevice");
    must(aclrtCreateStream(&stream), "aclrtCreateStream");
    tensors[0] = make(ACL_FLOAT, T, H, grad, &data[0]);
    tensors[1] = make(ACL_INT32, N, 0, out_index, &data[1]);
    tensors[2] = make(ACL_INT32, N, 0, token_id, &data[2]);
    tensors[3] = make(ACL_INT8, T, E, map, &data[3]);
    tensors[4] = make(ACL_FLOAT, N, H, rows, &data[4]);
    tensors[5] = make(ACL_FLOAT, T, E, probs, &data[5]);
    tensors[6] = make(ACL_FLOAT, N, H, rows, &data[6]);
    tensors[7] = make(ACL_FLOAT, T, E, zeros, &data[7]);
    uint64_t bytes;
    aclOpExecutor *executor;
    void *workspace;
    must(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
             tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5], true, NULL,
             tensors[6], tensors[7], &bytes, &executor),
         "phase one");
    must(aclSetAclOpExecutorRepeatable(executor), "aclSetAclOpExecutorRepeatable");
    must(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_NORMAL_ONLY), "aclrtMalloc");
    must(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes, executor, stream), "phase two");
    must(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
    float rows_grad[N * H], probs_grad[T * E];
    copy_back(rows_grad, data[6], sizeof rows_grad);
    copy_back(probs_grad, data[7], sizeof probs_grad);
    print("permuted tokens grad", rows_grad, N);
    print("probs grad", probs_grad, T * E);

    out_index[3] = 6; /* rows are 0 to 5 */
    must(aclrtMemcpy(data[1], sizeof out_index, out_index, sizeof out_index,
                     ACL_MEMCPY_HOST_TO_DEVICE),
         "aclrtMemcpy");
    int status = aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes, executor, stream);
    printf("with a wrong row: %d, %s\n", status, aclGetRecentErrMsg());

    must(aclDestroyAclOpExecutor(executor), "aclDestroyAclOpExecutor");
    must(aclrtFree(workspace), "aclrtFree");
    for (int i = 0; i < 8; i++) {
        must(aclDestroyTensor(tensors[i]), "aclDestroyTensor");
        must(aclrtFree(data[i]), "aclrtFree");
    }
    must(aclrtDestroyStream(stream), "aclrtDestroyStream");
    must(aclrtResetDevice(0), "aclrtResetDevice");
    must(aclFinalize(), "aclFinalize");
    return 0;
}
