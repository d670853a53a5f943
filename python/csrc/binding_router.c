/* binding_router.c - the router's functions, as Python functions.
 *
 * As those of binding.c: arrays by position, inputs before outputs, then numbers, flags, threads.
 * The numbers of a moetoken_router_config come in the order of its fields. */
#include "binding_router.h"

#include "call.h"

#include <moetoken/router.h>

static bool read_double(PyObject *value, double *number)
{
    *number = PyFloat_AsDouble(value);
    return *number != -1 || !PyErr_Occurred();
}

static bool read_flag(PyObject *value, bool *flag)
{
    int truth = PyObject_IsTrue(value);
    *flag = truth == 1;
    return truth >= 0;
}

enum {
    CONFIG_VALUES = 9
};

static bool read_config(PyObject *const *values, moetoken_router_config *config)
{
    int64_t score;
    if (!call_read_number(values[0], &config->topk) || !call_read_number(values[1], &score) ||
        !read_flag(values[2], &config->normalize) ||
        !read_flag(values[3], &config->normalize_scores) ||
        !call_read_number(values[4], &config->groups_num) ||
        !call_read_number(values[5], &config->groups_top) ||
        !call_read_number(values[6], &config->group_score_count) ||
        !read_double(values[7], &config->eps) || !read_double(values[8], &config->scale))
        return false;
    config->score = (int32_t)score;
    return true;
}

PyObject *python_router_recipe(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    const char *name = count == 1 ? PyBytes_AsString(values[0]) : NULL;
    if (!name) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%zd arguments, expected 1", count);
        return NULL;
    }
    moetoken_router_config config;
    if (moetoken_router_recipe(name, &config) != MOETOKEN_OK) {
        PyErr_SetString(PyExc_ValueError, moetoken_last_error());
        return NULL;
    }
    return Py_BuildValue("(LiiiLLLdd)", (long long)config.topk, (int)config.score,
                         (int)config.normalize, (int)config.normalize_scores,
                         (long long)config.groups_num, (long long)config.groups_top,
                         (long long)config.group_score_count, config.eps, config.scale);
}

static const char *const router_names[] = {"logits",     "bias",    "token_mask",
                                           "expert_ids", "weights", "routing_map",
                                           "probs",      "scores",  "rows_per_expert"};

/* 3 inputs, 6 outputs, the configuration, flags, threads. */
PyObject *python_router(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, router_names, values, 3, 6, count, 9 + CONFIG_VALUES + 2, &result))
        return result;
    moetoken_router_args args = {.struct_size = sizeof args,
                                 .logits = call.tensors[0],
                                 .bias = call.tensors[1],
                                 .token_mask = call.tensors[2],
                                 .expert_ids = call.tensors[3],
                                 .weights = call.tensors[4],
                                 .routing_map = call.tensors[5],
                                 .probs = call.tensors[6],
                                 .scores = call.tensors[7],
                                 .rows_per_expert = call.tensors[8]};
    if (!read_config(values + 9, &args.config)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const router_grad_names[] = {"logits",       "token_mask", "expert_ids",
                                                "weights_grad", "probs_grad", "scores_grad",
                                                "logits_grad"};

/* 6 inputs, 1 output, the configuration, flags, threads. */
PyObject *python_router_grad(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, router_grad_names, values, 6, 1, count, 7 + CONFIG_VALUES + 2, &result))
        return result;
    moetoken_router_grad_args args = {.struct_size = sizeof args,
                                      .logits = call.tensors[0],
                                      .token_mask = call.tensors[1],
                                      .expert_ids = call.tensors[2],
                                      .weights_grad = call.tensors[3],
                                      .probs_grad = call.tensors[4],
                                      .scores_grad = call.tensors[5],
                                      .logits_grad = call.tensors[6]};
    if (!read_config(values + 7, &args.config)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const balance_loss_names[] = {"scores", "rows_per_expert", "loss_grad", "loss",
                                                 "scores_grad"};

/* 3 inputs, 2 outputs, topk, total_tokens, coeff, flags, threads. */
PyObject *python_router_balance_loss(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, balance_loss_names, values, 3, 2, count, 10, &result))
        return result;
    moetoken_router_balance_loss_args args = {.struct_size = sizeof args,
                                              .scores = call.tensors[0],
                                              .rows_per_expert = call.tensors[1],
                                              .loss_grad = call.tensors[2],
                                              .loss = call.tensors[3],
                                              .scores_grad = call.tensors[4]};
    if (!call_read_number(values[5], &args.topk) ||
        !call_read_number(values[6], &args.total_tokens) || !read_double(values[7], &args.coeff)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router_balance_loss(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const z_loss_names[] = {"logits", "token_mask", "loss_grad", "loss",
                                           "logits_grad"};

/* 3 inputs, 2 outputs, coeff, flags, threads. */
PyObject *python_router_z_loss(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, z_loss_names, values, 3, 2, count, 8, &result))
        return result;
    moetoken_router_z_loss_args args = {.struct_size = sizeof args,
                                        .logits = call.tensors[0],
                                        .token_mask = call.tensors[1],
                                        .loss_grad = call.tensors[2],
                                        .loss = call.tensors[3],
                                        .logits_grad = call.tensors[4]};
    if (!read_double(values[5], &args.coeff)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router_z_loss(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const update_bias_names[] = {"bias", "rows_per_expert", "updated_bias"};

/* 2 inputs, 1 output, rate, flags, threads. */
PyObject *python_router_update_bias(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, update_bias_names, values, 2, 1, count, 6, &result))
        return result;
    moetoken_router_update_bias_args args = {.struct_size = sizeof args,
                                             .bias = call.tensors[0],
                                             .rows_per_expert = call.tensors[1],
                                             .updated_bias = call.tensors[2]};
    if (!read_double(values[3], &args.rate)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router_update_bias(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const drop_names[] = {"expert_ids", "weights", "kept_ids", "kept_weights",
                                         "rows_per_expert"};

/* 2 inputs, 3 outputs, experts_num, capacity, flags, threads. */
PyObject *python_router_drop(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, drop_names, values, 2, 3, count, 9, &result))
        return result;
    moetoken_router_drop_args args = {.struct_size = sizeof args,
                                      .expert_ids = call.tensors[0],
                                      .weights = call.tensors[1],
                                      .kept_ids = call.tensors[2],
                                      .kept_weights = call.tensors[3],
                                      .rows_per_expert = call.tensors[4]};
    if (!call_read_number(values[5], &args.experts_num) ||
        !call_read_number(values[6], &args.capacity)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_router_drop(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}
