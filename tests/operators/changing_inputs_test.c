/* changing_inputs_test.c - another process changes index tensors and routing maps while a call
 * reads them: the call succeeds or refuses a value, and writes nothing outside its outputs. What
 * has been checked must be what is used. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/ids_case.h"
#include "support/random.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS       400 /* of each case */
#define HANGS_AFTER 60  /* seconds */

/* A tensor whose elements change, mostly to numbers of [least, end). */
struct victim {
    moetoken_type type;
    int64_t count, least, end;
    char *shared, *good;
    size_t bytes;
};

struct victims {
    struct victim list[3];
    int count;
    pid_t child;
};

/* Moves a contiguous tensor to memory that the other process shares. */
static void add_victim(struct victims *victims, struct test_tensor *tensor, int64_t least,
                       int64_t end)
{
    int64_t count = tensor->dl.shape[0] * (tensor->dl.ndim == 2 ? tensor->dl.shape[1] : 1);
    struct victim victim = {.type = tensor->type, .count = count, .least = least, .end = end};
    victim.bytes = (size_t)count * number_size(victim.type);
    victim.shared =
        mmap(NULL, victim.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    victim.good = malloc(victim.bytes);
    check(victim.shared != MAP_FAILED && victim.good, "no memory");
    memcpy(victim.good, (char *)tensor->dl.data + tensor->dl.byte_offset, victim.bytes);
    memcpy(victim.shared, victim.good, victim.bytes);
    tensor->dl.data = victim.shared;
    tensor->dl.byte_offset = 0;
    victims->list[victims->count++] = victim;
}

static void change_one(const struct victims *victims)
{
    static const int64_t edges[] = {-1, -2, INT32_MIN, INT32_MAX, 1 << 20};
    const struct victim *victim = &victims->list[random_below(victims->count)];
    int64_t value = victim->least + random_below(victim->end - victim->least);
    if (random_chance(10) && number_size(victim->type) > 1) {
        value = edges[random_below(5)];
    }
    char *at = victim->shared + random_below(victim->count) * (int64_t)number_size(victim->type);
    number_store(at, victim->type, (double)value);
}

static void pass_time(void)
{
    for (volatile int64_t i = random_below(3000); i > 0; i--) {
    }
}

/* By turns all elements are good, and some are not, for about as long as a call takes. */
static _Noreturn void change(const struct victims *victims)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(2 * HANGS_AFTER);
    for (;;) {
        for (int i = 0; i < victims->count; i++) {
            memcpy(victims->list[i].shared, victims->list[i].good, victims->list[i].bytes);
        }
        pass_time();
        for (int64_t changes = 1 + random_below(5); changes > 0; changes--) {
            change_one(victims);
        }
        pass_time();
    }
}

static void begin_changes(struct victims *victims)
{
    victims->child = fork();
    check(victims->child >= 0, "no process to be had");
    if (victims->child == 0) {
        change(victims);
    }
    alarm(HANGS_AFTER);
}

static void end_changes(struct victims *victims)
{
    alarm(0);
    kill(victims->child, SIGKILL);
    waitpid(victims->child, NULL, 0);
    for (int i = 0; i < victims->count; i++) {
        munmap(victims->list[i].shared, victims->list[i].bytes);
        free(victims->list[i].good);
    }
}

static void check_status(moetoken_status status)
{
    check(status == MOETOKEN_OK || status == MOETOKEN_ERR_INDEX ||
              status == MOETOKEN_ERR_DUPLICATE || status == MOETOKEN_ERR_ROUTING,
          "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

static void check_outputs(struct test_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        check(tensor_gaps_unchanged(outputs[i]), "written outside output %d", i);
    }
}

/* ---- by map --------------------------------------------------------------------------------- */

static void change_unpermute_grad(bool padded, bool shuffled)
{
    struct grad_spec spec = grad_spec_default(padded);
    struct grad_case grad;
    struct victims victims = {0};
    spec.routing.tokens = 60;
    spec.routing.slots = padded ? 20 : 3;
    spec.routing.shuffled = shuffled;
    spec.null_token_id = !padded && !shuffled;
    grad_case_make(&grad, &spec);
    struct test_tensor *outputs[] = {&grad.rows_grad, &grad.probs_grad};
    add_victim(&victims, &grad.out_index, 0, grad.routing.rows_num);
    add_victim(&victims, &grad.map, 0, 2);
    if (!spec.null_token_id) {
        add_victim(&victims, &grad.token_id, 0, grad.routing.tokens);
    }
    tensor_snapshot(&grad.rows_grad);
    tensor_snapshot(&grad.probs_grad);
    begin_changes(&victims);
    for (int i = 0; i < CALLS; i++) {
        check_status(moetoken_unpermute_grad(&grad.args, NULL));
        check_outputs(outputs, 2);
    }
    end_changes(&victims);
    grad_case_free(&grad);
}

static void unpermute_grad_by_map(void **state)
{
    (void)state;
    change_unpermute_grad(false, false);
    change_unpermute_grad(false, true);
    change_unpermute_grad(true, false);
    change_unpermute_grad(true, true);
}

static void change_family(enum family_verb verb, bool padded)
{
    struct family_spec spec = family_spec_default(verb, padded);
    struct family_case family;
    struct victims victims = {0};
    spec.routing.tokens = 60;
    spec.routing.slots = padded ? 20 : 3;
    family_case_make(&family, &spec);
    struct test_tensor *outputs[4];
    for (int i = 0; i < family.output_count; i++) {
        outputs[i] = &family.outputs[i];
        tensor_snapshot(outputs[i]);
    }
    add_victim(&victims, &family.map, 0, 2);
    if (verb != FAMILY_PERMUTE) {
        add_victim(&victims, &family.indices, 0,
                   padded ? family.routing.tokens : family.routing.rows_num);
    }
    begin_changes(&victims);
    for (int i = 0; i < CALLS; i++) {
        check_status(family_case_call(&family, NULL));
        check_outputs(outputs, family.output_count);
    }
    end_changes(&victims);
    family_case_free(&family);
}

static void the_others_by_map(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        change_family(FAMILY_UNPERMUTE, padded);
        change_family(FAMILY_PERMUTE, padded);
        change_family(FAMILY_PERMUTE_GRAD, padded);
    }
}

