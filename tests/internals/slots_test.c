/* slots_test.c - how index tensors and routing maps are read: many at a time where they lie side by
 * side, against one by one. Rows of any length, any set byte, pages that may not be touched. */
#include "routing/slots.h"
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#define TOKENS 5

static struct moetoken_view view_of(const struct test_tensor *tensor, int ndim)
{
    struct moetoken_view view;
    view.name = "tensor";
    check(moetoken_view_make(&tensor->dl, ndim, MOETOKEN_MAP_LIKE | MOETOKEN_INDEX_LIKE, true,
                             &view) == MOETOKEN_OK,
          "%s", moetoken_last_error());
    return view;
}

/* ---- the routing map ------------------------------------------------------------------------ */

static void fill_map(const DLTensor *map, int percent)
{
    static const uint64_t set[] = {1, 2, 0x40, 0x7f, 0x80, 0xff};
    for (int64_t t = 0; t < map->shape[0]; t++) {
        for (int64_t e = 0; e < map->shape[1]; e++) {
            tensor_set_bits(map, t, e, random_chance(percent) ? set[random_below(6)] : 0);
        }
    }
}

static bool is_set(const DLTensor *map, int64_t token, int64_t expert)
{
    return tensor_get_bits(map, token, expert) != 0;
}

static void check_masks(const DLTensor *map, const struct moetoken_view *view, int64_t token)
{
    int64_t experts = map->shape[1];
    for (int64_t first = 0; first <= experts; first++) {
        int64_t end = first + random_below(experts - first + 1);
        uint64_t wanted = 0, mask = moetoken_map_mask(view, token, first, end);
        for (int64_t j = 0; j < 64 && first + j < end; j++) {
            wanted |= (uint64_t)is_set(map, token, first + j) << j;
        }
        check(mask == wanted, "token %lld, experts [%lld, %lld) of %lld: %llx, wanted %llx",
              (long long)token, (long long)first, (long long)end, (long long)experts,
              (unsigned long long)mask, (unsigned long long)wanted);
    }
}

static void check_walk(const DLTensor *map, const struct moetoken_view *view, int64_t token)
{
    struct moetoken_map_walk walk = moetoken_map_walk_begin(view, token);
    int64_t count = 0;
    for (int64_t e = 0; e < map->shape[1]; e++) {
        if (is_set(map, token, e)) {
            int64_t next = moetoken_map_walk_next(&walk);
            check(next == e, "set expert %lld is %lld, wanted %lld", (long long)count,
                  (long long)next, (long long)e);
            count++;
        }
    }
    assert_int_equal(moetoken_map_walk_next(&walk), -1);
    assert_int_equal(moetoken_map_walk_next(&walk), -1);
    assert_int_equal(moetoken_map_count_set(view, token), count);
}

static void check_map(int64_t experts, const struct layout *layout, int percent)
{
    static const moetoken_type types[] = {MOETOKEN_BOOL, MOETOKEN_I8, MOETOKEN_U8};
    struct test_tensor map;
    tensor_make(&map, types[random_below(3)], 2, TOKENS, experts, layout);
    fill_map(&map.dl, percent);
    struct moetoken_view view = view_of(&map, 2);
    for (int64_t t = 0; t < TOKENS; t++) {
        check_masks(&map.dl, &view, t);
        check_walk(&map.dl, &view, t);
    }
    tensor_free(&map);
}

static void maps_of_any_number_of_experts(void **state)
{
    static const int percents[] = {0, 5, 50, 100};
    (void)state;
    for (int64_t experts = 0; experts < 210; experts += experts < 140 ? 1 : 23) {
        for (int kind = 0; kind < 12; kind++) {
            struct layout layout = {.placement = (enum buffer_placement)(kind % 3)};
            if (kind >= 8) {
                layout = layout_random(false);
            }
            check_map(experts, &layout, percents[kind % 4]);
        }
    }
}

/* ---- indices -------------------------------------------------------------------------------- */

static void check_indices(int64_t count, moetoken_type type, const struct layout *layout)
{
    struct test_tensor indices;
    int64_t values[100];
    tensor_make(&indices, type, 1, count, 1, layout);
    for (int64_t i = 0; i < count; i++) {
        tensor_set_bits(&indices.dl, i, 0, random_bits());
    }
    struct moetoken_view view = view_of(&indices, 1);
    for (int64_t first = 0; first < count; first += 1 + random_below(7)) {
        int64_t some = random_below(count - first + 1);
        moetoken_index_load_many(&view, first, some, values);
        for (int64_t i = 0; i < some; i++) {
            int64_t wanted = tensor_get_index(&indices.dl, first + i);
            check(values[i] == wanted, "index %lld is %lld, wanted %lld", (long long)(first + i),
                  (long long)values[i], (long long)wanted);
        }
    }
    tensor_free(&indices);
}

static void indices_of_any_layout(void **state)
{
    (void)state;
    for (int64_t count = 0; count <= 100; count += count < 20 ? 1 : 9) {
        for (int kind = 0; kind < 8; kind++) {
            struct layout layout = {.placement = (enum buffer_placement)(kind % 3)};
            if (kind >= 4) {
                layout = layout_random(false);
            }
            check_indices(count, MOETOKEN_I32, &layout);
            check_indices(count, MOETOKEN_I64, &layout);
        }
    }
}

int main(void)
{
    random_start("slots_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_of_any_number_of_experts),
        cmocka_unit_test(indices_of_any_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
