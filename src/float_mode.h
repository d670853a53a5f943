/* float_mode.h - the floating-point mode that results are defined in: round to nearest even,
 * subnormals kept. A caller's thread may have another one; each thread of a call works between
 * enter and leave. */
#ifndef MOETOKEN_FLOAT_MODE_H
#define MOETOKEN_FLOAT_MODE_H

#include <stdint.h>

/* Switches the calling thread to the defined mode; returns what leave needs to undo it. */
uint64_t moetoken_float_mode_enter(void);
/* Restores the thread's mode and its exception flags. */
void moetoken_float_mode_leave(uint64_t saved);

#endif
