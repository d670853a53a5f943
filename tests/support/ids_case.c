/* ids_case.c - routings by expert ids, and an oracle of them that goes by the contract's words. */
#include "ids_case.h"

#include "check.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

#define LANES 32 /* contract.md section 5: element h goes to lane h % 32 */

struct ids_spec ids_spec_random(void)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    struct ids_spec spec = {
        .tokens = 1 + random_below(40),
        .slots_per_token = 1 + random_below(9),
        .experts = 1 + random_below(20),
        .hidden = 1 + random_below(70),
        .rows = -1,
        .unused_percent = random_chance(50) ? 0 : (int)random_below(60),
        .repeat_experts = random_chance(50),
        .skewed = random_chance(30),
        .token_type = types[random_below(4)],
        .index_type = random_chance(50) ? MOETOKEN_I32 : MOETOKEN_I64,
    };
    bool is_16_bits = number_size(spec.token_type) == 2;
    spec.weights_type = is_16_bits && random_chance(50) ? MOETOKEN_F32 : spec.token_type;
    if (random_chance(50)) {
        spec.begin = random_below(spec.experts);
        spec.end = spec.begin + random_below(spec.experts - spec.begin + 1);
    }
    if (random_chance(40)) {
        spec.capacity = 1 + random_below(spec.tokens + 3);
    } else if (random_chance(40)) {
        spec.rows = random_below(spec.tokens * spec.slots_per_token + 5);
    }
    return spec;
}

/* ---- the routing ---------------------------------------------------------------------------- */

static bool names_twice(const int64_t *id, int64_t begin, int64_t slot)
{
    for (int64_t s = begin; s < slot; s++) {
        if (id[s] == id[slot]) {
            return true;
        }
    }
    return false;
}

static void draw_ids(struct ids_case *ids)
{
    const struct ids_spec *spec = &ids->spec;
    for (int64_t s = 0; s < ids->slots; s++) {
        int64_t begin = s - s % spec->slots_per_token;
        ids->id[s] = spec->skewed && random_chance(50) ? 0 : random_below(spec->experts);
        if (random_chance(spec->unused_percent) ||
            (!spec->repeat_experts && names_twice(ids->id, begin, s))) {
            ids->id[s] = -1;
        }
    }
}

/* Expert by expert, slot by slot. */
static void number_rows(struct ids_case *ids)
{
    const struct ids_spec *spec = &ids->spec;
    bool all = spec->begin == 0 && spec->end == 0;
    int64_t end = all ? spec->experts : spec->end, row = 0;
    for (int64_t s = 0; s < ids->slots; s++) {
        ids->row[s] = -1;
    }
    for (int64_t e = spec->begin; e < end; e++) {
        int64_t taken = 0;
        for (int64_t s = 0; s < ids->slots; s++) {
            if (ids->id[s] != e) {
                continue;
            }
            if (spec->capacity > 0 && taken < spec->capacity) {
                ids->row[s] = (e - spec->begin) * spec->capacity + taken++;
            } else if (spec->capacity == 0 && (spec->rows < 0 || row < spec->rows)) {
                ids->row[s] = row++;
                taken++;
            }
        }
        ids->count[e - spec->begin] = taken;
    }
    ids->rows = spec->capacity > 0 ? (end - spec->begin) * spec->capacity
                : spec->rows < 0   ? row
                                   : spec->rows;
}

static void make_tensors(struct ids_case *ids)
{
    const struct ids_spec *spec = &ids->spec;
    struct {
        struct test_tensor *tensor;
        moetoken_type type;
        int ndim;
        int64_t rows, columns;
    } all[] = {
        {&ids->tokens, spec->token_type, 2, spec->tokens, spec->hidden},
        {&ids->weights, spec->weights_type, 2, spec->tokens, spec->slots_per_token},
        {&ids->residual, spec->token_type, 2, spec->tokens, spec->hidden},
        {&ids->residual2, spec->token_type, 2, spec->tokens, spec->hidden},
        {&ids->bias, spec->token_type, 2, spec->experts, spec->hidden},
        {&ids->expert_rows, spec->token_type, 2, ids->rows, spec->hidden},
        {&ids->grad, spec->token_type, 2, spec->tokens, spec->hidden},
        {&ids->row_grad, spec->weights_type, 1, ids->rows, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct layout layout = layout_random(false);
        layout.repeat_rows = layout.repeat_columns = false;
        tensor_make(all[i].tensor, all[i].type, all[i].ndim, all[i].rows, all[i].columns, &layout);
        tensor_fill_random(&all[i].tensor->dl, random_chance(20) ? 10 : 0);
    }
    for (int64_t s = 0; s < ids->slots; s++) { /* weights of exactly 0, and of 1 */
        if (random_chance(10)) {
            tensor_set(&ids->weights.dl, s / spec->slots_per_token, s % spec->slots_per_token,
                       random_chance(50) ? 0 : 1);
        }
    }
    struct layout layout = layout_random(false);
    layout.repeat_rows = layout.repeat_columns = false;
    tensor_make(&ids->expert_ids, spec->index_type, 2, spec->tokens, spec->slots_per_token,
                &layout);
    tensor_make(&ids->sorted, spec->index_type, 1, ids->slots, 1, NULL);
    for (int64_t s = 0; s < ids->slots; s++) {
        tensor_set(&ids->expert_ids.dl, s / spec->slots_per_token, s % spec->slots_per_token,
                   (double)ids->id[s]);
    }
    tensor_fill_indices(&ids->sorted.dl, ids->row);
}

void ids_case_make(struct ids_case *ids, const struct ids_spec *spec)
{
    memset(ids, 0, sizeof *ids);
    ids->spec = *spec;
    ids->slots = spec->tokens * spec->slots_per_token;
    ids->id = calloc((size_t)ids->slots + 1, sizeof *ids->id);
    ids->row = calloc((size_t)ids->slots + 1, sizeof *ids->row);
    ids->count = calloc((size_t)spec->experts + 1, sizeof *ids->count);
    check(ids->id && ids->row && ids->count, "no memory");
    draw_ids(ids);
    number_rows(ids);
    ids->slot_of_row = calloc((size_t)ids->rows + 1, sizeof *ids->slot_of_row);
    check(ids->slot_of_row != NULL, "no memory");
    memset(ids->slot_of_row, 0xff, ((size_t)ids->rows + 1) * sizeof *ids->slot_of_row);
    for (int64_t s = 0; s < ids->slots; s++) {
        if (ids->row[s] >= 0) {
            ids->slot_of_row[ids->row[s]] = s;
        }
    }
    make_tensors(ids);
}

void ids_case_free(struct ids_case *ids)
{
    struct test_tensor *all[] = {
        &ids->tokens, &ids->expert_ids,  &ids->weights, &ids->residual, &ids->residual2,
        &ids->bias,   &ids->expert_rows, &ids->grad,    &ids->row_grad, &ids->sorted};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tensor_free(all[i]);
    }
    free(ids->id);
    free(ids->row);
    free(ids->count);
    free(ids->slot_of_row);
    memset(ids, 0, sizeof *ids);
}

