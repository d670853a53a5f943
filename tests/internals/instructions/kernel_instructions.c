/* kernel_instructions.c - calls every kernel once under callgrind and names the count of each.
 *
 * Run by instructions.sh: kernels of an instruction set -> one callgrind dump a kernel, whose
 * trigger is the kernel's name. Four slots, rows of 1024 elements, no tails: the loops that
 * matter. */
#include "rows/formats.h"
#include "rows/rows.h"

#include <moetoken/moetoken.h>
#include <stdio.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

#define LENGTH 1024
#define COUNT  4

static _Alignas(64) char token[LENGTH * 8], in[COUNT][LENGTH * 8], out[COUNT][LENGTH * 8];

static void fill(char *row, int type)
{
    for (int h = 0; h < LENGTH; h++)
        element_store(type, row + (size_t)h * token_size(type), (h % 37 - 18) * 0.171875);
}

static void count_instructions(const struct moetoken_row_kernel_entry *entry,
                               moetoken_rows_fn *kernel)
{
    static const int64_t row[COUNT] = {2, 0, 3, 1};
    static const double weight[COUNT] = {0x1.921fb6p-1, 0x1.5bf0a8p-2, 0x1.6a09e6p-3,
                                         0x1.19799ap-4};
    const char *in_row[COUNT] = {in[2], in[0], in[3], in[1]};
    double dot[COUNT];
    int64_t size = (int64_t)entry->element_size;
    struct moetoken_rows rows = {.length = LENGTH,
                                 .count = COUNT,
                                 .row = row,
                                 .in_row = in_row,
                                 .weight = weight,
                                 .dot = dot,
                                 .token_in = token,
                                 .token_out = token,
                                 .token_stride = size,
                                 .in = in[0],
                                 .in_row_stride = sizeof in[0],
                                 .in_stride = size,
                                 .out = out[0],
                                 .out_row_stride = sizeof out[0],
                                 .out_stride = size};
    if (entry->type >= 0) {
        fill(token, entry->type);
        for (int s = 0; s < COUNT; s++)
            fill(in[s], entry->type);
    }
    kernel(&rows);
    CALLGRIND_ZERO_STATS;
    CALLGRIND_START_INSTRUMENTATION;
    kernel(&rows);
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS_AT(entry->name);
}

int main(int argc, char **argv)
{
    struct moetoken_row_kernels kernels;
    if (argc != 2) {
        fprintf(stderr, "usage: kernel_instructions ISA_MASK\n");
        return 2;
    }
    moetoken_row_kernels_select((uint32_t)strtoul(argv[1], NULL, 0), &kernels);
    printf("%s\n", moetoken_isa_name(kernels.isa));
    for (int k = 0; k < MOETOKEN_ROW_KERNEL_COUNT; k++)
        count_instructions(&moetoken_row_kernel_list[k],
                           moetoken_row_kernel_get(&kernels, &moetoken_row_kernel_list[k]));
    return 0;
}
