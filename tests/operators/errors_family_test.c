/* errors_family_test.c - every fault of docs/contract.md section 6 put to unpermute, permute and
 * permute_grad: the status, a message with the argument, the place and the values, and nothing
 * written. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/random.h"

#include <string.h>

enum {
    TOKEN_ROWS,
    PROBS,
    INDICES,
    MAP,
    OUTPUT /* the first of up to four */
};

static const char *const names[3][FAMILY_TENSORS] = {
    {"permuted_tokens", "probs", "sorted_indices", "routing_map", "unpermuted_tokens", "out_index",
     "permute_token_id", "permuted_probs"},
    {"tokens", "probs", NULL, "routing_map", "permuted_tokens", "permuted_probs", "sorted_indices",
     NULL},
    {"permuted_tokens_grad", "permuted_probs_grad", "sorted_indices", "routing_map", "tokens_grad",
     "probs_grad", NULL, NULL}};

/* A good call whose tensors are described a second time, to be broken there. */
struct broken {
    struct family_case family;
    moetoken_options options;
    DLTensor dl[FAMILY_TENSORS];
    int64_t shape[FAMILY_TENSORS][3], strides[FAMILY_TENSORS][3];
    const DLTensor **argument[FAMILY_TENSORS]; /* NULL: the operator has no such argument */
    const char *const *name;
};

static void find_arguments(struct broken *broken)
{
    moetoken_unpermute_args *unpermute = &broken->family.unpermute;
    moetoken_permute_args *permute = &broken->family.permute;
    moetoken_permute_grad_args *permute_grad = &broken->family.permute_grad;
    const DLTensor **all[3][FAMILY_TENSORS] = {
        {&unpermute->permuted_tokens, &unpermute->probs, &unpermute->sorted_indices,
         &unpermute->routing_map, &unpermute->unpermuted_tokens, &unpermute->out_index,
         &unpermute->permute_token_id, &unpermute->permuted_probs},
        {&permute->tokens, &permute->probs, NULL, &permute->routing_map, &permute->permuted_tokens,
         &permute->permuted_probs, &permute->sorted_indices, NULL},
        {&permute_grad->permuted_tokens_grad, &permute_grad->permuted_probs_grad,
         &permute_grad->sorted_indices, &permute_grad->routing_map, &permute_grad->tokens_grad,
         &permute_grad->probs_grad, NULL, NULL}};
    memcpy(broken->argument, all[broken->family.spec.verb], sizeof broken->argument);
}

static void describe_again(struct broken *broken, int i, const DLTensor *good)
{
    broken->dl[i] = *good;
    for (int d = 0; d < 3; d++) {
        broken->shape[i][d] = d < good->ndim ? good->shape[d] : 1;
    }
    broken->strides[i][2] = broken->strides[i][1] = 1;
    broken->strides[i][0] = good->ndim == 2 ? good->shape[1] : 1;
    broken->dl[i].shape = broken->shape[i];
    broken->dl[i].strides = broken->strides[i];
    *broken->argument[i] = &broken->dl[i];
}

static void broken_make(struct broken *broken, enum family_verb verb, bool padded)
{
    struct family_spec spec = family_spec_default(verb, padded);
    spec.index_type = MOETOKEN_I64;
    spec.routing.hole_percent = 0;
    memset(broken, 0, sizeof *broken);
    family_case_make(&broken->family, &spec);
    broken->name = names[verb];
    find_arguments(broken);
    for (int i = 0; i < FAMILY_TENSORS; i++) {
        if (broken->argument[i] != NULL) {
            describe_again(broken, i, *broken->argument[i]);
        }
    }
}

static moetoken_status check_only(struct broken *broken)
{
    switch (broken->family.spec.verb) {
    case FAMILY_UNPERMUTE:
        return moetoken_unpermute_check(&broken->family.unpermute, &broken->options);
    case FAMILY_PERMUTE:
        return moetoken_permute_check(&broken->family.permute, &broken->options);
    default:
        return moetoken_permute_grad_check(&broken->family.permute_grad, &broken->options);
    }
}

