/* fuzz_operators.c - the four operators under libFuzzer: shapes, strides, types, indices, options,
 * workspace and instruction set come from the input.
 *
 * Every tensor is allocated to the byte, so that AddressSanitizer sees any access outside. A call
 * that fails must have written nothing; one that succeeds must agree with the scalar kernels and
 * with the tests' oracle; and what the oracle calls a fault in an index must have been refused. */
#include "oracle/oracle.h"
#include "support/numbers.h"
#include "support/random.h"
#include "support/routing.h"
#include "support/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS 8

enum verb {
    UNPERMUTE_GRAD,
    UNPERMUTE,
    PERMUTE,
    PERMUTE_GRAD
};

struct input {
    const uint8_t *data;
    size_t size, at;
};

struct fuzz_tensor {
    DLTensor dl;
    int64_t shape[3], strides[3];
    const DLTensor **argument;
    char *memory;
    size_t bytes;
    char *before;
    bool output, impossible;
};

struct call {
    enum verb verb;
    struct routing routing;
    struct routing_spec spec;
    int64_t hidden, restore_shape[2];
    moetoken_type token_type, probs_type, index_type, map_type;
    struct fuzz_tensor tensors[TENSORS];
    int count;
    moetoken_unpermute_grad_args unpermute_grad;
    moetoken_unpermute_args unpermute;
    moetoken_permute_args permute;
    moetoken_permute_grad_args permute_grad;
    moetoken_options options;
    void *workspace;
    bool without_memory;
};

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t take(struct input *input)
{
    return input->at < input->size ? input->data[input->at++] : 0;
}

static int64_t take_below(struct input *input, int bound)
{
    return take(input) % bound;
}

/* Small numbers mostly, and the edges of 32 and 64 bits. */
static int64_t take_odd_number(struct input *input)
{
    static const int64_t edges[] = {INT64_MAX,        INT64_MIN, INT32_MAX,
                                    INT32_MIN,        -1,        INT64_C(1) << 32,
                                    INT64_C(1) << 61, 0,         INT64_MAX / 2 + 1};
    uint8_t byte = take(input);
    return byte < 9 ? edges[byte] : (int64_t)byte - 12;
}

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_operators: %s (message \"%s\")\n", what, moetoken_last_error());
    abort();
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void describe(struct call *call, struct input *input, const DLTensor **argument,
                     moetoken_type type, int ndim, int64_t rows, int64_t columns, bool output)
{
    struct fuzz_tensor *tensor = &call->tensors[call->count++];
    uint8_t layout = take(input);
    int64_t inner = (layout & 3) == 3 ? 1 + take_below(input, 4) : 1;
    int64_t gap = (layout & 12) == 12 ? take_below(input, 5) : 0;
    bool transposed = ndim == 2 && (layout & 0x70) == 0x70;
    tensor->shape[0] = rows;
    tensor->shape[1] = ndim == 2 ? columns : 1;
    tensor->shape[2] = 1;
    tensor->dl = moetoken_tensor(NULL, type, ndim, tensor->shape);
    tensor->strides[0] = ndim == 1 || transposed ? inner : columns * inner + gap;
    tensor->strides[1] = transposed ? rows * inner + gap : inner;
    tensor->strides[2] = 1;
    tensor->dl.strides = (layout & 0x80) != 0 || layout == 0 ? NULL : tensor->strides;
    tensor->dl.byte_offset = (layout & 5) == 5 ? (uint64_t)take_below(input, 24) : 0;
    tensor->argument = argument;
    tensor->output = output;
    *argument = &tensor->dl;
}

static void describe_unpermute_grad(struct call *call, struct input *input)
{
    moetoken_unpermute_grad_args *args = &call->unpermute_grad;
    const struct routing *r = &call->routing;
    describe(call, input, &args->unpermuted_tokens_grad, call->token_type, 2, r->tokens,
             call->hidden, false);
    describe(call, input, &args->out_index, call->index_type, 1, r->slots_num, 1, false);
    describe(call, input, &args->permute_token_id, call->index_type, 1, r->slots_num, 1, false);
    describe(call, input, &args->routing_map, call->map_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->permuted_tokens, call->token_type, 2, r->rows_num, call->hidden,
             false);
    describe(call, input, &args->probs, call->probs_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->permuted_tokens_grad, call->token_type, 2, r->rows_num,
             call->hidden, true);
    describe(call, input, &args->probs_grad, call->probs_type, 2, r->tokens, r->experts, true);
    args->drop_and_pad = call->spec.padded;
    args->restore_shape = take_below(input, 3) == 2 ? call->restore_shape : NULL;
}

