/* memory_test.c - workspaces: exact, dirty, too small, misaligned; no allocation with one; every
 * allocation failing in turn without one.
 *
 * The allocators are wrapped by the linker (-Wl,--wrap), so this test sees the static library's
 * calls and its own, but not those inside libc or OpenMP. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <string.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);

static bool watching;
static long allocations; /* while watching */
static long failing;     /* the number of the allocation that fails, from 1; 0: none */

static bool fails_now(void)
{
    return watching && ++allocations == failing;
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    return fails_now() ? 12 : __real_posix_memalign(memory, alignment, bytes);
}

/* A call of any of the four operators. */
struct any_case {
    bool is_grad;
    struct grad_case grad;
    struct family_case family;
    size_t workspace_bytes;
};

#define CASES 8

static void any_make(struct any_case *any, int which, int64_t tokens, int64_t hidden)
{
    bool padded = which % 2 == 1;
    memset(any, 0, sizeof *any);
    any->is_grad = which < 2;
    int64_t slots;
    if (any->is_grad) {
        struct grad_spec spec = grad_spec_default(padded);
        spec.routing.tokens = tokens;
        spec.routing.shuffled = !padded;
        spec.hidden = hidden;
        grad_case_make(&any->grad, &spec);
        slots = any->grad.routing.slots_num;
    } else {
        struct family_spec spec = family_spec_default((enum family_verb)(which / 2 - 1), padded);
        spec.routing.tokens = tokens;
        spec.hidden = hidden;
        family_case_make(&any->family, &spec);
        slots = which / 2 == 2 ? any->family.permute.num_out_tokens : any->family.routing.slots_num;
    }
    moetoken_status status = moetoken_workspace_size(tokens, slots, &any->workspace_bytes);
    check(status == MOETOKEN_OK, "%s", moetoken_last_error());
    check(any->workspace_bytes == 16 * (size_t)(tokens + slots), "workspace of %zu bytes",
          any->workspace_bytes);
}

static void any_free(struct any_case *any)
{
    if (any->is_grad) {
        grad_case_free(&any->grad);
    } else {
        family_case_free(&any->family);
    }
}

static void any_check(struct any_case *any, const moetoken_options *options)
{
    if (any->is_grad) {
        grad_case_check(&any->grad, options);
    } else {
        family_case_check(&any->family, options);
    }
}

static void any_refused(struct any_case *any, const moetoken_options *options,
                        moetoken_status status, const char *text)
{
    if (any->is_grad) {
        grad_case_refused(&any->grad, options, status, text, NULL, NULL);
    } else {
        family_case_refused(&any->family, options, status, text, NULL, NULL);
    }
}

static moetoken_status any_call(struct any_case *any, const moetoken_options *options)
{
    return any->is_grad ? moetoken_unpermute_grad(&any->grad.args, options)
                        : family_case_call(&any->family, options);
}

/* The exact size between guards, right before or after a page, with anything in it. */
static void an_exact_and_dirty_workspace(void **state)
{
    (void)state;
    for (int which = 0; which < CASES; which++) {
        struct any_case any;
        struct buffer workspace;
        any_make(&any, which, 7, 19);
        buffer_make(&workspace, any.workspace_bytes,
                    which % 4 < 2 ? BUFFER_BEFORE_PAGE : BUFFER_GUARD_BYTES, 8);
        const moetoken_options options = {.workspace = workspace.data,
                                          .workspace_bytes = workspace.bytes};
        for (int fill = 0; fill < 4; fill++) {
            static const unsigned char bytes[] = {0xff, 0x00, 0x01, 0x80};
            memset(workspace.data, bytes[fill], workspace.bytes);
            any_check(&any, &options);
            any_check(&any, &options); /* with what the first call left */
        }
        check(buffer_guards_hold(&workspace), "case %d wrote past its workspace", which);
        buffer_free(&workspace);
        any_free(&any);
    }
}

static void one_workspace_for_many_calls(void **state)
{
    static char workspace[16 * 400];
    const moetoken_options options = {.workspace = workspace, .workspace_bytes = sizeof workspace};
    (void)state;
    for (int i = 0; i < 10 * CASES; i++) {
        struct any_case any;
        any_make(&any, (int)random_below(CASES), 3 + random_below(40), random_below(30));
        any_check(&any, &options);
        any_free(&any);
    }
}