static void refused(struct broken *broken, moetoken_status status, const char *text,
                    const char *second, const char *third)
{
    family_case_refused(&broken->family, &broken->options, status, text, second, third);
    family_case_free(&broken->family);
}

/* A fault that needs no element: the check function finds it too. */
static void refused_by_check_too(struct broken *broken, moetoken_status status, const char *text,
                                 const char *second, const char *third)
{
    check_refused(check_only(broken), status, text, second, third);
    refused(broken, status, text, second, third);
}

/* Runs `fault` on every operator, mode and tensor. */
static void for_every_tensor(void (*fault)(struct broken *broken, int tensor))
{
    for (int verb = 0; verb < 3; verb++) {
        for (int i = 0; i < 2 * FAMILY_TENSORS; i++) {
            if (names[verb][i / 2] != NULL) {
                struct broken broken;
                broken_make(&broken, (enum family_verb)verb, i % 2 == 1);
                fault(&broken, i / 2);
            }
        }
    }
}

static void the_unbroken_call_succeeds(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct broken broken;
        broken_make(&broken, (enum family_verb)(i / 2), i % 2 == 1);
        check(family_case_call(&broken.family, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int t = 0; t < FAMILY_TENSORS; t++) {
            broken.dl[t].data = NULL; /* planning first, memory later */
        }
        check(check_only(&broken) == MOETOKEN_OK, "without data: %s", moetoken_last_error());
        family_case_free(&broken.family);
    }
}

/* ---- faults of one tensor ------------------------------------------------------------------- */

static void without_data(struct broken *broken, int tensor)
{
    broken->dl[tensor].data = NULL;
    if (tensor == MAP && broken->family.spec.verb != FAMILY_PERMUTE &&
        broken->family.spec.routing.padded) {
        family_case_free(&broken->family); /* its values do not matter there */
        return;
    }
    refused(broken, MOETOKEN_ERR_NULL, broken->name[tensor], "data", NULL);
}

static void without_shape(struct broken *broken, int tensor)
{
    broken->dl[tensor].shape = NULL;
    refused_by_check_too(broken, MOETOKEN_ERR_NULL, broken->name[tensor], "shape", NULL);
}

static void elsewhere(struct broken *broken, int tensor)
{
    broken->dl[tensor].device.device_type = kDLCUDA;
    refused_by_check_too(broken, MOETOKEN_ERR_DEVICE, broken->name[tensor], "CPU", NULL);
}

static void strange_type(struct broken *broken, int tensor)
{
    broken->dl[tensor].dtype = (DLDataType){kDLComplex, 64, 1};
    refused_by_check_too(broken, MOETOKEN_ERR_TYPE, broken->name[tensor], NULL, NULL);
}

static void vector_type(struct broken *broken, int tensor)
{
    broken->dl[tensor].dtype.lanes = 2;
    refused_by_check_too(broken, MOETOKEN_ERR_TYPE, broken->name[tensor], NULL, NULL);
}

static void exchanged_type(struct broken *broken, int tensor)
{
    bool floating = broken->dl[tensor].dtype.code == kDLFloat;
    broken->dl[tensor].dtype = moetoken_dtype(floating ? MOETOKEN_I64 : MOETOKEN_F32);
    refused_by_check_too(broken, MOETOKEN_ERR_TYPE, broken->name[tensor], NULL, NULL);
}

static void too_high_rank(struct broken *broken, int tensor)
{
    broken->dl[tensor].ndim++;
    refused_by_check_too(broken, MOETOKEN_ERR_SHAPE, broken->name[tensor], NULL, NULL);
}

