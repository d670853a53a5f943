/* fuzz_interface.c - the C interface under libFuzzer: hostile tensors, options and memory for all
 * four operators in both spellings of a routing, and for the router's functions.
 *
 * A call begins as one that could be good, and is then bent: tensors that are missing, of another
 * rank, size, type, stride, offset or device, without data, laid over each other or over the
 * workspace; numbers and options of any value. What the check refuses, the call must refuse with
 * the same status and words; what the check takes, the call may refuse only for its values, for
 * data that is missing or for want of memory. A call that fails must have written nothing, and all
 * memory is allocated to the byte for AddressSanitizer. */
#include "interface_verbs.h"

#include "support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *data;
    size_t size, at;
};

struct tensor {
    DLTensor dl;
    int64_t shape[3], strides[3];
    char *memory, *before;
    size_t bytes; /* of memory; 0: nothing that could be read */
};

struct call {
    const struct verb *verb;
    enum verb_number number;
    union verb_args args;
    int64_t size['Z' - 'A' + 1];
    bool by_ids, padded, impossible; /* impossible: describes memory that is not there */
    struct tensor tensors[FIELDS_MOST];
    int64_t restore_shape[2];
    moetoken_options options;
    char *workspace;
};

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
    static const int64_t edges[] = {
        INT64_MAX,        INT64_MIN,         INT32_MAX, INT32_MIN,           -1,
        INT64_C(1) << 32, INT64_MAX / 2 + 1, 0,         -(INT64_C(1) << 40), INT64_C(1) << 61};
    uint8_t byte = take(input);
    return byte < 10 ? edges[byte] : (int64_t)byte - 14;
}

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_interface: %s (message \"%s\")\n", what, moetoken_last_error());
    abort();
}

/* ---- a call that could be good -------------------------------------------------------------- */

