/* unpermute_grad_test.c - moetoken_unpermute_grad against the oracle: modes, types, layouts,
 * routings, on every instruction set that the machine has. */
#include "support/check.h"
#include "support/grad_case.h"
#include "support/random.h"

static const moetoken_type type_pairs[][2] = {
    {MOETOKEN_F32, MOETOKEN_F32}, {MOETOKEN_F16, MOETOKEN_F16},  {MOETOKEN_BF16, MOETOKEN_BF16},
    {MOETOKEN_F16, MOETOKEN_F32}, {MOETOKEN_BF16, MOETOKEN_F32}, {MOETOKEN_F64, MOETOKEN_F64},
};
#define TYPE_PAIRS 6

static const moetoken_type map_types[] = {MOETOKEN_BOOL, MOETOKEN_I8, MOETOKEN_U8};

static const uint32_t all_isas[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                    MOETOKEN_ISA_NEON};

static void run(const struct grad_spec *spec, const moetoken_options *options)
{
    struct grad_case grad;
    grad_case_make(&grad, spec);
    grad_case_check(&grad, options);
    grad_case_free(&grad);
}

static void run_every_isa(const struct grad_spec *spec, uint32_t flags)
{
    for (size_t i = 0; i < 4; i++) {
        if (all_isas[i] & moetoken_isa_detected()) {
            const moetoken_options options = {.flags = flags, .isa_mask = all_isas[i]};
            run(spec, &options);
        }
    }
}

static void pick_types(struct grad_spec *spec, size_t pair)
{
    spec->token_type = type_pairs[pair][0];
    spec->probs_type = type_pairs[pair][1];
    spec->index_type = random_chance(50) ? MOETOKEN_I32 : MOETOKEN_I64;
    spec->map_type = map_types[random_below(3)];
}

static void every_type_and_mode_matches_the_oracle(void **state)
{
    (void)state;
    for (size_t pair = 0; pair < TYPE_PAIRS; pair++) {
        for (int mode = 0; mode < 16; mode++) {
            struct grad_spec spec = grad_spec_default((mode & 1) != 0);
            pick_types(&spec, pair);
            spec.without_probs = (mode & 2) != 0;
            spec.routing.no_map = spec.without_probs;
            spec.random_layouts = (mode & 4) != 0;
            spec.in_place = !spec.without_probs && (mode & 8) != 0;
            spec.hidden = 1 + random_below(100);
            run_every_isa(&spec, 0);
        }
    }
}

static void special_numbers_match_the_oracle(void **state)
{
    (void)state;
    for (size_t pair = 0; pair < TYPE_PAIRS; pair++) {
        for (int mode = 0; mode < 4; mode++) {
            struct grad_spec spec = grad_spec_default((mode & 1) != 0);
            pick_types(&spec, pair);
            spec.special_percent = (mode & 2) != 0 ? 3 : 40;
            spec.hidden = 67;
            run_every_isa(&spec, 0);
        }
    }
}

static void slots_in_any_order_and_number(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct grad_spec spec = grad_spec_default(false);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.shuffled = random_chance(70);
        spec.routing.uneven = random_chance(70);
        spec.routing.hole_percent = (int)random_below(60);
        spec.routing.no_spare_rows = random_chance(50);
        spec.routing.tokens = 1 + random_below(12);
        spec.routing.experts = 1 + random_below(9);
        spec.routing.slots = 1 + random_below(5);
        spec.random_layouts = random_chance(50);
        spec.null_token_id = !spec.routing.shuffled && !spec.routing.uneven;
        run_every_isa(&spec, 0);
    }
}

static void padded_slots_in_any_order_with_duplicate_pairs(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct grad_spec spec = grad_spec_default(true);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.tokens = 1 + random_below(6);
        spec.routing.experts = 1 + random_below(6);
        spec.routing.slots = 1 + random_below(spec.routing.tokens);
        spec.routing.canonical = random_chance(50);
        spec.random_layouts = random_chance(50);
        spec.special_percent = random_chance(20) ? 5 : 0;
        run_every_isa(&spec, random_chance(50) ? MOETOKEN_MASK_FILL_SLOTS : 0);
    }
}

