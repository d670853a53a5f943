/* trial_judge.h - what a command wrote, beside what it should have: files -> finding. */
#ifndef MOETOKEN_CLI_CONFORM_TRIAL_JUDGE_H
#define MOETOKEN_CLI_CONFORM_TRIAL_JUDGE_H

#include "trial.h"

/* Writes the output file as it lies there before run number `run`: outputs of the right types and
 * shapes that hold what no result does, and each time something else. */
bool trial_write_blank(const struct trial *trial, const char *path, int run,
                       char error[TENSOR_FILE_ERROR_SIZE]);
/* Judges the outputs in the file. false: trial->finding says what is wrong. */
bool trial_judge(struct trial *trial, const char *path);
/* Whether two runs gave the same bits; false: trial->finding. */
bool trial_compare_runs(struct trial *trial, const char *first, const char *second);

#endif
