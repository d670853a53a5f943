/* float_mode.c - MXCSR and FPCR: rounding, flush-to-zero, denormals-are-zero. */
#include "float_mode.h"

#if defined(__x86_64__)

#include <xmmintrin.h>

uint64_t moetoken_float_mode_enter(void)
{
    uint64_t saved = _mm_getcsr();
    _mm_setcsr(0x1f80); /* all exceptions masked, to nearest, no FTZ, no DAZ */
    return saved;
}

void moetoken_float_mode_leave(uint64_t saved)
{
    _mm_setcsr((unsigned)saved);
}

#elif defined(__aarch64__)

/* FPCR 0: to nearest, no flush-to-zero, NaNs propagate, no traps. FPSR holds the exception flags.
 * Both have 32 bits that mean something. */
uint64_t moetoken_float_mode_enter(void)
{
    uint64_t mode, flags;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr"
                     : "=&r"(mode), "=&r"(flags)
                     :
                     : "memory");
    return mode | flags << 32;
}

void moetoken_float_mode_leave(uint64_t saved)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(saved & UINT32_MAX), "r"(saved >> 32)
                     : "memory");
}

#else

#include <fenv.h>

uint64_t moetoken_float_mode_enter(void)
{
    int saved = fegetround();
    fesetround(FE_TONEAREST);
    return (uint64_t)saved;
}

void moetoken_float_mode_leave(uint64_t saved)
{
    fesetround((int)saved);
}

#endif
