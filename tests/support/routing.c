/* routing.c - random routings that are valid by docs/contract.md. */
#include "routing.h"

#include "random.h"
#include <stdio.h>
#include <stdlib.h>

static void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (memory == NULL) {
        perror("test routing");
        exit(99);
    }
    return memory;
}

static unsigned char set_byte(void)
{
    static const unsigned char bytes[] = {1, 1, 2, 0x80, 0xff, 0x10};
    return bytes[random_below(6)];
}

/* Sets `count` experts of a token, picked at random. */
static void set_experts(struct routing *routing, int64_t token, int64_t count)
{
    int64_t *order = allocate(routing->experts, sizeof *order);
    random_permutation(order, routing->experts);
    for (int64_t j = 0; j < count; j++) {
        routing->map[token * routing->experts + order[j]] = set_byte();
    }
    free(order);
}

static void shuffle(int64_t *values, int64_t count)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = random_below(i + 1);
        int64_t held = values[i];
        values[i] = values[j];
        values[j] = held;
    }
}

static void assign_tokens(struct routing *routing, const struct routing_spec *spec)
{
    for (int64_t i = 0; i < routing->slots_num; i++) {
        routing->token[i] = spec->uneven ? random_below(routing->tokens) : i / spec->slots;
    }
    if (spec->shuffled) {
        shuffle(routing->token, routing->slots_num);
    }
}

/* Marks each slot as used (0) or hole (-1) and returns how many are used. */
static int64_t assign_holes(struct routing *routing, const struct routing_spec *spec)
{
    int64_t *owned = allocate(routing->tokens, sizeof *owned);
    int64_t *set = allocate(routing->tokens, sizeof *set);
    int64_t *ordinal = allocate(routing->tokens, sizeof *ordinal);
    int64_t used = 0;
    for (int64_t i = 0; i < routing->slots_num; i++) {
        owned[routing->token[i]]++;
    }
    for (int64_t t = 0; t < routing->tokens; t++) {
        bool few = owned[t] < routing->experts && !spec->mismatch;
        int64_t most = few ? owned[t] : routing->experts;
        set[t] = random_chance(60) ? most : random_below(most + 1);
        set_experts(routing, t, set[t]);
    }
    for (int64_t i = 0; i < routing->slots_num; i++) {
        int64_t t = routing->token[i];
        bool reached = ordinal[t]++ < set[t] || spec->no_map || spec->mismatch;
        routing->row[i] = reached && !random_chance(spec->hole_percent) ? 0 : -1;
        used += routing->row[i] == 0;
    }
    free(owned);
    free(set);
    free(ordinal);
    return used;
}

static void assign_rows(struct routing *routing)
{
    int64_t *order = allocate(routing->rows_num, sizeof *order);
    random_permutation(order, routing->rows_num);
    int64_t next = 0;
    for (int64_t i = 0; i < routing->slots_num; i++) {
        if (routing->row[i] == 0) {
            routing->row[i] = order[next++];
        }
    }
    free(order);
}

static void make_dropless(struct routing *routing, const struct routing_spec *spec)
{
    assign_tokens(routing, spec);
    int64_t used = assign_holes(routing, spec);
    int64_t spare = routing->slots_num - used;
    routing->rows_num = used + (spec->no_spare_rows ? 0 : random_below(spare + 1));
    assign_rows(routing);
}

static void make_padded(struct routing *routing, const struct routing_spec *spec)
{
    int64_t slots = routing->slots_num;
    routing->rows_num = slots;
    for (int64_t t = 0; t < routing->tokens; t++) {
        set_experts(routing, t, random_below(routing->experts + 1));
    }
    if (!spec->canonical) {
        random_permutation(routing->row, slots);
        for (int64_t i = 0; i < slots; i++) {
            routing->token[i] = random_below(routing->tokens);
        }
        return;
    }
    /* As the forward operator leaves them: rows ascending inside a token. */
    int64_t *owner = allocate(slots, sizeof *owner);
    for (int64_t r = 0; r < slots; r++) {
        owner[r] = random_below(routing->tokens);
    }
    int64_t at = 0;
    for (int64_t t = 0; t < routing->tokens; t++) {
        for (int64_t r = 0; r < slots; r++) {
            if (owner[r] == t) {
                routing->row[at] = r;
                routing->token[at++] = t;
            }
        }
    }
    free(owner);
}

void routing_make(struct routing *routing, const struct routing_spec *spec)
{
    int64_t owners = spec->padded ? spec->experts : spec->tokens;
    *routing = (struct routing){
        .tokens = spec->tokens, .experts = spec->experts, .slots_num = owners * spec->slots};
    routing->row = allocate(routing->slots_num, sizeof *routing->row);
    routing->token = allocate(routing->slots_num, sizeof *routing->token);
    routing->map = allocate(spec->tokens * spec->experts, 1);
    if (spec->padded) {
        make_padded(routing, spec);
    } else {
        make_dropless(routing, spec);
    }
}

void routing_free(struct routing *routing)
{
    free(routing->row);
    free(routing->token);
    free(routing->map);
    *routing = (struct routing){0};
}
