/* options.h - one table of options per command: parsing, checks, `help COMMAND` and usage come from
 * it.
 *
 * First stop of every command: argv -> the command's settings struct, or a usage error. */
#ifndef MOETOKEN_CLI_OPTIONS_H
#define MOETOKEN_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    EXIT_DONE = 0,
    EXIT_INPUT = 1, /* the input is wrong */
    EXIT_USAGE = 2
};

enum option_kind {
    OPTION_FLAG,    /* bool: given or not */
    OPTION_SWITCH,  /* int: 1, or 0 with "=false"; what the settings held when not given */
    OPTION_TEXT,    /* const char * */
    OPTION_INTEGER, /* int64_t in [least, most] */
    OPTION_DECIMAL, /* double in [least, most] */
    OPTION_CHOICE   /* int: which of the words of `value`, split at '|' */
};

struct option_spec {
    const char *name;
    char letter; /* or 0 */
    enum option_kind kind;
    const char *value; /* the name of the value in help texts, or the choices */
    size_t offset;     /* where the value goes in the settings */
    int64_t least, most;
    const char *help;
};

/* What a command is: cmd_<name>.c defines one, main.c lists it. */
struct command {
    const char *name;
    const char *operands;    /* "CASE... -o OUT" */
    const char *summary;     /* one line for `moetoken help` */
    const char *description; /* paragraphs for `moetoken help COMMAND` */
    const struct option_spec *options;
    size_t options_count;
    int operands_least, operands_most;
    int (*run)(int argc, char **argv);
};

#define PARSED_RUN (-1)

/* Reads argv (argv[0] is the command's name) into settings, which hold the defaults. Afterwards
 * operands[0..*count) are the arguments that are no options (room for operands_most). PARSED_RUN to
 * go on, else the exit status: EXIT_DONE after --help, EXIT_USAGE after a message on stderr. */
int parse_options(const struct command *command, int argc, char **argv, void *settings,
                  const char **operands, int *count);

/* A usage error found later: "moetoken NAME: message", the usage line; returns EXIT_USAGE. */
int usage_error(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The number of `word` among the choices "a|b|c", or -1. */
int choice_number(const char *choices, const char *word);

void print_command_help(const struct command *command, FILE *stream);

#endif
