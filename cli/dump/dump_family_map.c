/* dump_family_map.c - torch_npu's functions on a routing map, and their gradients. */
#include <stdlib.h>
#include <string.h>

#include "recomputation.h"
#include "values/number_formats.h"

/* ---- permute --------------------------------------------------------------------------------- */

enum {
    PERMUTE_TOKENS,
    PERMUTE_MAP,
    PERMUTE_PROBS,
    PERMUTE_NUM,
    PERMUTE_PAD
};

static void permute(struct recomputation *r)
{
    static const char *const names[] = {"permuted_tokens", "permuted_probs", "sorted_indices"};
    static const char *const which[] = {"output.0", "output.1", "output.2"};
    const DLTensor *tokens = tensor_of(&r->arguments[PERMUTE_TOKENS]);
    for (int i = 0; i < 3; i++) {
        const DLTensor *actual = tensor_of(&r->results[i]);
        if (actual == NULL || (i == 1 && elements_of(actual) == 0))
            continue;
        case_begin(r);
        case_put(r, "tokens", tokens);
        case_put(r, "routing_map", tensor_of(&r->arguments[PERMUTE_MAP]));
        case_put(r, "probs", tensor_of(&r->arguments[PERMUTE_PROBS]));
        case_flag(r, "drop_and_pad", number_of(&r->arguments[PERMUTE_PAD], 0) != 0);
        case_number(r, "num_out_tokens", number_of(&r->arguments[PERMUTE_NUM], size_of(tokens, 0)));
        case_judge(r, OPERATOR_PERMUTE, names[i], actual, which[i]);
    }
}

/* The gradient of permute, of which the arguments are told one by one. */
struct permute_gradient {
    const DLTensor *rows, *probs, *sorted, *map;
    int64_t tokens, experts;
    bool padded;
};

static void judge_permute_gradient(struct recomputation *r, const struct permute_gradient *g,
                                   const char *name, const DLTensor *actual, const char *which)
{
    if (actual == NULL)
        return;
    case_begin(r);
    case_put(r, "permuted_tokens_grad", g->rows);
    case_put(r, "permuted_probs_grad", g->probs);
    case_put(r, "sorted_indices", g->sorted);
    case_put(r, "routing_map", g->map);
    case_number(r, "tokens_num", g->tokens);
    case_number(r, "experts_num", g->experts);
    case_flag(r, "drop_and_pad", g->padded);
    case_flag(r, "tolerate_routing_mismatch", true);
    case_judge(r, OPERATOR_PERMUTE_GRAD, name, actual, which);
}

static void permute_backward(struct recomputation *r)
{
    const DLTensor *map = tensor_of(&r->arguments[PERMUTE_MAP]);
    struct permute_gradient g = {.rows = tensor_of(&r->gradients[0]),
                                 .probs = tensor_of(&r->arguments[PERMUTE_PROBS]) == NULL
                                              ? NULL
                                              : tensor_of(&r->gradients[1]),
                                 .sorted = tensor_of(&r->results[2]),
                                 .map = map,
                                 .tokens = size_of(map, 0),
                                 .experts = size_of(map, 1),
                                 .padded = number_of(&r->arguments[PERMUTE_PAD], 0) != 0};
    judge_permute_gradient(r, &g, "tokens_grad", tensor_of(&r->argument_gradients[PERMUTE_TOKENS]),
                           "output.0");
    judge_permute_gradient(r, &g, "probs_grad", tensor_of(&r->argument_gradients[PERMUTE_PROBS]),
                           "output.2");
}

static void permute_grad(struct recomputation *r)
{
    struct permute_gradient g = {.rows = tensor_of(&r->arguments[0]),
                                 .probs = tensor_of(&r->arguments[1]),
                                 .sorted = tensor_of(&r->arguments[2]),
                                 .map = tensor_of(&r->arguments[3]),
                                 .experts = number_of(&r->arguments[4], 0),
                                 .tokens = number_of(&r->arguments[5], 0),
                                 .padded = number_of(&r->arguments[6], 0) != 0};
    judge_permute_gradient(r, &g, "tokens_grad", tensor_of(&r->results[0]), "output.0");
    if (g.probs != NULL)
        judge_permute_gradient(r, &g, "probs_grad", tensor_of(&r->results[1]), "output.1");
}

