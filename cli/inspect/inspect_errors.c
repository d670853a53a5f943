/* inspect_errors.c - every element that the oracle compares, added up: how many are how far off,
 * where, and the worst of them. */
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect.h"
#include "oracle/oracle_report.h"
#include "values/number_formats.h"

/* Bins of the histogram: 0, up to 1/2 (one rounding), up to 1, 2, 4, ..., beyond, and no number. */
enum {
    BINS = 26,
    BIN_BEYOND = BINS - 2,
    BIN_NO_NUMBER = BINS - 1,
    CELLS = INSPECT_ROWS_MOST * INSPECT_COLUMNS_MOST
};

struct worst_element {
    int64_t element;
    uint64_t got;
    double want, ulp;
    bool right;
};

/* One output, as far as one thread has seen it. */
struct errors {
    int64_t bins[BINS];
    int64_t wrong[CELLS];
    double ulp[CELLS]; /* the worst of the cell; -1: no element */
    struct worst_element worst[INSPECT_WORST_MOST];
    int worst_count;
};

struct error_job {
    const struct inspect_routing *routing;
    int64_t last_size[OUTPUTS_MOST];
    bool by_expert[OUTPUTS_MOST]; /* the map's columns are experts, else columns of the tensor */
    struct inspect_blocks lines, columns[OUTPUTS_MOST];
    struct errors *threads; /* [threads][OUTPUTS_MOST] */
};

static int bin_of(double ulp)
{
    if (!(ulp < INFINITY))
        return BIN_NO_NUMBER;
    if (ulp == 0)
        return 0;
    int bin = 1;
    for (double end = 0.5; bin < BIN_BEYOND && ulp > end; end *= 2)
        bin++;
    return bin;
}

static bool is_worse(const struct worst_element *a, const struct worst_element *b)
{
    if (a->right != b->right)
        return !a->right;
    return a->ulp != b->ulp ? a->ulp > b->ulp : a->element < b->element;
}

static void keep_worst(struct errors *errors, const struct worst_element *element)
{
    int at = errors->worst_count;
    if (at == INSPECT_WORST_MOST) {
        if (!is_worse(element, &errors->worst[at - 1]))
            return;
        at--;
    } else {
        errors->worst_count++;
    }
    for (; at > 0 && is_worse(element, &errors->worst[at - 1]); at--)
        errors->worst[at] = errors->worst[at - 1];
    errors->worst[at] = *element;
}

static void see_element(void *context, int output, int64_t element, uint64_t got, double want,
                        bool right, double ulp)
{
    const struct error_job *job = context;
    struct errors *errors = &job->threads[omp_get_thread_num() * OUTPUTS_MOST + output];
    struct inspect_place place =
        inspect_place_of(job->routing, output, element, job->last_size[output]);
    int64_t column = job->by_expert[output] ? place.expert : place.column;
    errors->bins[bin_of(ulp)]++;
    if (ulp > 0 || !right) {
        struct worst_element worst = {element, got, want, ulp, right};
        keep_worst(errors, &worst);
    }
    if (place.token < 0 || column < 0)
        return;
    int64_t cell = place.token / job->lines.size * job->columns[output].count +
                   column / job->columns[output].size;
    errors->wrong[cell] += !right;
    errors->ulp[cell] = ulp > errors->ulp[cell] ? ulp : errors->ulp[cell];
}

