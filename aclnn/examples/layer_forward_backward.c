/* layer_forward_backward.c - the four operators in the order of a training step, in C: three
 * tokens, three experts, two slots a token. t0 goes to experts 0 and 2, t1 to expert 1, t2 to 0 and
 * 1; the second slot of t1 stays empty. The experts here do nothing, so that every value can be
 * followed by hand. */
#include "acl/acl.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    T = 3,
    H = 2,
    E = 3,
    N = 6,
    R = 5
};

static const int64_t tokens_shape[] = {T, H}, rows_shape[] = {R, H}, pairs_shape[] = {T, E};
static const int64_t slots_shape[] = {N}, row_shape[] = {R};

/* Ends the program when a call has failed, with the layer's words. */
static void must(int status, const char *what)
{
    if (status == ACL_SUCCESS)
        return;
    fprintf(stderr, "%s failed with %d: %s\n", what, status, aclGetRecentErrMsg());
    exit(1);
}

struct device_tensor {
    aclTensor *tensor;
    void *data;
    size_t bytes;
    int64_t count;
};

/* A tensor on the device; host may be NULL for an output. */
static struct device_tensor make(aclDataType type, const int64_t *shape, uint64_t rank,
                                 const void *host)
{
    struct device_tensor made = {.count = 1};
    for (uint64_t i = 0; i < rank; i++)
        made.count *= shape[i];
    made.bytes = (size_t)made.count * aclDataTypeSize(type);
    must(aclrtMalloc(&made.data, made.bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    if (host)
        must(aclrtMemcpy(made.data, made.bytes, host, made.bytes, ACL_MEMCPY_HOST_TO_DEVICE),
             "aclrtMemcpy");
    made.tensor =
        aclCreateTensor(shape, rank, type, NULL, 0, ACL_FORMAT_ND, shape, rank, made.data);
    must(made.tensor == NULL, "aclCreateTensor");
    return made;
}

static void drop(struct device_tensor *tensor)
{
    must(aclDestroyTensor(tensor->tensor), "aclDestroyTensor");
    must(aclrtFree(tensor->data), "aclrtFree");
}

static void print_floats(const char *name, const struct device_tensor *tensor)
{
    float values[32];
    must(aclrtMemcpy(values, sizeof values, tensor->data, tensor->bytes, ACL_MEMCPY_DEVICE_TO_HOST),
         "aclrtMemcpy");
    printf("%s", name);
    for (int64_t i = 0; i < tensor->count; i++)
        printf(" %g", (double)values[i]);
    printf("\n");
}

static void print_ints(const char *name, const struct device_tensor *tensor)
{
    int32_t values[32];
    must(aclrtMemcpy(values, sizeof values, tensor->data, tensor->bytes, ACL_MEMCPY_DEVICE_TO_HOST),
         "aclrtMemcpy");
    printf("%s", name);
    for (int64_t i = 0; i < tensor->count; i++)
        printf(" %d", (int)values[i]);
    printf("\n");
}

typedef aclnnStatus (*phase_two)(void *, uint64_t, aclOpExecutor *, aclrtStream);

/* Workspace, phase two, and the stream's end. */
static void run(phase_two operator_function, uint64_t bytes, aclOpExecutor *executor,
                aclrtStream stream, const char *name)
{
    void *workspace = NULL;
    if (bytes > 0)
        must(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    must(operator_function(workspace, bytes, executor, stream), name);
    must(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
    if (workspace)
        must(aclrtFree(workspace), "aclrtFree");
}

static const float tokens_host[T * H] = {1, 2, 3, 4, 5, 6};
static const float probs_host[T * E] = {0.5F, 0, 0.25F, 0, 1, 0, 0.75F, 0.5F, 0};
static const float grad_host[T * H] = {1, -1, 2, 0, -2, 4};
static const int8_t map_host[T * E] = {1, 0, 1, 0, 1, 0, 1, 1, 0};

/* What the steps share. */
static struct device_tensor tokens, map, probs, rows, row_probs, sorted_indices, combined,
    out_index, token_id, combined_grad, rows_grad, probs_grad, tokens_grad;

static void make_all(void)
{
    tokens = make(ACL_FLOAT, tokens_shape, 2, tokens_host);
    map = make(ACL_INT8, pairs_shape, 2, map_host);
    probs = make(ACL_FLOAT, pairs_shape, 2, probs_host);
    rows = make(ACL_FLOAT, rows_shape, 2, NULL);
    row_probs = make(ACL_FLOAT, row_shape, 1, NULL);
    sorted_indices = make(ACL_INT32, slots_shape, 1, NULL);
    combined = make(ACL_FLOAT, tokens_shape, 2, NULL);
    out_index = make(ACL_INT32, slots_shape, 1, NULL);
    token_id = make(ACL_INT32, slots_shape, 1, NULL);
    combined_grad = make(ACL_FLOAT, tokens_shape, 2, grad_host);
    rows_grad = make(ACL_FLOAT, rows_shape, 2, NULL);
    probs_grad = make(ACL_FLOAT, pairs_shape, 2, NULL);
    tokens_grad = make(ACL_FLOAT, tokens_shape, 2, NULL);
}

static void drop_all(void)
{
    struct device_tensor *all[] = {&tokens,        &map,       &probs,      &rows,
                                   &row_probs,     &combined,  &out_index,  &token_id,
                                   &combined_grad, &rows_grad, &probs_grad, &tokens_grad,
                                   &sorted_indices};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
}

static void forward(aclrtStream stream)
{
    uint64_t bytes;
    aclOpExecutor *executor;
    must(aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
             tokens.tensor, map.tensor, probs.tensor, N, false, rows.tensor, row_probs.tensor,
             sorted_indices.tensor, &bytes, &executor),
         "permute, phase one");
    run(aclnnMoeTokenPermuteWithRoutingMap, bytes, executor, stream, "permute, phase two");
    must(aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
             rows.tensor, sorted_indices.tensor, map.tensor, probs.tensor, false, NULL,
             combined.tensor, out_index.tensor, token_id.tensor, NULL, &bytes, &executor),
         "unpermute, phase one");
    run(aclnnMoeTokenUnpermuteWithRoutingMap, bytes, executor, stream, "unpermute, phase two");
}

static void backward(aclrtStream stream)
{
    uint64_t bytes;
    aclOpExecutor *executor;
    must(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
             combined_grad.tensor, out_index.tensor, token_id.tensor, map.tensor, rows.tensor,
             probs.tensor, false, NULL, rows_grad.tensor, probs_grad.tensor, &bytes, &executor),
         "unpermute grad, phase one");
    run(aclnnMoeTokenUnpermuteWithRoutingMapGrad, bytes, executor, stream,
        "unpermute grad, phase two");
    must(aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
             rows_grad.tensor, NULL, sorted_indices.tensor, map.tensor, E, T, false,
             tokens_grad.tensor, NULL, &bytes, &executor),
         "permute grad, phase one");
    run(aclnnMoeTokenPermuteWithRoutingMapGrad, bytes, executor, stream, "permute grad, phase two");
}

int main(void)
{
    aclrtStream stream;
    must(aclInit(NULL), "aclInit");
    must(aclrtSetDevice(0), "aclrtSetDevice");
    must(aclrtCreateStream(&stream), "aclrtCreateStream");
    make_all();
    forward(stream);
    print_floats("permuted tokens:", &rows);
    print_floats("permuted probs:", &row_probs);
    print_ints("sorted indices:", &sorted_indices);
    print_floats("unpermuted tokens:", &combined);
    backward(stream);
    print_floats("permuted tokens grad:", &rows_grad);
    print_floats("probs grad:", &probs_grad);
    print_floats("tokens grad:", &tokens_grad);
    drop_all();
    must(aclrtDestroyStream(stream), "aclrtDestroyStream");
    must(aclrtResetDevice(0), "aclrtResetDevice");
    must(aclFinalize(), "aclFinalize");
    return 0;
}
