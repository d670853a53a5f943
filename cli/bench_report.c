/* bench_report.c - see bench_report.h. */
#include "bench_report.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "number_formats.h"

/* The number of tokens whose cases make up the summary figure. */
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
    printf("%-20s %6s %-4s %-5s %-8s %3s %10s %6s  %-18s %10s  %s\n", "case", "tokens", "type",
           "probs", "mode", "thr", "warm", "GB/s", "percent [spread]", "cold", "percent [spread]");
}

void bench_report_begin(struct bench_report *report, bool json, const moetoken_options *options)
{
    *report = (struct bench_report){.json = json};
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

static void print_row(const struct bench_case *bench, const char *name,
                      const struct measures *measures)
{
    static const char *const types[] = {"f32", "f16", "bf16", "f64"};
    const struct measure *warm = &measures->warm, *cold = &measures->cold;
    char warm_text[16], cold_text[16];
    double bytes = (double)traffic_bytes(&bench->traffic);
    printf("%-20s %6" PRId64 " %-4s %-5s %-8s %3d %10s %6.2f  %5.1f [%5.1f %5.1f] %10s  "
           "%5.1f [%5.1f %5.1f]\n",
           name, bench->tokens, types[bench->token_type], bench->probs ? "yes" : "no",
           bench->drop_and_pad ? "padded" : "dropless", measures->threads,
           time_text(warm_text, warm->seconds.median), bytes / warm->seconds.median * 1e-9,
           warm->percent.median, warm->percent.least, warm->percent.most,
           time_text(cold_text, cold->seconds.median), cold->percent.median, cold->percent.least,
           cold->percent.most);
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
}

static void print_json_case(const struct bench_report *report, const struct bench_case *bench,
                            const char *name, bool huge_pages, const struct measures *measures)
{
    printf("%s\n  {\"name\": ", report->count == 0 ? "" : ",");
    print_json_text(name);
    printf(", \"operator\": \"%s\", \"tokens\": %" PRId64 ", \"hidden\": %" PRId64
           ", \"rows\": %" PRId64 ", \"dtype\": \"%s\", \"probs\": %s, \"drop_and_pad\": %s",
           operator_outputs[bench->operator_kind].name, bench->tokens, bench->hidden, bench->rows,
           type_name(bench->token_type), text_of_bool(bench->probs),
           text_of_bool(bench->drop_and_pad));
    printf(", \"threads\": %d, \"isa\": \"%s\", \"huge_pages\": %s, \"bytes\": %zu",
           measures->threads, moetoken_isa_name(moetoken_isa_chosen(bench->options.isa_mask)),
           text_of_bool(huge_pages), traffic_bytes(&bench->traffic));
    print_json_measure("", &measures->cold);
    print_json_measure("_warm", &measures->warm);
    printf("}");
}

void bench_report_case(struct bench_report *report, const struct bench_case *bench,
                       const char *name, bool huge_pages, const struct measures *measures)
{
    if (report->json)
        print_json_case(report, bench, name, huge_pages, measures);
    else
        print_row(bench, name, measures);
    fflush(stdout);
    report->count++;
    if (!report->scaling && bench->tokens == MEAN_TOKENS) {
        report->log_sum += log(measures->cold.percent.median);
        report->log_count++;
    }
}

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

void bench_report_end(struct bench_report *report)
{
    double mean = report->log_count == 0 ? 0 : exp(report->log_sum / report->log_count);
    if (report->json && report->log_count == 0)
        printf("\n], \"geomean_percent\": null}\n");
    else if (report->json)
        printf("\n], \"geomean_percent\": %.2f}\n", mean);
    else if (report->log_count > 0)
        printf("\ngeometric mean of %d cases of %d tokens: %.1f %% of the ceiling\n",
               report->log_count, MEAN_TOKENS, mean);
}
