/* ranks_single.c - the one process of a program without MPI. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"

/* Under mpiexec every process would train the whole model, and write the same files. */
static void refuse_launchers(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *size = getenv(names[i]);
        if (!size || strtol(size, NULL, 10) < 2)
            continue;
        complain("this program knows no MPI, but is one of %s processes (%s); start train_moe_mpi",
                 size, names[i]);
        give_up();
    }
}

void ranks_open(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    refuse_launchers();
}

void ranks_close(void)
{
}

int ranks_count(void)
{
    return 1;
}

int ranks_rank(void)
{
    return 0;
}

struct share ranks_share(int64_t count)
{
    return (struct share){0, count};
}

void complain(const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "train_moe: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

bool ranks_agree(bool good)
{
    return good;
}

void give_up(void)
{
    exit(1);
}

void ranks_relay_receive(void *sum, int64_t bytes)
{
    (void)sum;
    (void)bytes;
}

void ranks_relay_pass(const void *sum, int64_t bytes)
{
    (void)sum;
    (void)bytes;
}

void ranks_relay_finish(void *sum, int64_t bytes)
{
    (void)sum;
    (void)bytes;
}

void ranks_add_counts(int64_t *counts, int64_t n)
{
    (void)counts;
    (void)n;
}

double ranks_largest(double value)
{
    return value;
}

bool ranks_same(uint64_t value)
{
    (void)value;
    return true;
}

void ranks_collect(const void *part, int64_t bytes,
                   void (*take)(void *context, const void *piece, int64_t count), void *context)
{
    take(context, part, bytes);
}
