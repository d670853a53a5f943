/* calls.c - see calls.h. */
#include "calls.h"

#define NONE ((struct values){.count = 0})

const double call_x[6] = {1, 2, 3, 4, 5, 6};
static const double id_values[] = {1, 2, 0, 1, 0, 2}, row_idx_values[] = {0, 3, 1, 4, 2, 5};
static const double rows_values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const double places_values[] = {2, 4, 0, 3, 1, 5};

static aclTensor *at(const struct call *call, int place)
{
    return call->tensor[place].twin.tensor;
}

static void set_options(struct call *call, const int64_t *option, size_t count)
{
    memcpy(call->option, option, count * sizeof *option);
}

/* ---- init routing --------------------------------------------------------------------------- */

static struct call init_v1_make(void)
{
    return (struct call){
        .tensor = {VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_INT32, row_idx_values, 3, 2),
                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, NULL, 6, 2),
                   VALUES(ACL_INT32, NULL, 6), VALUES(ACL_INT32, NULL, 6)},
        .option = {3}};
}

static aclnnStatus init_v1_phase_one(struct call *call)
{
    return aclnnMoeInitRoutingGetWorkspaceSize(at(call, 0), at(call, 1), at(call, 2),
                                               call->option[0], at(call, 3), at(call, 4),
                                               at(call, 5), &call->bytes, &call->executor);
}

const struct tested init_v1 = {init_v1_make, init_v1_phase_one, aclnnMoeInitRouting, 3};

static struct call init_v2_make(void)
{
    return (struct call){.tensor = {VALUES(ACL_FLOAT, call_x, 3, 2),
                                    VALUES(ACL_INT32, id_values, 3, 2),
                                    VALUES(ACL_FLOAT, NULL, 6, 2), VALUES(ACL_INT32, NULL, 6),
                                    VALUES(ACL_INT32, NULL, 3), VALUES(ACL_INT32, NULL, 3)},
                         .option = {0, 0, 3, 0, 2, 0}};
}

static aclnnStatus init_v2_phase_one(struct call *call)
{
    const int64_t *option = call->option;
    return aclnnMoeInitRoutingV2GetWorkspaceSize(at(call, 0), at(call, 1), option[0], option[1],
                                                 option[2], option[3], option[4], option[5] != 0,
                                                 at(call, 2), at(call, 3), at(call, 4), at(call, 5),
                                                 &call->bytes, &call->executor);
}

const struct tested init_v2 = {init_v2_make, init_v2_phase_one, aclnnMoeInitRoutingV2, 2};

static struct call init_v2_padded_make(void)
{
    struct call call = init_v2_make();
    set_options(&call, (const int64_t[]){0, 2, 3, 1, 0, 1}, 6);
    call_replace(&call, 2, VALUES(ACL_FLOAT, NULL, 3, 2, 2));
    return call;
}

const struct tested init_v2_padded = {init_v2_padded_make, init_v2_phase_one, aclnnMoeInitRoutingV2,
                                      2};

static struct call init_v3_make(void)
{
    struct call call = {.tensor = {VALUES(ACL_FLOAT, call_x, 3, 2),
                                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, call_x, 3),
                                   NONE, VALUES(ACL_FLOAT, NULL, 6, 2), VALUES(ACL_INT32, NULL, 6),
                                   VALUES(ACL_INT64, NULL, 3), VALUES(ACL_FLOAT, NULL, 6)},
                        .option = {6, 0, 3, 0, 1, 1, -1, 0}};
    call_set_range(&call, (const int64_t[]){0, 3}, 2);
    return call;
}

static aclnnStatus init_v3_phase_one(struct call *call)
{
    const int64_t *option = call->option;
    return aclnnMoeInitRoutingV3GetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), at(call, 3), option[0], option[1], option[2],
        option[3], option[4], option[5] != 0, option[6], call->range, option[7], at(call, 4),
        at(call, 5), at(call, 6), at(call, 7), &call->bytes, &call->executor);
}

const struct tested init_v3 = {init_v3_make, init_v3_phase_one, aclnnMoeInitRoutingV3, 4};

static struct call init_v3_padded_make(void)
{
    struct call call = init_v3_make();
    set_options(&call, (const int64_t[]){6, 2, 3, 1}, 4);
    call_replace(&call, 4, VALUES(ACL_FLOAT, NULL, 3, 2, 2));
    return call;
}

const struct tested init_v3_padded = {init_v3_padded_make, init_v3_phase_one, aclnnMoeInitRoutingV3,
                                      4};

static struct call init_grad_make(void)
{
    return (struct call){.tensor = {VALUES(ACL_FLOAT, rows_values, 6, 2),
                                    VALUES(ACL_INT32, places_values, 6),
                                    VALUES(ACL_FLOAT, NULL, 3, 2)},
                         .option = {2, 0, 0}};
}

