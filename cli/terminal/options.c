/* options.c - one table of options per command: parsing, checks, `help COMMAND` and usage come from
 * it. First stop of every command. See options.h. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTIONS_MOST = 48,
    FIRST_LONG_VALUE = 1000 /* getopt's return value of table entry i is this plus i */
};

static void print_usage(const struct command *command, FILE *stream)
{
    fprintf(stream, "usage: moetoken %s %s%s\n", command->name,
            command->options_count > 0 ? "[options] " : "", command->operands);
}

static void print_option_help(const struct option_spec *option, FILE *stream)
{
    char left[64];
    char letter[5] = "";
    if (option->letter != 0)
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    const char *between = option->value == NULL ? "" : option->kind == OPTION_SWITCH ? "[=" : " ";
    snprintf(left, sizeof left, "%4s--%s%s%s%s", letter, option->name, between,
             option->value == NULL ? "" : option->value, option->kind == OPTION_SWITCH ? "]" : "");
    fprintf(stream, strlen(left) < 30 ? "  %-30s" : "  %s\n%32s", left, "");
    for (const char *text = option->help; *text != '\0';) {
        size_t length = strcspn(text, "\n");
        fprintf(stream, "%.*s\n", (int)length, text);
        text += length;
        if (*text == '\n')
            fprintf(stream, "%32s", "");
        text += *text == '\n';
    }
}

void print_command_help(const struct command *command, FILE *stream)
{
    print_usage(command, stream);
    fprintf(stream, "\n%s\n", command->description);
    if (command->options_count > 0)
        fprintf(stream, "\nOptions\n");
    for (size_t i = 0; i < command->options_count; i++)
        print_option_help(&command->options[i], stream);
    static const struct option_spec help = {
        .name = "help", .letter = 'h', .help = "print this text"};
    print_option_help(&help, stream);
}

int usage_error(const struct command *command, const char *format, ...)
{
    fprintf(stderr, "moetoken %s: ", command->name);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    print_usage(command, stderr);
    fprintf(stderr, "Try 'moetoken help %s'.\n", command->name);
    return EXIT_USAGE;
}

int choice_number(const char *choices, const char *word)
{
    size_t length = strlen(word);
    for (int number = 0;; number++) {
        size_t span = strcspn(choices, "|");
        if (span == length && strncmp(choices, word, span) == 0)
            return number;
        if (choices[span] == '\0')
            return -1;
        choices += span + 1;
    }
}

static bool store_integer(const struct option_spec *option, const char *text, int64_t *target)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0')
        return false;
    *target = value;
    return value >= option->least && value <= option->most;
}

static bool store_decimal(const struct option_spec *option, const char *text, double *target)
{
    char *end;
    *target = strtod(text, &end);
    return end != text && *end == '\0' && *target >= (double)option->least &&
           *target <= (double)option->most;
}

/* Puts one value where the option says; false when the text is no such value. */
static bool store_value(const struct option_spec *option, const char *text, void *settings)
{
    void *target = (char *)settings + option->offset;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)target = true;
        return true;
    case OPTION_SWITCH:
        *(int *)target = text == NULL ? 1 : 1 - choice_number("true|false", text);
        return text == NULL || choice_number("true|false", text) >= 0;
    case OPTION_TEXT:
        *(const char **)target = text;
        return true;
    case OPTION_INTEGER:
        return store_integer(option, text, target);
    case OPTION_DECIMAL:
        return store_decimal(option, text, target);
    case OPTION_CHOICE:
        *(int *)target = choice_number(option->value, text);
        return *(int *)target >= 0;
    }
    return false;
}

/* getopt's two tables for a command; letters needs room for 2 * OPTIONS_MOST + 4. */
static void fill_getopt_tables(const struct command *command, struct option *longs, char *letters)
{
    *letters++ = ':'; /* tells a missing value from an unknown option */
    *letters++ = 'h';
    for (size_t i = 0; i < command->options_count; i++) {
        const struct option_spec *spec = &command->options[i];
        int takes = spec->kind == OPTION_FLAG     ? no_argument
                    : spec->kind == OPTION_SWITCH ? optional_argument
                                                  : required_argument;
        longs[i] = (struct option){spec->name, takes, NULL, FIRST_LONG_VALUE + (int)i};
        if (spec->letter != 0) {
            *letters++ = spec->letter;
            if (takes == required_argument)
                *letters++ = ':';
        }
    }
    longs[command->options_count] = (struct option){"help", no_argument, NULL, 'h'};
    longs[command->options_count + 1] = (struct option){NULL, 0, NULL, 0};
    *letters = '\0';
}

static const struct option_spec *option_of(const struct command *command, int found)
{
    if (found >= FIRST_LONG_VALUE)
        return &command->options[found - FIRST_LONG_VALUE];
    for (size_t i = 0; i < command->options_count; i++)
        if (command->options[i].letter == found)
            return &command->options[i];
    return NULL;
}

static int bad_value(const struct command *command, const struct option_spec *option,
                     const char *text)
{
    if (option->kind == OPTION_INTEGER || option->kind == OPTION_DECIMAL)
        return usage_error(command, "--%s %s: expected a number from %lld to %lld", option->name,
                           text, (long long)option->least, (long long)option->most);
    return usage_error(command, "--%s %s: expected %s", option->name, text, option->value);
}

/* The letter that getopt stopped at; in a cluster such as -zq argv does not tell which it is. A
 * long option stands in argv as a whole, with "=value" where it has one. */
static int unknown_option(const struct command *command, const char *argument)
{
    if (optopt == 'h')
        return usage_error(command, "option --help takes no value");
    if (optopt > 0 && optopt < FIRST_LONG_VALUE)
        return usage_error(command, "unknown option -%c", optopt);
    if (optopt >= FIRST_LONG_VALUE)
        return usage_error(command, "option --%s takes no value",
                           command->options[optopt - FIRST_LONG_VALUE].name);
    return usage_error(command, "unknown option %s", argument);
}

static int missing_value(const struct command *command)
{
    if (optopt >= FIRST_LONG_VALUE)
        return usage_error(command, "option --%s needs a value",
                           command->options[optopt - FIRST_LONG_VALUE].name);
    return usage_error(command, "option -%c needs a value", optopt);
}

int parse_options(const struct command *command, int argc, char **argv, void *settings,
                  const char **operands, int *count)
{
    struct option longs[OPTIONS_MOST + 2];
    char letters[2 * OPTIONS_MOST + 4];
    fill_getopt_tables(command, longs, letters);
    optind = 1;
    opterr = 0;
    int found;
    while ((found = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        if (found == 'h') {
            print_command_help(command, stdout);
            return EXIT_DONE;
        }
        if (found == ':')
            return missing_value(command);
        const struct option_spec *option = option_of(command, found);
        if (option == NULL)
            return unknown_option(command, argv[optind - 1]);
        if (!store_value(option, optarg, settings))
            return bad_value(command, option, optarg);
    }
    *count = argc - optind;
    if (*count < command->operands_least)
        return usage_error(command, "an argument is missing");
    if (*count > command->operands_most)
        return usage_error(command, "too many arguments, from '%s' on",
                           argv[optind + command->operands_most]);
    for (int i = 0; i < *count; i++)
        operands[i] = argv[optind + i];
    return PARSED_RUN;
}
