/* conform_report.c - what a suite came to: a table by property, and the kinds of failure. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "conform.h"
#include "properties.h"

struct tally {
    int64_t cases, passed, failed, skipped;
};

static void count_result(struct tally *tally, const struct result *result)
{
    if (!result->tried)
        return;
    tally->cases++;
    tally->passed += result->finding.kind == FINDING_NONE;
    tally->skipped += result->finding.kind == FINDING_SKIPPED;
    tally->failed += result->finding.kind > FINDING_SKIPPED;
}

static struct tally tally_of(const struct conform *conform, int property)
{
    struct tally tally = {0};
    for (int64_t i = 0; i < conform->suite.cases; i++)
        if (property < 0 || (conform->results[i].properties >> property & 1) != 0)
            count_result(&tally, &conform->results[i]);
    return tally;
}

/* Whether no case without the property failed. */
static bool fails_only_there(const struct conform *conform, int property)
{
    struct tally here = tally_of(conform, property), all = tally_of(conform, -1);
    return here.failed == all.failed;
}

static void print_table(const struct conform *conform)
{
    struct tally all = tally_of(conform, -1);
    printf("%-44s %7s %7s %7s %7s\n", "where the case has", "cases", "passed", "failed", "skipped");
    for (int i = 0; property_name(i) != NULL; i++) {
        struct tally tally = tally_of(conform, i);
        const char *remark = "";
        if (tally.cases == 0)
            continue;
        if (tally.failed > 1 && tally.passed == 0 && all.passed > 0)
            remark =
                fails_only_there(conform, i) ? "  fails here and nowhere else" : "  fails here";
        else if (tally.failed > 1 && fails_only_there(conform, i) && all.passed > tally.passed)
            remark = "  fails nowhere else";
        printf("%-44s %7" PRId64 " %7" PRId64 " %7" PRId64 " %7" PRId64 "%s\n", property_name(i),
               tally.cases, tally.passed, tally.failed, tally.skipped, remark);
    }
    printf("%-44s %7" PRId64 " %7" PRId64 " %7" PRId64 " %7" PRId64 "\n\n", "in all", all.cases,
           all.passed, all.failed, all.skipped);
}

/* Whether the case failed in this way. */
static bool is_of_kind(const struct result *result, const struct failure_kind *kind)
{
    bool mode = (result->properties >> (int)kind->mode & 1) != 0;
    return result->tried && mode && result->finding.kind == kind->kind &&
           result->finding.output == kind->output;
}

/* The rarest property that all cases of the kind have, among those of its mode: "wherever" when all
 * cases that have it fail so. */
static void print_common(const struct conform *conform, const struct failure_kind *kind)
{
    int best = -1;
    int64_t best_cases = INT64_MAX, of_mode = 0;
    bool best_always = false;
    for (int64_t i = 0; i < conform->suite.cases; i++)
        of_mode += conform->results[i].properties >> (int)kind->mode & 1;
    for (int p = MODES_COUNT; property_name(p) != NULL; p++) {
        int64_t cases = 0, here = 0;
        for (int64_t i = 0; i < conform->suite.cases; i++) {
            const struct result *result = &conform->results[i];
            uint64_t both = UINT64_C(1) << p | UINT64_C(1) << (int)kind->mode;
            if ((result->properties & both) != both || result->finding.kind == FINDING_SKIPPED)
                continue;
            cases++;
            here += is_of_kind(result, kind);
        }
        if (here < kind->count || cases >= best_cases || cases == of_mode)
            continue;
        best = p;
        best_cases = cases;
        best_always = here == cases;
    }
    if (best >= 0 && kind->count > 1)
        printf("   %s the case has: %s (%" PRId64 " of %" PRId64 ")\n",
               best_always ? "wherever" : "only where", property_name(best), kind->count,
               best_cases);
}

static void print_kind(const struct conform *conform, int number)
{
    static const char *const modes[] = {"dropless", "padded", "by expert ids"};
    const struct failure_kind *kind = &conform->kinds[number];
    const char *output = kind->output < 0
                             ? ""
                             : operator_outputs[conform->suite.operator_kind].outputs[kind->output];
    printf("%d. %s%s%s, %s: %" PRId64 " case%s\n", number + 1, finding_kind_name(kind->kind),
           output[0] ? " of " : "", output, modes[kind->mode], kind->count,
           kind->count == 1 ? "" : "s");
    print_common(conform, kind);
    printf("   smallest: %s\n   %s\n   sh '%s/reproduce.sh'\n", kind->smallest_case,
           kind->finding.text, kind->folder);
}

void conform_print(const struct conform *conform, double seconds)
{
    struct tally all = tally_of(conform, -1);
    print_table(conform);
    for (int i = 0; i < conform->kinds_count; i++)
        print_kind(conform, i);
    if (conform->more_kinds > 0)
        printf("and %" PRId64 " cases that fail in other ways than these\n", conform->more_kinds);
    printf("conform %s: %s, %" PRId64 " of %" PRId64 " cases passed",
           operator_outputs[conform->suite.operator_kind].name,
           all.failed > 0                       ? "FAILED"
           : all.passed == 0 && all.skipped > 0 ? "NOTHING TRIED"
                                                : "passed",
           all.passed, all.cases);
    if (all.skipped > 0)
        printf(", %" PRId64 " skipped", all.skipped);
    printf(", by %s, seed %" PRIu64 ", %.3g s\n", conform->standard_name, conform->suite.seed,
           seconds);
}
