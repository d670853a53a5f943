/* direct_indices.c - index tensors of the drop-ins: ids or a map counted, then placed. */
#include "direct_indices.h"

#include <stdlib.h>
#include <string.h>

#include "direct.h"

static int64_t elements_of(const DLTensor *tensor)
{
    int64_t count = 1;
    for (int dim = 0; dim < tensor->ndim; dim++)
        count *= tensor->shape[dim];
    return count;
}

static bool is_contiguous(const DLTensor *tensor)
{
    if (elements_of(tensor) == 0)
        return true;
    int64_t stride = 1;
    for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
        if (tensor->strides && tensor->shape[dim] != 1 && tensor->strides[dim] != stride)
            return false;
        stride *= tensor->shape[dim];
    }
    return true;
}

/* Input i, int32 or int64 without gaps, of one or two dimensions; NULL with the call failed. */
static const DLTensor *indices_of(struct direct *call, int i)
{
    const DLTensor *tensor = call->failed ? NULL : call->inputs[i];
    call->failed = !tensor || tensor->ndim < 1 || tensor->ndim > 2 || !is_contiguous(tensor) ||
                   tensor->dtype.code != kDLInt ||
                   (tensor->dtype.bits != 32 && tensor->dtype.bits != 64);
    return call->failed ? NULL : tensor;
}

static int64_t get(const DLTensor *indices, int64_t i)
{
    return indices->dtype.bits == 32 ? ((const int32_t *)indices->data)[i]
                                     : ((const int64_t *)indices->data)[i];
}

static void put(const DLTensor *indices, int64_t i, int64_t value)
{
    if (indices->dtype.bits == 32)
        ((int32_t *)indices->data)[i] = (int32_t)value;
    else
        ((int64_t *)indices->data)[i] = value;
}

PyObject *python_direct_within(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 1, count, 2);
    int64_t rows_num = direct_number(&call, 1);
    const DLTensor *indices = indices_of(&call, 0);
    if (call.failed)
        return direct_finish_single(&call);
    const int64_t *shape = indices->shape;
    const DLTensor *found = indices->ndim == 1
                                ? direct_vector(&call, 0, indices->dtype, shape[0])
                                : direct_matrix(&call, 0, indices->dtype, shape[0], shape[1]);
    int64_t size = found ? elements_of(indices) : 0;
    for (int64_t i = 0; i < size; i++) {
        int64_t index = get(indices, i);
        put(found, i, index >= 0 && index < rows_num ? index : -1);
    }
    return direct_finish_single(&call);
}

/* From how many of each there are to where the first of each stands. */
static void counts_to_starts(int64_t *counts, int64_t size)
{
    int64_t start = 0;
    for (int64_t i = 0; i < size; i++) {
        int64_t next = start + counts[i];
        counts[i] = start;
        start = next;
    }
}

/* Writes the row of each slot; false: ids are too far apart to be counted, or there is no memory.
 */
static bool place_slots(const DLTensor *expert_ids, const DLTensor *rows)
{
    int64_t slots_num = elements_of(expert_ids), experts_num = 0;
    for (int64_t i = 0; i < slots_num; i++)
        if (get(expert_ids, i) >= experts_num)
            experts_num = get(expert_ids, i) == INT64_MAX ? INT64_MAX : get(expert_ids, i) + 1;
    if (experts_num > 4 * slots_num + 1024)
        return false;
    int64_t *starts = calloc((size_t)experts_num + 1, sizeof *starts);
    for (int64_t i = 0; starts && i < slots_num; i++)
        if (get(expert_ids, i) >= 0)
            starts[get(expert_ids, i)]++;
    if (starts)
        counts_to_starts(starts, experts_num);
    for (int64_t i = 0; starts && i < slots_num; i++)
        put(rows, i, get(expert_ids, i) >= 0 ? starts[get(expert_ids, i)]++ : -1);
    free(starts);
    return starts != NULL;
}

PyObject *python_direct_rows_of_slots(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 1, count, 1);
    const DLTensor *expert_ids = indices_of(&call, 0);
    if (call.failed)
        return direct_finish_single(&call);
    int64_t slots_num = elements_of(expert_ids);
    const DLTensor *rows = direct_vector(&call, 0, moetoken_dtype(MOETOKEN_I32), slots_num);
    call.failed = call.failed || !place_slots(expert_ids, rows);
    return direct_finish_single(&call);
}

/* ---- a routing map --------------------------------------------------------------------------- */

struct map {
    const uint8_t *bytes; /* [tokens_num, experts_num] */
    int64_t tokens_num, experts_num;
    int64_t *starts; /* [experts_num], the next row of each expert */
    int64_t set_pairs, most_a_token;
};

/* The first expert from `expert` on whose byte is set; experts_num: none. Eight unset ones, as most
 * are where experts are many, are passed over at once. */
