/* float_build.h - refuses a build whose arithmetic cannot give the promised bits. */
#ifndef MOETOKEN_FLOAT_BUILD_H
#define MOETOKEN_FLOAT_BUILD_H

#include <float.h>

#if FLT_EVAL_METHOD != 0
#error                                                                                             \
    "float and double must be computed in their own precision (FLT_EVAL_METHOD 0): -msse2 -mfpmath=sse on 32-bit x86"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "-ffast-math and its parts change results: build without them"
#endif

#endif
