/* commands.h - the commands of the tool. A new one is a line here and a line in main.c. */
#ifndef MOETOKEN_CLI_COMMANDS_H
#define MOETOKEN_CLI_COMMANDS_H

#include "terminal/options.h"

extern const struct command command_unpermute_grad;
extern const struct command command_unpermute;
extern const struct command command_permute;
extern const struct command command_permute_grad;
extern const struct command command_router;
extern const struct command command_router_grad;
extern const struct command command_generate;
extern const struct command command_verify;
extern const struct command command_compare;
extern const struct command command_gradcheck;
extern const struct command command_info;
extern const struct command command_bench;
extern const struct command command_limits;
extern const struct command command_inspect;
extern const struct command command_conform;

#endif
