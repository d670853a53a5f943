/* router_errors_test.c - what bad input to the router's functions gets: a status, a message with
 * the name and the values, from the check as from the call, and nothing written. */
#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <moetoken/router.h>
#include <string.h>

/* ---- router --------------------------------------------------------------------------------- */

struct call {
    float logits[2][4], bias[4], weights[2][2];
    int64_t ids[2][2];
    int64_t te[2], tk[2], e[1], t[1];
    uint8_t mask[2];
    DLTensor tl, tb, tw, ti, tm;
    moetoken_router_args args;
    moetoken_options options;
};

static void call_make(struct call *c)
{
    memset(c, 0, sizeof *c);
    c->te[0] = c->tk[0] = c->t[0] = 2, c->te[1] = c->e[0] = 4, c->tk[1] = 2;
    c->tl = moetoken_tensor(c->logits, MOETOKEN_F32, 2, c->te);
    c->tb = moetoken_tensor(c->bias, MOETOKEN_F32, 1, c->e);
    c->tw = moetoken_tensor(c->weights, MOETOKEN_F32, 2, c->tk);
    c->ti = moetoken_tensor(c->ids, MOETOKEN_I64, 2, c->tk);
    c->tm = moetoken_tensor(c->mask, MOETOKEN_U8, 1, c->t);
    c->args = (moetoken_router_args){.struct_size = sizeof c->args,
                                     .logits = &c->tl,
                                     .bias = &c->tb,
                                     .token_mask = &c->tm,
                                     .config = {.topk = 2},
                                     .expert_ids = &c->ti,
                                     .weights = &c->tw};
    memset(c->weights, 0x5a, sizeof c->weights);
    memset(c->ids, 0x5a, sizeof c->ids);
}

static void refused(struct call *c, moetoken_status status, const char *text, const char *second)
{
    struct call before = *c;
    check_refused(moetoken_router_check(&c->args, &c->options), status, text, second, NULL);
    check_refused(moetoken_router(&c->args, &c->options), status, text, second, NULL);
    check(memcmp(&before, c, sizeof before) == 0, "something was written");
}

#define REFUSED(status, text, second, ...)                                                         \
    do {                                                                                           \
        struct call c;                                                                             \
        call_make(&c);                                                                             \
        __VA_ARGS__;                                                                               \
        refused(&c, status, text, second);                                                         \
    } while (0)

static void settings(void **state)
{
    (void)state;
    const moetoken_status option = MOETOKEN_ERR_OPTION;
    REFUSED(option, "config.topk = 5", "E = 4", c.args.config.topk = c.tk[1] = 5);
    REFUSED(option, "config.topk = 3", "groups_top = 1", c.args.config.topk = c.tk[1] = 3,
            c.args.config.groups_num = 2);
    REFUSED(option, "config.groups_num = 3", "E = 4", c.args.config.groups_num = 3);
    REFUSED(option, "config.groups_num = -1", NULL, c.args.config.groups_num = -1);
    REFUSED(option, "config.groups_top = 3", "2", c.args.config.groups_num = 2,
            c.args.config.groups_top = 3);
    REFUSED(option, "config.group_score_count = 3", "2", c.args.config.groups_num = 2,
            c.args.config.group_score_count = 3);
    REFUSED(option, "config.score = 4", NULL, c.args.config.score = 4);
    REFUSED(option, "config.score = -1", NULL, c.args.config.score = -1);
    REFUSED(option, "config.eps = -1", NULL, c.args.config.eps = -1);
    REFUSED(option, "config.eps", "finite", c.args.config.eps = INFINITY);
    REFUSED(option, "config.scale", "finite", c.args.config.scale = NAN);
    REFUSED(option, "options.flags", NULL, c.options.flags = MOETOKEN_MASK_FILL_SLOTS);
    REFUSED(option, "options.threads = -1", NULL, c.options.threads = -1);
    REFUSED(option, "args.struct_size = 8", NULL, c.args.struct_size = 8);
    REFUSED(MOETOKEN_ERR_SHAPE, "config.topk = -1", "at least 0", c.args.config.topk = -1);
}