static void too_low_rank(struct broken *broken, int tensor)
{
    broken->dl[tensor].ndim--;
    refused_by_check_too(broken, MOETOKEN_ERR_SHAPE, broken->name[tensor], NULL, NULL);
}

static void negative_size(struct broken *broken, int tensor)
{
    broken->shape[tensor][0] = -5;
    refused_by_check_too(broken, MOETOKEN_ERR_SHAPE, broken->name[tensor], "-5", NULL);
}

static void longer_by_one(struct broken *broken, int tensor)
{
    char value[24];
    /* R may be chosen freely by the caller of a dropless call where nothing else has R rows. */
    bool free_rows = broken->family.spec.verb == FAMILY_UNPERMUTE && tensor == TOKEN_ROWS &&
                     !broken->family.spec.routing.padded;
    if (free_rows) {
        family_case_free(&broken->family);
        return;
    }
    broken->shape[tensor][0]++;
    snprintf(value, sizeof value, "%lld", (long long)broken->shape[tensor][0]);
    refused_by_check_too(broken, MOETOKEN_ERR_SHAPE, value, NULL, NULL);
}

static void wider_by_one(struct broken *broken, int tensor)
{
    char value[24];
    if (broken->dl[tensor].ndim == 1) {
        family_case_free(&broken->family);
        return;
    }
    broken->shape[tensor][1]++;
    broken->strides[tensor][0]++;
    snprintf(value, sizeof value, "%lld", (long long)broken->shape[tensor][1]);
    refused_by_check_too(broken, MOETOKEN_ERR_SHAPE, value, NULL, NULL);
}

static void negative_stride(struct broken *broken, int tensor)
{
    broken->strides[tensor][0] = -1;
    refused_by_check_too(broken, MOETOKEN_ERR_STRIDE, broken->name[tensor], "-1", NULL);
}

static void shared_elements(struct broken *broken, int tensor)
{
    if (tensor < OUTPUT) {
        family_case_free(&broken->family);
        return;
    }
    broken->strides[tensor][0] = 0;
    refused_by_check_too(broken, MOETOKEN_ERR_STRIDE, broken->name[tensor], NULL, NULL);
}

static void overflowing_stride(struct broken *broken, int tensor)
{
    broken->strides[tensor][0] = INT64_MAX / 4;
    refused_by_check_too(broken, MOETOKEN_ERR_OVERFLOW, broken->name[tensor], NULL, NULL);
}

/* Where two tensors that overlap meet nothing else. */
static char apart[1 << 16];

static void over_the_first_output(struct broken *broken, int tensor)
{
    if (tensor == OUTPUT) {
        family_case_free(&broken->family);
        return;
    }
    broken->dl[tensor].data = broken->dl[OUTPUT].data = apart;
    refused_by_check_too(broken, MOETOKEN_ERR_OVERLAP, broken->name[OUTPUT], broken->name[tensor],
                         NULL);
}

static void over_the_second_output(struct broken *broken, int tensor)
{
    if (tensor == OUTPUT + 1) {
        family_case_free(&broken->family);
        return;
    }
    broken->dl[tensor].data = broken->dl[OUTPUT + 1].data = apart;
    refused_by_check_too(broken, MOETOKEN_ERR_OVERLAP, broken->name[OUTPUT + 1],
                         broken->name[tensor], NULL);
}

static void every_fault_of_one_tensor(void **state)
{
    (void)state;
    for_every_tensor(without_data);
    for_every_tensor(without_shape);
    for_every_tensor(elsewhere);
    for_every_tensor(strange_type);
    for_every_tensor(vector_type);
    for_every_tensor(exchanged_type);
    for_every_tensor(too_high_rank);
    for_every_tensor(too_low_rank);
}

static void every_fault_of_size_and_stride(void **state)
{
    (void)state;
    for_every_tensor(negative_size);
    for_every_tensor(longer_by_one);
    for_every_tensor(wider_by_one);
    for_every_tensor(negative_stride);
    for_every_tensor(shared_elements);
    for_every_tensor(overflowing_stride);
}

