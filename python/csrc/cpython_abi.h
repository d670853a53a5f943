/* cpython_abi.h - the few functions of CPython that the binding calls, declared here.
 *
 * All of them are exported by every CPython since 3.9 with these signatures (the Stable ABI), and
 * every object stays opaque: so the library is built without Python's headers, and one wheel serves
 * all versions. The symbols resolve when the running interpreter loads the library. */
#ifndef MOETOKEN_PYTHON_CPYTHON_ABI_H
#define MOETOKEN_PYTHON_CPYTHON_ABI_H

#include <stddef.h>

typedef struct python_object PyObject; /* never looked into */
typedef struct python_thread_state PyThreadState;
typedef ptrdiff_t Py_ssize_t;

/* The buffer protocol's view of an object. */
typedef struct Py_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

#define PyBUF_RECORDS_RO 0x001c /* format, shape and strides, no suboffsets */

/* A function as Python sees it, for METH_FASTCALL: its arguments are an array of borrowed objects.
 */
typedef PyObject *(*PyFastFunction)(PyObject *self, PyObject *const *values, Py_ssize_t count);
typedef struct PyMethodDef {
    const char *ml_name;
    PyFastFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
#define METH_FASTCALL 0x0080

extern PyObject _Py_NoneStruct, _Py_NotImplementedStruct, _Py_TrueStruct, _Py_FalseStruct;
#define Py_None           (&_Py_NoneStruct)
#define Py_NotImplemented (&_Py_NotImplementedStruct)
#define Py_True           (&_Py_TrueStruct)
#define Py_False          (&_Py_FalseStruct)

extern PyObject *PyExc_BufferError, *PyExc_Exception, *PyExc_IndexError, *PyExc_MemoryError,
    *PyExc_TypeError, *PyExc_ValueError;

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);

PyObject *PyObject_Type(PyObject *object);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyObject_Call(PyObject *callable, PyObject *arguments, PyObject *keywords);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);             /* ends with NULL */
PyObject *PyObject_CallMethodObjArgs(PyObject *object, PyObject *name, ...); /* ends with NULL */
PyObject *PyObject_Str(PyObject *object);
int PyObject_IsTrue(PyObject *object);
int PyObject_IsInstance(PyObject *object, PyObject *type);
int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);

void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
int PyCapsule_IsValid(PyObject *capsule, const char *name);

PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
PyObject *PyUnicode_InternFromString(const char *text);
int PyUnicode_CompareWithASCIIString(PyObject *text, const char *ascii);
PyObject *PyBool_FromLong(long truth);
PyObject *PyLong_FromLong(long number);
long long PyLong_AsLongLong(PyObject *object);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *object);
double PyFloat_AsDouble(PyObject *object);
char *PyBytes_AsString(PyObject *bytes);
PyObject *Py_BuildValue(const char *format, ...);

PyObject *PyTuple_New(Py_ssize_t size);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t i, PyObject *item); /* takes the item's reference */

PyObject *PyErr_Occurred(void);
int PyErr_ExceptionMatches(PyObject *exception);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject **type, PyObject **value, PyObject **traceback);
void PyErr_SetString(PyObject *exception, const char *message);
PyObject *PyErr_Format(PyObject *exception, const char *format, ...);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

#endif
