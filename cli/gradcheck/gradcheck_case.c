/* gradcheck_case.c - a case on file -> the float64 problem that gradcheck looks at.
 * Takes cases of unpermute-grad, unpermute and permute; what a case lacks is random. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck.h"
#include "values/number_formats.h"
#include "values/random_values.h"

struct case_tensors {
    const DLTensor *map, *probs, *x, *token, *sorted, *out_index, *token_id;
};

static bool find_tensors(const struct case_files *files, struct case_tensors *tensors)
{
    return case_tensor(files, "routing_map", true, &tensors->map) &&
           case_tensor(files, "probs", false, &tensors->probs) &&
           case_tensor(files, "permuted_tokens", false, &tensors->x) &&
           case_tensor(files, "tokens", false, &tensors->token) &&
           case_tensor(files, "sorted_indices", false, &tensors->sorted) &&
           case_tensor(files, "out_index", false, &tensors->out_index) &&
           case_tensor(files, "permute_token_id", false, &tensors->token_id);
}

static bool fail(const struct case_files *files, const char *message)
{
    report_input(files, message);
    return false;
}

static bool has_shape(const DLTensor *tensor, int64_t first, int64_t second)
{
    return tensor->ndim == 2 && tensor->shape[0] == first && tensor->shape[1] == second;
}

/* Sizes and types, as far as reading the tensors needs them; the operators check the rest. */
static bool find_sizes(const struct case_files *files, const struct case_tensors *tensors,
                       struct gradient_problem *problem)
{
    const DLTensor *index = tensors->out_index != NULL ? tensors->out_index : tensors->sorted;
    const DLTensor *rows = tensors->x, *values = rows != NULL ? rows : tensors->token;
    if (tensors->map->ndim != 2 || tensors->map->dtype.bits != 8)
        return fail(files, "routing_map: expected [T,E] of bool, int8 or uint8");
    problem->tokens = tensors->map->shape[0];
    problem->experts = tensors->map->shape[1];
    int64_t slots = -1;
    if (index == NULL && !case_integer(files, "num_out_tokens", -1, &slots))
        return false;
    int64_t groups = problem->drop_and_pad ? problem->experts : problem->tokens;
    if (slots > 0 && groups > 0)
        slots -= slots % groups; /* as permute rounds it */
    problem->slots = index != NULL ? tensor_dimension(index, 0) : slots;
    if (values == NULL || problem->slots < 0)
        return fail(files, "the case holds neither rows nor slots: expected one of unpermute-grad "
                           "(with probs), unpermute or permute");
    problem->hidden = tensor_dimension(values, 1);
    problem->rows = rows != NULL ? tensor_dimension(rows, 0) : 0;
    problem->with_probs = tensors->probs != NULL;
    if (tensors->probs != NULL && !has_shape(tensors->probs, problem->tokens, problem->experts))
        return fail(files, "probs: expected the shape of routing_map");
    if (tensors->token != NULL && !has_shape(tensors->token, problem->tokens, problem->hidden))
        return fail(files, "tokens: expected T rows");
    if (index != NULL && index->ndim != 1)
        return fail(files, "the index tensor: expected one dimension");
    const double most = 0x1p40; /* elements: far from overflow, whatever stands beside a 0 */
    if ((double)problem->tokens * (double)problem->hidden > most ||
        (double)problem->tokens * (double)problem->experts > most ||
        (double)problem->rows * (double)problem->hidden > most ||
        (double)problem->slots * (double)problem->hidden > most || (double)problem->slots > most)
        return fail(files, "the sizes are too large to be checked");
    const double elements =
        (double)problem->tokens * (double)(problem->hidden + problem->experts + 1) +
        2.0 * (double)problem->rows * (double)problem->hidden + 3.0 * (double)problem->slots;
    if (!case_justifies(files, 0, 8.0 * elements))
        return false;
    if (tensors->token_id != NULL && tensor_elements(tensors->token_id) != problem->slots)
        return fail(files, "permute_token_id: expected the length of out_index");
    return true;
}

/* out_index and permute_token_id -> what unpermute takes. */
static bool sorted_from_grad(const struct case_files *files, const struct case_tensors *tensors,
                             struct gradient_problem *problem)
{
    int64_t per_token = problem->tokens > 0 ? problem->slots / problem->tokens : 0;
    int64_t *used = calloc((size_t)problem->tokens + 1, sizeof *used);
    bool good = true;
    if (used == NULL)
        return fail(files, "no memory for the slots of each token");
    for (int64_t i = 0; good && i < problem->slots; i++) {
        int64_t row = integer_at(tensors->out_index, i);
        int64_t token = tensors->token_id != NULL ? integer_at(tensors->token_id, i)
                        : per_token > 0           ? i / per_token
                                                  : -1;
        good = token >= 0 && token < problem->tokens;
        if (good && problem->drop_and_pad) {
            good = row >= 0 && row < problem->slots;
            if (good)
                problem->sorted[row] = token;
        } else if (good) {
            good = used[token] < per_token;
            if (good)
                problem->sorted[token * per_token + used[token]++] = row;
        }
    }
    free(used);
    return good || fail(files, "out_index and permute_token_id: expected indices in range and, "
                               "dropless, N / T slots for every token");
}

/* R of a permute case: the set pairs, or N. */
static int64_t rows_of_permute(const struct gradient_problem *problem, const DLTensor *map)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++)
        pairs += set_at(map, i);
    return problem->drop_and_pad || pairs > problem->slots ? problem->slots : pairs;
}

static void copy_floats(const DLTensor *tensor, double *values)
{
    if (tensor != NULL)
        floats_at(tensor, 0, tensor_elements(tensor), values);
}

static void randomise(double *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = random_unit(random_key(seed, 0), (uint64_t)i) - 0.5;
}

static bool read_values(const struct case_files *files, const struct case_tensors *tensors,
                        struct gradient_problem *problem)
{
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++)
        problem->map[i] = set_at(tensors->map, i);
    copy_floats(tensors->probs, problem->probs);
    copy_floats(tensors->x, problem->x);
    randomise(problem->token, problem->tokens * problem->hidden, problem->seed);
    copy_floats(tensors->token, problem->token);
    if (tensors->out_index != NULL)
        return sorted_from_grad(files, tensors, problem);
    for (int64_t i = 0; tensors->sorted != NULL && i < problem->slots; i++)
        problem->sorted[i] = integer_at(tensors->sorted, i);
    return true;
}

bool load_problem(const struct case_files *files, uint64_t seed, struct gradient_problem *problem)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct case_tensors tensors;
    bool mask = false, tolerate = false;
    memset(problem, 0, sizeof *problem);
    problem->seed = seed;
    if (!find_tensors(files, &tensors) ||
        !case_switch(files, "drop_and_pad", -1, &problem->drop_and_pad) ||
        !case_switch(files, "mask_fill_slots", -1, &mask) ||
        !case_switch(files, "tolerate_routing_mismatch", -1, &tolerate) ||
        !find_sizes(files, &tensors, problem))
        return false;
    problem->flags =
        (mask ? MOETOKEN_MASK_FILL_SLOTS : 0) | (tolerate ? MOETOKEN_TOLERATE_ROUTING_MISMATCH : 0);
    if (tensors.x == NULL)
        problem->rows = rows_of_permute(problem, tensors.map);
    if (!allocate_problem(problem, error))
        return fail(files, error);
    return read_values(files, &tensors, problem);
}