/* ---- unpermute ------------------------------------------------------------------------------- */

enum {
    UNPERMUTE_ROWS,
    UNPERMUTE_SORTED,
    UNPERMUTE_SHAPE,
    UNPERMUTE_PROBS,
    UNPERMUTE_MAP,
    UNPERMUTE_PAD
};

static bool is_padded(const struct recomputation *r)
{
    return number_of(&r->arguments[UNPERMUTE_PAD], 0) != 0;
}

static void judge_unpermute(struct recomputation *r, int result, const char *name,
                            const char *which)
{
    const DLTensor *actual = tensor_of(&r->results[result]);
    const DLTensor *probs = tensor_of(&r->arguments[UNPERMUTE_PROBS]);
    const struct dump_value *shape = &r->arguments[UNPERMUTE_SHAPE];
    if (actual == NULL)
        return;
    case_begin(r);
    case_put(r, "permuted_tokens", tensor_of(&r->arguments[UNPERMUTE_ROWS]));
    case_put(r, "sorted_indices", tensor_of(&r->arguments[UNPERMUTE_SORTED]));
    case_put(r, "probs", probs);
    case_put(r, "routing_map", probs == NULL ? NULL : tensor_of(&r->arguments[UNPERMUTE_MAP]));
    if (shape->kind == VALUE_LIST && shape->list_count == 2)
        case_shape(r, shape->list[0], shape->list[1]);
    case_flag(r, "drop_and_pad", is_padded(r));
    case_flag(r, "tolerate_routing_mismatch", true);
    case_judge(r, OPERATOR_UNPERMUTE, name, actual, which);
}

static void unpermute(struct recomputation *r)
{
    judge_unpermute(r, 0, "unpermuted_tokens", "output.0");
}

/* The plug-in's own function, which hands out what its gradient takes. Dropless, the tokens of the
 * slots are known and nothing reads them. */
static void unpermute_with_indices(struct recomputation *r)
{
    judge_unpermute(r, 0, "unpermuted_tokens", "output.0");
    judge_unpermute(r, 1, "out_index", "output.1");
    if (is_padded(r))
        judge_unpermute(r, 2, "permute_token_id", "output.2");
    if (tensor_of(&r->arguments[UNPERMUTE_PROBS]) != NULL)
        judge_unpermute(r, 3, "permuted_probs", "output.3");
}

struct placed {
    int64_t token, place;
};

static int compare_placed(const void *a, const void *b)
{
    const struct placed *left = a, *right = b;
    if (left->token != right->token)
        return left->token < right->token ? -1 : 1;
    return left->place < right->place ? -1 : 1;
}

/* Padded: the tokens of the rows in ascending order, and the rows that they come from. */
static bool sort_by_token(struct recomputation *r, const DLTensor *sorted, const DLTensor **index,
                          const DLTensor **tokens)
{
    int64_t *rows, *ids, count = elements_of(sorted);
    struct placed *placed = malloc(((size_t)count + 1) * sizeof *placed);
    *index = new_integers(r, count, &rows);
    *tokens = new_integers(r, count, &ids);
    bool good = placed != NULL && *index != NULL && *tokens != NULL;
    for (int64_t i = 0; good && i < count; i++)
        placed[i] = (struct placed){whole_number_at(sorted, i), i};
    if (good && count > 0)
        qsort(placed, (size_t)count, sizeof *placed, compare_placed);
    for (int64_t i = 0; good && i < count; i++) {
        rows[i] = placed[i].place;
        ids[i] = placed[i].token;
    }
    free(placed);
    return good;
}

/* The gradient of unpermute, of which the arguments are told one by one. */
struct unpermute_gradient {
    const DLTensor *grad, *index, *tokens, *map, *rows, *probs;
    bool padded;
};