static void one_output_alone(void **state)
{
    (void)state;
    for (int mode = 0; mode < 8; mode++) {
        struct grad_spec spec = grad_spec_default((mode & 1) != 0);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.without_tokens_grad = (mode & 2) != 0;
        spec.without_probs_grad = !spec.without_tokens_grad;
        spec.random_layouts = true;
        run_every_isa(&spec, (mode & 4) != 0 ? MOETOKEN_MASK_FILL_SLOTS : 0);
    }
}

/* What an output does not need is not read: its pages are made inaccessible. */
static void what_is_not_needed_is_not_read(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        struct grad_case grad;
        struct grad_spec spec = grad_spec_default((mode & 1) != 0);
        bool only_probs = (mode & 2) != 0;
        spec.without_tokens_grad = only_probs;
        spec.without_probs_grad = !only_probs;
        grad_case_make(&grad, &spec);
        struct test_tensor *unused = only_probs ? &grad.probs : &grad.rows;
        DLTensor held = unused->dl;
        struct buffer pages;
        buffer_make(&pages, unused->buffer.bytes, BUFFER_AFTER_PAGE, 0);
        unused->dl.data = pages.data;
        buffer_forbid(&pages);
        tensor_fill_poison(&grad.rows_grad.dl);
        moetoken_status status = moetoken_unpermute_grad(&grad.args, NULL);
        check(status == MOETOKEN_OK, "mode %d: %s", mode, moetoken_last_error());
        unused->dl = held;
        buffer_free(&pages);
        grad_case_free(&grad);
    }
}

/* The row of a masked fill slot may hold anything: here it may not even be touched. */
static void the_row_of_a_masked_slot_is_not_read(void **state)
{
    const moetoken_options options = {.flags = MOETOKEN_MASK_FILL_SLOTS};
    long page = 65536; /* a multiple of every page size in use */
    struct grad_spec spec = grad_spec_default(true);
    struct grad_case grad;
    (void)state;
    spec.routing.tokens = 2;
    spec.routing.experts = 2;
    spec.routing.slots = 1;
    spec.hidden = page / 4;
    grad_case_make(&grad, &spec);
    tensor_free(&grad.rows);
    tensor_make(&grad.rows, MOETOKEN_F32, 2, 2, spec.hidden,
                &(struct layout){.placement = BUFFER_AFTER_PAGE});
    tensor_fill_random(&grad.rows.dl, 0);
    tensor_fill_indices(&grad.out_index.dl, (const int64_t[]){0, 1});
    tensor_fill_indices(&grad.token_id.dl, (const int64_t[]){1, 0});
    tensor_fill(&grad.map.dl, 0);
    tensor_set_bits(&grad.map.dl, 1, 0, 0x80); /* slot 0 is set, slot 1 (t0, e1) is filled */
    buffer_forbid_from(&grad.rows.buffer, (size_t)page);
    moetoken_status status = moetoken_unpermute_grad(&grad.args, &options);
    buffer_allow(&grad.rows.buffer);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int64_t h = 0; h < spec.hidden; h++) {
        check(tensor_get_bits(&grad.rows_grad.dl, 1, h) == 0, "row 1 is not zero at %lld",
              (long long)h);
    }
    check(tensor_get_bits(&grad.probs_grad.dl, 0, 1) == 0, "probs_grad of a masked slot");
    grad_case_free(&grad);
}

static void a_mismatch_is_tolerated_when_asked(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        struct grad_spec spec = grad_spec_default(false);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.routing.mismatch = true;
        spec.routing.shuffled = random_chance(50);
        spec.routing.experts = 1 + random_below(6);
        spec.random_layouts = random_chance(50);
        run_every_isa(&spec, MOETOKEN_TOLERATE_ROUTING_MISMATCH);
    }
}

/* Each of T, H, E and N may be 0; outputs of the right shape are zero where no slot reaches. */
static void empty_tensors_are_ordinary(void **state)
{
    (void)state;
    for (int mode = 0; mode < 64; mode++) {
        struct grad_spec spec = grad_spec_default((mode & 1) != 0);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.without_probs = (mode & 2) != 0;
        spec.routing.tokens = (mode & 4) != 0 ? 0 : 4;
        spec.hidden = (mode & 8) != 0 ? 0 : 6;
        spec.routing.experts = (mode & 16) != 0 ? 0 : 3;
        spec.routing.slots = (mode & 32) != 0 || spec.routing.tokens == 0 ? 0 : 2;
        spec.routing.hole_percent = 50;
        spec.random_layouts = random_chance(50);
        run_every_isa(&spec, 0);
    }
}

