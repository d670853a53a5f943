/* shim.c - looks PyTorch's C functions up and makes tensors with them. */
#define _GNU_SOURCE /* RTLD_NOLOAD is POSIX since 2024 only */
#include "shim.h"

#include <dlfcn.h>
#include <string.h>

#include <moetoken/moetoken.h>

typedef void *tensor_handle;
typedef int32_t code_function(void);

static struct {
    /* The first four return 0 where all went well. */
    int32_t (*empty_strided)(int64_t ndim, const int64_t *sizes, const int64_t *strides,
                             int32_t type, int32_t device_type, int32_t device_index,
                             tensor_handle *made);
    int32_t (*data_ptr)(tensor_handle tensor, void **data);
    int32_t (*to_pyobject)(tensor_handle tensor, void *python_type, void **object);
    int32_t (*num_threads)(uint32_t *threads);
    int32_t (*delete_tensor)(tensor_handle tensor);
    bool (*grad_mode_is_enabled)(void);
    code_function *device_type_cpu, *float32, *float16, *bfloat16, *float64, *int32, *int64;
} shim;

/* ISO C knows no conversion from an object's address to a function's: their bytes are copied. */
static bool look_up(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

bool torch_shim_find(void)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library && look_up(library, "aoti_torch_empty_strided", &shim.empty_strided) &&
           look_up(library, "aoti_torch_get_data_ptr", &shim.data_ptr) &&
           look_up(library, "torch_tensor_to_pyobject", &shim.to_pyobject) &&
           look_up(library, "torch_get_num_threads", &shim.num_threads) &&
           look_up(library, "aoti_torch_delete_tensor_object", &shim.delete_tensor) &&
           look_up(library, "aoti_torch_grad_mode_is_enabled", &shim.grad_mode_is_enabled) &&
           look_up(library, "aoti_torch_device_type_cpu", &shim.device_type_cpu) &&
           look_up(library, "aoti_torch_dtype_float32", &shim.float32) &&
           look_up(library, "aoti_torch_dtype_float16", &shim.float16) &&
           look_up(library, "aoti_torch_dtype_bfloat16", &shim.bfloat16) &&
           look_up(library, "aoti_torch_dtype_float64", &shim.float64) &&
           look_up(library, "aoti_torch_dtype_int32", &shim.int32) &&
           look_up(library, "aoti_torch_dtype_int64", &shim.int64);
}

/* PyTorch's function for the code of a type, or NULL. */
static code_function *type_code(DLDataType type)
{
    if (type.lanes != 1)
        return NULL;
    switch (type.code << 8 | type.bits) {
    case kDLFloat << 8 | 32:
        return shim.float32;
    case kDLFloat << 8 | 16:
        return shim.float16;
    case kDLBfloat << 8 | 16:
        return shim.bfloat16;
    case kDLFloat << 8 | 64:
        return shim.float64;
    case kDLInt << 8 | 32:
        return shim.int32;
    case kDLInt << 8 | 64:
        return shim.int64;
    default:
        return NULL;
    }
}

PyObject *torch_shim_empty(DLTensor *tensor)
{
    int64_t strides[2] = {tensor->ndim == 2 ? tensor->shape[1] : 1, 1};
    if (strides[0] == 0) /* as PyTorch has them where there is nothing */
        strides[0] = 1;
    code_function *code = type_code(tensor->dtype);
    tensor_handle handle;
    if (!code || shim.empty_strided(tensor->ndim, tensor->shape, strides, code(),
                                    shim.device_type_cpu(), 0, &handle))
        return NULL;
    void *object = NULL;
    if (shim.data_ptr(handle, &tensor->data) || shim.to_pyobject(handle, NULL, &object))
        object = NULL;
    shim.delete_tensor(handle);
    return object;
}

int32_t torch_shim_threads(void)
{
    uint32_t threads;
    return shim.num_threads(&threads) ? 0 : (int32_t)threads;
}

bool torch_shim_records_gradients(void)
{
    return shim.grad_mode_is_enabled();
}
