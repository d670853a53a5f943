/* caller_array.h - memory that the program will free. */
#ifndef ACLNN_CALLER_ARRAY_H
#define ACLNN_CALLER_ARRAY_H

#include <stddef.h>

/* From operator new[] when the code at `caller`, a return address, is C++, which frees with
 * delete[]; else from malloc. Ordinary runtimes do not care; sanitizers and valgrind do. */
void *caller_array(size_t bytes, const void *caller);

#endif
