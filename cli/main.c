/* main.c - the tool `moetoken`: finds the command that argv[1] names and runs it.
 * The list of commands below feeds dispatch and `moetoken help`. */
#include <moetoken/moetoken.h>
#include <stdio.h>
#include <string.h>

#include "commands/commands.h"
#include "io/tensor_file.h"

static const struct command *const commands[] = {
    &command_unpermute_grad, &command_unpermute,   &command_permute,   &command_permute_grad,
    &command_router,         &command_router_grad, &command_generate,  &command_verify,
    &command_compare,        &command_conform,     &command_gradcheck, &command_bench,
    &command_limits,         &command_inspect,     &command_info,
};
enum {
    COMMANDS_COUNT = sizeof commands / sizeof commands[0]
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static void print_overview(FILE *stream)
{
    fprintf(stream, "usage: moetoken COMMAND [options] [arguments]\n\n"
                    "Mixture-of-experts token permute and unpermute, forward and backward.\n\n");
    for (size_t i = 0; i < COMMANDS_COUNT; i++)
        fprintf(stream, "  %-16s%s\n", commands[i]->name, commands[i]->summary);
    fprintf(stream, "  %-16s%s\n", "help COMMAND", "what a command does and its options");
    fprintf(stream, "  %-16s%s\n\n", "--version", "the version of the library");
    fprintf(stream,
            "Files are safetensors or NumPy's .npz, or, to be read only, .npy and PyTorch's\n"
            ".pt; tensors have the names of the operators' arguments. Exit status: 0 done,\n"
            "1 the input is wrong, 2 usage.\n");
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "moetoken: unknown command %s\nTry 'moetoken help'.\n", name);
    return EXIT_USAGE;
}

static int run_help(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stdout);
        return EXIT_DONE;
    }
    const struct command *command = find_command(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    print_command_help(command, stdout);
    return EXIT_DONE;
}

static int dispatch(int argc, char **argv)
{
    if (strcmp(argv[1], "--version") == 0) {
        printf("moetoken %s\n", moetoken_version());
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0)
        return run_help(argc - 1, argv + 1);
    const struct command *command = find_command(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    tensor_writer_handle_signals();
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    int status = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "moetoken: standard output could not be written\n");
        return EXIT_INPUT;
    }
    return status;
}