static void describe_unpermute(struct call *call, struct input *input)
{
    moetoken_unpermute_args *args = &call->unpermute;
    const struct routing *r = &call->routing;
    describe(call, input, &args->permuted_tokens, call->token_type, 2, r->rows_num, call->hidden,
             false);
    describe(call, input, &args->sorted_indices, call->index_type, 1, r->slots_num, 1, false);
    describe(call, input, &args->routing_map, call->map_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->probs, call->probs_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->unpermuted_tokens, call->token_type, 2, r->tokens, call->hidden,
             true);
    describe(call, input, &args->out_index, call->index_type, 1, r->slots_num, 1, true);
    describe(call, input, &args->permute_token_id, call->index_type, 1, r->slots_num, 1, true);
    describe(call, input, &args->permuted_probs, call->probs_type, 1, r->slots_num, 1, true);
    args->drop_and_pad = call->spec.padded;
    args->restore_shape = take_below(input, 3) == 2 ? call->restore_shape : NULL;
}

static void describe_permute(struct call *call, struct input *input)
{
    moetoken_permute_args *args = &call->permute;
    const struct routing *r = &call->routing;
    describe(call, input, &args->tokens, call->token_type, 2, r->tokens, call->hidden, false);
    describe(call, input, &args->routing_map, call->map_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->probs, call->probs_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->permuted_tokens, call->token_type, 2, r->rows_num, call->hidden,
             true);
    describe(call, input, &args->permuted_probs, call->probs_type, 1, r->rows_num, 1, true);
    describe(call, input, &args->sorted_indices, call->index_type, 1, r->slots_num, 1, true);
    args->num_out_tokens = r->slots_num;
    args->drop_and_pad = call->spec.padded;
}

static void describe_permute_grad(struct call *call, struct input *input)
{
    moetoken_permute_grad_args *args = &call->permute_grad;
    const struct routing *r = &call->routing;
    describe(call, input, &args->permuted_tokens_grad, call->token_type, 2, r->rows_num,
             call->hidden, false);
    describe(call, input, &args->permuted_probs_grad, call->probs_type, 1, r->rows_num, 1, false);
    describe(call, input, &args->sorted_indices, call->index_type, 1, r->slots_num, 1, false);
    describe(call, input, &args->routing_map, call->map_type, 2, r->tokens, r->experts, false);
    describe(call, input, &args->tokens_grad, call->token_type, 2, r->tokens, call->hidden, true);
    describe(call, input, &args->probs_grad, call->probs_type, 2, r->tokens, r->experts, true);
    args->tokens_num = r->tokens;
    args->experts_num = r->experts;
    args->drop_and_pad = call->spec.padded;
}

static void describe_call(struct call *call, struct input *input)
{
    static const moetoken_type pairs[6][2] = {
        {MOETOKEN_F32, MOETOKEN_F32}, {MOETOKEN_F16, MOETOKEN_F16},  {MOETOKEN_BF16, MOETOKEN_BF16},
        {MOETOKEN_F16, MOETOKEN_F32}, {MOETOKEN_BF16, MOETOKEN_F32}, {MOETOKEN_F64, MOETOKEN_F64}};
    const moetoken_type *pair = pairs[take_below(input, 6)];
    uint8_t bits = take(input);
    call->token_type = pair[0];
    call->probs_type = pair[1];
    call->index_type = (bits & 1) != 0 ? MOETOKEN_I64 : MOETOKEN_I32;
    call->map_type = (moetoken_type)(MOETOKEN_BOOL + (bits >> 1) % 3);
    call->hidden = take_below(input, 80);
    switch (call->verb) {
    case UNPERMUTE_GRAD:
        describe_unpermute_grad(call, input);
        break;
    case UNPERMUTE:
        describe_unpermute(call, input);
        break;
    case PERMUTE:
        describe_permute(call, input);
        break;
    case PERMUTE_GRAD:
        describe_permute_grad(call, input);
        break;
    }
}

