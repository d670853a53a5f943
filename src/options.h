/* options.h - the checks of moetoken_options. */
#ifndef MOETOKEN_OPTIONS_H
#define MOETOKEN_OPTIONS_H

#include <moetoken/moetoken.h>

/* MOETOKEN_ERR_OPTION for options that are unknown, contradict each other, or that the operator
 * does not take, and for a word in MOETOKEN_ISA that names no instruction set. NULL options are the
 * default ones, which *checked then holds. */
moetoken_status moetoken_options_check(const moetoken_options *options, uint32_t flags_taken,
                                       moetoken_options *checked);

#endif