static int64_t next_set(const struct map *map, const uint8_t *row, int64_t expert)
{
    for (; expert < map->experts_num; expert++) {
        uint64_t eight = 1;
        while (map->experts_num - expert >= 8 && (memcpy(&eight, row + expert, 8), !eight))
            expert += 8;
        if (expert < map->experts_num && row[expert])
            return expert;
    }
    return map->experts_num;
}

static bool is_map(const DLTensor *tensor)
{
    DLDataType type = tensor->dtype, boolean = moetoken_dtype(MOETOKEN_BOOL);
    return type.bits == 8 &&
           (type.code == kDLInt || type.code == kDLUInt || type.code == boolean.code);
}

/* Opens input 0 and counts; the map's starts are to be freed. */
static void open_map(struct direct *call, struct map *map)
{
    *map = (struct map){.tokens_num = direct_size(call, 0, 2, 0),
                        .experts_num = direct_size(call, 0, 2, 1)};
    call->failed = call->failed || !is_contiguous(call->inputs[0]) || !is_map(call->inputs[0]);
    if (call->failed)
        return;
    map->bytes = call->inputs[0]->data;
    map->starts = calloc((size_t)map->experts_num + 1, sizeof *map->starts);
    call->failed = !map->starts;
    for (int64_t token = 0; !call->failed && token < map->tokens_num; token++) {
        const uint8_t *row = map->bytes + token * map->experts_num;
        int64_t found = 0;
        for (int64_t e = next_set(map, row, 0); e < map->experts_num;
             e = next_set(map, row, e + 1)) {
            map->starts[e]++;
            found++;
        }
        map->set_pairs += found;
        if (found > map->most_a_token)
            map->most_a_token = found;
    }
    if (!call->failed)
        counts_to_starts(map->starts, map->experts_num);
}

static void place_pairs(const struct map *map, int64_t *tokens, int64_t *experts, int64_t rows_num)
{
    for (int64_t token = 0; token < map->tokens_num; token++) {
        const uint8_t *row = map->bytes + token * map->experts_num;
        for (int64_t e = next_set(map, row, 0); e < map->experts_num;
             e = next_set(map, row, e + 1)) {
            int64_t place = map->starts[e]++;
            if (place < rows_num) {
                tokens[place] = token;
                experts[place] = e;
            }
        }
    }
    int64_t place = map->set_pairs;
    for (int64_t e = 0; e < map->experts_num && place < rows_num; e++)
        for (int64_t token = 0; token < map->tokens_num && place < rows_num; token++)
            if (!map->bytes[token * map->experts_num + e]) {
                tokens[place] = token;
                experts[place++] = e;
            }
}

PyObject *python_direct_map_rows(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    struct map map;
    direct_begin(&call, values, 1, count, 2);
    open_map(&call, &map);
    int64_t rows_num = map.set_pairs;
    if (!call.failed && values[1] != Py_None)
        rows_num = direct_number(&call, 1);
    call.failed = call.failed || rows_num < 0 || rows_num > elements_of(call.inputs[0]);
    DLDataType type = moetoken_dtype(MOETOKEN_I64);
    const DLTensor *tokens = direct_vector(&call, 0, type, rows_num),
                   *experts = direct_vector(&call, 1, type, rows_num);
    if (!call.failed)
        place_pairs(&map, tokens->data, experts->data, rows_num);
    free(map.starts);
    return direct_finish(&call, 2);
}

/* Writes the row of each slot; false: a row's token is another than the map says. */
static bool place_rows(const struct map *map, const DLTensor *token_of_row, const DLTensor *slots)
{
    for (int64_t token = 0; token < map->tokens_num; token++) {
        const uint8_t *row = map->bytes + token * map->experts_num;
        int64_t slot = token * map->most_a_token, end = slot + map->most_a_token;
        for (int64_t e = next_set(map, row, 0); e < map->experts_num;
             e = next_set(map, row, e + 1)) {
            int64_t place = map->starts[e]++;
            if (get(token_of_row, place) != token)
                return false;
            put(slots, slot++, place);
        }
        while (slot < end)
            put(slots, slot++, -1);
    }
    return true;
}

PyObject *python_direct_map_slots(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    struct map map;
    direct_begin(&call, values, 2, count, 2);
    open_map(&call, &map);
    const DLTensor *token_of_row = indices_of(&call, 1);
    call.failed = call.failed || direct_size(&call, 1, 1, 0) != map.set_pairs;
    const DLTensor *slots = NULL;
    if (!call.failed)
        slots = direct_vector(&call, 0, token_of_row->dtype, map.tokens_num * map.most_a_token);
    call.failed = call.failed || !place_rows(&map, token_of_row, slots);
    free(map.starts);
    return direct_finish_single(&call);
}
