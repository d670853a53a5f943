/* shim.h - the few functions of PyTorch's stable C interface that make tensors, found at run time.
 *
 * libtorch exports them for extensions that must not depend on its version; they are looked up in
 * the library that the process has loaded, so that nothing is compiled or linked against PyTorch.
 */
#ifndef MOETOKEN_PYTHON_TORCH_SHIM_H
#define MOETOKEN_PYTHON_TORCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#include "../cpython_abi.h"

/* True: the loaded libtorch has all of them (PyTorch 2.14 and newer). Before anything below. */
bool torch_shim_find(void);

/* A new CPU tensor of one or two dimensions, without content: its memory in `tensor`, whose shape
 * is read. NULL without an exception: the type is unknown, or PyTorch would not. */
PyObject *torch_shim_empty(DLTensor *tensor);

/* As many threads as PyTorch's own operators take. */
int32_t torch_shim_threads(void);

bool torch_shim_records_gradients(void);

#endif
