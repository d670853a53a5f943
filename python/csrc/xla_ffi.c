/* xla_ffi.c - the four operators as XLA custom calls: buffers of a compiled JAX program ->
 * DLTensors over the same memory -> the library.
 *
 * Attributes are int64 scalars: "arguments" and "results" are masks that say which of the
 * operator's tensors the call carries (bit i: the i-th of its table below), the others are the
 * operator's numbers. A call may be batched by vmap: then each buffer has the same number of
 * leading dimensions more than its table says, of the batch's size or, when it is the same for the
 * whole batch, of size 1. */
#include "xla_ffi.h"

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_TENSORS 8
#define MAX_RANK    8

struct handler_call {
    struct xla_call_frame *frame;
    const char *problem; /* NULL: none; else what is wrong with the call itself */
    int count, batch_rank;
    const struct xla_buffer *buffers[MAX_TENSORS]; /* NULL: absent */
    DLTensor storage[MAX_TENSORS];
    const DLTensor *tensors[MAX_TENSORS];
    int64_t batch[MAX_RANK];
};

static struct xla_error *report(const struct xla_call_frame *frame, int code, const char *message)
{
    struct xla_error_create create = {
        .struct_size = sizeof create, .message = message, .code = code};
    /* cppcheck-suppress returnDanglingLifetime ; the runtime makes an error of its own */
    return frame->api->create_error(&create);
}

/* The runtime first asks which version of the interface a handler was written for. */
static bool answer_metadata(const struct xla_call_frame *frame)
{
    struct xla_extension *extension = frame->extension;
    if (!extension || extension->type != XLA_EXTENSION_METADATA)
        return false;
    struct xla_metadata *metadata = ((struct xla_metadata_extension *)(void *)extension)->metadata;
    metadata->version = (struct xla_version){.struct_size = sizeof metadata->version,
                                             .major = XLA_FFI_VERSION_MAJOR,
                                             .minor = XLA_FFI_VERSION_MINOR};
    metadata->traits = 0;
    return true;
}

static int64_t attribute(struct handler_call *call, const char *name)
{
    const struct xla_attributes *attributes = &call->frame->attributes;
    for (int64_t i = 0; i < attributes->count; i++) {
        const struct xla_text *text = attributes->names[i];
        if (text->length != strlen(name) || memcmp(text->characters, name, text->length) != 0)
            continue;
        const struct xla_scalar *scalar = attributes->values[i];
        if (attributes->kinds[i] == XLA_ATTRIBUTE_SCALAR && scalar->type == XLA_TYPE_S64)
            return *(const int64_t *)scalar->value;
    }
    call->problem = "an attribute is missing or is no int64";
    return 0;
}

static DLDataType dlpack_type(int type)
{
    switch (type) {
    case XLA_TYPE_F32:
        return moetoken_dtype(MOETOKEN_F32);
    case XLA_TYPE_F16:
        return moetoken_dtype(MOETOKEN_F16);
    case XLA_TYPE_BF16:
        return moetoken_dtype(MOETOKEN_BF16);
    case XLA_TYPE_F64:
        return moetoken_dtype(MOETOKEN_F64);
    case XLA_TYPE_S32:
        return moetoken_dtype(MOETOKEN_I32);
    case XLA_TYPE_S64:
        return moetoken_dtype(MOETOKEN_I64);
    case XLA_TYPE_PRED:
        return moetoken_dtype(MOETOKEN_BOOL);
    case XLA_TYPE_S8:
        return moetoken_dtype(MOETOKEN_I8);
    case XLA_TYPE_U8:
        return moetoken_dtype(MOETOKEN_U8);
    default:
        return (DLDataType){0, 0, 0};
    }
}

/* Gives the buffers of one side (arguments or results) to the tensors that its mask names. */
static void take_buffers(struct handler_call *call, const struct xla_buffers *side, int first,
                         int count, int64_t mask)
{
    int64_t next = 0;
    for (int i = 0; i < count; i++) {
        call->buffers[first + i] = NULL;
        if (!(mask >> i & 1))
            continue;
        if (next >= side->count || side->kinds[next] != XLA_KIND_BUFFER) {
            call->problem = "fewer buffers than the mask of arguments or results says";
            return;
        }
        call->buffers[first + i] = side->buffers[next++];
    }
    if (next != side->count)
        call->problem = "more buffers than the mask of arguments or results says";
}

/* Finds the leading batch dimensions: the same number for every tensor, sizes alike or 1. */
static void find_batch(struct handler_call *call, const int *ranks)
{
    call->batch_rank = -1;
    for (int i = 0; i < call->count && !call->problem; i++) {
        const struct xla_buffer *buffer = call->buffers[i];
        if (!buffer)
            continue;
        int64_t extra = buffer->rank - ranks[i];
        if (extra < 0) {
            call->problem = "a tensor has fewer dimensions than the operator's";
            return;
        }
        if (call->batch_rank < 0 && extra <= MAX_RANK) {
            call->batch_rank = (int)extra;
            for (int64_t dim = 0; dim < extra; dim++)
                call->batch[dim] = 1;
        }
        if (extra != call->batch_rank) {
            call->problem = "two tensors have a different number of batch dimensions";
            return;
        }
        for (int dim = 0; dim < call->batch_rank; dim++) {
            int64_t size = buffer->shape[dim];
            if (size != 1 && call->batch[dim] != 1 && size != call->batch[dim])
                call->problem = "two tensors have batch dimensions of different sizes";
            else if (size != 1)
                call->batch[dim] = size;
        }
    }
}

