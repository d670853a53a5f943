/* isa.c - instruction sets: what the CPU has, and what MOETOKEN_ISA leaves of it. */
#include "rows/isa.h"

#include <moetoken/moetoken.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static uint32_t ask_cpu(void)
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

/* ---- the environment variable ---------------------------------------------------------------- */

#define VARIABLE "MOETOKEN_ISA"

/* What the first call that asked found; later changes of the environment have no effect. */
static struct {
    uint32_t detected; /* what the CPU has: asking it costs microseconds on a virtual machine */
    uint32_t usable;   /* of that, what the variable allows */
    bool understood;   /* the variable is unset, blank, or names an instruction set */
    char word[32];     /* its value, cut short, when it is not understood */
} known;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* True when `text` is `word` but for blanks around it and the case of letters. */
static bool is_word(const char *text, const char *word)
{
    text += strspn(text, " \t\n");
    size_t length = strlen(word);
    return strncasecmp(text, word, length) == 0 &&
           text[length + strspn(text + length, " \t\n")] == '\0';
}

/* An instruction set and those below it: what MOETOKEN_ISA allows when it names that one. */
static uint32_t up_to(uint32_t isa)
{
    return isa == MOETOKEN_ISA_NEON ? MOETOKEN_ISA_SCALAR | isa : isa | (isa - 1);
}

static void look(void)
{
    const char *text = getenv(VARIABLE);
    uint32_t allowed = text == NULL || is_word(text, "") ? MOETOKEN_ISA_ALL : 0;
    for (uint32_t isa = MOETOKEN_ISA_SCALAR; text && isa <= MOETOKEN_ISA_NEON; isa <<= 1)
        if (is_word(text, moetoken_isa_name(isa)))
            allowed = up_to(isa);
    known.detected = ask_cpu();
    known.usable = known.detected & allowed;
    known.understood = allowed != 0;
    if (!known.understood)
        snprintf(known.word, sizeof known.word, "%s", text);
}

uint32_t moetoken_isa_detected(void)
{
    pthread_once(&once, look);
    return known.detected;
}

const char *moetoken_isa_unknown_word(void)
{
    pthread_once(&once, look);
    return known.understood ? NULL : known.word;
}

uint32_t moetoken_isa_usable(uint32_t isa_mask)
{
    pthread_once(&once, look);
    return isa_mask & ~MOETOKEN_ISA_ALL ? 0 : known.usable & (isa_mask ? isa_mask : UINT32_MAX);
}
