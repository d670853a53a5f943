/* xla_call.c - buffers of a compiled JAX program -> DLTensors over the same memory, and the way
 * through a batch. */
#include "xla_call.h"

#include <string.h>

struct xla_error *xla_call_report(const struct xla_call_frame *frame, int code, const char *message)
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

static const void *attribute(struct xla_call *call, const char *name, int type)
{
    const struct xla_attributes *attributes = &call->frame->attributes;
    for (int64_t i = 0; i < attributes->count; i++) {
        const struct xla_text *text = attributes->names[i];
        if (text->length != strlen(name) || memcmp(text->characters, name, text->length) != 0)
            continue;
        const struct xla_scalar *scalar = attributes->values[i];
        if (attributes->kinds[i] == XLA_ATTRIBUTE_SCALAR && scalar->type == type)
            return scalar->value;
    }
    call->problem = "an attribute is missing or is not of its type";
    return NULL;
}

int64_t xla_call_number(struct xla_call *call, const char *name)
{
    const int64_t *value = attribute(call, name, XLA_TYPE_S64);
    return value ? *value : 0;
}

double xla_call_real(struct xla_call *call, const char *name)
{
    const double *value = attribute(call, name, XLA_TYPE_F64);
    return value ? *value : 0;
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
static void take_buffers(struct xla_call *call, const struct xla_buffers *side, int first,
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
static void find_batch(struct xla_call *call, const int *ranks)
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
        if (call->batch_rank < 0 && extra <= XLA_CALL_MAX_RANK) {
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
static void make_tensors(struct xla_call *call, const int *ranks)
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

static bool open_call(struct xla_call *call, struct xla_call_frame *frame, const int *ranks,
                      int inputs, int outputs)
{
    call->frame = frame;
    call->problem = NULL;
    call->count = inputs + outputs;
    if (frame->stage != XLA_STAGE_EXECUTE)
        call->problem = "the handler is for the execute stage alone";
    int64_t arguments = xla_call_number(call, "arguments"),
            results = xla_call_number(call, "results");
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

static int64_t batch_count(const struct xla_call *call)
{
    int64_t count = 1;
    for (int dim = 0; dim < call->batch_rank; dim++)
        count *= call->batch[dim];
    return count;
}

/* The elements of a tensor before the batch's item `item`; dimensions of size 1 stay where they
 * are. */
static int64_t item_offset(const struct xla_call *call, const struct xla_buffer *buffer,
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

static void select_item(struct xla_call *call, int64_t item)
{
    for (int i = 0; i < call->count; i++) {
        const struct xla_buffer *buffer = call->buffers[i];
        if (buffer)
            call->storage[i].data = (char *)buffer->data + item_offset(call, buffer, item) *
                                                               (call->storage[i].dtype.bits / 8);
    }
}

struct xla_error *xla_call_run(struct xla_call *call,
                               moetoken_status (*run)(const void *args,
                                                      const moetoken_options *options),
                               const void *args)
{
    int64_t flags = xla_call_number(call, "flags"), threads = xla_call_number(call, "threads");
    if (call->problem)
        return xla_call_report(call->frame, XLA_ERROR_INVALID_ARGUMENT, call->problem);
    moetoken_options options = {.flags = (uint32_t)flags, .threads = (int32_t)threads};
    int64_t count = batch_count(call);
    for (int64_t item = 0; item < count; item++) {
        select_item(call, item);
        moetoken_status status = run(args, &options);
        if (status != MOETOKEN_OK)
            return xla_call_report(call->frame,
                                   status == MOETOKEN_ERR_MEMORY ? XLA_ERROR_RESOURCE_EXHAUSTED
                                                                 : XLA_ERROR_INVALID_ARGUMENT,
                                   moetoken_last_error());
    }
    return NULL;
}

bool xla_call_answered(struct xla_call_frame *frame, struct xla_call *call, const int *ranks,
                       int inputs, int outputs, struct xla_error **result)
{
    *result = NULL;
    if (answer_metadata(frame))
        return true;
    if (frame->api->version.major != XLA_FFI_VERSION_MAJOR || frame->struct_size < sizeof *frame) {
        *result = xla_call_report(
            frame, XLA_ERROR_UNIMPLEMENTED,
            "moetoken: this version of XLA's foreign function interface is unknown");
        return true;
    }
    if (!open_call(call, frame, ranks, inputs, outputs))
        *result = xla_call_report(frame, XLA_ERROR_INVALID_ARGUMENT, call->problem);
    return *result != NULL;
}
