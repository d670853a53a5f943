/* bench_case.c - see bench_case.h. */
#define _GNU_SOURCE /* mremap; NOLINT(bugprone-reserved-identifier) */
#include "bench_case.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "bench_memory.h"
#include "values/number_formats.h"
#include "values/random_values.h"

#define HUGE_PAGE    ((size_t)2 << 20)
#define BUFFER_ALIGN ((size_t)4096)

/* How much of a large tensor is random; its other rows are copied from there. */
#define DRAWN_BYTES ((size_t)8 << 20)

/* ---- memory --------------------------------------------------------------------------------- */

void arena_free(struct arena *arena)
{
    if (arena->begin != NULL)
        munmap(arena->begin, arena->size);
    *arena = (struct arena){0};
}

/* Whether that much can be taken. A system that promises more memory than it has ends the process
 * later, without a message. */
static bool is_available(const struct arena *arena, double bytes, double rows, char *error,
                         size_t error_size)
{
    int64_t available = memory_available();
    if (available < 0 || bytes <= (double)available + (double)arena->size)
        return true;
    snprintf(error, error_size,
             "no memory for a case of %.0f rows: it needs about %.0f MB, %.0f MB are available",
             rows, bytes * 1e-6, ((double)available + (double)arena->size) * 1e-6);
    return false;
}

/* Makes room for `bytes`, all unused. */
static bool arena_reset(struct arena *arena, size_t bytes)
{
    arena->used = 0;
    if (bytes <= arena->size)
        return true;
    arena_free(arena);
    size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    *arena = (struct arena){.begin = memory, .size = size};
#ifdef MADV_HUGEPAGE
    arena->huge_pages = madvise(memory, size, MADV_HUGEPAGE) == 0;
#endif
    return true;
}

bool arena_redraw(struct arena *arena)
{
    size_t size = arena->size, mapped = size + HUGE_PAGE;
    int64_t available = memory_available();
    if (arena->begin == NULL || (available >= 0 && (double)mapped > 0.9 * (double)available))
        return false;
    char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    /* As far behind a huge page's begin as the old ones: moved otherwise, huge pages fall apart. */
    char *fresh = memory + ((uintptr_t)arena->begin - (uintptr_t)memory) % HUGE_PAGE;
#ifdef MADV_HUGEPAGE
    if (arena->huge_pages)
        (void)madvise(memory, mapped, MADV_HUGEPAGE);
#endif
    memcpy(fresh, arena->begin, arena->used);
    char *moved = mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, arena->begin);
    munmap(memory, mapped); /* what is left of it */
    return moved == arena->begin;
}