static void a_workspace_that_will_not_do(void **state)
{
    _Alignas(16) static char workspace[16 * 64];
    (void)state;
    for (int which = 0; which < CASES; which++) {
        struct any_case any;
        any_make(&any, which, 7, 19);
        moetoken_options options = {.workspace = workspace,
                                    .workspace_bytes = any.workspace_bytes - 1};
        any_refused(&any, &options, MOETOKEN_ERR_WORKSPACE, "workspace");
        options.workspace_bytes = 0;
        any_refused(&any, &options, MOETOKEN_ERR_WORKSPACE, "workspace");
        options = (moetoken_options){.workspace = workspace + 4,
                                     .workspace_bytes = any.workspace_bytes + 8};
        any_refused(&any, &options, MOETOKEN_ERR_WORKSPACE, "workspace");
        options.workspace = workspace + 8;
        any_check(&any, &options);
        any_free(&any);
    }
}

static void with_a_workspace_nothing_is_allocated(void **state)
{
    static uint64_t workspace[2 * 2600];
    (void)state;
    for (int which = 0; which < CASES; which++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct any_case any;
            any_make(&any, which, 500, 150); /* large enough for several threads */
            const moetoken_options options = {
                .threads = threads, .workspace = workspace, .workspace_bytes = sizeof workspace};
            allocations = 0;
            watching = true;
            moetoken_status status = any_call(&any, &options);
            watching = false;
            check(status == MOETOKEN_OK, "%s", moetoken_last_error());
            check(allocations == 0, "case %d allocated %ld times", which, allocations);
            any_free(&any);
        }
    }
}

static void the_nth_allocation_fails(void **state)
{
    (void)state;
    for (int which = 0; which < CASES; which++) {
        struct any_case any;
        any_make(&any, which, 500, 150);
        allocations = 0;
        failing = 0;
        watching = true;
        moetoken_status status = any_call(&any, NULL);
        watching = false;
        check(status == MOETOKEN_OK, "%s", moetoken_last_error());
        long needed = allocations;
        check(needed >= 1, "case %d works without memory", which);
        for (failing = 1; failing <= needed; failing++) {
            /* what the case itself allocates comes before: only the call is watched */
            struct test_tensor *output = any.is_grad ? &any.grad.rows_grad : &any.family.outputs[0];
            tensor_fill_poison(&output->dl);
            tensor_snapshot(output);
            allocations = 0;
            watching = true;
            status = any_call(&any, NULL);
            watching = false;
            check_refused(status, MOETOKEN_ERR_MEMORY, "workspace", NULL, NULL);
            check(tensor_unchanged(output), "case %d wrote before it had its memory", which);
        }
        failing = 0;
        any_check(&any, NULL);
        any_free(&any);
    }
}

static void the_workspace_query(void **state)
{
    size_t bytes = 77;
    (void)state;
    check(moetoken_workspace_size(0, 0, &bytes) == MOETOKEN_OK && bytes == 0, "%zu bytes", bytes);
    check(moetoken_workspace_size(3, 6, &bytes) == MOETOKEN_OK && bytes == 144, "%zu bytes", bytes);
    int64_t most = (int64_t)(SIZE_MAX / 16);
    check(moetoken_workspace_size(most, 0, &bytes) == MOETOKEN_OK && bytes == 16 * (size_t)most,
          "%zu bytes", bytes);
    bytes = 77;
    check_refused(moetoken_workspace_size(most, 1, &bytes), MOETOKEN_ERR_OVERFLOW, NULL, NULL,
                  NULL);
    check_refused(moetoken_workspace_size(INT64_MAX, INT64_MAX, &bytes), MOETOKEN_ERR_OVERFLOW,
                  NULL, NULL, NULL);
    check_refused(moetoken_workspace_size(-1, 1, &bytes), MOETOKEN_ERR_SHAPE, "tokens_num", "-1",
                  NULL);
    check_refused(moetoken_workspace_size(1, -9, &bytes), MOETOKEN_ERR_SHAPE, "slots_num", "-9",
                  NULL);
    check_refused(moetoken_workspace_size(1, 1, NULL), MOETOKEN_ERR_NULL, "bytes", NULL, NULL);
    check(bytes == 77, "written although the query failed");
}

int main(void)
{
    random_start("memory_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exact_and_dirty_workspace),
        cmocka_unit_test(one_workspace_for_many_calls),
        cmocka_unit_test(a_workspace_that_will_not_do),
        cmocka_unit_test(with_a_workspace_nothing_is_allocated),
        cmocka_unit_test(the_nth_allocation_fails),
        cmocka_unit_test(the_workspace_query),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
