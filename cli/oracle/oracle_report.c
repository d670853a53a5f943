/* oracle_report.c - comparing one element: right or wrong, and how far off. */
#include "oracle_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "values/number_formats.h"

static void count_element(struct output_report *report, int64_t place, uint64_t got, double want,
                          bool right, double ulp)
{
    report->checked++;
    if (report->observe != NULL)
        report->observe(report->observe_context, report->output, place, got, want, right, ulp);
    if (ulp > report->worst_ulp)
        report->worst_ulp = ulp;
    if (right)
        return;
    if (report->wrong++ == 0 || place < report->first_wrong) {
        report->first_wrong = place;
        report->got = got;
        report->want = want;
    }
}

static int64_t integer_of(moetoken_type type, uint64_t bits)
{
    return type == MOETOKEN_I32 ? (int64_t)(int32_t)(uint32_t)bits : (int64_t)bits;
}

static double value_of(moetoken_type type, uint64_t bits)
{
    if (type_is_float(type))
        return bits_to_double(type, bits);
    return (double)integer_of(type, bits);
}

void report_bits(struct output_report *report, int64_t place, uint64_t got, uint64_t want)
{
    bool right = got == want;
    count_element(report, place, got, value_of(report->type, want), right, right ? 0 : INFINITY);
}

/* |got - want - rest| in units in the last place of the type at `want`. */
static double ulps_between(moetoken_type type, double got, double want, double rest)
{
    if (!isfinite(got) || !isfinite(want))
        return got == want || isnan(got) == isnan(want) ? 0 : INFINITY;
    return fabs((got - want) - rest) / unit_in_last_place(type, want);
}

void report_rounded(struct output_report *report, int64_t place, uint64_t got, double want)
{
    uint64_t bits = double_to_bits(report->type, want);
    double value = bits_to_double(report->type, got);
    bool right = got == bits || (isnan(want) && isnan(value));
    bool overflow = right && isinf(value);
    double ulp = overflow ? 0 : ulps_between(report->type, value, want, 0);
    count_element(report, place, got, want, right, right || ulp > 0.5 ? ulp : INFINITY);
}

void report_sum(struct output_report *report, int64_t place, uint64_t got,
                const struct accurate_sum *sum)
{
    double value = bits_to_double(report->type, got);
    bool right = accurate_sum_accepts(sum, report->type, got);
    bool special = sum->special != 0 || isinf(sum->magnitude) || isinf(value) || isnan(value);
    double ulp =
        special ? (right ? 0 : INFINITY) : ulps_between(report->type, value, sum->high, sum->low);
    double want = sum->special != 0 ? sum->special : sum->high + sum->low;
    if (sum->only_negative_zero)
        want = -0.0;
    count_element(report, place, got, want, right, ulp);
}

static int describe_place(const struct output_report *report, char *text, size_t size)
{
    int64_t columns = report->last_size;
    if (columns == 0)
        return snprintf(text, size, "%s[%" PRId64 "]", report->name, report->first_wrong);
    return snprintf(text, size, "%s[%" PRId64 ",%" PRId64 "]", report->name,
                    report->first_wrong / columns, report->first_wrong % columns);
}

void report_describe(const struct output_report *report, char *text, size_t size)
{
    size_t length = (size_t)describe_place(report, text, size);
    if (length >= size)
        return;
    text += length;
    size -= length;
    if (!type_is_float(report->type)) {
        snprintf(text, size, " = %" PRId64 ", expected %.17g",
                 integer_of(report->type, report->got), report->want);
        return;
    }
    int digits = (int)(2 * type_size(report->type));
    snprintf(text, size, " = %.9g (0x%0*" PRIx64 "), expected %.17g (0x%0*" PRIx64 " when rounded)",
             bits_to_double(report->type, report->got), digits, report->got, report->want, digits,
             double_to_bits(report->type, report->want));
}

void report_merge(struct output_report *whole, const struct output_report *part)
{
    whole->checked += part->checked;
    if (part->worst_ulp > whole->worst_ulp)
        whole->worst_ulp = part->worst_ulp;
    if (part->wrong > 0 && (whole->wrong == 0 || part->first_wrong < whole->first_wrong)) {
        whole->first_wrong = part->first_wrong;
        whole->got = part->got;
        whole->want = part->want;
    }
    whole->wrong += part->wrong;
}