static void make_routing(struct call *call, struct input *input)
{
    uint8_t bits = take(input);
    bool gradient = call->verb == UNPERMUTE_GRAD;
    call->spec = (struct routing_spec){
        .padded = (bits & 1) != 0,
        .tokens = take_below(input, 6),
        .experts = take_below(input, 6),
        .shuffled = gradient && (bits & 2) != 0,
        .uneven = gradient && (bits & 4) != 0,
        .canonical = (bits & 8) != 0,
        .hole_percent = (bits & 0x30) * 2,
        .no_map = (bits & 0xc0) == 0x40,
        .mismatch = (bits & 0xc0) == 0x80,
    };
    uint8_t slots = take(input); /* seldom more than one kernel call takes */
    call->spec.slots = slots < 240 ? slots % 5 : slots - 230;
    if (call->spec.padded && call->spec.slots > call->spec.tokens) {
        call->spec.slots = call->spec.tokens;
    }
    if (!call->spec.padded && call->spec.tokens == 0) {
        call->spec.slots = 0;
    }
    routing_make(&call->routing, &call->spec);
}

/* ---- faults --------------------------------------------------------------------------------- */

static void break_tensor(struct fuzz_tensor *tensor, struct input *input)
{
    int64_t *size;
    switch (take_below(input, 9)) {
    case 0:
        tensor->shape[take(input) & 1] = take_odd_number(input);
        break;
    case 1:
        size = &tensor->shape[take(input) & 1];
        *size = (int64_t)((uint64_t)*size + take(input) % 5u - 2u);
        break;
    case 2:
        tensor->dl.strides = tensor->strides;
        tensor->strides[take(input) & 1] = take_odd_number(input);
        break;
    case 3:
        tensor->dl.dtype = moetoken_dtype((moetoken_type)take_below(input, 10));
        break;
    case 4:
        tensor->dl.dtype.lanes = take(input);
        break;
    case 5:
        tensor->dl.ndim = (int)take_below(input, 4);
        break;
    case 6:
        *tensor->argument = NULL;
        break;
    case 7:
        tensor->dl.device.device_type = (DLDeviceType)take_below(input, 16);
        break;
    default:
        tensor->dl.byte_offset = (uint64_t)take_odd_number(input);
        break;
    }
}

static void break_number(struct call *call, struct input *input)
{
    int64_t value = take_odd_number(input);
    switch (take_below(input, 5)) {
    case 0: /* no such number that the workspace alone would be gigabytes */
        value = value > INT64_C(1) << 60 ? value : value & 0xffff;
        call->permute.num_out_tokens = value;
        break;
    case 1:
        call->permute_grad.tokens_num = value;
        break;
    case 2:
        call->permute_grad.experts_num = value;
        break;
    case 3:
        call->restore_shape[take(input) & 1] = value;
        break;
    default:
        call->options.reserved = (int32_t)value;
        break;
    }
}

/* Where an output lies over another tensor, both must have elements, and the memory must do. */
static void lay_over(struct call *call, struct input *input)
{
    struct fuzz_tensor *output = &call->tensors[take_below(input, call->count)];
    const struct fuzz_tensor *other = &call->tensors[take_below(input, call->count)];
    if (output->output && !output->impossible && !other->impossible && output->bytes > 0 &&
        other->bytes >= output->bytes && output->dl.byte_offset == 0 &&
        other->dl.byte_offset == 0) {
        output->dl.data = other->dl.data;
    }
}

static void break_values(struct call *call, struct input *input)
{
    const struct fuzz_tensor *tensor = &call->tensors[take_below(input, call->count)];
    if (tensor->impossible || tensor->output || tensor->bytes == 0) {
        return;
    }
    int64_t row = take(input) % tensor->shape[0];
    int64_t column = tensor->dl.ndim == 2 ? take(input) % tensor->shape[1] : 0;
    tensor_set_bits(&tensor->dl, row, column, (uint64_t)take_odd_number(input));
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The bytes from the data pointer to the end of the last element, or -1: no such memory. */
static int64_t bytes_needed(const struct fuzz_tensor *tensor)
{
    const DLTensor *dl = &tensor->dl;
    unsigned size = dl->dtype.bits / 8u;
    bool plain = dl->dtype.lanes == 1 && (size == 1 || size == 2 || size == 4 || size == 8);
    if (!plain || dl->ndim < 1 || dl->ndim > 2 || dl->byte_offset > 4096) {
        return -1;
    }
    __int128 last = 0, contiguous = 1;
    bool empty = false;
    for (int d = dl->ndim - 1; d >= 0; d--) {
        __int128 stride = dl->strides != NULL ? dl->strides[d] : contiguous;
        if (dl->shape[d] < 0 || dl->shape[d] > 4096 || stride < 0 || stride > 65536) {
            return -1;
        }
        empty = empty || dl->shape[d] == 0;
        last += (dl->shape[d] - 1) * stride;
        contiguous *= dl->shape[d];
    }
    return empty ? 0 : (int64_t)(last + 1) * size + (int64_t)dl->byte_offset;
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL && bytes > 0) {
        abort();
    }
    return memory;
}

