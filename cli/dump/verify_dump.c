/* verify_dump.c - the table of `verify DUMP`. The calls are found and recomputed in dump/. */
#include "verify_dump.h"

#include <stdio.h>
#include <string.h>

#include "cases/case_files.h"
#include "compare/judge_report.h"
#include "dump/dump_folder.h"
#include "dump/dump_recompute.h"
#include "terminal/options.h"

#define OTHERS_MOST 256 /* names of functions that are listed */

/* A function that is none of the family. */
struct other_function {
    char name[DUMP_NAME_SIZE];
    int calls;
};

struct dump_table {
    bool quiet;
    int calls, checked, failed, not_checked;
    char fault[1024]; /* the first */
    struct other_function others[OTHERS_MOST];
    int others_count, others_left_out;
};

/* ---- lines ----------------------------------------------------------------------------------- */

static const struct figure *failed_figure(const struct judgement *judgement)
{
    for (int i = 0; i < judgement->figures_count; i++)
        if (!judgement->figures[i].passed)
            return &judgement->figures[i];
    return NULL;
}

static void print_verdict(const struct judged *judged)
{
    const struct judgement *judgement = judged->judgement;
    const struct figure *figure = failed_figure(judgement);
    if (judgement->passed)
        printf("PASS\n");
    else if (figure == NULL)
        printf("FAIL: %s\n", judgement->problem);
    else
        printf("FAIL: %s %.7g, expected %s %.7g\n", figure->name, figure->value,
               figure_relation_sign(figure->relation), figure->limit);
}

/* "[2,3] (token 2, ...) = 1.5 (0x3fc0), golden 1.25 (...)" */
static void describe_worst(const struct judged *judged, char *text, size_t size)
{
    char index[ELEMENT_TEXT_SIZE], actual[ELEMENT_TEXT_SIZE], golden[ELEMENT_TEXT_SIZE];
    int64_t worst = judged->judgement->worst;
    describe_index(judged->comparison->actual, worst, index, sizeof index);
    describe_value(judged->comparison->actual, worst, actual, sizeof actual);
    describe_value(judged->comparison->golden, worst, golden, sizeof golden);
    snprintf(text, size, "%s%s%.250s%s = %s, golden %s", index,
             judged->where[0] != '\0' ? " (" : "", judged->where,
             judged->where[0] != '\0' ? ")" : "", actual, golden);
}

static void report_problem(struct dump_table *table, const struct dump_result *result)
{
    table->not_checked++;
    if (!table->quiet)
        printf("  %-52s %-9s %-22s NOT CHECKED: %s\n", result->call, result->which, result->name,
               result->problem);
    if (table->fault[0] == '\0')
        snprintf(table->fault, sizeof table->fault, "%.200s %s%s%s was not checked: %s",
                 result->call, result->which, result->name[0] != '\0' ? " " : "", result->name,
                 result->problem);
}

static void report_result(void *context, const struct dump_result *result)
{
    struct dump_table *table = context;
    const struct judged *judged = result->judged;
    char tensor[ELEMENT_TEXT_SIZE] = "", worst[768] = "";
    if (judged == NULL) {
        report_problem(table, result);
        return;
    }
    table->checked++;
    table->failed += !judged->judgement->passed;
    if (judged->comparison != NULL)
        describe_tensor(judged->comparison->actual, tensor, sizeof tensor);
    if (judged->comparison != NULL && judged->judgement->worst >= 0)
        describe_worst(judged, worst, sizeof worst);
    if (!table->quiet) {
        printf("  %-52s %-9s %-22s %-22s %-18s ", result->call, result->which, result->name, tensor,
               judged->standard->name);
        print_verdict(judged);
    }
    if (judged->judgement->passed)
        return;
    if (!table->quiet && worst[0] != '\0')
        printf("      worst %s\n", worst);
    if (table->fault[0] == '\0')
        snprintf(table->fault, sizeof table->fault, "%.200s %s %s%s%s fails by %s", result->call,
                 result->which, result->name, worst[0] != '\0' ? " " : "", worst,
                 judged->standard->name);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void count_other(struct dump_table *table, const char *name)
{
    for (int i = 0; i < table->others_count; i++)
        if (strcmp(table->others[i].name, name) == 0) {
            table->others[i].calls++;
            return;
        }
    if (table->others_count == OTHERS_MOST) {
        table->others_left_out++;
        return;
    }
    struct other_function *other = &table->others[table->others_count++];
    snprintf(other->name, sizeof other->name, "%s", name);
    other->calls = 1;
}

static void verify_calls(const struct dump *dump, const struct dump_judging *judging,
                         struct dump_table *table)
{
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, dump->data)
    {
        struct dump_call call;
        if (!dump_call_parse(entry, &call)) {
            count_other(table, "entries that are no calls, of modules for one");
        } else if (!dump_is_known(&call)) {
            count_other(table, call.function);
        } else {
            table->calls++;
            dump_recompute(dump, &call, judging);
        }
    }
}

static bool verify_folder(const char *folder, const struct dump_judging *judging,
                          struct dump_table *table)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct dump dump;
    bool good = dump_open(folder, &dump, error);
    if (good && !dump.has_tensors) {
        snprintf(error, sizeof error,
                 "%.400s: is a dump of statistics without tensors: nothing can be recomputed, "
                 "expected task 'tensor'",
                 folder);
        good = false;
    }
    if (!good) {
        report_error(error);
    } else {
        if (!table->quiet)
            printf("%s\n", folder);
        verify_calls(&dump, judging, table);
    }
    dump_close(&dump);
    return good;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void print_summary(const struct dump_table *table)
{
    if (table->others_count > 0)
        printf("other functions, which are not recomputed:\n");
    for (int i = 0; i < table->others_count; i++)
        printf("  %s: %d\n", table->others[i].name, table->others[i].calls);
    if (table->others_left_out > 0)
        printf("  and more: %d\n", table->others_left_out);
    printf("verify: %d calls, %d of %d results passed, %d not checked\n", table->calls,
           table->checked - table->failed, table->checked, table->not_checked);
}

int verify_dump(const char *path, const struct standard *standards, int count, bool quiet)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    static struct dump_table table;
    struct dump_folders folders;
    struct dump_judging judging = {standards, count, report_result, &table};
    table = (struct dump_table){.quiet = quiet};
    bool good = dump_folders_find(path, &folders, error);
    if (!good)
        report_error(error);
    for (int i = 0; good && !quiet && i < count; i++)
        printf("%s: %s\n", standards[i].name, standards[i].source);
    for (size_t i = 0; good && i < folders.count; i++)
        good = verify_folder(folders.paths[i], &judging, &table);
    dump_folders_free(&folders);
    if (!good)
        return EXIT_INPUT;
    if (!quiet)
        print_summary(&table);
    fflush(stdout);
    if (table.fault[0] != '\0')
        fprintf(stderr, "moetoken: %s: %s\n", path, table.fault);
    else if (table.checked == 0)
        fprintf(stderr, "moetoken: %s: holds no call of these operators\n", path);
    return table.checked > 0 && table.failed == 0 && table.not_checked == 0 ? EXIT_DONE
                                                                            : EXIT_INPUT;
}
