/* family_test.c - moetoken_unpermute, moetoken_permute and moetoken_permute_grad against the
 * oracle: modes, types, layouts, routings, single outputs, on every instruction set. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/random.h"

static const moetoken_type type_pairs[][2] = {
    {MOETOKEN_F32, MOETOKEN_F32}, {MOETOKEN_F16, MOETOKEN_F16},  {MOETOKEN_BF16, MOETOKEN_BF16},
    {MOETOKEN_F16, MOETOKEN_F32}, {MOETOKEN_BF16, MOETOKEN_F32}, {MOETOKEN_F64, MOETOKEN_F64},
};
#define TYPE_PAIRS 6

static const moetoken_type map_types[] = {MOETOKEN_BOOL, MOETOKEN_I8, MOETOKEN_U8};

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};

static const enum family_verb verbs[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE, FAMILY_PERMUTE_GRAD};
#define VERBS 3

/* The flags that mean something for an operator in a mode, each in turn. */
static uint32_t pick_flags(const struct family_spec *spec)
{
    bool mask = spec->verb == FAMILY_UNPERMUTE && spec->routing.padded;
    uint32_t stores = random_chance(30) ? MOETOKEN_STREAMING_STORES
                                        : (random_chance(50) ? MOETOKEN_CACHED_STORES : 0);
    return stores | (mask && random_chance(50) ? MOETOKEN_MASK_FILL_SLOTS : 0);
}

static void run_every_isa(const struct family_spec *spec, uint32_t flags)
{
    for (size_t i = 0; i < 4; i++) {
        if (all_isas[i] & moetoken_isa_detected()) {
            const moetoken_options options = {.flags = flags, .isa_mask = all_isas[i]};
            struct family_case family;
            family_case_make(&family, spec);
            family_case_check(&family, &options);
            family_case_free(&family);
        }
    }
}

static void pick_types(struct family_spec *spec, size_t pair)
{
    spec->token_type = type_pairs[pair][0];
    spec->probs_type = type_pairs[pair][1];
    spec->index_type = random_chance(50) ? MOETOKEN_I32 : MOETOKEN_I64;
    spec->map_type = map_types[random_below(3)];
}

static void every_type_and_mode_matches_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < VERBS * TYPE_PAIRS; i++) {
        for (int mode = 0; mode < 8; mode++) {
            struct family_spec spec = family_spec_default(verbs[i % VERBS], (mode & 1) != 0);
            pick_types(&spec, i / VERBS);
            spec.without_probs = (mode & 2) != 0;
            spec.routing.no_map = spec.without_probs;
            spec.random_layouts = (mode & 4) != 0;
            spec.hidden = 1 + random_below(100);
            run_every_isa(&spec, pick_flags(&spec));
        }
    }
}

static void special_numbers_match_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < VERBS * TYPE_PAIRS; i++) {
        for (int mode = 0; mode < 4; mode++) {
            struct family_spec spec = family_spec_default(verbs[i % VERBS], (mode & 1) != 0);
            pick_types(&spec, i / VERBS);
            spec.special_percent = (mode & 2) != 0 ? 3 : 40;
            spec.hidden = 67;
            run_every_isa(&spec, pick_flags(&spec));
        }
    }
}

static void random_sizes_and_layouts(void **state)
{
    (void)state;
    for (int i = 0; i < 120; i++) {
        struct family_spec spec = family_spec_default(verbs[i % VERBS], random_chance(50));
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.tokens = 1 + random_below(12);
        spec.routing.experts = 1 + random_below(9);
        int64_t most = spec.routing.padded ? spec.routing.tokens : 5;
        spec.routing.slots = 1 + random_below(most);
        spec.routing.hole_percent = (int)random_below(70);
        spec.routing.no_spare_rows = random_chance(50);
        spec.hidden = random_below(80);
        spec.random_layouts = random_chance(70);
        spec.special_percent = random_chance(20) ? 5 : 0;
        run_every_isa(&spec, pick_flags(&spec));
    }
}

static void any_outputs_may_be_absent(void **state)
{
    static const int counts[VERBS] = {4, 3, 2};
    (void)state;
    for (size_t v = 0; v < VERBS; v++) {
        for (unsigned absent = 1; absent < (1u << counts[v]) - 1; absent++) {
            for (int mode = 0; mode < 4; mode++) {
                struct family_spec spec = family_spec_default(verbs[v], (mode & 1) != 0);
                pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
                spec.absent = absent;
                spec.random_layouts = (mode & 2) != 0;
                run_every_isa(&spec, 0);
            }
        }
    }
}

static void a_mismatch_is_tolerated_when_asked(void **state)
{
    static const enum family_verb two[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE_GRAD};
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct family_spec spec = family_spec_default(two[i % 2], false);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.mismatch = true;
        spec.routing.experts = 1 + random_below(6);
        spec.random_layouts = random_chance(50);
        run_every_isa(&spec, MOETOKEN_TOLERATE_ROUTING_MISMATCH);
    }
}

static void empty_tensors_are_ordinary(void **state)
{
    (void)state;
    for (int mode = 0; mode < 64 * VERBS; mode++) {
        struct family_spec spec = family_spec_default(verbs[mode / 64], (mode & 1) != 0);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.without_probs = (mode & 2) != 0;
        spec.routing.tokens = (mode & 4) != 0 ? 0 : 4;
        spec.hidden = (mode & 8) != 0 ? 0 : 6;
        spec.routing.experts = (mode & 16) != 0 ? 0 : 3;
        spec.routing.slots = (mode & 32) != 0 || spec.routing.tokens == 0 ? 0 : 2;
        spec.routing.hole_percent = 50;
        run_every_isa(&spec, 0);
    }
}

