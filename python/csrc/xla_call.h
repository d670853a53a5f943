/* xla_call.h - one custom call of a compiled JAX program: its buffers as tensors, its attributes.
 *
 * What every handler of xla_ffi.c and xla_ffi_router.c begins and ends with. */
#ifndef MOETOKEN_PYTHON_XLA_CALL_H
#define MOETOKEN_PYTHON_XLA_CALL_H

#include "xla_ffi.h"

#include <moetoken/moetoken.h>
#include <stdbool.h>

#define XLA_CALL_MAX_TENSORS 8
#define XLA_CALL_MAX_RANK    8

struct xla_call {
    struct xla_call_frame *frame;
    const char *problem; /* NULL: none; else what is wrong with the call itself */
    int count, batch_rank;
    const struct xla_buffer *buffers[XLA_CALL_MAX_TENSORS]; /* NULL: absent */
    DLTensor storage[XLA_CALL_MAX_TENSORS];
    const DLTensor *tensors[XLA_CALL_MAX_TENSORS];
    int64_t batch[XLA_CALL_MAX_RANK];
};

/* Takes the buffers of a call whose tensors, `inputs` before `outputs`, have these ranks. True:
 * *result is to be returned. */
bool xla_call_answered(struct xla_call_frame *frame, struct xla_call *call, const int *ranks,
                       int inputs, int outputs, struct xla_error **result);

/* An attribute; call->problem when there is none of that type. */
int64_t xla_call_number(struct xla_call *call, const char *name);
double xla_call_real(struct xla_call *call, const char *name);

/* Runs the operator, whose arguments point to the call's tensors, for each item of the batch. */
struct xla_error *xla_call_run(struct xla_call *call,
                               moetoken_status (*run)(const void *args,
                                                      const moetoken_options *options),
                               const void *args);

struct xla_error *xla_call_report(const struct xla_call_frame *frame, int code,
                                  const char *message);

typedef struct xla_error *xla_handler(struct xla_call_frame *frame);

#endif