static aclnnStatus init_grad_phase_one(struct call *call)
{
    return aclnnMoeInitRoutingV2GradGetWorkspaceSize(at(call, 0), at(call, 1), call->option[0],
                                                     call->option[1], call->option[2], at(call, 2),
                                                     &call->bytes, &call->executor);
}

const struct tested init_grad = {init_grad_make, init_grad_phase_one, aclnnMoeInitRoutingV2Grad, 2};

/* ---- finalize routing ----------------------------------------------------------------------- */

static struct call finalize_v1_make(void)
{
    return (struct call){
        .tensor = {VALUES(ACL_FLOAT, rows_values, 6, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_INT32, places_values, 6),
                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, NULL, 3, 2)}};
}

static aclnnStatus finalize_v1_phase_one(struct call *call)
{
    return aclnnMoeFinalizeRoutingGetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), at(call, 3), at(call, 4), at(call, 5), at(call, 6),
        at(call, 7), &call->bytes, &call->executor);
}

const struct tested finalize_v1 = {finalize_v1_make, finalize_v1_phase_one, aclnnMoeFinalizeRouting,
                                   7};

static struct call finalize_v2_make(void)
{
    return (struct call){
        .tensor = {VALUES(ACL_FLOAT, rows_values, 6, 2), VALUES(ACL_INT32, places_values, 6),
                   VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, NULL, 3, 2)},
        .option = {2}};
}

static aclnnStatus finalize_v2_phase_one(struct call *call)
{
    return aclnnMoeFinalizeRoutingV2GetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), at(call, 3), at(call, 4), at(call, 5), at(call, 6),
        call->option[0], at(call, 7), &call->bytes, &call->executor);
}

const struct tested finalize_v2 = {finalize_v2_make, finalize_v2_phase_one,
                                   aclnnMoeFinalizeRoutingV2, 7};

static struct call finalize_grad_make(void)
{
    return (struct call){
        .tensor = {VALUES(ACL_FLOAT, call_x, 3, 2), VALUES(ACL_INT32, places_values, 6),
                   VALUES(ACL_FLOAT, rows_values, 6, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, call_x, 3, 2),
                   VALUES(ACL_FLOAT, NULL, 6, 2), VALUES(ACL_FLOAT, NULL, 3, 2)},
        .option = {0, 0, 0, 0}};
}

static aclnnStatus finalize_grad_phase_one(struct call *call)
{
    const int64_t *option = call->option;
    return aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), at(call, 3), at(call, 4), at(call, 5), option[0],
        option[1], option[2], option[3], at(call, 6), at(call, 7), &call->bytes, &call->executor);
}

const struct tested finalize_grad = {finalize_grad_make, finalize_grad_phase_one,
                                     aclnnMoeFinalizeRoutingV2Grad, 6};

static struct call finalize_grad_padded_make(void)
{
    struct call call = finalize_grad_make();
    set_options(&call, (const int64_t[]){1, 0, 3, 2}, 4);
    call_replace(&call, 2, VALUES(ACL_FLOAT, rows_values, 3, 2, 2));
    call_replace(&call, 6, VALUES(ACL_FLOAT, NULL, 3, 2, 2));
    return call;
}

const struct tested finalize_grad_padded = {finalize_grad_padded_make, finalize_grad_phase_one,
                                            aclnnMoeFinalizeRoutingV2Grad, 6};

/* ---- re-routing ----------------------------------------------------------------------------- */

/* Two ranks, two experts, three tokens. */
static struct call re_routing_make(void)
{
    const double counts[] = {1, 0, 1, 1};
    return (struct call){.tensor = {VALUES(ACL_BF16, call_x, 3, 2), VALUES(ACL_INT32, counts, 2, 2),
                                    VALUES(ACL_FLOAT, call_x, 3), VALUES(ACL_BF16, NULL, 3, 2),
                                    VALUES(ACL_FLOAT, NULL, 3), VALUES(ACL_INT32, NULL, 3),
                                    VALUES(ACL_INT32, NULL, 2)},
                         .option = {1, 0}};
}

static aclnnStatus re_routing_phase_one(struct call *call)
{
    return aclnnMoeReRoutingGetWorkspaceSize(at(call, 0), at(call, 1), at(call, 2), call->option[0],
                                             call->option[1], at(call, 3), at(call, 4), at(call, 5),
                                             at(call, 6), &call->bytes, &call->executor);
}

const struct tested re_routing = {re_routing_make, re_routing_phase_one, aclnnMoeReRouting, 3};

const struct tested *const all_operators[] = {
    &init_v1,   &init_v2,     &init_v2_padded, &init_v3,       &init_v3_padded,
    &init_grad, &finalize_v1, &finalize_v2,    &finalize_grad, &finalize_grad_padded,
    &re_routing};
const int operators_num = sizeof all_operators / sizeof all_operators[0];
