/* generate_routing.c - the routing of a generated case: settings -> map, rows and tokens of slots.
 * The model is described in generate_case.h; here everything is integers and correctly rounded. */
#include "generate_routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "values/random_values.h"

/* base^(exponent_64ths / 64) from multiplications and square roots alone. */
static double power_64ths(double base, int64_t exponent_64ths)
{
    double result = 1.0;
    for (int64_t whole = exponent_64ths / 64; whole > 0; whole--)
        result *= base;
    double root = base;
    for (int64_t bit = 32; bit > 0; bit /= 2) {
        root = sqrt(root);
        if ((exponent_64ths & bit) != 0)
            result *= root;
    }
    return result;
}

/* slowness[e] = (rank of e + 1)^skew, ranks in random order. by_row serves as scratch for ranks:
 * it is filled later, and has max(N, E) elements. */
static void rank_experts(struct generated_case *plan)
{
    int64_t experts = plan->settings.experts, *rank = plan->by_row;
    for (int64_t e = 0; e < experts; e++)
        rank[e] = e;
    random_shuffle(random_key(plan->settings.seed, STREAM_RANKS), experts, rank);
    for (int64_t e = 0; e < experts; e++)
        plan->slowness[e] = power_64ths((double)(rank[e] + 1), plan->settings.skew_64ths);
}

static double race_time(const struct generated_case *plan, uint64_t key, int64_t token,
                        int64_t expert)
{
    return random_unit(key, (uint64_t)(token * plan->settings.experts + expert)) *
           plan->slowness[expert];
}

double share_sum(const struct generated_case *plan, int64_t token)
{
    uint64_t key = random_key(plan->settings.seed, STREAM_RACES);
    double sum = 0.0;
    for (int64_t e = 0; e < plan->settings.experts; e++)
        sum += 1.0 / race_time(plan, key, token, e);
    return sum;
}

double share_before_division(const struct generated_case *plan, int64_t token, int64_t expert)
{
    return 1.0 / race_time(plan, random_key(plan->settings.seed, STREAM_RACES), token, expert);
}

/* Sets the `wanted` fastest experts of a token. The map's row records which are in already. */
static void set_fastest(const struct generated_case *plan, uint64_t key, int64_t token,
                        int64_t wanted)
{
    int64_t experts = plan->settings.experts;
    uint8_t *map = plan->map + token * experts;
    double reached = 0.0; /* all experts up to this time are set */
    for (int64_t k = 0; k < wanted; k++) {
        int64_t best = -1;
        double best_time = INFINITY;
        for (int64_t e = 0; e < experts; e++) {
            double time = race_time(plan, key, token, e);
            if (time < best_time && time >= reached && map[e] == 0) {
                best = e;
                best_time = time;
            }
        }
        map[best] = 1;
        reached = best_time;
    }
}

static void set_routing_map(struct generated_case *plan)
{
    const struct case_settings *settings = &plan->settings;
    uint64_t races = random_key(settings->seed, STREAM_RACES);
    uint64_t holes = random_key(settings->seed, STREAM_HOLES);
#pragma omp parallel for schedule(static) if (settings->tokens * settings->experts > 1 << 14)
    for (int64_t t = 0; t < settings->tokens; t++) {
        int64_t wanted = settings->topk;
        if (settings->holes)
            wanted = (int64_t)(random_bits(holes, (uint64_t)t) % (uint64_t)(wanted + 1));
        set_fastest(plan, races, t, wanted);
    }
}

/* Dropless, slot t*K + j belongs to the j-th set expert of t. Writes the expert, or -1 for a hole,
 * into row[] for the moment; adds up the rows of each expert in `first`. */
static void name_slot_experts(struct generated_case *plan, int64_t *first)
{
    const struct case_settings *settings = &plan->settings;
    uint64_t drops = random_key(settings->seed, STREAM_DROPS);
    for (int64_t t = 0, i = 0; t < settings->tokens; t++) {
        int64_t end = i + settings->topk;
        const uint8_t *map = plan->map + t * settings->experts;
        for (int64_t e = 0; e < settings->experts; e++) {
            if (map[e] == 0)
                continue;
            bool dropped = settings->holes && random_bits(drops, (uint64_t)i) % 16 == 0;
            plan->row[i++] = dropped ? -1 : e;
            if (!dropped)
                first[e]++;
        }
        while (i < end)
            plan->row[i++] = -1;
    }
}

/* Brings each token's experts into the order in which they win, holes last, and keeps them. As the
 * experts of a token differ, its rows are the same in either order. */
static void order_slots_by_time(struct generated_case *plan)
{
    int64_t topk = plan->settings.topk;
    uint64_t key = random_key(plan->settings.seed, STREAM_RACES);
    for (int64_t t = 0; t < plan->settings.tokens; t++) {
        int64_t *experts = plan->row + t * topk;
        for (int64_t i = 1; i < topk; i++) {
            int64_t moved = experts[i], at = i;
            double time = moved < 0 ? INFINITY : race_time(plan, key, t, moved);
            for (;
                 at > 0 && (experts[at - 1] < 0 ? (double)INFINITY
                                                : race_time(plan, key, t, experts[at - 1])) > time;
                 at--)
                experts[at] = experts[at - 1];
            experts[at] = moved;
        }
    }
    memcpy(plan->expert, plan->row, (size_t)plan->slots * sizeof *plan->expert);
}