static void fill(const struct call *call, const struct fuzz_tensor *tensor)
{
    moetoken_type type = tensor_type(&tensor->dl);
    const struct routing *r = &call->routing;
    bool rows = tensor->argument == &call->unpermute_grad.out_index || !call->spec.padded;
    bool tokens = tensor->argument == &call->unpermute_grad.permute_token_id;
    const int64_t *values = rows && !tokens ? r->row : r->token;
    if (type <= MOETOKEN_F64) {
        tensor_fill_random(&tensor->dl, 8);
        return;
    }
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(&tensor->dl); j++) {
            int64_t value = i < r->slots_num ? values[i] : 0;
            if (tensor->dl.ndim == 2) {
                value = i < r->tokens && j < r->experts ? r->map[i * r->experts + j] : 1;
            }
            tensor_set_bits(&tensor->dl, i, j, (uint64_t)value);
        }
    }
}

static void make_memory(struct call *call)
{
    for (int i = 0; i < call->count; i++) {
        struct fuzz_tensor *tensor = &call->tensors[i];
        int64_t bytes = bytes_needed(tensor);
        tensor->impossible = bytes < 0;
        tensor->bytes = bytes < 0 ? 0 : (size_t)bytes;
        tensor->memory = allocate(tensor->impossible ? 1 : tensor->bytes);
        tensor->before = allocate(tensor->bytes);
        tensor->dl.data = tensor->memory;
        call->without_memory = call->without_memory || tensor->impossible;
        if (!tensor->impossible && tensor->bytes > 0) {
            memset(tensor->memory, 0x5b, tensor->bytes);
            fill(call, tensor);
        }
    }
}

/* Keeps or restores the bytes of every tensor: in place an output is an input too. */
static void keep(struct call *call)
{
    for (int i = 0; i < call->count; i++) {
        memcpy(call->tensors[i].before, call->tensors[i].memory, call->tensors[i].bytes);
    }
}

static void restore(struct call *call)
{
    for (int i = 0; i < call->count; i++) {
        memcpy(call->tensors[i].memory, call->tensors[i].before, call->tensors[i].bytes);
    }
}

