/* getters_test.cpp - arrays from the getters are freed with delete[] in C++, which sanitizers and
 * valgrind want to be right; and the headers' names in C++ spelling. */
#include "acl/acl.h"
#include "acl_meta.h" /* include/aclnn and include/aclnnop are on the path as well */
#include "aclnn_base.h"
#include "aclnn_util.h"

#include <cstdio>

int main()
{
    const int64_t shape[] = {4, 2, 3}, strides[] = {6, 3, 1};
    aclTensor *tensor = aclCreateTensor(shape, 3, aclDataType::ACL_FLOAT16, nullptr, 0,
                                        aclFormat::ACL_FORMAT_ND, shape, 3, nullptr);
    int64_t *dims = nullptr, *steps = nullptr, *storage = nullptr;
    uint64_t rank = 0;
    bool good = aclGetViewShape(tensor, &dims, &rank) == ACLNN_SUCCESS && rank == 3;
    good = good && aclGetViewStrides(tensor, &steps, &rank) == ACLNN_SUCCESS;
    good = good && aclGetStorageShape(tensor, &storage, &rank) == ACLNN_SUCCESS && rank == 3;
    for (int i = 0; good && i < 3; i++)
        good = dims[i] == shape[i] && steps[i] == strides[i] && storage[i] == shape[i];
    delete[] dims;
    delete[] steps;
    delete[] storage;
    aclDestroyTensor(tensor);
    std::printf("%s\n", good ? "ok" : "wrong");
    return good ? 0 : 1;
}