/* The tensors over the buffers, without their batch dimensions. */
static void make_tensors(struct handler_call *call, const int *ranks)
{
    for (int i = 0; i < call->count; i++) {
        const struct xla_buffer *buffer = call->buffers[i];
        call->tensors[i] = buffer ? &call->storage[i] : NULL;
        if (buffer)
            call->storage[i] = (DLTensor){.device = {kDLCPU, 0},
                                          .ndim = ranks[i],
                                          .dtype = dlpack_type(buffer->type),
                                          .shape = buffer->shape + call->batch_rank};
    }
}

static bool open_call(struct handler_call *call, struct xla_call_frame *frame, const int *ranks,
                      int inputs, int outputs)
{
    call->frame = frame;
    call->problem = NULL;
    call->count = inputs + outputs;
    if (frame->stage != XLA_STAGE_EXECUTE)
        call->problem = "the handler is for the execute stage alone";
    int64_t arguments = attribute(call, "arguments"), results = attribute(call, "results");
    if (!call->problem)
        take_buffers(call, &frame->arguments, 0, inputs, arguments);
    if (!call->problem)
        take_buffers(call, &frame->results, inputs, outputs, results);
    if (!call->problem)
        find_batch(call, ranks);
    if (!call->problem)
        make_tensors(call, ranks);
    return !call->problem;
}

static int64_t batch_count(const struct handler_call *call)
{
    int64_t count = 1;
    for (int dim = 0; dim < call->batch_rank; dim++)
        count *= call->batch[dim];
    return count;
}

/* The elements of a tensor before the batch's item `item`; dimensions of size 1 stay where they
 * are. */
static int64_t item_offset(const struct handler_call *call, const struct xla_buffer *buffer,
                           int64_t item)
{
    int64_t size = 1, offset = 0;
    for (int64_t dim = call->batch_rank; dim < buffer->rank; dim++)
        size *= buffer->shape[dim];
    for (int dim = call->batch_rank - 1; dim >= 0; dim--) {
        int64_t position = item % call->batch[dim];
        item /= call->batch[dim];
        if (buffer->shape[dim] != 1)
            offset += position * size;
        size *= buffer->shape[dim];
    }
    return offset;
}

static void select_item(struct handler_call *call, int64_t item)
{
    for (int i = 0; i < call->count; i++) {
        const struct xla_buffer *buffer = call->buffers[i];
        if (buffer)
            call->storage[i].data = (char *)buffer->data + item_offset(call, buffer, item) *
                                                               (call->storage[i].dtype.bits / 8);
    }
}

/* Runs the operator, whose arguments point to the call's tensors, for each item of the batch. */
static struct xla_error *run_batch(struct handler_call *call,
                                   moetoken_status (*run)(const void *args,
                                                          const moetoken_options *options),
                                   const void *args)
{
    int64_t flags = attribute(call, "flags"), threads = attribute(call, "threads");
    if (call->problem)
        return report(call->frame, XLA_ERROR_INVALID_ARGUMENT, call->problem);
    moetoken_options options = {.flags = (uint32_t)flags, .threads = (int32_t)threads};
    int64_t count = batch_count(call);
    for (int64_t item = 0; item < count; item++) {
        select_item(call, item);
        moetoken_status status = run(args, &options);
        if (status != MOETOKEN_OK)
            return report(call->frame,
                          status == MOETOKEN_ERR_MEMORY ? XLA_ERROR_RESOURCE_EXHAUSTED
                                                        : XLA_ERROR_INVALID_ARGUMENT,
                          moetoken_last_error());
    }
    return NULL;
}

/* What every handler does first. True: *result is to be returned. */
static bool answered(struct xla_call_frame *frame, struct handler_call *call, const int *ranks,
                     int inputs, int outputs, struct xla_error **result)
{
    *result = NULL;
    if (answer_metadata(frame))
        return true;
    if (frame->api->version.major != XLA_FFI_VERSION_MAJOR || frame->struct_size < sizeof *frame) {
        *result = report(frame, XLA_ERROR_UNIMPLEMENTED,
                         "moetoken: this version of XLA's foreign function interface is unknown");
        return true;
    }
    if (!open_call(call, frame, ranks, inputs, outputs))
        *result = report(frame, XLA_ERROR_INVALID_ARGUMENT, call->problem);
    return *result != NULL;
}

static moetoken_status run_unpermute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute_grad(args, options);
}

static moetoken_status run_unpermute(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute(args, options);
}

static moetoken_status run_permute(const void *args, const moetoken_options *options)
{
    return moetoken_permute(args, options);
}

