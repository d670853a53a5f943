/* main.c - moetoken-mpi-bench: options. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: mpiexec -n RANKS moetoken-mpi-bench [OPTION...]\n"
    "       moetoken-mpi-bench --cost [OPTION...]\n"
    "\n"
    "Times libmoetoken-mpi's dispatch, combine and their gradients over the ranks, beside the "
    "same\n"
    "rows by MPI_Alltoallv alone, the local work alone, and all tokens to all ranks. Times are "
    "the\n"
    "slowest rank's, the least of all rounds.\n"
    "\n"
    "  --model NAME    the shape of a model's layer (deepseek-v3); --model list names them\n"
    "  --tokens N      tokens of a rank (256; with --cost 4096)\n"
    "  --type TYPE     bf16, f16 or f32 (bf16)\n"
    "  --repeats N     rounds (10)\n"
    "  --json          one line of JSON\n"
    "  --cost          instead: rows and bytes that a rank sends, for 2 to 4096 ranks, by "
    "counting\n"
    "                  a simulated routing; all models, or --model's\n"
    "  --help          this text\n";

static int64_t whole(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    return *end || value <= 0 || value > 100000000 ? -1 : value;
}

/* The number of arguments taken; 0: not understood. */
static int take(struct bench_options *options, const char *name, const char *value)
{
    if (strcmp(name, "--json") == 0)
        return options->json = true;
    if (strcmp(name, "--cost") == 0)
        return options->cost = true;
    if (!value)
        return 0;
    if (strcmp(name, "--model") == 0)
        return (options->shape = find_model_shape(value)) ? 2 : 0;
    if (strcmp(name, "--tokens") == 0)
        return (options->tokens = whole(value)) > 0 ? 2 : 0;
    if (strcmp(name, "--repeats") == 0)
        return (options->repeats = (int)whole(value)) > 0 ? 2 : 0;
    if (strcmp(name, "--type") != 0)
        return 0;
    options->type = strcmp(value, "f32") == 0   ? MOETOKEN_F32
                    : strcmp(value, "f16") == 0 ? MOETOKEN_F16
                                                : MOETOKEN_BF16;
    return options->type != MOETOKEN_BF16 || strcmp(value, "bf16") == 0 ? 2 : 0;
}

/* -1: go on; else the exit status. */
static int parse(struct bench_options *options, int argc, char **argv)
{
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc && strcmp(argv[i + 1], "list") == 0) {
            print_model_shapes();
            return 0;
        }
        int taken = take(options, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (!taken) {
            fprintf(stderr,
                    "moetoken-mpi-bench: '%s' is unknown, or its value is missing or "
                    "wrong; --help\n",
                    argv[i]);
            return 2;
        }
        i += taken;
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct bench_options options = {.repeats = 10, .type = MOETOKEN_BF16};
    int status = parse(&options, argc, argv);
    if (status >= 0)
        return status;
    if (options.cost) {
        if (!options.tokens)
            options.tokens = 4096;
        bench_print_cost(&options);
        return 0;
    }
    if (!options.tokens)
        options.tokens = 256;
    if (!options.shape)
        options.shape = find_model_shape("deepseek-v3");
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    status = bench_run(&options);
    MPI_Finalize();
    return status;
}