static bool unchanged(const struct call *call)
{
    for (int i = 0; i < call->count; i++) {
        const struct fuzz_tensor *tensor = &call->tensors[i];
        if (memcmp(tensor->memory, tensor->before, tensor->bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* ---- the calls ------------------------------------------------------------------------------ */

static void make_options(struct call *call, struct input *input)
{
    uint8_t bits = take(input);
    call->options.flags = bits & 15u;
    call->options.isa_mask = bits >> 4;
    call->options.threads = (int32_t)take_below(input, 4);
    uint8_t kind = (uint8_t)take_below(input, 4);
    size_t bytes = 0;
    int64_t slots = call->routing.slots_num;
    if (kind == 0 || moetoken_workspace_size(call->routing.tokens, slots, &bytes) != MOETOKEN_OK) {
        return;
    }
    size_t given = kind == 1 && bytes > 0 ? bytes - 1 : bytes;
    call->workspace = allocate(given + 8);
    memset(call->workspace, take(input), given + 8);
    call->options.workspace = kind == 2 ? (char *)call->workspace + 4 : call->workspace;
    call->options.workspace_bytes = given;
}

static moetoken_status run(const struct call *call, const moetoken_options *options)
{
    switch (call->verb) {
    case UNPERMUTE_GRAD:
        return moetoken_unpermute_grad(&call->unpermute_grad, options);
    case UNPERMUTE:
        return moetoken_unpermute(&call->unpermute, options);
    case PERMUTE:
        return moetoken_permute(&call->permute, options);
    default:
        return moetoken_permute_grad(&call->permute_grad, options);
    }
}

static moetoken_status run_check(const struct call *call, const moetoken_options *options)
{
    switch (call->verb) {
    case UNPERMUTE_GRAD:
        return moetoken_unpermute_grad_check(&call->unpermute_grad, options);
    case UNPERMUTE:
        return moetoken_unpermute_check(&call->unpermute, options);
    case PERMUTE:
        return moetoken_permute_check(&call->permute, options);
    default:
        return moetoken_permute_grad_check(&call->permute_grad, options);
    }
}

static struct oracle *ask_oracle(const struct call *call)
{
    switch (call->verb) {
    case UNPERMUTE_GRAD:
        return oracle_unpermute_grad(&call->unpermute_grad, call->options.flags);
    case UNPERMUTE:
        return oracle_unpermute(&call->unpermute, call->options.flags);
    case PERMUTE:
        return oracle_permute(&call->permute);
    default:
        return oracle_permute_grad(&call->permute_grad, call->options.flags);
    }
}

static void compare_with_oracle(const struct oracle *oracle, moetoken_status status)
{
    char line[300];
    if (status == MOETOKEN_ERR_OVERFLOW || status == MOETOKEN_ERR_OPTION) {
        return; /* of the workspace, or of no interest to the oracle */
    }
    if ((status == MOETOKEN_OK) != (oracle->fault == MOETOKEN_OK)) {
        fprintf(stderr, "%s, but the oracle says %s\n", moetoken_status_name(status),
                moetoken_status_name(oracle->fault));
        fail("the oracle disagrees about a fault");
    }
    if (status == MOETOKEN_OK && oracle_difference(oracle, line, sizeof line)[0] != '\0') {
        fprintf(stderr, "%s\n", line);
        fail("the oracle disagrees about a result");
    }
}

static void exercise(struct call *call)
{
    moetoken_options scalar = call->options;
    scalar.isa_mask = MOETOKEN_ISA_SCALAR;
    scalar.threads = 1;
    scalar.workspace = NULL;
    scalar.workspace_bytes = 0;
    struct oracle *oracle = NULL;
    keep(call);
    moetoken_status plan = run_check(call, &scalar);
    if (plan == MOETOKEN_OK && call->without_memory) {
        return; /* a good description of memory that is not there */
    }
    if (plan == MOETOKEN_OK) {
        oracle = ask_oracle(call);
    }
    moetoken_status status = run(call, &scalar);
    if (plan != MOETOKEN_OK && status != plan) {
        fail("the check and the call disagree");
    }
    if (status != MOETOKEN_OK && !unchanged(call)) {
        fail("a failed call has written");
    }
    if (oracle != NULL) {
        compare_with_oracle(oracle, status);
    }
    restore(call);
    moetoken_status second = run(call, &call->options);
    if (second != status && second != MOETOKEN_ERR_WORKSPACE) {
        fail("another instruction set, another status");
    }
    if (second != MOETOKEN_OK && !unchanged(call)) {
        fail("a failed call has written");
    }
    if (oracle != NULL && second == MOETOKEN_OK) {
        compare_with_oracle(oracle, second);
    }
    if (oracle != NULL) {
        oracle_free(oracle);
    }
}

static void free_call(struct call *call)
{
    for (int i = 0; i < call->count; i++) {
        free(call->tensors[i].memory);
        free(call->tensors[i].before);
    }
    free(call->workspace);
    routing_free(&call->routing);
}

/* A call takes less than 200 bytes: short inputs from the start, unless the caller says else. */
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    static char lengths[] = "-max_len=200", control[] = "-len_control=0";
    static char *longer[64];
    if (*count > 0 && *count < 60) {
        longer[0] = (*arguments)[0];
        longer[1] = lengths;
        longer[2] = control;
        memcpy(longer + 3, *arguments + 1, (size_t)*count * sizeof *longer); /* and the NULL */
        *arguments = longer;
        *count += 2;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {.data = data, .size = size};
    struct call call = {.verb = (enum verb)take_below(&input, 4)};
    random_seed(take(&input) | (uint64_t)take(&input) << 8);
    make_routing(&call, &input);
    describe_call(&call, &input);
    call.restore_shape[0] = call.routing.tokens;
    call.restore_shape[1] = call.hidden;
    make_options(&call, &input);
    uint8_t faults = take(&input);
    for (int i = 0; i < (faults & 3); i++) {
        break_tensor(&call.tensors[take_below(&input, call.count)], &input);
    }
    if ((faults & 0x0c) == 0x0c) {
        break_number(&call, &input);
    }
    make_memory(&call);
    for (int i = 0; i < (faults >> 4 & 3); i++) {
        break_values(&call, &input);
    }
    if ((faults & 0xc0) == 0xc0) {
        lay_over(&call, &input);
    } else if ((faults & 0xc0) == 0x80 && call.verb == UNPERMUTE_GRAD &&
               !call.tensors[4].impossible) {
        call.unpermute_grad.permuted_tokens_grad = &call.tensors[4].dl; /* in place */
    }
    exercise(&call);
    free_call(&call);
    return 0;
}