static void every_overlap(void **state)
{
    (void)state;
    for_every_tensor(over_the_first_output);
    for_every_tensor(over_the_second_output);
}

/* ---- missing -------------------------------------------------------------------------------- */

static void missing(enum family_verb verb, bool padded, int tensor)
{
    struct broken broken;
    broken_make(&broken, verb, padded);
    *broken.argument[tensor] = NULL;
    refused_by_check_too(&broken, MOETOKEN_ERR_NULL, names[verb][tensor], NULL, NULL);
}

static void no_output(enum family_verb verb, bool padded)
{
    struct broken broken;
    broken_make(&broken, verb, padded);
    for (int i = OUTPUT; i < FAMILY_TENSORS; i++) {
        if (broken.argument[i] != NULL) {
            *broken.argument[i] = NULL;
        }
    }
    broken.family.unpermute.restore_shape = broken.family.restore_shape;
    refused_by_check_too(&broken, MOETOKEN_ERR_NULL, broken.name[OUTPUT], broken.name[OUTPUT + 1],
                         NULL);
}

static void a_missing_tensor(void **state)
{
    (void)state;
    check_refused(moetoken_unpermute(NULL, NULL), MOETOKEN_ERR_NULL, "args", NULL, NULL);
    check_refused(moetoken_permute(NULL, NULL), MOETOKEN_ERR_NULL, "args", NULL, NULL);
    check_refused(moetoken_permute_grad(NULL, NULL), MOETOKEN_ERR_NULL, "args", NULL, NULL);
    for (int padded = 0; padded < 2; padded++) {
        missing(FAMILY_UNPERMUTE, padded, TOKEN_ROWS);
        missing(FAMILY_UNPERMUTE, padded, INDICES);
        missing(FAMILY_UNPERMUTE, padded, MAP);
        missing(FAMILY_PERMUTE, padded, MAP);
        missing(FAMILY_PERMUTE, padded, PROBS); /* permuted_probs is asked for */
        missing(FAMILY_PERMUTE, padded, TOKEN_ROWS);
        missing(FAMILY_PERMUTE_GRAD, padded, TOKEN_ROWS);
        missing(FAMILY_PERMUTE_GRAD, padded, PROBS);
        missing(FAMILY_PERMUTE_GRAD, padded, INDICES);
        no_output(FAMILY_UNPERMUTE, padded);
        no_output(FAMILY_PERMUTE, padded);
        no_output(FAMILY_PERMUTE_GRAD, padded);
    }
    missing(FAMILY_PERMUTE_GRAD, false, MAP);
    struct broken broken;
    broken_make(&broken, FAMILY_UNPERMUTE, true);
    broken.family.unpermute.unpermuted_tokens = NULL;
    broken.family.unpermute.restore_shape = NULL;
    refused_by_check_too(&broken, MOETOKEN_ERR_NULL, "restore_shape", NULL, NULL);
}

/* ---- numbers that do not fit together ------------------------------------------------------- */

static void a_restore_shape_that_disagrees(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct broken broken;
        int64_t shape[2] = {7, 19};
        broken_make(&broken, FAMILY_UNPERMUTE, i % 2 == 1);
        shape[i / 2]++;
        broken.family.unpermute.restore_shape = shape;
        refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "restore_shape", i < 2 ? "8" : "20",
                             NULL);
    }
}

