/* float_mode.c - MXCSR and FPCR: rounding, flush-to-zero, denormals-are-zero. */
#include "threads/float_mode.h"

#if defined(MOETOKEN_GENERIC_FLOAT_MODE) || !(defined(__x86_64__) || defined(__aarch64__))

/* All that ISO C can say: to nearest, no traps, and everything back as it was. */
void moetoken_float_mode_enter(moetoken_float_mode *saved)
{
    feholdexcept(saved);
    fesetround(FE_TONEAREST);
}

void moetoken_float_mode_leave(const moetoken_float_mode *saved)
{
    fesetenv(saved);
}

#elif defined(__x86_64__)

#include <xmmintrin.h>

void moetoken_float_mode_enter(moetoken_float_mode *saved)
{
    *saved = _mm_getcsr();
    _mm_setcsr(0x1f80); /* all exceptions masked, to nearest, no FTZ, no DAZ */
}

void moetoken_float_mode_leave(const moetoken_float_mode *saved)
{
    _mm_setcsr((unsigned)*saved);
}

#else

/* FPCR 0: to nearest, no flush-to-zero, NaNs propagate, no traps. FPSR holds the exception flags.
 * Both have 32 bits that mean something. */
void moetoken_float_mode_enter(moetoken_float_mode *saved)
{
    uint64_t mode, flags;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr"
                     : "=&r"(mode), "=&r"(flags)
                     :
                     : "memory");
    *saved = mode | flags << 32;
}

void moetoken_float_mode_leave(const moetoken_float_mode *saved)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(*saved & UINT32_MAX), "r"(*saved >> 32)
                     : "memory");
}

#endif