static size_t buffer_bytes(size_t bytes)
{
    return (bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
}

static void *arena_take(struct arena *arena, size_t bytes)
{
    char *memory = arena->begin + arena->used;
    arena->used += buffer_bytes(bytes);
    return memory;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void declare(struct bench_case *bench, const char *name, moetoken_type type, int ndim,
                    int64_t first, int64_t second)
{
    struct bench_tensor *tensor = &bench->tensors[bench->count++];
    *tensor = (struct bench_tensor){.name = name, .type = type, .shape = {first, second}};
    tensor->tensor = moetoken_tensor(NULL, type, ndim, tensor->shape);
}

const DLTensor *bench_case_tensor(const struct bench_case *bench, const char *name)
{
    for (int i = 0; i < bench->count; i++)
        if (strcmp(bench->tensors[i].name, name) == 0)
            return &bench->tensors[i].tensor;
    return NULL;
}

static moetoken_type type_of(const struct bench_case *bench, const char *name)
{
    for (int i = 0; i < bench->count; i++)
        if (strcmp(bench->tensors[i].name, name) == 0)
            return bench->tensors[i].type;
    return bench->token_type;
}

/* The gradient of the weights: of the pairs [T,E] by map, of the slots [T,K] by expert ids. */
static void declare_weights_grad(struct bench_case *bench, moetoken_type type)
{
    if (bench->probs && bench->by_ids)
        declare(bench, "weights_grad", type, 2, bench->tokens,
                bench->tokens > 0 ? bench->slots / bench->tokens : 0);
    else if (bench->probs)
        declare(bench, "probs_grad", type, 2, bench->tokens, bench->experts);
}

static void declare_outputs(struct bench_case *bench)
{
    const moetoken_type token = bench->token_type;
    const moetoken_type probs = type_of(bench, bench->by_ids ? "weights" : "probs");
    bench->inputs_count = bench->count;
    switch (bench->operator_kind) {
    case OPERATOR_UNPERMUTE_GRAD:
        declare(bench, "permuted_tokens_grad", token, 2, bench->rows, bench->hidden);
        declare_weights_grad(bench, probs);
        break;
    case OPERATOR_UNPERMUTE:
        declare(bench, "unpermuted_tokens", token, 2, bench->tokens, bench->hidden);
        break;
    case OPERATOR_PERMUTE:
        declare(bench, "permuted_tokens", token, 2, bench->rows, bench->hidden);
        if (bench->probs)
            declare(bench, "permuted_probs", probs, 1, bench->rows, 0);
        declare(bench, "out_sorted_indices", MOETOKEN_I32, 1, bench->slots, 0);
        if (bench->by_ids)
            declare(bench, "rows_per_expert", MOETOKEN_I64, 1, bench->experts, 0);
        break;
    case OPERATOR_PERMUTE_GRAD:
        declare(bench, "tokens_grad", token, 2, bench->tokens, bench->hidden);
        declare_weights_grad(bench, type_of(bench, "permuted_probs_grad"));
        break;
    default: /* the router has a bench of its own */
        break;
    }
}

/* Whether the tensor has no memory of its own. */
static bool is_in_place(const struct bench_case *bench, int i)
{
    return bench->in_place && strcmp(bench->tensors[i].name, "permuted_tokens_grad") == 0;
}

static void place_tensor(struct bench_case *bench, struct arena *arena, int i)
{
    DLTensor *tensor = &bench->tensors[i].tensor;
    tensor->shape = bench->tensors[i].shape;
    if (is_in_place(bench, i)) {
        tensor->data = bench_case_tensor(bench, "permuted_tokens")->data;
        return;
    }
    tensor->data = arena_take(arena, (size_t)tensor_bytes(tensor));
    if (i >= bench->inputs_count)
        memset(tensor->data, 0, (size_t)tensor_bytes(tensor));
}

static bool place_tensors(struct bench_case *bench, struct arena *arena, char *error,
                          size_t error_size)
{
    size_t bytes = 0, workspace = 0;
    if (moetoken_workspace_size(bench->tokens, bench->slots, &workspace) != MOETOKEN_OK) {
        snprintf(error, error_size, "%s", moetoken_last_error());
        return false;
    }
    for (int i = 0; i < bench->count; i++)
        if (!is_in_place(bench, i)) {
            bytes += buffer_bytes((size_t)tensor_bytes(&bench->tensors[i].tensor));
            bench->held_bytes += (size_t)tensor_bytes(&bench->tensors[i].tensor);
        }
    bytes += buffer_bytes(workspace);
    if (!is_available(arena, (double)bytes, (double)bench->rows, error, error_size))
        return false;
    if (!arena_reset(arena, bytes)) {
        snprintf(error, error_size, "no memory for a case of %lld rows: the system refuses %.0f MB",
                 (long long)bench->rows, (double)bytes * 1e-6);
        return false;
    }
    for (int i = 0; i < bench->count; i++)
        place_tensor(bench, arena, i);
    bench->options.workspace = arena_take(arena, workspace);
    bench->options.workspace_bytes = workspace;
    memset(bench->options.workspace, 0, workspace);
    return true;
}

static void describe_traffic(struct bench_case *bench)
{
    static const char *const read[OPERATORS_COUNT][2] = {
        {"permuted_tokens", "unpermuted_tokens_grad"},
        {"permuted_tokens", NULL},
        {"tokens", NULL},
        {"permuted_tokens_grad", NULL}};
    static const char *const written[OPERATORS_COUNT] = {
        "permuted_tokens_grad", "unpermuted_tokens", "permuted_tokens", "tokens_grad"};
    bench->traffic = (struct traffic){0};
    for (int i = 0; i < 2; i++) {
        const char *name = read[bench->operator_kind][i];
        const DLTensor *tensor = name == NULL ? NULL : bench_case_tensor(bench, name);
        if (tensor == NULL)
            continue;
        bench->traffic.read[i] = tensor->data;
        bench->traffic.read_bytes[i] = (size_t)tensor_bytes(tensor);
    }
    const DLTensor *tensor = bench_case_tensor(bench, written[bench->operator_kind]);
    bench->traffic.write = tensor->data;
    bench->traffic.write_bytes = (size_t)tensor_bytes(tensor);
}

/* ---- contents ------------------------------------------------------------------------------- */

/* Drawing gigabytes of random numbers takes longer than measuring, and speed does not depend on the
 * values. Rows beyond the drawn ones are copies of those, each starting at an element of its own:
 * neither neighbours nor rows a power of two apart are alike, so a row in the wrong place shows. */
static void copy_rows(const struct bench_tensor *tensor, int64_t drawn, uint64_t key)
{
    size_t size = type_size(tensor->type), row_bytes = (size_t)tensor->shape[1] * size;
    uint64_t choices = (uint64_t)((drawn - 1) * tensor->shape[1] + 1);
    char *data = tensor->tensor.data;
#pragma omp parallel for schedule(static)
    for (int64_t r = drawn; r < tensor->shape[0]; r++)
        memcpy(data + (size_t)r * row_bytes, data + random_bits(key, (uint64_t)r) % choices * size,
               row_bytes);
}

static void fill_rows(const struct bench_tensor *from, uint64_t key)
{
    DLTensor tensor = from->tensor;
    int64_t row = from->shape[1] * (int64_t)type_size(from->type);
    int64_t drawn = row == 0 ? 0 : (int64_t)DRAWN_BYTES / row + 2;
    int64_t shape[2] = {drawn < from->shape[0] ? drawn : from->shape[0], from->shape[1]};
    struct progress progress = {0};
    tensor.shape = shape;
    if (tensor_bytes(&tensor) == 0)
        return;
    random_fill(&tensor, from->type, key, 0, &progress);
    copy_rows(from, shape[0], random_key(key, 0));
}

static bool is_rows(const struct bench_tensor *tensor, int64_t hidden)
{
    return type_is_float(tensor->type) && tensor->tensor.ndim == 2 && tensor->shape[1] == hidden &&
           strcmp(tensor->name, "probs") != 0 && strcmp(tensor->name, "weights") != 0;
}

static double slots_of(const struct case_settings *settings)
{
    double slots = (double)settings->tokens * (double)settings->topk;
    return settings->drop_and_pad && settings->capacity > 0
               ? (double)settings->experts * (double)settings->capacity
               : slots;
}

/* What the tensors take, with the workspace and with what generate plans them in: an estimate, for
 * the plan of a case that is far too large takes minutes. */
static double bytes_of(const struct case_settings *settings, bool in_place)
{
    double tokens = (double)settings->tokens, slots = slots_of(settings);
    double pairs = tokens * (double)settings->experts;
    bool grad = settings->operator_kind == OPERATOR_UNPERMUTE_GRAD;
    bool two_of_rows = grad && !settings->without_probs && !in_place;
    size_t pair_bytes = 2 + (settings->without_probs ? 0 : type_size(settings->probs_type));
    return (tokens + slots * (two_of_rows ? 2 : 1)) * (double)settings->hidden *
               (double)type_size(settings->token_type) +
           pairs * (double)pair_bytes + 48 * (slots + tokens);
}

bool bench_case_generate(struct bench_case *bench, struct arena *arena,
                         const struct case_settings *settings, bool in_place, char *error,
                         size_t error_size)
{
    struct generated_case plan;
    struct progress progress = {0};
    if (!is_available(arena, bytes_of(settings, in_place), slots_of(settings), error, error_size) ||
        !plan_case(&plan, settings, error, error_size))
        return false;
    *bench = (struct bench_case){.operator_kind = settings->operator_kind,
                                 .drop_and_pad = settings->drop_and_pad,
                                 .probs = !settings->without_probs,
                                 .by_ids = settings->by_ids,
                                 .in_place = in_place,
                                 .tokens = settings->tokens,
                                 .hidden = settings->hidden,
                                 .experts = settings->experts,
                                 .slots = plan.slots,
                                 .rows = plan.rows,
                                 .token_type = settings->token_type};
    for (size_t i = 0; i < plan.count; i++)
        declare(bench, plan.specs[i].name, plan.specs[i].type, plan.specs[i].ndim,
                plan.specs[i].shape[0], plan.specs[i].shape[1]);
    declare_outputs(bench);
    bool placed = place_tensors(bench, arena, error, error_size);
    for (int i = 0; placed && i < bench->inputs_count; i++) {
        struct bench_tensor *tensor = &bench->tensors[i];
        if (is_rows(tensor, bench->hidden))
            fill_rows(tensor, random_key(settings->seed, 100 + (uint64_t)i));
        else
            fill_case_tensor(&plan, (size_t)i, &tensor->tensor, &progress);
    }
    free_case(&plan);
    if (placed)
        describe_traffic(bench);
    return placed;
}

static bool declare_from_file(struct bench_case *bench, const struct case_files *files,
                              const char *name, bool required, const DLTensor **from)
{
    const DLTensor *tensor;
    moetoken_type type;
    if (!case_tensor(files, name, required, &tensor))
        return false;
    if (tensor == NULL || !type_of_tensor(tensor, &type) || tensor->ndim < 1 || tensor->ndim > 2)
        return true;
    from[bench->count] = tensor;
    declare(bench, name, type, tensor->ndim, tensor_dimension(tensor, 0),
            tensor_dimension(tensor, 1));
    return true;
}

/* Outputs and workspace; inputs are in the files. */
static bool justified(const struct bench_case *bench, const struct case_files *files)
{
    double bytes = 16.0 * ((double)bench->tokens + (double)bench->slots);
    for (int i = bench->inputs_count; i < bench->count; i++)
        bytes += (double)tensor_bytes(&bench->tensors[i].tensor);
    return case_justifies(files, 0, bytes);
}

bool bench_case_read(struct bench_case *bench, struct arena *arena, const struct case_files *files,
                     bool in_place, char *error, size_t error_size)
{
    static const char *const names[] = {"unpermuted_tokens_grad", "out_index",
                                        "permute_token_id",       "routing_map",
                                        "permuted_tokens",        "probs"};
    const DLTensor *from[BENCH_TENSORS_MOST];
    *bench = (struct bench_case){.operator_kind = OPERATOR_UNPERMUTE_GRAD, .in_place = in_place};
    error[0] = '\0'; /* case_tensor prints its own messages */
    if (!case_switch(files, "drop_and_pad", -1, &bench->drop_and_pad))
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!declare_from_file(bench, files, names[i], i < 2, from))
            return false;
    const DLTensor *g = bench_case_tensor(bench, names[0]),
                   *index = bench_case_tensor(bench, names[1]);
    if (g == NULL || index == NULL || g->ndim != 2) {
        snprintf(error, error_size, "%s: expected two dimensions", g == NULL ? names[1] : names[0]);
        return false;
    }
    const DLTensor *x = bench_case_tensor(bench, "permuted_tokens");
    bench->probs = bench_case_tensor(bench, "probs") != NULL;
    bench->tokens = g->shape[0];
    bench->hidden = g->shape[1];
    bench->experts = tensor_dimension(bench_case_tensor(bench, "routing_map"), 1);
    bench->slots = index->shape[0];
    bench->rows = x == NULL ? bench->slots : x->shape[0];
    bench->token_type = bench->tensors[0].type;
    if (in_place && (x == NULL || !bench->probs)) {
        snprintf(error, error_size,
                 "%s is missing: in place, the gradient replaces permuted_tokens, with probs",
                 x == NULL ? "permuted_tokens" : "probs");
        return false;
    }
    declare_outputs(bench);
    if (!justified(bench, files) || !place_tensors(bench, arena, error, error_size))
        return false;
    for (int i = 0; i < bench->inputs_count; i++)
        memcpy(bench->tensors[i].tensor.data, (const char *)from[i]->data + from[i]->byte_offset,
               (size_t)tensor_bytes(from[i]));
    describe_traffic(bench);
    return true;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static moetoken_status call_unpermute_grad(const struct bench_case *bench)
{
    moetoken_unpermute_grad_args args = {
        .unpermuted_tokens_grad = bench_case_tensor(bench, "unpermuted_tokens_grad"),
        .out_index = bench_case_tensor(bench, "out_index"),
        .permute_token_id = bench_case_tensor(bench, "permute_token_id"),
        .routing_map = bench->probs ? bench_case_tensor(bench, "routing_map") : NULL,
        .permuted_tokens = bench->probs ? bench_case_tensor(bench, "permuted_tokens") : NULL,
        .probs = bench_case_tensor(bench, "probs"),
        .weights = bench_case_tensor(bench, "weights"),
        .drop_and_pad = bench->drop_and_pad,
        .permuted_tokens_grad = bench_case_tensor(bench, "permuted_tokens_grad"),
        .probs_grad = bench_case_tensor(bench, "probs_grad"),
        .weights_grad = bench_case_tensor(bench, "weights_grad")};
    return moetoken_unpermute_grad(&args, &bench->options);
}

static moetoken_status call_unpermute(const struct bench_case *bench)
{
    moetoken_unpermute_args args = {
        .permuted_tokens = bench_case_tensor(bench, "permuted_tokens"),
        .sorted_indices = bench_case_tensor(bench, "sorted_indices"),
        .routing_map = bench_case_tensor(bench, "routing_map"),
        .probs = bench_case_tensor(bench, "probs"),
        .weights = bench_case_tensor(bench, "weights"),
        .drop_and_pad = bench->drop_and_pad,
        .unpermuted_tokens = bench_case_tensor(bench, "unpermuted_tokens"),
    };
    return moetoken_unpermute(&args, &bench->options);
}

static moetoken_status call_permute(const struct bench_case *bench)
{
    moetoken_permute_args args = {.tokens = bench_case_tensor(bench, "tokens"),
                                  .routing_map = bench_case_tensor(bench, "routing_map"),
                                  .probs = bench_case_tensor(bench, "probs"),
                                  .num_out_tokens = bench->by_ids ? 0 : bench->slots,
                                  .drop_and_pad = bench->drop_and_pad,
                                  .expert_ids = bench_case_tensor(bench, "expert_ids"),
                                  .weights = bench_case_tensor(bench, "weights"),
                                  .experts_num = bench->by_ids ? bench->experts : 0,
                                  .permuted_tokens = bench_case_tensor(bench, "permuted_tokens"),
                                  .permuted_probs = bench_case_tensor(bench, "permuted_probs"),
                                  .sorted_indices = bench_case_tensor(bench, "out_sorted_indices"),
                                  .rows_per_expert = bench_case_tensor(bench, "rows_per_expert")};
    return moetoken_permute(&args, &bench->options);
}

bool bench_case_has_routing(const struct bench_case *bench)
{
    return bench->by_ids && bench->operator_kind == OPERATOR_PERMUTE;
}

moetoken_status bench_case_route(const struct bench_case *bench)
{
    moetoken_permute_args args = {.expert_ids = bench_case_tensor(bench, "expert_ids"),
                                  .experts_num = bench->experts,
                                  .sorted_indices = bench_case_tensor(bench, "out_sorted_indices"),
                                  .rows_per_expert = bench_case_tensor(bench, "rows_per_expert")};
    return moetoken_permute(&args, &bench->options);
}

static moetoken_status call_permute_grad(const struct bench_case *bench)
{
    moetoken_permute_grad_args args = {
        .permuted_tokens_grad = bench_case_tensor(bench, "permuted_tokens_grad"),
        .permuted_probs_grad = bench_case_tensor(bench, "permuted_probs_grad"),
        .sorted_indices = bench_case_tensor(bench, "sorted_indices"),
        .routing_map = bench_case_tensor(bench, "routing_map"),
        .tokens_num = bench->tokens,
        .experts_num = bench->by_ids ? 0 : bench->experts,
        .drop_and_pad = bench->drop_and_pad,
        .tokens_grad = bench_case_tensor(bench, "tokens_grad"),
        .probs_grad = bench_case_tensor(bench, "probs_grad"),
        .weights_grad = bench_case_tensor(bench, "weights_grad")};
    return moetoken_permute_grad(&args, &bench->options);
}

moetoken_status bench_case_call(const struct bench_case *bench)
{
    switch (bench->operator_kind) {
    case OPERATOR_UNPERMUTE_GRAD:
        return call_unpermute_grad(bench);
    case OPERATOR_UNPERMUTE:
        return call_unpermute(bench);
    case OPERATOR_PERMUTE:
        return call_permute(bench);
    default:
        return call_permute_grad(bench);
    }
}