/* counts -> the first row of each expert; returns the sum. */
static int64_t counts_to_firsts(int64_t count, int64_t *values)
{
    int64_t sum = 0;
    for (int64_t e = 0; e < count; e++) {
        int64_t here = values[e];
        values[e] = sum;
        sum += here;
    }
    return sum;
}

/* Row r becomes another one of [0, rows), and the slots come in another order; the slots of a token
 * stay in order among themselves, for their ordinals name their experts. */
static void shuffle_dropless(struct generated_case *plan, int64_t *scratch)
{
    const struct case_settings *settings = &plan->settings;
    for (int64_t r = 0; r < plan->rows; r++)
        scratch[r] = r;
    random_shuffle(random_key(settings->seed, STREAM_ROWS), plan->rows, scratch);
    for (int64_t i = 0; i < plan->slots; i++)
        plan->row[i] = plan->row[i] < 0 ? -1 : scratch[plan->row[i]];
    if (settings->operator_kind != OPERATOR_UNPERMUTE_GRAD || settings->by_ids)
        return;
    random_shuffle(random_key(settings->seed, STREAM_SLOTS), plan->slots, plan->token);
    memcpy(scratch, plan->row, (size_t)plan->slots * sizeof *scratch);
    int64_t *next = plan->by_row; /* [T]: the next slot of each token; has max(N, E, T) elements */
    for (int64_t t = 0; t < settings->tokens; t++)
        next[t] = t * settings->topk;
    for (int64_t i = 0; i < plan->slots; i++)
        plan->row[i] = scratch[next[plan->token[i]]++];
}

static void route_dropless(struct generated_case *plan, int64_t *scratch)
{
    const struct case_settings *settings = &plan->settings;
    memset(scratch, 0, (size_t)settings->experts * sizeof *scratch);
    name_slot_experts(plan, scratch);
    if (settings->by_ids)
        order_slots_by_time(plan);
    int64_t used = counts_to_firsts(settings->experts, scratch);
    int64_t spare =
        plan->slots - used < settings->spare_rows ? plan->slots - used : settings->spare_rows;
    plan->rows = used + spare;
    for (int64_t i = 0; i < plan->slots; i++) {
        plan->token[i] = i / settings->topk;
        if (plan->row[i] >= 0)
            plan->row[i] = scratch[plan->row[i]]++;
    }
    if (settings->operator_kind == OPERATOR_UNPERMUTE_GRAD && settings->without_probs)
        plan->rows = plan->slots; /* no tensor in the file tells R: it is N */
    if (settings->shuffle)
        shuffle_dropless(plan, scratch);
}

/* Padded: the tokens of expert e's rows. The first C set ones, then fill slots. */
static void fill_expert(const struct generated_case *plan, int64_t e, int64_t *rows)
{
    const struct case_settings *settings = &plan->settings;
    const uint8_t *map = plan->map + e;
    int64_t used = 0;
    for (int64_t t = 0; t < settings->tokens && used < settings->capacity; t++)
        if (map[t * settings->experts] != 0)
            rows[used++] = t;
    if (settings->random_fill_slots) {
        uint64_t key = random_key(settings->seed, STREAM_FILL_SLOTS);
        for (; used < settings->capacity; used++)
            rows[used] = (int64_t)(random_bits(key, (uint64_t)(e * settings->capacity + used)) %
                                   (uint64_t)settings->tokens);
    }
    for (int64_t t = 0; t < settings->tokens && used < settings->capacity; t++)
        if (map[t * settings->experts] == 0)
            rows[used++] = t;
}

/* The slots are the rows in a stable ascending order of their tokens. */
static void sort_rows_by_token(struct generated_case *plan, int64_t *next)
{
    memset(next, 0, (size_t)plan->settings.tokens * sizeof *next);
    for (int64_t r = 0; r < plan->slots; r++)
        next[plan->by_row[r]]++;
    counts_to_firsts(plan->settings.tokens, next);
    for (int64_t r = 0; r < plan->slots; r++) {
        int64_t slot = next[plan->by_row[r]]++;
        plan->row[slot] = r;
        plan->token[slot] = plan->by_row[r];
    }
}

static void route_padded(struct generated_case *plan, int64_t *scratch)
{
    const struct case_settings *settings = &plan->settings;
    plan->rows = plan->slots;
#pragma omp parallel for schedule(static) if (settings->tokens * settings->experts > 1 << 14)
    for (int64_t e = 0; e < settings->experts; e++)
        fill_expert(plan, e, plan->by_row + e * settings->capacity);
    sort_rows_by_token(plan, scratch);
    if (!settings->shuffle)
        return;
    random_shuffle(random_key(settings->seed, STREAM_SLOTS), plan->slots, plan->row);
    for (int64_t i = 0; i < plan->slots; i++)
        plan->token[i] = plan->by_row[plan->row[i]];
}

bool route_case(struct generated_case *plan)
{
    int64_t most = plan->slots;
    if (most < plan->settings.experts)
        most = plan->settings.experts;
    if (most < plan->settings.tokens)
        most = plan->settings.tokens;
    int64_t *scratch = malloc(((size_t)most + 1) * sizeof *scratch);
    if (scratch == NULL)
        return false;
    rank_experts(plan);
    set_routing_map(plan);
    if (plan->settings.drop_and_pad)
        route_padded(plan, scratch);
    else
        route_dropless(plan, scratch);
    free(scratch);
    return true;
}
