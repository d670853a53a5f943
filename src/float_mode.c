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

/* FPCR 0: to nearest, no flush-to-zero, NaNs propagate, no traps. */
uint64_t moetoken_float_mode_enter(void)
{
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, xzr" : "=&r"(saved) : : "memory");
    return saved;
}

void moetoken_float_mode_leave(uint64_t saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
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