static void merge(struct errors *all, const struct errors *part)
{
    for (int i = 0; i < BINS; i++)
        all->bins[i] += part->bins[i];
    for (int i = 0; i < CELLS; i++) {
        all->wrong[i] += part->wrong[i];
        all->ulp[i] = part->ulp[i] > all->ulp[i] ? part->ulp[i] : all->ulp[i];
    }
    for (int i = 0; i < part->worst_count; i++)
        keep_worst(all, &part->worst[i]);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void add_size(cJSON *object, const char *key, int64_t size)
{
    if (size >= 0)
        cJSON_AddNumberToObject(object, key, (double)size);
}

/* NaN without a sign, which says nothing. */
static double fabs_if_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

/* "0.5 (0x3f00)"; whole numbers as such. */
static void add_value(cJSON *object, const char *key, moetoken_type type, uint64_t bits)
{
    char text[64];
    if (type_is_float(type))
        snprintf(text, sizeof text, "%.9g (0x%0*" PRIx64 ")",
                 fabs_if_nan(bits_to_double(type, bits)), (int)(2 * type_size(type)), bits);
    else if (type == MOETOKEN_I32)
        snprintf(text, sizeof text, "%" PRId32, (int32_t)bits);
    else
        snprintf(text, sizeof text, "%" PRId64, (int64_t)bits);
    cJSON_AddStringToObject(object, key, text);
}

static void add_worst(const struct error_job *job, int output, moetoken_type type,
                      const struct worst_element *worst, cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    char text[64];
    int64_t last = job->last_size[output];
    struct inspect_place place = inspect_place_of(job->routing, output, worst->element, last);
    if (last > 0)
        snprintf(text, sizeof text, "[%" PRId64 ", %" PRId64 "]", worst->element / last,
                 worst->element % last);
    else
        snprintf(text, sizeof text, "[%" PRId64 "]", worst->element);
    cJSON_AddStringToObject(item, "place", text);
    add_size(item, "token", place.token);
    add_size(item, "slot", place.slot);
    add_size(item, "expert", place.expert);
    add_size(item, "row", place.row);
    add_value(item, "got", type, worst->got);
    snprintf(text, sizeof text, type_is_float(type) ? "%.12g" : "%.0f", worst->want);
    cJSON_AddStringToObject(item, "want", text);
    snprintf(text, sizeof text, "%.4g", worst->ulp);
    cJSON_AddStringToObject(item, "ulp", isinf(worst->ulp) ? "no number" : text);
    cJSON_AddBoolToObject(item, "right", worst->right);
    cJSON_AddItemToArray(list, item);
}

static void add_bins(const struct errors *errors, cJSON *item)
{
    cJSON *bins = cJSON_AddArrayToObject(item, "bins");
    for (int i = 0; i < BINS; i++)
        cJSON_AddItemToArray(bins, cJSON_CreateNumber((double)errors->bins[i]));
}

static void add_map(const struct error_job *job, int output, const struct errors *errors,
                    cJSON *item)
{
    const struct inspect_blocks *columns = &job->columns[output];
    int64_t cells = job->lines.count * columns->count;
    if (cells == 0)
        return;
    cJSON *map = cJSON_AddObjectToObject(item, "map");
    cJSON_AddBoolToObject(map, "by_expert", job->by_expert[output]);
    cJSON_AddNumberToObject(map, "tokens", (double)job->lines.things);
    cJSON_AddNumberToObject(map, "tokens_size", (double)job->lines.size);
    cJSON_AddNumberToObject(map, "columns", (double)columns->things);
    cJSON_AddNumberToObject(map, "columns_size", (double)columns->size);
    cJSON *ulp = cJSON_AddArrayToObject(map, "ulp"), *wrong = cJSON_AddArrayToObject(map, "wrong");
    for (int64_t i = 0; i < cells; i++) {
        char text[32]; /* infinity, which JSON does not have, as a number beyond all others */
        snprintf(text, sizeof text, "%.3g", isinf(errors->ulp[i]) ? 1e300 : errors->ulp[i]);
        cJSON_AddItemToArray(ulp, cJSON_CreateRaw(text));
        cJSON_AddItemToArray(wrong, cJSON_CreateNumber((double)errors->wrong[i]));
    }
}

static void add_output(const struct error_job *job, int output, const struct output_report *report,
                       const struct errors *errors, cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    cJSON_AddStringToObject(item, "name", report->name);
    if (report->problem[0] != '\0') {
        cJSON_AddStringToObject(item, "problem", report->problem);
        return;
    }
    cJSON_AddStringToObject(item, "type", type_name(report->type));
    cJSON_AddNumberToObject(item, "checked", (double)report->checked);
    cJSON_AddNumberToObject(item, "wrong", (double)report->wrong);
    char text[32];
    snprintf(text, sizeof text, "%.4g", report->worst_ulp);
    cJSON_AddStringToObject(item, "worst_ulp", isinf(report->worst_ulp) ? "no number" : text);
    add_bins(errors, item);
    add_map(job, output, errors, item);
    cJSON *worst = cJSON_AddArrayToObject(item, "worst");
    for (int i = 0; i < errors->worst_count; i++)
        add_worst(job, output, report->type, &errors->worst[i], worst);
}

/* ---- all outputs ----------------------------------------------------------------------------- */

/* Whether elements of the output belong to an expert; those of sums over experts do not. */
static bool belongs_to_expert(const struct oracle_case *oracle, int output)
{
    return !(output == 0 && (oracle->operator_kind == OPERATOR_UNPERMUTE ||
                             oracle->operator_kind == OPERATOR_PERMUTE_GRAD));
}

static void lay_out_maps(struct error_job *job, const struct oracle_case *oracle)
{
    job->lines = inspect_blocks(oracle->tokens, INSPECT_ROWS_MOST);
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        struct tensor_spec spec;
        if (!oracle_output_spec(oracle, i, &spec))
            continue;
        job->last_size[i] = spec.ndim == 2 ? spec.shape[1] : 0;
        job->by_expert[i] = job->routing->has_experts && belongs_to_expert(oracle, i);
        job->columns[i] = inspect_blocks(job->by_expert[i] ? oracle->experts : job->last_size[i],
                                         INSPECT_COLUMNS_MOST);
    }
}

static struct errors *make_errors(size_t count)
{
    struct errors *errors = calloc(count, sizeof *errors);
    for (size_t i = 0; errors != NULL && i < count; i++)
        for (int cell = 0; cell < CELLS; cell++)
            errors[i].ulp[cell] = -1;
    return errors;
}

bool inspect_errors(const struct inspect_routing *routing, struct progress *progress, cJSON *page)
{
    struct oracle_case oracle = *routing->oracle;
    struct error_job job = {.routing = routing};
    struct output_report reports[OUTPUTS_MOST];
    int threads = omp_get_max_threads();
    bool wanted[OUTPUTS_MOST];
    lay_out_maps(&job, &oracle);
    job.threads = make_errors((size_t)threads * OUTPUTS_MOST);
    if (job.threads == NULL)
        return false;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        wanted[i] = oracle.output[i] != NULL;
    oracle.observe = see_element;
    oracle.observe_context = &job;
    bool good = oracle_verify(&oracle, wanted, reports, progress);
    cJSON *list = cJSON_AddArrayToObject(page, "outputs");
    for (int i = 0; good && i < OUTPUTS_MOST; i++) {
        if (reports[i].name == NULL)
            continue;
        for (int t = 1; t < threads; t++)
            merge(&job.threads[i], &job.threads[t * OUTPUTS_MOST + i]);
        add_output(&job, i, &reports[i], &job.threads[i], list);
    }
    free(job.threads);
    return good;
}