static void judge_unpermute_gradient(struct recomputation *r, const struct unpermute_gradient *g,
                                     const char *name, const DLTensor *actual, const char *which)
{
    if (actual == NULL)
        return;
    case_begin(r);
    case_put(r, "unpermuted_tokens_grad", g->grad);
    case_put(r, "out_index", g->index);
    case_put(r, "permute_token_id", g->padded ? g->tokens : NULL);
    case_put(r, "routing_map", g->probs == NULL ? NULL : g->map);
    case_put(r, "permuted_tokens", g->rows);
    case_put(r, "probs", g->probs);
    case_flag(r, "drop_and_pad", g->padded);
    case_flag(r, "tolerate_routing_mismatch", true);
    case_judge(r, OPERATOR_UNPERMUTE_GRAD, name, actual, which);
}

static void unpermute_backward(struct recomputation *r)
{
    const DLTensor *sorted = tensor_of(&r->arguments[UNPERMUTE_SORTED]);
    struct unpermute_gradient g = {.grad = tensor_of(&r->gradients[0]),
                                   .index = sorted,
                                   .map = tensor_of(&r->arguments[UNPERMUTE_MAP]),
                                   .rows = tensor_of(&r->arguments[UNPERMUTE_ROWS]),
                                   .probs = tensor_of(&r->arguments[UNPERMUTE_PROBS]),
                                   .padded = is_padded(r)};
    if (g.padded && (sorted == NULL || !sort_by_token(r, sorted, &g.index, &g.tokens))) {
        not_checked(r, "", "", "sorted_indices is no tensor, or there is no memory to sort it");
        return;
    }
    judge_unpermute_gradient(r, &g, "permuted_tokens_grad",
                             tensor_of(&r->argument_gradients[UNPERMUTE_ROWS]), "output.0");
    judge_unpermute_gradient(r, &g, "probs_grad",
                             tensor_of(&r->argument_gradients[UNPERMUTE_PROBS]), "output.3");
}

static void unpermute_grad(struct recomputation *r)
{
    struct unpermute_gradient g = {.grad = tensor_of(&r->arguments[0]),
                                   .index = tensor_of(&r->arguments[1]),
                                   .tokens = tensor_of(&r->arguments[2]),
                                   .map = tensor_of(&r->arguments[3]),
                                   .rows = tensor_of(&r->arguments[4]),
                                   .probs = tensor_of(&r->arguments[5]),
                                   .padded = number_of(&r->arguments[6], 0) != 0};
    judge_unpermute_gradient(r, &g, "permuted_tokens_grad", tensor_of(&r->results[0]), "output.0");
    if (g.probs != NULL)
        judge_unpermute_gradient(r, &g, "probs_grad", tensor_of(&r->results[1]), "output.1");
}

/* ---- the functions --------------------------------------------------------------------------- */

#define UNPERMUTE_ARGUMENTS                                                                        \
    {                                                                                              \
        "permuted_tokens", "sorted_indices", "restore_shape", "probs", "routing_map",              \
            "drop_and_pad"                                                                         \
    }

const struct family_function family_by_map[] = {
    {"npu_moe_token_permute_with_routing_map",
     {"tokens", "routing_map", "probs", "num_out_tokens", "drop_and_pad"},
     permute,
     permute_backward},
    {"npu_moe_token_permute_with_routing_map_grad",
     {"permuted_token_out_grad", "probs_grad", "sorted_indices", "routing_map", "experts_num",
      "tokens_num", "drop_and_pad"},
     permute_grad,
     NULL},
    {"npu_moe_token_unpermute_with_routing_map", UNPERMUTE_ARGUMENTS, unpermute,
     unpermute_backward},
    {"_npu_moe_token_unpermute_with_routing_map", UNPERMUTE_ARGUMENTS, unpermute_with_indices,
     unpermute_backward},
    {"npu_moe_token_unpermute_with_routing_map_grad",
     {"unpermuted_tokens_grad", "out_index", "permuted_token_id", "routing_map", "permuted_tokens",
      "probs", "drop_and_pad", "restore_shape"},
     unpermute_grad,
     NULL},
};
const int family_by_map_count = sizeof family_by_map / sizeof family_by_map[0];