static void tensors(void **state)
{
    (void)state;
    REFUSED(MOETOKEN_ERR_NULL, "logits is NULL", NULL, c.args.logits = NULL);
    REFUSED(MOETOKEN_ERR_NULL, "at least one output", NULL,
            c.args.expert_ids = c.args.weights = NULL);
    REFUSED(MOETOKEN_ERR_SHAPE, "weights has size 3 in dimension 1", "K = 2", c.tk[1] = 3,
            c.args.expert_ids = NULL);
    REFUSED(MOETOKEN_ERR_SHAPE, "bias has size 5", "E = 4 (from logits)", c.e[0] = 5);
    REFUSED(MOETOKEN_ERR_SHAPE, "token_mask has size 1", "T = 2", c.t[0] = 1);
    REFUSED(MOETOKEN_ERR_TYPE, "bias is float16", "float32",
            c.tb.dtype = moetoken_dtype(MOETOKEN_F16));
    REFUSED(MOETOKEN_ERR_TYPE, "weights is bfloat16", "logits",
            c.tw.dtype = moetoken_dtype(MOETOKEN_BF16));
    REFUSED(MOETOKEN_ERR_TYPE, "logits is int32", NULL, c.tl.dtype = moetoken_dtype(MOETOKEN_I32));
    REFUSED(MOETOKEN_ERR_TYPE, "expert_ids is float32", NULL,
            c.ti.dtype = moetoken_dtype(MOETOKEN_F32));
    REFUSED(MOETOKEN_ERR_DEVICE, "logits", "CPU", c.tl.device.device_type = kDLCUDA);
    REFUSED(MOETOKEN_ERR_STRIDE, "weights", "share memory", c.tw.strides = (int64_t[]){0, 1});
    REFUSED(MOETOKEN_ERR_OVERLAP, "weights", "logits", c.tw.data = c.logits);
}

static void workspace(void **state)
{
    (void)state;
    static int64_t memory[1000];
    size_t bytes;
    check(moetoken_router_workspace_size(2, 4, 2, 1, &bytes) == MOETOKEN_OK &&
              bytes <= sizeof memory,
          "%s", moetoken_last_error());
    REFUSED(MOETOKEN_ERR_WORKSPACE, "options.workspace_bytes = 8", NULL,
            c.options.workspace = memory, c.options.workspace_bytes = 8);
    REFUSED(MOETOKEN_ERR_WORKSPACE, "aligned", NULL, c.options.workspace = (char *)memory + 1,
            c.options.workspace_bytes = bytes);
    REFUSED(MOETOKEN_ERR_OVERLAP, "options.workspace", "logits", c.options.workspace = memory,
            c.options.workspace_bytes = sizeof memory, c.tl.data = memory);
    struct call c;
    call_make(&c);
    c.options.workspace = memory;
    c.options.workspace_bytes = bytes;
    check(moetoken_router(&c.args, &c.options) == MOETOKEN_OK, "%s", moetoken_last_error());
    check_refused(moetoken_router_workspace_size(1, 1, 1, 1, NULL), MOETOKEN_ERR_NULL, "bytes",
                  NULL, NULL);
    check_refused(moetoken_router_workspace_size(-1, 1, 1, 1, &bytes), MOETOKEN_ERR_SHAPE,
                  "tokens_num = -1", NULL, NULL);
    check_refused(moetoken_router_workspace_size(INT64_MAX, 1, 9, 1, &bytes), MOETOKEN_ERR_OVERFLOW,
                  "does not fit", NULL, NULL);
}

