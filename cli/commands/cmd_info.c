/* cmd_info.c - `moetoken info`: version, what the CPU has, which kernels run and why. */
#include <moetoken/moetoken.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

struct info_settings {
    int isa; /* -1: not given */
    bool isa_list;
};

static const uint32_t levels[] = {MOETOKEN_ISA_SCALAR, MOETOKEN_ISA_AVX2, MOETOKEN_ISA_AVX512,
                                  MOETOKEN_ISA_NEON};
static const char *const needs[] = {"plain C, on every CPU", "AVX2, FMA, F16C",
                                    "AVX-512 F, BW, DQ, VL, on top of avx2", "Advanced SIMD"};
enum {
    LEVELS_COUNT = sizeof levels / sizeof levels[0]
};

static void print_levels(void)
{
    uint32_t detected = moetoken_isa_detected();
    for (int i = 0; i < LEVELS_COUNT; i++)
        printf("  %-8s %-4s %s\n", moetoken_isa_name(levels[i]),
               (detected & levels[i]) != 0 ? "yes" : "no", needs[i]);
}

/* For scripts: those that run here, one a line. */
static void print_isa_list(void)
{
    for (int i = 0; i < LEVELS_COUNT; i++)
        if ((moetoken_isa_detected() & levels[i]) != 0)
            printf("%s\n", moetoken_isa_name(levels[i]));
}

/* Why the chosen level is not the highest that the CPU has, or that it is. */
static void print_choice(int isa)
{
    static const uint32_t masks[] = {1, 3, 7, 9}; /* a level and all below it */
    const char *environment = getenv("MOETOKEN_ISA");
    uint32_t mask = isa < 0 ? 0 : masks[isa];
    uint32_t chosen = moetoken_isa_chosen(mask), best = moetoken_isa_chosen(0);
    if (chosen == 0) {
        printf("kernels    none: MOETOKEN_ISA=%s names no instruction set (scalar, avx2, avx512 or "
               "neon), every call fails\n",
               environment);
        return;
    }
    printf("kernels    %s: ", moetoken_isa_name(chosen));
    if (environment != NULL && *environment != '\0')
        printf("MOETOKEN_ISA=%s sets the upper bound", environment);
    else
        printf("%s is the highest that this CPU has and this build brings",
               moetoken_isa_name(best));
    if (isa >= 0)
        printf(", --isa %s allows no more", moetoken_isa_name(levels[isa]));
    printf("\n");
}

/* The bracketed word of a line such as "always [madvise] never". */
static void print_huge_pages(void)
{
    const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
    char line[128] = "";
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(line, sizeof line, file) == NULL)
            line[0] = '\0';
        fclose(file);
    }
    char *begin = strchr(line, '['), *end = begin == NULL ? NULL : strchr(begin, ']');
    if (end == NULL) {
        printf("huge pages unknown (%s cannot be read)\n", path);
        return;
    }
    *end = '\0';
    printf("huge pages %s", begin + 1);
    if (strcmp(begin + 1, "never") == 0)
        printf(": off; large buffers are faster with 'echo madvise > %s'", path);
    else if (strcmp(begin + 1, "madvise") == 0)
        printf(": buffers get them that ask with madvise(MADV_HUGEPAGE)");
    else
        printf(": large buffers get them by themselves");
    printf("\n");
}

/* What may decide the number of threads besides the processors. */
static const char *thread_variables(void)
{
    if (getenv("OMP_THREAD_LIMIT") != NULL)
        return "; OMP_THREAD_LIMIT is set";
    return getenv("OMP_NUM_THREADS") != NULL ? "; OMP_NUM_THREADS is set" : "";
}

static int run(int argc, char **argv)
{
    struct info_settings settings = {.isa = -1};
    int count;
    int status = parse_options(&command_info, argc, argv, &settings, NULL, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.isa_list) {
        print_isa_list();
        return EXIT_DONE;
    }
    printf("moetoken   %s\n", moetoken_version());
    printf("this CPU\n");
    print_levels();
    print_choice(settings.isa);
    printf("threads    %d (of %d processors%s), none for calls below %d bytes\n",
           moetoken_threads_chosen(0), omp_get_num_procs(), thread_variables(),
           MOETOKEN_SERIAL_BYTES);
    print_huge_pages();
    return EXIT_DONE;
}

static const struct option_spec options[] = {
    {.name = "isa",
     .kind = OPTION_CHOICE,
     .value = "scalar|avx2|avx512|neon",
     .offset = offsetof(struct info_settings, isa),
     .help = "the choice under this option of the operators"},
    {.name = "isa-list",
     .kind = OPTION_FLAG,
     .offset = offsetof(struct info_settings, isa_list),
     .help = "only the instruction sets of this CPU, one a line"},
};

const struct command command_info = {
    .name = "info",
    .operands = "",
    .summary = "version, CPU features, the kernels that run and why, threads",
    .description =
        "Prints the version of the library, the instruction sets that this CPU has, the kernels\n"
        "that run and why, the threads, and whether huge pages are on.\n"
        "\n"
        "The environment variable MOETOKEN_ISA (scalar, avx2, avx512, neon) sets an upper bound.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .run = run,
};