static moetoken_status run_permute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_permute_grad(args, options);
}

typedef struct xla_error *xla_handler(struct xla_call_frame *frame);
MOETOKEN_API xla_handler moetoken_xla_unpermute_grad, moetoken_xla_unpermute, moetoken_xla_permute,
    moetoken_xla_permute_grad, moetoken_xla_unpermute_grad_by_ids, moetoken_xla_unpermute_by_ids,
    moetoken_xla_permute_by_ids, moetoken_xla_permute_grad_by_ids;

struct xla_error *moetoken_xla_unpermute_grad(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2, 2, 2, 2};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 6, 2, &error))
        return error;
    DLTensor unread; /* stands for permuted_tokens, which the library wants to see described */
    if (!call.tensors[4] && call.tensors[5] && call.tensors[6] && !call.tensors[7]) {
        unread = *call.tensors[6];
        unread.data = NULL;
        call.tensors[4] = &unread;
    }
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permute_token_id = call.tensors[2],
                                         .routing_map = call.tensors[3],
                                         .permuted_tokens = call.tensors[4],
                                         .probs = call.tensors[5],
                                         .drop_and_pad = attribute(&call, "drop_and_pad") != 0,
                                         .permuted_tokens_grad = call.tensors[6],
                                         .probs_grad = call.tensors[7]};
    return run_batch(&call, run_unpermute_grad, &args);
}

struct xla_error *moetoken_xla_unpermute(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 1, 1, 1};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 4, 4, &error))
        return error;
    moetoken_unpermute_args args = {.permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .routing_map = call.tensors[2],
                                    .probs = call.tensors[3],
                                    .drop_and_pad = attribute(&call, "drop_and_pad") != 0,
                                    .unpermuted_tokens = call.tensors[4],
                                    .out_index = call.tensors[5],
                                    .permute_token_id = call.tensors[6],
                                    .permuted_probs = call.tensors[7]};
    return run_batch(&call, run_unpermute, &args);
}

struct xla_error *moetoken_xla_permute(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 2, 2, 2, 1, 1};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 3, 3, &error))
        return error;
    moetoken_permute_args args = {.tokens = call.tensors[0],
                                  .routing_map = call.tensors[1],
                                  .probs = call.tensors[2],
                                  .num_out_tokens = attribute(&call, "num_out_tokens"),
                                  .drop_and_pad = attribute(&call, "drop_and_pad") != 0,
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5]};
    return run_batch(&call, run_permute, &args);
}

struct xla_error *moetoken_xla_permute_grad(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2, 2};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 4, 2, &error))
        return error;
    moetoken_permute_grad_args args = {.permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .routing_map = call.tensors[3],
                                       .tokens_num = attribute(&call, "tokens_num"),
                                       .experts_num = attribute(&call, "experts_num"),
                                       .drop_and_pad = attribute(&call, "drop_and_pad") != 0,
                                       .tokens_grad = call.tensors[4],
                                       .probs_grad = call.tensors[5]};
    return run_batch(&call, run_permute_grad, &args);
}

/* ---- on a routing by expert ids: the same operators with other tensors ----------------------- */

struct xla_error *moetoken_xla_permute_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 2, 2, 2, 1, 1, 1};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 3, 4, &error))
        return error;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = call.tensors[0],
                                  .expert_ids = call.tensors[1],
                                  .weights = call.tensors[2],
                                  .experts_num = attribute(&call, "experts_num"),
                                  .expert_begin = attribute(&call, "expert_begin"),
                                  .expert_end = attribute(&call, "expert_end"),
                                  .capacity = attribute(&call, "capacity"),
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5],
                                  .source_slots = call.tensors[6]};
    return run_batch(&call, run_permute, &args);
}

struct xla_error *moetoken_xla_permute_grad_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 3, 2, &error))
        return error;
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .tokens_num = attribute(&call, "tokens_num"),
                                       .tokens_grad = call.tensors[3],
                                       .weights_grad = call.tensors[4]};
    return run_batch(&call, run_permute_grad, &args);
}

struct xla_error *moetoken_xla_unpermute_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 2, 2, 2};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 7, 1, &error))
        return error;
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .weights = call.tensors[2],
                                    .residual = call.tensors[3],
                                    .residual2 = call.tensors[4],
                                    .expert_bias = call.tensors[5],
                                    .expert_ids = call.tensors[6],
                                    .unpermuted_tokens = call.tensors[7]};
    return run_batch(&call, run_unpermute, &args);
}

struct xla_error *moetoken_xla_unpermute_grad_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 2, 2, 2};
    struct handler_call call;
    struct xla_error *error;
    if (answered(frame, &call, ranks, 6, 2, &error))
        return error;
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permuted_tokens = call.tensors[2],
                                         .weights = call.tensors[3],
                                         .expert_bias = call.tensors[4],
                                         .expert_ids = call.tensors[5],
                                         .permuted_tokens_grad = call.tensors[6],
                                         .weights_grad = call.tensors[7]};
    return run_batch(&call, run_unpermute_grad, &args);
}