/* R = 0 with N > 0: all slots are holes. */
static void nothing_but_holes(void **state)
{
    struct grad_spec spec = grad_spec_default(false);
    (void)state;
    spec.routing.hole_percent = 100;
    spec.routing.no_spare_rows = true;
    run_every_isa(&spec, 0);
    spec.routing.no_spare_rows = false;
    run_every_isa(&spec, 0);
}

static void a_token_may_have_hundreds_of_slots(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        struct grad_spec spec = grad_spec_default((mode & 1) != 0);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        bool padded = spec.routing.padded;
        spec.routing.tokens = padded ? 2 : 3;
        spec.routing.experts = padded ? 310 : 640;
        spec.routing.slots = padded ? 2 : 600;
        spec.routing.shuffled = !padded && (mode & 2) != 0;
        spec.hidden = 5;
        run_every_isa(&spec, 0);
    }
}

static void one_token_may_own_every_slot(void **state)
{
    struct grad_spec spec = grad_spec_default(true);
    struct grad_case grad;
    int64_t tokens[64];
    (void)state;
    spec.routing.tokens = 16;
    spec.routing.experts = 4;
    spec.routing.slots = 16;
    grad_case_make(&grad, &spec);
    for (size_t i = 0; i < 64; i++) {
        tokens[i] = 11;
    }
    tensor_fill_indices(&grad.token_id.dl, tokens);
    for (size_t i = 0; i < 4; i++) {
        if (all_isas[i] & moetoken_isa_detected()) {
            const moetoken_options options = {.isa_mask = all_isas[i]};
            grad_case_check(&grad, &options);
        }
    }
    grad_case_free(&grad);
}

/* Row lengths around every vector width and the 32 partial sums, stores of either kind. */
static void every_row_length(void **state)
{
    (void)state;
    for (int64_t hidden = 0; hidden <= 131; hidden += hidden < 70 ? 1 : 7) {
        struct grad_spec spec = grad_spec_default(hidden % 2 == 1);
        pick_types(&spec, (size_t)random_below(TYPE_PAIRS));
        spec.hidden = hidden;
        spec.random_layouts = random_chance(50);
        run_every_isa(&spec,
                      random_chance(50) ? MOETOKEN_STREAMING_STORES : MOETOKEN_CACHED_STORES);
    }
}

/* Two outputs and an input may lie interleaved in one buffer as long as no element is shared. */
static void interleaved_views_do_not_overlap(void **state)
{
    struct grad_spec spec = grad_spec_default(false);
    struct grad_case grad;
    struct test_tensor both;
    (void)state;
    grad_case_make(&grad, &spec);
    int64_t rows = grad.routing.rows_num, hidden = spec.hidden;
    tensor_make(&both, MOETOKEN_F32, 2, 2 * rows + 2, hidden, NULL);
    int64_t strides[2] = {2 * hidden, 1};
    DLTensor even = both.dl, odd = both.dl;
    int64_t shape[2] = {rows, hidden};
    even.shape = odd.shape = shape;
    even.strides = odd.strides = strides;
    odd.byte_offset = 4 * (uint64_t)hidden;
    tensor_fill_random(&even, 0);
    grad.args.permuted_tokens = &even;
    grad.args.permuted_tokens_grad = &odd;
    moetoken_status status = moetoken_unpermute_grad(&grad.args, NULL);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    tensor_free(&both);
    grad_case_free(&grad);
}

int main(void)
{
    random_start("unpermute_grad_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_mode_matches_the_oracle),
        cmocka_unit_test(special_numbers_match_the_oracle),
        cmocka_unit_test(slots_in_any_order_and_number),
        cmocka_unit_test(padded_slots_in_any_order_with_duplicate_pairs),
        cmocka_unit_test(one_output_alone),
        cmocka_unit_test(what_is_not_needed_is_not_read),
        cmocka_unit_test(the_row_of_a_masked_slot_is_not_read),
        cmocka_unit_test(a_mismatch_is_tolerated_when_asked),
        cmocka_unit_test(empty_tensors_are_ordinary),
        cmocka_unit_test(nothing_but_holes),
        cmocka_unit_test(a_token_may_have_hundreds_of_slots),
        cmocka_unit_test(one_token_may_own_every_slot),
        cmocka_unit_test(every_row_length),
        cmocka_unit_test(interleaved_views_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
