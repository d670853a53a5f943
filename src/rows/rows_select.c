/* rows_select.c - which kernels run under a mask, and the list of kernels. */
#include "rows/isa.h"
#include "rows/rows.h"

#include <moetoken/moetoken.h>
#include <string.h>

void moetoken_row_kernels_select(uint32_t isa_mask, struct moetoken_row_kernels *kernels)
{
    uint32_t isa = moetoken_isa_usable(isa_mask);
    moetoken_row_kernels_scalar(kernels);
#if defined(__x86_64__)
    if (isa & MOETOKEN_ISA_AVX2)
        moetoken_row_kernels_avx2(kernels);
    if (isa & MOETOKEN_ISA_AVX512)
        moetoken_row_kernels_avx512(kernels);
#elif defined(__aarch64__)
    if (isa & MOETOKEN_ISA_NEON)
        moetoken_row_kernels_neon(kernels);
#endif
}

uint32_t moetoken_isa_chosen(uint32_t isa_mask)
{
    struct moetoken_row_kernels kernels;
    if (isa_mask & ~MOETOKEN_ISA_ALL || moetoken_isa_unknown_word())
        return 0;
    moetoken_row_kernels_select(isa_mask, &kernels);
    return kernels.isa;
}

#define AT(member) offsetof(struct moetoken_row_kernels, member)

const struct moetoken_row_kernel_entry moetoken_row_kernel_list[MOETOKEN_ROW_KERNEL_COUNT] = {
    {"copy_rows_2", MOETOKEN_COPY_ROWS, -1, 2, AT(copy_2)},
    {"copy_rows_4", MOETOKEN_COPY_ROWS, -1, 4, AT(copy_4)},
    {"copy_rows_8", MOETOKEN_COPY_ROWS, -1, 8, AT(copy_8)},
    {"scale_rows_f32", MOETOKEN_SCALE_ROWS, MOETOKEN_F32, 4, AT(scale[0])},
    {"scale_rows_f16", MOETOKEN_SCALE_ROWS, MOETOKEN_F16, 2, AT(scale[1])},
    {"scale_rows_bf16", MOETOKEN_SCALE_ROWS, MOETOKEN_BF16, 2, AT(scale[2])},
    {"scale_rows_f64", MOETOKEN_SCALE_ROWS, MOETOKEN_F64, 8, AT(scale[3])},
    {"dot_rows_f32", MOETOKEN_DOT_ROWS, MOETOKEN_F32, 4, AT(dot[0])},
    {"dot_rows_f16", MOETOKEN_DOT_ROWS, MOETOKEN_F16, 2, AT(dot[1])},
    {"dot_rows_bf16", MOETOKEN_DOT_ROWS, MOETOKEN_BF16, 2, AT(dot[2])},
    {"dot_rows_f64", MOETOKEN_DOT_ROWS, MOETOKEN_F64, 8, AT(dot[3])},
    {"scale_dot_rows_f32", MOETOKEN_SCALE_DOT_ROWS, MOETOKEN_F32, 4, AT(scale_dot[0])},
    {"scale_dot_rows_f16", MOETOKEN_SCALE_DOT_ROWS, MOETOKEN_F16, 2, AT(scale_dot[1])},
    {"scale_dot_rows_bf16", MOETOKEN_SCALE_DOT_ROWS, MOETOKEN_BF16, 2, AT(scale_dot[2])},
    {"scale_dot_rows_f64", MOETOKEN_SCALE_DOT_ROWS, MOETOKEN_F64, 8, AT(scale_dot[3])},
    {"sum_rows_f32", MOETOKEN_SUM_ROWS, MOETOKEN_F32, 4, AT(sum[0])},
    {"sum_rows_f16", MOETOKEN_SUM_ROWS, MOETOKEN_F16, 2, AT(sum[1])},
    {"sum_rows_bf16", MOETOKEN_SUM_ROWS, MOETOKEN_BF16, 2, AT(sum[2])},
    {"sum_rows_f64", MOETOKEN_SUM_ROWS, MOETOKEN_F64, 8, AT(sum[3])},
};

moetoken_rows_fn *moetoken_row_kernel_get(const struct moetoken_row_kernels *kernels,
                                          const struct moetoken_row_kernel_entry *entry)
{
    moetoken_rows_fn *kernel;
    memcpy(&kernel, (const char *)kernels + entry->offset, sizeof kernel);
    return kernel;
}