/* ---- by expert ids -------------------------------------------------------------------------- */

static struct ids_spec spec_by_ids(void)
{
    return (struct ids_spec){.tokens = 60,
                             .slots_per_token = 3,
                             .experts = 8,
                             .hidden = 19,
                             .rows = -1,
                             .unused_percent = 10,
                             .index_type = MOETOKEN_I32};
}

static void permute_by_ids(void **state)
{
    (void)state;
    for (int64_t capacity = 0; capacity <= 20; capacity += 20) {
        struct ids_spec spec = spec_by_ids();
        struct ids_case ids;
        struct test_tensor output[4];
        struct test_tensor *outputs[] = {&output[0], &output[1], &output[2], &output[3]};
        struct victims victims = {0};
        spec.capacity = capacity;
        ids_case_make(&ids, &spec);
        tensor_make(&output[0], MOETOKEN_F32, 2, ids.rows, spec.hidden, NULL);
        tensor_make(&output[1], MOETOKEN_F32, 1, ids.rows, 1, NULL);
        tensor_make(&output[2], MOETOKEN_I32, 1, ids.rows, 1, NULL);
        tensor_make(&output[3], MOETOKEN_I64, 1, spec.experts, 1, NULL);
        for (int i = 0; i < 4; i++) {
            tensor_snapshot(&output[i]);
        }
        moetoken_permute_args args = {.tokens = &ids.tokens.dl,
                                      .expert_ids = &ids.expert_ids.dl,
                                      .weights = &ids.weights.dl,
                                      .experts_num = spec.experts,
                                      .capacity = capacity,
                                      .permuted_tokens = &output[0].dl,
                                      .permuted_probs = &output[1].dl,
                                      .source_slots = &output[2].dl,
                                      .rows_per_expert = &output[3].dl};
        add_victim(&victims, &ids.expert_ids, 0, spec.experts);
        begin_changes(&victims);
        for (int i = 0; i < CALLS; i++) {
            check_status(moetoken_permute(&args, NULL));
            check_outputs(outputs, 4);
        }
        end_changes(&victims);
        for (int i = 0; i < 4; i++) {
            tensor_free(&output[i]);
        }
        ids_case_free(&ids);
    }
}

/* unpermute and both gradients, with experts' biases. */
static void the_others_by_ids(void **state)
{
    (void)state;
    struct ids_spec spec = spec_by_ids();
    struct ids_case ids;
    struct test_tensor by_token, by_row, by_slot;
    struct test_tensor *outputs[] = {&by_token, &by_row, &by_slot};
    struct victims victims = {0};
    ids_case_make(&ids, &spec);
    tensor_make(&by_token, MOETOKEN_F32, 2, spec.tokens, spec.hidden, NULL);
    tensor_make(&by_row, MOETOKEN_F32, 2, ids.rows, spec.hidden, NULL);
    tensor_make(&by_slot, MOETOKEN_F32, 2, spec.tokens, spec.slots_per_token, NULL);
    for (int i = 0; i < 3; i++) {
        tensor_snapshot(outputs[i]);
    }
    moetoken_unpermute_args combine = {.permuted_tokens = &ids.expert_rows.dl,
                                       .sorted_indices = &ids.sorted.dl,
                                       .weights = &ids.weights.dl,
                                       .expert_bias = &ids.bias.dl,
                                       .expert_ids = &ids.expert_ids.dl,
                                       .unpermuted_tokens = &by_token.dl};
    moetoken_unpermute_grad_args grad = {.unpermuted_tokens_grad = &ids.grad.dl,
                                         .out_index = &ids.sorted.dl,
                                         .permuted_tokens = &ids.expert_rows.dl,
                                         .weights = &ids.weights.dl,
                                         .expert_bias = &ids.bias.dl,
                                         .expert_ids = &ids.expert_ids.dl,
                                         .permuted_tokens_grad = &by_row.dl,
                                         .weights_grad = &by_slot.dl};
    moetoken_permute_grad_args gather = {.permuted_tokens_grad = &ids.expert_rows.dl,
                                         .permuted_probs_grad = &ids.row_grad.dl,
                                         .sorted_indices = &ids.sorted.dl,
                                         .tokens_num = spec.tokens,
                                         .tokens_grad = &by_token.dl,
                                         .weights_grad = &by_slot.dl};
    add_victim(&victims, &ids.sorted, -1, ids.rows);
    add_victim(&victims, &ids.expert_ids, 0, spec.experts);
    begin_changes(&victims);
    for (int i = 0; i < CALLS; i++) {
        check_status(moetoken_unpermute(&combine, NULL));
        check_outputs(outputs, 3);
        check_status(moetoken_unpermute_grad(&grad, NULL));
        check_outputs(outputs, 3);
        check_status(moetoken_permute_grad(&gather, NULL));
        check_outputs(outputs, 3);
    }
    end_changes(&victims);
    for (int i = 0; i < 3; i++) {
        tensor_free(outputs[i]);
    }
    ids_case_free(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpermute_grad_by_map),
        cmocka_unit_test(the_others_by_map),
        cmocka_unit_test(permute_by_ids),
        cmocka_unit_test(the_others_by_ids),
    };
    random_start("changing_inputs_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
