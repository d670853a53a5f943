/* real.h - the model's number type, its memory, and the end when the library refuses.
 *
 * Every file of the model is compiled twice: with float to train, and with double
 * (TRAIN_MOE_FLOAT64) to compare the whole model's gradient with finite differences. */
#ifndef TRAIN_MOE_REAL_H
#define TRAIN_MOE_REAL_H

#include <moetoken/moetoken.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ranks/ranks.h"

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
        complain("no memory for %lld elements of %zu bytes", (long long)count, size);
        give_up();
    }
    return memory;
}

static inline void must(moetoken_status status, const char *operation)
{
    if (status == MOETOKEN_OK)
        return;
    complain("%s: %s: %s", operation, moetoken_status_name(status), moetoken_last_error());
    give_up();
}

#endif
