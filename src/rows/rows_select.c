/* rows_select.c - which kernels run: CPU detection, the mask, the choice, and the list of kernels.
 */
#include "rows/rows.h"

#include <moetoken/moetoken.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>

/* F16C, which not every compiler's __builtin_cpu_supports knows: CPUID leaf 1, ECX bit 29. Where it
 * is used, AVX2 has shown that the system keeps the registers. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 29 & 1);
}

#endif

static uint32_t detect(void)
{
    uint32_t isa = MOETOKEN_ISA_SCALAR;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        isa |= MOETOKEN_ISA_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            isa |= MOETOKEN_ISA_AVX512;
    }
#elif defined(__aarch64__)
    isa |= MOETOKEN_ISA_NEON; /* part of the base architecture */
#endif
    return isa;
}

/* The levels up to the one that MOETOKEN_ISA names; all when it is unset or names none. */
static uint32_t environment_mask(void)
{
    const char *name = getenv("MOETOKEN_ISA");
    uint32_t mask = 0;
    for (uint32_t isa = MOETOKEN_ISA_SCALAR; name && isa <= MOETOKEN_ISA_NEON; isa <<= 1) {
        mask |= isa;
        if (strcmp(name, moetoken_isa_name(isa)) == 0)
            return mask;
    }
    return UINT32_MAX;
}

/* What the CPU has and the environment allows, found out once. Every thread that comes first finds
 * the same, so a relaxed store by each of them is enough. */
static uint32_t usable(void)
{
    static uint32_t known;
    uint32_t isa = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (isa == 0) {
        isa = (detect() & environment_mask()) | MOETOKEN_ISA_SCALAR;
        __atomic_store_n(&known, isa, __ATOMIC_RELAXED);
    }
    return isa;
}

uint32_t moetoken_isa_detected(void)
{
    return detect();
}

const char *moetoken_isa_name(uint32_t isa)
{
    switch (isa) {
    case MOETOKEN_ISA_SCALAR:
        return "scalar";
    case MOETOKEN_ISA_AVX2:
        return "avx2";
    case MOETOKEN_ISA_AVX512:
        return "avx512";
    case MOETOKEN_ISA_NEON:
        return "neon";
    default:
        return "unknown";
    }
}

void moetoken_row_kernels_select(uint32_t isa_mask, struct moetoken_row_kernels *kernels)
{
    uint32_t isa = usable() & (isa_mask ? isa_mask : UINT32_MAX);
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
