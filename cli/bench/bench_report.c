/* bench_report.c - see bench_report.h. */
#include "bench_report.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "values/number_formats.h"

/* The number of tokens whose cases make up the summary figures. */
#define MEAN_TOKENS 4096

static const char *text_of_bool(bool value)
{
    return value ? "true" : "false";
}

/* In double quotes; a file's name may hold anything. */
static void print_json_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

/* "12.3 ms", in the unit that fits. */
static const char *time_text(char text[16], double seconds)
{
    if (seconds < 1e-3)
        snprintf(text, 16, "%.2f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, 16, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, 16, "%.3f s", seconds);
    return text;
}

static void print_table_head(void)
{
    printf("%-20s %6s %-4s %-5s %-8s %3s %10s %6s  %-19s %10s  %-19s  %-13s %s\n", "case", "tokens",
           "type", "probs", "mode", "thr", "warm", "GB/s", "percent [spread]", "cold",
           "percent [spread]", "[draws]", "row copy");
}

void bench_report_begin(struct bench_report *report, bool json, bool details,
                        const moetoken_options *options)
{
    *report = (struct bench_report){.json = json, .details = details};
    const char *isa = moetoken_isa_name(moetoken_isa_chosen(options->isa_mask));
    if (json) {
        printf("{\"version\": \"%s\", \"isa\": \"%s\", \"processors\": %d, \"cases\": [",
               moetoken_version(), isa, omp_get_num_procs());
        return;
    }
    printf("moetoken %s, %s kernels, %d processors; percent of the ceiling: the best plain loop\n"
           "over the same bytes\n\n",
           moetoken_version(), isa, omp_get_num_procs());
    print_table_head();
}

/* ---- a case ---------------------------------------------------------------------------------- */

static const char *const short_types[] = {"f32", "f16", "bf16", "f64"};

static const char *mode_text(bool drop_and_pad)
{
    return drop_and_pad ? "padded" : "dropless";
}

static void print_row(const struct bench_result *result)
{
    const struct bench_case *bench = result->bench;
    const struct measure *warm = &result->measures.warm, *cold = &result->measures.cold;
    char warm_text[16], cold_text[16];
    double bytes = (double)traffic_bytes(&bench->traffic);
    printf("%-20s %6" PRId64 " %-4s %-5s %-8s %3d %10s %6.2f  %5.1f [%5.1f %5.1f] %10s  "
           "%5.1f [%5.1f %5.1f]  [%5.1f %5.1f] %8.1f\n",
           result->name, bench->tokens, short_types[bench->token_type], bench->probs ? "yes" : "no",
           bench->by_ids ? "by ids" : mode_text(bench->drop_and_pad), result->measures.threads,
           time_text(warm_text, warm->seconds.median), bytes / warm->seconds.median * 1e-9,
           warm->percent.median, warm->percent.least, warm->percent.most,
           time_text(cold_text, cold->seconds.median), cold->percent.median, cold->percent.least,
           cold->percent.most, cold->draws.least, cold->draws.most, cold->row_copy_percent.median);
}

/* Faster than the plain loop by more than noise: then that is no ceiling. */
static bool is_beaten(const struct measures *measures)
{
    return measures->warm.percent.median > PERCENT_BEATEN ||
           measures->cold.percent.median > PERCENT_BEATEN;
}

/* Memory, and what was verified, indented under the row. */
static void print_details(const struct bench_result *result)
{
    const struct bench_case *bench = result->bench;
    const struct first_call *first = &result->first;
    printf("    %" PRId64 " rows, %" PRId64
           " elements%s; tensors %.6g MB, beyond them a workspace of "
           "%.6g MB",
           bench->rows, bench->rows * bench->hidden, bench->in_place ? ", in place" : "",
           (double)bench->held_bytes * 1e-6, (double)bench->options.workspace_bytes * 1e-6);
    if (first->grown_bytes >= 0)
        printf(" and what the process grew in the call: %.6g MB",
               (double)first->grown_bytes * 1e-6);
    printf("\n");
    if (first->rows > 0)
        printf("    verified %" PRId64 " rows of %" PRId64 ", %" PRId64
               " elements, worst error %.4g ulp: all right\n",
               first->rows, bench->rows, first->elements, first->worst_ulp);
}

/* permute by expert ids: how much of it is the sorting. */
static void print_routing(const struct bench_report *report, const struct bench_result *result)
{
    const struct spread *routing = &result->measures.routing;
    char median[16], least[16], most[16];
    if (!bench_case_has_routing(result->bench))
        return;
    if (report->json)
        printf(", \"routing_seconds\": %.9g", routing->median);
    else
        printf("    the routing alone: %s [%s %s]\n", time_text(median, routing->median),
               time_text(least, routing->least), time_text(most, routing->most));
}

static void print_json_measure(const char *suffix, const struct measure *measure)
{
    static const char *const stores[] = {"cached", "streaming"};
    printf(", \"seconds%s\": %.9g, \"ceiling_seconds%s\": %.9g, \"percent%s\": %.2f, "
           "\"percent_least%s\": %.2f, \"percent_most%s\": %.2f, \"ceiling_stores%s\": \"%s\", "
           "\"ceiling_threads%s\": %d",
           suffix, measure->seconds.median, suffix, measure->ceiling_seconds.median, suffix,
           measure->percent.median, suffix, measure->percent.least, suffix, measure->percent.most,
           suffix, stores[measure->ceiling_stores], suffix, measure->ceiling_threads);
    printf(", \"percent_least_draw%s\": %.2f, \"percent_most_draw%s\": %.2f, "
           "\"row_copy_seconds%s\": %.9g, \"percent_of_row_copy%s\": %.2f",
           suffix, measure->draws.least, suffix, measure->draws.most, suffix,
           measure->row_copy_seconds.median, suffix, measure->row_copy_percent.median);
}

static void print_json_memory(const struct bench_case *bench, const struct first_call *first)
{
    printf(", \"tensor_bytes\": %zu, \"workspace_bytes\": %zu, \"grown_bytes\": ",
           bench->held_bytes, bench->options.workspace_bytes);
    if (first->grown_bytes >= 0)
        printf("%" PRId64, first->grown_bytes);
    else
        printf("null");
    printf(", \"verified_rows\": %" PRId64 ", \"verified_elements\": %" PRId64, first->rows,
           first->elements);
}

static void print_json_case(const struct bench_report *report, const struct bench_result *result)
{
    const struct bench_case *bench = result->bench;
    printf("%s\n  {\"name\": ", report->count == 0 ? "" : ",");
    print_json_text(result->name);
    printf(", \"operator\": \"%s\", \"tokens\": %" PRId64 ", \"hidden\": %" PRId64
           ", \"rows\": %" PRId64 ", \"dtype\": \"%s\", \"probs\": %s, \"drop_and_pad\": %s",
           operator_outputs[bench->operator_kind].name, bench->tokens, bench->hidden, bench->rows,
           type_name(bench->token_type), text_of_bool(bench->probs),
           text_of_bool(bench->drop_and_pad));
    printf(", \"by_ids\": %s, \"in_place\": %s, \"threads\": %d, \"isa\": \"%s\", \"huge_pages\": "
           "%s, \"bytes\": %zu",
           text_of_bool(bench->by_ids), text_of_bool(bench->in_place), result->measures.threads,
           moetoken_isa_name(moetoken_isa_chosen(bench->options.isa_mask)),
           text_of_bool(result->huge_pages), traffic_bytes(&bench->traffic));
    print_json_measure("", &result->measures.cold);
    print_json_measure("_warm", &result->measures.warm);
    printf(", \"draws\": %d, \"ceiling_beaten\": %s", result->measures.draws,
           text_of_bool(is_beaten(&result->measures)));
    print_json_memory(bench, &result->first);
}

/* How much faster than with one thread: the operator, and beside it the plain loop. */
static void print_speedup(struct bench_report *report, const struct measures *measures)
{
    if (measures->threads == 1)
        report->one_thread = measures->cold;
    double speedup = report->one_thread.seconds.median / measures->cold.seconds.median;
    double ceiling =
        report->one_thread.ceiling_seconds.median / measures->cold.ceiling_seconds.median;
    if (report->json)
        printf(", \"speedup\": %.3f, \"ceiling_speedup\": %.3f", speedup, ceiling);
    else if (measures->threads > 1)
        printf("    %d threads: %.2f times as fast as one; the ceiling: %.2f times\n",
               measures->threads, speedup, ceiling);
}

static void add_percent(struct percent_group *group, const struct measure *measure,
                        const char *name)
{
    if (group->count == 0 || measure->percent.median < group->least) {
        group->least = measure->percent.median;
        snprintf(group->least_name, sizeof group->least_name, "%s", name);
    }
    group->log_sum += log(measure->percent.median);
    group->row_copy_log_sum += log(measure->row_copy_percent.median);
    group->count++;
}

static void count_case(struct bench_report *report, const struct bench_result *result)
{
    const struct bench_case *bench = result->bench;
    const struct measure *cold = &result->measures.cold;
    if (report->scaling || bench->tokens != MEAN_TOKENS)
        return;
    add_percent(&report->all, cold, result->name);
    add_percent(&report->groups[bench->token_type][bench->probs][bench->drop_and_pad], cold,
                result->name);
}

void bench_report_case(struct bench_report *report, const struct bench_result *result)
{
    if (report->json)
        print_json_case(report, result);
    else
        print_row(result);
    if (report->scaling)
        print_speedup(report, &result->measures);
    print_routing(report, result);
    if (report->json)
        printf("}");
    else if (is_beaten(&result->measures))
        printf("    more than %d %% of the plain loop: something is wrong with the ruler here; "
               "please report it\n",
               PERCENT_BEATEN);
    if (!report->json && report->details)
        print_details(result);
    fflush(stdout);
    report->count++;
    count_case(report, result);
}

/* ---- the end --------------------------------------------------------------------------------- */

void bench_report_scaling(struct bench_report *report)
{
    report->scaling = true;
    report->count = 0;
    if (report->json) {
        printf("\n], \"scaling\": [");
        return;
    }
    printf("\nmore threads\n");
    print_table_head();
}

static double mean_of(double log_sum, int count)
{
    return exp(log_sum / count);
}

static void print_group(const struct bench_report *report, moetoken_type type, bool probs,
                        bool drop_and_pad, bool first)
{
    const struct percent_group *group = &report->groups[type][probs][drop_and_pad];
    if (!report->json) {
        printf("%-4s %-5s %-8s %5d %8.1f %8.1f %8.1f  %s\n", short_types[type],
               probs ? "yes" : "no", mode_text(drop_and_pad), group->count,
               mean_of(group->row_copy_log_sum, group->count),
               mean_of(group->log_sum, group->count), group->least, group->least_name);
        return;
    }
    printf("%s\n  {\"dtype\": \"%s\", \"probs\": %s, \"drop_and_pad\": %s, \"tokens\": %d, "
           "\"cases\": %d, \"geomean_percent_of_row_copy\": %.2f, \"geomean_percent\": %.2f, "
           "\"least_percent\": %.2f, \"least_name\": ",
           first ? "" : ",", type_name(type), text_of_bool(probs), text_of_bool(drop_and_pad),
           MEAN_TOKENS, group->count, mean_of(group->row_copy_log_sum, group->count),
           mean_of(group->log_sum, group->count), group->least);
    print_json_text(group->least_name);
    printf("}");
}

static void print_groups(const struct bench_report *report)
{
    static const moetoken_type order[] = {MOETOKEN_BF16, MOETOKEN_F16, MOETOKEN_F32, MOETOKEN_F64};
    bool first = true;
    for (int i = 0; i < 4 * 2 * 2; i++) {
        moetoken_type type = order[i / 4];
        bool probs = i / 2 % 2 == 0, drop_and_pad = i % 2 != 0;
        if (report->groups[type][probs][drop_and_pad].count == 0)
            continue;
        print_group(report, type, probs, drop_and_pad, first);
        first = false;
    }
}

static void end_json(const struct bench_report *report)
{
    printf("\n], \"groups\": [");
    print_groups(report);
    printf("\n], \"geomean_percent\": ");
    if (report->all.count == 0)
        printf("null}\n");
    else
        printf("%.2f}\n", mean_of(report->all.log_sum, report->all.count));
}

void bench_report_end(struct bench_report *report)
{
    if (report->json) {
        end_json(report);
        return;
    }
    if (report->all.count == 0)
        return;
    printf(
        "\ngeometric means of the percent at %d tokens, cold\n%-4s %-5s %-8s %5s %8s %8s %8s  %s\n",
        MEAN_TOKENS, "type", "probs", "mode", "cases", "row copy", "ceiling", "least", "of");
    print_groups(report);
    printf("\ngeometric mean of %d cases of %d tokens: %.1f %% of the ceiling\n", report->all.count,
           MEAN_TOKENS, mean_of(report->all.log_sum, report->all.count));
}