void ids_output(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                int64_t columns)
{
    struct layout layout = layout_random(true);
    tensor_make(tensor, type, ndim, rows, columns, &layout);
    tensor_fill_poison(&tensor->dl);
    tensor_snapshot(tensor);
}

/* ---- expectations --------------------------------------------------------------------------- */

/* sum + weight * value: multiply then add, in float32, or in binary64 for float64. */
static double multiply_add(moetoken_type type, double sum, double weight, double value)
{
    if (type == MOETOKEN_F64) {
        double product = weight * value;
        return sum + product;
    }
    float product = (float)weight * (float)value;
    return (double)((float)sum + product);
}

uint64_t ids_expect_combined(const struct ids_case *ids, int64_t token, int64_t h, bool weighted,
                             int residuals, bool biased)
{
    moetoken_type type = ids->spec.token_type;
    double sum = 0;
    if (residuals > 0) {
        sum = multiply_add(type, sum, 1, tensor_get(&ids->residual.dl, token, h));
    }
    if (residuals > 1) {
        sum = multiply_add(type, sum, 1, tensor_get(&ids->residual2.dl, token, h));
    }
    for (int64_t k = 0; k < ids->spec.slots_per_token; k++) {
        int64_t slot = token * ids->spec.slots_per_token + k;
        double weight = weighted ? tensor_get(&ids->weights.dl, token, k) : 1;
        if (ids->row[slot] < 0 || weight == 0) {
            continue;
        }
        sum = multiply_add(type, sum, weight, tensor_get(&ids->expert_rows.dl, ids->row[slot], h));
        if (biased) {
            sum = multiply_add(type, sum, weight, tensor_get(&ids->bias.dl, ids->id[slot], h));
        }
    }
    return number_encode(sum, type);
}

uint64_t ids_expect_tokens_grad(const struct ids_case *ids, int64_t token, int64_t h)
{
    return ids_expect_combined(ids, token, h, false, 0, false);
}

uint64_t ids_expect_scaled(const struct ids_case *ids, int64_t row, int64_t h, bool weighted)
{
    moetoken_type type = ids->spec.token_type;
    int64_t slot = ids->slot_of_row[row], per_token = ids->spec.slots_per_token;
    if (slot < 0) {
        return 0;
    }
    if (!weighted) {
        return tensor_get_bits(&ids->grad.dl, slot / per_token, h);
    }
    double weight = tensor_get(&ids->weights.dl, slot / per_token, slot % per_token);
    double g = tensor_get(&ids->grad.dl, slot / per_token, h);
    double product = type == MOETOKEN_F64 ? weight * g : (double)((float)weight * (float)g);
    return number_encode(product, type);
}

static double dot(const DLTensor *left, int64_t left_row, const DLTensor *right, int64_t right_row,
                  int64_t length)
{
    double lane[LANES] = {0};
    for (int64_t h = 0; h < length; h++) {
        double product = tensor_get(left, left_row, h) * tensor_get(right, right_row, h);
        lane[h % LANES] += product;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            lane[j] += lane[j + half];
        }
    }
    return lane[0];
}

uint64_t ids_expect_weight_grad(const struct ids_case *ids, int64_t slot, bool biased)
{
    int64_t token = slot / ids->spec.slots_per_token;
    if (ids->row[slot] < 0) {
        return 0;
    }
    double sum = dot(&ids->expert_rows.dl, ids->row[slot], &ids->grad.dl, token, ids->spec.hidden);
    if (biased) {
        sum += dot(&ids->bias.dl, ids->id[slot], &ids->grad.dl, token, ids->spec.hidden);
    }
    return number_encode(sum, ids->spec.weights_type);
}