static void slots_that_do_not_divide(void **state)
{
    struct broken broken;
    (void)state;
    broken_make(&broken, FAMILY_UNPERMUTE, false);
    for (int i = 0; i < FAMILY_TENSORS; i++) {
        if (i == INDICES || i > OUTPUT) {
            broken.shape[i][0] = 20; /* T = 7 */
        }
    }
    broken.shape[TOKEN_ROWS][0] = 14;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "20", "7", NULL);
    broken_make(&broken, FAMILY_PERMUTE_GRAD, false);
    broken.shape[INDICES][0] = 20;
    broken.shape[TOKEN_ROWS][0] = broken.shape[PROBS][0] = 14;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "20", "7", NULL);
    broken_make(&broken, FAMILY_PERMUTE, false);
    broken.family.permute.num_out_tokens = 50; /* K = 50 / 7, so N = 49 */
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "num_out_tokens", "49", NULL);
    broken_make(&broken, FAMILY_PERMUTE, true);
    broken.family.permute.num_out_tokens = -15;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "num_out_tokens", "-15", NULL);
    broken_make(&broken, FAMILY_PERMUTE, true);
    broken.family.permute.num_out_tokens = 40; /* C = 8 > T = 7 */
    broken.shape[OUTPUT][0] = broken.shape[OUTPUT + 1][0] = broken.shape[OUTPUT + 2][0] = 40;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "8", "7", NULL);
}

static void permute_grad_numbers(void **state)
{
    struct broken broken;
    (void)state;
    broken_make(&broken, FAMILY_PERMUTE_GRAD, true);
    broken.family.permute_grad.tokens_num = -1;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "tokens_num", "-1", NULL);
    broken_make(&broken, FAMILY_PERMUTE_GRAD, true);
    broken.family.permute_grad.experts_num = -1;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "experts_num", "-1", NULL);
    broken_make(&broken, FAMILY_PERMUTE_GRAD, true);
    broken.family.permute_grad.tokens_num = 8;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "8", "7", NULL);
    broken_make(&broken, FAMILY_PERMUTE_GRAD, false);
    broken.family.permute_grad.experts_num = 6;
    refused_by_check_too(&broken, MOETOKEN_ERR_SHAPE, "6", "5", NULL);
}

/* ---- values of indices and maps ------------------------------------------------------------- */

static void index_value(enum family_verb verb, bool padded, int64_t position, int64_t value)
{
    struct broken broken;
    char place[64], range[32];
    broken_make(&broken, verb, padded);
    int64_t end = padded ? 7 : broken.family.routing.rows_num;
    value = value == INT64_MAX ? end : value; /* the first value that is too large */
    snprintf(place, sizeof place, "sorted_indices[%lld] = %lld", (long long)position,
             (long long)value);
    snprintf(range, sizeof range, "[0, %lld)", (long long)end);
    tensor_set_bits(&broken.dl[INDICES], position, 0, (uint64_t)value);
    refused(&broken, MOETOKEN_ERR_INDEX, place, range, NULL);
}

static void an_index_out_of_range(void **state)
{
    static const int64_t wrong[] = {INT64_MAX, -2, INT64_MIN, INT64_C(1) << 32, INT64_MAX - 1};
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        enum family_verb verb = (mode & 2) != 0 ? FAMILY_PERMUTE_GRAD : FAMILY_UNPERMUTE;
        for (int64_t position = 0; position < 15; position += 7) {
            for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
                index_value(verb, (mode & 1) != 0, position, wrong[i]);
            }
        }
        if ((mode & 1) != 0) {
            index_value(verb, true, 3, -1); /* no holes in padded mode */
        }
    }
}

static void two_slots_with_one_row(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct broken broken;
        char value[32];
        broken_make(&broken, i == 0 ? FAMILY_UNPERMUTE : FAMILY_PERMUTE_GRAD, false);
        int64_t row = -1, first = 0;
        while ((row = tensor_get_index(&broken.dl[INDICES], first)) < 0) {
            first++;
        }
        tensor_set_bits(&broken.dl[INDICES], 20, 0, (uint64_t)row);
        snprintf(value, sizeof value, "%lld", (long long)row);
        refused(&broken, MOETOKEN_ERR_DUPLICATE, "sorted_indices", value, "20");
    }
}

