/* standards.c - the table of standards, and names -> standards. What each computes is in judge.c,
 * its limits for each type in judge_limits.c. */
#include "standards.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMERCIAL_SOURCE "CANN opbase, commercial_standard.md, 2026-04-09 (withdrawn 2026-04-22)"
#define COMMERCIAL(level, maximum, mean, limits)                                                   \
    {                                                                                              \
        .name = "commercial-" level "-2026-04", .rule = RULE_COMMERCIAL,                           \
        .needs_third_party = true, .maximum_ratio = (maximum), .mean_ratio = (mean),               \
        .rms_ratio = (mean), .source = COMMERCIAL_SOURCE,                                          \
        .explanation =                                                                             \
            "errors of ACTUAL at most " limits " times those of the third party\n"                 \
            "(largest and mean relative error where |golden| is not small, root mean\n"            \
            "square everywhere), and at most 2 errors in small values for each of the\n"           \
            "third party's. Integers exactly."                                                     \
    }

static const struct standard table[] = {
    COMMERCIAL("L0", 10, 2, "10, 2 and 2"),
    COMMERCIAL("L1", 5, 1.5, "5, 1.5 and 1.5"),
    COMMERCIAL("L2", 2, 1.2, "2, 1.2 and 1.2"),
    {.name = "ecosystem-2026-04",
     .rule = RULE_ECOSYSTEM_2026_04,
     .source = "CANN opbase, experimental_standard.md, 2026-04 (the English page to this day)",
     .explanation = "mean relative error below 2^-10 (float16), 2^-7 (bfloat16) or 2^-13\n"
                    "(float32), the largest below ten times that. Integers exactly."},
    {.name = "ecosystem-2026-07",
     .rule = RULE_ECOSYSTEM_2026_07,
     .source = "CANN opbase, experimental_standard.md, 2026-07-15, its limit as of 2026-09-23",
     .explanation = "|actual - golden| <= atol + rtol * |golden| for 99 % of the elements, with\n"
                    "atol and rtol 2^-9 (float16), 2^-6 (bfloat16), 2^-16 and 2^-10 (float32);\n"
                    "and everywhere at most 0.1, 1 or 0.01, or 32 ulp where that is more.\n"
                    "Integers exactly."},
    {.name = "atk-double",
     .rule = RULE_ATK_DOUBLE,
     .needs_third_party = true,
     .maximum_ratio = 10,
     .mean_ratio = 2,
     .rms_ratio = 2,
     .source = "the double benchmark of Ascend's ATK, as rewritten in DrivingSDK, 2025",
     .explanation = "errors of ACTUAL at most 10, 2 and 2 times those of the third party\n"
                    "(largest and mean relative error, root mean square), which count as at\n"
                    "least 2^-11 (float16), 2^-8 (bfloat16) or 2^-14; no bias beyond 2^-10,\n"
                    "2^-7 or 2^-14; at most 2 errors in small values for each of the third\n"
                    "party's. Integers exactly."},
    {.name = "msprobe",
     .rule = RULE_MSPROBE,
     .source = "msprobe compare, 2026-08-08",
     .explanation = "cosine at least 0.9, and 0.99 where an absolute error is above 0.001; no\n"
                    "absolute error above 1; relative error below 0.001 for 60 % of the\n"
                    "elements. The golden result is first rounded to the type of ACTUAL.\n"
                    "Integers exactly."},
    {.name = "bits",
     .rule = RULE_BITS,
     .source = "exact equality",
     .explanation = "the very bits of the golden result. Where the types differ: the bits of\n"
                    "the golden result rounded once to the type of ACTUAL, any NaN for a NaN."},
    {.name = "ulp:",
     .rule = RULE_ULP,
     .source = "units in the last place",
     .explanation = "ulp:N, |actual - golden| at most N units in the last place of the type of\n"
                    "ACTUAL at the golden value; N may have a fraction. Integers exactly."},
};
enum {
    TABLE_COUNT = sizeof table / sizeof table[0]
};

/* N of "ulp:N": digits, perhaps with a fraction; no sign, no exponent, no "inf". */
static bool parse_ulps(const char *text, size_t length, struct standard *standard)
{
    char number[16];
    size_t digits = 0, points = 0;
    if (length == 0 || length >= sizeof number)
        return false;
    for (size_t i = 0; i < length; i++) {
        digits += isdigit((unsigned char)text[i]) != 0;
        points += text[i] == '.';
        number[i] = text[i];
    }
    number[length] = '\0';
    if (digits == 0 || points > 1 || digits + points != length)
        return false;
    standard->ulps = strtod(number, NULL);
    snprintf(standard->name, sizeof standard->name, "ulp:%s", number);
    return true;
}

bool standard_find(const char *name, size_t length, struct standard *standard)
{
    for (int i = 0; i < TABLE_COUNT; i++) {
        size_t known = strlen(table[i].name);
        if (table[i].rule == RULE_ULP && length > known &&
            strncmp(name, table[i].name, known) == 0) {
            *standard = table[i];
            return parse_ulps(name + known, length - known, standard);
        }
        if (known == length && table[i].rule != RULE_ULP &&
            strncmp(name, table[i].name, length) == 0) {
            *standard = table[i];
            return true;
        }
    }
    return false;
}

bool standards_parse(const char *names, struct standard standards[STANDARDS_MOST], int *count,
                     char *error)
{
    *count = 0;
    for (;;) {
        size_t length = strcspn(names, ",");
        if (*count == STANDARDS_MOST) {
            snprintf(error, STANDARDS_ERROR_SIZE, "more than %d standards", STANDARDS_MOST);
            return false;
        }
        if (!standard_find(names, length, &standards[*count])) {
            snprintf(error, STANDARDS_ERROR_SIZE,
                     "'%.*s' is no standard; 'compare --standard list' names them",
                     (int)(length < 60 ? length : 60), names);
            return false;
        }
        ++*count;
        if (names[length] == '\0')
            return true;
        names += length + 1;
    }
}

static void print_indented(const char *lines)
{
    while (*lines != '\0') {
        size_t length = strcspn(lines, "\n");
        printf("    %.*s\n", (int)length, lines);
        lines += length + (lines[length] == '\n');
    }
}

void standards_print(void)
{
    for (int i = 0; i < TABLE_COUNT; i++) {
        printf("%s%s%s\n", table[i].name, table[i].rule == RULE_ULP ? "N" : "",
               table[i].needs_third_party ? " (needs --third-party)" : "");
        printf("    %s:\n", table[i].source);
        print_indented(table[i].explanation);
    }
}
