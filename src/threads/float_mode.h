/* float_mode.h - the floating-point mode that results are defined in: round to nearest even,
 * subnormals kept. A caller's thread may have another one; each thread of a call works between
 * enter and leave. */
#ifndef MOETOKEN_FLOAT_MODE_H
#define MOETOKEN_FLOAT_MODE_H

#include "threads/float_build.h"

#include <stdint.h>

/* A test compiles the generic version where there is a better one. */
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(MOETOKEN_GENERIC_FLOAT_MODE)
typedef uint64_t moetoken_float_mode;
#else
#include <fenv.h>
typedef fenv_t moetoken_float_mode;
#endif

/* Switches the calling thread to the defined mode; *saved is what leave needs to undo it. */
void moetoken_float_mode_enter(moetoken_float_mode *saved);
/* Restores the thread's mode and its exception flags. */
void moetoken_float_mode_leave(const moetoken_float_mode *saved);

#endif
