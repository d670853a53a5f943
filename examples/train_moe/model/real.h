/* real.h - the model's number type, and its memory.
 *
 * Every file of the model is compiled twice: with float to train, and with double
 * (TRAIN_MOE_FLOAT64) to compare the whole model's gradient with finite differences. */
#ifndef TRAIN_MOE_REAL_H
#define TRAIN_MOE_REAL_H

#include <moetoken/moetoken.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef TRAIN_MOE_FLOAT64
typedef double real;
#define REAL_TYPE MOETOKEN_F64
#else
typedef float real;
#define REAL_TYPE MOETOKEN_F32
#endif

/* Zeroed memory for the whole run. An example may end the program where a library may not. */
static inline void *allocate(int64_t count, size_t size)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) {
        fprintf(stderr, "train_moe: no memory for %lld elements of %zu bytes\n", (long long)count,
                size);
        exit(1);
    }
    return memory;
}

#endif