static void set_all(struct broken *broken, uint64_t byte)
{
    for (int64_t i = 0; i < 35; i++) {
        tensor_set_bits(&broken->dl[MAP], i / 5, i % 5, byte);
    }
}

static void slots_and_map_that_do_not_belong_together(void **state)
{
    static const enum family_verb two[] = {FAMILY_UNPERMUTE, FAMILY_PERMUTE_GRAD};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct broken broken;
        broken_make(&broken, two[i], false);
        set_all(&broken, 0x80); /* five set experts, three slots */
        refused(&broken, MOETOKEN_ERR_ROUTING, "routing_map", "5", "3");
        broken_make(&broken, two[i], false);
        set_all(&broken, 0);
        tensor_set_bits(&broken.dl[INDICES], 4, 0, UINT64_MAX);
        tensor_set_bits(&broken.dl[INDICES], 3, 0, 0);
        for (int64_t slot = 0; slot < 21; slot++) {
            tensor_set_bits(&broken.dl[INDICES], slot, 0, slot == 17 ? 0 : UINT64_MAX);
        }
        refused(&broken, MOETOKEN_ERR_ROUTING, "routing_map", "5", NULL); /* token 5 has none */
    }
}

static void more_pairs_than_permute_has_room_for(void **state)
{
    struct broken broken;
    (void)state;
    broken_make(&broken, FAMILY_PERMUTE, false);
    set_all(&broken, 0);
    tensor_set_bits(&broken.dl[MAP], 6, 1, 2);
    broken.family.permute.num_out_tokens = 0;
    for (int i = OUTPUT; i < OUTPUT + 3; i++) {
        broken.shape[i][0] = 0;
    }
    refused(&broken, MOETOKEN_ERR_ROUTING, "routing_map", "6", NULL);

    broken_make(&broken, FAMILY_PERMUTE, false); /* K = 5 is enough, R = 34 is not */
    set_all(&broken, 1);
    broken.family.permute.num_out_tokens = 35;
    broken.family.permute.permuted_probs = NULL;
    broken.family.permute.sorted_indices = NULL;
    struct test_tensor rows;
    tensor_make(&rows, MOETOKEN_F32, 2, 34, 19, NULL);
    tensor_snapshot(&rows);
    broken.family.permute.permuted_tokens = &rows.dl;
    refused(&broken, MOETOKEN_ERR_ROUTING, "routing_map", "35", "34");
    check(tensor_unchanged(&rows), "rows were written");
    tensor_free(&rows);
}

static void unknown_options(void **state)
{
    (void)state;
    for (int verb = 0; verb < 3; verb++) {
        struct broken broken;
        broken_make(&broken, (enum family_verb)verb, true);
        broken.options.flags = 1u << 31;
        refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "flags", NULL, NULL);
        broken_make(&broken, (enum family_verb)verb, true);
        broken.options.threads = -3;
        refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "threads", "-3", NULL);
        broken_make(&broken, (enum family_verb)verb, true);
        broken.options.reserved = 7;
        refused_by_check_too(&broken, MOETOKEN_ERR_OPTION, "reserved", "7", NULL);
    }
}

int main(void)
{
    random_start("errors_family_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unbroken_call_succeeds),
        cmocka_unit_test(every_fault_of_one_tensor),
        cmocka_unit_test(every_fault_of_size_and_stride),
        cmocka_unit_test(every_overlap),
        cmocka_unit_test(a_missing_tensor),
        cmocka_unit_test(a_restore_shape_that_disagrees),
        cmocka_unit_test(slots_that_do_not_divide),
        cmocka_unit_test(permute_grad_numbers),
        cmocka_unit_test(an_index_out_of_range),
        cmocka_unit_test(two_slots_with_one_row),
        cmocka_unit_test(slots_and_map_that_do_not_belong_together),
        cmocka_unit_test(more_pairs_than_permute_has_room_for),
        cmocka_unit_test(unknown_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