/* What passes the check runs: without data the call names the tensor, with it it succeeds. */
static void both_directions(void **state)
{
    (void)state;
    struct call c;
    call_make(&c);
    check(moetoken_router(&c.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    c.tl.data = c.tw.data = NULL;
    check(moetoken_router_check(&c.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check_refused(moetoken_router(&c.args, NULL), MOETOKEN_ERR_NULL, "logits has no data", NULL,
                  NULL);
    check_refused(moetoken_router(NULL, NULL), MOETOKEN_ERR_NULL, "args is NULL", NULL, NULL);
}

/* ---- the others ----------------------------------------------------------------------------- */

static void ids_out_of_range(void **state)
{
    (void)state;
    struct call c;
    float grad[2][4];
    for (int64_t bad = -2; bad <= 4; bad += 6) {
        call_make(&c);
        c.ids[0][0] = c.ids[0][1] = c.ids[1][0] = 3;
        c.ids[1][1] = bad;
        memset(grad, 0x5a, sizeof grad);
        DLTensor tg = moetoken_tensor(grad, MOETOKEN_F32, 2, c.te);
        moetoken_router_grad_args args = {
            .logits = &c.tl, .expert_ids = &c.ti, .weights_grad = &c.tw, .logits_grad = &tg};
        const char *text = bad < 0 ? "expert_ids[1,1] = -2" : "expert_ids[1,1] = 4";
        check_refused(moetoken_router_grad(&args, NULL), MOETOKEN_ERR_INDEX, text, "[-1, 4)", NULL);
        for (size_t i = 0; i < sizeof grad; i++)
            check(((char *)grad)[i] == 0x5a, "byte %zu was written", i);
        moetoken_router_drop_args drop = {
            .expert_ids = &c.ti, .weights = &c.tw, .experts_num = 4, .kept_ids = &c.ti};
        check_refused(moetoken_router_drop(&drop, NULL), MOETOKEN_ERR_INDEX, text, "[-1, 4)", NULL);
    }
    moetoken_router_grad_args none = {.logits = &c.tl, .logits_grad = &c.tl};
    check_refused(moetoken_router_grad(&none, NULL), MOETOKEN_ERR_NULL, "at least one", NULL, NULL);
    none.weights_grad = &c.tw;
    check_refused(moetoken_router_grad(&none, NULL), MOETOKEN_ERR_NULL, "expert_ids is NULL",
                  "weights_grad", NULL);
}

static void losses_and_recipes(void **state)
{
    (void)state;
    moetoken_router_config config;
    struct call c;
    call_make(&c);
    check_refused(moetoken_router_recipe("gpt-2", &config), MOETOKEN_ERR_OPTION, "\"gpt-2\"",
                  "mixtral", NULL);
    check_refused(moetoken_router_recipe(NULL, &config), MOETOKEN_ERR_NULL, "name", NULL, NULL);
    moetoken_router_z_loss_args z = {.logits = &c.tl};
    check_refused(moetoken_router_z_loss(&z, NULL), MOETOKEN_ERR_NULL, "loss", NULL, NULL);
    z.loss = &c.tb;
    check_refused(moetoken_router_z_loss(&z, NULL), MOETOKEN_ERR_SHAPE, "loss has size 4",
                  "expected 1", NULL);
    moetoken_router_balance_loss_args balance = {.scores = &c.tl};
    check_refused(moetoken_router_balance_loss(&balance, NULL), MOETOKEN_ERR_NULL,
                  "rows_per_expert is NULL", NULL, NULL);
    moetoken_router_update_bias_args update = {.bias = &c.tb, .rate = NAN};
    check_refused(moetoken_router_update_bias(&update, NULL), MOETOKEN_ERR_NULL,
                  "rows_per_expert is NULL", NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings),         cmocka_unit_test(tensors),
        cmocka_unit_test(workspace),        cmocka_unit_test(both_directions),
        cmocka_unit_test(ids_out_of_range), cmocka_unit_test(losses_and_recipes),
    };
    random_start("router_errors_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
