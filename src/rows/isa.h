/* isa.h - which instruction sets may be used. */
#ifndef MOETOKEN_ISA_H
#define MOETOKEN_ISA_H

#include <stdint.h>

#define MOETOKEN_ISA_ALL 15u /* every bit that has a meaning */

/* What the CPU has, MOETOKEN_ISA allows and the mask (0: all) holds. 0 for a mask with unknown bits
 * and while MOETOKEN_ISA is not understood; MOETOKEN_ISA_SCALAR missing otherwise means only that
 * the mask does not name it: scalar kernels are always there. */
uint32_t moetoken_isa_usable(uint32_t isa_mask);

/* The value of MOETOKEN_ISA when it names no instruction set; NULL when all is well. */
const char *moetoken_isa_unknown_word(void);

#endif
