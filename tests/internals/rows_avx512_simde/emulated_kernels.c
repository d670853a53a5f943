/* emulated_kernels.c - lends rows_test.c the AVX-512 kernels in emulation, on any CPU.
 *
 * The linker sends the test's calls of the two functions below here (--wrap): to the test this is a
 * machine with AVX-512, and its whole body runs against the kernels of rows_avx512.c. */
#include "rows/rows.h"

#include <moetoken/moetoken.h>

/* moetoken_row_kernels_avx512 of the emulated build. */
void emulated_row_kernels_avx512(struct moetoken_row_kernels *kernels);

uint32_t __wrap_moetoken_isa_detected(void);
void __wrap_moetoken_row_kernels_select(uint32_t isa_mask, struct moetoken_row_kernels *kernels);

uint32_t __wrap_moetoken_isa_detected(void)
{
    return MOETOKEN_ISA_SCALAR | MOETOKEN_ISA_AVX512;
}

void __wrap_moetoken_row_kernels_select(uint32_t isa_mask, struct moetoken_row_kernels *kernels)
{
    moetoken_row_kernels_scalar(kernels);
    if (isa_mask == 0 || (isa_mask & MOETOKEN_ISA_AVX512))
        emulated_row_kernels_avx512(kernels);
}