static void hundreds_of_slots(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2 * VERBS; mode++) {
        struct family_spec spec = family_spec_default(verbs[mode / 2], (mode & 1) != 0);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.tokens = spec.routing.padded ? 2 : 3;
        spec.routing.experts = spec.routing.padded ? 310 : 640;
        spec.routing.slots = spec.routing.padded ? 2 : 600;
        spec.hidden = 5;
        run_every_isa(&spec, 0);
    }
}

/* Of which most have no slot, so that there are more experts than slots. */
static void hundreds_of_experts(void **state)
{
    (void)state;
    for (int i = 0; i < 12 * VERBS; i++) {
        struct family_spec spec = family_spec_default(verbs[i % VERBS], i / VERBS % 4 == 3);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.tokens = 1 + random_below(4);
        spec.routing.experts = 60 + random_below(250);
        spec.routing.slots = spec.routing.padded ? 1 : 1 + random_below(20);
        spec.random_layouts = random_chance(50);
        spec.hidden = 5;
        run_every_isa(&spec, 0);
    }
}

static void every_row_length(void **state)
{
    (void)state;
    for (int64_t hidden = 0; hidden <= 131; hidden += hidden < 70 ? 1 : 7) {
        for (size_t v = 0; v < VERBS; v++) {
            struct family_spec spec = family_spec_default(verbs[v], hidden % 2 == 1);
            pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
            spec.hidden = hidden;
            spec.random_layouts = random_chance(50);
            run_every_isa(&spec, pick_flags(&spec));
        }
    }
}

/* Padded: more set tokens than rows (dropped), fewer (filled), none at all. */
static void permute_drops_and_fills(void **state)
{
    static const unsigned char map[5][4] = {
        {1, 0, 0, 1}, {1, 0, 0, 0}, {0x80, 0, 1, 1}, {1, 0, 0, 1}, {0, 0, 2, 1}};
    /* C = 3: e0 takes 0,1,2 of 0,1,2,3; e1 has none: 0,1,2; e2 has 2,4, filled by 0;
     * e3 takes 0,2,3 of 0,2,3,4 */
    static const int64_t wanted[12] = {0, 1, 2, 0, 1, 2, 2, 4, 0, 0, 2, 3};
    struct test_tensor tokens, routing_map, indices;
    (void)state;
    tensor_make(&tokens, MOETOKEN_F32, 2, 5, 2, NULL);
    tensor_make(&routing_map, MOETOKEN_BOOL, 2, 5, 4, NULL);
    tensor_make(&indices, MOETOKEN_I64, 1, 12, 1, NULL);
    for (int64_t i = 0; i < 20; i++) {
        tensor_set_bits(&routing_map.dl, i / 4, i % 4, map[i / 4][i % 4]);
    }
    moetoken_permute_args args = {.tokens = &tokens.dl,
                                  .routing_map = &routing_map.dl,
                                  .num_out_tokens = 12,
                                  .drop_and_pad = true,
                                  .sorted_indices = &indices.dl};
    moetoken_status status = moetoken_permute(&args, NULL);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int64_t i = 0; i < 12; i++) {
        check(tensor_get_index(&indices.dl, i) == wanted[i], "sorted_indices[%lld] = %lld",
              (long long)i, (long long)tensor_get_index(&indices.dl, i));
    }
    tensor_free(&tokens);
    tensor_free(&routing_map);
    tensor_free(&indices);
}

/* A pair whose prob is 0 is a pair: it has a row, an index and a gradient. */
static void permute_keeps_a_pair_of_prob_zero(void **state)
{
    struct family_spec spec = family_spec_default(FAMILY_PERMUTE, false);
    struct family_case family;
    (void)state;
    family_case_make(&family, &spec);
    tensor_fill(&family.probs.dl, 0);
    family_case_check(&family, NULL);
    int64_t rows = 0, pairs = 0;
    for (int64_t i = 0; i < family.outputs[2].shape[0]; i++) {
        rows += tensor_get_index(&family.outputs[2].dl, i) >= 0;
    }
    for (int64_t i = 0; i < family.routing.tokens * family.routing.experts; i++) {
        pairs += family.routing.map[i] != 0;
    }
    check(rows == pairs, "%lld rows for %lld pairs", (long long)rows, (long long)pairs);
    family_case_free(&family);
}

int main(void)
{
    random_start("family_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_mode_matches_the_oracle),
        cmocka_unit_test(special_numbers_match_the_oracle),
        cmocka_unit_test(random_sizes_and_layouts),
        cmocka_unit_test(any_outputs_may_be_absent),
        cmocka_unit_test(a_mismatch_is_tolerated_when_asked),
        cmocka_unit_test(empty_tensors_are_ordinary),
        cmocka_unit_test(hundreds_of_slots),
        cmocka_unit_test(hundreds_of_experts),
        cmocka_unit_test(every_row_length),
        cmocka_unit_test(permute_drops_and_fills),
        cmocka_unit_test(permute_keeps_a_pair_of_prob_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