static moetoken_type type_of(enum kind kind, uint8_t types)
{
    static const moetoken_type tokens[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    moetoken_type token = tokens[types & 3];
    switch (kind) {
    case TOKENS:
        return token;
    case WEIGHTS:
        return (types & 4) && token != MOETOKEN_F64 ? MOETOKEN_F32 : token;
    case INDEX:
        return types & 8 ? MOETOKEN_I64 : MOETOKEN_I32;
    case MAP:
        return MOETOKEN_BOOL;
    default:
        return MOETOKEN_I64;
    }
}

static int64_t *size_of(struct call *call, char letter)
{
    return &call->size[letter - 'A'];
}

static void choose_sizes(struct call *call, struct input *input)
{
    int64_t tokens = take_below(input, 6), slots = take_below(input, 5), experts, rows;
    experts = take_below(input, 6);
    call->by_ids = take(input) & 1;
    call->padded = !call->by_ids && (take(input) & 3) == 0;
    rows = tokens * slots;
    *size_of(call, 'T') = tokens;
    *size_of(call, 'K') = slots;
    *size_of(call, 'E') = *size_of(call, 'L') = experts;
    *size_of(call, 'H') = take_below(input, 70);
    *size_of(call, 'N') = call->padded ? experts * (slots < tokens ? slots : tokens) : rows;
    rows = *size_of(call, 'N');
    if (!call->padded && rows > 0)
        rows = call->by_ids ? take(input) : take(input) % (rows + 1);
    *size_of(call, 'R') = rows;
    *size_of(call, 'O') = 1;
}

static void describe(struct call *call, int i, uint8_t types, uint8_t layout)
{
    const struct field *field = &call->verb->fields[i];
    struct tensor *tensor = &call->tensors[i];
    int ndim = (int)strlen(field->sizes);
    int64_t inner = layout & 1 ? 2 : 1, gap = layout >> 1 & 3;
    for (int d = 0; d < 3; d++)
        tensor->shape[d] = d < ndim ? *size_of(call, field->sizes[d]) : 1;
    tensor->strides[1] = inner;
    tensor->strides[0] = ndim == 2 ? tensor->shape[1] * inner + gap : inner;
    tensor->dl = moetoken_tensor(NULL, type_of(field->kind, types), ndim, tensor->shape);
    tensor->dl.strides = layout == 0 ? NULL : tensor->strides;
    tensor->dl.byte_offset = layout & 0x80 ? layout & 15u : 0;
}

static moetoken_router_config *config_of(struct call *call)
{
    return call->number == ROUTER ? &call->args.router.config : &call->args.router_grad.config;
}

/* A choice of its settings by one byte: scores, groups, divisions. */
static void set_config(struct call *call, uint8_t how)
{
    moetoken_router_config *config = config_of(call);
    *config = (moetoken_router_config){.topk = *size_of(call, 'K'),
                                       .score = how & 3,
                                       .normalize = (how & 4) != 0,
                                       .normalize_scores = (how & 8) != 0,
                                       .groups_num = how & 0x10 ? 2 : 0,
                                       .groups_top = how & 0x20 ? 2 : 0,
                                       .group_score_count = how & 0x40 ? 2 : 0,
                                       .scale = how & 0x80 ? -2.5 : 0,
                                       .eps = how & 0x80 ? 1e-20 : 0};
}

static void set_numbers(struct call *call, uint8_t how)
{
    int64_t tokens = *size_of(call, 'T'), experts = *size_of(call, 'E');
    call->restore_shape[0] = tokens;
    call->restore_shape[1] = *size_of(call, 'H');
    switch (call->number) {
    case PERMUTE:
        call->args.permute.num_out_tokens = call->by_ids ? 0 : *size_of(call, 'N');
        call->args.permute.experts_num = call->by_ids ? experts : 0;
        call->args.permute.drop_and_pad = call->padded;
        break;
    case PERMUTE_GRAD:
        call->args.permute_grad.tokens_num = tokens;
        call->args.permute_grad.experts_num = experts;
        call->args.permute_grad.drop_and_pad = call->padded;
        break;
    case UNPERMUTE:
        call->args.unpermute.restore_shape = call->restore_shape;
        call->args.unpermute.drop_and_pad = call->padded;
        break;
    case UNPERMUTE_GRAD:
        call->args.unpermute_grad.restore_shape = call->restore_shape;
        call->args.unpermute_grad.drop_and_pad = call->padded;
        break;
    case BALANCE_LOSS:
        call->args.balance_loss.topk = *size_of(call, 'K');
        call->args.balance_loss.coeff = 0.01;
        break;
    case Z_LOSS:
        call->args.z_loss.coeff = 0.01;
        break;
    case UPDATE_BIAS:
        call->args.update_bias.rate = 0.001;
        break;
    case DROP:
        call->args.drop.experts_num = experts;
        call->args.drop.capacity = how % 5;
        break;
    default:
        set_config(call, how);
        break;
    }
}

static void set_tensor(struct call *call, int i, const DLTensor *tensor)
{
    memcpy((char *)&call->args + call->verb->fields[i].offset, &tensor, sizeof tensor);
}

static bool is_given(const struct call *call, int i)
{
    const DLTensor *tensor;
    memcpy(&tensor, (const char *)&call->args + call->verb->fields[i].offset, sizeof tensor);
    return tensor != NULL;
}

static void make_call(struct call *call, struct input *input)
{
    call->number = (enum verb_number)take_below(input, VERBS);
    call->verb = &verbs[call->number];
    random_seed(take(input) | (uint64_t)take(input) << 8);
    choose_sizes(call, input);
    uint8_t types = take(input);
    uint16_t missing = (uint16_t)(take(input) | take(input) << 8);
    for (int i = 0; i < call->verb->count; i++) {
        const struct field *field = &call->verb->fields[i];
        describe(call, i, types, take(input));
        bool other = call->by_ids ? field->by_map : field->by_ids;
        if (!other && !(missing >> i & 1))
            set_tensor(call, i, &call->tensors[i].dl);
    }
    set_numbers(call, call->number >= ROUTER ? take(input) : 0);
}

/* ---- what is bent --------------------------------------------------------------------------- */

static void bend_tensor(struct call *call, struct input *input)
{
    int i = (int)take_below(input, call->verb->count);
    struct tensor *tensor = &call->tensors[i];
    switch (take_below(input, 9)) {
    case 0:
        tensor->shape[take(input) & 1] = take_odd_number(input);
        break;
    case 1:
        tensor->dl.strides = tensor->strides;
        tensor->strides[take(input) & 1] = take_odd_number(input);
        break;
    case 2:
        tensor->dl.dtype = moetoken_dtype((moetoken_type)take_below(input, 10));
        break;
    case 3:
        tensor->dl.dtype.lanes = take(input);
        break;
    case 4:
        tensor->dl.ndim = (int)take_below(input, 5) - 1;
        break;
    case 5:
        tensor->dl.device.device_type = (DLDeviceType)take_below(input, 16);
        break;
    case 6:
        tensor->dl.byte_offset = (uint64_t)take_odd_number(input);
        break;
    case 7:
        tensor->dl.shape = NULL;
        break;
    default: /* given, though it belongs to the other spelling */
        set_tensor(call, i, &tensor->dl);
        break;
    }
}

static void bend_double(double *value, struct input *input)
{
    static const double edges[] = {NAN, INFINITY, -INFINITY, -1, 0, -0.0, 1e308, 5e-324};
    *value = edges[take(input) & 7];
}

/* Of the router's functions: any of their numbers. */
static void bend_router_number(struct call *call, struct input *input, int64_t value, int which)
{
    moetoken_router_config *config = config_of(call);
    int64_t *numbers[] = {&config->topk, &config->groups_num, &config->groups_top,
                          &config->group_score_count};
    if (call->number == BALANCE_LOSS && which < 4)
        *(which & 1 ? &call->args.balance_loss.topk : &call->args.balance_loss.total_tokens) =
            value;
    else if (call->number == BALANCE_LOSS)
        bend_double(&call->args.balance_loss.coeff, input);
    else if (call->number == Z_LOSS)
        bend_double(&call->args.z_loss.coeff, input);
    else if (call->number == UPDATE_BIAS)
        bend_double(&call->args.update_bias.rate, input);
    else if (call->number == DROP)
        *(which & 1 ? &call->args.drop.experts_num : &call->args.drop.capacity) = value;
    else if (which < 4)
        *numbers[which] = value;
    else if (which == 4)
        bend_double(value & 1 ? &config->eps : &config->scale, input);
    else
        config->score = (int32_t)value;
}

/* Any of the numbers; none that would make the workspace alone take gigabytes. */
static void bend_number(struct call *call, struct input *input)
{
    moetoken_permute_args *permute = &call->args.permute;
    moetoken_permute_grad_args *permute_grad = &call->args.permute_grad;
    int64_t value = take_odd_number(input), which = take_below(input, 6);
    int64_t *numbers[] = {&permute->num_out_tokens, &permute->experts_num,
                          &permute->expert_begin,   &permute->expert_end,
                          &permute->capacity,       &permute->num_out_tokens};
    value = value > INT64_C(1) << 60 ? value : value % 65536;
    if (call->number == PERMUTE)
        *numbers[which] = value;
    else if (call->number == PERMUTE_GRAD)
        *(which & 1 ? &permute_grad->tokens_num : &permute_grad->experts_num) = value;
    else if (call->number >= ROUTER)
        bend_router_number(call, input, value, (int)which);
    else
        call->restore_shape[which & 1] = value;
    if (which == 5)
        call->args.struct_size = call->verb->args_size - (size_t)take_below(input, 3) * 8;
}

static void bend_options(struct call *call, struct input *input)
{
    uint8_t bits = take(input);
    call->options.flags = bits & 31u;
    call->options.isa_mask = take(input) & 0x1fu;
    call->options.threads = (int32_t)take_below(input, 5) - (bits == 255);
    call->options.reserved = bits == 254;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The bytes from the data pointer to the end of the last element, or -1: no such memory. */
static int64_t bytes_needed(const DLTensor *dl)
{
    unsigned size = dl->dtype.bits / 8u;
    bool plain = dl->dtype.lanes == 1 && (size == 1 || size == 2 || size == 4 || size == 8);
    if (!plain || dl->ndim < 1 || dl->ndim > 2 || dl->byte_offset > 4096 || dl->shape == NULL)
        return -1;
    __int128 last = 0, contiguous = 1;
    bool empty = false;
    for (int d = dl->ndim - 1; d >= 0; d--) {
        __int128 stride = dl->strides != NULL ? dl->strides[d] : contiguous;
        if (dl->shape[d] < 0 || dl->shape[d] > 256 || stride < 0 || stride > 512)
            return -1;
        empty = empty || dl->shape[d] == 0;
        last += (dl->shape[d] - 1) * stride;
        contiguous *= dl->shape[d];
    }
    return empty ? 0 : (int64_t)(last + 1) * size + (int64_t)dl->byte_offset;
}

static char *allocate(size_t bytes)
{
    char *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL)
        abort();
    return memory;
}

/* Indices that are mostly good: a permutation of the rows, experts, ones of a map. */
static void fill(const struct call *call, int i)
{
    const struct tensor *tensor = &call->tensors[i];
    const struct field *field = &call->verb->fields[i];
    size_t size = tensor->dl.dtype.bits / 8u;
    int64_t bound = *size_of((struct call *)call, field->sizes[1] == 'K' ? 'E' : 'R');
    for (size_t at = 0; size > 0 && at + size <= tensor->bytes; at += size) {
        uint64_t bits = random_bits();
        if (field->kind == INDEX)
            bits = random_chance(85) && bound > 0 ? at / size % (size_t)bound
                                                  : (uint64_t)(random_below(8) - 2);
        else if (field->kind == MAP)
            bits = random_chance(40);
        memcpy(tensor->memory + at, &bits, size);
    }
}

static void make_memory(struct call *call)
{
    for (int i = 0; i < call->verb->count; i++) {
        struct tensor *tensor = &call->tensors[i];
        int64_t bytes = bytes_needed(&tensor->dl);
        call->impossible |= bytes < 0 && is_given(call, i);
        tensor->bytes = bytes < 0 ? 0 : (size_t)bytes;
        tensor->memory = allocate(tensor->bytes);
        tensor->before = allocate(tensor->bytes);
        tensor->dl.data = tensor->memory;
        fill(call, i);
    }
}

/* One tensor lies within another's memory; or it has no data at all. */
static void lay_over(struct call *call, struct input *input)
{
    struct tensor *tensor = &call->tensors[take_below(input, call->verb->count)];
    const struct tensor *other = &call->tensors[take_below(input, call->verb->count)];
    uint8_t how = take(input);
    if ((how & 15) == 15)
        tensor->dl.data = NULL;
    else if (tensor->bytes > 0 && other->bytes >= tensor->bytes)
        tensor->dl.data = other->memory + how % (other->bytes - tensor->bytes + 1);
}

static void make_workspace(struct call *call, struct input *input)
{
    size_t bytes = 0;
    int64_t tokens = *size_of(call, 'T'), slots = *size_of(call, 'N');
    uint8_t how = take(input);
    moetoken_status status =
        call->number < ROUTER
            ? moetoken_workspace_size(tokens, slots, &bytes)
            : moetoken_router_workspace_size(tokens, *size_of(call, 'E'), *size_of(call, 'K'),
                                             1 + (how >> 7), &bytes);
    if ((how & 3) == 0 || status != MOETOKEN_OK)
        return;
    call->options.workspace_bytes = bytes - (bytes > 0 && (how & 12) == 12);
    call->workspace = allocate(bytes + 8);
    memset(call->workspace, how, bytes + 8);
    call->options.workspace = call->workspace + (how >> 4 == 15 ? 4 : 0);
    int i = how >> 4 & 7;
    const struct tensor *tensor = &call->tensors[i];
    bool used = i < call->verb->count && is_given(call, i) && tensor->dl.data == tensor->memory;
    if ((how & 3) == 2 && used && bytes > 0 && tensor->bytes >= bytes)
        call->options.workspace = tensor->memory + (tensor->bytes - bytes) / 8 * 8;
}

static void keep(struct call *call)
{
    for (int i = 0; i < call->verb->count; i++)
        memcpy(call->tensors[i].before, call->tensors[i].memory, call->tensors[i].bytes);
}

static bool unchanged(const struct call *call)
{
    bool same = true;
    for (int i = 0; i < call->verb->count; i++)
        same &=
            memcmp(call->tensors[i].memory, call->tensors[i].before, call->tensors[i].bytes) == 0;
    return same;
}

/* ---- the calls ------------------------------------------------------------------------------ */

static bool is_of_values(moetoken_status status)
{
    return status == MOETOKEN_ERR_INDEX || status == MOETOKEN_ERR_DUPLICATE ||
           status == MOETOKEN_ERR_ROUTING || status == MOETOKEN_ERR_MEMORY;
}

static void exercise(struct call *call)
{
    char words[512];
    moetoken_status plan = call->verb->check(&call->args, &call->options);
    snprintf(words, sizeof words, "%s", moetoken_last_error());
    if (plan == MOETOKEN_OK && call->impossible)
        return; /* a good description of memory that is not there */
    keep(call);
    moetoken_status status = call->verb->run(&call->args, &call->options);
    if (plan != MOETOKEN_OK && status != plan && status != MOETOKEN_ERR_NULL)
        fail("the check refuses with another status than the call");
    if (plan != MOETOKEN_OK && status == plan && strcmp(words, moetoken_last_error()) != 0 &&
        status != MOETOKEN_ERR_NULL)
        fail("the check refuses in other words than the call");
    if (plan == MOETOKEN_OK && status != MOETOKEN_OK && !is_of_values(status) &&
        !(status == MOETOKEN_ERR_NULL && strstr(moetoken_last_error(), "has no data") != NULL))
        fail("the check takes what the call refuses");
    if (status != MOETOKEN_OK && !unchanged(call))
        fail("a failed call has written");
    if (moetoken_status_name(status)[0] != 'M')
        fail("no such status");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct call call;
    struct input input = {.data = data, .size = size};
    memset(&call, 0, sizeof call);
    make_call(&call, &input);
    uint8_t faults = take(&input);
    for (int i = 0; i < (faults & 3); i++)
        bend_tensor(&call, &input);
    if ((faults & 0x0c) == 0x0c)
        bend_number(&call, &input);
    if ((faults & 0x30) == 0x30)
        bend_options(&call, &input);
    make_memory(&call);
    if ((faults & 0xc0) == 0xc0)
        lay_over(&call, &input);
    make_workspace(&call, &input);
    exercise(&call);
    for (int i = 0; i < call.verb->count; i++) {
        free(call.tensors[i].memory);
        free(call.tensors[i].before);
    }
    free(call.workspace);
    return 0;
}
